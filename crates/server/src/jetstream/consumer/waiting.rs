//! Pull requests that wait: in which order they are served, and when each ends or wants a sign of life.
//!
//! Requests are served in turns: who was given a message and wants more goes behind the others of its urgency. All
//! operations take O(log n).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use windjet_protocol::jetstream::PullRequest;
use windjet_protocol::jetstream::status::Pending;

use super::rare::Empty;

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;
/// Urgency of requests that say none, where urgency counts: behind all others.
const LEAST_URGENT: u8 = 10;

/// Number of a request, unique in its consumer.
pub(super) type RequestId = u64;

/// A place in the order of service.
pub(super) type Place = (u8, u64, RequestId);

/// What only requests to consumers with priority groups have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Conditions {
    /// The priority group that it names.
    pub(super) group: String,
    /// The pin that the client holds, or was given on this request; empty for none.
    pub(super) pin: String,
    /// Serve only while so many messages are to come; 0 for always.
    pub(super) min_pending: u64,
    /// Serve only while so many messages are in hand; 0 for always.
    pub(super) min_ack_pending: u64,
}

/// A pull request that waits.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) reply: Box<[u8]>,
    pub(super) holder: u64,
    /// Messages that it still wants.
    pub(super) left: u64,
    /// Messages that it was given.
    pub(super) given: u64,
    /// Bytes that it still takes, if there is a bound.
    pub(super) bytes: Option<u64>,
    /// When it ends; [`NEVER`] for not at all.
    pub(super) expires: u64,
    /// Silence after which it wants a sign of life; 0 for none.
    pub(super) heartbeat: u64,
    beat: u64,
    /// Whether it ends when there are no messages.
    pub(super) no_wait: bool,
    /// Whether it was not an object.
    pub(super) plain: bool,
    /// The urgency that it asked for, and the one that counts.
    asked: u8,
    urgency: u8,
    turn: u64,
    pub(super) conditions: Option<Box<Conditions>>,
}

impl Request {
    /// A request as it arrives; `by_urgency` when the consumer serves the more urgent first.
    pub(super) fn new(pull: &PullRequest, reply: &[u8], holder: u64, by_urgency: bool, mono: u64) -> Self {
        let after = |nanos: i64| mono.saturating_add(nanos.max(0).unsigned_abs());
        let expires = if pull.expires.is_positive() {
            after(pull.expires.0)
        } else {
            NEVER
        };
        let heartbeat = pull.idle_heartbeat.0.max(0).unsigned_abs();
        let asked = if pull.plain {
            LEAST_URGENT
        } else {
            u8::try_from(pull.priority.clamp(0, 9)).unwrap_or(9)
        };
        let conditions = Conditions {
            group: pull.group.clone().unwrap_or_default(),
            pin: pull.id.clone().unwrap_or_default(),
            min_pending: pull.min_pending.max(0).unsigned_abs(),
            min_ack_pending: pull.min_ack_pending.max(0).unsigned_abs(),
        };
        Self {
            reply: reply.into(),
            holder,
            left: pull.messages(),
            given: 0,
            bytes: pull.byte_budget(),
            expires,
            heartbeat,
            beat: if heartbeat > 0 {
                mono.saturating_add(heartbeat)
            } else {
                NEVER
            },
            no_wait: pull.no_wait,
            plain: pull.plain,
            asked,
            urgency: if by_urgency { asked } else { 0 },
            turn: 0,
            conditions: (conditions != Conditions::default()).then(|| Box::new(conditions)),
        }
    }

    /// What it did not get.
    pub(super) fn pending(&self) -> Pending {
        Pending {
            messages: self.left,
            bytes: self.bytes.unwrap_or(0),
        }
    }

    /// The pin that it carries, empty for none.
    pub(super) fn pin(&self) -> &str {
        self.conditions.as_ref().map_or("", |conditions| &conditions.pin)
    }

    /// Whether it ends when messages run out.
    pub(super) fn ends_when_empty(&self) -> bool {
        self.no_wait && (self.expires == NEVER || self.given > 0)
    }

    fn due(&self) -> u64 {
        self.expires.min(self.beat)
    }
}

/// What is due for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestDue {
    Expired(RequestId),
    Heartbeat(RequestId),
}

/// The requests.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: BTreeMap<RequestId, Request>,
    order: BTreeSet<Place>,
    timers: BTreeSet<(u64, RequestId)>,
    next_id: RequestId,
    next_turn: u64,
    wanted: u64,
    no_wait: usize,
}

