//! Requests and answers of the stream endpoints, except those that read messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::config::StreamConfig;
use super::info::{StreamInfo, StreamState};
use crate::jetstream::request::{ApiRequest, BodyRule, from_object};
use crate::jetstream::response::{ApiResponse, Page, success_response};
use crate::jetstream::serde_util::{is_false, is_zero, null_default};
use crate::jetstream::{ApiError, ErrorCode};

/// Most names in one answer to a names request.
pub const STREAM_NAMES_LIMIT: usize = 1024;
/// Most streams in one answer to a list request.
pub const STREAM_LIST_LIMIT: usize = 256;
/// Most subjects in one answer to an info request.
pub const STREAM_SUBJECTS_LIMIT: usize = 100_000;

/// Body of create and update: a configuration, and how to take it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamConfigRequest {
    /// What the stream should be. All of it: an update resets what it leaves out.
    #[serde(flatten)]
    pub config: StreamConfig,
    /// Whether the server refuses instead of correcting. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pedantic: bool,
}

impl ApiRequest for StreamConfigRequest {
    const BODY: BodyRule = BodyRule::OrDefault;

    fn from_json(
        mut object: Map<String, Value>,
        unknown: &mut dyn FnMut(String),
    ) -> serde_json::Result<Self> {
        // A flattened member would swallow unknown ones, so the two parts are read one by one.
        let pedantic = object
            .remove("pedantic")
            .map_or(Ok(false), serde_json::from_value)?;
        Ok(Self {
            config: from_object(object, unknown)?,
            pedantic,
        })
    }
}

/// Answer to a create. Also ends a restore, then without `did_create`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamCreateResponse {
    /// The stream, without domain and cluster.
    #[serde(flatten)]
    pub info: StreamInfo,
    /// Whether the stream is as asked for; true also when it was there already.
    #[serde(default, skip_serializing_if = "is_false")]
    pub did_create: bool,
}

impl ApiResponse for StreamCreateResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_create_response";
}

/// Answer to an update.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamUpdateResponse {
    /// The stream, without cluster.
    #[serde(flatten)]
    pub info: StreamInfo,
}

impl ApiResponse for StreamUpdateResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_update_response";
}

/// Body of names and list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamListRequest {
    /// Streams to skip. Default 0; negative counts as 0.
    pub offset: i64,
    /// Streams wanted: those with a configured subject that some message could share with this one. Default: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
}

impl ApiRequest for StreamListRequest {
    const BODY: BodyRule = BodyRule::Optional;
}

/// Answer to a names request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamNamesResponse {
    /// Which names of how many.
    #[serde(flatten)]
    pub page: Page,
    /// The names in bytewise order; `null` on the wire when there are none.
    #[serde(serialize_with = "null_when_empty", deserialize_with = "null_default")]
    pub streams: Vec<String>,
}

impl ApiResponse for StreamNamesResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_names_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

fn null_when_empty<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if names.is_empty() {
        serializer.serialize_none()
    } else {
        names.serialize(serializer)
    }
}

/// Answer to a list request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamListResponse {
    /// Which streams of how many.
    #[serde(flatten)]
    pub page: Page,
    /// The streams in bytewise order of their names.
    #[serde(deserialize_with = "null_default")]
    pub streams: Vec<StreamInfo>,
    /// Streams that cannot be shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Why they cannot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offline: BTreeMap<String, String>,
}

impl ApiResponse for StreamListResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_list_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

/// Body of an info request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamInfoRequest {
    /// Whether the answer lists all deleted sequences. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub deleted_details: bool,
    /// Subjects whose message counts are wanted, maybe with wildcards. Default: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subjects_filter: String,
    /// Subjects to skip in bytewise order. Default 0; negative counts as 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub offset: i64,
}

impl ApiRequest for StreamInfoRequest {
    const BODY: BodyRule = BodyRule::Optional;
}

