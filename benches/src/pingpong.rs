//! The latency loop: requests from one or more connections, each with one request on its way.
//!
//! A single responder answers every request with a prepared reply. Requesters and responder live in one
//! thread, so a round trip is: requester -> server -> responder -> server -> requester, with no hand-over
//! between threads of the load generator in between.
//!
//! Caller: the scenarios of `request`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mio::{Events, Poll};

use crate::session::{Link, PATIENCE, READ_LEN, Session, message_len, publishes};

const SERVICE: &str = "svc.echo";

/// The requesters' reply subjects all have the same length, with the number at their end.
const INBOX: &str = "_INBOX.bench.";

#[derive(Debug)]
struct Requester {
    link: Link,
    request: Vec<u8>,
    sent_at: Instant,
}

/// Connections set up for requests.
#[derive(Debug)]
pub(crate) struct PingPong {
    poll: Poll,
    responder: Link,
    requesters: Vec<Requester>,
    replies: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl PingPong {
    /// Connects one responder and `concurrent` requesters.
    pub(crate) fn connect(address: std::net::SocketAddr, concurrent: usize, payload: &[u8]) -> Result<Self> {
        ensure!((1..=100).contains(&concurrent), "reply subjects carry two digits");
        let poll = Poll::new()?;
        let inbox = |number: usize| format!("{INBOX}{number:02}");
        let mut responder = Session::open(address)?;
        responder.subscribe(SERVICE, "", message_len(SERVICE, &inbox(0), payload.len()))?;
        let responder = responder.into_link(poll.registry(), concurrent)?;
        let mut requesters = Vec::with_capacity(concurrent);
        let mut replies = Vec::with_capacity(concurrent);
        for number in 0..concurrent {
            let subject = inbox(number);
            let mut session = Session::open(address)?;
            session.subscribe(&subject, "", message_len(&subject, "", payload.len()))?;
            replies.push(publishes(&subject, "", payload, 1));
            requesters.push(Requester {
                link: session.into_link(poll.registry(), number)?,
                request: publishes(SERVICE, &subject, payload, 1),
                sent_at: Instant::now(),
            });
        }
        Ok(Self {
            poll,
            responder,
            requesters,
            replies,
            buffer: vec![0; READ_LEN],
        })
    }

    /// Sends requests for `length` and returns each one's time in nanoseconds, and how long it all took.
    pub(crate) fn run(mut self, length: Duration) -> Result<(Vec<u64>, Duration)> {
        let mut latencies = Vec::with_capacity(1 << 18);
        let mut events = Events::with_capacity(256);
        let start = Instant::now();
        for requester in &mut self.requesters {
            requester.send()?;
        }
        let mut on_the_way = self.requesters.len();
        let mut last_progress = start;
        while on_the_way > 0 {
            self.poll.poll(&mut events, Some(PATIENCE))?;
            for event in &events {
                match self.requesters.get_mut(event.token().0) {
                    Some(requester) => requester.link.ready(event),
                    None => self.responder.ready(event),
                }
            }
            ensure!(last_progress.elapsed() < PATIENCE, "a request got no reply");
            self.respond()?;
            let go_on = start.elapsed() < length;
            for requester in self.requesters.iter_mut().filter(|one| one.link.readable) {
                if let Some(latency) = requester.receive(&mut self.buffer)? {
                    latencies.push(latency);
                    last_progress = Instant::now();
                    if go_on {
                        requester.send()?;
                    } else {
                        on_the_way -= 1;
                    }
                }
            }
        }
        Ok((latencies, start.elapsed()))
    }

    /// Answers all requests that have come with one write, as a busy responder does.
    fn respond(&mut self) -> Result<()> {
        let mut answers = Vec::new();
        while self.responder.readable {
            let replies = &self.replies;
            self.responder.read(&mut self.buffer, |message| {
                let at = b"MSG ".len() + SERVICE.len() + b" 1 ".len() + INBOX.len();
                let number = usize::from(message[at] - b'0') * 10 + usize::from(message[at + 1] - b'0');
                answers.extend_from_slice(&replies[number]);
            })?;
        }
        if !answers.is_empty() {
            self.responder.write_all(&answers)?;
        }
        Ok(())
    }
}

impl Requester {
    fn send(&mut self) -> Result<()> {
        self.sent_at = Instant::now();
        self.link.write_all(&self.request)
    }

    /// The time of the request if its reply has come.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<u64>> {
        let before = self.link.frames.messages;
        self.link.read(buffer, |_| {})?;
        let replies = self.link.frames.messages - before;
        ensure!(replies <= 1, "one request got {replies} replies");
        let nanoseconds = self.sent_at.elapsed().as_nanos();
        Ok((replies == 1).then(|| u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }
}
