//! What a capsule is, as JSON that tools in other languages read and write too. Pure.

use std::collections::BTreeMap;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Message};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;

use crate::admin::StoredMessage;
use crate::delivery::Delivery;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::fingerprint::Record;
use crate::ops::recorder::Incident;

/// The version that this kit writes, and the newest that it reads.
pub const SCHEMA_VERSION: u64 = 1;

/// Why a capsule was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Trigger {
    /// By hand, or because a handler failed.
    #[default]
    Manual,
    /// A message went to the dead-letter queue.
    Dlq,
    /// A consumer took much longer for its usual work.
    Anomaly,
    /// A shadow came to another result.
    ShadowMismatch,
    /// Messages piled up and none was processed.
    Stall,
}

impl Trigger {
    /// As it stands in a capsule.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Dlq => "dlq",
            Self::Anomaly => "anomaly",
            Self::ShadowMismatch => "shadow_mismatch",
            Self::Stall => "stall",
        }
    }
}

impl std::fmt::Display for Trigger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message in a capsule, as it was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapsuleMessage {
    /// When it was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub time: OffsetDateTime,
    /// Its headers: all values of each name.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "or_default"
    )]
    pub header: BTreeMap<String, Vec<String>>,
    /// Its subject.
    pub subject: String,
    /// Its payload, compressed if it was.
    #[serde(default, serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub data: Bytes,
    /// Its sequence.
    #[serde(default)]
    pub sequence: u64,
}

/// A failing message with its neighbourhood.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capsule {
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// The consumer's fingerprint at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Record>,
    /// Its name in the bucket.
    pub id: String,
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// Why it was made.
    pub trigger: Trigger,
    /// The subject of the failing message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// More about why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The messages, by sequence.
    #[serde(default, deserialize_with = "or_default")]
    pub messages: Vec<CapsuleMessage>,
    /// What the flight recorder held.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "or_default"
    )]
    pub flight_timeline: Vec<Incident>,
    /// The sequence of the failing message; 0 when it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failing_seq: u64,
    /// The version of this form.
    #[serde(default)]
    pub schema_version: u64,
}

impl Capsule {
    /// Reads JSON. Fields that are not known are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Decode`] when it is no capsule, or one of a newer version.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let broken = || Error::new(ErrorKind::Decode, "reading a capsule");
        let capsule: Self = serde_json::from_slice(json).map_err(|error| broken().because(error))?;
        if capsule.schema_version > SCHEMA_VERSION {
            let why = format!(
                "it has version {}, this kit reads up to {SCHEMA_VERSION}",
                capsule.schema_version
            );
            return Err(broken().because(why));
        }
        Ok(capsule)
    }

    /// Writes JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Encode`] for a time that RFC 3339 cannot write.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|error| Error::new(ErrorKind::Encode, "writing a capsule").because(error))
    }
}

impl From<&StoredMessage> for CapsuleMessage {
    fn from(message: &StoredMessage) -> Self {
        Self {
            time: message.time,
            header: to_lists(&message.headers),
            subject: message.subject.clone(),
            data: message.data.clone(),
            sequence: message.sequence,
        }
    }
}

impl CapsuleMessage {
    /// The message of a delivery, as its handler sees it; `None` when it does not come from a stream.
    #[must_use]
    pub fn of(delivery: &Delivery) -> Option<Self> {
        let found = delivery.metadata()?;
        Some(Self {
            time: found.stored().into(),
            header: delivery.headers.as_ref().map(to_lists).unwrap_or_default(),
            subject: delivery.subject.to_string(),
            data: delivery.payload.clone(),
            sequence: found.stream_sequence,
        })
    }

    /// As the core client knows it, without a reply subject.
    pub(super) fn to_message(&self) -> Result<Message> {
        let mut headers = HeaderMap::new();
        for (name, values) in &self.header {
            for value in values {
                let broken = || {
                    Error::new(
                        ErrorKind::InvalidHeader,
                        format!("the header {name} of a capsule"),
                    )
                };
                let name: HeaderName = name.parse().map_err(|_| broken())?;
                let value: HeaderValue = value.parse().map_err(|_| broken())?;
                headers.append(name, value);
            }
        }
        Ok(Message {
            subject: self.subject.as_str().into(),
            reply: None,
            length: self.data.len(),
            payload: self.data.clone(),
            headers: (!headers.is_empty()).then_some(headers),
            status: None,
            description: None,
        })
    }
}

/// Replaces the values of headers that carry credentials, whatever the case of their names.
pub fn redact_credentials(message: &mut CapsuleMessage) {
    const SECRET: [&str; 4] = ["authorization", "nats-api-token", "cookie", "x-api-key"];
    for (name, values) in &mut message.header {
        if SECRET.contains(&name.to_ascii_lowercase().as_str()) {
            *values = vec!["[redacted]".to_owned()];
        }
    }
}

