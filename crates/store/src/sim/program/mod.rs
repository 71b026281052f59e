//! Random programs and their crashes: the run, its lives, and what each step does.

mod reopen;
mod stage;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::check::compare;
use super::model::{Done, Life};
use crate::clock::SimClock;
use crate::disk::SimDisk;
use crate::options::{Compression, Durability, StoreOptions, StreamOptions};
use crate::store::Store;
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
    /// All streams are weak, syncs are rare, and a power cut may leave one file without another: what relies on a sync that
    /// nobody waits for shows here. Of one seed in five.
    pub lazy: bool,
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
            turn: 4,
            record_max: 16 << 10,
            ballast: false,
            ..StoreOptions::default()
        };
        Self {
            seed,
            crashes: 20,
            options,
            lazy: seed % 5 == 4,
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
    lazy: bool,
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
        lazy: plan.lazy,
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
                if !self.lazy || self.rng.random_bool(0.1) {
                    let _ = open.store.sync_step();
                }
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
        let weak = name == "S3" || self.lazy;
        let config = format!("c{}", self.rng.random_range(0..100));
        let options = StreamOptions {
            name: name.clone(),
            durability: if weak {
                Durability::Interval(Duration::from_millis(300))
            } else {
                Durability::Sync
            },
            compression: if name == "S1" {
                Compression::Snappy
            } else {
                Compression::None
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
                    for mark in std::mem::take(&mut life.erased) {
                        if let Some(file) = self.disk.holds(&mark) {
                            return Err(format!("{}: an erased message is still in {file}", life.name));
                        }
                    }
                    let committed = life.state_at(writer.applied_op());
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
}
