//! A large stream: opening, looking up with nothing cached, purging, counting, memory.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windjet_store::{Append, Found, Matcher, Op, Purge};

use crate::{Result, appends, bell, open, settle, stream};

/// Fills a store, says so, and waits to be killed.
pub(crate) fn fill(dir: &Path, messages: u64) -> Result<()> {
    let (store, _) = open(dir)?;
    let mut w = match store.writer("S") {
        Some(w) => w,
        None => stream(&store, "S")?,
    };
    let done = appends(&mut w, Duration::from_secs(3600), messages)?;
    println!("filled in {:?}", done.took);
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// Opens and closes a store.
pub(crate) fn open_again(dir: &Path, times: u64) -> Result<()> {
    for _ in 0..times {
        let (store, took) = open(dir)?;
        println!("{took:?}");
        store.close()?;
    }
    Ok(())
}

/// Has a process of its own append and kills it.
fn fill_and_kill(dir: &Path, messages: u64) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(dir)
        .args(["fill", &messages.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().ok_or("no output")?;
    let line = BufReader::new(out)
        .lines()
        .next()
        .ok_or("the filling process ended")??;
    child.kill()?;
    child.wait()?;
    println!("{messages} messages {line}");
    Ok(())
}

/// Has the kernel forget what it keeps of files. True when it did.
fn drop_page_cache() -> bool {
    let synced = Command::new("sync").status().is_ok_and(|s| s.success());
    synced && std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

pub(crate) fn run(dir: &Path, messages: u64) -> Result<()> {
    let at = dir.join("scale");
    std::fs::create_dir_all(&at)?;
    fill_and_kill(&at, messages)?;
    let (store, took) = open(&at)?;
    println!("open {messages} messages after a kill -9: {took:?}");
    let mut w = store.writer("S").ok_or("no stream")?;
    let bell_of = bell(&w);
    println!(
        "index in memory: {:.2} B a message",
        w.reader().index_memory() as f64 / messages as f64
    );
    let one = Append {
        subject: b"rare.one",
        payload: b"x",
        ..Append::default()
    };
    w.stage(Op::Append(one))?;
    settle(&mut w, &bell_of)?;
    drop(w);
    store.close()?;
    for _ in 0..3 {
        let (store, took) = open(&at)?;
        println!("open after a clean stop: {took:?}");
        store.close()?;
    }
    let dropped = drop_page_cache();
    let (store, took) = open(&at)?;
    println!("open after a clean stop, page cache dropped ({dropped}): {took:?}");
    let dropped = drop_page_cache();
    let reader = store.reader("S").ok_or("no stream")?;
    let begun = Instant::now();
    let seq = reader
        .next_match(&mut Matcher::new(["rare.*"]), 1)
        .ok_or("no match")?;
    let looked = begun.elapsed();
    let message = match reader.read(seq) {
        Found::NeedsDisk(ticket) => ticket.read()?,
        Found::InMemory(message) => Some(message),
        Found::Absent => None,
    };
    println!(
        "one match among {messages}, page cache dropped ({dropped}): {seq} found in {looked:?}, read ({}) in {:?}",
        message.is_some(),
        begun.elapsed()
    );
    let begun = Instant::now();
    let count = reader.count(&mut Matcher::new(["bench.1.*"]), messages / 2);
    println!(
        "count of 500 subjects from the middle: {count} in {:?}",
        begun.elapsed()
    );
    purge(&store, messages)?;
    store.close()?;
    let (store, took) = open(&at)?;
    println!("open after a clean stop, half of the messages deleted: {took:?}");
    let left = store.reader("S").ok_or("no stream")?.state();
    println!("left: {left:?}");
    store.close()?;
    fill_and_kill(&at, 300_000)?;
    let (store, took) = open(&at)?;
    println!("open after a kill -9, half of the messages deleted: {took:?}");
    store.close()?;
    Ok(())
}

/// Removes every second message by filter, with a reader beside it.
fn purge(store: &windjet_store::Store, messages: u64) -> Result<()> {
    let mut w = store.writer("S").ok_or("no stream")?;
    let bell = bell(&w);
    let reader = w.reader();
    let memory = reader.index_memory();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let beside = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::hint::black_box(reader.state());
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        let begun = Instant::now();
        let filter = b"bench.1.*";
        let op = w.stage(Op::Purge(Purge {
            filter,
            below: messages + 1,
        }))?;
        w.submit();
        let (mut turns, mut longest) = (0, Duration::ZERO);
        loop {
            let turn = Instant::now();
            let committed = w.commit()?;
            longest = longest.max(turn.elapsed());
            turns += 1;
            if committed >= op.op {
                break;
            }
            let _ = bell.recv_timeout(Duration::from_millis(100));
        }
        let took = begun.elapsed();
        done.store(true, Ordering::Relaxed);
        let waited = beside.join().map_err(|_| "the reader failed")?;
        println!(
            "purge by filter of half of them: {took:?} in {turns} turns, the longest {longest:?}; a reader beside it waited at most {waited:?}"
        );
        Ok(())
    })?;
    let begun = Instant::now();
    let state = reader.state();
    let took = begun.elapsed();
    let more = reader.index_memory().saturating_sub(memory);
    println!(
        "state with {} interior deletes: {took:?}; {:.3} bits of memory a delete more than before",
        state.deleted,
        more as f64 * 8.0 / state.deleted.max(1) as f64
    );
    Ok(())
}
