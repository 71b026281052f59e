//! Acknowledgements, and the floor below which everything is settled.

use windjet_protocol::jetstream::AckPolicy;
use windjet_protocol::reply::{Ack, AckSubject};
use windjet_store::Position;

use super::events::Told;
use super::{AckMessage, Consumer, Now, Port, Pull};
use crate::jetstream::fault::{Fault, planted};

/// Messages that are looked up at once.
const LOOKED_UP: usize = 1024;

/// Whether an ack is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
}

impl Consumer {
    /// An acknowledgement.
    pub(crate) fn ack(&mut self, port: &mut dyn Port, message: AckMessage<'_>, now: Now) {
        let ack = Ack::parse(message.payload);
        self.ack_by(port, message, ack, now);
    }

    /// An acknowledgement that needs no reading.
    pub(crate) fn ack_by(
        &mut self,
        port: &mut dyn Port,
        message: AckMessage<'_>,
        ack: Option<Ack<'_>>,
        now: Now,
    ) {
        if !self.timed() {
            return;
        }
        self.used(now);
        let subject = &message.subject;
        let answer = match ack {
            None => Answer::Yes,
            Some(Ack::Done) => self.done(port, subject, true, now),
            Some(Ack::Nak { delay }) => {
                self.nak(port, subject, delay.map_or(0, |delay| delay.0), now);
                Answer::Yes
            }
            Some(Ack::Progress) => {
                self.progress(subject.stream_seq, message.holder, now);
                Answer::Yes
            }
            Some(Ack::Term { reason }) => {
                let answer = self.done(port, subject, false, now);
                let reason = String::from_utf8_lossy(reason);
                self.tell_terminated(port, told(subject), &reason, now);
                answer
            }
            Some(Ack::Next { request }) => {
                self.done(port, subject, true, now);
                if let Some(reply) = message.reply {
                    let pull = Pull {
                        payload: request,
                        headers: b"",
                        reply,
                        holder: message.holder,
                    };
                    self.pull(port, pull, now);
                }
                return;
            }
        };
        if answer == Answer::Yes
            && let Some(reply) = message.reply
        {
            port.confirm(reply);
        }
    }

    /// Settles what an ack is about.
    fn done(&mut self, port: &mut dyn Port, subject: &AckSubject<'_>, success: bool, now: Now) -> Answer {
        let seq = subject.stream_seq;
        if seq == 0 {
            self.acked_at = Some(now.wall);
            return Answer::Yes;
        }
        if self.config.ack_policy == AckPolicy::All {
            if seq > self.position() {
                return Answer::No;
            }
            let up_to = Position {
                stream_seq: seq,
                consumer_seq: subject.consumer_seq,
            };
            self.ack_up_to(port, up_to, now);
            return Answer::Yes;
        }
        if let Some(entry) = self.tracked.get(seq) {
            if success && self.config.sample_freq.is_some() && self.sampled() {
                let sent = entry.due.saturating_sub(self.wait(self.tracked.deliveries(seq)));
                self.tell_acked(port, told(subject), now.nanos().saturating_sub(sent), now);
            }
            self.settle(seq);
            self.acked_at = Some(now.wall);
            port.settled(seq, seq);
            return Answer::Yes;
        }
        if self.tracked.given_up(seq) {
            self.tracked.forget(seq, &mut self.log);
            self.acked_at = Some(now.wall);
            port.settled(seq, seq);
            return Answer::Yes;
        }
        if seq <= self.position() {
            self.acked_at = Some(now.wall);
            Answer::Yes
        } else {
            Answer::No
        }
    }

    /// Settles everything up to a position, unless it is settled already.
    pub(super) fn ack_up_to(&mut self, port: &mut dyn Port, up_to: Position, now: Now) {
        if up_to.stream_seq <= self.floor.stream_seq || up_to.consumer_seq <= self.floor.consumer_seq {
            return;
        }
        let stream_seq = up_to.stream_seq.min(self.delivered.stream_seq);
        let mut seqs = self.tracked.seqs(0, stream_seq);
        seqs.extend(self.tracked.counted(0, stream_seq));
        seqs.sort_unstable();
        seqs.dedup();
        for seq in &seqs {
            self.tracked.settle(*seq, &mut self.log);
            self.release(*seq);
        }
        self.floor = Position {
            stream_seq: stream_seq.max(self.floor.stream_seq),
            consumer_seq: up_to.consumer_seq.min(self.delivered.consumer_seq),
        };
        self.acked_at = Some(now.wall);
        self.log.mark();
        settle_runs(port, &seqs);
    }

    /// Everything up to a sequence was taken without being delivered: a stream that copies from this one has stored it.
    pub(crate) fn taken(&mut self, port: &mut dyn Port, up_to: u64, now: Now) {
        let up_to = up_to.min(self.home.reader.state().last_seq);
        if up_to <= self.floor.stream_seq {
            return;
        }
        let (mut from, mut seqs) = (self.floor.stream_seq + 1, Vec::new());
        loop {
            let known = seqs.len();
            self.home
                .reader
                .next_matches(&mut self.matcher, from, LOOKED_UP, &mut seqs);
            let full = seqs.len() - known == LOOKED_UP;
            seqs.truncate(seqs.partition_point(|seq| *seq <= up_to));
            match seqs.last() {
                Some(last) if full && *last < up_to && seqs.len() > known => from = last + 1,
                _ => break,
            }
        }
        let fresh = seqs
            .iter()
            .filter(|seq| **seq > self.delivered.stream_seq)
            .count() as u64;
        self.forget_range(0, up_to);
        self.delivered = Position {
            stream_seq: self.delivered.stream_seq.max(up_to),
            consumer_seq: self.delivered.consumer_seq + fresh,
        };
        self.floor = Position {
            stream_seq: up_to,
            consumer_seq: self.delivered.consumer_seq,
        };
        self.next = self.next.max(up_to + 1);
        self.acked_at = Some(now.wall);
        self.recount();
        self.log.mark();
        settle_runs(port, &seqs);
    }

