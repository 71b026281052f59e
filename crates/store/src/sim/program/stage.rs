//! One random operation of a stream, and what the model says about it.

use rand::RngExt;

use super::{Run, SUBJECTS, WINDOW};
use crate::clock::Clock;
use crate::consumer::{ConsumerChange, Pending, Position};
use crate::error::StageError;
use crate::options::{Compression, StreamOptions};
use crate::record::SeqRange;
use crate::sim::model::{Done, Life, State, Stored};
use crate::stream::op::{Append, Op, Purge, Ticket};
use crate::stream::writer::StreamWriter;

/// Bytes at a payload's end that no other has.
const MARK: usize = 16;

impl Run {
    /// What the writer says about staged state must be what the model says.
    pub(super) fn check_staged(&mut self, writer: &StreamWriter, life: &Life) -> Result<(), String> {
        let newest = &life.newest;
        let barrier = life
            .ops
            .iter()
            .any(|(_, op)| matches!(op, Done::Purge { .. } | Done::Append { purge: Some(_), .. }));
        if newest.deleted || !newest.exists || barrier {
            return Ok(());
        }
        let wrong = |what: &str| Err(format!("{}: staged {what} differs", life.name));
        if writer.last_seq() != newest.last_seq {
            return wrong("last sequence");
        }
        if writer.messages() != newest.messages.len() as u64 {
            return wrong("messages");
        }
        let from = newest.last_seq.saturating_sub(self.rng.random_range(0..20));
        if writer.next_live(from) != newest.messages.range(from..).next().map(|(s, _)| *s) {
            return wrong("next live");
        }
        let subject = SUBJECTS[self.rng.random_range(0..SUBJECTS.len())].as_bytes();
        let of = || {
            newest
                .messages
                .iter()
                .filter(|(_, m)| m.subject == subject)
                .map(|(s, _)| *s)
        };
        let got = writer.subject(subject);
        if (got.messages, got.last) != (of().count() as u64, of().max()) {
            return wrong("subject");
        }
        if writer.subject_first(subject) != of().min() {
            return wrong("subject's first");
        }
        if writer.subject_next(subject, from) != of().find(|seq| *seq >= from) {
            return wrong("subject's next");
        }
        let key = newest.messages.get(&from).map(|m| writer.subject_key(&m.subject));
        if writer.subject_key_of(from) != key {
            return wrong("subject's key");
        }
        Ok(())
    }

