//! Reading stored messages: message get and direct get.
//!
//! Both take the same body, [`MessageGetRequest`], but read it by different rules: [`MessageGetRequest::select`] for
//! `$JS.API.STREAM.MSG.GET`, which gives one message as JSON, and [`DirectGet::parse`] for `$JS.API.DIRECT.GET`,
//! which gives one or many as messages and refuses by status.

use std::borrow::Cow;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::jetstream::request::{ApiRequest, BodyRule};
use crate::jetstream::response::ApiResponse;
use crate::jetstream::serde_util::{is_blank, is_false, is_zero, non_blank, null_default};
use crate::jetstream::status::Status;
use crate::jetstream::{ApiError, ErrorCode, Timestamp};

/// Body of a message get and of a direct get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageGetRequest {
    /// The message of this sequence, or with another choice the lowest sequence that is looked at.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub seq: u64,
    /// The newest message that matches.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub last_by_subj: Option<String>,
    /// The first message that matches.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub next_by_subj: Option<String>,
    /// Most messages; direct get only. 0 for one.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub batch: i64,
    /// Most bytes, subjects and headers included; direct get only. 0 for the server's bound.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub max_bytes: i64,
    /// The first message stored at or after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// The newest message of each subject that matches one of these; direct get only.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub multi_last: Vec<String>,
    /// With `multi_last`: as the stream was when this sequence was its last.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub up_to_seq: u64,
    /// With `multi_last`: as the stream was just before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_time: Option<Timestamp>,
    /// Whether the answer leaves the headers out. Default false.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub no_hdr: bool,
}

impl ApiRequest for MessageGetRequest {
    const BODY: BodyRule = BodyRule::Required;
}

/// Which one message is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSelector<'a> {
    /// The message of this sequence.
    Sequence(u64),
    /// The newest message that matches the filter.
    Last {
        /// Subject, maybe with wildcards.
        filter: Cow<'a, str>,
    },
    /// The first message at or after a sequence that matches the filter.
    Next {
        /// Subject, maybe with wildcards.
        filter: Cow<'a, str>,
        /// Lowest sequence; 0 for the first there is.
        from: u64,
    },
    /// The first message stored at or after a time that matches the filter.
    FromTime {
        /// Earliest time.
        time: Timestamp,
        /// Subject, maybe with wildcards; `None` for all.
        filter: Option<Cow<'a, str>>,
    },
}

impl<'a> MessageSelector<'a> {
    /// `None` when nothing or two contradicting things are chosen.
    fn choose(
        seq: u64,
        last: Option<Cow<'a, str>>,
        next: Option<Cow<'a, str>>,
        time: Option<Timestamp>,
    ) -> Option<Self> {
        match (seq, last, next, time) {
            (seq @ 1.., None, None, None) => Some(Self::Sequence(seq)),
            (0, Some(filter), None, None) => Some(Self::Last { filter }),
            (from, None, Some(filter), None) => Some(Self::Next { filter, from }),
            (0, None, filter, Some(time)) => Some(Self::FromTime { time, filter }),
            _ => None,
        }
    }
}

impl MessageGetRequest {
    /// Which message a message get asks for.
    ///
    /// # Errors
    ///
    /// `400/10003` when it asks for none, for two, or for a batch.
    pub fn select(&self) -> Result<MessageSelector<'_>, ApiError> {
        if self.batch > 0 || self.max_bytes > 0 {
            return Err(ErrorCode::BadRequest.error());
        }
        let [last, next] =
            [&self.last_by_subj, &self.next_by_subj].map(|text| text.as_deref().map(Cow::Borrowed));
        MessageSelector::choose(self.seq, last, next, self.start_time)
            .ok_or_else(|| ErrorCode::BadRequest.error())
    }

    /// Whether nothing is asked for at all.
    fn asks_nothing(&self) -> bool {
        self.seq == 0
            && self.last_by_subj.is_none()
            && self.next_by_subj.is_none()
            && self.multi_last.is_empty()
            && self.start_time.is_none()
    }
}

/// What a direct get asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectGet<'a> {
    /// Which messages.
    pub query: DirectQuery<'a>,
    /// Whether the answer leaves the headers out; counts for single messages only.
    pub no_headers: bool,
}

