//! A consumer: what was delivered, what is settled, who waits for messages.
//!
//! [`Consumer`] is a state machine without I/O: the stream's task, which owns it, tells it of requests, acks, appended and
//! removed messages and of time, and it answers through a [`Port`]. It looks up sequences in the committed index of its
//! stream ([`windjet_store::StreamReader`], in memory, never blocking). What must survive is taken from it as a net change
//! ([`Consumer::take_change`]) and staged by the stream's task; answers that rest on it go out when it is committed.
//!
//! It does not know retention: it says which sequences it no longer needs ([`Port::settled`]), the stream decides.
//!
//! # Order of calls
//!
//! Events are told after the index has them: `appended`, `removed` and `purged` follow the commit that they come from, in
//! any order among each other. After any call that takes a [`Port`] the consumer may be able to deliver; ask
//! [`Consumer::is_ready`], call [`Consumer::deliver`] in its turn, and read [`Consumer::next_deadline`] afterwards.

mod ack;
mod deliver;
mod events;
mod info;
mod life;
mod manage;
mod pace;
mod port;
mod position;
mod priority;
mod pull;
mod push;
mod rare;
mod record;
#[cfg(test)]
mod tests;
mod timers;
mod tracked;
mod vanish;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use windjet_protocol::jetstream::{ConsumerConfig, Timestamp};
use windjet_protocol::reply::AckSubject;
use windjet_store::{Matcher, Position, StreamReader};

use position::{Initial, Left};
use rare::Rare;
use record::Log;
use tracked::Tracked;
use waiting::Waiting;

pub(crate) use record::stored;

pub(crate) use port::{Delivered, Delivery, Fetched, Now, Place, Port};

/// What all consumers of a stream share.
#[derive(Debug)]
pub(crate) struct Home {
    /// Name of the account.
    pub(crate) account: String,
    /// Name of the stream, as clients know it.
    pub(crate) stream: String,
    /// JetStream domain, if there is one.
    pub(crate) domain: Option<String>,
    /// The committed state of the stream.
    pub(crate) reader: StreamReader,
    /// `max_msgs_per_subject` of the stream.
    pub(crate) max_msgs_per_subject: i64,
    /// Largest message there can be: the stream's `max_msg_size`, or else the server's payload limit. A rate limit
    /// lets this much go at once.
    pub(crate) burst: u64,
}

/// A pull request as it arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pull<'a> {
    /// Its payload, in any of the four forms.
    pub(crate) payload: &'a [u8],
    /// Its header block, empty for none.
    pub(crate) headers: &'a [u8],
    /// Where messages and statuses go.
    pub(crate) reply: &'a [u8],
    /// The connection that it came from.
    pub(crate) holder: u64,
}

/// An acknowledgement as it arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckMessage<'a> {
    /// The subject that it was sent to.
    pub(crate) subject: AckSubject<'a>,
    /// Its payload.
    pub(crate) payload: &'a [u8],
    /// Where the answer goes, if one is wanted.
    pub(crate) reply: Option<&'a [u8]>,
    /// The connection that it came from.
    pub(crate) holder: u64,
}

/// How much a consumer may still deliver in a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Messages.
    pub(crate) messages: usize,
    /// Bytes.
    pub(crate) bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            messages: 256,
            bytes: 1 << 20,
        }
    }
}

/// How a delivery turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing can be delivered until something happens or a deadline passes.
    Idle,
    /// The budget is used up.
    More,
    /// The next message is being read from the disk: call again when it is there.
    Blocked(u64),
    /// Everybody who could take the next message has a full buffer: call again when one drains.
    Full,
}

/// What [`Consumer::expire`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing that concerns others.
    Nothing,
    /// The consumer may be able to deliver.
    Deliver,
    /// Nobody has used it for too long: delete it as by request.
    Delete,
}

/// Why a consumer stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It, or its stream, is deleted.
    Deleted,
    /// The server shuts down.
    Shutdown,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Updated {
    /// The stored configuration differs: [`Consumer::stored_config`] must be put.
    pub(crate) changed: bool,
    /// Other messages are wanted than before: interest must be looked at again.
    pub(crate) filters: bool,
}

/// What a consumer has not settled: `pending`, and every message behind `delivered`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Unsettled {
    /// Everything up to here is settled.
    pub floor: u64,
    /// The newest message that was delivered.
    pub delivered: u64,
    /// Delivered and not settled, in order.
    pub pending: Vec<u64>,
}

