//! Points in time of the JetStream API.
//!
//! The API writes times as RFC 3339 in UTC with up to nine decimals, without trailing zeros:
//! `2026-12-02T00:43:44.4198Z`. Two more forms exist inside: nanoseconds since 1970 (stored messages,
//! acknowledgement subjects) and "no time", which the API shows as the first instant of the year 1.
//!
//! Requests may carry any offset; a [`Timestamp`] keeps the instant and forgets the offset, so an answer shows the
//! time in UTC where nats-server would repeat the offset of the request. Clients compare instants.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Seconds from 1970 back to the first instant of the year 1.
const YEAR_ONE: i64 = -62_135_596_800;

/// Seconds from 1970 to the last second of the year 9999, the last that RFC 3339 can write.
const YEAR_9999_END: i64 = 253_402_300_799;

/// An instant in the years 1 to 9999 with a precision of one nanosecond.
///
/// The default is [`Timestamp::ZERO`], "no time".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, always within the years 1 to 9999.
    secs: i64,
    /// Nanoseconds after that second, always below one second.
    nanos: u32,
}

impl Timestamp {
    /// "No time": `0001-01-01T00:00:00Z`. Earlier than every other value.
    pub const ZERO: Self = Self {
        secs: YEAR_ONE,
        nanos: 0,
    };

    /// The instant so many nanoseconds after 1970; every value fits.
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self {
            secs: nanos.div_euclid(NANOS_PER_SECOND),
            nanos: nanos.rem_euclid(NANOS_PER_SECOND) as u32,
        }
    }

    /// Nanoseconds since 1970; what lies outside 1677 to 2262 becomes the nearest value that fits.
    pub const fn unix_nanos(self) -> i64 {
        let nanos = self.secs as i128 * NANOS_PER_SECOND as i128 + self.nanos as i128;
        if nanos > i64::MAX as i128 {
            i64::MAX
        } else if nanos < i64::MIN as i128 {
            i64::MIN
        } else {
            nanos as i64
        }
    }

    /// Whether this is [`Timestamp::ZERO`].
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
    pub const fn is_zero(&self) -> bool {
        self.secs == YEAR_ONE && self.nanos == 0
    }

    fn from_parts(secs: i64, nanos: u32) -> Option<Self> {
        (YEAR_ONE..=YEAR_9999_END)
            .contains(&secs)
            .then_some(Self { secs, nanos })
    }

    /// The text in the buffer; the longest has 30 bytes.
    fn write(self, buffer: &mut [u8; 30]) -> &str {
        // The range is an invariant, so the fallback is never taken; it keeps this free of panics.
        let date = OffsetDateTime::from_unix_timestamp(self.secs).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        buffer.copy_from_slice(b"0000-00-00T00:00:00.000000000Z");
        write_digits(&mut buffer[0..4], date.year().unsigned_abs());
        write_digits(&mut buffer[5..7], u32::from(u8::from(date.month())));
        write_digits(&mut buffer[8..10], u32::from(date.day()));
        write_digits(&mut buffer[11..13], u32::from(date.hour()));
        write_digits(&mut buffer[14..16], u32::from(date.minute()));
        write_digits(&mut buffer[17..19], u32::from(date.second()));
        write_digits(&mut buffer[20..29], self.nanos);
        let mut end = if self.nanos == 0 { 19 } else { 29 };
        while end > 19 && buffer[end - 1] == b'0' {
            end -= 1;
        }
        buffer[end] = b'Z';
        std::str::from_utf8(&buffer[..=end]).unwrap_or_default()
    }
}

fn write_digits(place: &mut [u8], mut value: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

impl Default for Timestamp {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write(&mut [0; 30]))
    }
}

impl From<SystemTime> for Timestamp {
    /// Times outside the years 1 to 9999 become the nearest end of that range.
    fn from(time: SystemTime) -> Self {
        let (secs, nanos) = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => (
                i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                after.subsec_nanos(),
            ),
            Err(before) => {
                let before = before.duration();
                let secs = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => (-secs, 0),
                    nanos => (-secs - 1, NANOS_PER_SECOND as u32 - nanos),
                }
            }
        };
        let end = if secs < 0 {
            Self::ZERO
        } else {
            Self {
                secs: YEAR_9999_END,
                nanos: 999_999_999,
            }
        };
        Self::from_parts(secs, nanos).unwrap_or(end)
    }
}

