//! Answers to publishes: the acknowledgement of a stored message, its error form, and the messages of fast batches.
//!
//! An acknowledgement is made for every publish, so [`PubAck::encode`] writes it without serde and without
//! allocation.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::jetstream::ApiError;
use crate::jetstream::serde_util::{is_false, is_zero};

/// Acknowledgement of a publish or of a batch.
///
/// Sent to the reply subject of the publish, without headers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PubAck<'a> {
    /// The stream that stored the message.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Domain of the server, if it has one.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Cow<'a, str>>,
    /// Sequence of the message; of the last one of a batch.
    pub seq: u64,
    /// Whether the message was stored earlier, under this sequence.
    #[serde(default, skip_serializing_if = "is_false")]
    pub duplicate: bool,
    /// New value of the counter, in streams of counters.
    #[serde(borrow, default, rename = "val", skip_serializing_if = "Option::is_none")]
    pub value: Option<Cow<'a, str>>,
    /// Id of the batch that this acknowledges.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Cow<'a, str>>,
    /// Messages of the batch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: u64,
}

impl PubAck<'_> {
    /// Appends the JSON text, with the blank that nats-server puts behind `"duplicate":`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut number = itoa::Buffer::new();
        out.extend_from_slice(b"{\"stream\":");
        write_string(out, &self.stream);
        if let Some(domain) = &self.domain {
            out.extend_from_slice(b",\"domain\":");
            write_string(out, domain);
        }
        out.extend_from_slice(b",\"seq\":");
        out.extend_from_slice(number.format(self.seq).as_bytes());
        if self.duplicate {
            out.extend_from_slice(b",\"duplicate\": true");
        }
        if let Some(value) = &self.value {
            out.extend_from_slice(b",\"val\":");
            write_string(out, value);
        }
        if let Some(batch) = &self.batch {
            out.extend_from_slice(b",\"batch\":");
            write_string(out, batch);
        }
        if self.batch.is_some() || self.count > 0 {
            out.extend_from_slice(b",\"count\":");
            out.extend_from_slice(number.format(self.count).as_bytes());
        }
        out.push(b'}');
    }
}

/// Appends a JSON string.
fn write_string(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
    if text.as_bytes().iter().all(plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a string to memory does not fail.
        let _ = serde_json::to_writer(out, text);
    }
}

/// Appends the answer to a publish that `stream` refused.
pub fn encode_pub_error(stream: &str, error: &ApiError, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"error\":");
    // Writing numbers and strings to memory does not fail.
    let _ = serde_json::to_writer(&mut *out, error);
    out.extend_from_slice(b",\"stream\":");
    write_string(out, stream);
    out.extend_from_slice(b",\"seq\":0}");
}

/// Reads the answer to a publish.
///
/// # Errors
///
/// The outer error when the text is not such an answer; the inner one is the stream's.
pub fn decode_pub_ack(text: &[u8]) -> serde_json::Result<Result<PubAck<'_>, ApiError>> {
    #[derive(Deserialize)]
    struct Failure {
        error: Option<ApiError>,
    }
    match serde_json::from_slice::<Failure>(text)?.error {
        Some(error) => Ok(Err(error)),
        None => serde_json::from_slice(text).map(Ok),
    }
}

/// What a stream tells the publisher of a fast batch before the final [`PubAck`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum BatchFlow {
    /// Messages were stored, and how often such an answer comes.
    #[serde(rename = "ack")]
    Ack {
        /// Highest batch sequence that is stored; 0 at the start.
        seq: u64,
        /// Messages from one answer to the next.
        msgs: u64,
    },
    /// Messages are missing.
    #[serde(rename = "gap")]
    Gap {
        /// The batch sequence that was expected.
        last_seq: u64,
        /// The batch sequence that came.
        seq: u64,
    },
    /// A message was refused.
    #[serde(rename = "err")]
    Error {
        /// Its batch sequence.
        seq: u64,
        /// Why.
        error: ApiError,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jetstream::ErrorCode;

    fn encoded(ack: &PubAck<'_>) -> String {
        let mut out = Vec::new();
        ack.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn acknowledgements_have_the_text_of_the_real_server() {
        let ack = PubAck {
            stream: "A".into(),
            seq: 7,
            ..PubAck::default()
        };
        assert_eq!(encoded(&ack), r#"{"stream":"A","seq":7}"#);
        let domain = PubAck {
            domain: Some("hub".into()),
            ..ack.clone()
        };
        assert_eq!(encoded(&domain), r#"{"stream":"A","domain":"hub","seq":7}"#);
        let duplicate = PubAck {
            duplicate: true,
            ..ack.clone()
        };
        assert_eq!(encoded(&duplicate), r#"{"stream":"A","seq":7,"duplicate": true}"#);
        let counter = PubAck {
            value: Some("-5".into()),
            ..ack.clone()
        };
        assert_eq!(encoded(&counter), r#"{"stream":"A","seq":7,"val":"-5"}"#);
        let batch = PubAck {
            batch: Some("bb".into()),
            count: 4,
            ..ack
        };
        assert_eq!(
            encoded(&batch),
            r#"{"stream":"A","seq":7,"batch":"bb","count":4}"#
        );
    }

    #[test]
    fn a_batch_of_nothing_counts_nothing() {
        let ack = PubAck {
            stream: "A".into(),
            batch: Some("b".into()),
            ..PubAck::default()
        };
        assert_eq!(encoded(&ack), r#"{"stream":"A","seq":0,"batch":"b","count":0}"#);
    }

    #[test]
    fn refusals_name_the_stream() {
        let error = ErrorCode::ExpectedStreamMismatch.error();
        let mut out = Vec::new();
        encode_pub_error("A", &error, &mut out);
        let text = concat!(
            r#"{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"},"#,
            r#""stream":"A","seq":0}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), text);
        assert_eq!(decode_pub_ack(text.as_bytes()).unwrap(), Err(error));
        assert!(decode_pub_ack(b"{}").is_err());
    }

    #[test]
    fn flow_messages_have_the_text_of_the_real_server() {
        for (flow, text) in [
            (
                BatchFlow::Ack { seq: 0, msgs: 10 },
                r#"{"type":"ack","seq":0,"msgs":10}"#,
            ),
            (
                BatchFlow::Gap { last_seq: 2, seq: 3 },
                r#"{"type":"gap","last_seq":2,"seq":3}"#,
            ),
            (
                BatchFlow::Error {
                    seq: 2,
                    error: ErrorCode::MessageTooLarge.error(),
                },
                concat!(
                    r#"{"type":"err","seq":2,"error":{"code":400,"err_code":10054,"#,
                    r#""description":"message size exceeds maximum allowed"}}"#
                ),
            ),
        ] {
            assert_eq!(serde_json::to_string(&flow).unwrap(), text);
            assert_eq!(serde_json::from_str::<BatchFlow>(text).unwrap(), flow);
        }
    }

    proptest! {
        #[test]
        fn acknowledgements_read_back_equal(stream in ".{0,8}", batch in proptest::option::of(".{1,8}"), seq: u64, duplicate: bool) {
            let ack = PubAck {
                stream: stream.into(),
                seq,
                duplicate,
                batch: batch.map(Cow::Owned),
                ..PubAck::default()
            };
            let text = encoded(&ack);
            prop_assert_eq!(decode_pub_ack(text.as_bytes()).unwrap(), Ok(ack));
        }
    }
}