impl Empty for Waiting {
    const EMPTY: &'static Self = &Self {
        requests: BTreeMap::new(),
        order: BTreeSet::new(),
        timers: BTreeSet::new(),
        next_id: 0,
        next_turn: 0,
        wanted: 0,
        no_wait: 0,
    };

    fn is_spent(&self) -> bool {
        self.requests.is_empty()
    }
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Messages that all requests together still want.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Whether there are requests that may end when messages run out.
    pub(super) fn has_no_wait(&self) -> bool {
        self.no_wait > 0
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        self.requests.iter().map(|(id, request)| (*id, request))
    }

    /// Puts a request behind the others of its urgency.
    pub(super) fn add(&mut self, mut request: Request) -> RequestId {
        let id = self.next_id;
        self.next_id += 1;
        request.turn = self.take_turn();
        self.wanted = self.wanted.saturating_add(request.left);
        self.no_wait += usize::from(request.no_wait);
        self.order.insert((request.urgency, request.turn, id));
        if request.due() != NEVER {
            self.timers.insert((request.due(), id));
        }
        self.requests.insert(id, request);
        id
    }

    fn take_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        self.order.remove(&(request.urgency, request.turn, id));
        self.timers.remove(&(request.due(), id));
        self.wanted = self.wanted.saturating_sub(request.left);
        self.no_wait -= usize::from(request.no_wait);
        Some(request)
    }

    /// The request after a place, or the first one; only places taken before turn `before`.
    pub(super) fn after(&self, place: Option<Place>, before: u64) -> Option<Place> {
        let mut place = place;
        loop {
            let from = place.map_or(Bound::Unbounded, Bound::Excluded);
            let next = *self.order.range((from, Bound::Unbounded)).next()?;
            if next.1 < before {
                return Some(next);
            }
            // All that follow with this urgency were placed later still.
            place = Some((next.0, u64::MAX, u64::MAX));
        }
    }

    /// A turn that is after all places taken so far.
    pub(super) fn turn(&self) -> u64 {
        self.next_turn + 1
    }

    /// Puts a request behind the others of its urgency.
    pub(super) fn rotate(&mut self, id: RequestId) {
        let turn = self.take_turn();
        if let Some(request) = self.requests.get_mut(&id) {
            self.order.remove(&(request.urgency, request.turn, id));
            request.turn = turn;
            self.order.insert((request.urgency, turn, id));
        }
    }

    /// A request was given a message of so many bytes. A request that is complete comes out.
    pub(super) fn give(&mut self, id: RequestId, bytes: u64, mono: u64) -> Option<Request> {
        let request = self.requests.get_mut(&id)?;
        request.left -= 1;
        request.given += 1;
        self.wanted = self.wanted.saturating_sub(1);
        if let Some(budget) = &mut request.bytes {
            *budget = budget.saturating_sub(bytes);
        }
        if request.left == 0 || request.bytes == Some(0) {
            return self.remove(id);
        }
        self.beat(id, mono);
        if self.requests.len() > 1 {
            self.rotate(id);
        }
        None
    }

    /// A request has a pin from now on.
    pub(super) fn pin(&mut self, id: RequestId, pin: &str) {
        if let Some(request) = self.requests.get_mut(&id)
            && request.pin() != pin
        {
            pin.clone_into(&mut request.conditions.get_or_insert_default().pin);
        }
    }

    /// A request was sent something: its silence begins anew.
    pub(super) fn beat(&mut self, id: RequestId, mono: u64) {
        if let Some(request) = self.requests.get_mut(&id)
            && request.heartbeat > 0
        {
            self.timers.remove(&(request.due(), id));
            request.beat = mono.saturating_add(request.heartbeat);
            self.timers.insert((request.due(), id));
        }
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// What is due first, if its time has come. The caller removes the request or resets its silence.
    pub(super) fn due(&self, mono: u64) -> Option<RequestDue> {
        let (due, id) = *self.timers.first()?;
        if due > mono {
            return None;
        }
        let expired = self
            .requests
            .get(&id)
            .is_none_or(|request| request.expires <= mono);
        Some(if expired {
            RequestDue::Expired(id)
        } else {
            RequestDue::Heartbeat(id)
        })
    }

    /// Orders all requests by urgency, or by arrival only.
    pub(super) fn reorder(&mut self, by_urgency: bool) {
        self.order.clear();
        for (id, request) in &mut self.requests {
            request.urgency = if by_urgency { request.asked } else { 0 };
            self.order.insert((request.urgency, request.turn, *id));
        }
    }

    #[cfg(test)]
    /// Bytes of memory, about.
    pub(super) fn memory(&self) -> usize {
        self.requests.len() * 400
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(payload: &str, by_urgency: bool) -> Request {
        let pull = PullRequest::parse(payload.as_bytes()).unwrap();
        Request::new(&pull, b"inbox", 1, by_urgency, 100)
    }

    fn order(waiting: &Waiting) -> Vec<RequestId> {
        let mut place = None;
        let mut out = Vec::new();
        while let Some(next) = waiting.after(place, waiting.turn()) {
            out.push(next.2);
            place = Some(next);
        }
        out
    }

    #[test]
    fn a_served_request_goes_behind_the_others() {
        let mut waiting = Waiting::default();
        for _ in 0..3 {
            waiting.add(request("2", false));
        }
        assert!(waiting.give(0, 1, 0).is_none());
        assert_eq!(order(&waiting), [1, 2, 0]);
        assert_eq!(waiting.wanted(), 5);
        assert!(waiting.give(0, 1, 0).is_some());
        assert_eq!(order(&waiting), [1, 2]);
        assert_eq!(waiting.wanted(), 4);
    }

    #[test]
    fn urgency_comes_before_arrival() {
        let mut waiting = Waiting::default();
        for payload in [
            r#"{"batch":2,"priority":5}"#,
            "1",
            "{}",
            r#"{"batch":2,"priority":5}"#,
        ] {
            waiting.add(request(payload, true));
        }
        assert_eq!(order(&waiting), [2, 0, 3, 1]);
        let turn = waiting.turn();
        waiting.rotate(0);
        assert_eq!(order(&waiting), [2, 3, 0, 1]);
        assert_eq!(waiting.after(Some((5, 4, 3)), turn), Some((LEAST_URGENT, 2, 1)));
    }

    #[test]
    fn silence_and_end_are_due_in_their_order() {
        let mut waiting = Waiting::default();
        waiting.add(request(r#"{"expires":100,"idle_heartbeat":40}"#, false));
        assert_eq!((waiting.next_due(), waiting.due(139)), (Some(140), None));
        assert_eq!(waiting.due(140), Some(RequestDue::Heartbeat(0)));
        waiting.beat(0, 140);
        assert_eq!(waiting.due(180), Some(RequestDue::Heartbeat(0)));
        waiting.beat(0, 180);
        assert_eq!(waiting.due(200), Some(RequestDue::Expired(0)));
        waiting.remove(0);
        assert_eq!((waiting.next_due(), waiting.wanted()), (None, 0));
    }
}
