//! The wire protocol over real sockets. The full grammar is checked against the reference by the parity scripts; here
//! stands what only a unit of our own can see: bounds, order, and what happens to others.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use windjet_server::Server;

const DEADLINE: Duration = Duration::from_secs(10);
const HELLO: &[u8] =
    b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nPING\r\n";

/// A bare client: bytes in, bytes out.
pub(crate) struct Raw {
    socket: TcpStream,
    seen: Vec<u8>,
}

impl Raw {
    /// Connects and reads INFO.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        // As every client library does: else the system holds small messages back until the last one is acknowledged.
        socket.set_nodelay(true).unwrap();
        let mut raw = Self {
            socket,
            seen: Vec::new(),
        };
        assert!(raw.line().await.starts_with("INFO {"));
        raw
    }

    /// Connects, says hello and waits for PONG.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let mut raw = Self::open(address).await;
        raw.send(HELLO).await;
        assert_eq!(raw.line().await, "PONG");
        raw
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        timeout(DEADLINE, self.socket.write_all(bytes))
            .await
            .unwrap()
            .unwrap();
    }

    /// The next line, without its end.
    pub(crate) async fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.seen.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.seen.drain(..at + 2).collect();
                return String::from_utf8(line[..at].to_vec()).unwrap();
            }
            assert!(
                self.read().await > 0,
                "the server closed after {:?}",
                String::from_utf8_lossy(&self.seen)
            );
        }
    }

    async fn read(&mut self) -> usize {
        timeout(DEADLINE, self.socket.read_buf(&mut self.seen))
            .await
            .unwrap()
            .unwrap_or(0)
    }

    /// Everything up to the end of the connection.
    pub(crate) async fn rest(&mut self) -> String {
        while self.read().await > 0 {}
        String::from_utf8_lossy(&std::mem::take(&mut self.seen)).into_owned()
    }
}

async fn listening() -> (Server, SocketAddr) {
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let address = server.client_addr().unwrap();
    (server, address)
}

/// Waits for a condition of the server.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + DEADLINE;
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_pong_follows_every_delivery_that_came_before_it() {
    let (_server, address) = listening().await;
    let mut client = Raw::connect(address).await;
    client
        .send(b"SUB a 1\r\nPUB a 1\r\nx\r\nPUB a 1\r\ny\r\nPING\r\n")
        .await;
    for expected in ["MSG a 1 1", "x", "MSG a 1 1", "y", "PONG"] {
        assert_eq!(client.line().await, expected);
    }
}

#[tokio::test]
async fn an_operation_may_arrive_byte_by_byte() {
    let (_server, address) = listening().await;
    let mut client = Raw::connect(address).await;
    for byte in b"SUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n" {
        client.send(&[*byte]).await;
    }
    for expected in ["MSG a 1 5", "hello", "PONG"] {
        assert_eq!(client.line().await, expected);
    }
}

#[tokio::test]
async fn a_large_payload_crosses_unchanged_to_many_receivers() {
    let (_server, address) = listening().await;
    let payload: Vec<u8> = (0..1_000_000_u32)
        .map(|n| b'a' + u8::try_from(n % 26).unwrap())
        .collect();
    let mut receivers = Vec::new();
    for _ in 0..3 {
        let mut receiver = Raw::connect(address).await;
        receiver.send(b"SUB big 1\r\nPING\r\n").await;
        assert_eq!(receiver.line().await, "PONG");
        receivers.push(receiver);
    }
    let mut sender = Raw::connect(address).await;
    sender.send(b"PUB big 1000000\r\n").await;
    sender.send(&payload).await;
    sender.send(b"\r\n").await;
    for receiver in &mut receivers {
        assert_eq!(receiver.line().await, "MSG big 1 1000000");
        assert_eq!(receiver.line().await.as_bytes(), payload);
    }
}

#[tokio::test]
async fn a_reader_that_stops_is_closed_and_costs_the_others_nothing() {
    let server = Server::builder()
        .listen_loopback()
        .max_pending(2 << 20)
        .start()
        .await
        .unwrap();
    let address = server.client_addr().unwrap();
    let mut stopped = Raw::connect(address).await;
    stopped.send(b"SUB flood 1\r\nPING\r\n").await;
    assert_eq!(stopped.line().await, "PONG");
    let mut healthy = Raw::connect(address).await;
    healthy.send(b"SUB flood 1\r\nPING\r\n").await;
    assert_eq!(healthy.line().await, "PONG");
    let mut sender = Raw::connect(address).await;
    let mut message = b"PUB flood 65536\r\n".to_vec();
    message.resize(message.len() + 65_536, b'x');
    message.extend_from_slice(b"\r\n");
    let mut sent = 0_u64;
    while server.counts().slow_consumers == 0 {
        sender.send(&message).await;
        sent += 1;
        assert_eq!(healthy.line().await, "MSG flood 1 65536");
        assert_eq!(healthy.line().await.len(), 65_536);
        assert!(sent < 10_000, "the stopped reader is never closed");
    }
    assert_eq!(server.counts().slow_consumers, 1);
    sender.send(b"PING\r\n").await;
    assert_eq!(sender.line().await, "PONG");
}

/// Replies had no bound of their own once: a client that provoked them and never read grew the server without end.
#[tokio::test]
async fn a_client_that_does_not_read_its_replies_is_closed() {
    let server = Server::builder()
        .listen_loopback()
        .max_pending(1 << 20)
        .start()
        .await
        .unwrap();
    let mut client = Raw::connect(server.client_addr().unwrap()).await;
    // Publishing to a reserved subject is refused by a line that repeats the subject.
    let refused = format!("PUB _GR_.{} 0\r\n\r\n", "x".repeat(3000)).repeat(20);
    let closed = async { while client.socket.write_all(refused.as_bytes()).await.is_ok() {} };
    timeout(DEADLINE, closed).await.unwrap();
    until("the close to be counted", || server.counts().slow_consumers == 1).await;
}

