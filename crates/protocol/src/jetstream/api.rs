//! The subjects of the API: which call a subject means, and which subject a call has.
//!
//! Every call is a request on `$JS.API.…`; the rest of the subject says which, and on what. [`ApiCall::parse`] reads
//! it, `Display` writes it. A server with a domain answers `$JS.<domain>.API.…` too, see [`in_domain`].
//!
//! What is not listed here gets no answer, as from nats-server: unknown verbs, a wrong number of tokens, and the
//! calls that only a cluster's meta group answers.

use std::fmt;

use crate::jetstream::account::{AccountInfo, AccountPurgeResponse};
use crate::jetstream::consumer::requests::{
    ConsumerCreateResponse, ConsumerDeleteResponse, ConsumerInfoResponse, ConsumerListResponse,
    ConsumerNamesResponse, ConsumerPauseResponse, ConsumerResetResponse, ConsumerUnpinResponse,
};
use crate::jetstream::response::{ApiResponse, Response, bare_failure};
use crate::jetstream::stream::get::MessageGetResponse;
use crate::jetstream::stream::requests::{
    MessageDeleteResponse, PurgeResponse, RestoreResponse, SnapshotResponse, StreamCreateResponse,
    StreamDeleteResponse, StreamInfoResponse, StreamListResponse, StreamNamesResponse, StreamUpdateResponse,
};
use crate::jetstream::{ApiError, ErrorCode};

/// What the subject of every call begins with.
pub const API_PREFIX: &str = "$JS.API.";

/// A call of the API, with the names in its subject as they stand there, unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiCall<'a> {
    /// `INFO`: what the account uses.
    AccountInfo,
    /// `ACCOUNT.PURGE.<account>`: deletes all streams of an account; system account only.
    AccountPurge {
        /// The account.
        account: &'a str,
    },
    /// `STREAM.NAMES`
    StreamNames,
    /// `STREAM.LIST`
    StreamList,
    /// `STREAM.<verb>.<stream>` and the like.
    Stream {
        /// What to do.
        verb: StreamVerb,
        /// The stream.
        stream: &'a str,
    },
    /// `DIRECT.GET.<stream>` and `DIRECT.GET.<stream>.<subject>`
    DirectGet {
        /// The stream.
        stream: &'a str,
        /// The subject whose last message is wanted, all that follows the stream.
        subject: Option<&'a str>,
    },
    /// `CONSUMER.NAMES.<stream>`
    ConsumerNames {
        /// The stream.
        stream: &'a str,
    },
    /// `CONSUMER.LIST.<stream>`
    ConsumerList {
        /// The stream.
        stream: &'a str,
    },
    /// `CONSUMER.CREATE.<stream>`, maybe with `.<consumer>`, maybe with `.<filter>` behind that
    ConsumerCreate {
        /// The stream.
        stream: &'a str,
        /// The consumer.
        consumer: Option<&'a str>,
        /// The filter, all that follows the consumer; `None` without a consumer.
        filter: Option<&'a str>,
    },
    /// `CONSUMER.<verb>.<stream>.<consumer>` and the like.
    Consumer {
        /// What to do.
        verb: ConsumerVerb,
        /// The stream.
        stream: &'a str,
        /// The consumer.
        consumer: &'a str,
    },
}

macro_rules! verbs {
    ($(#[$doc:meta])* $name:ident { $($text:literal $verb:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`")] $verb,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$verb,)*];

            /// The tokens between `STREAM.` or `CONSUMER.` and the names.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$verb => $text,)*
                }
            }
        }
    };
}

verbs! {
    /// What a call does to one stream.
    StreamVerb {
        "CREATE" Create,
        "UPDATE" Update,
        "INFO" Info,
        "DELETE" Delete,
        "PURGE" Purge,
        "SNAPSHOT" Snapshot,
        "RESTORE" Restore,
        "MSG.GET" MessageGet,
        "MSG.DELETE" MessageDelete,
        "CANCEL_MOVE" CancelMove,
        "LEADER.STEPDOWN" LeaderStepdown,
        "PEER.REMOVE" PeerRemove,
        "PEER.EVACUATE" PeerEvacuate,
    }
}

