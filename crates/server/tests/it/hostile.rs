//! Clients that mean harm or are broken, while a well-behaved pair goes on talking.
//!
//! Every test here has the same shape: the pair exchanges numbered messages one by one, others misbehave, and in the end no
//! message is lost or out of order, every other connection is closed, and the server still greets newcomers.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use windjet_server::Server;
use windjet_server::options::{ListenAddress, WebSocketOptions};

use crate::websocket::Ws;
use crate::wire::Raw;

const DEADLINE: Duration = Duration::from_secs(20);

const CONNECT: &[u8] = b"CONNECT {\"verbose\":false}\r\n";
/// A stream of operations that are all valid, to be spoiled.
const VALID: &[u8] = b"CONNECT {\"verbose\":true,\"pedantic\":true,\"headers\":true,\"no_responders\":true,\"name\":\"h\"}\r\n\
    PING\r\nSUB h.* q 1\r\nSUB h.> 2\r\nUNSUB 1 3\r\nPUB h.a 5\r\nhello\r\nPUB h.b r.x 0\r\n\r\n\
    HPUB h.c 22 27\r\nNATS/1.0\r\nName: x\r\n\r\n\r\nhello\r\nPONG\r\nUNSUB 2\r\nINFO {}\r\n+OK\r\nSUB h.a.b.c.d 3\r\n";

/// A generator of numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[3]).collect()
    }

    /// The valid stream, spoiled in one to four places.
    fn spoiled(&mut self) -> Vec<u8> {
        let mut stream = VALID.repeat(1 + self.below(3));
        for _ in 0..=self.below(4) {
            let at = self.below(stream.len());
            match self.below(5) {
                0 => stream[at] = self.next().to_le_bytes()[0],
                1 => stream.truncate(at + 1),
                2 => stream.insert(at, b"\r\n 9\x00\xff"[self.below(6)]),
                3 => drop(stream.drain(at..(at + 9).min(stream.len() - 1))),
                _ => {
                    let again = stream[at..(at + 40).min(stream.len())].to_vec();
                    stream.splice(at..at, again);
                }
            }
            if stream.is_empty() {
                return VALID.to_vec();
            }
        }
        stream
    }
}

/// Two clients that exchange numbered messages until they are told to stop.
struct Pair {
    stop: Arc<AtomicBool>,
    /// Messages that arrived.
    arrived: Arc<AtomicU32>,
    talk: JoinHandle<()>,
}

impl Pair {
    async fn start(address: SocketAddr) -> Self {
        let mut receiver = Raw::connect(address).await;
        receiver.send(b"SUB the.pair 7\r\nPING\r\n").await;
        assert_eq!(receiver.line().await, "PONG");
        let mut sender = Raw::connect(address).await;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let arrived = Arc::new(AtomicU32::new(0));
        let counter = arrived.clone();
        let talk = tokio::spawn(async move {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                count += 1;
                let message = format!("PUB the.pair 8\r\n{count:08}\r\n");
                sender.send(message.as_bytes()).await;
                let mut line = receiver.line().await;
                if line == "PING" {
                    receiver.send(b"PONG\r\n").await;
                    line = receiver.line().await;
                }
                assert_eq!(line, "MSG the.pair 7 8");
                assert_eq!(receiver.line().await, format!("{count:08}"));
                counter.store(count, Ordering::Relaxed);
            }
        });
        Self { stop, arrived, talk }
    }

    /// Ends the exchange: nothing was lost, all others are gone, and newcomers are welcome.
    async fn end(self, server: &Server) {
        let end = Instant::now() + DEADLINE;
        while server.connections() > 2 {
            assert!(
                Instant::now() < end,
                "{} connections are left",
                server.connections()
            );
            sleep(Duration::from_millis(2)).await;
        }
        // However short the attack was, the pair has to get on, and to get on after it.
        let goal = self.arrived.load(Ordering::Relaxed) + 50;
        while self.arrived.load(Ordering::Relaxed) < goal {
            assert!(!self.talk.is_finished(), "the pair has stopped");
            assert!(Instant::now() < end, "the pair does not get on");
            sleep(Duration::from_millis(2)).await;
        }
        self.stop.store(true, Ordering::Relaxed);
        timeout(DEADLINE, self.talk).await.unwrap().unwrap();
        Raw::connect(server.client_addr().unwrap()).await;
    }
}

async fn start() -> (Server, SocketAddr) {
    let mut websocket = WebSocketOptions::new(ListenAddress::loopback());
    websocket.no_tls = true;
    websocket.compression = true;
    websocket.handshake_timeout = Duration::from_secs(1);
    let server = Server::builder()
        .listen_loopback()
        .websocket(websocket)
        .start()
        .await
        .unwrap();
    let address = server.client_addr().unwrap();
    (server, address)
}

