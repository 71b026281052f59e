//! Durations of the JetStream API.
//!
//! The API writes durations in two ways: as integer nanoseconds in JSON, and in a text form (`1h30m`, `1.5s`) in
//! headers, statuses and descriptions. [`Nanos`] is both. It is signed because requests may carry negative values,
//! which are refused by name or stand for "none", so they must survive decoding.
//!
//! The text form is read leniently (any order of units, fractions, a sign, no days) and written in one way only: the
//! largest units first, without zero units in front and with the fraction on the last one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000 * MICRO;
const SECOND: u64 = 1_000 * MILLI;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A signed duration in nanoseconds; at most about 292 years.
///
/// In JSON it is an integer. `Display` and `FromStr` are the text form.
///
/// ```
/// use windjet_protocol::jetstream::Nanos;
///
/// assert_eq!(Nanos::from_secs(90).to_string(), "1m30s");
/// assert_eq!("1.5s".parse(), Ok(Nanos::from_millis(1500)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub i64);

impl Nanos {
    /// No time at all; in most places of the API it means "not set".
    pub const ZERO: Self = Self(0);
    /// The longest duration.
    pub const MAX: Self = Self(i64::MAX);

    /// A duration of whole seconds; what does not fit becomes the nearest that does.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(SECOND as i64))
    }

    /// A duration of whole milliseconds; what does not fit becomes the nearest that does.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(MILLI as i64))
    }

    /// Whether the duration is zero, in most places "not set".
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Whether the duration is above zero.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Whether the duration is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The duration for timers; negative ones become zero.
    pub const fn to_std(self) -> Duration {
        Duration::from_nanos(if self.0 < 0 { 0 } else { self.0.unsigned_abs() })
    }
}

impl From<Duration> for Nanos {
    /// Durations over 292 years become [`Nanos::MAX`].
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.unsigned_abs();
        if total == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if total < SECOND {
            let (unit, name) = match total {
                MILLI.. => (MILLI, "ms"),
                MICRO.. => (MICRO, "µs"),
                _ => (1, "ns"),
            };
            return write_fraction(f, total, unit, name);
        }
        if total >= HOUR {
            write!(f, "{}h", total / HOUR)?;
        }
        if total >= MINUTE {
            write!(f, "{}m", total % HOUR / MINUTE)?;
        }
        write_fraction(f, total % MINUTE, SECOND, "s")
    }
}

/// Writes `value / unit` with as many decimals as needed.
fn write_fraction(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", value / unit)?;
    let mut fraction = value % unit;
    if fraction > 0 {
        let mut width = unit.ilog10() as usize;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        write!(f, ".{fraction:0width$}")?;
    }
    f.write_str(name)
}

/// A text that is not a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration")]
pub struct InvalidDuration;

impl FromStr for Nanos {
    type Err = InvalidDuration;

    /// Reads `[+-]` and one or more of a decimal number and a unit (`ns us µs ms s m h`), or a plain `0`.
    ///
    /// # Errors
    ///
    /// [`InvalidDuration`] for anything else, and for values beyond the range.
    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(InvalidDuration);
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, after) = read_part(rest)?;
            total = total.checked_add(part).ok_or(InvalidDuration)?;
            rest = after;
        }
        if negative {
            0_i64.checked_sub_unsigned(total)
        } else {
            i64::try_from(total).ok()
        }
        .map(Self)
        .ok_or(InvalidDuration)
    }
}

/// Reads one number with its unit; gives nanoseconds and what follows.
fn read_part(text: &str) -> Result<(u64, &str), InvalidDuration> {
    let (whole, rest) = read_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => read_digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(InvalidDuration);
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, after) = rest.split_at(end);
    let unit = match unit {
        "ns" => 1,
        // The two micro signs of Unicode: the sign itself and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICRO,
        "ms" => MILLI,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return Err(InvalidDuration),
    };
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| InvalidDuration)?
    };
    let nanos = whole.checked_mul(unit).ok_or(InvalidDuration)?;
    nanos
        .checked_add(scale_fraction(fraction, unit))
        .map(|nanos| (nanos, after))
        .ok_or(InvalidDuration)
}

fn read_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `0.<digits>` of a unit in whole nanoseconds, rounded down. Digits past the eighteenth weigh nothing.
fn scale_fraction(digits: &str, unit: u64) -> u64 {
    let digits = &digits[..digits.len().min(18)];
    let value: u64 = digits.parse().unwrap_or(0);
    let scale = 10_u128.pow(digits.len() as u32);
    (u128::from(value) * u128::from(unit) / scale) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_written_with_the_largest_units_first() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (100_000_000, "100ms"),
            (1_500_000_000, "1.5s"),
            (10_000_000_000, "10s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_405_000_000_001, "1h30m5.000000001s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(Nanos(nanos).to_string(), text);
            assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn text_is_read_in_every_form_that_clients_send() {
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("+5s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("30m1h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("10us", 10_000),
            ("10μs", 10_000),
            ("0.3333333333333333333h", 1_199_999_999_999),
            ("1.00000000000000000000000000001s", 1_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "+",
            "-",
            "1",
            "1d",
            "1 s",
            " 1s",
            "s",
            ".s",
            "1.5",
            "1s ",
            "--1s",
            "1x2s",
            "9223372036854775808ns",
        ] {
            assert_eq!(text.parse::<Nanos>(), Err(InvalidDuration), "{text:?}");
        }
    }

    #[test]
    fn json_is_an_integer_and_nothing_else() {
        assert_eq!(
            serde_json::to_string(&Nanos::from_secs(30)).unwrap(),
            "30000000000"
        );
        assert_eq!(serde_json::from_str::<Nanos>("-5").unwrap(), Nanos(-5));
        for text in ["1.5", "1e3", "\"5\"", "9223372036854775808"] {
            assert!(serde_json::from_str::<Nanos>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn conversions_stop_at_the_ends_of_the_range() {
        assert_eq!(Nanos::from(Duration::MAX), Nanos::MAX);
        assert_eq!(Nanos(-1).to_std(), Duration::ZERO);
        assert_eq!(Nanos::from_secs(i64::MAX), Nanos::MAX);
        assert_eq!(
            Nanos::from(Duration::from_millis(1500)).to_std(),
            Duration::from_millis(1500)
        );
    }

    proptest! {
        #[test]
        fn written_text_reads_back_equal(nanos in any::<i64>()) {
            prop_assert_eq!(Nanos(nanos).to_string().parse(), Ok(Nanos(nanos)));
        }

        #[test]
        fn reading_never_panics(text in "[-+0-9.a-zµ]{0,12}") {
            let _ = text.parse::<Nanos>();
        }
    }
}