verbs! {
    /// What a call does to one consumer.
    ConsumerVerb {
        "DURABLE.CREATE" DurableCreate,
        "INFO" Info,
        "DELETE" Delete,
        "PAUSE" Pause,
        "UNPIN" Unpin,
        "RESET" Reset,
        "MSG.NEXT" Next,
        "LEADER.STEPDOWN" LeaderStepdown,
        "PEER.REMOVE" PeerRemove,
        "PEER.EVACUATE" PeerEvacuate,
    }
}

/// Splits `text` into at most `N` tokens of at least one byte; `None` when that does not work out.
fn tokens<'a, const N: usize>(text: &'a str, buffer: &mut [&'a str; N]) -> Option<usize> {
    let mut count = 0;
    for token in text.split('.') {
        if token.is_empty() || count == N {
            return None;
        }
        buffer[count] = token;
        count += 1;
    }
    Some(count)
}

/// A remainder of a subject; `None` when it is empty or has an empty token.
fn remainder(text: &str) -> Option<&str> {
    (!text.split('.').any(str::is_empty)).then_some(text)
}

impl<'a> ApiCall<'a> {
    /// Reads a subject that begins with [`API_PREFIX`].
    pub fn parse(subject: &'a str) -> Option<Self> {
        Self::parse_tail(subject.strip_prefix(API_PREFIX)?)
    }

    /// Reads what follows `API.` in the subject.
    pub fn parse_tail(tail: &'a str) -> Option<Self> {
        match tail.split_once('.') {
            None if tail == "INFO" => Some(Self::AccountInfo),
            Some(("STREAM", rest)) => Self::parse_stream(rest),
            Some(("CONSUMER", rest)) => Self::parse_consumer(rest),
            Some(("DIRECT", rest)) => {
                let (stream, subject) = split_name(rest.strip_prefix("GET.")?)?;
                Some(Self::DirectGet { stream, subject })
            }
            Some(("ACCOUNT", rest)) => {
                let account = rest.strip_prefix("PURGE.")?;
                (!account.is_empty() && !account.contains('.')).then_some(Self::AccountPurge { account })
            }
            _ => None,
        }
    }

    fn parse_stream(rest: &'a str) -> Option<Self> {
        let mut buffer = [""; 3];
        let count = tokens(rest, &mut buffer)?;
        let verb = match buffer[..count] {
            ["NAMES"] => return Some(Self::StreamNames),
            ["LIST"] => return Some(Self::StreamList),
            ["CREATE", _] => StreamVerb::Create,
            ["UPDATE", _] => StreamVerb::Update,
            ["INFO", _] => StreamVerb::Info,
            ["DELETE", _] => StreamVerb::Delete,
            ["PURGE", _] => StreamVerb::Purge,
            ["SNAPSHOT", _] => StreamVerb::Snapshot,
            ["RESTORE", _] => StreamVerb::Restore,
            ["CANCEL_MOVE", _] => StreamVerb::CancelMove,
            ["MSG", "GET", _] => StreamVerb::MessageGet,
            ["MSG", "DELETE", _] => StreamVerb::MessageDelete,
            ["LEADER", "STEPDOWN", _] => StreamVerb::LeaderStepdown,
            ["PEER", "REMOVE", _] => StreamVerb::PeerRemove,
            ["PEER", "EVACUATE", _] => StreamVerb::PeerEvacuate,
            _ => return None,
        };
        Some(Self::Stream {
            verb,
            stream: buffer[count - 1],
        })
    }

    fn parse_consumer(rest: &'a str) -> Option<Self> {
        if let Some(names) = rest.strip_prefix("CREATE.") {
            let (stream, rest) = split_name(names)?;
            let (consumer, filter) = match rest {
                Some(rest) => split_name(rest).map(|(consumer, filter)| (Some(consumer), filter))?,
                None => (None, None),
            };
            return Some(Self::ConsumerCreate {
                stream,
                consumer,
                filter,
            });
        }
        let mut buffer = [""; 4];
        let count = tokens(rest, &mut buffer)?;
        let verb = match buffer[..count] {
            ["NAMES", stream] => return Some(Self::ConsumerNames { stream }),
            ["LIST", stream] => return Some(Self::ConsumerList { stream }),
            ["INFO", _, _] => ConsumerVerb::Info,
            ["DELETE", _, _] => ConsumerVerb::Delete,
            ["PAUSE", _, _] => ConsumerVerb::Pause,
            ["UNPIN", _, _] => ConsumerVerb::Unpin,
            ["RESET", _, _] => ConsumerVerb::Reset,
            ["DURABLE", "CREATE", _, _] => ConsumerVerb::DurableCreate,
            ["MSG", "NEXT", _, _] => ConsumerVerb::Next,
            ["LEADER", "STEPDOWN", _, _] => ConsumerVerb::LeaderStepdown,
            ["PEER", "REMOVE", _, _] => ConsumerVerb::PeerRemove,
            ["PEER", "EVACUATE", _, _] => ConsumerVerb::PeerEvacuate,
            _ => return None,
        };
        Some(Self::Consumer {
            verb,
            stream: buffer[count - 2],
            consumer: buffer[count - 1],
        })
    }