/// Sends bytes and the end, and reads what the server says until it closes too. A reset is as good.
async fn say(mut socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut heard = Vec::new();
    let talk = async {
        let _ = socket.write_all(bytes).await;
        let _ = socket.shutdown().await;
        let _ = socket.read_to_end(&mut heard).await;
    };
    timeout(DEADLINE, talk).await.unwrap();
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_and_spoiled_bytes_cost_others_nothing() {
    let (server, address) = start().await;
    let pair = Pair::start(address).await;
    let mut attackers = JoinSet::new();
    for attacker in 1..=8 {
        attackers.spawn(async move {
            let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ attacker);
            for round in 0..30 {
                let length = 1 + numbers.below(8 << 10);
                let bytes = match round % 3 {
                    0 => numbers.bytes(length),
                    1 => [CONNECT, &numbers.bytes(length)].concat(),
                    _ => numbers.spoiled(),
                };
                let heard = say(TcpStream::connect(address).await.unwrap(), &bytes).await;
                assert!(heard.is_empty() || heard.starts_with(b"INFO {"));
            }
        });
    }
    while let Some(attacker) = attackers.join_next().await {
        attacker.unwrap();
    }
    pair.end(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stop_half_way_hold_up_nobody() {
    let (server, address) = start().await;
    let pair = Pair::start(address).await;
    let web = server.websocket_addr().unwrap();
    let halves: [&[u8]; 6] = [
        b"",
        b"CONNECT {\"verb",
        b"CONNECT {}\r\nPUB x 1000000\r\nabc",
        b"CONNECT {\"headers\":true}\r\nHPUB x 12 1000000\r\nNATS/1.0\r\n",
        b"CONNECT {}\r\nSUB a",
        b"CONNECT {}\r\nPUB x 3\r\nabc\r",
    ];
    let mut held = Vec::new();
    for half in halves.iter().cycle().take(240) {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(half).await.unwrap();
        held.push(socket);
    }
    let mut upgrades = Vec::new();
    for _ in 0..60 {
        let mut socket = TcpStream::connect(web).await.unwrap();
        socket
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nUpg")
            .await
            .unwrap();
        upgrades.push(socket);
    }
    // Half an upgrade is given up after the handshake's time.
    for mut socket in upgrades {
        let mut heard = Vec::new();
        let read = timeout(DEADLINE, socket.read_to_end(&mut heard)).await.unwrap();
        assert!(read.is_err() || heard.is_empty());
    }
    let end = Instant::now() + DEADLINE;
    while server.connections() < 242 {
        assert!(Instant::now() < end, "only {} connections", server.connections());
        sleep(Duration::from_millis(2)).await;
    }
    drop(held);
    pair.end(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_and_dropping_leaves_nothing_behind() {
    let (server, address) = start().await;
    let pair = Pair::start(address).await;
    let end = Instant::now() + Duration::from_secs(2);
    let mut attackers = JoinSet::new();
    for attacker in 1..=4 {
        attackers.spawn(async move {
            let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ attacker);
            while Instant::now() < end {
                let mut socket = TcpStream::connect(address).await.unwrap();
                if numbers.below(2) == 0 {
                    // The greeting is not read, so that the drop is a reset.
                    let _ = socket.write_all(&VALID[..numbers.below(VALID.len())]).await;
                }
            }
        });
    }
    while let Some(attacker) = attackers.join_next().await {
        attacker.unwrap();
    }
    pair.end(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_garbage_and_bombs_are_refused() {
    let (server, address) = start().await;
    let pair = Pair::start(address).await;
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for round in 0..60 {
        if round % 4 == 0 {
            let length = 1 + numbers.below(12 << 10);
            let bytes = numbers.bytes(length);
            say(
                TcpStream::connect(server.websocket_addr().unwrap())
                    .await
                    .unwrap(),
                &bytes,
            )
            .await;
            continue;
        }
        let mut ws = Ws::open(&server, "Sec-WebSocket-Extensions: permessage-deflate\r\n").await;
        let length = 1 + numbers.below(4 << 10);
        let body = numbers.bytes(length);
        match round % 4 {
            1 => drop(say(ws.socket, &body).await),
            2 => {
                // Well framed, but neither deflate nor the protocol.
                ws.send(0xc2, &body).await;
                say(ws.socket, b"").await;
            }
            _ => {
                let first = numbers.next().to_le_bytes()[0];
                ws.send(first, &numbers.spoiled()).await;
                say(ws.socket, b"").await;
            }
        }
    }
    // More than eight times the largest payload, in a few kilobytes.
    let mut bomb = DeflateEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..12 {
        bomb.write_all(&vec![b'\n'; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    for _ in 0..8 {
        let mut ws = Ws::open(&server, "Sec-WebSocket-Extensions: permessage-deflate\r\n").await;
        ws.send(0xc2, &bomb).await;
        let heard = say(ws.socket, b"").await;
        let close = [&[0x03, 0xf1][..], b"message too big"].concat();
        assert!(heard.ends_with(&close), "{:?}", String::from_utf8_lossy(&heard));
    }
    pair.end(&server).await;
}
