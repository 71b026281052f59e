//! Advisories and metrics of a consumer. A body is made only when somebody listens.

use windjet_protocol::jetstream::advisory::{
    ConsumerAction, ConsumerActionKind, ConsumerPause, Event, EventBody, GroupPinned, GroupUnpinned,
    MaxDeliveries, MessageAcked, MessageNaked, MessageTerminated, UnpinReason,
};
use windjet_protocol::jetstream::{Nanos, Timestamp};

use super::{Consumer, Now, Port};

/// So many random letters and digits.
pub(super) fn letters(count: usize) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    (0..count)
        .map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())]))
        .collect()
}

/// A delivery, as events tell of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) seq: u64,
    pub(super) dseq: u64,
    pub(super) deliveries: u64,
}

fn publish<B: EventBody>(port: &mut dyn Port, now: Now, body: B) {
    let subject = body.subject();
    if port.listens(subject.as_bytes()) {
        let event = Event {
            id: letters(22),
            timestamp: now.timestamp(),
            body,
        };
        port.advise(subject.as_bytes(), event.to_vec());
    }
}

impl Consumer {
    /// Publishes that it was created, and that it is paused if it is.
    pub(crate) fn announce(&mut self, port: &mut dyn Port, now: Now) {
        self.tell_action(port, ConsumerActionKind::Create, now);
        self.tell_if_paused(port, now);
    }

    pub(super) fn tell_action(&self, port: &mut dyn Port, action: ConsumerActionKind, now: Now) {
        let body = ConsumerAction {
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            action,
            domain: self.home.domain.clone(),
        };
        publish(port, now, body);
    }

    /// Publishes that it is paused, if it is.
    pub(super) fn tell_if_paused(&self, port: &mut dyn Port, now: Now) {
        if self.paused(now) {
            self.tell_pause(port, true, now);
        }
    }

    pub(super) fn tell_pause(&self, port: &mut dyn Port, paused: bool, now: Now) {
        let body = ConsumerPause {
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            paused,
            pause_until: self.config.pause_until.unwrap_or(Timestamp::ZERO),
            domain: self.home.domain.clone(),
        };
        publish(port, now, body);
    }

    pub(super) fn tell_given_up(&self, port: &mut dyn Port, seq: u64, deliveries: u64, now: Now) {
        let body = MaxDeliveries {
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            stream_seq: seq,
            deliveries,
            domain: self.home.domain.clone(),
        };
        publish(port, now, body);
    }

    pub(super) fn tell_nak(&self, port: &mut dyn Port, told: Told, now: Now) {
        let body = MessageNaked {
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            consumer_seq: told.dseq,
            stream_seq: told.seq,
            deliveries: told.deliveries,
            domain: self.home.domain.clone(),
        };
        publish(port, now, body);
    }

    pub(super) fn tell_terminated(&self, port: &mut dyn Port, told: Told, reason: &str, now: Now) {
        let body = MessageTerminated {
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            consumer_seq: told.dseq,
            stream_seq: told.seq,
            deliveries: told.deliveries,
            reason: reason.to_owned(),
            domain: self.home.domain.clone(),
        };
        publish(port, now, body);
    }

    pub(super) fn tell_acked(&self, port: &mut dyn Port, told: Told, ack_time: i64, now: Now) {
        let body = MessageAcked {
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            consumer_seq: told.dseq,
            stream_seq: told.seq,
            ack_time: Nanos(ack_time),
            deliveries: told.deliveries,
            domain: self.home.domain.clone(),
        };
        publish(port, now, body);
    }

    pub(super) fn tell_pinned(&self, port: &mut dyn Port, group: &str, id: &str, now: Now) {
        let body = GroupPinned {
            account: self.home.account.clone(),
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            domain: self.home.domain.clone(),
            group: group.to_owned(),
            pinned_id: id.to_owned(),
        };
        publish(port, now, body);
    }

    pub(super) fn tell_unpinned(&self, port: &mut dyn Port, group: &str, reason: UnpinReason, now: Now) {
        let body = GroupUnpinned {
            account: self.home.account.clone(),
            stream: self.home.stream.clone(),
            consumer: self.name.to_string(),
            domain: self.home.domain.clone(),
            group: group.to_owned(),
            reason,
        };
        publish(port, now, body);
    }

    /// Whether an acknowledgement is among those that are reported.
    pub(super) fn sampled(&self) -> bool {
        let Some(freq) = &self.config.sample_freq else {
            return false;
        };
        match freq.trim_end_matches('%').parse::<i64>() {
            Ok(..=0) | Err(_) => false,
            Ok(100..) => true,
            Ok(percent) => rand::random_range(0..100) < percent,
        }
    }
}