/// Which messages a direct get asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectQuery<'a> {
    /// One message.
    One(MessageSelector<'a>),
    /// Several messages in ascending order.
    Batch {
        /// Where to begin.
        start: BatchStart,
        /// Subject, maybe with wildcards; `None` for all.
        filter: Option<String>,
        /// Most messages and bytes.
        bounds: BatchBounds,
    },
    /// The newest message of each subject that matches.
    MultiLast {
        /// Subjects, maybe with wildcards; never empty.
        filters: Vec<String>,
        /// Lowest sequence that is sent; chosen messages below it are left out.
        from: u64,
        /// The state of the stream that is meant.
        up_to: UpTo,
        /// Most messages and bytes.
        bounds: BatchBounds,
    },
}

/// Where a batch of direct gets begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchStart {
    /// At the first message of this or a higher sequence; 0 for the first there is.
    Sequence(u64),
    /// At the first message stored at or after this time.
    Time(Timestamp),
}

/// Bounds of one answer to a batch of direct gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchBounds {
    /// Most messages; `None` for no bound.
    pub messages: Option<u64>,
    /// Most bytes; `None` for the server's bound.
    pub bytes: Option<u64>,
}

/// The past state of a stream that a get of several last messages means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpTo {
    /// As it is now.
    Now,
    /// When this sequence was the last.
    Sequence(u64),
    /// Just before this time.
    Time(Timestamp),
}

impl<'a> DirectGet<'a> {
    /// Reads a direct get: `subject` is what follows the stream's name in the request's subject, if anything.
    ///
    /// # Errors
    ///
    /// The status to answer, without further headers.
    pub fn parse(subject: Option<&'a str>, body: &[u8]) -> Result<Self, Status> {
        let body = body.trim_ascii();
        if let Some(subject) = subject {
            let request = if body.is_empty() {
                MessageGetRequest::default()
            } else {
                read(body)?
            };
            let other = MessageGetRequest {
                no_hdr: false,
                ..request.clone()
            };
            if other != MessageGetRequest::default() {
                return Err(Status::ContradictingRequest);
            }
            let query = DirectQuery::One(MessageSelector::Last {
                filter: Cow::Borrowed(subject),
            });
            return Ok(Self {
                query,
                no_headers: request.no_hdr,
            });
        }
        if body.is_empty() {
            return Err(Status::EmptyRequest);
        }
        let request = read(body)?;
        if request.asks_nothing() {
            return Err(Status::EmptyRequest);
        }
        let no_headers = request.no_hdr;
        let query = DirectQuery::from_request(request).ok_or(Status::ContradictingRequest)?;
        Ok(Self { query, no_headers })
    }
}

/// Reads the body; unknown members never matter here.
fn read(body: &[u8]) -> Result<MessageGetRequest, Status> {
    // serde would take a list of the members in order for the object.
    match body {
        [b'[', ..] => Err(Status::MalformedRequest),
        b"null" => Ok(MessageGetRequest::default()),
        _ => serde_json::from_slice(body).map_err(|_| Status::MalformedRequest),
    }
}

impl DirectQuery<'_> {
    /// `None` for contradictions.
    fn from_request(request: MessageGetRequest) -> Option<Self> {
        let multi = !request.multi_last.is_empty();
        let last = request.last_by_subj.is_some();
        if (last && (request.batch > 0 || multi))
            || (request.next_by_subj.is_some() && multi)
            || (request.up_to_seq > 0 && request.up_to_time.is_some())
        {
            return None;
        }
        let bounds = BatchBounds {
            messages: positive(request.batch),
            bytes: positive(request.max_bytes),
        };
        if multi {
            let up_to = match (request.up_to_seq, request.up_to_time) {
                (0, None) => UpTo::Now,
                (0, Some(time)) => UpTo::Time(time),
                (seq, _) => UpTo::Sequence(seq),
            };
            return Some(Self::MultiLast {
                filters: request.multi_last,
                from: request.seq,
                up_to,
                bounds,
            });
        }
        if bounds.messages.is_some() {
            let start = match (request.seq, request.start_time) {
                (seq, None) => BatchStart::Sequence(seq),
                (0, Some(time)) => BatchStart::Time(time),
                _ => return None,
            };
            return Some(Self::Batch {
                start,
                filter: request.next_by_subj,
                bounds,
            });
        }
        let own = |text: Option<String>| text.map(Cow::Owned);
        MessageSelector::choose(
            request.seq,
            own(request.last_by_subj),
            own(request.next_by_subj),
            request.start_time,
        )
        .map(Self::One)
    }
}

fn positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

