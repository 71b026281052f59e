//! Cron expressions of six fields: second, minute, hour, day of the month, month, day of the week.
//!
//! Times are found by walking the zone's real time, so where clocks are turned forward a time that does not exist is passed
//! over, and where they are turned back a time that comes twice counts twice.

use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

/// Set in a field that a star stands in: it does not restrict.
const STAR: u64 = 1 << 63;

/// Years after which it is taken that no time matches.
const YEARS: i16 = 5;

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
/// Most days of each month.
const LONGEST: [i8; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// An expression; one bit for each value of a field that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cron {
    second: u64,
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
}

impl Cron {
    /// Reads an expression that matches some day, or one of the words `@yearly` (`@annually`), `@monthly`, `@weekly`, `@daily` (`@midnight`) and
    /// `@hourly`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = match text {
            "@yearly" | "@annually" => "0 0 0 1 1 *",
            "@monthly" => "0 0 0 1 * *",
            "@weekly" => "0 0 0 * * 0",
            "@daily" | "@midnight" => "0 0 0 * * *",
            "@hourly" => "0 0 * * * *",
            text => text,
        };
        let mut fields = text.split_whitespace();
        let cron = Self {
            second: field(fields.next()?, 0, 59, &[])?,
            minute: field(fields.next()?, 0, 59, &[])?,
            hour: field(fields.next()?, 0, 23, &[])?,
            day: field(fields.next()?, 1, 31, &[])?,
            month: field(fields.next()?, 1, 12, &MONTHS)?,
            weekday: field(fields.next()?, 0, 6, &DAYS)?,
        };
        (fields.next().is_none() && cron.comes()).then_some(cron)
    }

    /// Whether there is a year in which a day matches: 31 February is none.
    fn comes(&self) -> bool {
        if (self.day | self.weekday) & STAR == 0 {
            return true;
        }
        (1..)
            .zip(LONGEST)
            .any(|(month, days)| has(self.month, month) && (1..=days).any(|day| has(self.day, day)))
    }

    /// The first second that matches after the second `after`, both counted from 1970; `None` if none does within five
    /// years.
    pub(crate) fn next(&self, after: i64, zone: &TimeZone) -> Option<i64> {
        let mut at = after.checked_add(1)?;
        let last_year = civil(at, zone)?.year().checked_add(YEARS)?;
        loop {
            let local = civil(at, zone)?;
            if local.year() > last_year {
                return None;
            }
            let later = if !has(self.month, local.month()) {
                start_of(local.last_of_month().tomorrow().ok()?, zone)?
            } else if !self.matches_day(local) {
                start_of(local.tomorrow().ok()?, zone)?
            } else if !has(self.hour, local.hour()) {
                at + HOUR - i64::from(local.minute()) * MINUTE - i64::from(local.second())
            } else if !has(self.minute, local.minute()) {
                at + MINUTE - i64::from(local.second())
            } else if !has(self.second, local.second()) {
                at + 1
            } else {
                return Some(at);
            };
            at = later.max(at + 1);
        }
    }

    /// Day of the month and of the week: either is enough where both restrict.
    fn matches_day(&self, local: DateTime) -> bool {
        let day = has(self.day, local.day());
        let weekday = has(self.weekday, local.weekday().to_sunday_zero_offset());
        if (self.day | self.weekday) & STAR != 0 {
            day && weekday
        } else {
            day || weekday
        }
    }
}

fn has(field: u64, value: i8) -> bool {
    field & (1 << value) != 0
}

fn civil(second: i64, zone: &TimeZone) -> Option<DateTime> {
    Some(zone.to_datetime(Timestamp::from_second(second).ok()?))
}

/// The first second of the day.
fn start_of(day: DateTime, zone: &TimeZone) -> Option<i64> {
    let midnight = day.date().to_datetime(Time::midnight());
    Some(zone.to_timestamp(midnight).ok()?.as_second())
}

/// A list of ranges with steps; empty entries are passed over.
fn field(text: &str, min: u32, max: u32, names: &[&str]) -> Option<u64> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .try_fold(0, |bits, part| Some(bits | range(part, min, max, names)?))
}

