//! The stream that a restore makes.
//!
//! It is made in the store as its entries arrive, in order: state, consumers, messages, end. Nobody sees it before
//! [`Builder::finish`]; until then its record in the store says that it is unfinished, so that an opening after a crash
//! removes it. Sequences that the archive leaves out are deleted sequences here; so are messages whose own life is over.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use windjet_protocol::jetstream::backup::archive::{Entry, Head, InvalidArchive, MAGIC, Reader};
use windjet_protocol::jetstream::backup::s2::{S2Error, Unpacker};
use windjet_protocol::jetstream::backup::{
    BackupState, CONSUMER_ENTRY, ConsumerBackup, InvalidState, STATE_ENTRY,
};
use windjet_protocol::jetstream::consumer::requests::ConsumerCreateRequest;
use windjet_protocol::jetstream::{AckPolicy, ApiError, ErrorCode, StorageType, StreamConfig, Timestamp};
use windjet_protocol::subject;
use windjet_store::{Append, ConsumerChange, CreateError, Op, StageError, StreamWriter};

use super::restore::Restored;
use super::state;
use crate::jetstream::JetStream;
use crate::jetstream::account::{JsAccount, Reserved};
use crate::jetstream::api::stream_options;
use crate::jetstream::config;
use crate::jetstream::consumer;
use crate::jetstream::open::StoredStream;
use crate::jetstream::publish::headers::PublishHeaders;
use crate::jetstream::publish::ttl::Ttl;
use crate::jetstream::quota::Quota;
use crate::jetstream::stream::call::Call;
use crate::jetstream::stream::{Stream, task};
use crate::server::Shared;

/// Most bytes of the stream's state.
const STATE_MAX: u64 = 1 << 20;
/// Most bytes of a consumer.
const CONSUMER_MAX: u64 = 64 << 20;
/// How long the store may refuse an operation.
const STORE_WAIT: Duration = Duration::from_secs(30);

