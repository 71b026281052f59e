//! One line of the log: `[pid] 2026/01/31 23:59:59.123456 [INF] text`.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use windjet_server::options::LogOptions;

/// How grave a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Fatal,
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

impl Severity {
    const fn label(self) -> &'static str {
        match self {
            Self::Fatal => "FTL",
            Self::Error => "ERR",
            Self::Warning => "WRN",
            Self::Info => "INF",
            Self::Debug => "DBG",
            Self::Trace => "TRC",
        }
    }

    /// Colour on a terminal, as the number of the escape sequence.
    const fn colour(self) -> u8 {
        match self {
            Self::Fatal | Self::Error => 31,
            Self::Warning | Self::Trace => 33,
            Self::Info => 32,
            Self::Debug => 36,
        }
    }
}

/// What lines look like.
#[derive(Debug)]
pub(super) struct Style {
    pid: u32,
    /// Zone of the times; `None` leaves the times out.
    zone: Option<TimeZone>,
    colour: bool,
}

impl Style {
    pub(super) fn of(options: &LogOptions, colour: bool) -> Self {
        let zone = match (options.no_time, options.utc) {
            (true, _) => None,
            (false, true) => Some(TimeZone::UTC),
            (false, false) => Some(TimeZone::system()),
        };
        Self {
            pid: std::process::id(),
            zone,
            colour,
        }
    }

    /// The line with its end.
    pub(super) fn line(&self, severity: Severity, text: &str) -> String {
        self.line_at(Timestamp::now(), severity, text)
    }

    fn line_at(&self, now: Timestamp, severity: Severity, text: &str) -> String {
        use std::fmt::Write as _;
        let mut line = String::with_capacity(text.len() + 64);
        // Writing to a string cannot fail.
        let _ = write!(line, "[{}] ", self.pid);
        if let Some(zone) = &self.zone {
            let time = zone.to_datetime(now);
            let _ = write!(
                line,
                "{:04}/{:02}/{:02} {:02}:{:02}:{:02}.{:06} ",
                time.year(),
                time.month(),
                time.day(),
                time.hour(),
                time.minute(),
                time.second(),
                time.subsec_nanosecond() / 1000
            );
        }
        let label = severity.label();
        let _ = if self.colour {
            write!(line, "[\u{1b}[{}m{label}\u{1b}[0m] ", severity.colour())
        } else {
            write!(line, "[{label}] ")
        };
        line.push_str(text);
        if !text.ends_with('\n') {
            line.push('\n');
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(zone: Option<TimeZone>, colour: bool) -> Style {
        Style { pid: 7, zone, colour }
    }

    fn at(style: &Style) -> String {
        let now = Timestamp::new(1_700_000_000, 12_345_678).unwrap();
        style.line_at(now, Severity::Warning, "careful")
    }

    #[test]
    fn a_line_has_pid_time_level_and_text() {
        let utc = style(Some(TimeZone::UTC), false);
        assert_eq!(at(&utc), "[7] 2023/11/14 22:13:20.012345 [WRN] careful\n");
    }

    #[test]
    fn local_times_follow_the_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(
            at(&style(Some(zone), false)),
            "[7] 2023/11/15 00:13:20.012345 [WRN] careful\n"
        );
    }

    #[test]
    fn the_time_can_be_left_out() {
        assert_eq!(at(&style(None, false)), "[7] [WRN] careful\n");
    }

    #[test]
    fn a_terminal_gets_the_level_in_colour() {
        assert_eq!(at(&style(None, true)), "[7] [\u{1b}[33mWRN\u{1b}[0m] careful\n");
    }
}
