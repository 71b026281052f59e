//! Events when a stream comes near its limits: `$WJ.EVENT.LIMIT.<stream>`, at 80, 95 and 100 percent of `max_msgs` and
//! `max_bytes`.
//!
//! Each is told once when it is crossed, and again only after the stream was five percent below it. What was crossed before a
//! start is not told again.

use serde::Serialize;

use super::task::Task;

/// Percents that are told.
const LEVELS: [u64; 3] = [80, 95, 100];
/// How far below one the stream must have been to be told of it again.
const BELOW: u64 = 5;

/// An event.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Crossed<'a> {
    stream: &'a str,
    /// `max_msgs` or `max_bytes`.
    limit: &'static str,
    percent: u64,
    value: u64,
    max: u64,
}

/// What was told of one limit.
#[derive(Debug, Default)]
struct Told([bool; LEVELS.len()]);

impl Told {
    /// The levels that are crossed and were not told.
    fn look(&mut self, value: u64, max: u64) -> Vec<u64> {
        let (value, max) = (u128::from(value) * 100, u128::from(max));
        let mut crossed = Vec::new();
        for (told, level) in self.0.iter_mut().zip(LEVELS) {
            if value >= max * u128::from(level) {
                if !std::mem::replace(told, true) {
                    crossed.push(level);
                }
            } else if value < max * u128::from(level - BELOW) {
                *told = false;
            }
        }
        crossed
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Limits {
    messages: Told,
    bytes: Told,
}

impl Task {
    /// Something was committed: tells of limits that it crossed; with `quiet` only remembers them.
    pub(super) fn watch_limits(&mut self, quiet: bool) {
        let limit = |value: i64| u64::try_from(value).ok().filter(|max| *max > 0);
        let (messages, bytes) = (limit(self.config.max_msgs), limit(self.config.max_bytes));
        if messages.is_none() && bytes.is_none() {
            return;
        }
        let state = self.stream.reader.state();
        let mut told = Vec::new();
        let watched = [
            ("max_msgs", messages, state.messages, &mut self.limits.messages),
            ("max_bytes", bytes, state.bytes, &mut self.limits.bytes),
        ];
        for (limit, max, value, known) in watched {
            let Some(max) = max else { continue };
            told.extend(known.look(value, max).into_iter().map(|percent| Crossed {
                stream: &self.stream.name,
                limit,
                percent,
                value,
                max,
            }));
        }
        if quiet || told.is_empty() {
            return;
        }
        let subject = format!("$WJ.EVENT.LIMIT.{}", self.stream.name);
        for event in told {
            // Writing to memory does not fail.
            let body = serde_json::to_vec(&event).unwrap_or_default();
            let account = &self.account.account;
            self.server
                .publish(account, subject.as_bytes(), None, b"", &body.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_told_once_and_again_after_five_percent_below() {
        let mut told = Told::default();
        assert_eq!(told.look(79, 100), [0_u64; 0]);
        assert_eq!(told.look(80, 100), [80]);
        assert_eq!(told.look(94, 100), [0_u64; 0]);
        assert_eq!(told.look(100, 100), [95, 100]);
        assert_eq!(told.look(95, 100), [0_u64; 0]);
        assert_eq!(told.look(100, 100), [0_u64; 0]);
        assert_eq!(told.look(94, 100), [0_u64; 0]);
        assert_eq!(told.look(100, 100), [100]);
        assert_eq!(told.look(0, 100), [0_u64; 0]);
        assert_eq!(told.look(u64::MAX, u64::MAX), [80, 95, 100]);
    }
}
