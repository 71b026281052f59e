//! Sizes in the words of nats-server's log.

/// A size for people: `512 B`, `64.00 MB`, in powers of 1024.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (63 - bytes.leading_zeros()) / 10;
    let size = bytes as f64 / (1_u64 << (10 * exponent)) as f64;
    format!("{size:.2} {}", UNITS[exponent as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_fits_and_two_decimals() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KB"),
            (64 << 20, "64.00 MB"),
            (10_000_000, "9.54 MB"),
            ((1 << 40) - 1, "1024.00 GB"),
            (u64::MAX, "16.00 EB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
