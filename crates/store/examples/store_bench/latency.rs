//! Acknowledgements of a publisher that does not saturate the store, while the materialiser works and while it rests.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use windjet_store::{Append, Op, StageError, Store, StreamWriter};

use crate::{PAYLOAD, Result, bell, open, percentile, settle, stream};

/// A turn of the publisher, and how many messages it sends: 50,000 a second, five turns of the journal in about 65 s.
const TURN: Duration = Duration::from_millis(1);
const MESSAGES: usize = 50;

pub(crate) fn run(dir: &Path, time: Duration) -> Result<()> {
    let (store, _) = open(&dir.join("alone"))?;
    measure("alone", &store, time, &mut [])?;
    store.close()?;
    let (store, _) = open(&dir.join("beside"))?;
    let mut others = (0..10_000)
        .map(|i| stream(&store, &format!("O{i}")))
        .collect::<Result<Vec<_>>>()?;
    for w in &mut others {
        while w.commit()? == 0 {
            std::thread::yield_now();
        }
    }
    measure(
        "beside 10,000 streams that get one message each for each journal file",
        &store,
        time,
        &mut others,
    )?;
    drop(others);
    store.close()?;
    Ok(())
}

fn measure(what: &str, store: &Store, time: Duration, others: &mut [StreamWriter]) -> Result<()> {
    let mut w = stream(store, "S")?;
    let bell = bell(&w);
    let (mut turns, mut busy, mut resting) = (VecDeque::new(), Vec::new(), Vec::new());
    let before = store.metrics();
    let begun = Instant::now();
    let (mut next, mut refused, mut at) = (begun, 0u64, 0);
    // A journal file of 16 MiB lasts about 1.5 s: by then each of the others has its message.
    let share = others.len().div_ceil(1500);
    while begun.elapsed() < time {
        let now = Instant::now();
        if now >= next {
            next += TURN;
            for _ in 0..MESSAGES {
                match w.stage(Op::Append(Append {
                    subject: b"bench.latency",
                    payload: &PAYLOAD,
                    ..Append::default()
                })) {
                    Ok(_) => {}
                    Err(StageError::Busy) => refused += 1,
                    Err(e) => return Err(e.into()),
                }
            }
            w.submit();
            turns.push_back((w.staged_op(), now, store.metrics().materialising));
            for _ in 0..share {
                at = (at + 1) % others.len();
                let other = &mut others[at];
                other.commit()?;
                let _ = other.stage(Op::Append(Append {
                    subject: b"other",
                    payload: &PAYLOAD,
                    ..Append::default()
                }));
                other.submit();
            }
        }
        let _ = bell.recv_timeout(next.saturating_duration_since(Instant::now()));
        let op = w.commit()?;
        while let Some((_, sent, materialising)) = turns.pop_front_if(|t| t.0 <= op) {
            if materialising || store.metrics().materialising {
                busy.push(sent.elapsed());
            } else {
                resting.push(sent.elapsed());
            }
        }
    }
    settle(&mut w, &bell)?;
    for other in others {
        other.commit()?;
    }
    let m = store.metrics();
    let turns = (m.journal_written_bytes - before.journal_written_bytes) as f64 / (128u64 << 20) as f64;
    let (p99_busy, p99_resting) = (percentile(&mut busy, 0.99), percentile(&mut resting, 0.99));
    println!(
        "acknowledgement {what}: while materialising p50 {:?} p99 {p99_busy:?} ({} turns), outside p50 {:?} p99 {p99_resting:?} ({} turns); p99 x{:.2}; \
         {turns:.1} turns of the journal in {:?}; {refused} refused for a moment; longest sync {:?}",
        percentile(&mut busy, 0.5),
        busy.len(),
        percentile(&mut resting, 0.5),
        resting.len(),
        p99_busy.as_secs_f64() / p99_resting.as_secs_f64(),
        begun.elapsed(),
        m.sync_max
    );
    Ok(())
}
