//! The turn in which messages go out.
//!
//! A message is chosen first: one that goes out again, or else the next one if another may be in hand. Then somebody to
//! give it to. Nothing changes before it is taken.

use bytes::Bytes;
use windjet_protocol::header::block;
use windjet_protocol::jetstream::{AckPolicy, PriorityPolicy, Status};
use windjet_protocol::reply::AckSubject;
use windjet_store::Message;

use super::priority::Choice;
use super::pull::send_end;
use super::waiting::RequestId;
use super::{Budget, Consumer, Delivered, Delivery, Fetched, Now, Place, Port, Progress};

/// Header with the length of a payload that is left out.
const MSG_SIZE: &str = "Nats-Msg-Size";
/// Header with the pin of the client.
const PIN_ID: &str = "Nats-Pin-Id";

static NOTHING: Bytes = Bytes::new();

/// A message that is about to go out.
struct Ready {
    message: Message,
    /// Whether it was not delivered before.
    new: bool,
    /// Which it is; `pending` does not include it.
    place: Place,
    subject: Bytes,
    headers: Bytes,
    payload: Bytes,
    ack: Vec<u8>,
}

fn with(headers: &[u8], name: &str, value: &[u8]) -> Bytes {
    let mut block = headers.to_vec();
    block::set(&mut block, name, value);
    block.into()
}

impl Ready {
    /// Bytes of the message without the subject that it is sent to.
    fn body_len(&self) -> u64 {
        (self.ack.len() + self.headers.len() + self.payload.len()) as u64
    }

    /// Bytes by which budgets count.
    fn size(&self) -> u64 {
        self.subject.len() as u64 + self.body_len()
    }

    fn delivery<'a>(&'a self, to: &'a [u8], headers: &'a Bytes) -> Delivery<'a> {
        Delivery {
            to,
            subject: &self.subject,
            ack: &self.ack,
            headers,
            payload: &self.payload,
            place: self.place,
        }
    }
}

/// What became of one step.
enum Step {
    /// A message of so many bytes went out.
    Sent(u64),
    /// A message turned out not to be one to deliver.
    Passed,
    Stop(Progress),
}

impl Consumer {
    /// Delivers what can be delivered, within the budget.
    pub(crate) fn deliver(&mut self, port: &mut dyn Port, budget: &mut Budget, now: Now) -> Progress {
        let progress = loop {
            if budget.messages == 0 || budget.bytes == 0 {
                break if self.is_ready(now) {
                    Progress::More
                } else {
                    Progress::Idle
                };
            }
            match self.step(port, now) {
                Step::Sent(bytes) => {
                    budget.messages -= 1;
                    budget.bytes = budget
                        .bytes
                        .saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
                }
                Step::Passed => budget.messages -= 1,
                Step::Stop(progress) => break progress,
            }
        };
        if self.ahead.is_empty() {
            self.ahead = Default::default();
        }
        if matches!(progress, Progress::Idle) {
            self.end_no_wait_here(port);
        }
        progress
    }

    /// Whether [`Consumer::deliver`] may have something to do.
    pub(crate) fn is_ready(&mut self, now: Now) -> bool {
        if self.paused(now) || self.held_back(now).is_some() {
            return false;
        }
        let somebody = match &self.push {
            Some(push) => push.bound && self.stalled().is_none(),
            None => !self.waiting.is_empty(),
        };
        if !somebody {
            return false;
        }
        self.tracked.queued() > 0
            || if self.num_pending() == 0 {
                self.ends_for_lack()
            } else {
                self.has_room()
            }
    }

    fn step(&mut self, port: &mut dyn Port, now: Now) -> Step {
        let idle = Step::Stop(Progress::Idle);
        if self.paused(now) {
            return idle;
        }
        let somebody = match &self.push {
            Some(push) => push.bound && self.stalled().is_none(),
            None => !self.waiting.is_empty(),
        };
        if !somebody {
            return idle;
        }
        let again = if self.tracked.queued() > 0 {
            self.tracked.next_queued()
        } else {
            None
        };
        let (seq, new) = if let Some(seq) = again {
            if self.is_exhausted(seq) {
                self.give_up(port, seq, now);
                return Step::Passed;
            }
            (seq, false)
        } else if !self.has_room() {
            return idle;
        } else if let Some(seq) = self.next_new() {
            (seq, true)
        } else {
            self.end_no_wait(port);
            return idle;
        };
        let message = match port.fetch(seq) {
            Fetched::Message(message) => message,
            Fetched::Later => return Step::Stop(Progress::Blocked(seq)),
            Fetched::Absent if new => {
                self.skipped(seq);
                return Step::Passed;
            }
            Fetched::Absent => {
                self.vanished(port, seq, now);
                return Step::Passed;
            }
        };
        let ready = self.make_ready(message, new);
        let at = self.may_go_at(seq, ready.message.time(), ready.size(), new);
        if let Some(pace) = &mut self.pace {
            pace.resume_at = (at > now.mono).then_some(at);
            if pace.resume_at.is_some() {
                return idle;
            }
        }
        if self.push.is_some() {
            self.push_one(port, &ready, now)
        } else {
            self.give_one(port, &ready, now)
        }
    }

