//! Measures the store against a plain loop of write and sync, in alternating rounds of one run.
//!
//! `cargo run --release -p windjet-store --example store_bench -- DIR [SECONDS] [MESSAGES]`
//!
//! Prints, per round: durable pipelined appends of 128 B on one stream (1,000 subjects), the same bytes in the same batches
//! by a plain loop, their ratio, write amplification, and acknowledgement latency. Then: 1,000 streams with one message
//! in flight each against single syncs; removal in random order; opening after a clean end and after a kill; memory.

#![allow(clippy::print_stdout, reason = "a measuring program prints")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use windjet_store::{
    Append, Clock, Disk, Matcher, Op, RealDisk, SeqRange, StageError, Store, StoreOptions, StreamOptions,
    StreamWriter, SystemClock,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Bell(SyncSender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A bell that rings already needs no second ring.
        let _ = self.0.try_send(());
    }
}

fn bell(writer: &StreamWriter) -> Receiver<()> {
    let (tx, rx) = sync_channel(1);
    writer.set_waker(Waker::from(Arc::new(Bell(tx))));
    rx
}

fn open(dir: &Path) -> Result<(Store, Duration)> {
    let begun = Instant::now();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir)?);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let (mut store, report) = Store::open(options, disk, clock)?;
    let took = begun.elapsed();
    if !report.is_intact() {
        println!("recovery found {:?}", report.findings);
    }
    store.start()?;
    Ok((store, took))
}

fn percentile(mut samples: Vec<Duration>, p: f64) -> Duration {
    samples.sort_unstable();
    let at = ((samples.len() as f64 * p) as usize).min(samples.len().saturating_sub(1));
    samples.get(at).copied().unwrap_or_default()
}

