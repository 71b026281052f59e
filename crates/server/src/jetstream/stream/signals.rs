//! Acks and pull requests, from the wire and from this process.

use windjet_protocol::jetstream::Status;
use windjet_protocol::reply::{Ack, AckSubject};

use super::consumers::Outside;
use super::inbox::{Batch, LocalSignal, Settle, Signal};
use super::post::Post;
use super::task::Task;
use crate::jetstream::consumer::{AckMessage, Consumer, Now, Place, Pull};
use crate::jetstream::mailbox::{self, Unconfirmed};

impl Task {
    /// Acks and pull requests, in the order of their arrival.
    pub(super) fn signals(&mut self, batch: Batch, now: Now) {
        if batch.is_empty() {
            return;
        }
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        for item in batch {
            let (number, holder) = (item.tag.consumer, item.tag.origin);
            let reply = Some(&item.reply[..]).filter(|reply| !reply.is_empty());
            self.with_consumer_in(&mut post, number, now, |consumer, port| match item.tag.signal {
                Signal::Next => {
                    if let Some(reply) = reply {
                        let pull = Pull {
                            payload: &item.payload,
                            headers: &item.headers,
                            reply,
                            holder,
                        };
                        consumer.pull(port, pull, now);
                    }
                }
                Signal::Ack => {
                    if let Some(subject) = AckSubject::parse(&item.subject) {
                        let ack = AckMessage {
                            subject,
                            payload: &item.payload,
                            reply,
                            holder,
                        };
                        consumer.ack(port, ack, now);
                    }
                }
                Signal::Flow => {
                    let id = item.subject.rsplit(|b| *b == b'.').next().unwrap_or_default();
                    consumer.flow_answer(port, id, &item.headers, now);
                }
            });
        }
        post.finish();
        self.consumers.locals.flush();
    }

    /// Acks and pull requests of this process, in the order of their arrival.
    pub(super) fn local_signals(&mut self, signals: Vec<(u32, LocalSignal)>, now: Now) {
        if signals.is_empty() {
            return;
        }
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        for (number, signal) in signals {
            match signal {
                LocalSignal::Pull {
                    request,
                    mailbox,
                    holder,
                } => {
                    let reply = mailbox::address(mailbox.number);
                    self.consumers.locals.open(mailbox.clone());
                    let served = self.with_consumer_in(&mut post, number, now, |consumer, port| {
                        consumer.pull_by(port, &reply, holder, *request, now);
                        if !consumer.is_ready(now) {
                            consumer.end_no_wait_here(port);
                        }
                    });
                    if served.is_none() {
                        let status = Status::ConsumerDeleted.block();
                        self.consumers.locals.status(mailbox.number, &status);
                    }
                }
                LocalSignal::Settle {
                    place,
                    what,
                    confirm,
                    holder,
                } => {
                    let wanted = confirm.map(|confirm| self.consumers.locals.expect(confirm));
                    let reply = wanted.map(mailbox::address);
                    let served = self.with_consumer_in(&mut post, number, now, |consumer, port| {
                        settle_by(
                            consumer,
                            port,
                            place,
                            &what,
                            reply.as_ref().map(|r| &r[..]),
                            holder,
                            now,
                        );
                    });
                    if let (Some(wanted), Some(reply)) = (wanted, reply)
                        && self.consumers.confirms.last().is_none_or(|last| **last != reply)
                    {
                        let why = match served {
                            Some(()) => Unconfirmed::NotDelivered,
                            None => Unconfirmed::Gone,
                        };
                        self.consumers.locals.confirm(wanted, Err(why));
                    }
                }
                LocalSignal::Closed { mailbox } => {
                    self.consumers.locals.close(mailbox);
                    self.with_consumer_in(&mut post, number, now, |consumer, port| consumer.sweep(port, now));
                }
            }
        }
        post.finish();
        self.consumers.locals.flush();
    }
}

/// Settles a delivery that was handed to this process.
fn settle_by(
    consumer: &mut Consumer,
    port: &mut Outside<'_, '_>,
    place: Place,
    what: &Settle,
    reply: Option<&[u8]>,
    holder: u64,
    now: Now,
) {
    let message = AckMessage {
        subject: AckSubject {
            scope: None,
            stream: b"",
            consumer: b"",
            delivered: place.delivered,
            stream_seq: place.stream_seq,
            consumer_seq: place.consumer_seq,
            time_ns: place.time,
            pending: place.pending,
        },
        payload: b"",
        reply,
        holder,
    };
    let ack = match what {
        Settle::Done => Ack::Done,
        Settle::Nak(delay) => Ack::Nak { delay: *delay },
        Settle::Progress => Ack::Progress,
        Settle::Term(reason) => Ack::Term {
            reason: reason.as_bytes(),
        },
    };
    consumer.ack_by(port, message, Some(ack), now);
}
