//! Sizes and durations as text.

use std::time::Duration;

/// The largest size that is read.
const SIZE_MAX: u64 = 1 << 62;

/// Suffixes in the order in which they are tried.
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1000),
];

/// A text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no size: write a whole number with one of k M G T Ki Mi Gi Ti or nothing behind it, such as 100Gi"
)]
pub struct InvalidSize {
    text: String,
}

/// Reads a number of bytes written as a Kubernetes quantity: a whole number with at most one suffix.
///
/// # Errors
/// For anything else, and for more than 2^62 bytes.
pub fn parse_store_size(text: &str) -> Result<u64, InvalidSize> {
    let read = || {
        let (number, unit) = UNITS
            .iter()
            .find_map(|&(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
            .unwrap_or((text, 1));
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        number
            .parse::<u64>()
            .ok()?
            .checked_mul(unit)
            .filter(|&size| size <= SIZE_MAX)
    };
    read().ok_or_else(|| InvalidSize {
        text: text.to_owned(),
    })
}

/// Writes a number of bytes in the largest binary unit that divides it.
#[must_use]
pub fn format_store_size(bytes: u64) -> String {
    let unit = UNITS[..4]
        .iter()
        .find(|&&(_, unit)| bytes > 0 && bytes.is_multiple_of(unit));
    unit.map_or_else(
        || bytes.to_string(),
        |(suffix, unit)| format!("{}{suffix}", bytes / unit),
    )
}

/// Writes a duration as Go reads it: whole hours and minutes alone, else every part, such as `1m30s` and `15.5s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if nanos == 0 && seconds > 0 {
        if seconds.is_multiple_of(3600) {
            return format!("{}h", seconds / 3600);
        }
        if seconds.is_multiple_of(60) {
            return format!("{}m", seconds / 60);
        }
    }
    if seconds == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            1..1000 => format!("{nanos}ns"),
            1000..1_000_000 => format!("{}µs", fraction(u64::from(nanos / 1000), nanos % 1000, 3)),
            _ => format!(
                "{}ms",
                fraction(u64::from(nanos / 1_000_000), nanos % 1_000_000, 6)
            ),
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = String::new();
    if hours > 0 {
        text = format!("{hours}h");
    }
    if hours > 0 || minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    text + &fraction(seconds % 60, nanos, 9) + "s"
}

fn fraction(whole: u64, part: u32, digits: usize) -> String {
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0digits$}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_refused() {
        for (text, size) in [
            ("100Gi", 100 << 30),
            ("15Gi", 15 << 30),
            ("1024", 1024),
            ("2Ti", 2 << 40),
            ("5G", 5_000_000_000),
            ("64Mi", 64 << 20),
            ("3k", 3000),
            ("0", 0),
        ] {
            assert_eq!(parse_store_size(text), Ok(size), "{text}");
        }
        for text in [
            "",
            "Gi",
            "1.5Gi",
            "-1",
            "+1",
            "10GB",
            "10 Gi",
            "9999999999Ti",
            "1K",
            " 1",
        ] {
            assert!(parse_store_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_divides_them() {
        for (size, text) in [
            (0, "0"),
            (1000, "1000"),
            (1536 << 20, "1536Mi"),
            (100 << 30, "100Gi"),
            (3 << 10, "3Ki"),
            (2 << 40, "2Ti"),
        ] {
            assert_eq!(format_store_size(size), text);
            assert_eq!(parse_store_size(text), Ok(size));
        }
    }

    #[test]
    fn durations_are_written_as_go_reads_them() {
        for (millis, text) in [
            (7_200_000, "2h"),
            (120_000, "2m"),
            (60_000, "1m"),
            (10_000, "10s"),
            (90_000, "1m30s"),
            (15_500, "15.5s"),
            (3_601_000, "1h0m1s"),
            (250, "250ms"),
            (0, "0s"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_duration(Duration::from_micros(1500)), "1.5ms");
    }
}
