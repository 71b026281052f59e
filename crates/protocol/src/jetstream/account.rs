//! Account information: what an account uses, what it may use, and how often it called.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::jetstream::response::ApiResponse;
use crate::jetstream::serde_util::is_zero;

/// Answer to `$JS.API.INFO`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountInfo {
    /// Use and limits of the account as a whole. With tiers its limits are all zero.
    #[serde(flatten)]
    pub usage: AccountUsage,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Calls of the API.
    pub api: ApiStats,
    /// Use and limits by number of replicas (`R1`, `R3`); empty in the normal case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tiers: BTreeMap<String, AccountUsage>,
}

impl ApiResponse for AccountInfo {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.account_info_response";
}

/// What an account uses, and what it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountUsage {
    /// Bytes in memory streams.
    pub memory: u64,
    /// Bytes in file streams.
    pub storage: u64,
    /// Bytes reserved by `max_bytes` of memory streams.
    pub reserved_memory: u64,
    /// Bytes reserved by `max_bytes` of file streams.
    pub reserved_storage: u64,
    /// Streams.
    pub streams: u64,
    /// Consumers, those of mirrors and sources included.
    pub consumers: u64,
    /// What it may use.
    pub limits: AccountLimits,
}

/// What an account may use. −1 means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountLimits {
    /// Bytes in memory streams. Default −1.
    pub max_memory: i64,
    /// Bytes in file streams. Default −1.
    pub max_storage: i64,
    /// Streams. Default −1.
    pub max_streams: i64,
    /// Consumers of one stream. Default −1.
    pub max_consumers: i64,
    /// Highest `max_ack_pending` of a consumer. Default −1.
    pub max_ack_pending: i64,
    /// Bytes of one memory stream. Default −1.
    pub memory_max_stream_bytes: i64,
    /// Bytes of one file stream. Default −1.
    pub storage_max_stream_bytes: i64,
    /// Whether every stream must set `max_bytes`. Default false.
    pub max_bytes_required: bool,
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self {
            max_memory: -1,
            max_storage: -1,
            max_streams: -1,
            max_consumers: -1,
            max_ack_pending: -1,
            memory_max_stream_bytes: -1,
            storage_max_stream_bytes: -1,
            max_bytes_required: false,
        }
    }
}

impl AccountLimits {
    /// The limits shown for the account as a whole when it has tiers.
    pub const TIERED: Self = Self {
        max_memory: 0,
        max_storage: 0,
        max_streams: 0,
        max_consumers: 0,
        max_ack_pending: 0,
        memory_max_stream_bytes: 0,
        storage_max_stream_bytes: 0,
        max_bytes_required: false,
    };
}

/// Calls of the API since the server started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiStats {
    /// API level of the server.
    pub level: u8,
    /// Calls, without successful message gets and direct gets.
    pub total: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Calls under way.
    #[serde(skip_serializing_if = "is_zero")]
    pub inflight: u64,
}

/// Answer to a purge of a whole account; system account only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountPurgeResponse {
    /// Whether the purge has begun.
    #[serde(skip_serializing_if = "crate::jetstream::serde_util::is_false")]
    pub initiated: bool,
}

impl ApiResponse for AccountPurgeResponse {
    const TYPE: &'static str = "io.nats.jetstream.api.v1.account_purge_response";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jetstream::{API_LEVEL, Response};

    #[test]
    fn info_of_a_fresh_account_has_the_shape_of_the_real_server() {
        let info = AccountInfo {
            domain: Some("hub".into()),
            api: ApiStats {
                level: API_LEVEL,
                ..ApiStats::default()
            },
            ..AccountInfo::default()
        };
        let expected = concat!(
            r#"{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":0,"reserved_memory":0,"#,
            r#""reserved_storage":0,"streams":0,"consumers":0,"limits":{"max_memory":-1,"max_storage":-1,"#,
            r#""max_streams":-1,"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,"#,
            r#""storage_max_stream_bytes":-1,"max_bytes_required":false},"domain":"hub","#,
            r#""api":{"level":5,"total":0,"errors":0}}"#
        );
        let response = Response(Ok(info));
        assert_eq!(String::from_utf8(response.to_vec()).unwrap(), expected);
        assert_eq!(
            serde_json::from_str::<Response<AccountInfo>>(expected).unwrap(),
            response
        );
    }

    #[test]
    fn tiers_are_shown_by_their_names() {
        let usage = AccountUsage {
            limits: AccountLimits::TIERED,
            ..AccountUsage::default()
        };
        let info = AccountInfo {
            usage,
            tiers: [("R1".to_owned(), AccountUsage::default())].into(),
            ..AccountInfo::default()
        };
        let text = serde_json::to_string(&info).unwrap();
        assert!(
            text.contains(r#""limits":{"max_memory":0,"#) && text.contains(r#""tiers":{"R1":{"memory":0,"#)
        );
        assert_eq!(serde_json::from_str::<AccountInfo>(&text).unwrap(), info);
    }
}
