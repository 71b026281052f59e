//! A snapshot on its way to its receiver.
//!
//! One task a snapshot. It reads and packs on a thread that may wait, a few hundred KiB at a time, and sends chunks; each
//! full one asks for an answer, and no more of them than the window holds are under way without one. The last chunk asks for
//! nothing. An empty message ends it, with a status that says how.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::Notify;
use tokio::time::Instant;
use windjet_protocol::jetstream::advisory::{ClientInfo, EventBody, SnapshotComplete, SnapshotCreate};
use windjet_protocol::jetstream::backup::archive::{Entry, MAGIC};
use windjet_protocol::jetstream::backup::s2::Packer;
use windjet_protocol::jetstream::backup::{CONSUMER_ENTRY, ConsumerBackup, STATE_ENTRY};
use windjet_protocol::jetstream::stream::requests::{SnapshotRequest, SnapshotResponse};
use windjet_protocol::jetstream::{ErrorCode, Response, Status, StreamConfig, StreamState, Timestamp};
use windjet_store::{Found, Matcher, StreamReader};

use crate::jetstream::JetStream;
use crate::jetstream::account::{JsAccount, event_id};
use crate::jetstream::medium::off_thread;
use crate::jetstream::stream::Stream;
use crate::jetstream::stream::call::{Answer, Asker};
use crate::router::{Message, Service, Sink, Subscription, Turn};
use crate::server::Shared;

/// How long a receiver may take to subscribe.
const INTEREST_WAIT: Duration = Duration::from_secs(2);
/// How long a receiver may answer nothing.
const FLOW_WAIT: Duration = Duration::from_secs(5);
/// How often a receiver is looked for while nothing comes from it.
const LOOK: Duration = Duration::from_millis(50);
/// What is packed at once, about.
const PORTION: usize = 256 << 10;

/// Everything about one snapshot, when it begins.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) server: Arc<Shared>,
    pub(crate) js: Arc<JetStream>,
    pub(crate) account: Arc<JsAccount>,
    pub(crate) stream: Arc<Stream>,
    pub(crate) request: SnapshotRequest,
    pub(crate) config: StreamConfig,
    pub(crate) state: StreamState,
    pub(crate) consumers: Vec<(String, ConsumerBackup)>,
}

/// Why a snapshot ended early.
#[derive(Debug)]
enum Ended {
    NoInterest,
    NoFlow,
    Failed(String),
}

impl Ended {
    fn status(&self) -> Status {
        match self {
            Self::NoInterest => Status::NoInterest,
            Self::NoFlow => Status::NoFlowResponse,
            Self::Failed(why) => Status::Failed(why.clone().into()),
        }
    }

    fn text(self) -> String {
        match self {
            Self::NoInterest => "no interest".into(),
            Self::NoFlow => "no flow response".into(),
            Self::Failed(why) => why,
        }
    }
}

/// Chunks that were not answered.
#[derive(Debug, Default)]
struct Flow {
    waiting: AtomicU64,
    answered: Notify,
}

impl Service for Flow {
    fn receive(&self, _message: &Message<'_>, _turn: &mut Turn<'_>) -> bool {
        let one_less = |n: u64| n.checked_sub(1);
        if self
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less)
            .is_ok()
        {
            self.answered.notify_one();
        }
        true
    }
}

/// A stream's content as packed bytes, piece by piece.
struct Source {
    reader: StreamReader,
    packer: Packer,
    all: Matcher,
    next: u64,
    last: u64,
    done: bool,
}

