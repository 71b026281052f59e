//! Reading a stream in order, and what comes, without a consumer.
//!
//! A reader is a place in the stream: it leaves nothing on the server, and nothing can be missed or come twice. It does not
//! hold messages back on an interest stream or a work queue.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::task::JoinHandle;
use windjet_protocol::jetstream::Timestamp;
use windjet_store::{Found, FoundSeq, Matcher, Message, ReadError};

use super::JetStreamContext;
use super::read::{GetError, StreamMessage};
use crate::jetstream::medium::off_thread;
use crate::jetstream::stream::Stream as Owner;
use crate::jetstream::stream::source::follow::Follower;

/// Sequences that are looked up at once.
const AHEAD: usize = 256;

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StartAt {
    /// With the oldest message.
    #[default]
    First,
    /// With the newest that matches.
    Last,
    /// With the newest of each subject, in order of sequence.
    LastPerSubject,
    /// With what comes.
    New,
    /// With this sequence, or the first after it.
    Sequence(u64),
    /// With the first message that was stored at this time or later.
    Time(Timestamp),
}

/// What to read in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OrderedConfig {
    /// Subjects; none for all.
    pub filters: Vec<String>,
    /// Where to begin.
    pub start: StartAt,
    /// Whether to end where the stream ended when reading began.
    pub stop_at_end: bool,
}

impl OrderedConfig {
    /// Read this subject too.
    #[must_use]
    pub fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }

    /// Begin here.
    #[must_use]
    pub fn start(mut self, start: StartAt) -> Self {
        self.start = start;
        self
    }

    /// End where the stream ends now.
    #[must_use]
    pub fn stop_at_end(mut self) -> Self {
        self.stop_at_end = true;
        self
    }
}

/// Messages of a stream in order: a [`Stream`].
///
/// A damaged message is an error in its place, and reading goes on; everything else that fails ends it.
#[must_use = "nothing is read until it is polled"]
pub struct Ordered {
    context: JetStreamContext,
    owner: Arc<Owner>,
    follower: Arc<Follower>,
    matcher: Matcher,
    /// The first sequence that was not looked up.
    next: u64,
    /// The last that is read.
    last: u64,
    ahead: VecDeque<u64>,
    reading: Option<JoinHandle<Result<Option<Message>, ReadError>>>,
    ended: bool,
}

impl fmt::Debug for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered")
            .field("stream", &self.owner.name)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl JetStreamContext {
    /// Reads a stream in order, and what comes after that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use windjet_server::Server;
    /// use windjet_server::jetstream::{OrderedConfig, StreamConfig};
    ///
    /// # let folder = std::env::temp_dir().join(format!("windjet-ordered-doc-{}", std::process::id()));
    /// let server = Server::builder().jetstream(&folder).start().await?;
    /// let js = server.jetstream().ok_or("no JetStream")?;
    /// js.create_stream(StreamConfig { name: "LOG".into(), subjects: vec!["log.>".into()], ..Default::default() }).await?;
    /// js.publish("LOG", "log.a", "one")?.await?;
    /// let mut log = js.ordered("LOG", OrderedConfig::default()).await?;
    /// js.publish("LOG", "log.b", "two")?.await?;
    /// assert_eq!(&log.next().await.ok_or("ended")??.payload[..], b"one");
    /// assert_eq!(&log.next().await.ok_or("ended")??.payload[..], b"two");
    /// # server.shutdown(std::time::Duration::from_secs(5)).await;
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// No such stream; the start time cannot be looked up.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ordered(&self, stream: &str, config: OrderedConfig) -> Result<Ordered, GetError> {
        let owner = self.account.stream(stream);
        let owner = owner.ok_or_else(|| GetError::NoStream(stream.to_owned()))?;
        let reader = &owner.reader;
        let mut matcher = Matcher::new(config.filters.iter());
        let end = reader.state().last_seq;
        let mut ahead = VecDeque::new();
        let next = match config.start {
            StartAt::First => 0,
            StartAt::Last => reader.last_match(&mut matcher).unwrap_or(end + 1),
            StartAt::LastPerSubject => {
                ahead = reader
                    .multi_last(&mut matcher, end, usize::MAX)
                    .unwrap_or_default()
                    .into();
                end + 1
            }
            StartAt::New => end + 1,
            StartAt::Sequence(seq) => seq,
            StartAt::Time(time) => match reader.first_at(time.unix_nanos()) {
                FoundSeq::Seq(seq) => seq,
                FoundSeq::None => end + 1,
                FoundSeq::NeedsDisk(ticket) => {
                    let _permit = self.js.reads.acquire().await;
                    let read = off_thread(move || ticket.read()).await;
                    let seq = read.map_err(|error| GetError::Unreadable(error.to_string()))??;
                    seq.unwrap_or(end + 1)
                }
            },
        };
        let follower = Follower::reader();
        self.account.follow(stream, follower.clone());
        Ok(Ordered {
            context: self.clone(),
            owner,
            follower,
            matcher,
            next,
            last: if config.stop_at_end { end } else { u64::MAX },
            ahead,
            reading: None,
            ended: false,
        })
    }
}