/// A text that is not an RFC 3339 time in the years 1 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid time")]
pub struct InvalidTimestamp;

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    /// Reads RFC 3339 with any offset; digits past the ninth decimal are dropped.
    ///
    /// # Errors
    ///
    /// [`InvalidTimestamp`] for other texts and for years outside 1 to 9999.
    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| InvalidTimestamp)?;
        Self::from_parts(time.unix_timestamp(), time.nanosecond()).ok_or(InvalidTimestamp)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.write(&mut [0; 30]))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time in RFC 3339")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
                text.parse()
                    .map_err(|InvalidTimestamp| E::custom(format_args!("invalid time {text:?}")))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_as_many_as_needed() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.000000001Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
            (1_796_172_224_419_800_000, "2026-12-02T00:43:44.4198Z"),
            (i64::MAX, "2262-04-11T23:47:16.854775807Z"),
            (i64::MIN, "1677-09-21T00:12:43.145224192Z"),
        ] {
            let time = Timestamp::from_unix_nanos(nanos);
            assert_eq!(time.to_string(), text);
            assert_eq!(text.parse(), Ok(time));
            assert_eq!(time.unix_nanos(), nanos);
        }
    }

    #[test]
    fn zero_is_the_first_instant_of_the_year_one() {
        assert_eq!(Timestamp::default().to_string(), "0001-01-01T00:00:00Z");
        assert_eq!("0001-01-01T00:00:00Z".parse(), Ok(Timestamp::ZERO));
        assert!(Timestamp::ZERO.is_zero());
        assert!(!Timestamp::from_unix_nanos(0).is_zero());
        assert!(Timestamp::ZERO < Timestamp::from_unix_nanos(i64::MIN));
        assert_eq!(Timestamp::ZERO.unix_nanos(), i64::MIN);
    }

    #[test]
    fn offsets_are_understood_and_shown_as_utc() {
        for (text, utc) in [
            ("2100-01-01T00:00:00+02:00", "2099-12-31T22:00:00Z"),
            ("2020-06-01T12:00:00.50-07:30", "2020-06-01T19:30:00.5Z"),
            ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
            (
                "2020-01-01T00:00:00.1234567891234Z",
                "2020-01-01T00:00:00.123456789Z",
            ),
        ] {
            assert_eq!(text.parse::<Timestamp>().unwrap().to_string(), utc);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "2020",
            "2020-01-01",
            "2020-13-01T00:00:00Z",
            "2020-01-01T00:00:00",
            "0000-12-31T00:00:00Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(InvalidTimestamp), "{text:?}");
        }
        assert!(serde_json::from_str::<Timestamp>("5").is_err());
        assert!(serde_json::from_str::<Timestamp>("\"5\"").is_err());
    }

    #[test]
    fn system_times_convert_and_stop_at_the_ends() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(Timestamp::from(epoch + Duration::from_nanos(17)).unix_nanos(), 17);
        assert_eq!(
            Timestamp::from(epoch - Duration::from_nanos(17)).unix_nanos(),
            -17
        );
        assert_eq!(
            Timestamp::from(epoch - Duration::from_secs(17)).unix_nanos(),
            -17_000_000_000
        );
        assert_eq!(
            Timestamp::from(epoch - Duration::from_secs(99_999_999_999)),
            Timestamp::ZERO
        );
        let last = Timestamp::from(epoch + Duration::from_secs(999_999_999_999));
        assert_eq!(last.to_string(), "9999-12-31T23:59:59.999999999Z");
    }

    proptest! {
        #[test]
        fn json_reads_back_equal(nanos in any::<i64>()) {
            let time = Timestamp::from_unix_nanos(nanos);
            let json = serde_json::to_string(&time).unwrap();
            prop_assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), time);
        }

        #[test]
        fn order_is_the_order_of_instants(left in any::<i64>(), right in any::<i64>()) {
            let (earlier, later) = (Timestamp::from_unix_nanos(left), Timestamp::from_unix_nanos(right));
            prop_assert_eq!(earlier.cmp(&later), left.cmp(&right));
        }
    }
}