    /// The stream the call is about.
    pub fn stream(&self) -> Option<&'a str> {
        match *self {
            Self::AccountInfo | Self::AccountPurge { .. } | Self::StreamNames | Self::StreamList => None,
            Self::Stream { stream, .. }
            | Self::DirectGet { stream, .. }
            | Self::ConsumerNames { stream }
            | Self::ConsumerList { stream }
            | Self::ConsumerCreate { stream, .. }
            | Self::Consumer { stream, .. } => Some(stream),
        }
    }

    /// Whether a server outside a cluster answers `503/10010` to the call, whatever it says.
    pub fn needs_cluster(&self) -> bool {
        matches!(
            self,
            Self::Stream {
                verb: StreamVerb::CancelMove
                    | StreamVerb::LeaderStepdown
                    | StreamVerb::PeerRemove
                    | StreamVerb::PeerEvacuate,
                ..
            } | Self::Consumer {
                verb: ConsumerVerb::LeaderStepdown | ConsumerVerb::PeerRemove | ConsumerVerb::PeerEvacuate,
                ..
            }
        )
    }

    /// The answer that tells of `error` in the call's own type; `None` for the two calls whose answers are not JSON,
    /// direct get and the request for messages.
    ///
    /// For failures that are known before the request is read: no JetStream for the account, an API level that is too
    /// high, a call for clusters, a stream that is offline.
    pub fn failure(&self, error: &ApiError) -> Option<Vec<u8>> {
        fn answer<T: ApiResponse>(error: &ApiError) -> Vec<u8> {
            Response::<T>(Err(error.clone())).to_vec()
        }
        Some(match self {
            Self::AccountInfo => answer::<AccountInfo>(error),
            Self::AccountPurge { .. } => answer::<AccountPurgeResponse>(error),
            Self::StreamNames => answer::<StreamNamesResponse>(error),
            Self::StreamList => answer::<StreamListResponse>(error),
            Self::Stream { verb, .. } => match verb {
                StreamVerb::Create => answer::<StreamCreateResponse>(error),
                StreamVerb::Update => answer::<StreamUpdateResponse>(error),
                StreamVerb::Info => answer::<StreamInfoResponse>(error),
                StreamVerb::Delete => answer::<StreamDeleteResponse>(error),
                StreamVerb::Purge => answer::<PurgeResponse>(error),
                StreamVerb::Snapshot => answer::<SnapshotResponse>(error),
                StreamVerb::Restore => answer::<RestoreResponse>(error),
                StreamVerb::MessageGet => answer::<MessageGetResponse>(error),
                StreamVerb::MessageDelete => answer::<MessageDeleteResponse>(error),
                StreamVerb::CancelMove => bare_failure("stream_cancel_move_response", error),
                StreamVerb::LeaderStepdown => bare_failure("stream_leader_stepdown_response", error),
                StreamVerb::PeerRemove => bare_failure("stream_remove_peer_response", error),
                StreamVerb::PeerEvacuate => bare_failure("stream_evacuate_peer_response", error),
            },
            Self::DirectGet { .. } => return None,
            Self::ConsumerNames { .. } => answer::<ConsumerNamesResponse>(error),
            Self::ConsumerList { .. } => answer::<ConsumerListResponse>(error),
            Self::ConsumerCreate { .. } => answer::<ConsumerCreateResponse>(error),
            Self::Consumer { verb, .. } => match verb {
                ConsumerVerb::DurableCreate => answer::<ConsumerCreateResponse>(error),
                ConsumerVerb::Info => answer::<ConsumerInfoResponse>(error),
                ConsumerVerb::Delete => answer::<ConsumerDeleteResponse>(error),
                ConsumerVerb::Pause => answer::<ConsumerPauseResponse>(error),
                ConsumerVerb::Unpin => answer::<ConsumerUnpinResponse>(error),
                ConsumerVerb::Reset => answer::<ConsumerResetResponse>(error),
                ConsumerVerb::Next => return None,
                ConsumerVerb::LeaderStepdown => bare_failure("consumer_leader_stepdown_response", error),
                ConsumerVerb::PeerRemove => bare_failure("consumer_remove_peer_response", error),
                ConsumerVerb::PeerEvacuate => bare_failure("consumer_evacuate_peer_response", error),
            },
        })
    }

    /// The answer of a server outside a cluster to a call that needs one.
    pub fn cluster_required(&self) -> Option<Vec<u8>> {
        if self.needs_cluster() {
            self.failure(&ErrorCode::ClusterRequired.error())
        } else {
            None
        }
    }

    /// The subject of the call in a domain: `$JS.<domain>.API.…`.
    pub fn subject_in(&self, domain: &str) -> String {
        let subject = self.to_string();
        let tail = subject.strip_prefix(API_PREFIX).unwrap_or(&subject);
        format!("$JS.{domain}.API.{tail}")
    }
}

