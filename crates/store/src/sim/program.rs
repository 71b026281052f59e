//! Random programs and their crashes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::check::compare;
use super::model::{Done, Life, State, Stored};
use crate::clock::{Clock, SimClock};
use crate::consumer::{ConsumerChange, Pending, Position};
use crate::disk::{SimDisk, Survival};
use crate::error::{OpenError, StageError};
use crate::options::{Durability, StoreOptions, StreamOptions};
use crate::record::SeqRange;
use crate::store::Store;
use crate::stream::op::{Append, Op, Purge, Ticket};
use crate::stream::writer::StreamWriter;

const WINDOW: Duration = Duration::from_secs(20);
const SUBJECTS: [&str; 5] = ["a.1", "a.2", "b.1", "b.2.x", "c"];

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// Crashes to go through.
    pub crashes: u32,
    /// Options of the store; small sizes make everything happen often.
    pub options: StoreOptions,
}

impl Plan {
    /// A plan with sizes that make every mechanism work within a few hundred operations.
    pub fn new(seed: u64) -> Self {
        let options = StoreOptions {
            journal_first: 16 << 10,
            journal_file_max: 32 << 10,
            journal_max: 128 << 10,
            frame_max: 6 << 10,
            fragment: 3 << 10,
            tail_max: 48 << 10,
            stream_staged_max: 24 << 10,
            own_segment_min: 3 << 10,
            step: 2 << 10,
            block: 1 << 10,
            segment_max: 32 << 10,
            cache_max: 4 << 10,
            open_files_max: 3,
            manifest_max: 6 << 10,
            record_max: 16 << 10,
            ballast: false,
            ..StoreOptions::default()
        };
        Self {
            seed,
            crashes: 20,
            options,
        }
    }
}

/// What a run went through.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Crashes by what was being done: the action, and the disk operation on which it died.
    pub points: BTreeMap<String, u64>,
    /// Distinct crash points: action, disk operation, file, and what survived.
    pub distinct: HashSet<u64>,
    /// Operations staged.
    pub ops: u64,
}

struct Run {
    rng: SmallRng,
    disk: SimDisk,
    clock: Arc<SimClock>,
    options: StoreOptions,
    lives: Vec<Life>,
    outcome: Outcome,
    ids: u64,
    /// How the last crash came about, for the text of a failure.
    last_crash: String,
}

struct Open {
    store: Store,
    writers: HashMap<u64, StreamWriter>,
}

/// Runs a plan.
///
/// # Errors
/// A text that says what the store got wrong.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    let mut run = Run {
        rng: SmallRng::seed_from_u64(plan.seed),
        disk: SimDisk::new(plan.seed ^ 0x5eed),
        clock: Arc::new(SimClock::new(1_000_000_000)),
        options: plan.options.clone(),
        lives: Vec::new(),
        outcome: Outcome::default(),
        ids: 0,
        last_crash: String::new(),
    };
    let mut open = run.open(None)?;
    for crash in 0..plan.crashes {
        let power = run
            .life(open)
            .map_err(|e| format!("seed {} crash {crash}: {e}", plan.seed))?;
        open = run
            .open(power)
            .map_err(|e| format!("seed {} after crash {crash} ({}): {e}", plan.seed, run.last_crash))?;
    }
    Ok(run.outcome)
}

/// The end of a life: closed cleanly, or crashed with or without power.
type End = Option<bool>;

impl Run {
    /// Opens the store, dying on the way now and then, and checks everything in it.
    fn open(&mut self, mut end: End) -> Result<Open, String> {
        loop {
            if end.is_some() && self.rng.random_bool(0.3) {
                self.disk.stop_after(self.rng.random_range(1..20));
            } else {
                self.disk.stop_after(u64::MAX >> 1);
            }
            match Store::open(
                self.options.clone(),
                Arc::new(self.disk.clone()),
                self.clock.clone(),
            ) {
                Ok((store, report)) => {
                    if !report.is_intact() {
                        return Err(format!("recovery reports {:?}", report.findings));
                    }
                    return self.checked(store, end);
                }
                Err(OpenError::Io(_) | OpenError::Lock(_)) if self.disk.is_dead() => {
                    end = Some(self.crash("recovery") || end == Some(true));
                }
                Err(e) => return Err(format!("opening: {e:?}")),
            }
        }
    }

