//! Publishing with acknowledgements: so many connections, each with so many messages on their way.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mio::{Events, Poll};
use serde_json::{Value, json};

use super::{ALWAYS, DEFAULT, PAYLOAD, check_messages, empty_stream};
use crate::{
    metric::{Metric, Sample},
    peer::{Admin, Peer, Watch, wait},
    scenario::{CpuMeter, Scenario},
    server::Server,
    session::publishes,
};

/// Messages in flight that count as pipelined.
pub(super) const PIPELINED: u64 = 8192;

/// When publishing ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// After so long.
    Time(Duration),
    /// After so many messages.
    Count(u64),
}

/// One publisher's connection.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) peer: Peer,
    batch: Vec<u8>,
    one: usize,
    window: u64,
    sent_bytes: u64,
    acked: u64,
    beginning: [u8; 10],
}

impl Publisher {
    /// Publishes `batch` over and over, whose messages are `one` byte long each, with at most `window` in flight.
    pub(super) fn new(peer: Peer, batch: Vec<u8>, one: usize, window: u64) -> Self {
        Self {
            peer,
            batch,
            one,
            window,
            sent_bytes: 0,
            acked: 0,
            beginning: *b"{\"stream\":",
        }
    }

    /// A publisher of small messages to one subject, whose acknowledgements go to the peer's own `inbox`.
    pub(super) fn plain(peer: Peer, inbox: &str, window: u64) -> Self {
        let one = publishes("bench.in", inbox, &[b'x'; PAYLOAD], 1);
        let count = (64 * 1024 / one.len()).max(1);
        let len = one.len();
        Self::new(peer, one.repeat(count), len, window)
    }

    /// Messages that were begun.
    pub(super) fn sent(&self) -> u64 {
        self.sent_bytes.div_ceil(self.one as u64)
    }

    /// Messages that were acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// Reads acknowledgements and writes messages up to `limit`; what was begun is finished.
    pub(super) fn turn(&mut self, limit: u64) -> Result<bool> {
        let (acked, beginning) = (&mut self.acked, &self.beginning);
        let mut moved = self.peer.read(|message| {
            ensure!(
                message.payload.starts_with(beginning),
                "a publish was refused: {}",
                String::from_utf8_lossy(message.payload)
            );
            *acked += 1;
            Ok(())
        })?;
        self.peer.flush()?;
        let allowed = limit.min(self.acked + self.window).max(self.sent()) * self.one as u64;
        if allowed > self.sent_bytes && self.peer.output().is_empty() {
            let from = (self.sent_bytes % self.batch.len() as u64) as usize;
            let len = ((allowed - self.sent_bytes) as usize).min(self.batch.len() - from);
            let written = self.peer.write(&self.batch[from..from + len])?;
            self.sent_bytes += written as u64;
            moved |= written > 0;
        }
        Ok(moved)
    }
}

/// Publishes and waits for every acknowledgement; how many messages that were.
pub(super) fn publish(poll: &mut Poll, publishers: &mut [Publisher], until: Until) -> Result<u64> {
    let start = Instant::now();
    let mut events = Events::with_capacity(256);
    let mut watch = Watch::start();
    loop {
        let limit = match until {
            Until::Time(length) if start.elapsed() < length => u64::MAX / 4,
            Until::Time(_) => 0,
            Until::Count(count) => count,
        };
        let (mut moved, mut done) = (false, true);
        for publisher in publishers.iter_mut() {
            moved |= publisher.turn(limit)?;
            done &= publisher.acked == publisher.sent() && publisher.sent() >= limit;
        }
        if done {
            return Ok(publishers.iter().map(Publisher::acked).sum());
        }
        watch.look(moved)?;
        wait(poll, &mut events, moved, |at, event| {
            publishers[at].peer.ready(event);
        })?;
    }
}

/// Connects `count` plain publishers.
pub(super) fn connect(server: &Server, poll: &Poll, count: usize, window: u64) -> Result<Vec<Publisher>> {
    (0..count)
        .map(|number| {
            let inbox = format!("_INBOX.p{number:03}");
            let peer = Peer::open(server.address, &inbox, poll, number)?;
            Ok(Publisher::plain(peer, &inbox, window))
        })
        .collect()
}

struct Publish {
    name: &'static str,
    publishers: usize,
    window: u64,
    config: &'static str,
    unsynced: bool,
    goal: [(Metric, f64); 1],
}

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    let always = |name, publishers, window, goal| Publish {
        name,
        publishers,
        window,
        config: ALWAYS,
        unsynced: false,
        goal: [(Metric::Rate, goal)],
    };
    let default = |name, unsynced, goal| Publish {
        name,
        publishers: 1,
        window: PIPELINED,
        config: DEFAULT,
        unsynced,
        goal: [(Metric::Rate, goal)],
    };
    vec![
        Box::new(always("js/publish-64x1/always", 64, 1, 15.0)),
        Box::new(always("js/publish-1x1000/always", 1, 1000, 20.0)),
        Box::new(always("js/publish-1x1/always", 1, 1, 1.0)),
        Box::new(default("js/publish-pipelined", false, 1.0)),
        Box::new(default("js/publish-pipelined/unsynced", true, 1.5)),
    ]
}

impl Scenario for Publish {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn about(&self) -> String {
        format!(
            "{} publisher(s), each with up to {} unacknowledged, {PAYLOAD} B payload; {}",
            self.publishers,
            self.window,
            match (self.unsynced, self.config == ALWAYS) {
                (true, _) => "both acknowledge before they sync",
                (false, true) => "both sync before they acknowledge",
                (false, false) => "ours syncs before it acknowledges, the reference does not",
            }
        )
    }

    fn config(&self) -> Option<&str> {
        Some(self.config)
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &self.goal
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let extra = if self.unsynced {
            // Of the reference it is metadata that means nothing.
            json!({"metadata": {"windjet.durability": "os"}})
        } else {
            Value::Null
        };
        empty_stream(&mut Admin::open(server.address)?, &extra)?;
        let mut poll = Poll::new()?;
        let mut publishers = connect(server, &poll, self.publishers, self.window)?;
        let meter = CpuMeter::start(server);
        let start = Instant::now();
        let count = publish(&mut poll, &mut publishers, Until::Time(length)).context("publishing")?;
        let elapsed = start.elapsed();
        let sample = Sample::default().with(Metric::Rate, count as f64 / elapsed.as_secs_f64());
        let sample = meter.finish(sample, count);
        check_messages(server, count)?;
        Ok(sample)
    }
}
