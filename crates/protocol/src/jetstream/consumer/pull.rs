//! The request for messages of a pull consumer: the body of `$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>`.
//!
//! It comes many times a second, so it is read without an intermediate tree. It has four forms: nothing, a number,
//! an object, and anything else, which counts as nothing. Unknown members of the object are ignored, whatever the
//! server's strictness.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::jetstream::serde_util::{is_blank, is_false, is_zero, non_blank, null_default};
use crate::jetstream::{Nanos, Status};

/// A request for messages.
///
/// The default asks for one message and never expires.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PullRequest {
    /// Life of the request from its arrival. Default 0: no end; negative: ends at once.
    #[serde(skip_serializing_if = "Nanos::is_zero", deserialize_with = "null_default")]
    pub expires: Nanos,
    /// Messages wanted; [`PullRequest::messages`] reads it. Default 0: one.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub batch: i64,
    /// Bytes wanted at most. Default 0: no bound.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub max_bytes: i64,
    /// Whether to end when there are no messages, instead of waiting for some. Default false.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "null_default")]
    pub no_wait: bool,
    /// Silence after which a sign of life is sent; at most half of `expires`. Default 0: none.
    #[serde(skip_serializing_if = "Nanos::is_zero", deserialize_with = "null_default")]
    pub idle_heartbeat: Nanos,
    /// Priority group; needed when the consumer has groups.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub group: Option<String>,
    /// The pin that the client holds, with the policy `pinned_client`.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub id: Option<String>,
    /// With `overflow`: serve only while so many messages match and are not delivered. Default 0: not set.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub min_pending: i64,
    /// With `overflow`: serve only while so many messages are delivered and not settled. Default 0: not set.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub min_ack_pending: i64,
    /// With `prioritized`: urgency from 0, the highest, to 9. Default 0.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "null_default")]
    pub priority: i64,
    /// Whether the request was not an object. Such requests pass some checks of priority groups.
    #[serde(skip)]
    pub plain: bool,
}

impl PullRequest {
    /// Reads the body of a request, or what follows `+NXT` in an acknowledgement.
    ///
    /// # Errors
    ///
    /// The status to answer when the body begins like an object and is none.
    pub fn parse(body: &[u8]) -> Result<Self, Status> {
        let body = body.trim_ascii();
        if body.first() == Some(&b'{') {
            return serde_json::from_slice(body)
                .map_err(|err| Status::BadRequest(Cow::Owned(format!("invalid JSON: {err}"))));
        }
        let batch = std::str::from_utf8(body)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        Ok(Self {
            batch,
            plain: true,
            ..Self::default()
        })
    }

    /// Messages wanted: `batch`, and one when it is 0 or below.
    pub fn messages(&self) -> u64 {
        u64::try_from(self.batch).unwrap_or(0).max(1)
    }

    /// Bytes wanted at most, if there is a bound.
    pub fn byte_budget(&self) -> Option<u64> {
        u64::try_from(self.max_bytes).ok().filter(|bytes| *bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(batch: i64) -> PullRequest {
        PullRequest {
            batch,
            plain: true,
            ..PullRequest::default()
        }
    }

    #[test]
    fn request_has_four_forms() {
        for (body, request) in [
            ("", plain(0)),
            (" \r\n", plain(0)),
            ("5", plain(5)),
            (" 10 ", plain(10)),
            ("-3", plain(-3)),
            ("junk", plain(0)),
            ("5x", plain(0)),
            ("99999999999999999999", plain(0)),
            ("[]", plain(0)),
            ("{}", PullRequest::default()),
            (
                " {\"batch\":5} ",
                PullRequest {
                    batch: 5,
                    ..PullRequest::default()
                },
            ),
        ] {
            assert_eq!(PullRequest::parse(body.as_bytes()), Ok(request), "{body:?}");
        }
        assert_eq!(PullRequest::parse(b"\xff\xfe"), Ok(plain(0)));
        assert_eq!(
            (plain(0).messages(), plain(-3).messages(), plain(7).messages()),
            (1, 1, 7)
        );
    }

    #[test]
    fn request_of_the_official_client_is_understood() {
        let body = concat!(
            r#"{"batch":200,"expires":30000000000,"max_bytes":0,"idle_heartbeat":15000000000,"min_pending":null,"#,
            r#""min_ack_pending":null,"group":null,"priority":null,"failover":1}"#
        );
        let expected = PullRequest {
            batch: 200,
            expires: Nanos::from_secs(30),
            idle_heartbeat: Nanos::from_secs(15),
            ..PullRequest::default()
        };
        assert_eq!(PullRequest::parse(body.as_bytes()), Ok(expected.clone()));
        assert_eq!(expected.byte_budget(), None);
        assert_eq!(
            PullRequest {
                max_bytes: 5,
                ..expected
            }
            .byte_budget(),
            Some(5)
        );
    }

    #[test]
    fn every_member_reads_back_equal() {
        let request = PullRequest {
            expires: Nanos(-1),
            batch: 2,
            max_bytes: 3,
            no_wait: true,
            idle_heartbeat: Nanos(4),
            group: Some("g".into()),
            id: Some("i".into()),
            min_pending: 5,
            min_ack_pending: 6,
            priority: 7,
            plain: false,
        };
        let text = serde_json::to_vec(&request).unwrap();
        assert_eq!(PullRequest::parse(&text), Ok(request));
    }

    #[test]
    fn broken_object_is_a_bad_request() {
        for body in [
            "{",
            "{\"batch\":1.5}",
            "{\"batch\":\"5\"}",
            "{}x",
            "{\"expires\":1e9}",
        ] {
            let status = PullRequest::parse(body.as_bytes()).unwrap_err();
            assert!(
                status.to_string().starts_with("400 Bad Request - invalid JSON: "),
                "{body}: {status}"
            );
        }
    }
}
