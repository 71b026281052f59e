//! Life times of single messages: what `Nats-TTL` may say.

use windjet_protocol::jetstream::Nanos;

const SECOND: i64 = 1_000_000_000;

/// How long a message lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ttl {
    /// For ever, whatever the stream's maximum age.
    Never,
    /// So many seconds from when it is stored; 0 means that nothing was asked for.
    Seconds(u64),
}

/// A text that is no life time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidTtl;

impl Ttl {
    /// Reads a value of `Nats-TTL` or `Nats-Schedule-TTL`: `never`, a duration of at least a second, or whole seconds.
    ///
    /// Seconds beyond all bounds count as the highest number there is. `00` is taken as "no life time", as nats-server does,
    /// while `0` is refused.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, InvalidTtl> {
        if text.eq_ignore_ascii_case(b"never") {
            return Ok(Self::Never);
        }
        let text = std::str::from_utf8(text).map_err(|_| InvalidTtl)?;
        if let Ok(duration) = text.parse::<Nanos>() {
            return match duration.0 / SECOND {
                seconds @ 1.. => Ok(Self::Seconds(seconds.unsigned_abs())),
                _ => Err(InvalidTtl),
            };
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidTtl);
        }
        Ok(Self::Seconds(text.parse().unwrap_or(u64::MAX)))
    }

    /// When a message stored at `time` ends by its own life time; `None` for never, also when that is past all time.
    pub(crate) fn deadline(self, time: i64) -> Option<i64> {
        match self {
            Self::Never | Self::Seconds(0) => None,
            Self::Seconds(seconds) => {
                let life = i64::try_from(seconds).ok()?.checked_mul(SECOND)?;
                time.checked_add(life)
            }
        }
    }

    /// The life time raised to at least `least`; `None` when it is long enough already.
    pub(crate) fn raised(self, least: Nanos) -> Option<Self> {
        let least = (least.0 / SECOND).unsigned_abs();
        match self {
            Self::Seconds(seconds) if seconds > 0 && seconds < least => Some(Self::Seconds(least)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_is_read() {
        for (text, expected) in [
            ("60", Ok(Ttl::Seconds(60))),
            ("0001", Ok(Ttl::Seconds(1))),
            ("1h30m", Ok(Ttl::Seconds(5400))),
            ("1.5s", Ok(Ttl::Seconds(1))),
            ("1500ms", Ok(Ttl::Seconds(1))),
            ("+5s", Ok(Ttl::Seconds(5))),
            ("never", Ok(Ttl::Never)),
            ("NeVer", Ok(Ttl::Never)),
            ("00", Ok(Ttl::Seconds(0))),
            ("1000000000000000000", Ok(Ttl::Seconds(1_000_000_000_000_000_000))),
            ("99999999999999999999", Ok(Ttl::Seconds(u64::MAX))),
            ("0", Err(InvalidTtl)),
            ("-0", Err(InvalidTtl)),
            ("999ms", Err(InvalidTtl)),
            ("-5", Err(InvalidTtl)),
            ("-5s", Err(InvalidTtl)),
            ("+5", Err(InvalidTtl)),
            ("5 ", Err(InvalidTtl)),
            ("5.", Err(InvalidTtl)),
            ("1d", Err(InvalidTtl)),
            ("3000000h", Err(InvalidTtl)),
            ("", Err(InvalidTtl)),
        ] {
            assert_eq!(Ttl::parse(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(Ttl::parse(b"\xff"), Err(InvalidTtl));
    }

    #[test]
    fn what_is_past_all_time_never_comes() {
        assert_eq!(Ttl::Seconds(2).deadline(5), Some(2 * SECOND + 5));
        for ttl in [
            Ttl::Never,
            Ttl::Seconds(0),
            Ttl::Seconds(1_000_000_000_000_000_000),
            Ttl::Seconds(u64::MAX),
        ] {
            assert_eq!(ttl.deadline(5), None, "{ttl:?}");
        }
        assert_eq!(Ttl::Seconds(9_223_372_036).deadline(i64::MAX - 1), None);
    }

    #[test]
    fn a_life_shorter_than_the_markers_is_raised() {
        let marker = Nanos::from_secs(60);
        assert_eq!(Ttl::Seconds(59).raised(marker), Some(Ttl::Seconds(60)));
        assert_eq!(Ttl::Seconds(60).raised(marker), None);
        assert_eq!(Ttl::Never.raised(marker), None);
        assert_eq!(Ttl::Seconds(0).raised(marker), None);
        assert_eq!(Ttl::Seconds(1).raised(Nanos::from_millis(1500)), None);
        assert_eq!(Ttl::Seconds(1).raised(Nanos::ZERO), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = Ttl::parse(&text);
        }
    }
}
