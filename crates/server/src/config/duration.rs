//! Durations as text: `1h30m`, `2m`, `300ms`, `1.5s`.
//!
//! The grammar and the spelling of results are those of Go, because both appear in configuration files and in
//! the error texts that users compare with nats-server's.

use std::time::Duration;

use super::text::quote;

/// A duration that may be negative, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SignedDuration(i64);

impl SignedDuration {
    pub(super) const ZERO: Self = Self(0);

    pub(super) fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    pub(super) fn is_negative(self) -> bool {
        self.0 < 0
    }

    pub(super) fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The duration, unless it is zero or negative: options take those for their defaults.
    pub(super) fn positive(self) -> Option<Duration> {
        Some(self.clamped()).filter(|duration| !duration.is_zero())
    }

    /// The duration, zero when it is negative.
    pub(super) fn clamped(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl std::fmt::Display for SignedDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        f.write_str(&format_duration(Duration::from_nanos(self.0.unsigned_abs())))
    }
}

/// Spells a duration as nats-server does: `3m0s`, `1h0m0s`, `1.5s`, `300ms`, `0s`.
pub(crate) fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    let with_unit = |unit: u128, name: &str| format!("{}{name}", decimal(nanos, unit));
    if nanos < 1_000 {
        return with_unit(1, "ns");
    }
    if nanos < 1_000_000 {
        return with_unit(1_000, "µs");
    }
    if nanos < 1_000_000_000 {
        return with_unit(1_000_000, "ms");
    }
    const SECOND: u128 = 1_000_000_000;
    let seconds = decimal(nanos % (60 * SECOND), SECOND);
    let minutes = nanos / (60 * SECOND);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `value / unit` with as many decimals as it takes and no more.
fn decimal(value: u128, unit: u128) -> String {
    let whole = value / unit;
    let rest = value % unit;
    if rest == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

/// Parses a duration.
///
/// # Errors
///
/// Text that is no duration, in nats-server's words.
pub(super) fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit_name, after) = after.split_at(unit_end);
        if unit_name.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let Some(unit) = unit_nanos(unit_name) else {
            return Err(format!(
                "time: unknown unit {} in duration {}",
                quote(unit_name),
                quote(text)
            ));
        };
        let part = scale(whole, fraction, unit).ok_or_else(invalid)?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = after;
    }
    let nanos = i64::try_from(total).map_err(|_| invalid())?;
    Ok(SignedDuration(if negative { -nanos } else { nanos }))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn unit_nanos(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `whole.fraction` units in nanoseconds, or `None` when that is too much.
fn scale(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(unit)?;
    // Beyond 18 decimals not even hours show a difference.
    let fraction = &fraction[..fraction.len().min(18)];
    if !fraction.is_empty() {
        let numerator: u128 = fraction.parse().ok()?;
        let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        nanos = nanos.checked_add(u64::try_from(numerator * u128::from(unit) / denominator).ok()?)?;
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_all_units_and_sums() {
        for (text, nanos) in [
            ("0", 0),
            ("1ns", 1),
            ("300ms", 300_000_000),
            ("1.5s", 1_500_000_000),
            ("2m", 120_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("-10s", -10_000_000_000),
            ("+.5s", 500_000_000),
            ("2us", 2_000),
            ("2µs", 2_000),
            ("1.s", 1_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(SignedDuration(nanos)), "{text}");
        }
    }

    #[test]
    fn bad_durations_are_named_in_the_words_of_go() {
        for (text, error) in [
            ("", r#"time: invalid duration """#),
            ("x", r#"time: invalid duration "x""#),
            ("5", r#"time: missing unit in duration "5""#),
            ("5d", r#"time: unknown unit "d" in duration "5d""#),
            (".s", r#"time: invalid duration ".s""#),
            ("9999999999h", r#"time: invalid duration "9999999999h""#),
        ] {
            assert_eq!(parse_duration(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn durations_are_spelled_as_in_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (300_000_000, "300ms"),
            (1_500_000_000, "1.5s"),
            (120_000_000_000, "2m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_400_250_000_000, "1h30m0.25s"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), text);
        }
    }
}