    fn nak(&mut self, port: &mut dyn Port, subject: &AckSubject<'_>, delay: i64, now: Now) {
        let seq = subject.stream_seq;
        let dseq = subject.consumer_seq;
        if self.tracked.get(seq).is_none()
            || dseq <= self.floor.consumer_seq
            || dseq > self.delivered.consumer_seq + 1
        {
            return;
        }
        self.tell_nak(port, told(subject), now);
        if delay > 0 {
            self.delivered_at = Some(now.wall);
            self.tracked
                .postpone(seq, now.nanos().saturating_add(delay), true, &mut self.log);
            self.release(seq);
        } else {
            self.again_or_give_up(port, seq, now);
        }
    }

    fn progress(&mut self, seq: u64, holder: u64, now: Now) {
        if self.tracked.get(seq).is_some() {
            let wait = self.wait(self.tracked.deliveries(seq));
            self.tracked
                .postpone(seq, now.nanos().saturating_add(wait), false, &mut self.log);
            self.delivered_at = Some(now.wall);
            if let Some(holders) = &mut self.holders {
                holders.entry(seq).or_insert(holder);
            }
        }
    }

    /// The wait of a message is over: it goes out again, or it was delivered often enough.
    pub(super) fn again_or_give_up(&mut self, port: &mut dyn Port, seq: u64, now: Now) {
        if self.is_exhausted(seq) {
            self.give_up(port, seq, now);
        } else {
            self.tracked.enqueue_due(seq, now.nanos(), &mut self.log);
        }
    }

    /// Whether a message was delivered as often as it may be.
    pub(super) fn is_exhausted(&self, seq: u64) -> bool {
        u64::try_from(self.config.max_deliver).is_ok_and(|max| max > 0 && self.tracked.deliveries(seq) >= max)
    }

    /// Gives a message up. It stays in the stream, and the consumer remembers. The floor stays below it.
    pub(super) fn give_up(&mut self, port: &mut dyn Port, seq: u64, now: Now) {
        let deliveries = self.tracked.deliveries(seq);
        self.tracked.give_up(seq, &mut self.log);
        self.release(seq);
        self.tell_given_up(port, seq, deliveries, now);
    }

    /// Settles one message. The floor moves if it was the next above it, or if nothing is left in hand: a message that was given up
    /// holds the floor below it until then.
    pub(super) fn settle(&mut self, seq: u64) {
        let entry = self.tracked.settle(seq, &mut self.log);
        self.release(seq);
        let next = self.floor.consumer_seq + 1;
        if self.tracked.len() == 0 || entry.is_some_and(|entry| entry.dseq() == next) {
            self.move_floor();
        }
        self.log.mark();
    }

    /// Moves the floor to just below the lowest message that is not settled; never back.
    pub(super) fn move_floor(&mut self) {
        let below = match self.tracked.lowest() {
            None => self.delivered,
            Some((seq, entry)) => Position {
                stream_seq: seq.saturating_sub(1),
                consumer_seq: entry.dseq().saturating_sub(1),
            },
        };
        self.floor = Position {
            stream_seq: below.stream_seq.max(self.floor.stream_seq),
            consumer_seq: below.consumer_seq.max(self.floor.consumer_seq),
        };
        self.log.mark();
    }

    /// Whether another message may be in hand.
    pub(super) fn has_room(&self) -> bool {
        match usize::try_from(self.config.max_ack_pending) {
            Ok(max) if max > 0 && self.config.ack_policy != AckPolicy::None => {
                self.tracked.len() < max + usize::from(planted(Fault::WindowTooWide))
            }
            _ => true,
        }
    }

    /// Nobody holds a message any more.
    pub(super) fn release(&mut self, seq: u64) {
        if let Some(holders) = &mut self.holders {
            holders.remove(&seq);
        }
    }

    /// A connection is gone. If the consumer is configured so, what it had is delivered again at once.
    pub(crate) fn holder_gone(&mut self, port: &mut dyn Port, holder: u64, now: Now) {
        let Some(holders) = &mut self.holders else {
            return;
        };
        let seqs: Vec<u64> = holders
            .iter()
            .filter(|(_, by)| **by == holder)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in seqs {
            self.release(seq);
            if self.tracked.get(seq).is_some_and(|entry| !entry.queued()) {
                self.again_or_give_up(port, seq, now);
            }
        }
    }
}

/// Says of sequences, given in order, that they are needed no more.
fn settle_runs(port: &mut dyn Port, seqs: &[u64]) {
    let mut rest = seqs;
    while let Some(first) = rest.first().copied() {
        let run = rest
            .iter()
            .zip(first..)
            .take_while(|(seq, next)| **seq == *next)
            .count();
        port.settled(first, first + run as u64 - 1);
        rest = &rest[run..];
    }
}

fn told(subject: &AckSubject<'_>) -> Told {
    Told {
        seq: subject.stream_seq,
        dseq: subject.consumer_seq,
        deliveries: subject.delivered,
    }
}
