//! Reading what is stored: fetching with explicit acknowledgements, and in order without any.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mio::{Events, Poll};
use serde_json::{Value, json};

use super::publish::{PIPELINED, Until, connect, publish};
use super::{DEFAULT, PAYLOAD, STREAM, empty_stream, messages};
use crate::{
    metric::{Metric, Sample},
    peer::{Admin, Peer, Watch, wait},
    scenario::{CpuMeter, Scenario},
    server::Server,
};

/// Messages in the stream.
const STORED: u64 = 500_000;
/// Messages that one request asks for.
const BATCH: u64 = 1000;
const INBOX: &str = "_INBOX.reader";

/// A consumer that is pulled from, over raw bytes.
#[derive(Debug)]
pub(super) struct Puller {
    pub(super) peer: Peer,
    request: Vec<u8>,
    acks: bool,
    /// Messages asked for that have not come.
    asked: u64,
    /// A request is made when fewer than this many are asked for.
    low: u64,
    /// Messages that came.
    pub(super) received: u64,
}

impl Puller {
    /// Asks for batches of `batch`, the next one when fewer than `low` are to come.
    pub(super) fn new(peer: Peer, inbox: &str, consumer: &str, acks: bool, batch: u64, low: u64) -> Self {
        let body = format!("{{\"batch\":{batch},\"expires\":20000000000}}");
        let request = format!(
            "PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer} {inbox} {}\r\n{body}\r\n",
            body.len()
        );
        Self {
            peer,
            request: request.into_bytes(),
            acks,
            asked: 0,
            low,
            received: 0,
        }
    }

    /// Reads messages, checks that they come in order and once, acknowledges and asks for more.
    pub(super) fn turn(&mut self, batch: u64, ask: bool) -> Result<bool> {
        let (received, asked, acks) = (&mut self.received, &mut self.asked, self.acks);
        let mut replies = std::mem::take(self.peer.output());
        let moved = self.peer.read(|message| {
            ensure!(
                message.headers.is_empty(),
                "a request ended: {}",
                String::from_utf8_lossy(message.headers).trim()
            );
            let seq = stream_seq(message.reply).context("no sequence in the ack's subject")?;
            *received += 1;
            ensure!(seq == *received, "message {seq} came where {received} was due");
            *asked = asked.saturating_sub(1);
            if acks {
                replies.extend_from_slice(b"PUB ");
                replies.extend_from_slice(message.reply);
                replies.extend_from_slice(b" 4\r\n+ACK\r\n");
            }
            Ok(())
        })?;
        replies.append(self.peer.output());
        *self.peer.output() = replies;
        if ask && self.asked < self.low {
            self.asked += batch;
            let request = self.request.clone();
            self.peer.output().extend_from_slice(&request);
        }
        self.peer.flush()?;
        Ok(moved)
    }
}

/// The stream sequence in `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>…`.
fn stream_seq(subject: &[u8]) -> Option<u64> {
    let token = subject.split(|byte| *byte == b'.').nth(5)?;
    std::str::from_utf8(token).ok()?.parse().ok()
}

struct Read {
    name: &'static str,
    about: &'static str,
    acks: bool,
    low: u64,
    goal: [(Metric, f64); 1],
}

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(Read {
            name: "js/fetch-ack",
            about: "1 client fetches 1,000 at a time, acknowledges each, fetches again",
            acks: true,
            low: 1,
            goal: [(Metric::Rate, 1.3)],
        }),
        Box::new(Read {
            name: "js/ordered",
            about: "1 client reads in order without acknowledgements, 500 to 1,500 asked for",
            acks: false,
            low: BATCH / 2,
            goal: [(Metric::Rate, 1.5)],
        }),
    ]
}

impl Scenario for Read {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn about(&self) -> String {
        format!(
            "{}; {STORED} messages of {PAYLOAD} B stored, the reference by its default",
            self.about
        )
    }

    fn config(&self) -> Option<&str> {
        Some(DEFAULT)
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &self.goal
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let mut admin = Admin::open(server.address)?;
        if messages(&mut admin)? != Some(STORED) {
            empty_stream(&mut admin, &Value::Null)?;
            let mut poll = Poll::new()?;
            let mut publishers = connect(server, &poll, 1, PIPELINED)?;
            publish(&mut poll, &mut publishers, Until::Count(STORED)).context("filling the stream")?;
        }
        let _may_not_exist = admin.ask(&format!("$JS.API.CONSUMER.DELETE.{STREAM}.READER"), "")?;
        let mut config = json!({"name": "READER", "deliver_policy": "all", "replay_policy": "instant"});
        config["ack_policy"] = if self.acks { "explicit" } else { "none" }.into();
        if self.acks {
            config["durable_name"] = "READER".into();
            config["max_ack_pending"] = 10_000.into();
        } else {
            config["mem_storage"] = true.into();
            config["inactive_threshold"] = 60_000_000_000_u64.into();
        }
        let body = json!({"stream_name": STREAM, "config": config});
        admin.api(&format!("CONSUMER.CREATE.{STREAM}.READER"), &body)?;

        let mut poll = Poll::new()?;
        let peer = Peer::open(server.address, INBOX, &poll, 0)?;
        let mut puller = Puller::new(peer, INBOX, "READER", self.acks, BATCH, self.low);
        let mut events = Events::with_capacity(16);
        let mut watch = Watch::start();
        let meter = CpuMeter::start(server);
        let start = Instant::now();
        while start.elapsed() < length && puller.received < STORED {
            let moved = puller.turn(BATCH, true)?;
            watch.look(moved)?;
            wait(&mut poll, &mut events, moved, |_, event| puller.peer.ready(event))?;
        }
        let elapsed = start.elapsed();
        let sample = Sample::default().with(Metric::Rate, puller.received as f64 / elapsed.as_secs_f64());
        Ok(meter.finish(sample, puller.received))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_read_from_the_subject_of_the_ack() {
        assert_eq!(stream_seq(b"$JS.ACK.S.C.1.4711.5.1700000000.3"), Some(4711));
        assert_eq!(stream_seq(b""), None);
    }
}
