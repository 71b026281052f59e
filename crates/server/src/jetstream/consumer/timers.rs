//! What happens by itself when time passes.

use windjet_protocol::jetstream::{Status, Timestamp, status};

use super::waiting::{NEVER, RequestDue};
use super::{Consumer, Due, Now, Port};
use crate::jetstream::fault::{Fault, planted};

impl Consumer {
    /// When [`Consumer::expire`] must be called, on the monotonic clock.
    pub(crate) fn next_deadline(&mut self) -> Option<u64> {
        self.tidy();
        let again = if self.tracked.len() > 0 {
            self.tracked.next_due().map(|due| due.max(0).unsigned_abs())
        } else {
            None
        };
        let due = [
            again,
            self.waiting.next_due(),
            self.push.as_ref().map(|push| push.due()),
            self.pace.as_ref().and_then(|pace| pace.resume_at),
            self.pin.as_ref().map(|pin| pin.due),
            Some(self.pause_due),
            Some(self.idle_due()),
        ];
        due.into_iter().flatten().min().filter(|due| *due != NEVER)
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, port: &mut dyn Port, now: Now) -> Due {
        self.expire_requests(port, now);
        let mut deliver = self.expire_waits(port, now);
        self.beat(port, now);
        if let Some(pace) = &mut self.pace {
            deliver |= pace.resume_at.take_if(|at| *at <= now.mono).is_some();
        }
        deliver |= self.expire_pin(port, now);
        deliver |= self.expire_pause(port, now);
        if self.idle_due() <= now.mono && self.is_unused(port, now) {
            return Due::Delete;
        }
        if deliver { Due::Deliver } else { Due::Nothing }
    }

    /// Gives back memory that is not needed at the moment.
    fn tidy(&mut self) {
        self.tracked.tidy();
        self.waiting.tidy();
    }

    fn expire_requests(&mut self, port: &mut dyn Port, now: Now) {
        if !self.has_room() && self.waiting.due(now.mono).is_some() {
            // While the window is full, those that do not wait stay until the next request of any is due.
            self.end_no_wait(port);
        }
        while let Some(due) = self.waiting.due(now.mono) {
            match due {
                RequestDue::Expired(id) => self.end(port, id, &Status::RequestTimeout, true),
                RequestDue::Heartbeat(id) => {
                    let position = self.position();
                    match self.waiting.get(id) {
                        Some(request) if port.wanted(&request.reply) => {
                            let block = status::heartbeat(self.delivered.consumer_seq, position, None);
                            port.status(&request.reply, None, &block);
                            self.waiting.beat(id, now.mono);
                        }
                        _ => drop(self.waiting.remove(id)),
                    }
                }
            }
        }
    }

    /// What was not acknowledged in time goes out again, or is given up.
    pub(super) fn expire_waits(&mut self, port: &mut dyn Port, now: Now) -> bool {
        if self.tracked.len() == 0 {
            return false;
        }
        let seqs = self.tracked.expired(now.nanos());
        for seq in &seqs {
            if self.is_exhausted(*seq) {
                self.give_up(port, *seq, now);
            } else if !planted(Fault::WaitForgotten) {
                self.tracked.enqueue(*seq);
            }
        }
        !seqs.is_empty()
    }

    fn expire_pause(&mut self, port: &mut dyn Port, now: Now) -> bool {
        if self.pause_due > now.mono {
            return false;
        }
        self.arm_pause(now);
        if self.pause_due != NEVER {
            // The wall clock was set back meanwhile.
            return false;
        }
        self.tell_pause(port, false, now);
        true
    }

    /// Sets the timer for the end of the pause, if there is one.
    pub(super) fn arm_pause(&mut self, now: Now) {
        let remaining = self.pause_remaining(now);
        self.pause_due = if remaining > 0 {
            now.mono.saturating_add(remaining)
        } else {
            NEVER
        };
    }

    /// How long the consumer will be paused.
    pub(super) fn pause_remaining(&self, now: Now) -> u64 {
        let until = self.config.pause_until.map_or(i64::MIN, Timestamp::unix_nanos);
        let remaining = i128::from(until) - i128::from(now.wall);
        u64::try_from(remaining.max(0)).unwrap_or(u64::MAX)
    }

    /// Whether the consumer is paused.
    pub(super) fn paused(&self, now: Now) -> bool {
        self.config.pause_until.is_some() && self.pause_remaining(now) > 0
    }

    /// Whether nobody uses the consumer, its time without use being over.
    fn is_unused(&mut self, port: &dyn Port, now: Now) -> bool {
        if self.config.is_push() {
            return true;
        }
        if self.has_listener(port, now) {
            self.idle_from = Some(now.mono);
            return false;
        }
        let in_hand = self.tracked.last_due().and_then(|due| u64::try_from(due).ok());
        match in_hand.filter(|due| *due > self.idle_from.unwrap_or(0)) {
            Some(due) => {
                self.idle_from = Some(due);
                self.idle_due() <= now.mono
            }
            None => true,
        }
    }
}