/// A failure of the type that is no endpoint's: for the system account without JetStream.
pub fn system_failure(error: &ApiError) -> Vec<u8> {
    bare_failure("system_response", error)
}

/// Splits a name from what follows it; `None` when there is no name or an empty token.
fn split_name(text: &str) -> Option<(&str, Option<&str>)> {
    let text = remainder(text)?;
    match text.split_once('.') {
        Some((name, rest)) => Some((name, Some(rest))),
        None => Some((text, None)),
    }
}

impl fmt::Display for ApiCall<'_> {
    /// The subject of the call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(API_PREFIX)?;
        match *self {
            Self::AccountInfo => f.write_str("INFO"),
            Self::AccountPurge { account } => write!(f, "ACCOUNT.PURGE.{account}"),
            Self::StreamNames => f.write_str("STREAM.NAMES"),
            Self::StreamList => f.write_str("STREAM.LIST"),
            Self::Stream { verb, stream } => write!(f, "STREAM.{}.{stream}", verb.text()),
            Self::DirectGet {
                stream,
                subject: None,
            } => write!(f, "DIRECT.GET.{stream}"),
            Self::DirectGet {
                stream,
                subject: Some(subject),
            } => write!(f, "DIRECT.GET.{stream}.{subject}"),
            Self::ConsumerNames { stream } => write!(f, "CONSUMER.NAMES.{stream}"),
            Self::ConsumerList { stream } => write!(f, "CONSUMER.LIST.{stream}"),
            Self::ConsumerCreate {
                stream,
                consumer,
                filter,
            } => {
                write!(f, "CONSUMER.CREATE.{stream}")?;
                // A filter cannot stand without a consumer in front of it.
                let Some(consumer) = consumer else { return Ok(()) };
                write!(f, ".{consumer}")?;
                filter.map_or(Ok(()), |filter| write!(f, ".{filter}"))
            }
            Self::Consumer {
                verb,
                stream,
                consumer,
            } => {
                write!(f, "CONSUMER.{}.{stream}.{consumer}", verb.text())
            }
        }
    }
}

/// What a subject in a domain stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainTarget<'a> {
    /// A call: what follows `API.`, for [`ApiCall::parse_tail`].
    Call(&'a str),
    /// A publish to a key-value bucket or an object store under this subject.
    Publish(&'a str),
}

/// Reads a subject that begins with `$JS.<domain>.API.`; `None` when it does not, or stands for nothing.
pub fn in_domain<'a>(subject: &'a str, domain: &str) -> Option<DomainTarget<'a>> {
    let tail = subject
        .strip_prefix("$JS.")?
        .strip_prefix(domain)?
        .strip_prefix(".API.")?;
    match tail.split_once('.') {
        Some(("$KV" | "$OBJ", _)) => Some(DomainTarget::Publish(tail)),
        Some(("STREAM" | "CONSUMER" | "DIRECT" | "META" | "SERVER" | "ACCOUNT", _)) => {
            Some(DomainTarget::Call(tail))
        }
        None if tail == "INFO" => Some(DomainTarget::Call(tail)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
