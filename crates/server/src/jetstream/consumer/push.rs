//! Push: whether somebody listens, flow control, and signs of life.
//!
//! Flow control bounds what is on its way: when more than half a window was sent, the receiver is asked to answer, by a
//! message directly behind; when more than the window was sent, nothing is sent until it does. Each answer doubles the
//! window, up to 32 MiB.

use windjet_protocol::header::block;
use windjet_protocol::jetstream::status::{self, LAST_CONSUMER, LAST_STREAM};
use windjet_protocol::jetstream::{AckPolicy, Status};
use windjet_protocol::reply::FlowControlSubject;
use windjet_store::Position;

use super::events::letters;
use super::waiting::NEVER;
use super::{Consumer, Now, Port};

const WINDOW_START: u64 = 2 << 20;
const WINDOW_MAX: u64 = 32 << 20;
const REQUEST_LETTERS: usize = 4;

/// A flow-control request that is not answered.
#[derive(Debug)]
struct Asked {
    id: String,
    /// Bytes that its answer tells of.
    covered: u64,
}

/// What a push consumer has beside the rest.
#[derive(Debug)]
pub(super) struct Push {
    /// Whether somebody listens.
    pub(super) bound: bool,
    /// When a sign of life is due.
    beat: u64,
    window: u64,
    outstanding: u64,
    asked: Option<Asked>,
}

impl Push {
    fn new() -> Self {
        Self {
            bound: false,
            beat: NEVER,
            window: WINDOW_START,
            outstanding: 0,
            asked: None,
        }
    }

    /// Begins flow control anew.
    pub(super) fn restart(&mut self) {
        self.window = WINDOW_START;
        self.outstanding = 0;
        self.asked = None;
    }

    /// When a sign of life is due.
    pub(super) fn due(&self) -> u64 {
        self.beat
    }
}

/// Gives a consumer this state if it is a push consumer.
pub(super) fn refit(consumer: &mut Consumer, _now: Now) {
    if consumer.config.is_push() && consumer.push.is_none() {
        consumer.push = Some(Box::new(Push::new()));
    }
}

impl Consumer {
    /// Somebody began or ceased to listen to the deliver subject.
    pub(crate) fn interest_changed(&mut self, port: &mut dyn Port, now: Now) {
        let bound = self.is_bound(port);
        self.set_bound(bound, now);
    }

    /// Whether somebody listens to the deliver subject as the configuration says.
    pub(super) fn is_bound(&self, port: &dyn Port) -> bool {
        let config = &self.config;
        config.deliver_subject.as_ref().is_some_and(|subject| {
            port.bound(
                subject.as_bytes(),
                config.deliver_group.as_deref().map(str::as_bytes),
            )
        })
    }

    pub(super) fn set_bound(&mut self, bound: bool, now: Now) {
        let Some(push) = &mut self.push else {
            return;
        };
        if push.bound == bound {
            return;
        }
        push.bound = bound;
        push.beat = NEVER;
        self.idle_from = (!bound).then_some(now.mono);
        if bound {
            self.rest(now);
        }
    }

    /// Something was sent: the silence begins anew.
    fn rest(&mut self, now: Now) {
        let heartbeat = self.config.idle_heartbeat.0.max(0).unsigned_abs();
        if let Some(push) = &mut self.push
            && heartbeat > 0
        {
            push.beat = now.mono.saturating_add(heartbeat);
        }
    }

    /// Bytes on their way and the window, if there are more than the window.
    pub(super) fn stalled(&self) -> Option<(u64, u64)> {
        let push = self.push.as_ref().filter(|_| self.config.flow_control)?;
        (push.outstanding > push.window).then_some((push.outstanding, push.window))
    }

    /// A message of so many bytes was pushed.
    pub(super) fn pushed(&mut self, port: &mut dyn Port, bytes: u64, now: Now) {
        self.rest(now);
        if !self.config.flow_control {
            return;
        }
        let Some(push) = &mut self.push else {
            return;
        };
        push.outstanding = push.outstanding.saturating_add(bytes);
        let full = self.config.ack_policy == AckPolicy::FlowControl && !self.has_room();
        if self
            .push
            .as_ref()
            .is_some_and(|push| push.outstanding > push.window / 2)
            || full
        {
            self.ask(port);
        }
    }

    /// Asks the receiver how far it has come, unless it was asked already.
    fn ask(&mut self, port: &mut dyn Port) {
        let (Some(push), Some(to)) = (&mut self.push, &self.config.deliver_subject) else {
            return;
        };
        if push.asked.is_some() {
            return;
        }
        let asked = Asked {
            id: letters(REQUEST_LETTERS),
            covered: push.outstanding,
        };
        let subject = flow_subject(&self.home.stream, &self.name, &asked.id);
        port.status(to.as_bytes(), Some(&subject), &Status::FlowControlRequest.block());
        push.asked = Some(asked);
    }

    /// A message to the reply subject of a flow-control request, whose last token is `id`.
    pub(crate) fn flow_answer(&mut self, port: &mut dyn Port, id: &[u8], headers: &[u8], now: Now) {
        let Some(push) = &mut self.push else {
            return;
        };
        let Some(asked) = push.asked.take_if(|asked| asked.id.as_bytes() == id) else {
            return;
        };
        push.window = (push.window * 2).min(WINDOW_MAX);
        push.outstanding = push.outstanding.saturating_sub(asked.covered);
        if self.config.ack_policy == AckPolicy::FlowControl
            && let (Some(consumer_seq), Some(stream_seq)) =
                (number(headers, LAST_CONSUMER), number(headers, LAST_STREAM))
        {
            let up_to = Position {
                stream_seq,
                consumer_seq,
            };
            self.ack_up_to(port, up_to, now);
        }
    }

    /// A sign of life, if it is due.
    pub(super) fn beat(&mut self, port: &mut dyn Port, now: Now) {
        if !self
            .push
            .as_ref()
            .is_some_and(|push| push.bound && push.beat <= now.mono)
        {
            return;
        }
        let position = self.position();
        if let (Some(push), Some(to)) = (&self.push, &self.config.deliver_subject) {
            let subject = push.asked.as_ref().map(|asked| {
                let subject = flow_subject(&self.home.stream, &self.name, &asked.id);
                String::from_utf8_lossy(&subject).into_owned()
            });
            let block = status::heartbeat(self.delivered.consumer_seq, position, subject.as_deref());
            port.status(to.as_bytes(), None, &block);
        }
        self.rest(now);
        if self.config.ack_policy == AckPolicy::FlowControl && self.tracked.len() > 0 {
            self.ask(port);
        }
    }
}

fn flow_subject(stream: &str, consumer: &str, id: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + stream.len() + consumer.len());
    FlowControlSubject {
        scope: None,
        stream: stream.as_bytes(),
        consumer: consumer.as_bytes(),
        id: id.as_bytes(),
    }
    .write(&mut out);
    out
}

fn number(headers: &[u8], name: &str) -> Option<u64> {
    std::str::from_utf8(block::find(headers, name)?)
        .ok()?
        .trim()
        .parse()
        .ok()
}