/// Answer to an info request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamInfoResponse {
    /// Which subjects of how many; all zero when none were asked for or matched.
    #[serde(flatten)]
    pub page: Page,
    /// The stream; `None` only beside an error.
    #[serde(flatten)]
    pub info: Option<StreamInfo>,
}

impl ApiResponse for StreamInfoResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_info_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

success_response!(
    /// Answer to a stream delete.
    StreamDeleteResponse,
    "stream_delete_response"
);

/// Body of a purge. An empty one removes everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PurgeRequest {
    /// Messages below this sequence go. Default 0: no such bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// Messages to keep, the newest. Default 0. Not together with `seq`.
    #[serde(skip_serializing_if = "is_zero")]
    pub keep: u64,
    /// Messages that may go, maybe with wildcards. Default: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter: String,
}

impl PurgeRequest {
    /// Checks that the request does not contradict itself.
    ///
    /// # Errors
    ///
    /// `400/10003` for both `seq` and `keep`.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.seq > 0 && self.keep > 0 {
            Err(ErrorCode::BadRequest.error())
        } else {
            Ok(())
        }
    }
}

impl ApiRequest for PurgeRequest {
    const BODY: BodyRule = BodyRule::Optional;
}

/// Answer to a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PurgeResponse {
    /// Always true in an answer without error.
    #[serde(skip_serializing_if = "is_false")]
    pub success: bool,
    /// Messages removed.
    pub purged: u64,
}

impl ApiResponse for PurgeResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_purge_response";

    fn on_failure() -> Option<Self> {
        Some(Self::default())
    }
}

/// Body of a message delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageDeleteRequest {
    /// The message.
    pub seq: u64,
    /// Whether its bytes may stay on disk until the space is used again. Default false: they are overwritten.
    #[serde(skip_serializing_if = "is_false")]
    pub no_erase: bool,
}

impl ApiRequest for MessageDeleteRequest {
    const BODY: BodyRule = BodyRule::Required;
}

success_response!(
    /// Answer to a message delete.
    MessageDeleteResponse,
    "stream_msg_delete_response"
);

/// Body of a snapshot request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotRequest {
    /// Where the chunks are sent; a literal subject.
    pub deliver_subject: String,
    /// Whether consumers are left out. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub no_consumers: bool,
    /// Bytes of a chunk. Default 0: 128 KiB.
    #[serde(skip_serializing_if = "is_zero")]
    pub chunk_size: i64,
    /// Bytes that may be under way without an answer. Default 0: 8 MiB.
    #[serde(skip_serializing_if = "is_zero")]
    pub window_size: i64,
    /// Whether all messages are checked first. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub jsck: bool,
}

impl ApiRequest for SnapshotRequest {
    const BODY: BodyRule = BodyRule::Required;
}

/// Answer to a snapshot request, before the first chunk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SnapshotResponse {
    /// Configuration of the stream.
    pub config: StreamConfig,
    /// What the snapshot will hold.
    pub state: StreamState,
}

impl ApiResponse for SnapshotResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_snapshot_response";
}

/// Body of a restore request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreRequest {
    /// Configuration for the restored stream; an empty name is taken from the subject.
    pub config: StreamConfig,
    /// What the snapshot holds.
    pub state: StreamState,
}

impl ApiRequest for RestoreRequest {
    const BODY: BodyRule = BodyRule::Required;
}

/// Answer to a restore request, before the first chunk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreResponse {
    /// Where the chunks are to be sent.
    pub deliver_subject: String,
}

