//! Clients over WebSocket, driven by hand-made frames.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use windjet_server::Server;
use windjet_server::options::{ListenAddress, WebSocketOptions};

const DEADLINE: Duration = Duration::from_secs(10);
const MASK: [u8; 4] = [1, 2, 3, 4];

/// A WebSocket client that makes its frames by hand.
pub(crate) struct Ws {
    pub(crate) socket: TcpStream,
    response: String,
}

/// One frame from the server.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    first: u8,
    payload: Vec<u8>,
}

impl Ws {
    /// Upgrades, with these lines beside the usual ones.
    pub(crate) async fn open(server: &Server, extra: &str) -> Self {
        let mut socket = TcpStream::connect(server.websocket_addr().unwrap())
            .await
            .unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{extra}\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            response.push(timeout(DEADLINE, socket.read_u8()).await.unwrap().unwrap());
        }
        Self {
            socket,
            response: String::from_utf8(response).unwrap(),
        }
    }

    /// Sends one frame; `first` is its first byte.
    pub(crate) async fn send(&mut self, first: u8, payload: &[u8]) {
        let mut frame = vec![first];
        match u16::try_from(payload.len()) {
            Ok(short) if short < 126 => frame.push(0x80 | u8::try_from(short).unwrap()),
            Ok(medium) => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&medium.to_be_bytes());
            }
            Err(_) => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&MASK);
        frame.extend(payload.iter().enumerate().map(|(n, byte)| byte ^ MASK[n & 3]));
        self.socket.write_all(&frame).await.unwrap();
    }

    async fn frame(&mut self) -> Frame {
        timeout(DEADLINE, async {
            let first = self.socket.read_u8().await.unwrap();
            let length = match self.socket.read_u8().await.unwrap() {
                126 => u64::from(self.socket.read_u16().await.unwrap()),
                127 => self.socket.read_u64().await.unwrap(),
                short => u64::from(short),
            };
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.socket.read_exact(&mut payload).await.unwrap();
            Frame { first, payload }
        })
        .await
        .unwrap()
    }

    /// Data frames until they contain `end`, put together.
    async fn until(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.contains(end) {
            let frame = self.frame().await;
            assert!(frame.first & 0x0f <= 2, "{frame:?}");
            text.push_str(&String::from_utf8(frame.payload).unwrap());
        }
        text
    }

    async fn hello(&mut self) {
        self.send(0x82, b"CONNECT {\"verbose\":false}\r\nPING\r\n").await;
        self.until("PONG\r\n").await;
    }
}

async fn server(change: impl FnOnce(&mut WebSocketOptions)) -> Server {
    let mut websocket = WebSocketOptions::new(ListenAddress::loopback());
    websocket.no_tls = true;
    change(&mut websocket);
    Server::builder().websocket(websocket).start().await.unwrap()
}

#[tokio::test]
async fn a_client_publishes_and_receives_in_frames() {
    let server = server(|_| {}).await;
    let mut ws = Ws::open(&server, "").await;
    assert!(
        ws.response
            .starts_with("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n")
    );
    let info = ws.frame().await;
    assert_eq!(info.first, 0x82);
    assert!(info.payload.starts_with(b"INFO {"));
    ws.hello().await;
    // One operation over three frames of one message, with a PING between them.
    ws.send(0x02, b"SUB a 1\r\nPUB ").await;
    ws.send(0x89, b"are you there").await;
    let pong = Frame {
        first: 0x8a,
        payload: b"are you there".to_vec(),
    };
    assert_eq!(ws.frame().await, pong);
    ws.send(0x00, b"a 5\r\nhel").await;
    ws.send(0x80, b"lo\r\n").await;
    assert_eq!(ws.until("hello\r\n").await, "MSG a 1 5\r\nhello\r\n");
}

#[tokio::test]
async fn an_unmasked_frame_is_refused_unless_agreed() {
    let server = server(|_| {}).await;
    let mut ws = Ws::open(&server, "").await;
    ws.until("INFO").await;
    ws.socket.write_all(b"\x82\x06PING\r\n").await.unwrap();
    let close = ws.frame().await;
    assert_eq!(
        (close.first, &close.payload[..2], &close.payload[2..]),
        (0x88, &[3, 0xea][..], &b"mask bit missing"[..])
    );
    let mut ws = Ws::open(&server, "Nats-No-Masking: true\r\n").await;
    assert!(ws.response.contains("Nats-No-Masking: true\r\n"));
    ws.until("INFO").await;
    ws.socket.write_all(b"\x82\x06PING\r\n").await.unwrap();
    ws.until("PONG\r\n").await;
}

#[tokio::test]
async fn a_close_frame_is_echoed_with_its_code() {
    let server = server(|_| {}).await;
    let mut ws = Ws::open(&server, "").await;
    ws.until("INFO").await;
    ws.send(0x88, &[0x0f, 0xa0]).await;
    assert_eq!(
        ws.frame().await,
        Frame {
            first: 0x88,
            payload: vec![0x0f, 0xa0]
        }
    );
}

#[tokio::test]
async fn an_error_line_precedes_the_close_frame() {
    let server = server(|_| {}).await;
    let mut ws = Ws::open(&server, "").await;
    ws.until("INFO").await;
    ws.hello().await;
    ws.send(0x82, b"PUB a 99999999\r\n").await;
    assert_eq!(ws.until("\r\n").await, "-ERR 'Maximum Payload Violation'\r\n");
    let close = ws.frame().await;
    assert_eq!(
        (close.first, &close.payload[..2]),
        (0x88, &1009_u16.to_be_bytes()[..])
    );
}

#[tokio::test]
async fn large_messages_are_compressed_where_agreed() {
    let server = server(|websocket| websocket.compression = true).await;
    let mut ws = Ws::open(&server, "Sec-WebSocket-Extensions: permessage-deflate\r\n").await;
    assert!(
        ws.response
            .contains("permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n")
    );
    let info = ws.frame().await;
    assert_eq!(info.first, 0xc2, "INFO is large enough to be compressed");
    ws.send(0x82, b"CONNECT {\"verbose\":false}\r\nPING\r\n").await;
    let pong = ws.frame().await;
    assert_eq!(
        (pong.first, &pong.payload[..]),
        (0x82, &b"PONG\r\n"[..]),
        "a small one is not"
    );
}

#[tokio::test]
async fn a_browser_gets_small_frames() {
    let server = server(|_| {}).await;
    let mut ws = Ws::open(&server, "User-Agent: Mozilla/5.0\r\n").await;
    ws.until("INFO").await;
    ws.hello().await;
    let payload = "x".repeat(10_000);
    ws.send(
        0x82,
        format!("SUB a 1\r\nPUB a 10000\r\n{payload}\r\n").as_bytes(),
    )
    .await;
    let first = ws.frame().await;
    assert_eq!((first.first, first.payload.len()), (0x82, 4096));
    let second = ws.frame().await;
    assert_eq!((second.first, second.payload.len()), (0x82, 4096));
    assert_eq!(ws.frame().await.first, 0x82);
}

#[tokio::test]
async fn refused_upgrades_have_a_status() {
    let server = server(|_| {}).await;
    let mut socket = TcpStream::connect(server.websocket_addr().unwrap())
        .await
        .unwrap();
    socket
        .write_all(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut response = String::new();
    timeout(DEADLINE, socket.read_to_string(&mut response))
        .await
        .unwrap()
        .unwrap();
    assert!(
        response.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
        "{response}"
    );
    assert!(response.ends_with("\r\n\r\nMethod Not Allowed\n"), "{response}");
}
