//! The throughput loop: publishers write prepared batches as fast as the server takes them.
//!
//! One thread drives all connections, so that the load costs one core at most and needs no locks.
//! Subscribers are served before publishers, and a publisher stays at most [`WINDOW_BYTES`] ahead of the
//! slowest subscriber: no server is ever pushed into its slow-consumer rules, and what is measured is a
//! steady state, not the filling of buffers.
//!
//! A round lasts a given time; then the publishers finish their batch, a `PING` follows it, and the round
//! ends when the `PONG` and every single message are there. A message too many or too few is an error.
//!
//! Callers: the scenarios of `publish` and `pubsub`.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use mio::{Events, Poll};

use crate::session::{Link, PATIENCE, READ_LEN, Session};

/// How far, in bytes of one subscriber, publishers may be ahead.
const WINDOW_BYTES: u64 = 4 << 20;

/// How published messages are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Every subscriber gets every message.
    ToEach,
    /// Every message goes to one of the subscribers.
    ToOne,
}

/// What a round moved, counted exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    /// Messages published.
    pub(crate) published: u64,
    /// From the first byte written to the last byte received.
    pub(crate) elapsed: Duration,
}

/// A publisher's connection and what it sends over and over.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Prepared publishes, all of the same length.
    pub(crate) bytes: Vec<u8>,
    /// How many they are.
    pub(crate) messages: u64,
}

#[derive(Debug)]
struct Publisher {
    link: Link,
    batch: Batch,
    offset: usize,
    pinged: bool,
}

/// Connections set up for a flood.
#[derive(Debug)]
pub(crate) struct Flood {
    poll: Poll,
    publishers: Vec<Publisher>,
    subscribers: Vec<Link>,
    delivery: Delivery,
    window: u64,
    buffer: Vec<u8>,
}

impl Flood {
    /// Takes over connected publishers and subscribed subscribers; `frame_len` is the length of a `MSG`.
    pub(crate) fn new(
        publishers: Vec<(Session, Batch)>,
        subscribers: Vec<Session>,
        delivery: Delivery,
        frame_len: usize,
    ) -> Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry();
        let mut token = 0..;
        let subscribers = subscribers
            .into_iter()
            .zip(token.by_ref())
            .map(|(session, token)| session.into_link(registry, token))
            .collect::<Result<Vec<_>>>()?;
        let first = subscribers.len();
        let publishers = publishers
            .into_iter()
            .zip(first..)
            .map(|((session, batch), token)| {
                let link = session.into_link(registry, token)?;
                Ok(Publisher {
                    link,
                    batch,
                    offset: 0,
                    pinged: false,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let window = WINDOW_BYTES / frame_len.max(1) as u64;
        Ok(Self {
            poll,
            publishers,
            subscribers,
            delivery,
            window,
            buffer: vec![0; READ_LEN],
        })
    }

    /// Publishes for `length`, then waits for everything to arrive.
    pub(crate) fn run(mut self, length: Duration) -> Result<Moved> {
        let mut events = Events::with_capacity(256);
        let before: Vec<u64> = self.publishers.iter().map(|one| one.link.frames.pongs).collect();
        let start = Instant::now();
        let mut published = 0;
        let mut last_progress = start;
        loop {
            let mut progress = self.serve_subscribers()?;
            let time_left = start.elapsed() < length;
            let room = self.outstanding(published) < self.window;
            let mut all_done = !time_left;
            for (publisher, pongs) in self.publishers.iter_mut().zip(&before) {
                progress |= publisher.turn(&mut self.buffer, time_left, room, &mut published)?;
                all_done &= publisher.link.frames.pongs > *pongs;
            }
            if all_done && self.outstanding(published) == 0 {
                break;
            }
            if progress {
                last_progress = Instant::now();
            } else if last_progress.elapsed() > PATIENCE {
                bail!(
                    "stuck: {} of {published} messages have not arrived",
                    self.outstanding(published)
                );
            }
            self.wait(&mut events, progress)?;
        }
        let elapsed = start.elapsed();
        self.check_counts(published)?;
        Ok(Moved { published, elapsed })
    }

    /// Waits for readiness, or only looks when there is more to do anyway.
    fn wait(&mut self, events: &mut Events, only_look: bool) -> Result<()> {
        let timeout = if only_look {
            Duration::ZERO
        } else {
            Duration::from_millis(10)
        };
        self.poll.poll(events, Some(timeout))?;
        for event in &*events {
            let token = event.token().0;
            match self.subscribers.get_mut(token) {
                Some(link) => link.ready(event),
                None => self.publishers[token - self.subscribers.len()].link.ready(event),
            }
        }
        Ok(())
    }

    fn serve_subscribers(&mut self) -> Result<bool> {
        let mut progress = false;
        for link in self.subscribers.iter_mut().filter(|link| link.readable) {
            let before = link.frames.messages;
            link.read(&mut self.buffer, |_| {})?;
            progress |= link.readable || link.frames.messages > before;
        }
        Ok(progress)
    }

    /// How many of the published messages still have to arrive somewhere. The beginning of a batch can
    /// arrive before the batch is counted as published.
    fn outstanding(&self, published: u64) -> u64 {
        if self.subscribers.is_empty() {
            return 0;
        }
        let counts = self.subscribers.iter().map(|link| link.frames.messages);
        published.saturating_sub(match self.delivery {
            Delivery::ToEach => counts.min().unwrap_or(0),
            Delivery::ToOne => counts.sum(),
        })
    }

    /// After a last exchange with every subscriber nothing may have come on top.
    fn check_counts(&mut self, published: u64) -> Result<()> {
        let mut events = Events::with_capacity(256);
        let wanted: Vec<u64> = self
            .subscribers
            .iter()
            .map(|link| link.frames.pongs + 1)
            .collect();
        for link in &mut self.subscribers {
            link.write_all(b"PING\r\n")?;
        }
        let deadline = Instant::now() + PATIENCE;
        while self
            .subscribers
            .iter()
            .zip(&wanted)
            .any(|(link, wanted)| link.frames.pongs < *wanted)
        {
            ensure!(Instant::now() < deadline, "no PONG after the round");
            self.wait(&mut events, false)?;
            self.serve_subscribers()?;
        }
        if !self.subscribers.is_empty() {
            let total: u64 = self.subscribers.iter().map(|link| link.frames.messages).sum();
            let due = match self.delivery {
                Delivery::ToEach => published * self.subscribers.len() as u64,
                Delivery::ToOne => published,
            };
            ensure!(total == due, "{total} messages arrived, {due} were due");
        }
        Ok(())
    }
}

impl Publisher {
    /// Reads what came, writes what fits; tells whether anything moved.
    fn turn(&mut self, buffer: &mut [u8], time_left: bool, room: bool, published: &mut u64) -> Result<bool> {
        if self.link.readable {
            self.link.read(buffer, |_| {})?;
        }
        let inside_batch = self.offset > 0;
        if !self.link.writable || !(inside_batch || (time_left && room)) {
            if !inside_batch && !time_left && !self.pinged && self.link.writable {
                self.link.write_all(b"PING\r\n")?;
                self.pinged = true;
                return Ok(true);
            }
            return Ok(false);
        }
        let written = self.link.write(&self.batch.bytes[self.offset..])?;
        self.offset += written;
        if self.offset == self.batch.bytes.len() {
            self.offset = 0;
            *published += self.batch.messages;
        }
        Ok(written > 0)
    }
}