    fn make_ready(&mut self, message: Message, new: bool) -> Ready {
        let seq = message.seq();
        let place = Place {
            stream_seq: seq,
            consumer_seq: self.delivered.consumer_seq + 1,
            delivered: if new { 1 } else { self.tracked.deliveries(seq) + 1 },
            time: message.time(),
            pending: self.num_pending().saturating_sub(u64::from(new)),
        };
        let mut ack = Vec::with_capacity(96);
        AckSubject {
            scope: None,
            stream: self.home.stream.as_bytes(),
            consumer: self.name.as_bytes(),
            delivered: place.delivered,
            stream_seq: seq,
            consumer_seq: place.consumer_seq,
            time_ns: place.time,
            pending: place.pending,
        }
        .write(&mut ack);
        let mut headers = message.headers();
        let mut payload = message.payload();
        if self.config.headers_only {
            let size = itoa::Buffer::new().format(payload.len()).to_owned();
            headers = with(&headers, MSG_SIZE, size.as_bytes());
            payload = NOTHING.clone();
        }
        Ready {
            subject: message.subject(),
            message,
            new,
            place,
            headers,
            payload,
            ack,
        }
    }

    fn push_one(&mut self, port: &mut dyn Port, ready: &Ready, now: Now) -> Step {
        let Some(to) = &self.config.deliver_subject else {
            return Step::Stop(Progress::Idle);
        };
        let on_the_way = to.len() as u64 + ready.body_len();
        match port.deliver(&ready.delivery(to.as_bytes(), &ready.headers)) {
            Delivered::Taken => {}
            Delivered::Full => return Step::Stop(Progress::Full),
            Delivered::NoInterest => {
                self.set_bound(false, now);
                return Step::Stop(Progress::Idle);
            }
        }
        self.record(port, ready, None, now);
        self.pushed(port, on_the_way, now);
        Step::Sent(ready.size())
    }

    fn give_one(&mut self, port: &mut dyn Port, ready: &Ready, now: Now) -> Step {
        let to_come = ready.place.pending + u64::from(ready.new);
        let mut full: Vec<RequestId> = Vec::new();
        loop {
            let (id, pin) = match self.choose(port, ready.size(), to_come, &full, now) {
                Choice::Take(id, pin) => (id, pin),
                Choice::Nobody => return Step::Stop(Progress::Idle),
                Choice::Full => return Step::Stop(Progress::Full),
            };
            if let Some(pin) = &pin {
                // Before its first message, as everybody is told in that order.
                self.pinned(port, id, pin, now);
            }
            let Some(request) = self.waiting.get(id) else {
                return Step::Stop(Progress::Idle);
            };
            let pinned = pin
                .as_ref()
                .map(|pin| with(&ready.headers, PIN_ID, pin.as_bytes()));
            let headers = pinned.as_ref().unwrap_or(&ready.headers);
            match port.deliver(&ready.delivery(&request.reply, headers)) {
                Delivered::Taken => {}
                Delivered::Full => {
                    full.push(id);
                    continue;
                }
                Delivered::NoInterest => {
                    self.waiting.remove(id);
                    continue;
                }
            }
            let holder = request.holder;
            if let Some(request) = self.waiting.give(id, ready.size(), now.mono)
                && request.bytes.is_some_and(|rest| rest > 0)
            {
                send_end(port, &request, &Status::BatchCompleted, true);
            }
            self.record(port, ready, Some(holder), now);
            return Step::Sent(ready.size());
        }
    }

    /// A message was taken.
    fn record(&mut self, port: &mut dyn Port, ready: &Ready, holder: Option<u64>, now: Now) {
        let seq = ready.message.seq();
        self.delivered.consumer_seq = ready.place.consumer_seq;
        self.delivered_at = Some(now.wall);
        if !self.config.is_push() {
            self.used(now);
        }
        self.paced(ready.message.time(), ready.size(), ready.new, now);
        if ready.new {
            self.delivered.stream_seq = self.delivered.stream_seq.max(seq);
            self.passed(seq);
        }
        self.log.mark();
        if self.config.ack_policy == AckPolicy::None {
            self.floor = self.delivered;
            port.settled(seq, seq);
            return;
        }
        let timed = self.timed();
        if ready.new {
            let due = now.nanos().saturating_add(self.wait(1));
            self.tracked
                .add(seq, ready.place.consumer_seq, due, timed, &mut self.log);
        } else {
            let wait = self.wait(self.tracked.deliveries(seq) + 1);
            let due = now.nanos().saturating_add(wait);
            self.tracked.again(seq, due, timed, &mut self.log);
        }
        if let (Some(holders), Some(holder)) = (&mut self.holders, holder) {
            holders.insert(seq, holder);
        }
    }

    /// Whether pinned clients are served.
    pub(super) fn pins(&self) -> bool {
        self.config.priority_policy == PriorityPolicy::PinnedClient
    }
}
