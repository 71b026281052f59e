//! Priority groups: which of the waiting requests may have a message, and who is pinned.

use windjet_protocol::jetstream::advisory::UnpinReason;
use windjet_protocol::jetstream::{ApiError, ErrorCode, PriorityPolicy, PullRequest, Status, Timestamp};

use super::events::letters;
use super::waiting::{Request, RequestId};
use super::{Consumer, Now, Port};

/// Letters of a pin.
const PIN_LETTERS: usize = 22;

/// The client that gets everything.
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) since: Timestamp,
    pub(super) due: u64,
}

/// Whether a request may have a message.
enum Verdict {
    Yes,
    /// With this pin.
    Pinned(String),
    /// Not now.
    Standby,
    /// Never.
    Refused(Status, bool),
}

/// Who gets a message.
pub(super) enum Choice {
    /// This request, with this pin if there is one.
    Take(RequestId, Option<String>),
    /// Nobody who waits.
    Nobody,
    /// Only requests that were left out.
    Full,
}

impl Consumer {
    /// The checks of a request that come from priority groups.
    pub(super) fn check_priority(&mut self, request: &PullRequest, now: Now) -> Result<(), Status> {
        let policy = self.config.priority_policy;
        if request.plain {
            return match policy {
                PriorityPolicy::PinnedClient => Err(Status::PRIORITY_GROUP_MISSING),
                _ => Ok(()),
            };
        }
        if (request.min_pending != 0 || request.min_ack_pending != 0) && policy != PriorityPolicy::Overflow {
            return Err(Status::NOT_OVERFLOW);
        }
        if request.id.is_some() && policy != PriorityPolicy::PinnedClient {
            return Err(Status::NOT_PINNED);
        }
        if !(0..=9).contains(&request.priority) {
            return Err(Status::PRIORITY_OUT_OF_RANGE);
        }
        if policy == PriorityPolicy::None {
            return Ok(());
        }
        match &request.group {
            None => return Err(Status::PRIORITY_GROUP_MISSING),
            Some(group) if !self.config.priority_groups.contains(group) => {
                return Err(Status::PRIORITY_GROUP_INVALID);
            }
            Some(_) => {}
        }
        let timeout = self.pin_timeout();
        if let (Some(pin), Some(id)) = (&mut self.pin, &request.id) {
            if pin.id != *id {
                return Err(Status::PinMismatch);
            }
            pin.due = now.mono.saturating_add(timeout);
        }
        Ok(())
    }

    fn pin_timeout(&self) -> u64 {
        self.config.priority_timeout.0.max(0).unsigned_abs()
    }

    /// Chooses who gets a message of so many bytes, and ends the requests that turn out to be over. `full` are left out.
    pub(super) fn choose(
        &mut self,
        port: &mut dyn Port,
        size: u64,
        to_come: u64,
        full: &[RequestId],
        now: Now,
    ) -> Choice {
        let turn = self.waiting.turn();
        let mut place = None;
        let mut left_out = false;
        while let Some(next) = self.waiting.after(place, turn) {
            place = Some(next);
            let id = next.2;
            let Some(request) = self.waiting.get(id) else {
                continue;
            };
            if full.contains(&id) {
                left_out = true;
                continue;
            }
            if request.expires <= now.mono {
                self.end(port, id, &Status::RequestTimeout, true);
                continue;
            }
            let pin = match self.judge(request, to_come) {
                Verdict::Yes => None,
                Verdict::Pinned(pin) => Some(pin),
                Verdict::Standby => {
                    self.waiting.rotate(id);
                    continue;
                }
                Verdict::Refused(status, with_pending) => {
                    self.end(port, id, &status, with_pending);
                    continue;
                }
            };
            if !port.wanted(&request.reply) {
                self.waiting.remove(id);
                continue;
            }
            if request.bytes.is_some_and(|budget| size > budget) {
                self.end(port, id, &Status::MessageSizeExceedsMaxBytes, true);
                continue;
            }
            return Choice::Take(id, pin);
        }
        if left_out { Choice::Full } else { Choice::Nobody }
    }

    fn judge(&self, request: &Request, to_come: u64) -> Verdict {
        match self.config.priority_policy {
            PriorityPolicy::None | PriorityPolicy::Prioritized => Verdict::Yes,
            PriorityPolicy::Overflow if self.meets_thresholds(request, to_come) => Verdict::Yes,
            PriorityPolicy::Overflow => Verdict::Standby,
            PriorityPolicy::PinnedClient if request.plain => {
                Verdict::Refused(Status::PRIORITY_GROUP_MISSING, false)
            }
            PriorityPolicy::PinnedClient => match &self.pin {
                Some(pin) if request.pin() == pin.id => Verdict::Pinned(pin.id.clone()),
                Some(_) if request.pin().is_empty() => Verdict::Standby,
                None if request.pin().is_empty() => Verdict::Pinned(letters(PIN_LETTERS)),
                _ => Verdict::Refused(Status::WrongPin, true),
            },
        }
    }

    /// Whether a request's own thresholds are met, or it has none.
    pub(super) fn meets_thresholds(&self, request: &Request, to_come: u64) -> bool {
        let Some(conditions) = &request.conditions else {
            return true;
        };
        let (min_pending, min_ack_pending) = (conditions.min_pending, conditions.min_ack_pending);
        let in_hand = self.tracked.len() as u64;
        (min_pending == 0 && min_ack_pending == 0)
            || (min_pending > 0 && to_come >= min_pending)
            || (min_ack_pending > 0 && in_hand >= min_ack_pending)
    }

    /// A request is about to be given a message with a pin: its client is pinned, unless it was already. It stays so if it is too
    /// slow to take the message.
    pub(super) fn pinned(&mut self, port: &mut dyn Port, request: RequestId, pin: &str, now: Now) {
        if self.pin.as_ref().is_some_and(|known| known.id == pin) {
            return;
        }
        self.waiting.pin(request, pin);
        let conditions = self
            .waiting
            .get(request)
            .and_then(|request| request.conditions.as_ref());
        let group = conditions.map_or_else(String::new, |conditions| conditions.group.clone());
        self.tell_pinned(port, &group, pin, now);
        self.pin = Some(Box::new(Pin {
            id: pin.to_owned(),
            group,
            since: now.timestamp(),
            due: now.mono.saturating_add(self.pin_timeout()),
        }));
    }

    /// The pin ends if its client was silent for too long.
    pub(super) fn expire_pin(&mut self, port: &mut dyn Port, now: Now) -> bool {
        match self.pin.take_if(|pin| pin.due <= now.mono) {
            Some(pin) => {
                self.tell_unpinned(port, &pin.group, UnpinReason::Timeout, now);
                true
            }
            None => false,
        }
    }

    /// Ends the pin. The name of the group is one there could be.
    ///
    /// # Errors
    /// `400/10160` when the consumer has no such group.
    pub(crate) fn unpin(&mut self, port: &mut dyn Port, group: &str, now: Now) -> Result<(), ApiError> {
        if !self.config.priority_groups.iter().any(|name| name == group) {
            return Err(ErrorCode::PriorityGroupUnknown.error());
        }
        self.pin = None;
        self.tell_unpinned(port, group, UnpinReason::Admin, now);
        Ok(())
    }
}
