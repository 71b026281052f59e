//! Measures the store. `scripts/bench-store` runs all of it.
//!
//! `cargo run --release -p windjet-store --example store_bench -- DIR MODE [NUMBER]`
//!
//! | mode | number | what |
//! |---|---|---|
//! | `throughput` | seconds, 60 | durable pipelined appends of 128 B and removals in scattered order, in rounds; a plain loop of write and sync with the same batches |
//! | `streams` | seconds, 60 | 1,000 streams with one message in flight each, against single syncs |
//! | `latency` | seconds, 70 | acknowledgements while the materialiser works and while it does not, alone and beside 10,000 streams |
//! | `scale` | messages, 10,000,000 | opening, clean and killed, cold lookup, purge by filter, state with interior deletes, memory |
//! | `open` | times, 10 | opening and closing the store in DIR, which is kept; for a profiler |
//!
//! DIR is made, used and removed.

#![allow(clippy::print_stdout, reason = "a measuring program prints")]

mod latency;
mod scale;
mod throughput;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use windjet_store::{
    Append, Clock, Disk, Op, RealDisk, StageError, Store, StoreOptions, StreamOptions, StreamWriter,
    SystemClock,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PAYLOAD: [u8; 128] = [7; 128];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(dir), Some(mode)) = (args.next(), args.next()) else {
        return Err("usage: store_bench DIR throughput|streams|latency|scale [NUMBER]".into());
    };
    let dir = std::path::PathBuf::from(dir);
    let number: Option<u64> = args.next().map(|a| a.parse()).transpose()?;
    match mode.as_str() {
        "throughput" => throughput::one_stream(&dir, Duration::from_secs(number.unwrap_or(60)))?,
        "streams" => throughput::many_streams(&dir, Duration::from_secs(number.unwrap_or(60)))?,
        "latency" => latency::run(&dir, Duration::from_secs(number.unwrap_or(70)))?,
        "scale" => scale::run(&dir, number.unwrap_or(10_000_000))?,
        "open" => return scale::open_again(&dir, number.unwrap_or(10)),
        // What `scale` starts and kills.
        "fill" => return scale::fill(&dir, number.unwrap_or(0)),
        other => return Err(format!("unknown mode {other}").into()),
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

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

/// Opens the store and starts its threads; answers how long the opening alone took.
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

fn stream(store: &Store, name: &str) -> Result<StreamWriter> {
    Ok(store.create_stream(StreamOptions {
        name: name.into(),
        ..StreamOptions::default()
    })?)
}

fn percentile(samples: &mut [Duration], p: f64) -> Duration {
    samples.sort_unstable();
    let at = ((samples.len() as f64 * p) as usize).min(samples.len().saturating_sub(1));
    samples.get(at).copied().unwrap_or_default()
}

/// Commits until everything staged is.
fn settle(w: &mut StreamWriter, bell: &Receiver<()>) -> Result<()> {
    w.submit();
    while w.commit()? < w.staged_op() {
        let _ = bell.recv_timeout(Duration::from_millis(100));
    }
    Ok(())
}

/// What [`appends`] did.
struct Appended {
    messages: u64,
    took: Duration,
    /// From submission to commit, for each turn.
    latencies: Vec<Duration>,
}

/// Appends for a time or up to a number, in turns of 256, to 1,000 subjects of two kinds.
fn appends(w: &mut StreamWriter, time: Duration, most: u64) -> Result<Appended> {
    let bell = bell(w);
    let subjects: Vec<String> = (0..1000).map(|i| format!("bench.{}.{i}", i % 2)).collect();
    let (mut messages, mut turns, mut latencies) = (0, std::collections::VecDeque::new(), Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < time && messages < most {
        let mut busy = false;
        for _ in 0..256 {
            let subject = subjects[(messages % 1000) as usize].as_bytes();
            match w.stage(Op::Append(Append {
                subject,
                payload: &PAYLOAD,
                ..Append::default()
            })) {
                Ok(_) => messages += 1,
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
        while let Some((_, at)) = turns.pop_front_if(|t| t.0 <= op) {
            latencies.push(at.elapsed());
        }
    }
    settle(w, &bell)?;
    Ok(Appended {
        messages,
        took: begun.elapsed(),
        latencies,
    })
}