impl ApiResponse for RestoreResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.stream_restore_response";

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
        let error = ErrorCode::StreamNotFound.error();
        let text = String::from_utf8(Response::<T>(Err(error)).to_vec()).unwrap();
        let (_, after) = text.split_once(r#""description":"stream not found"}"#).unwrap();
        after.to_owned()
    }

    #[test]
    fn failures_carry_the_members_that_are_never_omitted() {
        assert_eq!(failed::<StreamCreateResponse>(), "}");
        assert_eq!(failed::<StreamUpdateResponse>(), "}");
        assert_eq!(
            failed::<StreamNamesResponse>(),
            r#","total":0,"offset":0,"limit":0,"streams":null}"#
        );
        assert_eq!(
            failed::<StreamListResponse>(),
            r#","total":0,"offset":0,"limit":0,"streams":[]}"#
        );
        assert_eq!(
            failed::<StreamInfoResponse>(),
            r#","total":0,"offset":0,"limit":0}"#
        );
        assert_eq!(failed::<StreamDeleteResponse>(), "}");
        assert_eq!(failed::<PurgeResponse>(), r#","purged":0}"#);
        assert_eq!(failed::<MessageDeleteResponse>(), "}");
        assert_eq!(failed::<SnapshotResponse>(), "}");
        assert_eq!(failed::<RestoreResponse>(), r#","deliver_subject":""}"#);
    }

    #[test]
    fn empty_lists_differ_between_names_and_list() {
        let names = Response(Ok(StreamNamesResponse {
            page: Page::new(0, 0, STREAM_NAMES_LIMIT),
            streams: vec![],
        }));
        assert!(names.to_vec().ends_with(br#""limit":1024,"streams":null}"#));
        let list = StreamListResponse {
            page: Page::new(0, 0, STREAM_LIST_LIMIT),
            ..StreamListResponse::default()
        };
        assert!(
            Response(Ok(list))
                .to_vec()
                .ends_with(br#""limit":256,"streams":[]}"#)
        );
    }

    #[test]
    fn create_reads_the_configuration_and_how_to_take_it() {
        let body = br#"{"name":"A","pedantic":true,"max_msgs":5,"mirror":null,"metadata":{"Key":null}}"#;
        let request = decode::<StreamConfigRequest>(body, true).unwrap();
        assert!(request.pedantic);
        assert_eq!((request.config.name.as_str(), request.config.max_msgs), ("A", 5));
        assert_eq!(request.config.metadata["Key"], "");
        assert_eq!(
            decode::<StreamConfigRequest>(b"", true),
            Ok(StreamConfigRequest::default())
        );
    }

    #[test]
    fn create_refuses_what_it_does_not_know() {
        for body in [
            r#"{"name":"A","foo":1}"#,
            r#"{"name":"A","sources":[{"name":"B","foo":1}]}"#,
            r#"{"name":"A","placement":{"foo":1}}"#,
            r#"{"name":"A","retention":null}"#,
            r#"{"name":"A","max_msg_size":2147483648}"#,
            r#"{"name":"A","pedantic":"yes"}"#,
        ] {
            let error = decode::<StreamConfigRequest>(body.as_bytes(), true).unwrap_err();
            assert_eq!(error, ErrorCode::InvalidJson, "{body}");
        }
        assert!(decode::<StreamConfigRequest>(br#"{"name":"A","foo":1}"#, false).is_ok());
    }

    #[test]
    fn purge_takes_one_bound_only() {
        let purge = |body: &str| decode::<PurgeRequest>(body.as_bytes(), true).unwrap().check();
        assert_eq!(purge(""), Ok(()));
        assert_eq!(purge(r#"{"seq":3,"filter":"a"}"#), Ok(()));
        assert_eq!(purge(r#"{"keep":3,"seq":0}"#), Ok(()));
        assert_eq!(purge(r#"{"keep":3,"seq":1}"#).unwrap_err(), ErrorCode::BadRequest);
    }

    #[test]
    fn snapshot_knows_its_fields_and_restore_needs_a_body() {
        let unknown = br#"{"deliver_subject":"d","foo":1}"#;
        assert_eq!(
            decode::<SnapshotRequest>(unknown, true).unwrap_err(),
            ErrorCode::InvalidJson
        );
        let request = decode::<SnapshotRequest>(unknown, false).unwrap();
        assert_eq!(request.deliver_subject, "d");
        assert_eq!(
            decode::<RestoreRequest>(b"{}", true).unwrap_err(),
            ErrorCode::BadRequest
        );
    }
}
