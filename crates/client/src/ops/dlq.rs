//! The dead-letter queue: what cannot be handled is published elsewhere, with what is known about it, and given up.
//!
//! A message is routed when its handler asks for it ([`HandlerError::SendToDlq`]), when its last allowed attempt fails,
//! or, before the handler is called, when it has been delivered more often than allowed: then an attempt took the process
//! down with it. With `max_deliver` N there are never fewer than N attempts and never one more.
//!
//! # What it guarantees
//!
//! * The copy is stored before the original is given up. When the copy cannot be stored, the original is handed back.
//! * A copy that its stream took for a duplicate of the original is stored under an id of its own. (A dead-letter subject
//!   in the same stream, within its duplicate window, would otherwise lose the message.)
//! * The copy's payload is what the handler saw, and never compressed: tools that retry it keep few headers.
//! * Any error text becomes a header, whatever is in it.
//!
//! # What it does not do
//!
//! The consumer's own `max_deliver` must be above N, or unlimited, for the last case to come up; the others work with any.
//! Messages that another worker had in hand ([`HandlerError::ClaimInFlight`]) are no attempts; those of other processes
//! cannot be told from attempts.

use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{HeaderMap, HeaderValue};
use sha2::{Digest as _, Sha256};

use super::recorder::{DlqRecorder, DlqRoute};
use super::schema::{HEADER_CONTRACT_ENCODING, HEADER_SCHEMA, HEADER_SCHEMA_VERSION};
use crate::delivery::{Delivery, SettleErrorKind};
use crate::handler::{Handler, HandlerError, Layer, Outcome, backtrace};
use crate::message::Message;
use crate::message::headers::{self, first, sanitized};
use crate::publisher::{Ack, PublishError, Publisher};

/// The original's subject.
pub const HEADER_ORIGINAL_SUBJECT: &str = "X-NATS-Original-Subject";
/// The original's stream.
pub const HEADER_STREAM: &str = "X-NATS-Stream";
/// The original's sequence there.
pub const HEADER_SEQUENCE: &str = "X-NATS-Stream-Sequence";
/// How often it was delivered.
pub const HEADER_NUM_DELIVERED: &str = "X-NATS-Num-Delivered";
/// Why it was given up.
pub const HEADER_REASON: &str = "X-NATS-DLQ-Reason";
/// The consumer that gave it up.
pub const HEADER_CONSUMER: &str = "X-NATS-Consumer";
/// The error.
pub const HEADER_AUTOPSY_ERROR: &str = "X-NATS-Autopsy-Error";
/// The SHA-256 of the payload, in lower-case hexadecimal.
pub const HEADER_AUTOPSY_HASH: &str = "X-NATS-Autopsy-Hash";
/// Where the handler failed, the application's frames in one line.
pub const HEADER_AUTOPSY_STACK: &str = "X-NATS-Autopsy-Stack";

const TERM_TRIES: u32 = 3;
/// Most messages whose claims by others are remembered.
const CLAIMS_MAX: usize = 4096;

type Publishing<'a> = Pin<Box<dyn Future<Output = Result<Ack, PublishError>> + Send + 'a>>;

/// Stores the copies. They must not be compressed.
pub trait DlqPublisher: Send + Sync {
    /// Publishes one copy and waits until it is stored.
    fn publish<'a>(&'a self, subject: &'a str, message: Message) -> Publishing<'a>;
}

impl DlqPublisher for Publisher {
    fn publish<'a>(&'a self, subject: &'a str, message: Message) -> Publishing<'a> {
        Box::pin(self.publish_plain(subject, message))
    }
}

/// What is put on record about the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Autopsy {
    /// Whether anything is. Off.
    pub enabled: bool,
    /// Most bytes of the error's text. 512.
    pub max_error_bytes: usize,
    /// Whether the call stack of the failure is, too: of a panic, or of the place where an error became a
    /// [`HandlerError`]. For panics a hook is installed in front of the program's own. Off.
    pub include_stack: bool,
    /// Most bytes of the stack's text. 2048.
    pub max_stack_bytes: usize,
}

impl Default for Autopsy {
    fn default() -> Self {
        Self {
            enabled: false,
            max_error_bytes: 512,
            include_stack: false,
            max_stack_bytes: 2048,
        }
    }
}