impl Source {
    /// The next piece. Waits for the disk.
    fn more(mut self) -> Result<(Self, Vec<u8>), String> {
        let mut out = Vec::new();
        while out.len() < PORTION && !self.done {
            let mut seqs = Vec::new();
            self.reader.next_matches(&mut self.all, self.next, 256, &mut seqs);
            seqs.retain(|seq| *seq <= self.last);
            for seq in &seqs {
                let message = match self.reader.read(*seq) {
                    Found::InMemory(message) => Some(message),
                    Found::NeedsDisk(ticket) => ticket.read().map_err(|error| error.to_string())?,
                    Found::Absent => None,
                };
                // It may have gone meanwhile.
                if let Some(message) = message {
                    let entry = Entry {
                        name: &message.subject(),
                        time: message.time(),
                        seq: *seq,
                        headers: &message.headers(),
                        payload: &message.payload(),
                    };
                    entry.encode(self.packer.content());
                    self.packer.pack(false, &mut out);
                }
                self.next = seq + 1;
                if out.len() >= PORTION {
                    break;
                }
            }
            if seqs.is_empty() {
                // A stream that goes has nothing any more, which is not what it had.
                if self.reader.is_deleted() {
                    return Err("the stream is deleted".into());
                }
                Entry::END.encode(self.packer.content());
                self.packer.pack(true, &mut out);
                self.done = true;
            }
        }
        Ok((self, out))
    }
}

impl Snapshot {
    /// Answers the request and starts sending.
    pub(crate) fn start(self, asker: Asker) {
        let Ok(permit) = self.js.backups.clone().try_acquire_owned() else {
            let error = ErrorCode::InsufficientResources.error();
            return Answer::<SnapshotResponse>::Wire(asker).send(&self.server, Err(error));
        };
        let client = asker.client.as_deref().cloned().unwrap_or_default();
        let created = SnapshotCreate {
            stream: self.stream.name.to_string(),
            state: self.state.clone(),
            client: client.clone(),
            domain: self.account.domain().map(str::to_owned),
        };
        let subject = created.subject();
        self.account.advise(&self.server, move || created, &subject);
        let response = SnapshotResponse {
            config: self.config.clone(),
            state: self.state.clone(),
        };
        asker.send(&self.server, Response(Ok(response)).to_vec(), false, true);
        let tasks = self.server.tasks.clone();
        tasks.spawn(async move {
            self.run(client).await;
            drop(permit);
        });
    }

    async fn run(self, client: ClientInfo) {
        let start = self.js.now().wall;
        let ended = self.send().await;
        let to = self.request.deliver_subject.as_bytes();
        let headers = match &ended {
            Ok(0) => Vec::new(),
            Ok(_) => Status::EndOfSnapshot.block(),
            Err(ended) => ended.status().block(),
        };
        self.publish(to, None, &headers, &Bytes::new());
        let error = ended.err().map(Ended::text);
        match &error {
            None => tracing::info!(stream = %self.stream.name, "a snapshot was sent"),
            Some(why) => tracing::warn!(stream = %self.stream.name, "a snapshot ended early: {why}"),
        }
        let complete = SnapshotComplete {
            stream: self.stream.name.to_string(),
            start: Timestamp::from_unix_nanos(start),
            end: Timestamp::from_unix_nanos(self.js.now().wall),
            client,
            error,
            domain: self.account.domain().map(str::to_owned),
        };
        let subject = complete.subject();
        self.account.advise(&self.server, move || complete, &subject);
    }

    fn publish(&self, to: &[u8], reply: Option<&[u8]>, headers: &[u8], payload: &Bytes) {
        self.server
            .publish(&self.account.account, to, reply, headers, payload);
    }

    /// Sends everything; how many chunks were to be answered.
    async fn send(&self) -> Result<u64, Ended> {
        let interest = Instant::now() + INTEREST_WAIT;
        while !self.account.listens(&self.request.deliver_subject) && Instant::now() < interest {
            tokio::time::sleep(LOOK).await;
        }
        let flow = Arc::new(Flow::default());
        let prefix = format!("$JS.SNAPSHOT.ACK.{}.{}", self.stream.name, event_id());
        let account = &self.account.account;
        let subscription = Arc::new(Subscription::new(
            Bytes::from(format!("{prefix}.*.*")),
            None,
            Bytes::from_static(b"0"),
            0,
            account,
            Sink::Service(flow.clone()),
        ));
        account.subscribe(subscription.clone());
        let sent = self.send_chunks(&flow, &prefix).await;
        account.unsubscribe(&subscription);
        sent
    }

