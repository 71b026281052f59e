//! The pull requests that are under way, and how many messages they still owe together.
//!
//! Pure bookkeeping: no clock, no socket. A message does not say which request it answers, so only the sum is kept: a
//! message lowers it by one, the end of a request by what that request still wanted, which the server says. A request
//! that gets everything ends without a word, and is known to be over when nothing is owed any more.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Most requests to remember. Older ones are forgotten; the end of a forgotten request still counts.
const REMEMBERED_MAX: usize = 64;

/// A request that may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    token: u64,
    batch: usize,
    /// When to stop waiting for its end.
    deadline: Instant,
    heartbeat: Option<Duration>,
}

/// What has passed without a sign from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Two heartbeats.
    Heartbeat,
    /// The whole time of the newest request, and the grace beyond.
    Deadline,
}

/// All requests of one puller.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    owed: usize,
    open: VecDeque<Open>,
    /// Requests up to this one are settled; what still comes for them changes nothing.
    floor: u64,
    newest: u64,
    heard: Option<Instant>,
}

impl Ledger {
    /// A request for `batch` messages was sent. Tokens grow.
    pub(super) fn open(
        &mut self,
        token: u64,
        batch: usize,
        now: Instant,
        patience: Duration,
        heartbeat: Option<Duration>,
    ) {
        if self.open.len() == REMEMBERED_MAX {
            self.open.pop_front();
        }
        let deadline = now + patience;
        self.open.push_back(Open {
            token,
            batch,
            deadline,
            heartbeat,
        });
        self.owed += batch;
        self.newest = token;
        self.heard = Some(now);
    }

    /// How many messages may still come.
    pub(super) fn owed(&self) -> usize {
        self.owed
    }

    /// A sign of life.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// A message came.
    pub(super) fn message(&mut self, now: Instant) {
        self.heard(now);
        self.lower(1);
    }

    /// The request `token` ended, still wanting `still` messages if the server said so. Tells whether that is news.
    pub(super) fn end(&mut self, token: u64, still: Option<usize>, now: Instant) -> bool {
        self.heard(now);
        if token <= self.floor || token > self.newest {
            return false;
        }
        let position = self.open.iter().position(|open| open.token == token);
        let batch = position
            .and_then(|position| self.open.remove(position))
            .map(|open| open.batch);
        // Without a number, suppose that it got nothing: to ask for too much once is better than to wait in vain.
        match still.or(batch) {
            Some(_) if self.open.is_empty() => self.clear(),
            Some(still) => self.lower(still),
            None => {}
        }
        true
    }