    pub(super) fn stage(
        &mut self,
        writer: &mut StreamWriter,
        life: &mut Life,
    ) -> Result<&'static str, String> {
        self.outcome.ops += 1;
        let newest = life.newest.clone();
        let (name, result, done) = match self.rng.random_range(0..100) {
            0..=54 => return self.append(writer, life, &newest),
            55..=61 => return self.group(writer, life),
            62..=64 => {
                let id = self.fresh_id();
                let result = writer.stage(Op::Skip { id: Some(&id) });
                let done = result.ok().map(|t| Done::Skip {
                    seq: t.seq,
                    time: t.time,
                    id: Some(id),
                });
                ("skip", result, done)
            }
            65..=75 => {
                let ranges = self.ranges(&newest);
                (
                    "remove",
                    writer.stage(Op::Remove(&ranges)),
                    Some(Done::Remove(ranges)),
                )
            }
            76 => {
                let ranges = self.ranges(&newest);
                let live = newest.messages.iter();
                let of = live
                    .filter(|(seq, m)| ranges.iter().any(|r| r.contains(**seq)) && m.payload.len() >= MARK);
                let marks = of
                    .map(|(_, m)| m.payload[m.payload.len() - MARK..].to_vec())
                    .collect();
                (
                    "erase",
                    writer.stage(Op::Erase(&ranges)),
                    Some(Done::Erase { ranges, marks }),
                )
            }
            77..=79 => {
                let filter = ["", "a.*", "c", "b.>"][self.rng.random_range(0..4)].as_bytes();
                let below = newest.last_seq.saturating_sub(self.rng.random_range(0..10)) + 1;
                let result = writer.stage(Op::Purge(Purge { filter, below }));
                (
                    "purge",
                    result,
                    Some(Done::Purge {
                        filter: filter.to_vec(),
                        below,
                    }),
                )
            }
            80..=81 => {
                let config = format!("u{}", self.rng.random_range(0..100)).into_bytes();
                let options = StreamOptions {
                    config: config.clone().into(),
                    compression: if self.rng.random_bool(0.5) {
                        Compression::Snappy
                    } else {
                        Compression::None
                    },
                    ..writer.options().clone()
                };
                (
                    "update",
                    writer.stage(Op::Update(&options)),
                    Some(Done::Update { config }),
                )
            }
            82 if self.rng.random_bool(0.3) => ("delete", writer.stage(Op::Delete), Some(Done::Delete)),
            83..=85 => {
                let name = format!("C{}", self.rng.random_range(0..3));
                let config = vec![self.rng.random_range(0..255u8)];
                let result = writer.stage(Op::ConsumerPut {
                    name: &name,
                    config: &config,
                });
                ("consumer", result, Some(Done::ConsumerPut { name, config }))
            }
            86 => {
                let name = format!("C{}", self.rng.random_range(0..3));
                (
                    "consumer delete",
                    writer.stage(Op::ConsumerDelete { name: &name }),
                    Some(Done::ConsumerDelete { name }),
                )
            }
            _ => {
                let name = format!("C{}", self.rng.random_range(0..3));
                let change = self.change(&newest, &name);
                let remove = if self.rng.random_bool(0.5) {
                    self.ranges(&newest)
                } else {
                    Vec::new()
                };
                let result = writer.stage(Op::ConsumerChange {
                    name: &name,
                    change: &change,
                    remove: &remove,
                });
                ("ack", result, Some(Done::ConsumerChange { name, change, remove }))
            }
        };
        self.staged(life, result, done)?;
        Ok(name)
    }

    fn staged(
        &self,
        life: &mut Life,
        result: Result<Ticket, StageError>,
        done: Option<Done>,
    ) -> Result<(), String> {
        match (result, done) {
            (Ok(ticket), Some(done)) => life.push(ticket.op, done),
            (Err(StageError::Busy | StageError::Barrier), _) => {}
            (Err(StageError::Deleted), _) if life.newest.deleted => {}
            (Err(StageError::Failed), _) if self.disk.is_dead() => {}
            (other, _) => return Err(format!("{}: staging answered {other:?}", life.name)),
        }
        Ok(())
    }

    fn append(
        &mut self,
        writer: &mut StreamWriter,
        life: &mut Life,
        newest: &State,
    ) -> Result<&'static str, String> {
        let id = match self.rng.random_range(0..10) {
            0..=2 => Some(self.fresh_id()),
            3 if self.ids > 0 => Some(format!("id{}", self.rng.random_range(0..self.ids)).into_bytes()),
            _ => None,
        };
        if let Some(id) = &id
            && let Some(duplicate) = writer.duplicate(id)
        {
            if newest.ids.get(id).map(|(s, _)| *s) != Some(duplicate.seq) {
                return Err(format!("{}: a duplicate that is none", life.name));
            }
            // Answered only when what it rests on is committed; an answer must stay true.
            if duplicate.op <= writer.committed_op() {
                life.asserted.push((id.clone(), duplicate.seq));
            }
            return Ok("duplicate");
        }
        if let Some(id) = &id
            && newest
                .ids
                .get(id)
                .is_some_and(|(_, time)| time + WINDOW.as_nanos() as i64 > self.clock.wall_ns())
        {
            return Err(format!("{}: a duplicate was not known", life.name));
        }
        let subject = SUBJECTS[self.rng.random_range(0..SUBJECTS.len())]
            .as_bytes()
            .to_vec();
        let headers = if self.rng.random_bool(0.2) {
            b"h: v".to_vec()
        } else {
            Vec::new()
        };
        let payload = self.payload();
        let over = newest.messages.len() > 30;
        let remove: Vec<SeqRange> = newest
            .messages
            .keys()
            .take(usize::from(over))
            .map(|s| SeqRange::one(*s))
            .collect();
        let rollup = self.rng.random_bool(0.02);
        let below = newest.last_seq + 1;
        let append = Append {
            subject: &subject,
            headers: &headers,
            payload: &payload,
            time: None,
            id: id.as_deref(),
            remove: &remove,
            purge: rollup.then_some(Purge {
                filter: &subject,
                below,
            }),
        };
        let result = writer.stage(Op::Append(append));
        let done = result.ok().map(|t| Done::Append {
            seq: t.seq,
            stored: Stored {
                time: t.time,
                subject: subject.clone(),
                headers: headers.clone(),
                payload: payload.clone(),
            },
            id: id.clone(),
            remove: remove.clone(),
            purge: rollup.then(|| (subject.clone(), below)),
        });
        self.staged(life, result, done)?;
        Ok("append")
    }

    fn group(&mut self, writer: &mut StreamWriter, life: &mut Life) -> Result<&'static str, String> {
        let n = self.rng.random_range(2..6);
        let parts: Vec<(Vec<u8>, Vec<u8>)> = (0..n)
            .map(|_| {
                (
                    SUBJECTS[self.rng.random_range(0..SUBJECTS.len())]
                        .as_bytes()
                        .to_vec(),
                    self.payload(),
                )
            })
            .collect();
        let appends: Vec<Append<'_>> = parts
            .iter()
            .map(|(s, p)| Append {
                subject: s,
                payload: p,
                ..Append::default()
            })
            .collect();
        match writer.stage_group(&appends) {
            Ok(tickets) => {
                let all = tickets
                    .iter()
                    .zip(&parts)
                    .map(|(t, (subject, payload))| Done::Append {
                        seq: t.seq,
                        stored: Stored {
                            time: t.time,
                            subject: subject.clone(),
                            headers: Vec::new(),
                            payload: payload.clone(),
                        },
                        id: None,
                        remove: Vec::new(),
                        purge: None,
                    });
                let last = tickets.last().copied().ok_or("a group without tickets")?;
                life.push(last.op, Done::Group(all.collect()));
            }
            Err(e) => self.staged(life, Err(e), None)?,
        }
        Ok("group")
    }

    fn fresh_id(&mut self) -> Vec<u8> {
        self.ids += 1;
        format!("id{}", self.ids - 1).into_bytes()
    }

    fn payload(&mut self) -> Vec<u8> {
        let len: usize = match self.rng.random_range(0..40) {
            0 => self.rng.random_range(3000..9000),
            1..=8 => self.rng.random_range(200..1200),
            _ => self.rng.random_range(0..60),
        };
        let byte = self.rng.random_range(0..255u8);
        let mut payload: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8 % 7)).collect();
        if let Some(start) = len.checked_sub(MARK) {
            // By its end a payload is told from all others.
            self.rng.fill(&mut payload[start..]);
        }
        payload
    }

    fn ranges(&mut self, newest: &State) -> Vec<SeqRange> {
        let n = self.rng.random_range(1..4);
        let live: Vec<u64> = newest.messages.keys().copied().collect();
        (0..n)
            .map(|_| match live.len() {
                0 => SeqRange::one(self.rng.random_range(0..10)),
                len => {
                    let first = live[self.rng.random_range(0..len)];
                    SeqRange {
                        first,
                        last: first + self.rng.random_range(0..3),
                    }
                }
            })
            .collect()
    }

    fn change(&mut self, newest: &State, name: &str) -> ConsumerChange {
        let known = newest
            .consumers
            .get(name)
            .map(|c| c.1.clone())
            .unwrap_or_default();
        let next = Position {
            stream_seq: known.delivered.stream_seq + 1,
            consumer_seq: known.delivered.consumer_seq + 1,
        };
        let mut change = ConsumerChange {
            delivered: Some(next),
            ..ConsumerChange::default()
        };
        change.pending_set.push((
            next.stream_seq,
            Pending {
                consumer_seq: next.consumer_seq,
                time_ns: self.clock.wall_ns(),
            },
        ));
        if let Some(seq) = known.pending.keys().next() {
            change.pending_cleared.push(SeqRange::one(*seq));
            change.floor = Some(Position {
                stream_seq: *seq,
                consumer_seq: *seq,
            });
        }
        if self.rng.random_bool(0.1) {
            change.redelivered_set.push((next.stream_seq, 2));
        }
        change
    }
}
