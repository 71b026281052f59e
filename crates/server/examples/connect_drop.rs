//! Connects and drops at a rate, while two clients go on talking, and says what it cost them.
//!
//! usage: `connect_drop [SECONDS] [PER_SECOND]`, 30 and 5,000 unless said otherwise. What the attackers leave behind differs:
//! nothing, a part of a `CONNECT`, garbage, an unread greeting; most drops are resets. The end fails when the rate was not
//! reached, a message of the two was lost or late, or a task or a file is left over.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that checks")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use windjet_server::Server;

const LANES: u64 = 8;
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest time that a message of the two may take.
const LATE: Duration = Duration::from_secs(2);
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

/// Connects at a rate of its own until the end; answers how often.
async fn lane(address: SocketAddr, lane: u64, pause: Duration, end: Instant) -> u64 {
    let mut due = Instant::now() + pause.mul_f64(lane as f64 / LANES as f64);
    let mut count = 0;
    while due < end {
        tokio::time::sleep_until(due.into()).await;
        attack(address, lane + count * LANES).await;
        count += 1;
        due += pause;
    }
    count
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

/// Sends a message after the other from one client to another; answers how many, and the longest time of one.
async fn talk(address: SocketAddr, stop: Arc<AtomicBool>) -> (u64, Duration) {
    let (mut from, mut to) = (client(address).await, client(address).await);
    let (mut count, mut longest, mut line) = (0_u64, Duration::ZERO, String::new());
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let text = format!("PUB pair {}\r\n{count}\r\n", count.to_string().len());
        from.get_mut().write_all(text.as_bytes()).await.unwrap();
        for reader in [&mut from, &mut to] {
            for want in ["MSG pair 1 ", &count.to_string()] {
                next_line(reader, &mut line).await;
                assert!(line.starts_with(want), "{line:?} instead of {want:?}");
            }
        }
        longest = longest.max(begun.elapsed());
        count += 1;
    }
    (count, longest)
}

/// Open files of this process; `None` where the system does not show them.
fn open_files() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let seconds = arguments.next().unwrap_or(30);
    let rate = arguments.next().unwrap_or(5_000);
    let before = open_files();
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let address = server.client_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let talking = tokio::spawn(talk(address, stop.clone()));
    let attacked = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    let pause = Duration::from_secs(LANES).div_f64(rate as f64);
    let mut lanes = JoinSet::new();
    let begun = Instant::now();
    for number in 0..LANES {
        let attacked = attacked.clone();
        lanes.spawn(async move {
            attacked.fetch_add(lane(address, number, pause, end).await, Ordering::Relaxed);
        });
    }
    while let Some(done) = lanes.join_next().await {
        done.unwrap();
    }
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (messages, longest) = talking.await.unwrap();
    let attacked = attacked.load(Ordering::Relaxed);
    let reached = attacked as f64 / took.as_secs_f64();
    println!(
        "{attacked} connections in {took:?}, {reached:.0} a second; {messages} messages beside them, the slowest took {longest:?}"
    );
    assert!(reached > rate as f64 * 0.9, "the rate was not reached");
    assert!(longest < LATE, "a message took {longest:?}");
    assert!(server.shutdown(DEADLINE).await.complete, "the server did not end");
    drop(server);
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::timeout(DEADLINE, async {
        while metrics.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert!(
        open_files() <= before,
        "files stay open: {before:?} before, {:?} after",
        open_files()
    );
}