/// A stored message as a message get shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoredMessage {
    /// Subject under which it is stored.
    pub subject: String,
    /// Its sequence.
    pub seq: u64,
    /// The whole header block, empty when there is none.
    #[serde(
        rename = "hdrs",
        default,
        skip_serializing_if = "Bytes::is_empty",
        serialize_with = "to_base64",
        deserialize_with = "from_base64"
    )]
    pub headers: Bytes,
    /// The payload.
    #[serde(
        default,
        skip_serializing_if = "Bytes::is_empty",
        serialize_with = "to_base64",
        deserialize_with = "from_base64"
    )]
    pub data: Bytes,
    /// When it was stored.
    pub time: Timestamp,
}

fn to_base64<S: Serializer>(data: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&base64::display::Base64Display::new(data, &BASE64_STANDARD))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    BASE64_STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(serde::de::Error::custom)
}

/// Answer to a message get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageGetResponse {
    /// The message.
    pub message: StoredMessage,
}

impl ApiResponse for MessageGetResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_msg_get_response";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jetstream::request::decode;

    fn selected(body: &str) -> Result<String, ErrorCode> {
        let request =
            decode::<MessageGetRequest>(body.as_bytes(), true).map_err(|err| err.kind().unwrap())?;
        request
            .select()
            .map(|selector| format!("{selector:?}"))
            .map_err(|err| err.kind().unwrap())
    }

    #[test]
    fn message_get_asks_for_exactly_one_message() {
        for (body, selector) in [
            (r#"{"seq":3}"#, "Sequence(3)"),
            (
                r#"{"seq":3,"last_by_subj":"","next_by_subj":null}"#,
                "Sequence(3)",
            ),
            (r#"{"last_by_subj":"a.*"}"#, r#"Last { filter: "a.*" }"#),
            (r#"{"next_by_subj":"a"}"#, r#"Next { filter: "a", from: 0 }"#),
            (
                r#"{"next_by_subj":"a","seq":9,"no_hdr":true}"#,
                r#"Next { filter: "a", from: 9 }"#,
            ),
        ] {
            assert_eq!(selected(body).unwrap(), selector, "{body}");
        }
        let from_time = selected(r#"{"start_time":"2020-01-01T00:00:00Z","next_by_subj":"a"}"#).unwrap();
        assert!(
            from_time.starts_with("FromTime") && from_time.contains(r#"Some("a")"#),
            "{from_time}"
        );
        for body in [
            "",
            "{}",
            "null",
            r#"{"no_hdr":true}"#,
            r#"{"seq":1,"last_by_subj":"a"}"#,
            r#"{"seq":1,"start_time":"2020-01-01T00:00:00Z"}"#,
            r#"{"last_by_subj":"a","start_time":"2020-01-01T00:00:00Z"}"#,
            r#"{"last_by_subj":"a","next_by_subj":"b"}"#,
            r#"{"seq":1,"batch":1}"#,
            r#"{"seq":1,"max_bytes":1}"#,
            r#"{"multi_last":["a"]}"#,
            r#"{"up_to_seq":5}"#,
        ] {
            assert_eq!(selected(body), Err(ErrorCode::BadRequest), "{body}");
        }
        assert_eq!(selected(r#"{"seq":1,"foo":2}"#), Err(ErrorCode::InvalidJson));
    }

    fn direct(body: &str) -> Result<DirectQuery<'static>, Status> {
        DirectGet::parse(None, body.as_bytes()).map(|get| get.query)
    }

    #[test]
    fn direct_get_refuses_by_status() {
        for (body, status) in [
            ("", Status::EmptyRequest),
            ("{}", Status::EmptyRequest),
            ("null", Status::EmptyRequest),
            (r#"{"batch":2}"#, Status::EmptyRequest),
            (r#"{"multi_last":[]}"#, Status::EmptyRequest),
            ("junk", Status::MalformedRequest),
            ("[]", Status::MalformedRequest),
            (r#"{"seq":"1"}"#, Status::MalformedRequest),
            (r#"{"seq":-1}"#, Status::MalformedRequest),
            (r#"{"seq":1,"last_by_subj":"a"}"#, Status::ContradictingRequest),
            (
                r#"{"seq":1,"start_time":"2020-01-01T00:00:00Z"}"#,
                Status::ContradictingRequest,
            ),
            (
                r#"{"last_by_subj":"a","start_time":"2020-01-01T00:00:00Z"}"#,
                Status::ContradictingRequest,
            ),
            (
                r#"{"last_by_subj":"a","next_by_subj":"b"}"#,
                Status::ContradictingRequest,
            ),
            (r#"{"last_by_subj":"a","batch":1}"#, Status::ContradictingRequest),
            (
                r#"{"last_by_subj":"a","multi_last":["b"]}"#,
                Status::ContradictingRequest,
            ),
            (
                r#"{"next_by_subj":"a","multi_last":["b"]}"#,
                Status::ContradictingRequest,
            ),
            (
                r#"{"multi_last":["b"],"up_to_seq":1,"up_to_time":"2020-01-01T00:00:00Z"}"#,
                Status::ContradictingRequest,
            ),
        ] {
            assert_eq!(direct(body), Err(status), "{body}");
        }
    }

    #[test]
    fn direct_get_of_one_message_ignores_unknown_members() {
        let body = br#"{"seq":4,"foo":1,"max_bytes":9,"no_hdr":true,"batch":null}"#;
        let get = DirectGet::parse(None, body).unwrap();
        assert!(get.no_headers);
        assert_eq!(get.query, DirectQuery::One(MessageSelector::Sequence(4)));
    }

    #[test]
    fn direct_get_of_a_batch_begins_at_a_sequence_or_a_time() {
        let bounds = BatchBounds {
            messages: Some(2),
            bytes: Some(100),
        };
        let query = direct(r#"{"seq":4,"batch":2,"max_bytes":100,"next_by_subj":"a.>","up_to_seq":9}"#);
        let filter = Some("a.>".to_owned());
        assert_eq!(
            query,
            Ok(DirectQuery::Batch {
                start: BatchStart::Sequence(4),
                filter,
                bounds
            })
        );
        let query = direct(r#"{"start_time":"1970-01-01T00:00:00Z","batch":2}"#);
        let bounds = BatchBounds {
            messages: Some(2),
            bytes: None,
        };
        let start = BatchStart::Time(Timestamp::from_unix_nanos(0));
        assert_eq!(
            query,
            Ok(DirectQuery::Batch {
                start,
                filter: None,
                bounds
            })
        );
    }

    #[test]
    fn direct_get_of_several_last_messages_has_a_bound_in_the_past() {
        let expected = |from, up_to| {
            Ok(DirectQuery::MultiLast {
                filters: vec!["a".into()],
                from,
                up_to,
                bounds: BatchBounds::default(),
            })
        };
        assert_eq!(direct(r#"{"multi_last":["a"]}"#), expected(0, UpTo::Now));
        assert_eq!(
            direct(r#"{"multi_last":["a"],"seq":3,"up_to_seq":7}"#),
            expected(3, UpTo::Sequence(7))
        );
        let time = UpTo::Time(Timestamp::from_unix_nanos(0));
        assert_eq!(
            direct(r#"{"multi_last":["a"],"up_to_time":"1970-01-01T00:00:00Z"}"#),
            expected(0, time)
        );
    }

    #[test]
    fn direct_get_by_subject_takes_no_other_choice() {
        for body in [
            "",
            "{}",
            "null",
            r#"{"no_hdr":true}"#,
            r#"{"no_hdr":true,"foo":1}"#,
        ] {
            let get = DirectGet::parse(Some("a.b"), body.as_bytes()).unwrap();
            assert_eq!(get.no_headers, body.contains("no_hdr"));
            assert_eq!(
                get.query,
                DirectQuery::One(MessageSelector::Last { filter: "a.b".into() })
            );
        }
        let refused = DirectGet::parse(Some("a.b"), br#"{"seq":1}"#);
        assert_eq!(refused, Err(Status::ContradictingRequest));
        assert_eq!(
            DirectGet::parse(Some("a.b"), b"junk"),
            Err(Status::MalformedRequest)
        );
    }

    #[test]
    fn stored_message_is_shown_in_base64() {
        let message = StoredMessage {
            subject: "A".into(),
            seq: 1,
            headers: Bytes::from_static(b"NATS/1.0\r\nNats-Msg-Id: 0\r\n\r\n"),
            data: Bytes::from_static(b"hello"),
            time: Timestamp::from_unix_nanos(0),
        };
        let text = concat!(
            r#"{"subject":"A","seq":1,"hdrs":"TkFUUy8xLjANCk5hdHMtTXNnLUlkOiAwDQoNCg==","data":"aGVsbG8=","#,
            r#""time":"1970-01-01T00:00:00Z"}"#
        );
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
        assert_eq!(serde_json::from_str::<StoredMessage>(text).unwrap(), message);
        let bare = StoredMessage {
            headers: Bytes::new(),
            data: Bytes::new(),
            ..message
        };
        assert_eq!(
            serde_json::to_string(&bare).unwrap(),
            r#"{"subject":"A","seq":1,"time":"1970-01-01T00:00:00Z"}"#
        );
    }
}