impl Ordered {
    /// The next message; `None` at the end.
    ///
    /// # Cancel safety
    /// A dropped call takes no message.
    pub async fn next(&mut self) -> Option<Result<StreamMessage, GetError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Messages to come of those that are there now.
    #[must_use]
    pub fn pending(&mut self) -> u64 {
        let later = self.owner.reader.count(&mut self.matcher, self.next);
        later + self.ahead.len() as u64
    }

    fn end(&mut self, error: GetError) -> Poll<Option<Result<StreamMessage, GetError>>> {
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }

    /// Looks the next sequences up.
    fn look(&mut self) {
        let mut seqs = Vec::new();
        self.owner
            .reader
            .next_matches(&mut self.matcher, self.next, AHEAD, &mut seqs);
        seqs.retain(|seq| *seq <= self.last);
        if let Some(last) = seqs.last() {
            self.next = last + 1;
        }
        self.ahead.extend(seqs);
    }

    /// What came of reading the first sequence ahead.
    fn read(
        &mut self,
        read: Result<Option<Message>, ReadError>,
    ) -> Option<Poll<Option<Result<StreamMessage, GetError>>>> {
        match read {
            Ok(Some(message)) => {
                self.ahead.pop_front();
                Some(Poll::Ready(Some(Ok(StreamMessage::new(&message)))))
            }
            // Gone meanwhile.
            Ok(None) => {
                self.ahead.pop_front();
                None
            }
            Err(error @ ReadError::Damaged { .. }) => {
                self.ahead.pop_front();
                Some(Poll::Ready(Some(Err(error.into()))))
            }
            Err(error) => Some(self.end(error.into())),
        }
    }
}

impl Stream for Ordered {
    type Item = Result<StreamMessage, GetError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            if let Some(reading) = &mut this.reading {
                let read = match Pin::new(reading).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(read) => read,
                };
                this.reading = None;
                let interrupted = |_| Err(ReadError::Io(std::io::ErrorKind::Interrupted.into()));
                if let Some(item) = this.read(read.unwrap_or_else(interrupted)) {
                    return item;
                }
                continue;
            }
            if let Some(seq) = this.ahead.front().copied() {
                let read = match this.owner.reader.read(seq) {
                    Found::InMemory(message) => Ok(Some(message)),
                    Found::Absent => Ok(None),
                    Found::NeedsDisk(ticket) => {
                        let reads = this.context.js.reads.clone();
                        this.reading = Some(tokio::spawn(async move {
                            let _permit = reads.acquire_owned().await;
                            let interrupted = |_| Err(ReadError::Io(std::io::ErrorKind::Interrupted.into()));
                            off_thread(move || ticket.read())
                                .await
                                .unwrap_or_else(interrupted)
                        }));
                        continue;
                    }
                };
                if let Some(item) = this.read(read) {
                    return item;
                }
                continue;
            }
            // What comes after this wakes the reader; what came before is seen below.
            this.follower.wait(cx.waker());
            let over = this.owner.inbox.is_closed();
            this.look();
            if !this.ahead.is_empty() {
                continue;
            }
            if this.last != u64::MAX {
                this.ended = true;
                return Poll::Ready(None);
            }
            if this.owner.reader.is_deleted() {
                let name = this.owner.name.to_string();
                return this.end(GetError::NoStream(name));
            }
            if over {
                return this.end(GetError::Shutdown);
            }
            return Poll::Pending;
        }
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        self.context.account.unfollow(&self.owner.name, &self.follower);
    }
}