/// Why a restore failed. Texts are those of nats-server where it has one.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    #[error("EOF")]
    End,
    #[error(transparent)]
    Packed(#[from] S2Error),
    #[error(transparent)]
    Archive(#[from] InvalidArchive),
    #[error(
        "this is no backup of nats-server 2.15 or of Windjet; one of an older server must go through nats-server 2.15"
    )]
    Old,
    #[error("expected state.json first")]
    NoState,
    #[error("error in state.json: {0}")]
    State(serde_json::Error),
    #[error("invalid stream state: {0}")]
    Invalid(#[from] InvalidState),
    #[error("error adding stream: {} ({})", .0.description, .0.err_code)]
    Stream(ApiError),
    #[error("expected consumer, found {0:?}")]
    NoConsumer(String),
    #[error("error in consumer {0:?}: {1}")]
    Consumer(String, serde_json::Error),
    #[error("consumer {0:?} is missing {1}")]
    Incomplete(String, &'static str),
    #[error("failed to add consumer {name:?}: {} ({})", .error.description, .error.err_code)]
    Refused { name: String, error: ApiError },
    #[error("expected message sequence")]
    NoMessage,
    #[error("message sequence {0} out of order")]
    Order(u64),
    #[error("message sequence {0} exceeds maximum {1} size")]
    Size(u64, &'static str),
    #[error("message sequence {0} has no valid subject")]
    Subject(u64),
    #[error("message sequence {0} has no valid headers")]
    Headers(u64),
    #[error("failed to parse message TTL: {} ({})", .0.description, .0.err_code)]
    Ttl(ApiError),
    #[error("the store does not take it: {0}")]
    Store(#[from] StageError),
    #[error("i/o failure in the journal; the outcome is unknown")]
    Journal,
    #[error("the server is shutting down")]
    Shutdown,
}

/// What comes next.
enum Phase {
    State,
    Consumers(i64),
    Messages,
    Done,
}

/// Woken by the store when it has room, and when something is durable.
#[derive(Debug, Default)]
struct Room(Notify);

impl Wake for Room {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// The stream in the store.
struct Growing {
    writer: StreamWriter,
    room: Arc<Room>,
    state: BackupState,
    stored: StoredStream,
    /// The highest sequence used up.
    seq: u64,
    reserved: Reserved,
}

/// See the module's page.
pub(super) struct Builder {
    server: Arc<Shared>,
    js: Arc<JetStream>,
    account: Arc<JsAccount>,
    config: StreamConfig,
    unpacker: Unpacker,
    reader: Reader,
    beginning: Vec<u8>,
    phase: Phase,
    growing: Option<Growing>,
}

impl Builder {
    pub(super) fn new(
        server: &Arc<Shared>,
        js: &Arc<JetStream>,
        account: &Arc<JsAccount>,
        config: StreamConfig,
    ) -> Self {
        Self {
            server: server.clone(),
            js: js.clone(),
            account: account.clone(),
            config,
            unpacker: Unpacker::default(),
            reader: Reader::default(),
            beginning: Vec::new(),
            phase: Phase::State,
            growing: None,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    ///
    /// When they are no backup, or the stream cannot be as they say. The builder must be given up then.
    pub(super) async fn feed(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.unpacker.push(bytes);
        while let Some(block) = self.unpacker.next_block()? {
            if matches!(self.phase, Phase::Done) {
                continue;
            }
            if self.beginning.len() < MAGIC.len() {
                let some = block.len().min(MAGIC.len() - self.beginning.len());
                self.beginning.extend_from_slice(&block[..some]);
                if !MAGIC.starts_with(&self.beginning) {
                    return Err(RestoreError::Old);
                }
            }
            self.reader.push(&block);
            self.entries().await?;
            tokio::task::yield_now().await;
        }
        if let Some(growing) = &mut self.growing {
            growing.writer.submit();
            growing.writer.commit().map_err(|_| RestoreError::Journal)?;
        }
        Ok(())
    }

    async fn entries(&mut self) -> Result<(), RestoreError> {
        while let Some(head) = self.reader.head()? {
            self.check(&head)?;
            let Some(entry) = self.reader.take() else {
                return Ok(());
            };
            match (&mut self.phase, &mut self.growing) {
                (Phase::State, _) => {
                    let state: BackupState =
                        serde_json::from_slice(entry.payload).map_err(RestoreError::State)?;
                    if entry.name != STATE_ENTRY.as_bytes() {
                        return Err(RestoreError::NoState);
                    }
                    state.check()?;
                    self.phase = next(state.consumer_count);
                    self.growing = Some(create(&self.js, &self.account, &self.config, state)?);
                }
                (Phase::Consumers(left), Some(growing)) => {
                    let left = *left - 1;
                    growing.consumer(&self.js, &self.account, &entry).await?;
                    self.phase = next(left);
                }
                (Phase::Messages, Some(_)) if head.is_end() => {
                    self.phase = Phase::Done;
                    return Ok(());
                }
                (Phase::Messages, Some(growing)) => growing.message(&self.js, &entry).await?,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Holds what an entry says of itself against what may come now, before it is waited for.
    fn check(&self, head: &Head) -> Result<(), RestoreError> {
        match (&self.phase, &self.growing) {
            (Phase::State, _) if head.seq > 0 || head.is_end() => Err(RestoreError::NoState),
            (Phase::State, _) if head.len() > STATE_MAX => Err(InvalidArchive.into()),
            (Phase::Consumers(_), _) if head.len() > CONSUMER_MAX => Err(InvalidArchive.into()),
            (Phase::Consumers(_), _) => match self.reader.name() {
                Some(name) if !name.starts_with(CONSUMER_ENTRY.as_bytes()) => Err(RestoreError::NoConsumer(
                    String::from_utf8_lossy(name).into_owned(),
                )),
                _ => Ok(()),
            },
            (Phase::Messages, Some(growing)) if !head.is_end() => growing.check(&self.js, head),
            _ => Ok(()),
        }
    }

    /// The upload is over: makes the stream durable and known to everybody.
    ///
    /// # Errors
    ///
    /// When something is missing, or the store does not take it. Nothing of the stream is left then.
    pub(super) async fn finish(mut self, restored: Restored) -> Result<(), RestoreError> {
        let result = match self.complete().await {
            Ok(()) => self.open(restored),
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.give_up().await;
        }
        result
    }

    async fn complete(&mut self) -> Result<(), RestoreError> {
        if !matches!(self.phase, Phase::Done) {
            return Err(if self.unpacker.is_between_chunks() {
                RestoreError::End
            } else {
                S2Error::Corrupt.into()
            });
        }
        let growing = self.growing.as_mut().ok_or(RestoreError::End)?;
        let last = growing.state.last_seq;
        if last > growing.seq {
            growing.stage(Op::SkipTo { seq: last }).await?;
        }
        growing.stored.unfinished = false;
        let options = stream_options(&self.js, &self.account, &growing.stored);
        growing.stage(Op::Update(&options)).await?;
        growing.settle().await
    }

    /// Hands the stream to its task.
    fn open(&mut self, restored: Restored) -> Result<(), RestoreError> {
        let (js, account) = (&self.js, &self.account);
        let admin = account.admin.lock();
        if account.is_retired() {
            return Err(RestoreError::Stream(ErrorCode::NotEnabledForAccount.error()));
        }
        let growing = self.growing.take().ok_or(RestoreError::End)?;
        let config = growing.stored.config;
        let created = Timestamp::from_unix_nanos(growing.stored.created);
        let stream = Arc::new(Stream::new(
            &config.name.clone(),
            created,
            config,
            growing.writer.reader(),
        ));
        account.insert(&stream);
        drop(growing.reserved);
        drop(admin);
        let task = task::Task::new(
            self.server.clone(),
            js.clone(),
            account.clone(),
            stream.clone(),
            growing.writer,
            task::Origin::Restored,
        );
        let call = Call::Restored(Box::new(restored));
        if stream.inbox.call(call).is_err() {
            return Err(RestoreError::Shutdown);
        }
        task::spawn(task);
        Ok(())
    }

    /// Removes what there is of the stream.
    pub(super) async fn give_up(self) {
        let Some(mut growing) = self.growing else {
            return;
        };
        let removed = match growing.stage(Op::Delete).await {
            Ok(()) => growing.settle().await,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!(
                stream = %self.config.name,
                "an unfinished restore stays until the store is opened again: {error}"
            );
        }
    }
}

fn next(consumers: i64) -> Phase {
    if consumers > 0 {
        Phase::Consumers(consumers)
    } else {
        Phase::Messages
    }
}

/// Makes the stream in the store, with its name and subjects reserved.
fn create(
    js: &Arc<JetStream>,
    account: &Arc<JsAccount>,
    config: &StreamConfig,
    state: BackupState,
) -> Result<Growing, RestoreError> {
    let refused = |code: ErrorCode| Err(RestoreError::Stream(code.error()));
    let _admin = account.admin.lock();
    if account.is_retired() {
        return refused(ErrorCode::NotEnabledForAccount);
    }
    if account.stream(&config.name).is_some() || account.reserves(&config.name) {
        return refused(ErrorCode::StreamNameInUse);
    }
    if account.overlaps(config) {
        return refused(ErrorCode::SubjectOverlap);
    }
    let memory = config.storage == StorageType::Memory;
    let quota = Quota::new(js.clone(), account.clone(), memory, 0);
    if quota.account_full(0, state.bytes) || quota.server_full(state.bytes) {
        return refused(ErrorCode::AccountResourcesExceeded);
    }
    let stored = StoredStream {
        created: js.now().wall,
        config: config.clone(),
        unfinished: true,
    };
    let mut options = stream_options(js, account, &stored);
    options.first_seq = state.first_seq.max(1);
    let failed = |error: CreateError| RestoreError::Stream(ErrorCode::StreamCreateFailed.with(error));
    let writer = js
        .with_store(|store| store.create_stream(options))
        .ok_or(RestoreError::Shutdown)?
        .map_err(failed)?;
    let room = Arc::new(Room::default());
    writer.set_waker(Waker::from(room.clone()));
    Ok(Growing {
        writer,
        room,
        seq: state.first_seq.max(1) - 1,
        state,
        stored,
        reserved: account.reserve(config),
    })
}

impl Growing {
    fn check(&self, js: &JetStream, head: &Head) -> Result<(), RestoreError> {
        let seq = head.seq;
        if seq == 0 {
            return Err(RestoreError::NoMessage);
        }
        if seq <= self.seq || seq > BackupState::LAST_SEQ_MAX {
            return Err(RestoreError::Order(seq));
        }
        let over = |max: u64| head.len() > max;
        if over(js.max_payload as u64) {
            return Err(RestoreError::Size(seq, "payload"));
        }
        match u64::try_from(self.stored.config.max_msg_size) {
            Ok(max) if max > 0 && over(max) => Err(RestoreError::Size(seq, "message")),
            _ => Ok(()),
        }
    }

    async fn consumer(
        &mut self,
        js: &JetStream,
        account: &JsAccount,
        entry: &Entry<'_>,
    ) -> Result<(), RestoreError> {
        let shown = String::from_utf8_lossy(entry.name);
        let Some(shown) = shown.strip_prefix(CONSUMER_ENTRY) else {
            return Err(RestoreError::NoConsumer(shown.into_owned()));
        };
        let backup: ConsumerBackup = serde_json::from_slice(entry.payload)
            .map_err(|error| RestoreError::Consumer(shown.to_owned(), error))?;
        let incomplete = |what| RestoreError::Incomplete(shown.to_owned(), what);
        let config = backup.config.ok_or_else(|| incomplete("config"))?;
        let positions = backup.state.ok_or_else(|| incomplete("state"))?;
        if config.ack_policy == AckPolicy::FlowControl {
            // It holds messages back for a stream that copies from this one, which makes it again.
            return Ok(());
        }
        let own = config.durable_name.clone().or_else(|| config.name.clone());
        let name = own
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| shown.to_owned());
        let request = ConsumerCreateRequest {
            stream_name: self.stored.config.name.clone(),
            config,
            ..ConsumerCreateRequest::default()
        };
        let rules = js.consumer_rules(account, &self.stored.config);
        let mut config =
            config::consumer::check(request, Some(&name), &rules).map_err(|error| RestoreError::Refused {
                name: shown.to_owned(),
                error,
            })?;
        config::consumer::stamp(&mut config);
        let state = state(&positions, &config);
        let envelope = consumer::stored(&config, Timestamp::from_unix_nanos(js.now().wall));
        let change = ConsumerChange {
            reset: true,
            delivered: Some(state.delivered),
            floor: Some(state.floor),
            pending_set: state.pending.into_iter().collect(),
            redelivered_set: state.redelivered.into_iter().collect(),
            ..ConsumerChange::default()
        };
        self.stage(Op::ConsumerPut {
            name: &name,
            config: &envelope,
        })
        .await?;
        self.stage(Op::ConsumerChange {
            name: &name,
            change: &change,
            remove: &[],
        })
        .await
    }

    async fn message(&mut self, js: &JetStream, entry: &Entry<'_>) -> Result<(), RestoreError> {
        let seq = entry.seq;
        if !subject::is_literal(entry.name) {
            return Err(RestoreError::Subject(seq));
        }
        let block = entry.headers;
        let framed = block.starts_with(b"NATS/1.0") && block.ends_with(b"\r\n\r\n");
        if !block.is_empty() && !framed {
            return Err(RestoreError::Headers(seq));
        }
        let headers = PublishHeaders::read(block);
        let ttl = headers.ttl.map(Ttl::parse).transpose();
        let ttl = ttl.map_err(|_| RestoreError::Ttl(ErrorCode::MessageTtlInvalid.error()))?;
        if seq > self.seq + 1 {
            self.skip_to(seq - 1).await?;
        }
        let over = ttl.and_then(|ttl| ttl.deadline(entry.time));
        if over.is_some_and(|deadline| deadline <= js.now().wall) {
            return self.skip_to(seq).await;
        }
        let dedups = self.stored.config.duplicate_window.is_positive();
        self.stage(Op::Append(Append {
            subject: entry.name,
            headers: block,
            payload: entry.payload,
            time: Some(entry.time),
            id: headers.msg_id.filter(|_| dedups),
            ..Append::default()
        }))
        .await?;
        self.seq = seq;
        Ok(())
    }

    async fn skip_to(&mut self, seq: u64) -> Result<(), RestoreError> {
        self.stage(Op::SkipTo { seq }).await?;
        self.seq = seq;
        Ok(())
    }

    /// Stages an operation, when the store takes it.
    async fn stage(&mut self, op: Op<'_>) -> Result<(), RestoreError> {
        let deadline = Instant::now() + STORE_WAIT;
        loop {
            match self.writer.stage(op) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_retryable() && Instant::now() < deadline => self.wait().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until everything is durable.
    async fn settle(&mut self) -> Result<(), RestoreError> {
        let deadline = Instant::now() + STORE_WAIT;
        while self.writer.committed_op() < self.writer.staged_op() {
            if Instant::now() >= deadline {
                return Err(StageError::Busy.into());
            }
            self.wait().await?;
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<(), RestoreError> {
        self.writer.submit();
        let before = self.writer.committed_op();
        let now = self.writer.commit().map_err(|_| RestoreError::Journal)?;
        if now == before {
            tokio::select! {
                () = self.room.0.notified() => {}
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        Ok(())
    }
}