/// The layer. Its clones share what they know.
#[derive(Clone)]
pub struct Dlq {
    publisher: Arc<dyn DlqPublisher>,
    subject: String,
    reason: String,
    max_deliver: u64,
    autopsy: Autopsy,
    recorder: Option<Arc<dyn DlqRecorder>>,
    claims: Arc<Mutex<HashMap<u64, u64>>>,
}

impl Dlq {
    /// Routes to `subject`, only what handlers ask for.
    pub fn new(publisher: impl DlqPublisher + 'static, subject: impl Into<String>) -> Self {
        Self {
            publisher: Arc::new(publisher),
            subject: subject.into(),
            reason: "max_deliver".to_owned(),
            max_deliver: 0,
            autopsy: Autopsy::default(),
            recorder: None,
            claims: Arc::default(),
        }
    }

    /// Also routes a message whose attempt number `attempts` has failed; 0 for none.
    #[must_use]
    pub fn max_deliver(mut self, attempts: u64) -> Self {
        self.max_deliver = attempts;
        self
    }

    /// The reason that is told for those. `max_deliver`.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// What is put on record about the failure.
    #[must_use]
    pub fn autopsy(mut self, autopsy: Autopsy) -> Self {
        self.autopsy = autopsy;
        self
    }

    /// Who is told of each routed message.
    #[must_use]
    pub fn recorder(mut self, recorder: impl DlqRecorder + 'static) -> Self {
        self.recorder = Some(Arc::new(recorder));
        self
    }

    /// Whether the dead-letter subject is among what these filters select: every routed message would come back.
    #[must_use]
    pub fn loops_into<S: AsRef<str>>(&self, filters: &[S]) -> bool {
        filters
            .iter()
            .any(|filter| crate::names::subject_matches(filter.as_ref(), &self.subject))
    }

