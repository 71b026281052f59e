//! Daily connect times of a user.

use std::time::SystemTime;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::claims::TimeRange;

/// Until when a user may be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// No time is set.
    Always,
    /// Until this moment.
    Until(SystemTime),
    /// Not now.
    Closed,
}

/// The time zone named by `times_location`: an IANA name, or the machine's zone when empty.
///
/// # Errors
///
/// When no such zone is known, or the machine's cannot be found out.
pub(super) fn zone(name: &str) -> Result<TimeZone, String> {
    let zone = if name.is_empty() {
        TimeZone::try_system()
    } else {
        TimeZone::get(name)
    };
    zone.map_err(|error| error.to_string())
}

/// A time of day, `hh:mm:ss`; only the hour may have one digit.
pub(super) fn time_of_day(text: &str) -> Option<Time> {
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<i8>().ok()).flatten()
    };
    let mut parts = text.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || hour.len() > 2 || minute.len() != 2 || second.len() != 2 {
        return None;
    }
    Time::new(number(hour)?, number(minute)?, number(second)?, 0).ok()
}

/// Looks for the stretch of time that `now` is in. Of several the one that ends last counts. What cannot be read is
/// never open.
pub(super) fn window(ranges: &[TimeRange], location: &str, now: SystemTime) -> Window {
    if ranges.is_empty() {
        return Window::Always;
    }
    let open = || -> Option<SystemTime> {
        let zone = zone(location).ok()?;
        let now = Timestamp::try_from(now).ok()?;
        let end = ranges
            .iter()
            .filter_map(|range| end_of(range, &zone, now))
            .max()?;
        SystemTime::try_from(end).ok()
    };
    open().map_or(Window::Closed, Window::Until)
}

/// The end of the stretch if `now` is strictly inside of it.
fn end_of(range: &TimeRange, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    let today = now.to_zoned_datetime(zone.clone()).date();
    let at = |date: Date, time: &str| -> Option<Timestamp> {
        let zoned = date
            .to_datetime(time_of_day(time)?)
            .to_zoned_datetime(zone.clone())
            .ok()?;
        Some(zoned.timestamp())
    };
    let (start, end) = (at(today, &range.start)?, at(today, &range.end)?);
    if start < now && now < end {
        return Some(end);
    }
    if start <= end {
        return None;
    }
    // Midnight lies between: `now` may be in the part that began yesterday, or in the one that ends tomorrow.
    if now < end {
        return Some(end);
    }
    let tomorrow = at(today.checked_add(1.day()).ok()?, &range.end)?;
    (start < now && now < tomorrow).then_some(tomorrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &str, end: &str) -> TimeRange {
        TimeRange {
            start: start.to_owned(),
            end: end.to_owned(),
        }
    }

    fn utc(text: &str) -> SystemTime {
        text.parse::<Timestamp>().unwrap().try_into().unwrap()
    }

    fn at(ranges: &[TimeRange], now: &str) -> Window {
        window(ranges, "UTC", utc(now))
    }

    #[test]
    fn no_times_mean_always() {
        assert_eq!(
            window(&[], "No/Where", utc("2024-05-01T12:00:00Z")),
            Window::Always
        );
    }

    #[test]
    fn inside_a_range_its_end_is_told() {
        let day = [range("08:00:00", "17:30:00")];
        assert_eq!(
            at(&day, "2024-05-01T12:00:00Z"),
            Window::Until(utc("2024-05-01T17:30:00Z"))
        );
        for outside in ["07:59:59", "08:00:00", "17:30:00", "23:00:00"] {
            assert_eq!(
                at(&day, &format!("2024-05-01T{outside}Z")),
                Window::Closed,
                "{outside}"
            );
        }
    }

    #[test]
    fn a_range_may_cross_midnight() {
        let night = [range("22:00:00", "06:00:00")];
        assert_eq!(
            at(&night, "2024-05-01T23:00:00Z"),
            Window::Until(utc("2024-05-02T06:00:00Z"))
        );
        assert_eq!(
            at(&night, "2024-05-02T05:00:00Z"),
            Window::Until(utc("2024-05-02T06:00:00Z"))
        );
        assert_eq!(at(&night, "2024-05-01T12:00:00Z"), Window::Closed);
    }

    #[test]
    fn of_several_ranges_the_last_end_counts() {
        let two = [
            range("08:00:00", "12:00:00"),
            range("09:00:00", "18:00:00"),
            range("10:00:00", "11:00:00"),
        ];
        assert_eq!(
            at(&two, "2024-05-01T10:30:00Z"),
            Window::Until(utc("2024-05-01T18:00:00Z"))
        );
    }

    #[test]
    fn times_are_those_of_the_named_zone_summer_time_included() {
        let day = [range("08:00:00", "17:00:00")];
        let amsterdam = |now: &str| window(&day, "Europe/Amsterdam", utc(now));
        assert_eq!(
            amsterdam("2024-07-01T06:30:00Z"),
            Window::Until(utc("2024-07-01T15:00:00Z"))
        );
        assert_eq!(amsterdam("2024-01-01T06:30:00Z"), Window::Closed);
        assert_eq!(
            amsterdam("2024-01-01T07:30:00Z"),
            Window::Until(utc("2024-01-01T16:00:00Z"))
        );
    }

    #[test]
    fn what_cannot_be_read_is_closed() {
        for bad in [
            "",
            "8",
            "08:00",
            "25:00:00",
            "08:60:00",
            "08:00:00:00",
            "a:b:c",
            "+8:00:00",
            "008:00:00",
        ] {
            assert_eq!(time_of_day(bad), None, "{bad}");
            assert_eq!(
                at(&[range(bad, "23:59:59")], "2024-05-01T12:00:00Z"),
                Window::Closed
            );
        }
        assert_eq!(
            window(
                &[range("00:00:00", "23:59:59")],
                "No/Where",
                utc("2024-05-01T12:00:00Z")
            ),
            Window::Closed
        );
        assert_eq!(time_of_day("8:5:0"), None);
        assert!(time_of_day("8:05:00").is_some());
    }
}