    /// Forgets every request: nothing is owed any more.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.owed = 0;
        self.floor = self.newest;
    }

    /// Notices that the server has been silent for too long, and then forgets every request.
    pub(super) fn silence(&mut self, now: Instant) -> Option<Silence> {
        let newest = self.open.back()?;
        let silence = match (newest.heartbeat, self.heard) {
            (Some(interval), Some(heard)) if now >= heard + 2 * interval => Silence::Heartbeat,
            _ if now >= newest.deadline => Silence::Deadline,
            _ => return None,
        };
        self.clear();
        Some(silence)
    }

    /// When [`Ledger::silence`] may have something to say at the earliest.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let newest = self.open.back()?;
        let beat = self
            .heard
            .zip(newest.heartbeat)
            .map(|(heard, interval)| heard + 2 * interval);
        Some(beat.map_or(newest.deadline, |beat| beat.min(newest.deadline)))
    }

    fn lower(&mut self, by: usize) {
        self.owed = self.owed.saturating_sub(by);
        if self.owed == 0 {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> Instant {
        thread_local!(static ZERO: Instant = Instant::now());
        ZERO.with(|zero| *zero + Duration::from_millis(ms))
    }

    #[test]
    fn a_served_request_ends_without_a_status() {
        let mut ledger = Ledger::default();
        ledger.open(1, 2, at(0), PATIENCE, None);
        ledger.message(at(1));
        assert_eq!(ledger.owed(), 1);
        ledger.message(at(2));
        assert_eq!(ledger.owed(), 0);
        assert_eq!(ledger.next_look(), None);
        // A late word about it does not lower what a later request owes.
        ledger.open(2, 3, at(3), PATIENCE, None);
        assert!(!ledger.end(1, Some(2), at(4)));
        assert_eq!(ledger.owed(), 3);
    }

    #[test]
    fn a_message_too_many_owes_nothing() {
        let mut ledger = Ledger::default();
        ledger.message(at(1));
        ledger.open(1, 1, at(2), PATIENCE, None);
        ledger.message(at(3));
        ledger.message(at(4));
        assert_eq!(ledger.owed(), 0);
    }

    #[test]
    fn two_heartbeats_of_silence_end_everything_before_the_deadline() {
        let mut ledger = Ledger::default();
        ledger.open(1, 1, at(0), PATIENCE, Some(Duration::from_millis(500)));
        assert_eq!(ledger.next_look(), Some(at(1000)));
        ledger.heard(at(900));
        assert_eq!(ledger.silence(at(1899)), None);
        assert_eq!(ledger.silence(at(1900)), Some(Silence::Heartbeat));
        assert_eq!(ledger.owed(), 0);
    }

    #[test]
    fn without_heartbeats_the_deadline_of_the_newest_request_counts() {
        let mut ledger = Ledger::default();
        ledger.open(1, 1, at(0), PATIENCE, None);
        ledger.open(2, 1, at(1000), PATIENCE, None);
        assert_eq!(ledger.silence(at(5999)), None);
        assert_eq!(ledger.silence(at(6000)), Some(Silence::Deadline));
        assert_eq!(ledger.next_look(), None);
    }

    #[test]
    fn a_refusal_without_a_number_owes_nothing() {
        let mut ledger = Ledger::default();
        ledger.open(1, 5, at(0), PATIENCE, None);
        ledger.open(2, 7, at(0), PATIENCE, None);
        assert!(ledger.end(2, None, at(1)));
        assert_eq!(ledger.owed(), 5);
        assert!(ledger.end(1, None, at(1)));
        assert_eq!(ledger.owed(), 0);
    }

    #[test]
    fn what_it_remembers_is_bounded_and_the_sum_is_still_right() {
        let mut ledger = Ledger::default();
        let requests = 10 * REMEMBERED_MAX as u64;
        for token in 1..=requests {
            ledger.open(token, 2, at(token), PATIENCE, None);
            ledger.message(at(token));
        }
        assert_eq!(ledger.open.len(), REMEMBERED_MAX);
        for token in 1..=requests {
            assert!(ledger.end(token, Some(1), at(token)), "{token}");
        }
        assert_eq!(ledger.owed(), 0);
    }

    proptest! {
        /// Against a server that serves requests in turn: what the ledger says is owed is what the server still owes.
        #[test]
        fn the_sum_is_what_the_server_owes(
            steps in proptest::collection::vec((0_u8..4, 0_usize..4, 1_usize..9), 1..80)
        ) {
            let mut ledger = Ledger::default();
            let mut server: Vec<(u64, usize)> = Vec::new();
            let mut turn = 0;
            let mut token = 0;
            for (step, (what, which, batch)) in steps.into_iter().enumerate() {
                let now = at(step as u64);
                match what {
                    0 if server.len() < 4 => {
                        token += 1;
                        ledger.open(token, batch, now, PATIENCE, None);
                        server.push((token, batch));
                    }
                    1 | 2 if !server.is_empty() => {
                        turn = (turn + 1) % server.len();
                        server[turn].1 -= 1;
                        if server[turn].1 == 0 {
                            server.remove(turn);
                        }
                        ledger.message(now);
                    }
                    3 if !server.is_empty() => {
                        let (ended, still) = server.remove(which % server.len());
                        ledger.end(ended, Some(still), now);
                    }
                    _ => {}
                }
                prop_assert_eq!(ledger.owed(), server.iter().map(|(_, owed)| owed).sum::<usize>());
            }
        }
    }
}
