//! Connects and drops at a rate, while two clients go on talking, and says what it cost them and the server.
//!
//! usage: `connect_drop [SECONDS] [PER_SECOND]`, 30 and 5,000 unless said otherwise. What the attackers leave behind differs:
//! nothing, a part of a `CONNECT`, garbage, an unread greeting; most drops are resets. Server, attackers and the two have threads
//! of their own. Before the attack that counts the two are timed alone, and a short attack fills what the server keeps of closed
//! connections.
//!
//! The end fails when the server saw less than the rate, a message of the two was lost or late, or memory, a task, a connection
//! or a file is left over.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that checks")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use windjet_server::Server;

const LANES: u64 = 8;
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest time that a message of the two may take.
const LATE: Duration = Duration::from_secs(2);
/// Time between two messages of the two.
const BEAT: Duration = Duration::from_millis(1);
/// The two alone, and the attack that fills what is kept of closed connections.
const BEFORE: Duration = Duration::from_secs(4);
/// What the process may have grown by over the attack: the allocator's slack.
const GROWTH: u64 = 4 << 20;
const HELLO: &[u8] = b"CONNECT {\"verbose\":false}\r\nPING\r\nSUB a 1\r\nPUB a 2\r\nhi\r\n";

async fn attack(address: SocketAddr, kind: u64) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let left = match kind % 4 {
        0 => &[][..],
        1 => &HELLO[..usize::try_from(kind / 4).unwrap() % HELLO.len()],
        2 => b"\x16\x03\x01 GET / HTTP/1.1\r\n",
        _ => HELLO,
    };
    // The server may be quicker to refuse than this is to write.
    let _ = socket.write_all(left).await;
    if !kind.is_multiple_of(16) {
        // A reset; it also leaves no port waiting, of which there are too few for all.
        socket.set_zero_linger().unwrap();
    }
}

async fn client(address: SocketAddr) -> BufReader<TcpStream> {
    let mut client = BufReader::new(TcpStream::connect(address).await.unwrap());
    let hello = b"CONNECT {\"verbose\":false}\r\nSUB pair 1\r\nPING\r\n";
    client.get_mut().write_all(hello).await.unwrap();
    let mut line = String::new();
    while line.trim() != "PONG" {
        line.clear();
        assert_ne!(client.read_line(&mut line).await.unwrap(), 0);
    }
    client
}

/// Reads a line and answers a `PING` in its place.
async fn next_line(reader: &mut BufReader<TcpStream>, line: &mut String) {
    loop {
        line.clear();
        let read = tokio::time::timeout(DEADLINE, reader.read_line(line));
        assert_ne!(read.await.unwrap().unwrap(), 0, "closed");
        if line.trim() != "PING" {
            return;
        }
        reader.get_mut().write_all(b"PONG\r\n").await.unwrap();
    }
}

/// Sends a message after the other from one client to another; answers how long each took, in order of length.
async fn talk(address: SocketAddr, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let (mut from, mut to) = (client(address).await, client(address).await);
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut times, mut line) = (Vec::new(), String::new());
    while !stop.load(Ordering::Relaxed) {
        beat.tick().await;
        let (begun, number) = (Instant::now(), times.len().to_string());
        let text = format!("PUB pair {}\r\n{number}\r\n", number.len());
        from.get_mut().write_all(text.as_bytes()).await.unwrap();
        for reader in [&mut from, &mut to] {
            for want in ["MSG pair 1 ", &number] {
                next_line(reader, &mut line).await;
                assert!(line.starts_with(want), "{line:?} instead of {want:?}");
            }
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times
}

/// The two for as long as `meanwhile` runs, on a thread of their own; says what they saw.
async fn beside<T>(what: &str, address: SocketAddr, meanwhile: impl Future<Output = T>) -> T {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let two = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(talk(address, stopped))
    });
    let done = meanwhile.await;
    stop.store(true, Ordering::Relaxed);
    let times = tokio::task::spawn_blocking(|| two.join().unwrap()).await.unwrap();
    let (p50, p99, longest) = (
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1],
    );
    println!(
        "{what}: {} messages of the two, p50 {p50:?}, p99 {p99:?}, longest {longest:?}",
        times.len()
    );
    assert!(longest < LATE, "a message took {longest:?}");
    done
}

/// Connects and drops at a rate for a time; answers how many connections the server counted in its weakest second, and a second
/// on average.
async fn storm(attackers: &Runtime, server: &Server, rate: f64, time: Duration) -> (u64, f64) {
    let address = server.client_addr().unwrap();
    let (begun, before) = (Instant::now(), server.counts().total_connections);
    let end = begun + time;
    let pause = Duration::from_secs(LANES).div_f64(rate);
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let run = async move {
            let mut due = begun + pause.mul_f64(lane as f64 / LANES as f64);
            let mut count = 0;
            while due < end {
                tokio::time::sleep_until(due.into()).await;
                attack(address, lane + count * LANES).await;
                count += 1;
                due += pause;
            }
        };
        lanes.spawn_on(run, attackers.handle());
    }
    let (mut weakest, mut counted, mut next) = (u64::MAX, before, begun);
    while next + Duration::from_secs(1) <= end {
        next += Duration::from_secs(1);
        tokio::time::sleep_until(next.into()).await;
        let now = server.counts().total_connections;
        weakest = weakest.min(now - counted);
        counted = now;
    }
    while let Some(done) = lanes.join_next().await {
        done.unwrap();
    }
    let average = (server.counts().total_connections - before) as f64 / begun.elapsed().as_secs_f64();
    (weakest, average)
}

/// Waits until no connection is left.
async fn empty(server: &Server) {
    let begun = Instant::now();
    while server.connections() > 0 {
        assert!(
            begun.elapsed() < DEADLINE,
            "{} connections are left",
            server.connections()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Open files of this process; `None` where the system does not show them.
fn open_files() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

/// Resident memory of this process; `None` where the system does not show it.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u32>().unwrap());
    let time = Duration::from_secs(arguments.next().unwrap_or(30).into());
    let rate = f64::from(arguments.next().unwrap_or(5_000));
    let attackers = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(&attackers, time, rate));
}

async fn run(attackers: &Runtime, time: Duration, rate: f64) {
    let files = open_files();
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let address = server.client_addr().unwrap();
    beside("alone", address, tokio::time::sleep(BEFORE)).await;
    // A little more than the rate, so that no second is below it by the rounding of timers.
    let aim = rate * 1.02;
    storm(attackers, &server, aim, BEFORE).await;
    empty(&server).await;
    let before = memory();
    let (weakest, average) = beside("attacked", address, storm(attackers, &server, aim, time)).await;
    empty(&server).await;
    let after = memory();
    println!(
        "the server counted {average:.0} connections a second over {time:?}, {weakest} in the weakest second; \
         resident KiB before and after: {:?} {:?}",
        before.map(|bytes| bytes >> 10),
        after.map(|bytes| bytes >> 10),
    );
    assert!(average >= rate, "the rate was not reached");
    assert!(
        after <= before.map(|bytes| bytes + GROWTH),
        "memory did not return"
    );
    assert!(server.shutdown(DEADLINE).await.complete, "the server did not end");
    drop(server);
    let metrics = tokio::runtime::Handle::current().metrics();
    let begun = Instant::now();
    while metrics.num_alive_tasks() > 0 {
        assert!(
            begun.elapsed() < DEADLINE,
            "{} tasks are left",
            metrics.num_alive_tasks()
        );
        tokio::task::yield_now().await;
    }
    assert!(
        open_files() <= files,
        "files stay open: {files:?} before, {:?} after",
        open_files()
    );
}
