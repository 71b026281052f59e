//! Requests and answers of the consumer endpoints, except the request for messages.

use serde::{Deserialize, Serialize};

use super::config::ConsumerConfig;
use super::info::ConsumerInfo;
use crate::jetstream::request::{ApiRequest, BodyRule};
use crate::jetstream::response::{ApiResponse, Page, success_response};
use crate::jetstream::serde_util::{is_false, is_zero, null_default};
use crate::jetstream::{ApiError, ErrorCode, Nanos, Timestamp};

/// Most names in one answer to a names request.
pub const CONSUMER_NAMES_LIMIT: usize = 1024;
/// Most consumers in one answer to a list request.
pub const CONSUMER_LIST_LIMIT: usize = 256;

/// What a create request may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsumerAction {
    /// Create a consumer or update the one there is; an empty word or none on the wire.
    #[default]
    #[serde(rename = "")]
    CreateOrUpdate,
    /// Create a consumer; one that is there already must be the same.
    Create,
    /// Update the consumer there is.
    Update,
}

/// Body of a create or update.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerCreateRequest {
    /// Name of the stream; must be that of the subject.
    pub stream_name: String,
    /// What the consumer should be. All of it: an update resets what it leaves out.
    pub config: ConsumerConfig,
    /// What may be done. Default: create or update.
    pub action: ConsumerAction,
    /// Whether the server refuses instead of correcting. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub pedantic: bool,
}

impl ApiRequest for ConsumerCreateRequest {
    const BODY: BodyRule = BodyRule::OrDefault;
}

macro_rules! info_response {
    ($(#[$doc:meta])* $name:ident, $type:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub struct $name {
            /// The consumer.
            #[serde(flatten)]
            pub info: ConsumerInfo,
        }

        impl ApiResponse for $name {
            const TYPE: &'static str = concat!("io.nats.jetstream.api.v1.", $type);
        }
    };
}

info_response!(
    /// Answer to a create or update: after a creation the consumer as it was before its first delivery, otherwise as
    /// it is.
    ConsumerCreateResponse,
    "consumer_create_response"
);

info_response!(
    /// Answer to an info request.
    ConsumerInfoResponse,
    "consumer_info_response"
);

/// Body of names and list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerListRequest {
    /// Consumers to skip. Default 0; negative counts as 0.
    pub offset: i64,
}

impl ApiRequest for ConsumerListRequest {
    const BODY: BodyRule = BodyRule::Optional;
}

/// Answer to a names request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConsumerNamesResponse {
    /// Which names of how many.
    #[serde(flatten)]
    pub page: Page,
    /// The names in bytewise order.
    #[serde(deserialize_with = "null_default")]
    pub consumers: Vec<String>,
}

impl ApiResponse for ConsumerNamesResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.consumer_names_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

/// Answer to a list request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConsumerListResponse {
    /// Which consumers of how many.
    #[serde(flatten)]
    pub page: Page,
    /// The consumers in bytewise order of their names.
    #[serde(deserialize_with = "null_default")]
    pub consumers: Vec<ConsumerInfo>,
}

impl ApiResponse for ConsumerListResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.consumer_list_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

success_response!(
    /// Answer to a consumer delete.
    ConsumerDeleteResponse,
    "consumer_delete_response"
);

/// Body of a pause. Without a time it resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerPauseRequest {
    /// Until when to pause; a time that is over resumes.
    #[serde(skip_serializing_if = "Timestamp::is_zero", deserialize_with = "null_default")]
    pub pause_until: Timestamp,
}

impl ApiRequest for ConsumerPauseRequest {
    const BODY: BodyRule = BodyRule::Optional;
}

/// Answer to a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerPauseResponse {
    /// Whether the consumer is paused now.
    pub paused: bool,
    /// The time that was asked for, or the zero time.
    pub pause_until: Timestamp,
    /// How long it will be paused.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub pause_remaining: Nanos,
}

impl ApiResponse for ConsumerPauseResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.consumer_pause_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

/// Body of an unpin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerUnpinRequest {
    /// The priority group.
    pub group: String,
}

impl ConsumerUnpinRequest {
    /// Checks that the group is one there could be.
    ///
    /// # Errors
    ///
    /// `400/10025` without a group, `400/10162` when its name is not allowed.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.group.is_empty() {
            Err(ErrorCode::InvalidJson.with("consumer group not specified"))
        } else {
            check_priority_group(&self.group)
        }
    }
}

impl ApiRequest for ConsumerUnpinRequest {
    const BODY: BodyRule = BodyRule::Json;
    const REFUSES_UNKNOWN: bool = false;
}

/// Checks the name of a priority group: 1 to 16 of the letters and digits of ASCII, `-`, `_`, `/` and `=`.
///
/// # Errors
///
/// `400/10161` for an empty name, `400/10162` for other names.
pub fn check_priority_group(name: &str) -> Result<(), ApiError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_/=".contains(&byte);
    match name.len() {
        0 => Err(ErrorCode::PriorityGroupEmpty.error()),
        1..=16 if name.bytes().all(allowed) => Ok(()),
        _ => Err(ErrorCode::PriorityGroupInvalid.error()),
    }
}

/// Answer to an unpin; nothing but its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConsumerUnpinResponse {}

impl ApiResponse for ConsumerUnpinResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.consumer_unpin_response";
}

/// Body of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerResetRequest {
    /// Where to begin again. Default 0: behind the ack floor.
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
}

impl ApiRequest for ConsumerResetRequest {
    const BODY: BodyRule = BodyRule::OrDefault;
    const REFUSES_UNKNOWN: bool = false;
}