/// A publisher whose socket always has more to read once kept its task running for hundreds of milliseconds, since the
/// runtime looks at other sockets only between tasks. Server and client share one thread here, so that the messages
/// counted between PING and PONG are those of the turns in between, however slow the machine is.
#[tokio::test]
async fn a_publisher_that_never_pauses_does_not_hold_up_a_ping() {
    let (server, address) = listening().await;
    let mut client = Raw::connect(address).await;
    let mut flood = std::net::TcpStream::connect(address).unwrap();
    flood.write_all(HELLO).unwrap();
    let batch = b"PUB flood 2\r\nhi\r\n".repeat(8192);
    let flooding = std::thread::spawn(move || while flood.write_all(&batch).is_ok() {});
    until("the flood to begin", || server.counts().in_msgs > 500_000).await;
    for _ in 0..10 {
        let before = server.counts().in_msgs;
        client.send(b"PING\r\n").await;
        let mut answer = client.line().await;
        if answer == "PING" {
            // On a slow machine the server has begun to ask too.
            answer = client.line().await;
        }
        assert_eq!(answer, "PONG");
        let meanwhile = server.counts().in_msgs - before;
        assert!(meanwhile < 100_000, "{meanwhile} messages went before the PONG");
    }
    server.shutdown(DEADLINE).await;
    flooding.join().unwrap();
}

#[tokio::test]
async fn subjects_of_half_a_million_tokens_hurt_nobody() {
    let server = Server::builder()
        .listen_loopback()
        .configure(|options| options.max_control_line = 2 << 20)
        .start()
        .await
        .unwrap();
    let address = server.client_addr().unwrap();
    let deep = |tokens: usize| vec!["a"; tokens].join(".");
    let mut client = Raw::connect(address).await;
    // As deep as may be: subscribed, matched, and taken apart again.
    let most = deep(2_048);
    client
        .send(format!("SUB {most} 1\r\nPUB {most} 1\r\nx\r\nUNSUB 1\r\nPING\r\n").as_bytes())
        .await;
    assert_eq!(client.line().await, format!("MSG {most} 1 1"));
    assert_eq!(client.line().await, "x");
    assert_eq!(client.line().await, "PONG");
    let (too_deep, wide) = (deep(500_000), "SUB > 2\r\n");
    client
        .send(format!("SUB {too_deep} 1\r\n{wide}PUB {too_deep} 1\r\ny\r\nPING\r\n").as_bytes())
        .await;
    assert!(client.line().await.ends_with(", too many tokens'"));
    assert_eq!(client.line().await, format!("MSG {too_deep} 2 1"));
    assert_eq!(client.line().await, "y");
    assert_eq!(client.line().await, "PONG");
}

#[tokio::test]
async fn what_was_sent_before_the_end_of_input_is_answered() {
    let (server, address) = listening().await;
    let mut client = Raw::connect(address).await;
    client.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n").await;
    client.socket.shutdown().await.unwrap();
    assert_eq!(client.rest().await, "MSG a 1 2\r\nhi\r\nPONG\r\n");
    until("the connection to be forgotten", || server.connections() == 0).await;
}

#[tokio::test]
async fn an_in_process_client_and_a_socket_share_one_subject_space() {
    let (server, address) = listening().await;
    let inside = server.client();
    let mut subscription = inside.subscribe("from.outside").await.unwrap();
    let mut outside = Raw::connect(address).await;
    outside
        .send(b"SUB from.inside 7\r\nPUB from.outside 3\r\nout\r\nPING\r\n")
        .await;
    assert_eq!(outside.line().await, "PONG");
    assert_eq!(subscription.next().await.unwrap().payload, "out");
    inside.publish("from.inside", "in").await.unwrap();
    assert_eq!(outside.line().await, "MSG from.inside 7 2");
    assert_eq!(outside.line().await, "in");
}

#[tokio::test]
async fn shutdown_closes_every_client_and_the_port() {
    let (server, address) = listening().await;
    let mut client = Raw::connect(address).await;
    assert!(server.shutdown(DEADLINE).await.complete);
    assert_eq!(client.rest().await, "");
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_waits_for_all_receivers_together_stays_within_the_budget() {
    let server = Server::builder()
        .listen_loopback()
        .memory_budget(4 << 20)
        .start()
        .await
        .unwrap();
    let address = server.client_addr().unwrap();
    let mut stopped = Vec::new();
    for _ in 0..3 {
        let mut receiver = Raw::connect(address).await;
        receiver.send(b"SUB flood 1\r\nPING\r\n").await;
        assert_eq!(receiver.line().await, "PONG");
        stopped.push(receiver);
    }
    let mut sender = Raw::connect(address).await;
    let mut message = b"PUB flood 16384\r\n".to_vec();
    message.resize(message.len() + 16_384, b'x');
    message.extend_from_slice(b"\r\nPING\r\n");
    let mut sent = 0;
    while server.counts().slow_consumers < 3 {
        sender.send(&message).await;
        assert_eq!(sender.line().await, "PONG");
        // One message of each receiver may come on top before its connection is closed.
        let waiting = server.memory().waiting;
        assert!(waiting <= (4 << 20) + 3 * 20_000, "{waiting} bytes wait");
        sent += 1;
        assert!(sent < 20_000, "stopped readers are never closed");
    }
    until("the memory to be given back", || server.memory().waiting == 0).await;
}
