//! A durable consumer's state on one queue.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

pub(super) const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(30);
pub(super) const DEFAULT_MAX_ACK_PENDING: usize = 1000;

/// What to deliver next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// This row; the count tells its deliveries apart.
    Row { sequence: u64, delivery: u64 },
    /// Nothing before this instant, unless something changes.
    Wait(Option<Instant>),
}

#[derive(Debug)]
pub(super) struct Durable {
    pub(super) ack_wait: Duration,
    pub(super) max_ack_pending: usize,
    /// The first row that was never delivered.
    next: u64,
    /// Every row up to here is acknowledged.
    floor: u64,
    acked: BTreeSet<u64>,
    pending: HashMap<u64, Pending>,
    due: BTreeSet<(Instant, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    due: Instant,
    delivery: u64,
}

impl Durable {
    /// A durable that begins with the first row there is.
    pub(super) fn new(first: u64) -> Self {
        Self {
            ack_wait: DEFAULT_ACK_WAIT,
            max_ack_pending: DEFAULT_MAX_ACK_PENDING,
            next: first,
            floor: first - 1,
            acked: BTreeSet::new(),
            pending: HashMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// Chooses the next row of a queue that holds `first..end`, and enters it as pending.
    pub(super) fn next(&mut self, now: Instant, first: u64, end: u64) -> Next {
        self.skip_removed(first);
        while let Some(&(at, sequence)) = self.due.first() {
            if at > now {
                break;
            }
            self.due.remove(&(at, sequence));
            if let Some(pending) = self.pending.get_mut(&sequence) {
                pending.delivery += 1;
                pending.due = now + self.ack_wait;
                let delivery = pending.delivery;
                self.due.insert((now + self.ack_wait, sequence));
                return Next::Row { sequence, delivery };
            }
        }
        if self.next < end && self.pending.len() < self.max_ack_pending {
            let (sequence, due) = (self.next, now + self.ack_wait);
            self.next += 1;
            self.pending.insert(sequence, Pending { due, delivery: 1 });
            self.due.insert((due, sequence));
            return Next::Row {
                sequence,
                delivery: 1,
            };
        }
        Next::Wait(self.due.first().map(|&(at, _)| at))
    }

    pub(super) fn ack(&mut self, sequence: u64) {
        let Some(pending) = self.pending.remove(&sequence) else {
            return;
        };
        self.due.remove(&(pending.due, sequence));
        self.acked.insert(sequence);
        self.raise_floor();
    }

    /// Makes a row due again. A refusal of an earlier delivery than the last changes nothing.
    pub(super) fn nak(&mut self, sequence: u64, delivery: u64, at: Instant) {
        let Some(pending) = self.pending.get_mut(&sequence) else {
            return;
        };
        if pending.delivery == delivery {
            self.due.remove(&(pending.due, sequence));
            pending.due = at;
            self.due.insert((at, sequence));
        }
    }

    /// The last row of the unbroken run of acknowledged ones.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    fn skip_removed(&mut self, first: u64) {
        if first <= self.floor + 1 {
            return;
        }
        self.floor = first - 1;
        self.next = self.next.max(first);
        self.acked = self.acked.split_off(&first);
        let due = &mut self.due;
        self.pending.retain(|&sequence, pending| {
            let stays = sequence >= first;
            if !stays {
                due.remove(&(pending.due, sequence));
            }
            stays
        });
        self.raise_floor();
    }

    fn raise_floor(&mut self) {
        while self.acked.remove(&(self.floor + 1)) {
            self.floor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn row(sequence: u64, delivery: u64) -> Next {
        Next::Row { sequence, delivery }
    }

    #[tokio::test(start_paused = true)]
    async fn the_floor_is_the_last_of_an_unbroken_run() {
        let (mut durable, now) = (Durable::new(1), Instant::now());
        for sequence in 1..=3 {
            assert_eq!(durable.next(now, 1, 4), row(sequence, 1));
        }
        durable.ack(2);
        assert_eq!(durable.floor(), 0);
        durable.ack(1);
        assert_eq!(durable.floor(), 2);
        durable.ack(9);
        assert_eq!(
            durable.floor(),
            2,
            "what was not delivered cannot be acknowledged"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unsettled_row_is_due_after_the_ack_wait_and_a_refused_one_at_once() {
        let (mut durable, now) = (Durable::new(1), Instant::now());
        assert_eq!(durable.next(now, 1, 3), row(1, 1));
        assert_eq!(durable.next(now, 1, 3), row(2, 1));
        assert_eq!(durable.next(now, 1, 3), Next::Wait(Some(now + DEFAULT_ACK_WAIT)));
        durable.nak(2, 1, now);
        assert_eq!(durable.next(now, 1, 3), row(2, 2));
        durable.nak(2, 1, now);
        assert_eq!(
            durable.next(now + SECOND, 1, 3),
            Next::Wait(Some(now + DEFAULT_ACK_WAIT)),
            "an old delivery's refusal does nothing"
        );
        assert_eq!(durable.next(now + DEFAULT_ACK_WAIT, 1, 3), row(1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_durable_at_its_cap_waits_for_a_settlement() {
        let (mut durable, now) = (Durable::new(1), Instant::now());
        durable.max_ack_pending = 1;
        assert_eq!(durable.next(now, 1, 9), row(1, 1));
        assert!(matches!(durable.next(now, 1, 9), Next::Wait(Some(_))));
        durable.ack(1);
        assert_eq!(durable.next(now, 1, 9), row(2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn removed_rows_count_as_done() {
        let (mut durable, now) = (Durable::new(1), Instant::now());
        assert_eq!(durable.next(now, 1, 9), row(1, 1));
        assert_eq!(durable.next(now, 5, 9), row(5, 1));
        assert_eq!(durable.floor(), 4);
    }
}