/// Why a consumer does not deliver at this moment. As JSON the variant is `state`, in snake case.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Explanation {
    /// Nothing hinders it.
    Delivering,
    /// All matching messages were delivered and settled.
    NoMessages,
    /// No message of the stream has a subject that its filters match.
    NoMatch {
        /// The filters.
        filters: Vec<String>,
    },
    /// All matching messages were delivered, and some are not acknowledged: they go out again when their waits are over.
    AwaitingAcks {
        /// Messages delivered and not acknowledged.
        pending: u64,
        /// The lowest of their sequences, at most 16.
        sequences: Vec<u64>,
        /// When the first of their waits, ack wait, back-off or delay of a nak, is over.
        until: Option<Timestamp>,
    },
    /// It is paused until this time.
    Paused {
        /// Until when.
        until: Timestamp,
    },
    /// No pull request waits.
    NoRequest,
    /// Pull requests wait, but nobody listens where they want the messages.
    NoListener,
    /// Nobody listens to the deliver subject.
    NotBound,
    /// So many messages are delivered and not acknowledged as may be.
    MaxAckPending {
        /// Messages delivered and not acknowledged.
        pending: u64,
        /// As many as may be.
        max: u64,
        /// The lowest of their sequences, at most 16.
        sequences: Vec<u64>,
        /// When the first of their waits is over.
        until: Option<Timestamp>,
    },
    /// The receiver has not answered a flow-control request.
    FlowControl {
        /// Bytes under way.
        outstanding: u64,
        /// As many as may be.
        window: u64,
    },
    /// The rate limit or the original pace holds the next message back for so many nanoseconds.
    Paced {
        /// Nanoseconds.
        wait: u64,
    },
    /// No waiting request meets its own thresholds.
    Overflow,
    /// Only requests of others than the pinned client wait.
    Pinned {
        /// The pin.
        id: String,
    },
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Delivering => f.write_str("nothing hinders it"),
            Self::NoMessages => f.write_str("all matching messages were delivered and settled"),
            Self::NoMatch { filters } => {
                write!(
                    f,
                    "no message of the stream matches its filters {}",
                    filters.join(", ")
                )
            }
            Self::AwaitingAcks { pending, .. } => write!(
                f,
                "all matching messages were delivered, {pending} of them await their acknowledgement"
            ),
            Self::Paused { until } => write!(f, "it is paused until {until}"),
            Self::NoRequest => f.write_str("no pull request waits"),
            Self::NoListener => f.write_str("pull requests wait, but nobody listens to their replies"),
            Self::NotBound => f.write_str("nobody listens to the deliver subject"),
            Self::MaxAckPending { pending, max, .. } => write!(
                f,
                "{pending} messages await their acknowledgement, as many as may (max_ack_pending {max})"
            ),
            Self::FlowControl { .. } => f.write_str("the receiver has not answered a flow-control request"),
            Self::Paced { .. } => {
                f.write_str("the rate limit or the original pace holds the next message back")
            }
            Self::Overflow => f.write_str("no waiting request meets its own thresholds"),
            Self::Pinned { id } => write!(f, "only requests of others than the pinned client {id} wait"),
        }
    }
}

/// A stored consumer that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the stored configuration of the consumer cannot be read: {0}")]
pub(crate) struct RestoreError(#[from] serde_json::Error);

/// A consumer.
///
/// | what | where |
/// |---|---|
/// | `create`, `restore`, `stop` | `life` |
/// | `update`, `pause`, `reset` | `manage`, `unpin` in `priority` |
/// | `info`, `explain`, `memory` | `info` |
/// | `pull` | `pull` |
/// | `ack`, `holder_gone` | `ack` |
/// | `interest_changed`, `flow_answer` | `push` |
/// | `appended`, `needs`, `filters_match` | `position` |
/// | `removed`, `purged` | `vanish` |
/// | `is_ready`, `deliver` | `deliver` |
/// | `next_deadline`, `expire` | `timers` |
/// | `stored_config`, `is_dirty`, `change_size`, `take_change` | `record` |
/// | `announce` | `events` |
#[derive(Debug)]
pub(crate) struct Consumer {
    home: Arc<Home>,
    name: Box<str>,
    config: Box<ConsumerConfig>,
    created: Timestamp,
    /// Up to where the initial set was taken, on a `last_per_subject` consumer.
    initial_up_to: Option<u64>,
    matcher: Matcher,
    /// Number of the last delivery, and the highest message delivered.
    delivered: Position,
    /// Everything up to here is settled.
    floor: Position,
    /// The first sequence that was not considered, outside of the initial set.
    next: u64,
    left: Left,
    /// Matches that come next, as far as they were looked up; some may be gone.
    ahead: VecDeque<u64>,
    initial: Option<Box<Initial>>,
    tracked: Rare<Tracked>,
    waiting: Rare<Waiting>,
    log: Log,
    push: Option<Box<push::Push>>,
    pace: Option<Box<pace::Pace>>,
    pin: Option<Box<priority::Pin>>,
    /// Who was given which message, where that counts.
    holders: Option<BTreeMap<u64, u64>>,
    delivered_at: Option<i64>,
    acked_at: Option<i64>,
    /// Since when nobody uses it; `None` for a push consumer that somebody listens to.
    idle_from: Option<u64>,
    jitter: u64,
    pause_due: u64,
    swept: u64,
}

impl Consumer {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration, as stored.
    pub(crate) fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// Its stream has new settings.
    pub(crate) fn set_home(&mut self, home: Arc<Home>) {
        self.home = home;
    }
}