fn range(text: &str, min: u32, max: u32, names: &[&str]) -> Option<u64> {
    let (values, step) = match text.split_once('/') {
        Some((values, step)) => (values, Some(number(step)?)),
        None => (text, None),
    };
    let (low, high) = match values.split_once('-') {
        Some((low, high)) => (low, Some(high)),
        None => (values, None),
    };
    let star = matches!(low, "*" | "?");
    let (start, end) = if star {
        (min, max)
    } else {
        let start = value(low, min, names)?;
        match high {
            Some(high) => (start, value(high, min, names)?),
            None if step.is_some() => (start, max),
            None => (start, start),
        }
    };
    let step = step.unwrap_or(1);
    if start < min || end > max || start > end || step == 0 {
        return None;
    }
    let step = usize::try_from(step).ok()?;
    let bits = (start..=end)
        .step_by(step)
        .fold(0, |bits, value| bits | 1 << value);
    Some(if star && step == 1 { bits | STAR } else { bits })
}

fn value(text: &str, min: u32, names: &[&str]) -> Option<u32> {
    match (min..)
        .zip(names)
        .find(|(_, name)| text.eq_ignore_ascii_case(name))
    {
        Some((value, _)) => Some(value),
        None => number(text),
    }
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn second(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    fn next(cron: &str, after: &str, zone: &str) -> String {
        let cron = Cron::parse(cron).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        match cron.next(second(after), &zone) {
            Some(at) => Timestamp::from_second(at).unwrap().to_string(),
            None => "never".into(),
        }
    }

    #[test]
    fn expressions_that_nats_server_takes() {
        for text in [
            "0 0 0 * * *",
            "* * * * * *",
            "*/5 * * * * *",
            "5/10 * * * * *",
            "0 0 0 ? * MON",
            "0 0 0 * JAN-mar sun",
            "0 0 0 * * 0-6",
            "0 0 0 1,15 * 5",
            "1-5/2 * * * * *",
            "1,2,,3 * * * * *",
            " 0  0\t0 * * * ",
            "0 0 0 29 2 *",
            "0 0 0 31 2 mon",
            "0 0 0 31 2,3 *",
            "*,5 * * * * *",
            "*-5 * * * * *",
            "?/5 * * * * *",
            "*/70 * * * * *",
            "+1 * * * * *",
            "01 * * * * *",
            "@yearly",
            "@hourly",
        ] {
            assert!(Cron::parse(text).is_some(), "{text:?}");
        }
    }

    #[test]
    fn expressions_that_nats_server_refuses() {
        for text in [
            "",
            "0 0 * * *",
            "0 0 0 * * * *",
            "0 0 0 * * 7",
            "60 0 0 * * *",
            "0 60 0 * * *",
            "0 0 24 * * *",
            "0 0 0 0 * *",
            "0 0 0 32 * *",
            "0 0 0 * 13 *",
            "0 0 0 * 0 *",
            "5-1 * * * * *",
            "*/0 * * * * *",
            "a * * * * *",
            "0 0 0 L * *",
            "0 0 0 1 * 1#1",
            "-1 * * * * *",
            "1-2-3 * * * * *",
            "1/2/3 * * * * *",
            "5/ * * * * *",
            "mon * * * * *",
            "0 0 0 * * Monday",
            "0 0 0 * * fri-mon",
            "TZ=UTC 0 0 0 * * *",
            "@Hourly",
            "@reboot",
            "@hourly ",
            // Days that no year has.
            "0 0 0 31 2 *",
            "0 0 0 30 feb *",
            "0 0 0 31 4,6,9,11 *",
            "0 0 0 31 2 */1",
        ] {
            assert!(Cron::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn the_next_time_is_found() {
        let after = "2026-12-02T08:36:18Z";
        for (cron, expected) in [
            ("* * * * * *", "2026-12-02T08:36:19Z"),
            ("18 * * * * *", "2026-12-02T08:37:18Z"),
            ("5/10 * * * * *", "2026-12-02T08:36:25Z"),
            ("0 */5 * * * *", "2026-12-02T08:40:00Z"),
            ("@hourly", "2026-12-02T09:00:00Z"),
            ("@daily", "2026-12-03T00:00:00Z"),
            ("@midnight", "2026-12-03T00:00:00Z"),
            ("@weekly", "2026-12-06T00:00:00Z"),
            ("@monthly", "2027-01-01T00:00:00Z"),
            ("@yearly", "2027-01-01T00:00:00Z"),
            ("@annually", "2027-01-01T00:00:00Z"),
            ("0 0 0 29 feb *", "2028-02-29T00:00:00Z"),
            ("0 30 7 * * mon", "2026-12-07T07:30:00Z"),
        ] {
            assert_eq!(next(cron, after, "UTC"), expected, "{cron}");
        }
    }

    #[test]
    fn days_are_joined_as_in_nats_server() {
        // 2 December 2026 is a Wednesday.
        let after = "2026-12-02T08:36:18Z";
        let now = "2026-12-02T08:36:19Z";
        for (cron, expected) in [
            ("* * * 7 * 3", now),
            ("* * * */20 * 3", now),
            ("* * * 7,* * 3", now),
            ("* * * */1 * 5", "2026-12-04T00:00:00Z"),
            ("* * * ? * 5", "2026-12-04T00:00:00Z"),
            ("* * * 7 * *", "2026-12-07T00:00:00Z"),
            ("* * * 7 * */5", "2026-12-04T00:00:00Z"),
        ] {
            assert_eq!(next(cron, after, "UTC"), expected, "{cron}");
        }
    }

    #[test]
    fn zones_are_followed_through_changes_of_the_clock() {
        let berlin = "Europe/Berlin";
        assert_eq!(
            next("0 0 9 * * *", "2026-12-02T08:36:18Z", berlin),
            "2026-12-03T08:00:00Z"
        );
        // 02:30 does not exist on 29 March 2026.
        assert_eq!(
            next("0 30 2 * * *", "2026-03-28T12:00:00Z", berlin),
            "2026-03-30T00:30:00Z"
        );
        // 02:30 comes twice on 25 October 2026.
        let first = next("0 30 2 * * *", "2026-10-24T12:00:00Z", berlin);
        assert_eq!(first, "2026-10-25T00:30:00Z");
        assert_eq!(next("0 30 2 * * *", &first, berlin), "2026-10-25T01:30:00Z");
        // Midnight does not exist on 6 September 2026 in Chile.
        let santiago = "America/Santiago";
        assert_eq!(
            next("0 0 * 6 9 *", "2026-09-01T00:00:00Z", santiago),
            "2026-09-06T04:00:00Z"
        );
    }

    #[test]
    fn the_end_of_time_is_reached_without_harm() {
        let cron = Cron::parse("@hourly").unwrap();
        assert_eq!(cron.next(i64::MAX, &TimeZone::UTC), None);
        let last = Timestamp::MAX.as_second();
        assert_eq!(cron.next(last, &TimeZone::UTC), None);
        let cron = Cron::parse("@yearly").unwrap();
        assert_eq!(cron.next(last - 7200, &TimeZone::UTC), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[-*?/,0-9a-c ]{0,20}") {
            if let Some(cron) = Cron::parse(&text) {
                let _ = cron.next(1_800_000_000, &TimeZone::UTC);
            }
        }

        #[test]
        fn the_next_time_is_later_and_next_to_nothing_is_between(
            second in 0..60u32, minute in 0..60u32, hour in 0..24u32, after in 0..4_000_000_000i64,
        ) {
            let cron = Cron::parse(&format!("{second} {minute} {hour} * * *")).unwrap();
            let at = cron.next(after, &TimeZone::UTC).unwrap();
            prop_assert!(at > after && at <= after + 86_400);
            prop_assert_eq!(at % 86_400, i64::from(hour * 3600 + minute * 60 + second));
        }
    }
}