    async fn send_chunks(&self, flow: &Flow, prefix: &str) -> Result<u64, Ended> {
        let (chunk, most) = sizes(&self.request);
        let to = self.request.deliver_subject.as_bytes();
        let mut source = self.source();
        let (mut waiting, mut count) = (BytesMut::new(), 0u64);
        let mut sent_at = Instant::now();
        loop {
            let done = source.done;
            while waiting.len() >= chunk {
                self.room(flow, most, sent_at).await?;
                count += 1;
                flow.waiting.fetch_add(1, Ordering::AcqRel);
                sent_at = Instant::now();
                let reply = format!("{prefix}.{chunk}.{count}");
                let payload = waiting.copy_to_bytes(chunk);
                self.publish(to, Some(reply.as_bytes()), b"", &payload);
                tokio::task::yield_now().await;
            }
            if done {
                break;
            }
            let permit = self.js.reads.clone().acquire_owned().await;
            let more = off_thread(move || source.more()).await;
            drop(permit);
            let interrupted = |_| Err("interrupted".into());
            let (back, bytes) = more.unwrap_or_else(interrupted).map_err(Ended::Failed)?;
            waiting.extend_from_slice(&bytes);
            source = back;
        }
        if !waiting.is_empty() {
            self.publish(to, None, b"", &waiting.freeze());
        }
        Ok(count)
    }

    fn source(&self) -> Source {
        let time = self.js.now().wall;
        let mut packer = Packer::default();
        let content = packer.content();
        content.extend_from_slice(MAGIC);
        let mut put = |name: &str, body: serde_json::Result<Vec<u8>>| {
            let entry = Entry {
                name: name.as_bytes(),
                time,
                seq: 0,
                headers: b"",
                // Writing to memory does not fail, and the keys of all maps are texts.
                payload: &body.unwrap_or_default(),
            };
            entry.encode(content);
        };
        let mut state = self.state.clone();
        state.consumer_count = self.consumers.len() as u64;
        put(STATE_ENTRY, serde_json::to_vec(&state));
        for (name, consumer) in &self.consumers {
            put(&format!("{CONSUMER_ENTRY}{name}"), serde_json::to_vec(consumer));
        }
        Source {
            reader: self.stream.reader.clone(),
            packer,
            all: Matcher::new(None::<&[u8]>),
            next: 0,
            last: self.state.last_seq,
            done: false,
        }
    }

    /// Waits until one more chunk may be under way.
    async fn room(&self, flow: &Flow, most: u64, sent_at: Instant) -> Result<(), Ended> {
        let deadline = sent_at + FLOW_WAIT;
        let stop = &self.server.stop;
        while flow.waiting.load(Ordering::Acquire) >= most {
            if !self.account.listens(&self.request.deliver_subject) {
                return Err(Ended::NoInterest);
            }
            if Instant::now() >= deadline {
                return Err(Ended::NoFlow);
            }
            tokio::select! {
                () = flow.answered.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => return Err(Ended::Failed("the server shuts down".into())),
            }
        }
        Ok(())
    }
}

/// Bytes of a chunk, and how many may be under way.
fn sizes(request: &SnapshotRequest) -> (usize, u64) {
    let within = |asked: i64, default: usize, max: usize| match usize::try_from(asked) {
        Ok(asked) if asked > 0 => asked.clamp(1 << 10, max),
        _ => default,
    };
    let chunk = within(request.chunk_size, 128 << 10, 1 << 20);
    let window = within(request.window_size, 8 << 20, 32 << 20).max(chunk);
    (chunk, (window / chunk) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_within_their_bounds() {
        let sizes = |chunk_size, window_size| {
            sizes(&SnapshotRequest {
                chunk_size,
                window_size,
                ..SnapshotRequest::default()
            })
        };
        assert_eq!(sizes(0, 0), (128 << 10, 64));
        assert_eq!(sizes(1, 1), (1 << 10, 1));
        assert_eq!(sizes(-5, -5), (128 << 10, 64));
        assert_eq!(sizes(i64::MAX, 1), (1 << 20, 1));
        assert_eq!(sizes(1024, i64::MAX), (1 << 10, 32 << 10));
    }
}
