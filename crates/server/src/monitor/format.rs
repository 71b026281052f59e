//! The forms of nats-server for times, durations and JSON.

use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// RFC 3339 in UTC, with as many decimals as there are.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}

/// An age as `1y2d3h4m5s`, from its largest unit on.
pub(super) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let years = days / 365;
    if years > 0 {
        format!(
            "{years}y{}d{}h{}m{}s",
            days % 365,
            hours % 24,
            minutes % 60,
            seconds % 60
        )
    } else if days > 0 {
        format!("{days}d{}h{}m{}s", hours % 24, minutes % 60, seconds % 60)
    } else if hours > 0 {
        format!("{hours}h{}m{}s", minutes % 60, seconds % 60)
    } else if minutes > 0 {
        format!("{minutes}m{}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// A duration as `1h2m3.5s`, `2.479652ms`, `150µs`.
pub(super) fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return decimal(nanos, 1_000) + "µs";
    }
    if nanos < 1_000_000_000 {
        return decimal(nanos, 1_000_000) + "ms";
    }
    let (hours, minutes) = (duration.as_secs() / 3_600, duration.as_secs() / 60 % 60);
    let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000) + "s";
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// `value / unit` without trailing zeros.
fn decimal(value: u128, unit: u128) -> String {
    let digits = unit.ilog10() as usize;
    let text = format!("{}.{:0digits$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Nanoseconds, as durations stand in documents.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A float that is written without decimals where it has none.
pub(crate) fn float<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}

/// JSON on one line.
pub(crate) fn compact<T: Serialize + ?Sized>(document: &T) -> String {
    escape(serde_json::to_string(document).unwrap_or_default())
}

/// JSON indented by two spaces.
pub(super) fn pretty<T: Serialize + ?Sized>(document: &T) -> String {
    escape(serde_json::to_string_pretty(document).unwrap_or_default())
}

/// `<`, `>` and `&` stand escaped, so that JSON may be put into a page.
fn escape(json: String) -> String {
    if !json.contains(['<', '>', '&']) {
        return json;
    }
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// For `skip_serializing_if`.
pub(super) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_begin_with_their_largest_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (125, "2m5s"),
            (3_723, "1h2m3s"),
            (93_784, "1d2h3m4s"),
            (365 * 86_400 + 2 * 86_400 + 3 * 3_600 + 4 * 60 + 5, "1y2d3h4m5s"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn durations_have_no_more_decimals_than_they_need() {
        for (nanos, text) in [
            (0, "0s"),
            (7, "7ns"),
            (150_000, "150µs"),
            (150_500, "150.5µs"),
            (2_479_652, "2.479652ms"),
            (1_000_000_000, "1s"),
            (1_050_000_000, "1.05s"),
            (61_000_000_000, "1m1s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn json_is_safe_inside_a_page() {
        assert_eq!(compact("a.> <&"), r#""a.\u003e \u003c\u0026""#);
    }

    #[test]
    fn times_have_their_decimals_and_no_more() {
        let at = SystemTime::UNIX_EPOCH + Duration::new(1, 500_000_000);
        assert_eq!(rfc3339(at), "1970-01-01T00:00:01.5Z");
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}
