//! Connections for JetStream: what comes in differs from message to message, so it is parsed.
//!
//! [`Inflow`] cuts the bytes of a server into messages; [`Admin`] blocks and makes one API request after the other, outside
//! of what is measured; [`Peer`] never blocks and is driven by readiness. An error line of the server ends the run.
//!
//! Callers: the scenarios of `scenario::jetstream`.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use mio::{Events, Interest, Poll, Token, event::Event};
use serde_json::Value;

use crate::session::PATIENCE;

/// Room that one read finds at least.
const ROOM: usize = 256 * 1024;

const CONNECT: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"raw\",\"version\":\"1\",\
    \"protocol\":1,\"headers\":true,\"no_responders\":true}\r\n";

/// One message as it came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// Where an answer goes; empty for nowhere.
    pub(crate) reply: &'a [u8],
    /// Header block; empty for none.
    pub(crate) headers: &'a [u8],
    /// Payload.
    pub(crate) payload: &'a [u8],
}

/// Bytes of a server, as far as they were not consumed.
#[derive(Debug, Default)]
struct Inflow {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    pings: u64,
}

impl Inflow {
    /// Reads once.
    fn fill(&mut self, mut from: impl Read) -> std::io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.len() - self.end < ROOM {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.bytes.len() - self.end < ROOM {
                self.bytes.resize(self.end + 2 * ROOM, 0);
            }
        }
        let len = from.read(&mut self.bytes[self.end..])?;
        self.end += len;
        Ok(len)
    }

    /// Hands over all messages that are complete.
    fn each(&mut self, mut on_message: impl FnMut(Message<'_>) -> Result<()>) -> Result<()> {
        loop {
            let rest = &self.bytes[self.start..self.end];
            let Some(line_end) = memchr::memchr(b'\n', rest) else {
                return Ok(());
            };
            let line = &rest[..line_end.saturating_sub(1)];
            if !line.starts_with(b"MSG ") && !line.starts_with(b"HMSG ") {
                match line {
                    b"PING" => self.pings += 1,
                    b"PONG" | b"+OK" => {}
                    line if line.starts_with(b"INFO ") => {}
                    line => bail!("the server sent {:?}", String::from_utf8_lossy(line)),
                }
                self.start += line_end + 1;
                continue;
            }
            let mut words = [&line[..0]; 6];
            let mut count = 0;
            for word in line.split(|byte| *byte == b' ') {
                ensure!(
                    count < words.len(),
                    "too many words in {:?}",
                    String::from_utf8_lossy(line)
                );
                words[count] = word;
                count += 1;
            }
            let headed = line[0] == b'H';
            let fixed = if headed { 5 } else { 4 };
            ensure!(
                count >= fixed,
                "too few words in {:?}",
                String::from_utf8_lossy(line)
            );
            let total = number(words[count - 1])?;
            let head = if headed { number(words[count - 2])? } else { 0 };
            let reply = if count > fixed { words[3] } else { &line[..0] };
            let body = line_end + 1;
            let Some(content) = rest.get(body..body + total + 2) else {
                return Ok(());
            };
            ensure!(head <= total, "headers longer than their message");
            on_message(Message {
                reply,
                headers: &content[..head],
                payload: &content[head..total],
            })?;
            self.start += body + total + 2;
        }
    }
}

fn number(digits: &[u8]) -> Result<usize> {
    let text = std::str::from_utf8(digits)?;
    text.parse().with_context(|| format!("{text:?} is no number"))
}

/// A connection that blocks, for requests outside of what is measured.
#[derive(Debug)]
pub(crate) struct Admin {
    stream: TcpStream,
    inflow: Inflow,
}

impl Admin {
    /// Connects.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(address).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(CONNECT)?;
        stream.write_all(b"SUB _INBOX.admin 1\r\n")?;
        Ok(Self {
            stream,
            inflow: Inflow::default(),
        })
    }

    /// Makes a request and returns its answer, errors of the API included.
    pub(crate) fn ask(&mut self, subject: &str, body: &str) -> Result<Value> {
        let request = format!("PUB {subject} _INBOX.admin {}\r\n{body}\r\n", body.len());
        self.stream.write_all(request.as_bytes())?;
        let mut answer = None;
        while answer.is_none() {
            ensure!(
                self.inflow.fill(&self.stream)? > 0,
                "the server closed the connection"
            );
            self.inflow.each(|message| {
                ensure!(
                    message.headers.is_empty(),
                    "no answer to {subject}: {}",
                    String::from_utf8_lossy(message.headers).trim()
                );
                answer = Some(serde_json::from_slice(message.payload)?);
                Ok(())
            })?;
            for _ in 0..std::mem::take(&mut self.inflow.pings) {
                self.stream.write_all(b"PONG\r\n")?;
            }
        }
        answer.context("no answer")
    }

    /// Makes requests that must all succeed, up to `window` of them at once; answers how many they were.
    pub(crate) fn api_all(
        &mut self,
        mut requests: impl Iterator<Item = (String, Value)>,
        window: usize,
    ) -> Result<usize> {
        let (mut asked, mut answered, mut output) = (0, 0, Vec::new());
        loop {
            for (call, body) in requests.by_ref().take(window - (asked - answered)) {
                let body = body.to_string();
                let length = body.len();
                write!(output, "PUB $JS.API.{call} _INBOX.admin {length}\r\n{body}\r\n")?;
                asked += 1;
            }
            if asked == answered {
                return Ok(asked);
            }
            self.stream.write_all(&output)?;
            output.clear();
            ensure!(
                self.inflow.fill(&self.stream)? > 0,
                "the server closed the connection"
            );
            self.inflow.each(|message| {
                let answer: Value = serde_json::from_slice(message.payload)?;
                ensure!(answer.get("error").is_none(), "{answer}");
                answered += 1;
                Ok(())
            })?;
            for _ in 0..std::mem::take(&mut self.inflow.pings) {
                output.extend_from_slice(b"PONG\r\n");
            }
        }
    }

    /// Makes a request that must succeed.
    pub(crate) fn api(&mut self, call: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = self.ask(&format!("$JS.API.{call}"), &body)?;
        ensure!(answer.get("error").is_none(), "{call}: {answer}");
        Ok(answer)
    }
}