/// Appends for a time, in turns of `batch`; answers messages and the time from submission to commit of each turn.
fn appends(
    w: &mut StreamWriter,
    time: Duration,
    most: u64,
    batch: u64,
) -> Result<(u64, Vec<Duration>, Duration)> {
    let bell = bell(w);
    let subjects: Vec<String> = (0..1000).map(|i| format!("bench.{i}")).collect();
    let payload = [7u8; 128];
    let (mut sent, mut turns, mut latencies) = (0, std::collections::VecDeque::new(), Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < time && sent < most {
        let mut busy = false;
        for _ in 0..batch {
            let subject = subjects[(sent % 1000) as usize].as_bytes();
            match w.stage(Op::Append(Append {
                subject,
                payload: &payload,
                ..Append::default()
            })) {
                Ok(_) => sent += 1,
                Err(StageError::Busy) => {
                    busy = true;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        w.submit();
        turns.push_back((w.staged_op(), Instant::now()));
        if busy {
            let _ = bell.recv_timeout(Duration::from_millis(10));
        }
        let op = w.commit()?;
        while let Some((_, at)) = turns.front().filter(|t| t.0 <= op) {
            latencies.push(at.elapsed());
            turns.pop_front();
        }
    }
    let last = w.staged_op();
    while w.commit()? < last {
        let _ = bell.recv_timeout(Duration::from_millis(100));
    }
    Ok((sent, latencies, begun.elapsed()))
}

/// Writes `bytes` in pieces of `batch` into a file of zeros of the journal's size, each synced.
fn plain(dir: &Path, bytes: u64, batch: u64) -> Result<Duration> {
    const SIZE: u64 = 128 << 20;
    let disk = RealDisk::new(dir)?;
    let file = disk.create("plain")?;
    let piece = vec![5u8; batch as usize];
    let mut at = 0;
    while at < SIZE {
        file.write_at(&vec![0; 1 << 20], at)?;
        at += 1 << 20;
    }
    file.sync()?;
    let begun = Instant::now();
    let (mut done, mut at) = (0, 0);
    while done < bytes {
        if at + batch > SIZE {
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

fn many_streams(dir: &Path, time: Duration) -> Result<()> {
    let (store, _) = open(&dir.join("many"))?;
    let names = (0..1000).map(|i| StreamOptions {
        name: format!("S{i}"),
        ..StreamOptions::default()
    });
    let mut writers = names
        .map(|o| store.create_stream(o))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let before = store.metrics().syncs;
    let begun = Instant::now();
    let mut sent = 0u64;
    while begun.elapsed() < time {
        for w in &mut writers {
            if w.commit()? == w.staged_op()
                && w.stage(Op::Append(Append {
                    subject: b"s",
                    payload: &[1; 128],
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
    let syncs = store.metrics().syncs - before;
    let single = {
        let took = plain(dir, 4096 * 500, 4096)?;
        500.0 / took.as_secs_f64()
    };
    println!(
        "1,000 streams, one message in flight each: {rate:.0}/s in {syncs} syncs; single syncs {single:.0}/s; x{:.0}",
        rate / single
    );
    drop(writers);
    store.close()?;
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = std::path::PathBuf::from(args.next().unwrap_or_else(|| "store-bench".into()));
    let seconds: u64 = args.next().map_or(Ok(10), |a| a.parse())?;
    let messages: u64 = args.next().map_or(Ok(2_000_000), |a| a.parse())?;
    for round in 1..=3 {
        let (store, _) = open(&dir.join(format!("round{round}")))?;
        let mut w = store.create_stream(StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        })?;
        let (sent, latencies, took) = appends(&mut w, Duration::from_secs(seconds), u64::MAX, 256)?;
        let m = store.metrics();
        let batch = (m.journal_written_bytes / m.syncs.max(1)).next_multiple_of(4096);
        let plain_took = plain(&dir, m.journal_written_bytes.min(2 << 30), batch)?;
        let rate = sent as f64 / took.as_secs_f64();
        let record = m.journal_written_bytes as f64 / sent as f64;
        let plain_rate = m.journal_written_bytes.min(2 << 30) as f64 / plain_took.as_secs_f64() / record;
        println!(
            "round {round}: {rate:.0} durable appends/s of 128 B; plain loop with batches of {} KiB {plain_rate:.0}/s; \
             ratio {:.2}; written {:.2} x records; journal turns {:.1}; ack p50 {:?} p99 {:?}; longest sync {:?}",
            batch >> 10,
            rate / plain_rate,
            (m.journal_written_bytes + m.segment_written_bytes) as f64 / m.journal_written_bytes as f64,
            m.journal_written_bytes as f64 / (128u64 << 20) as f64,
            percentile(latencies.clone(), 0.5),
            percentile(latencies, 0.99),
            m.sync_max,
        );
        drop(w);
        store.close()?;
        std::fs::remove_dir_all(dir.join(format!("round{round}")))?;
    }
    many_streams(&dir, Duration::from_secs(seconds))?;
    scale(&dir, messages)?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn scale(dir: &Path, messages: u64) -> Result<()> {
    let at = dir.join("scale");
    let (store, _) = open(&at)?;
    let mut w = store.create_stream(StreamOptions {
        name: "S".into(),
        ..StreamOptions::default()
    })?;
    let (sent, _, took) = appends(&mut w, Duration::from_secs(3600), messages, 256)?;
    let reader = w.reader();
    let memory = reader.index_memory();
    println!(
        "{sent} messages in {took:?}; index {:.2} B a message",
        memory as f64 / sent as f64
    );
    let one = Append {
        subject: b"rare.one",
        payload: b"x",
        ..Append::default()
    };
    w.stage(Op::Append(one))?;
    w.submit();
    drop(w);
    store.close()?;
    let (store, took) = open(&at)?;
    println!("open after a clean end: {took:?}");
    let reader = store.reader("S").ok_or("no stream")?;
    let begun = Instant::now();
    let found = reader.next_match(&mut Matcher::new(["rare.*"]), 1);
    println!("one match among {sent}: {found:?} in {:?}", begun.elapsed());
    let begun = Instant::now();
    let count = reader.count(&mut Matcher::new(["bench.*"]), sent / 2);
    println!(
        "count of 1,000 subjects from the middle: {count} in {:?}",
        begun.elapsed()
    );
    let mut w = store.writer("S").ok_or("no writer")?;
    let bell = bell(&w);
    let n = sent.min(2_000_000);
    let begun = Instant::now();
    for i in 0..n {
        // A full cycle in scattered order.
        let seq = 1 + (i * 7_368_787) % n;
        while w.stage(Op::Remove(&[SeqRange::one(seq)])) == Err(StageError::Busy) {
            w.submit();
            let _ = bell.recv_timeout(Duration::from_millis(10));
            w.commit()?;
        }
        if i % 256 == 0 {
            w.submit();
            w.commit()?;
        }
    }
    w.submit();
    while w.commit()? < w.staged_op() {
        let _ = bell.recv_timeout(Duration::from_millis(100));
    }
    println!(
        "{n} removals in scattered order: {:.0}/s",
        n as f64 / begun.elapsed().as_secs_f64()
    );
    let begun = Instant::now();
    let state = w.reader().state();
    println!(
        "state with {} interior deletes: {:?}",
        state.deleted,
        begun.elapsed()
    );
    appends(&mut w, Duration::from_secs(3600), 300_000, 256)?;
    drop(w);
    drop(store);
    let (store, took) = open(&at)?;
    println!("open after a kill: {took:?}");
    store.close()?;
    Ok(())
}
