//! Advisories and metrics: what JetStream publishes about itself.
//!
//! An [`Event`] is an id, a time and a body; the body knows its type and the subject it goes to. Events are published
//! in the stream's account, except where a body says otherwise, and only when somebody listens: ask for the subject
//! first, make the body then.
//!
//! ```
//! use windjet_protocol::jetstream::Timestamp;
//! use windjet_protocol::jetstream::advisory::{Event, EventBody, StreamAction, StreamActionKind};
//!
//! let body = StreamAction { stream: "ORDERS".into(), action: StreamActionKind::Create, domain: None };
//! assert_eq!(body.subject(), "$JS.EVENT.ADVISORY.STREAM.CREATED.ORDERS");
//! let event = Event { id: "4xY".into(), timestamp: Timestamp::from_unix_nanos(0), body };
//! assert_eq!(
//!     String::from_utf8(event.to_vec()).unwrap(),
//!     concat!(
//!         r#"{"type":"io.nats.jetstream.advisory.v1.stream_action","id":"4xY","#,
//!         r#""timestamp":"1970-01-01T00:00:00Z","stream":"ORDERS","action":"create"}"#
//!     )
//! );
//! ```

mod consumer;
mod server;
mod stream;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::jetstream::Timestamp;

pub use consumer::{
    ConsumerAction, ConsumerActionKind, ConsumerPause, GroupPinned, GroupUnpinned, MaxDeliveries,
    MessageAcked, MessageNaked, MessageTerminated, UnpinReason,
};
pub use server::{ApiAudit, ApiLimitReached, ClientInfo, OutOfStorage};
pub use stream::{
    BatchAbandonReason, BatchAbandoned, RestoreComplete, RestoreCreate, SnapshotComplete, SnapshotCreate,
    StreamAction, StreamActionKind,
};

/// What the subject of every advisory begins with.
pub const ADVISORY_PREFIX: &str = "$JS.EVENT.ADVISORY.";
/// What the subject of every metric begins with.
pub const METRIC_PREFIX: &str = "$JS.EVENT.METRIC.";

/// The body of an event.
pub trait EventBody: Serialize {
    /// The full `type`, such as `io.nats.jetstream.advisory.v1.stream_action`.
    const TYPE: &'static str;

    /// The subject on which it is published.
    fn subject(&self) -> String;
}

/// An event: `type`, `id`, `timestamp`, then the members of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<B> {
    /// Unique id of 22 letters and digits.
    pub id: String,
    /// When it happened.
    pub timestamp: Timestamp,
    /// What happened.
    pub body: B,
}

impl<B: EventBody> Event<B> {
    /// The JSON text to publish.
    pub fn to_vec(&self) -> Vec<u8> {
        // Serialising fails only for maps whose keys are no strings, which no event has.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl<B: EventBody> Serialize for Event<B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Parts<'a, B> {
            r#type: &'static str,
            id: &'a str,
            timestamp: Timestamp,
            #[serde(flatten)]
            body: &'a B,
        }
        Parts {
            r#type: B::TYPE,
            id: &self.id,
            timestamp: self.timestamp,
            body: &self.body,
        }
        .serialize(serializer)
    }
}

impl<'de, B: EventBody + DeserializeOwned> Deserialize<'de> for Event<B> {
    /// Reads an event; it must be of the type `B::TYPE`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            r#type: String,
            id: String,
            timestamp: Timestamp,
            #[serde(flatten)]
            members: Map<String, Value>,
        }
        let parts = Parts::deserialize(deserializer)?;
        if parts.r#type != B::TYPE {
            return Err(D::Error::custom(format_args!(
                "type is {:?}, not {:?}",
                parts.r#type,
                B::TYPE
            )));
        }
        let body = B::deserialize(Value::Object(parts.members)).map_err(D::Error::custom)?;
        Ok(Self {
            id: parts.id,
            timestamp: parts.timestamp,
            body,
        })
    }
}

/// Implements [`EventBody`] for a body whose subject is a fixed part and the names of stream and consumer.
macro_rules! event_body {
    ($body:ident, $type:literal, $prefix:ident $subject:literal $(, $name:ident)*) => {
        impl $crate::jetstream::advisory::EventBody for $body {
            const TYPE: &'static str = concat!("io.nats.jetstream.", $type);

            fn subject(&self) -> String {
                let parts = [$crate::jetstream::advisory::$prefix, $subject $(, ".", &self.$name)*];
                parts.concat()
            }
        }
    };
}
use event_body;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jetstream::{ApiError, ErrorCode};

    fn text<B: EventBody + DeserializeOwned + std::fmt::Debug + PartialEq>(body: B) -> (String, String) {
        let event = Event {
            id: "i".into(),
            timestamp: Timestamp::ZERO,
            body,
        };
        let text = String::from_utf8(event.to_vec()).unwrap();
        assert_eq!(serde_json::from_str::<Event<B>>(&text).unwrap(), event);
        let head = format!(
            r#"{{"type":"{}","id":"i","timestamp":"0001-01-01T00:00:00Z""#,
            B::TYPE
        );
        let (before, after) = text.split_at(head.len());
        assert_eq!(before, head);
        (event.body.subject(), after.to_owned())
    }

    // The other bodies are held against captured ones in `fixtures`.

    #[test]
    fn failed_snapshot_tells_why() {
        let error = Some("disk".to_owned());
        let (subject, members) = text(SnapshotComplete {
            stream: "S".into(),
            error,
            ..SnapshotComplete::default()
        });
        assert_eq!(subject, "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S");
        assert!(members.ends_with(r#","error":"disk"}"#));
    }

    #[test]
    fn events_of_the_server_go_to_the_system_account() {
        let (subject, members) = text(ApiLimitReached {
            server: "n".into(),
            domain: None,
            dropped: 3,
        });
        assert_eq!(subject, "$JS.EVENT.ADVISORY.API.LIMIT_REACHED");
        assert_eq!(members, r#","server":"n","dropped":3}"#);
        let (subject, members) = text(OutOfStorage {
            server: "n".into(),
            server_id: "NX".into(),
            ..OutOfStorage::default()
        });
        assert_eq!(subject, "$JS.EVENT.ADVISORY.SERVER.OUT_OF_STORAGE");
        assert_eq!(members, r#","server":"n","server_id":"NX","cluster":""}"#);
    }

    #[test]
    fn copy_for_the_system_account_names_the_account() {
        let (_, members) = text(BatchAbandoned {
            account: Some("A".into()),
            stream: "S".into(),
            domain: Some("hub".into()),
            batch: "b".into(),
            reason: BatchAbandonReason::Timeout,
        });
        assert_eq!(
            members,
            r#","account":"A","stream":"S","domain":"hub","batch":"b","reason":"timeout"}"#
        );
    }

    #[test]
    fn event_of_another_type_is_refused() {
        let event = Event {
            id: "i".into(),
            timestamp: Timestamp::ZERO,
            body: ApiLimitReached::default(),
        };
        let refused = serde_json::from_slice::<Event<OutOfStorage>>(&event.to_vec());
        assert!(refused.unwrap_err().to_string().contains("api_limit_reached"));
    }

    #[test]
    fn audit_carries_request_and_answer_as_texts() {
        let error: ApiError = ErrorCode::StreamNotFound.error();
        let response = serde_json::to_string(&error).unwrap();
        let (subject, members) = text(ApiAudit {
            server: "n".into(),
            response,
            ..ApiAudit::default()
        });
        assert_eq!(subject, "$JS.EVENT.ADVISORY.API");
        assert!(members.contains(r#""response":"{\"code\":404,"#) && !members.contains("request"));
    }
}
