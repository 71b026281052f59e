//! Rates: one stream and the plain loop, removals, many streams.

use std::path::Path;
use std::time::{Duration, Instant};

use windjet_store::{
    Append, ConsumerChange, Disk, Metrics, Op, RealDisk, SeqRange, StageError, StreamWriter,
};

use crate::{PAYLOAD, Result, appends, bell, open, percentile, settle, stream};

const JOURNAL: u64 = 128 << 20;

/// Writes `bytes` in pieces of `batch` into a file of zeros of the journal's size, each synced.
fn plain(dir: &Path, bytes: u64, batch: u64) -> Result<Duration> {
    let disk = RealDisk::new(dir)?;
    let file = disk.create("plain")?;
    let piece = vec![5u8; batch as usize];
    let mut at = 0;
    while at < JOURNAL {
        file.write_at(&vec![0; 1 << 20], at)?;
        at += 1 << 20;
    }
    file.sync()?;
    let begun = Instant::now();
    let (mut done, mut at) = (0, 0);
    while done < bytes {
        if at + batch > JOURNAL {
            at = 0;
        }
        file.write_at(&piece, at)?;
        file.sync()?;
        at += batch;
        done += batch;
    }
    let took = begun.elapsed();
    disk.remove("plain")?;
    Ok(took)
}

/// Messages of one round of [`one_stream`], which bounds the room it takes.
const ROUND: u64 = 8_000_000;

/// Rounds of appending and of removing all that was appended, until each has run for `time`.
pub(crate) fn one_stream(dir: &Path, time: Duration) -> Result<()> {
    let (store, _) = open(&dir.join("one"))?;
    let mut w = stream(&store, "S")?;
    w.stage(Op::ConsumerPut {
        name: "worker",
        config: b"",
    })?;
    let mut appending = Phase::default();
    // One by one, and as a consumer's records.
    let mut removing = [(1, Phase::default()), (64, Phase::default())];
    let mut latencies = Vec::new();
    let mut messages = 0;
    let mut which = 0;
    while appending.took < time || removing.iter().any(|(_, p)| p.took < time) {
        let before = store.metrics();
        let round = appends(&mut w, time, ROUND)?;
        appending.add(round.messages, round.took, before, store.metrics());
        latencies.extend(round.latencies);
        messages += round.messages;
        let before = store.metrics();
        let (at_once, phase) = &mut removing[which];
        let took = removals(&mut w, messages - round.messages, round.messages, *at_once)?;
        phase.add(round.messages, took, before, store.metrics());
        println!(
            "  round: {:.0}/s appended, {:.0}/s removed by {at_once}",
            round.messages as f64 / round.took.as_secs_f64(),
            round.messages as f64 / took.as_secs_f64()
        );
        which = 1 - which;
        if w.reader().state().messages > 0 {
            return Err("messages are left".into());
        }
    }
    let batch = (appending.journal / appending.syncs.max(1)).next_multiple_of(4096);
    let took = plain(dir, appending.journal, batch)?;
    let record = appending.journal as f64 / appending.messages as f64;
    let plain_rate = appending.messages as f64 / took.as_secs_f64();
    println!("appends of 128 B, durable, pipelined: {appending}");
    println!(
        "plain loop, the same {} MiB in batches of {} KiB: {plain_rate:.0}/s in {took:?}; ratio {:.2}",
        appending.journal >> 20,
        batch >> 10,
        appending.rate() / plain_rate
    );
    println!(
        "written while appending: {:.2} bytes for each byte of journal ({record:.0} B a message), {:.2} for each of payload",
        (appending.journal + appending.segments) as f64 / appending.journal as f64,
        (appending.journal + appending.segments) as f64 / (appending.messages * 128) as f64
    );
    println!(
        "acknowledgement, saturated: p50 {:?} p99 {:?}; longest sync {:?}",
        percentile(&mut latencies, 0.5),
        percentile(&mut latencies, 0.99),
        store.metrics().sync_max
    );
    for (at_once, phase) in &removing {
        println!(
            "removals in scattered order, {at_once} in one operation: {phase}; {:.2} of the append rate",
            phase.rate() / appending.rate()
        );
    }
    drop(w);
    store.close()?;
    Ok(())
}

