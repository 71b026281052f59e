//! Stored publishes: what is sent where, under which id, and what came of it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use windjet_protocol::HeaderMap;
use windjet_protocol::jetstream::publish::decode_pub_ack;
use windjet_protocol::jetstream::{ApiError, ErrorCode, Timestamp};

use super::Client;
use crate::error::{BusError, ErrorKind};
use crate::streams::HEARTBEAT_LIFE;
use crate::subjects::{Class, Subjects, task_cancel_subject};
use crate::token::Token;

/// Header with the id under which a stream stores a message once.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Header with the wire version, so that a receiver can refuse before it parses.
pub const VERSION: &str = "Bus-Version";
/// Header with the publisher's clock.
pub const SENT_AT: &str = "Bus-Sent-At";
/// Header with the life of one message.
const TTL: &str = "Nats-TTL";

/// Time for the acknowledgement unless the caller chooses another.
const ACK_WAIT: Duration = Duration::from_secs(5);
/// Tries while no stream listens, and the pause between them.
const NO_STREAM_TRIES: u32 = 3;
const NO_STREAM_PAUSE: Duration = Duration::from_millis(250);

/// Where a stored message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum To {
    /// A change of state, by job.
    TaskStatus(Token),
    /// Output, by task.
    TaskLogs(Token),
    /// A cancel, by task.
    TaskCancel(Token),
    /// A registration.
    Register,
    /// A heartbeat.
    Heartbeat,
    /// A farewell.
    Deregister,
}

/// A message for a stream. By default it has no id, and its acknowledgement is awaited for 5 s.
#[derive(Debug, Clone)]
pub struct Publication {
    pub(crate) to: To,
    pub(crate) payload: Bytes,
    pub(crate) id: Option<String>,
    pub(crate) wait: Duration,
    pub(crate) worker: Option<Token>,
}

impl Publication {
    /// A message.
    #[must_use]
    pub fn new(to: To, payload: impl Into<Bytes>) -> Self {
        Self {
            to,
            payload: payload.into(),
            id: None,
            wait: ACK_WAIT,
            worker: None,
        }
    }

    /// Stores it once however often it is sent within the stream's window, 2 minutes. What is sent again after an unknown
    /// outcome needs one.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// How long the acknowledgement is awaited.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Publishes in the name of a worker; by default that of the client. Identity layout only.
    #[must_use]
    pub fn worker(mut self, worker: Token) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Where it goes.
    #[must_use]
    pub fn to(&self) -> &To {
        &self.to
    }

    /// What it says.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }
}

/// A message that is stored, durably.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The stream.
    pub stream: String,
    /// Its number there; that of the original for a duplicate.
    pub seq: u64,
    /// Whether a message with its id was there already.
    pub duplicate: bool,
}

impl Published {
    pub(crate) fn new(stream: &str, seq: u64, duplicate: bool) -> Self {
        Self {
            stream: stream.to_owned(),
            seq,
            duplicate,
        }
    }
}

/// The subject of a publication.
pub(crate) fn subject_of(subjects: Subjects, to: &To, worker: Option<&Token>) -> Result<String, BusError> {
    let (class, leaf) = match to {
        To::TaskCancel(task) => return Ok(task_cancel_subject(task)),
        To::TaskStatus(job) => (Class::TaskStatus, Some(job)),
        To::TaskLogs(task) => (Class::TaskLogs, Some(task)),
        To::Register => (Class::Register, None),
        To::Heartbeat => (Class::Heartbeat, None),
        To::Deregister => (Class::Deregister, None),
    };
    subjects.build(class, worker, leaf).ok_or_else(|| {
        BusError::new(
            ErrorKind::BadToken,
            format!(
                "publish {}: the identity layout needs a worker; connect with one",
                class.prefix()
            ),
        )
    })
}

impl Client {
    pub(super) async fn store(&self, publication: Publication) -> Result<Published, BusError> {
        let Publication {
            to,
            payload,
            id,
            wait,
            worker,
        } = publication;
        let subject = subject_of(self.subjects, &to, worker.as_ref().or(self.worker.as_ref()))?;
        let mut headers = HeaderMap::default();
        let header = |error| BusError::new(ErrorKind::Config, format!("publish {subject:?}")).with(error);
        // The bus's own headers only where there is an id: the contract's messages have none.
        if let Some(id) = id {
            headers.insert(MESSAGE_ID, id).map_err(header)?;
            headers
                .insert(VERSION, self.subjects.layout().version())
                .map_err(header)?;
            let now = Timestamp::from(SystemTime::now()).to_string();
            headers.insert(SENT_AT, now).map_err(header)?;
        }
        if to == To::Heartbeat {
            headers
                .insert(TTL, format!("{}s", HEARTBEAT_LIFE.as_secs()))
                .map_err(header)?;
        }
        let headers = (!headers.is_empty()).then_some(headers);
        let mut tries = 1;
        loop {
            let answer = self
                .link
                .request(&subject, headers.as_ref(), payload.clone(), wait)
                .await;
            match answer {
                Ok(answer) => {
                    let published = read_ack(&subject, &answer.payload)?;
                    self.counters.published(published.duplicate);
                    return Ok(published);
                }
                Err(error) if *error.kind() == ErrorKind::NoResponders => {
                    if tries == NO_STREAM_TRIES {
                        let text = format!("publish {subject:?}: no stream stores this subject");
                        return Err(BusError::new(ErrorKind::NoStream, text).with(error));
                    }
                    tries += 1;
                    tokio::time::sleep(NO_STREAM_PAUSE).await;
                }
                Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) => {
                    let text =
                        format!("publish {subject:?}: no acknowledgement came, it may be stored or not");
                    return Err(BusError::new(ErrorKind::Unknown, text).with(error));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

pub(super) fn read_ack(subject: &str, payload: &[u8]) -> Result<Published, BusError> {
    match decode_pub_ack(payload) {
        Ok(Ok(ack)) => Ok(Published::new(&ack.stream, ack.seq, ack.duplicate)),
        Ok(Err(refused)) => Err(refusal(subject, &refused)),
        Err(error) => {
            let text = format!("publish {subject:?}: the acknowledgement cannot be read");
            Err(BusError::new(ErrorKind::Unknown, text).with(error))
        }
    }
}

fn refusal(subject: &str, error: &ApiError) -> BusError {
    let text = error.description.to_string();
    let full = error.is(ErrorCode::InsufficientResources)
        || error.err_code == 10047
        || text.contains("maximum bytes exceeded")
        || text.contains("maximum messages exceeded")
        || text.contains("no space left");
    let kind = if full {
        ErrorKind::StoreFull {
            stream: String::new(),
        }
    } else {
        ErrorKind::Refused
    };
    BusError::new(
        kind,
        format!("publish {subject:?}: the stream refused it: {text}"),
    )
}
