//! The process, and a client of its HTTP side.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use windjet_testkit::deadline::until_some;
use windjet_testkit::process::{Process, Signal};

/// Long enough for anything that should happen; only a failing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A running service.
pub(crate) struct Service {
    pub process: Process,
    pub addr: SocketAddr,
}

/// Starts the program without waiting for anything.
pub(crate) fn spawn(data: &Path, args: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ingest"));
    command.env("INGEST_LOG", "warn").env("RUST_BACKTRACE", "0");
    command
        .args(["--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .args(args);
    Process::spawn(command).unwrap()
}

/// Where a started program listens, once it does.
pub(crate) fn ready(process: &mut Process) -> SocketAddr {
    let line = process.wait_for_line("the line `ready`", PATIENCE, |line| {
        line.text.strip_prefix("ready http://").map(str::to_owned)
    });
    line.unwrap().parse().unwrap()
}

impl Service {
    pub(crate) fn start(data: &Path, args: &[&str]) -> Self {
        let mut process = spawn(data, args);
        let addr = ready(&mut process);
        Self { process, addr }
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = ask(self.addr, "GET", path, &[], b"").unwrap();
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.json());
        answer.json()
    }

    /// Sends a row of `acme`.
    pub(crate) fn send(&self, table: &str, key: &str, row: &str) -> Answer {
        let path = format!("/v1/tenants/acme/tables/{table}/rows");
        ask(
            self.addr,
            "POST",
            &path,
            &[("Idempotency-Key", key)],
            row.as_bytes(),
        )
        .unwrap()
    }

    /// The keys of `acme`'s rows in a table, in order.
    pub(crate) fn keys(&self, table: &str) -> Vec<String> {
        rows(self.addr, "acme", table)
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    }

    pub(crate) fn dead_letters(&self) -> Vec<Value> {
        let list = self.get("/v1/tenants/acme/dead-letters");
        list["dead_letters"].as_array().unwrap().clone()
    }

    /// Ends it as an operator does.
    pub(crate) fn stop(mut self) {
        self.process.signal(Signal::Term).unwrap();
        assert!(self.process.wait_exit(PATIENCE).unwrap().success());
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends a request and reads the answer whole; anything less is an error.
pub(crate) fn ask(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = open(addr, method, path, headers, body.len())?;
    stream.write_all(body)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let broken = || std::io::Error::other("half an answer");
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or_else(broken)?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(broken)?;
    let body = bytes[end + 4..].to_vec();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    if length.is_some_and(|length| length.parse() != Ok(body.len())) {
        return Err(broken());
    }
    Ok(Answer { status, head, body })
}

/// Sends the head of a request that has a body of `length` bytes.
pub(crate) fn open(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    length: usize,
) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n"
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    Ok(stream)
}

/// Every row of a table, in order: its key and the row.
pub(crate) fn rows(addr: SocketAddr, tenant: &str, table: &str) -> Vec<(String, Value)> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("/v1/tenants/{tenant}/tables/{table}/rows?after={after}&limit=1000");
        let answer = ask(addr, "GET", &path, &[], b"").unwrap();
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.json());
        let piece = answer.json()["rows"].as_array().unwrap().clone();
        let Some(last) = piece.last() else { return all };
        after = last["seq"].as_i64().unwrap();
        all.extend(
            piece
                .iter()
                .map(|row| (row["id"].as_str().unwrap().to_owned(), row["row"].clone())),
        );
    }
}

/// A listener to events.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// Listens to a table of `acme`; what is accepted from now on is heard.
    pub(crate) fn listen(addr: SocketAddr, table: &str, last: Option<&str>) -> Self {
        let path = format!("/v1/tenants/acme/tables/{table}/events");
        let last: Vec<_> = last.iter().map(|id| ("Last-Event-ID", *id)).collect();
        let mut reader = BufReader::new(open(addr, "GET", &path, &last, 0).unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        Self(reader)
    }

    /// The id and the row of the next one.
    pub(crate) fn next(&mut self) -> (String, Value) {
        let (mut id, mut data) = (None, None);
        while id.is_none() || data.is_none() {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the events ended");
            if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.trim_end().to_owned());
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str(text).unwrap());
            }
        }
        (id.unwrap(), data.unwrap())
    }
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Waits for a condition.
pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, PATIENCE, || condition().then_some(())).unwrap();
}