    /// Cuts the power or kills the process. True when it was the power.
    fn crash(&mut self, action: &str) -> bool {
        let (op, file) = self
            .disk
            .last_op()
            .map_or(("none".to_owned(), String::new()), |(op, name)| {
                (
                    format!("{op:?}"),
                    name.split('-').next().unwrap_or_default().to_owned(),
                )
            });
        let kill = self.rng.random_bool(0.2);
        let survival = match self.rng.random_range(0..6) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Sampled,
        };
        if kill {
            self.disk.kill();
        } else {
            self.disk.power_cut(survival);
        }
        let how = if kill { "kill" } else { "power" };
        self.last_crash = format!("{action} / {op} {file} / {how} {survival:?}");
        *self
            .outcome
            .points
            .entry(format!("{action} / {op} {file} / {how}"))
            .or_default() += 1;
        let mut print = crc32c::crc32c(format!("{action}{op}{file}{how}").as_bytes());
        for name in ["journal-000001", "journal-000002", "manifest-00000001-a"] {
            print = crc32c::crc32c_append(print, &self.disk.contents(name).unwrap_or_default());
        }
        self.outcome
            .distinct
            .insert(u64::from(print) << 32 | self.disk.used());
        !kill
    }

    fn checked(&mut self, store: Store, end: End) -> Result<Open, String> {
        let mut present: HashMap<u64, String> = store.streams().into_iter().map(|(n, i)| (i, n)).collect();
        let names: HashSet<String> = present.values().cloned().collect();
        let mut writers = HashMap::new();
        let mut kept = Vec::new();
        for mut life in std::mem::take(&mut self.lives) {
            let here = present.remove(&life.incarnation).is_some();
            let forgiving = life.weak && end == Some(true);
            let writer = if here { store.writer(&life.name) } else { None };
            if here && writer.is_none() {
                return Err("a stream has a writer already".to_owned());
            }
            match (self.matching(writer.as_ref(), &life, forgiving)?, writer) {
                (Some(state), Some(writer)) => {
                    life.acked = writer.staged_op();
                    life.base = state;
                    life.base.last_seq = writer.last_seq();
                    life.base.last_time = writer.last_time();
                    life.ops.clear();
                    life.newest.clone_from(&life.base);
                    life.asserted.clear();
                    writers.insert(life.incarnation, writer);
                    kept.push(life);
                }
                (Some(_), None) => {}
                // A successor of the name implies the end that was issued.
                (None, _) if life.newest.deleted && names.contains(&life.name) => {}
                (None, _) => {
                    return Err(format!(
                        "stream {} ({}) is gone (acknowledged {} of {:?}); there are {names:?}",
                        life.name, life.incarnation, life.acked, life.ops
                    ));
                }
            }
        }
        if !present.is_empty() {
            return Err(format!("streams that were never issued: {present:?}"));
        }
        self.lives = kept;
        Ok(Open { store, writers })
    }

    /// The state, of all that are allowed, that the stream is in.
    fn matching(
        &self,
        writer: Option<&StreamWriter>,
        life: &Life,
        forgiving: bool,
    ) -> Result<Option<State>, String> {
        let mut state = life.base.clone();
        let mut reasons = Vec::new();
        // What a weak stream acknowledged a power cut may take back.
        let certain = if forgiving { 0 } else { life.acked };
        let mut candidates = Vec::new();
        if life.ops.first().is_none_or(|(op, _)| *op > certain) {
            candidates.push(state.clone());
        }
        for (i, (_, op)) in life.ops.iter().enumerate() {
            state.apply(op);
            if life.ops.get(i + 1).is_none_or(|(next, _)| *next > certain) {
                candidates.push(state.clone());
            }
        }
        for state in candidates {
            let lives = state.exists && !state.deleted;
            let Some(writer) = writer.filter(|_| lives) else {
                if lives == writer.is_some() {
                    return Ok(Some(state));
                }
                reasons.push(format!("exists: {}", !lives));
                continue;
            };
            let reader = writer.reader();
            let same = compare(&reader, &state, !forgiving);
            match same.and_then(|()| self.check_ids(writer, life, &state, forgiving)) {
                Ok(()) => {
                    let last = reader.state().last_seq;
                    if last < life.acked_seq {
                        return Err(format!(
                            "{}: last sequence {last} was {} before",
                            life.name, life.acked_seq
                        ));
                    }
                    return Ok(Some(state));
                }
                Err(e) => reasons.push(e),
            }
        }
        if writer.is_none() {
            return Ok(None);
        }
        Err(format!(
            "{} ({}) is in none of the states allowed (acknowledged {} of {:?}): {reasons:?}",
            life.name, life.incarnation, life.acked, life.ops
        ))
    }

    fn check_ids(&self, writer: &StreamWriter, life: &Life, state: &State, weak: bool) -> Result<(), String> {
        let now = self.clock.wall_ns();
        let fresh = |time: i64| time + WINDOW.as_nanos() as i64 > now;
        for n in 0..self.ids {
            let id = format!("id{n}").into_bytes();
            let want = state
                .ids
                .get(&id)
                .filter(|(_, time)| fresh(*time))
                .map(|(seq, _)| *seq);
            let got = writer.duplicate(&id).map(|d| d.seq);
            if got != want {
                return Err(format!("{}: id{n} is {got:?}, should be {want:?}", life.name));
            }
        }
        for (id, seq) in life.asserted.iter().filter(|_| !weak) {
            // After its window the id may have been used again.
            if state.ids.get(id).is_none_or(|(s, _)| s < seq) {
                return Err(format!(
                    "{}: a duplicate of {seq} was answered and the original is gone",
                    life.name
                ));
            }
        }
        Ok(())
    }

    /// One opening of the store until it is closed or crashes.
    fn life(&mut self, mut open: Open) -> Result<End, String> {
        self.disk.stop_after(self.rng.random_range(1..250));
        loop {
            let action = self.act(&mut open)?;
            if self.disk.is_dead() {
                drop(open);
                return Ok(Some(self.crash(action)));
            }
            if self.rng.random_bool(0.002) {
                open.writers.values_mut().for_each(StreamWriter::submit);
                let closed = open.store.close();
                drop(open.writers);
                if self.disk.is_dead() {
                    return Ok(Some(self.crash("close")));
                }
                closed.map_err(|e| format!("a clean close failed: {e:?}"))?;
                for life in &mut self.lives {
                    life.acked = life.ops.last().map_or(life.acked, |(op, _)| *op);
                    life.acked_seq = life.acked_seq.max(life.committed().last_seq);
                }
                self.disk.kill();
                return Ok(None);
            }
        }
    }

    /// One random action; answers its name.
    fn act(&mut self, open: &mut Open) -> Result<&'static str, String> {
        match self.rng.random_range(0..100) {
            0..=9 => {
                let _ = open.store.write_step();
                Ok("write")
            }
            10..=16 => {
                let _ = open.store.sync_step();
                Ok("sync")
            }
            17..=30 => {
                let force = self.rng.random_bool(0.1);
                let _ = open.store.materialise_step(force);
                Ok("materialise")
            }
            31 => {
                let _ = open.store.idle_step();
                Ok("idle")
            }
            32..=33 => {
                self.clock
                    .advance(Duration::from_millis(self.rng.random_range(1..1500)));
                Ok("time")
            }
            34..=35 => self.create(open),
            _ => self.on_stream(open),
        }
    }

    fn create(&mut self, open: &mut Open) -> Result<&'static str, String> {
        let name = format!("S{}", self.rng.random_range(0..4));
        let alive = self.lives.iter().any(|l| l.name == name && !l.newest.deleted);
        let weak = name == "S3";
        let config = format!("c{}", self.rng.random_range(0..100));
        let options = StreamOptions {
            name: name.clone(),
            durability: if weak {
                Durability::Interval(Duration::from_millis(300))
            } else {
                Durability::Sync
            },
            dedup_window: WINDOW,
            config: config.clone().into(),
            ..StreamOptions::default()
        };
        match open.store.create_stream(options) {
            Ok(writer) => {
                if alive {
                    return Err(format!("{name} was created twice"));
                }
                let incarnation = writer.incarnation();
                let mut life = Life {
                    name,
                    incarnation,
                    weak,
                    ..Life::default()
                };
                life.push(
                    1,
                    Done::Create {
                        config: config.into_bytes(),
                    },
                );
                self.lives.push(life);
                open.writers.insert(incarnation, writer);
            }
            Err(crate::error::CreateError::Exists) if alive => {}
            Err(e) => return Err(format!("creating {name}: {e:?}")),
        }
        Ok("create")
    }

    fn on_stream(&mut self, open: &mut Open) -> Result<&'static str, String> {
        if self.lives.is_empty() {
            return Ok("nothing");
        }
        let at = self.rng.random_range(0..self.lives.len());
        let mut life = self.lives.swap_remove(at);
        let result = match open.writers.get_mut(&life.incarnation) {
            Some(writer) => self.on_writer(writer, &mut life),
            None => Ok("nothing"),
        };
        self.lives.push(life);
        result
    }

    fn on_writer(&mut self, writer: &mut StreamWriter, life: &mut Life) -> Result<&'static str, String> {
        match self.rng.random_range(0..100) {
            0..=19 => {
                writer.submit();
                return Ok("submit");
            }
            20..=39 => {
                if let Ok(op) = writer.commit() {
                    life.settle(op);
                    let committed = life.committed();
                    if !committed.deleted && committed.exists && self.rng.random_bool(0.3) {
                        compare(&writer.reader(), &committed, true)
                            .map_err(|e| format!("{} after a commit: {e}", life.name))?;
                    }
                }
                return Ok("commit");
            }
            _ => {}
        }
        self.check_staged(writer, life)?;
        self.stage(writer, life)
    }

    /// What the writer says about staged state must be what the model says.
    fn check_staged(&mut self, writer: &StreamWriter, life: &Life) -> Result<(), String> {
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
        Ok(())
    }

    fn stage(&mut self, writer: &mut StreamWriter, life: &mut Life) -> Result<&'static str, String> {
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
            65..=76 => {
                let ranges = self.ranges(&newest);
                (
                    "remove",
                    writer.stage(Op::Remove(&ranges)),
                    Some(Done::Remove(ranges)),
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
        let len = match self.rng.random_range(0..40) {
            0 => self.rng.random_range(3000..9000),
            1..=8 => self.rng.random_range(200..1200),
            _ => self.rng.random_range(0..60),
        };
        let byte = self.rng.random_range(0..255u8);
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
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