/// Sums over rounds.
#[derive(Default)]
struct Phase {
    messages: u64,
    took: Duration,
    journal: u64,
    segments: u64,
    syncs: u64,
}

impl Phase {
    fn add(&mut self, messages: u64, took: Duration, before: Metrics, after: Metrics) {
        self.messages += messages;
        self.took += took;
        self.journal += after.journal_written_bytes - before.journal_written_bytes;
        self.segments += after.segment_written_bytes - before.segment_written_bytes;
        self.syncs += after.syncs - before.syncs;
    }

    fn rate(&self) -> f64 {
        self.messages as f64 / self.took.as_secs_f64()
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let turns = self.journal as f64 / JOURNAL as f64;
        write!(
            f,
            "{} in {:?}, {:.0}/s, {turns:.1} turns of the journal",
            self.messages,
            self.took,
            self.rate()
        )
    }
}

/// Removes the `n` messages behind `start` in scattered order, `at_once` in one operation: as many as a consumer's record has
/// acknowledgements, or one.
fn removals(w: &mut StreamWriter, start: u64, n: u64, at_once: usize) -> Result<Duration> {
    let bell = bell(w);
    // A prime, so that every sequence comes once.
    let stride = [7_368_787, 15_485_863]
        .into_iter()
        .find(|p| !n.is_multiple_of(*p))
        .unwrap_or(1);
    let begun = Instant::now();
    let mut ranges = Vec::new();
    let mut staged = 0;
    for i in 0..n {
        ranges.push(SeqRange::one(start + 1 + (i * stride) % n));
        if ranges.len() < at_once && i + 1 < n {
            continue;
        }
        loop {
            let result = if at_once == 1 {
                w.stage(Op::Remove(&ranges))
            } else {
                w.stage(Op::ConsumerChange {
                    name: "worker",
                    change: &ConsumerChange::default(),
                    remove: &ranges,
                })
            };
            match result {
                Ok(_) => break,
                Err(StageError::Busy) => {
                    w.submit();
                    let _ = bell.recv_timeout(Duration::from_millis(10));
                    w.commit()?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        staged += ranges.len();
        ranges.clear();
        if staged >= 256 {
            staged = 0;
            w.submit();
            w.commit()?;
        }
    }
    settle(w, &bell)?;
    Ok(begun.elapsed())
}

pub(crate) fn many_streams(dir: &Path, time: Duration) -> Result<()> {
    let single = || -> Result<f64> { Ok(3000.0 / plain(dir, 4096 * 3000, 4096)?.as_secs_f64()) };
    let before = single()?;
    let (store, _) = open(&dir.join("many"))?;
    let mut writers = (0..1000)
        .map(|i| stream(&store, &format!("S{i}")))
        .collect::<Result<Vec<_>>>()?;
    let syncs = store.metrics().syncs;
    let written = store.metrics().journal_written_bytes;
    let begun = Instant::now();
    let mut sent = 0u64;
    while begun.elapsed() < time {
        for w in &mut writers {
            if w.commit()? == w.staged_op()
                && w.stage(Op::Append(Append {
                    subject: b"s",
                    payload: &PAYLOAD,
                    ..Append::default()
                }))
                .is_ok()
            {
                w.submit();
                sent += 1;
            }
        }
    }
    let rate = sent as f64 / begun.elapsed().as_secs_f64();
    let m = store.metrics();
    let after = single()?;
    let single = (before + after) / 2.0;
    println!(
        "1,000 streams, one message in flight each: {sent} in {:?}, {rate:.0}/s in {} syncs, {:.1} turns of the journal",
        begun.elapsed(),
        m.syncs - syncs,
        (m.journal_written_bytes - written) as f64 / JOURNAL as f64
    );
    println!(
        "single syncs of 4 KiB: {before:.0}/s before, {after:.0}/s after; x{:.0}",
        rate / single
    );
    drop(writers);
    store.close()?;
    Ok(())
}