    /// Attempts at a message, this delivery included.
    fn attempts(&self, sequence: u64, delivered: u64) -> u64 {
        let claims = self.lock().get(&sequence).copied().unwrap_or(0);
        delivered.saturating_sub(claims)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn route(
        &self,
        delivery: &Delivery,
        reason: &str,
        error: &str,
        stack: Option<&Backtrace>,
    ) -> HandlerError {
        let metadata = delivery.metadata();
        let own_id = metadata.map(|found| format!("dlq-{}-{}", found.stream, found.stream_sequence));
        let copied_id = delivery
            .headers
            .as_ref()
            .and_then(|map| first(map, headers::MSG_ID));
        let copy = self.copy(delivery, reason, error, stack);
        let first_try = match (copied_id, &own_id) {
            (Some(id), _) => copy.clone().with_header(headers::MSG_ID, id),
            (None, Some(id)) => copy.clone().with_msg_id(id),
            (None, None) => copy.clone(),
        };
        let ack = match self.publisher.publish(&self.subject, first_try).await {
            Ok(ack) => ack,
            Err(failed) => return HandlerError::failed(crate::Error::from(failed)),
        };
        let swallowed =
            ack.duplicate && copied_id.is_some() && metadata.is_some_and(|found| found.stream == ack.stream);
        if swallowed
            && let Some(id) = &own_id
            && let Err(failed) = self.publisher.publish(&self.subject, copy.with_msg_id(id)).await
        {
            return HandlerError::failed(crate::Error::from(failed));
        }
        if let Err(failed) = give_up(delivery, reason).await {
            return HandlerError::DlqRouted(Some(Box::new(failed)));
        }
        if let Some(recorder) = &self.recorder {
            recorder.dlq_routed(&DlqRoute {
                subject: delivery.subject.to_string(),
                stream: metadata.map(|found| found.stream.to_owned()).unwrap_or_default(),
                consumer: metadata
                    .map(|found| found.consumer.to_owned())
                    .unwrap_or_default(),
                reason: reason.to_owned(),
                autopsy_error: self.autopsy.enabled.then(|| error.to_owned()),
                sequence: metadata.map_or(0, |found| found.stream_sequence),
            });
        }
        HandlerError::DlqRouted(None)
    }

    fn copy(&self, delivery: &Delivery, reason: &str, error: &str, stack: Option<&Backtrace>) -> Message {
        let mut map = HeaderMap::new();
        let any = usize::MAX;
        map.insert(HEADER_ORIGINAL_SUBJECT, sanitized(&delivery.subject, any));
        map.insert(HEADER_REASON, sanitized(reason, any));
        let carried = [
            headers::TRACE_ID,
            headers::CONTENT_TYPE,
            "traceparent",
            HEADER_SCHEMA,
            HEADER_SCHEMA_VERSION,
            HEADER_CONTRACT_ENCODING,
        ];
        for name in carried {
            if let Some(value) = delivery.headers.as_ref().and_then(|map| first(map, name)) {
                map.insert(name, sanitized(value, any));
            }
        }
        if let Some(found) = delivery.metadata() {
            map.insert(HEADER_STREAM, sanitized(found.stream, any));
            map.insert(HEADER_SEQUENCE, HeaderValue::from(found.stream_sequence));
            map.insert(HEADER_NUM_DELIVERED, HeaderValue::from(found.delivered));
            map.insert(HEADER_CONSUMER, sanitized(found.consumer, any));
        }
        if self.autopsy.enabled {
            let hash = Sha256::digest(&delivery.payload);
            let hex = hash.iter().fold(String::with_capacity(64), |mut hex, byte| {
                // Writing to a string cannot fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            map.insert(HEADER_AUTOPSY_HASH, sanitized(&hex, any));
            let text = sanitized(error, self.autopsy.max_error_bytes);
            if !text.as_str().is_empty() {
                map.insert(HEADER_AUTOPSY_ERROR, text);
            }
            if let Some(stack) = stack {
                let line = sanitized(&backtrace::in_one_line(stack), self.autopsy.max_stack_bytes);
                if !line.as_str().is_empty() {
                    map.insert(HEADER_AUTOPSY_STACK, line);
                }
            }
        }
        Message::raw(delivery.payload.clone()).with_headers(&map)
    }
}

async fn give_up(delivery: &Delivery, reason: &str) -> Result<(), crate::SettleError> {
    let mut tried = 0;
    loop {
        tried += 1;
        match delivery.term_with_reason(reason).await {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == SettleErrorKind::AlreadySettled => return Ok(()),
            Err(error) if tried >= TERM_TRIES => return Err(error),
            Err(_) => {}
        }
    }
}

/// A handler with a dead-letter queue.
#[derive(Debug, Clone)]
pub struct WithDlq<H> {
    dlq: Dlq,
    inner: H,
}

impl<H: Handler> Layer<H> for Dlq {
    type Handler = WithDlq<H>;

    fn layer(self, inner: H) -> WithDlq<H> {
        WithDlq { dlq: self, inner }
    }
}

impl<H: Handler> Handler for WithDlq<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let dlq = &self.dlq;
        let (sequence, delivered) = delivery
            .metadata()
            .map_or((0, 0), |found| (found.stream_sequence, found.delivered));
        if dlq.max_deliver > 0 && dlq.attempts(sequence, delivered) > dlq.max_deliver {
            dlq.lock().remove(&sequence);
            return Err(dlq.route(&delivery, &dlq.reason, &dlq.reason, None).await);
        }
        let work = self.inner.handle(Arc::clone(&delivery));
        let (outcome, stack) = if dlq.autopsy.enabled && dlq.autopsy.include_stack {
            backtrace::watched(work).await
        } else {
            (work.await, None)
        };
        match outcome {
            Err(HandlerError::ClaimInFlight(after)) => {
                let mut claims = dlq.lock();
                if claims.len() < CLAIMS_MAX || claims.contains_key(&sequence) {
                    *claims.entry(sequence).or_default() += 1;
                }
                Err(HandlerError::ClaimInFlight(after))
            }
            Err(error @ HandlerError::SendToDlq(_)) => {
                let HandlerError::SendToDlq(cause) = &error else {
                    return Err(error);
                };
                Err(dlq
                    .route(&delivery, "handler_requested", &cause.to_string(), stack.as_ref())
                    .await)
            }
            Err(error)
                if dlq.max_deliver > 0
                    && error.is_failed_attempt()
                    && dlq.attempts(sequence, delivered) >= dlq.max_deliver =>
            {
                dlq.lock().remove(&sequence);
                Err(dlq
                    .route(&delivery, &dlq.reason, &error.to_string(), stack.as_ref())
                    .await)
            }
            other => {
                if other.is_ok() {
                    dlq.lock().remove(&sequence);
                }
                other
            }
        }
    }
}

impl std::fmt::Debug for Dlq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dlq")
            .field("subject", &self.subject)
            .field("max_deliver", &self.max_deliver)
            .field("autopsy", &self.autopsy)
            .finish_non_exhaustive()
    }
}
