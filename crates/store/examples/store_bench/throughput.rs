//! Rates: one stream and the plain loop, removals, many streams.

use std::path::Path;
use std::time::{Duration, Instant};

use windjet_store::{Append, Disk, Op, RealDisk, SeqRange, StageError};

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

pub(crate) fn one_stream(dir: &Path, time: Duration) -> Result<()> {
    let (store, _) = open(&dir.join("one"))?;
    let mut w = stream(&store, "S")?;
    let mut done = appends(&mut w, time, u64::MAX)?;
    let m = store.metrics();
    let rate = done.messages as f64 / done.took.as_secs_f64();
    let record = m.journal_written_bytes as f64 / done.messages as f64;
    let batch = (m.journal_written_bytes / m.syncs.max(1)).next_multiple_of(4096);
    let took = plain(dir, m.journal_written_bytes, batch)?;
    let plain_rate = m.journal_written_bytes as f64 / took.as_secs_f64() / record;
    println!(
        "appends of 128 B, durable, pipelined: {} in {:?}, {rate:.0}/s, {:.1} turns of the journal",
        done.messages,
        done.took,
        m.journal_written_bytes as f64 / JOURNAL as f64
    );
    println!(
        "plain loop, the same {} MiB in batches of {} KiB: {plain_rate:.0}/s; ratio {:.2}",
        m.journal_written_bytes >> 20,
        batch >> 10,
        rate / plain_rate
    );
    println!(
        "write amplification: {:.2} bytes of journal and segments for each byte of records ({:.0} B each), {:.2} for each of payload",
        (m.journal_written_bytes + m.segment_written_bytes) as f64 / m.journal_written_bytes as f64,
        record,
        (m.journal_written_bytes + m.segment_written_bytes) as f64 / (done.messages * 128) as f64
    );
    println!(
        "acknowledgement, saturated: p50 {:?} p99 {:?}; longest sync {:?}",
        percentile(&mut done.latencies, 0.5),
        percentile(&mut done.latencies, 0.99),
        m.sync_max
    );
    let removed = removals(&mut w, done.messages, &store)?;
    println!("removals at {:.2} of the append rate", removed / rate);
    drop(w);
    store.close()?;
    Ok(())
}

/// Removes all messages one by one, each its own operation, in scattered order.
fn removals(w: &mut windjet_store::StreamWriter, n: u64, store: &windjet_store::Store) -> Result<f64> {
    let bell = bell(w);
    let before = store.metrics().journal_written_bytes;
    // A prime, so that every sequence comes once.
    let stride = [7_368_787, 15_485_863]
        .into_iter()
        .find(|p| !n.is_multiple_of(*p))
        .unwrap_or(1);
    let begun = Instant::now();
    for i in 0..n {
        let seq = 1 + (i * stride) % n;
        loop {
            match w.stage(Op::Remove(&[SeqRange::one(seq)])) {
                Ok(_) => break,
                Err(StageError::Busy) => {
                    w.submit();
                    let _ = bell.recv_timeout(Duration::from_millis(10));
                    w.commit()?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        if i % 256 == 0 {
            w.submit();
            w.commit()?;
        }
    }
    settle(w, &bell)?;
    let (took, turns) = (
        begun.elapsed(),
        (store.metrics().journal_written_bytes - before) as f64 / JOURNAL as f64,
    );
    let rate = n as f64 / took.as_secs_f64();
    println!("removals in scattered order: {n} in {took:?}, {rate:.0}/s, {turns:.1} turns of the journal");
    println!("left: {:?}", w.reader().state());
    Ok(rate)
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