fn to_lists(headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
    headers
        .iter()
        .map(|(name, values)| {
            let values = values.iter().map(|value| value.as_str().to_owned()).collect();
            (name.to_string(), values)
        })
        .collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What is absent or `null` is empty.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> std::result::Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

fn to_base64<S: Serializer>(data: &Bytes, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&STANDARD.encode(data))
}

fn from_base64<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Bytes, D::Error> {
    let text = Option::<String>::deserialize(from)?.unwrap_or_default();
    STANDARD
        .decode(text)
        .map(Into::into)
        .map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capsule_is_the_json_that_others_read() {
        let capsule = Capsule {
            created_at: OffsetDateTime::UNIX_EPOCH,
            fingerprint: None,
            id: "abc".into(),
            stream: "ORDERS".into(),
            consumer: "worker".into(),
            trigger: Trigger::ShadowMismatch,
            subject: String::new(),
            reason: "why".into(),
            messages: vec![CapsuleMessage {
                time: OffsetDateTime::UNIX_EPOCH,
                header: BTreeMap::from([("K".into(), vec!["a".into(), "b".into()])]),
                subject: "orders.new".into(),
                data: Bytes::from_static(b"hi"),
                sequence: 7,
            }],
            flight_timeline: Vec::new(),
            failing_seq: 0,
            schema_version: 1,
        };
        let json = String::from_utf8(capsule.to_json().unwrap()).unwrap();
        assert_eq!(
            json,
            r#"{"createdAt":"1970-01-01T00:00:00Z","id":"abc","stream":"ORDERS","consumer":"worker","trigger":"shadow_mismatch","reason":"why","messages":[{"time":"1970-01-01T00:00:00Z","header":{"K":["a","b"]},"subject":"orders.new","data":"aGk=","sequence":7}],"schemaVersion":1}"#
        );
        assert_eq!(Capsule::from_json(json.as_bytes()).unwrap(), capsule);
    }

    #[test]
    fn null_is_empty_and_a_newer_version_is_refused() {
        let json = |version: u64| {
            format!(
                r#"{{"createdAt":"2026-01-02T03:04:05.123456789Z","id":"a","stream":"S","consumer":"c","trigger":"dlq","unknown":1,
                "messages":[{{"time":"2026-01-02T03:04:05Z","subject":"s","data":null,"sequence":1}}],"schemaVersion":{version}}}"#
            )
        };
        let capsule = Capsule::from_json(json(1).as_bytes()).unwrap();
        assert!(capsule.messages[0].data.is_empty());
        let nothing = json(1).replace(r#""messages":["#, r#""messages":null,"x":["#);
        assert!(
            Capsule::from_json(nothing.as_bytes())
                .unwrap()
                .messages
                .is_empty()
        );
        let error = Capsule::from_json(json(2).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Decode);
        assert!(
            std::error::Error::source(&error)
                .unwrap()
                .to_string()
                .contains("version 2")
        );
    }

    #[test]
    fn credentials_are_taken_out_in_any_case() {
        let mut message = CapsuleMessage {
            time: OffsetDateTime::UNIX_EPOCH,
            header: [
                "authorization",
                "COOKIE",
                "X-Api-Key",
                "Nats-Api-Token",
                "Trace-Id",
            ]
            .map(|name| (name.to_owned(), vec!["secret".to_owned()]))
            .into(),
            subject: "s".into(),
            data: Bytes::new(),
            sequence: 1,
        };
        redact_credentials(&mut message);
        let kept: Vec<_> = message
            .header
            .iter()
            .filter(|(_, values)| values[0] == "secret")
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(kept, ["Trace-Id"]);
    }

    #[test]
    fn every_trigger_is_written_as_it_is_shown() {
        for trigger in [
            Trigger::Manual,
            Trigger::Dlq,
            Trigger::Anomaly,
            Trigger::ShadowMismatch,
            Trigger::Stall,
        ] {
            assert_eq!(serde_json::to_string(&trigger).unwrap(), format!("\"{trigger}\""));
        }
    }

    #[test]
    fn a_header_that_cannot_be_is_an_error() {
        let message = CapsuleMessage {
            time: OffsetDateTime::UNIX_EPOCH,
            header: BTreeMap::from([("K".into(), vec!["a\r\nb".into()])]),
            subject: "s".into(),
            data: Bytes::new(),
            sequence: 1,
        };
        assert_eq!(message.to_message().unwrap_err().kind(), ErrorKind::InvalidHeader);
    }
}