/// A connection that never blocks.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: mio::net::TcpStream,
    inflow: Inflow,
    output: Vec<u8>,
    readable: bool,
    writable: bool,
    closed: bool,
}

impl Peer {
    /// Connects and subscribes to `inbox`.
    pub(crate) fn open(address: SocketAddr, inbox: &str, poll: &Poll, token: usize) -> Result<Self> {
        let mut stream = TcpStream::connect(address).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.write_all(CONNECT)?;
        stream.write_all(format!("SUB {inbox} 1\r\n").as_bytes())?;
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut stream, Token(token), interest)?;
        Ok(Self {
            stream,
            inflow: Inflow::default(),
            output: Vec::new(),
            readable: true,
            writable: true,
            closed: false,
        })
    }

    /// Notes what the poll reported.
    pub(crate) fn ready(&mut self, event: &Event) {
        self.readable |= event.is_readable();
        self.writable |= event.is_writable();
        self.closed |= event.is_read_closed();
    }

    /// Reads once, if there may be something; tells whether anything came.
    pub(crate) fn read(&mut self, on_message: impl FnMut(Message<'_>) -> Result<()>) -> Result<bool> {
        if !self.readable {
            return Ok(false);
        }
        match self.inflow.fill(&mut self.stream) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(len) => {
                // A short read has emptied the socket: the next arrival raises a new edge.
                self.readable = len >= ROOM || self.closed;
                self.inflow.each(on_message)?;
                for _ in 0..std::mem::take(&mut self.inflow.pings) {
                    self.output.extend_from_slice(b"PONG\r\n");
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            Err(error) => Err(error).context("reading"),
        }
    }

    /// What goes out with the next [`Peer::flush`].
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Writes what waits, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while self.writable && !self.output.is_empty() {
            let output = std::mem::take(&mut self.output);
            let written = self.write(&output)?;
            self.output = output;
            self.output.drain(..written);
        }
        Ok(())
    }

    /// Writes as much of `bytes` as the socket takes in one call; only when nothing else waits.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if !self.writable {
            return Ok(0);
        }
        match self.stream.write(bytes) {
            Ok(len) => Ok(len),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(0)
            }
            Err(error) => Err(error).context("writing"),
        }
    }
}

/// Waits for readiness and hands every event with its token to `mark`; with `only_look` it does not wait.
pub(crate) fn wait(
    poll: &mut Poll,
    events: &mut Events,
    only_look: bool,
    mut mark: impl FnMut(usize, &Event),
) -> Result<()> {
    let limit = if only_look {
        Duration::ZERO
    } else {
        Duration::from_millis(10)
    };
    match poll.poll(events, Some(limit)) {
        Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
        done => done?,
    }
    for event in &*events {
        mark(event.token().0, event);
    }
    Ok(())
}

/// Gives a run up that makes no progress.
#[derive(Debug)]
pub(crate) struct Watch(Instant);

impl Watch {
    /// From now on.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Notes whether something moved.
    pub(crate) fn look(&mut self, moved: bool) -> Result<()> {
        if moved {
            self.0 = Instant::now();
        }
        ensure!(self.0.elapsed() < PATIENCE, "the server got stuck");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_cutting_the_stream_gives_the_same_messages() {
        let stream: &[u8] = b"INFO {}\r\nMSG a 1 2\r\nxx\r\nPING\r\nMSG a 1 r.1 3\r\nyyy\r\n\
            HMSG a 1 r.2 12 14\r\nNATS/1.0\r\n\r\nzz\r\n";
        for chunk in 1..stream.len() {
            let mut inflow = Inflow::default();
            let mut seen = Vec::new();
            for bytes in stream.chunks(chunk) {
                inflow.fill(bytes).unwrap();
                inflow
                    .each(|message| {
                        seen.push([message.reply, message.headers, message.payload].map(<[u8]>::to_vec));
                        Ok(())
                    })
                    .unwrap();
            }
            let text = |at: usize, part: usize| String::from_utf8(seen[at][part].clone()).unwrap();
            assert_eq!(seen.len(), 3, "chunks of {chunk}");
            assert_eq!((text(0, 0), text(0, 2)), (String::new(), "xx".to_owned()));
            assert_eq!((text(1, 0), text(1, 2)), ("r.1".to_owned(), "yyy".to_owned()));
            assert_eq!((text(2, 0), text(2, 2)), ("r.2".to_owned(), "zz".to_owned()));
            assert_eq!(text(2, 1), "NATS/1.0\r\n\r\n");
            assert_eq!(inflow.pings, 1);
        }
    }

    #[test]
    fn an_error_line_ends_the_run() {
        let mut inflow = Inflow::default();
        inflow.fill(&b"-ERR 'Slow Consumer'\r\n"[..]).unwrap();
        assert!(inflow.each(|_| Ok(())).is_err());
    }
}
