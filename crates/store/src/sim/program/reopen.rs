//! Crashes and openings: after each, every stream must be in a state that its history allows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rand::RngExt;

use super::{End, Open, Run, WINDOW};
use crate::clock::Clock;
use crate::disk::Survival;
use crate::error::OpenError;
use crate::sim::check::compare;
use crate::sim::model::{Life, State};
use crate::store::Store;
use crate::stream::writer::StreamWriter;

impl Run {
    /// Opens the store, dying on the way now and then, and checks everything in it.
    pub(super) fn open(&mut self, mut end: End) -> Result<Open, String> {
        loop {
            if end.is_some() && self.rng.random_bool(0.3) {
                self.disk.stop_after(self.rng.random_range(1..20));
            } else {
                self.disk.stop_after(u64::MAX >> 1);
            }
            let mut options = self.options.clone();
            // Another opening may have had a journal of twice the size, which this one brings down.
            if self.rng.random_bool(0.1) {
                options.journal_first *= 2;
                options.journal_file_max *= 2;
                options.journal_max *= 2;
            }
            match Store::open(options, Arc::new(self.disk.clone()), self.clock.clone()) {
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
    pub(super) fn crash(&mut self, action: &str) -> bool {
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
            2 | 3 if self.lazy => Survival::Files,
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
}