/// Answer to a reset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConsumerResetResponse {
    /// The consumer; `None` only beside an error.
    #[serde(flatten)]
    pub info: Option<ConsumerInfo>,
    /// Where it begins again.
    #[serde(default)]
    pub reset_seq: u64,
}

impl ApiResponse for ConsumerResetResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.consumer_reset_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jetstream::Response;
    use crate::jetstream::request::decode;

    fn failed<T: ApiResponse>() -> String {
        let error = ErrorCode::ConsumerNotFound.error();
        let text = String::from_utf8(Response::<T>(Err(error)).to_vec()).unwrap();
        let (_, after) = text.split_once(r#""description":"consumer not found"}"#).unwrap();
        after.to_owned()
    }

    #[test]
    fn failures_carry_the_members_that_are_never_omitted() {
        assert_eq!(failed::<ConsumerCreateResponse>(), "}");
        assert_eq!(failed::<ConsumerInfoResponse>(), "}");
        let page = r#","total":0,"offset":0,"limit":0,"consumers":[]}"#;
        assert_eq!(failed::<ConsumerNamesResponse>(), page);
        assert_eq!(failed::<ConsumerListResponse>(), page);
        assert_eq!(failed::<ConsumerDeleteResponse>(), "}");
        assert_eq!(
            failed::<ConsumerPauseResponse>(),
            r#","paused":false,"pause_until":"0001-01-01T00:00:00Z"}"#
        );
        assert_eq!(failed::<ConsumerUnpinResponse>(), "}");
        assert_eq!(failed::<ConsumerResetResponse>(), r#","reset_seq":0}"#);
    }

    #[test]
    fn unpin_answer_is_nothing_but_its_type() {
        let text = Response(Ok(ConsumerUnpinResponse {})).to_vec();
        assert_eq!(
            text,
            br#"{"type":"io.nats.jetstream.api.v1.consumer_unpin_response"}"#
        );
    }

    #[test]
    fn create_reads_what_clients_send() {
        let body = concat!(
            r#"{"stream_name":"S","config":{"name":"C","ack_policy":"explicit","ack_wait":null,"opt_start_time":null,"#,
            r#""backoff":null},"action":"create"}"#
        );
        let request = decode::<ConsumerCreateRequest>(body.as_bytes(), true).unwrap();
        assert_eq!(request.action, ConsumerAction::Create);
        assert_eq!(
            (request.stream_name.as_str(), request.config.name.as_deref()),
            ("S", Some("C"))
        );
        assert_eq!(
            decode::<ConsumerCreateRequest>(b"", true),
            Ok(ConsumerCreateRequest::default())
        );
        let action = |word: &str| {
            decode::<ConsumerCreateRequest>(format!(r#"{{"action":{word}}}"#).as_bytes(), true)
                .map(|r| r.action)
        };
        assert_eq!(action("\"\""), Ok(ConsumerAction::CreateOrUpdate));
        assert_eq!(action("\"update\""), Ok(ConsumerAction::Update));
        assert_eq!(action("\"delete\"").unwrap_err(), ErrorCode::InvalidJson);
        assert_eq!(action("null").unwrap_err(), ErrorCode::InvalidJson);
    }

    #[test]
    fn create_accepts_every_member_that_answers_show() {
        let mut config = ConsumerConfig {
            name: Some("C".into()),
            ..ConsumerConfig::default()
        };
        config.fill_defaults(&Default::default());
        crate::jetstream::level::stamp_shown(&mut config.metadata, "2.15.1");
        let request = ConsumerCreateRequest {
            stream_name: "S".into(),
            config,
            ..Default::default()
        };
        let text = serde_json::to_vec(&request).unwrap();
        assert_eq!(decode::<ConsumerCreateRequest>(&text, true), Ok(request));
    }

    #[test]
    fn unknown_members_matter_on_some_endpoints_only() {
        let body = br#"{"foo":1}"#;
        assert!(decode::<ConsumerCreateRequest>(body, true).is_err());
        assert!(decode::<ConsumerListRequest>(body, true).is_err());
        assert!(decode::<ConsumerPauseRequest>(body, true).is_err());
        assert!(decode::<ConsumerUnpinRequest>(body, true).is_ok());
        assert!(decode::<ConsumerResetRequest>(body, true).is_ok());
    }

    #[test]
    fn pause_without_a_time_resumes() {
        for body in [
            "",
            "{}",
            "junk",
            "null",
            r#"{"pause_until":null}"#,
            r#"{"pause_until":"0001-01-01T00:00:00Z"}"#,
        ] {
            let request = decode::<ConsumerPauseRequest>(body.as_bytes(), true).unwrap();
            assert!(request.pause_until.is_zero(), "{body}");
        }
        assert_eq!(
            decode::<ConsumerPauseRequest>(br#"{"pause_until":"soon"}"#, true).unwrap_err(),
            ErrorCode::InvalidJson
        );
    }

    #[test]
    fn unpin_names_a_group_that_could_be() {
        let check = |body: &str| {
            decode::<ConsumerUnpinRequest>(body.as_bytes(), true).and_then(|request| request.check())
        };
        assert_eq!(check(r#"{"group":"A-z_0/=","foo":1}"#), Ok(()));
        for body in ["", "{}", r#"{"group":""}"#] {
            assert_eq!(check(body).unwrap_err(), ErrorCode::InvalidJson, "{body}");
        }
        for group in ["a.b", "ü", "12345678901234567", "a+b"] {
            let body = format!(r#"{{"group":"{group}"}}"#);
            assert_eq!(
                check(&body).unwrap_err(),
                ErrorCode::PriorityGroupInvalid,
                "{group}"
            );
        }
        assert_eq!(
            check_priority_group("").unwrap_err(),
            ErrorCode::PriorityGroupEmpty
        );
    }
}
