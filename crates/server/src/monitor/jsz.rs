//! `jsz`: JetStream as a whole, by account, by stream and by consumer.
//!
//! Everything but where consumers stand is read from committed state. Consumers are asked of their streams, all at once, and
//! what has not come after [`PATIENCE`] is left out with a word in the log; so building the document may block the thread.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use windjet_protocol::jetstream::{
    ClusterInfo, ConsumerConfig, ConsumerInfo, Nanos, PriorityGroupState, SequenceInfo, StreamConfig,
    StreamSourceInfo, StreamState, Timestamp,
};

use super::Refused;
use super::format::{is_zero, rfc3339};
use super::jetstream::{Config, Limits, Stats};
use super::params::Params;
use crate::jetstream::{Asked, JetStream, JsAccount, Stream, Totals, ask_consumers};
use crate::server::Shared;

/// How long streams may take to tell about their consumers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Accounts in one document unless something else is asked for.
const ACCOUNTS: i64 = 1024;

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct JszOptions {
    account: String,
    accounts: bool,
    streams: bool,
    consumer: bool,
    direct_consumer: bool,
    config: bool,
    raft: bool,
    /// This server leads everything, so these two change nothing.
    #[serde(rename = "leader_only")]
    _leader_only: bool,
    #[serde(rename = "stream_leader_only")]
    _stream_leader_only: bool,
    offset: i64,
    limit: i64,
}

impl JszOptions {
    /// Reads the query part of a URL.
    ///
    /// # Errors
    ///
    /// When a value is not of its kind.
    pub(super) fn of(params: &Params) -> Result<Self, Refused> {
        Ok(Self {
            account: params.text("acc").to_owned(),
            accounts: params.flag("accounts")?,
            streams: params.flag("streams")?,
            consumer: params.flag("consumers")?,
            direct_consumer: params.flag("direct-consumers")?,
            config: params.flag("config")?,
            _leader_only: params.flag("leader-only")?,
            offset: params.int("offset")?,
            limit: params.int("limit")?,
            raft: params.flag("raft")?,
            _stream_leader_only: params.flag("stream-leader-only")?,
        })
    }

    /// What is asked includes what it is part of.
    fn complete(&mut self) {
        self.streams |= self.consumer;
        self.accounts |= self.streams;
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct Jsz {
    #[serde(flatten)]
    stats: Stats,
    server_id: String,
    now: String,
    #[serde(skip_serializing_if = "is_zero")]
    disabled: bool,
    config: Config,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    streams: u64,
    #[serde(skip_serializing_if = "is_zero")]
    streams_leader: u64,
    consumers: u64,
    #[serde(skip_serializing_if = "is_zero")]
    consumers_leader: u64,
    messages: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    account_details: Vec<JsAccountDetail>,
    total: u64,
}

/// JetStream of one account.
#[derive(Debug, Serialize)]
pub(crate) struct JsAccountDetail {
    name: String,
    id: String,
    #[serde(flatten)]
    stats: Stats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stream_detail: Vec<StreamDetail>,
}

#[derive(Debug, Serialize)]
struct StreamDetail {
    name: String,
    created: Timestamp,
    cluster: ClusterInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<StreamConfig>,
    state: StreamState,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumer_detail: Vec<ConsumerDetail>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    direct_consumer_detail: Vec<ConsumerDetail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mirror: Option<StreamSourceInfo>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<StreamSourceInfo>,
}

/// A [`ConsumerInfo`] whose configuration may be absent.
#[derive(Debug, Serialize)]
struct ConsumerDetail {
    stream_name: String,
    name: String,
    created: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<ConsumerConfig>,
    delivered: SequenceInfo,
    ack_floor: SequenceInfo,
    num_ack_pending: u64,
    num_redelivered: u64,
    num_waiting: u64,
    num_pending: u64,
    #[serde(skip_serializing_if = "is_zero")]
    push_bound: bool,
    #[serde(skip_serializing_if = "is_zero")]
    paused: bool,
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pause_remaining: Nanos,
    ts: Timestamp,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    priority_groups: Vec<PriorityGroupState>,
}

impl ConsumerDetail {
    fn of(info: ConsumerInfo, config: bool) -> Self {
        Self {
            stream_name: info.stream_name,
            name: info.name,
            created: info.created,
            config: config.then_some(info.config),
            delivered: info.delivered,
            ack_floor: info.ack_floor,
            num_ack_pending: info.num_ack_pending,
            num_redelivered: info.num_redelivered,
            num_waiting: info.num_waiting,
            num_pending: info.num_pending,
            push_bound: info.push_bound,
            paused: info.paused,
            pause_remaining: info.pause_remaining,
            ts: info.ts,
            priority_groups: info.priority_groups,
        }
    }
}

/// The document. May block the thread.
pub(crate) fn jsz(shared: &Shared, options: &JszOptions) -> Jsz {
    let mut options = options.clone();
    options.complete();
    let mut document = Jsz {
        stats: Stats::default(),
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        disabled: true,
        config: Config::default(),
        limits: None,
        streams: 0,
        streams_leader: 0,
        consumers: 0,
        consumers_leader: 0,
        messages: 0,
        bytes: 0,
        account_details: Vec::new(),
        total: 0,
    };
    let Some(js) = shared.jetstream() else {
        return document;
    };
    let totals = js.totals();
    let mut accounts = js.accounts();
    accounts.sort_by(|a, b| a.name().cmp(b.name()));
    document.stats = Stats::of(&js, &totals);
    document.disabled = false;
    document.config = Config::of(&js);
    document.limits = Some(Limits::of(&js));
    document.streams = totals.streams;
    document.consumers = totals.consumers;
    if options.raft {
        // This server leads whatever it has.
        document.streams_leader = totals.streams;
        document.consumers_leader = totals.consumers;
    }
    document.messages = totals.messages;
    document.bytes = totals.memory + totals.storage;
    document.total = accounts.len() as u64;
    if !options.account.is_empty() {
        accounts.retain(|account| account.name() == options.account);
    } else if options.accounts {
        let from = usize::try_from(options.offset).unwrap_or(0).min(accounts.len());
        accounts.drain(..from);
        let most = if options.limit == 0 {
            ACCOUNTS
        } else {
            options.limit
        };
        // Below zero means all.
        accounts.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    } else {
        accounts.clear();
    }
    document.account_details = details(shared, &js, accounts, &options);
    document
}

/// JetStream of one account. May block the thread.
///
/// # Errors
///
/// When there is none.
pub(crate) fn account_jsz(
    shared: &Shared,
    name: &str,
    options: &JszOptions,
) -> Result<JsAccountDetail, Refused> {
    let Some(js) = shared.jetstream() else {
        return Err(Refused("jetstream not enabled".to_owned()));
    };
    if shared.accounts.get(name).is_none() {
        return Err(Refused(format!("account {name:?} not found")));
    }
    js.account(name)
        .and_then(|account| details(shared, &js, vec![account], options).pop())
        .ok_or_else(|| Refused(format!("account {name:?} not jetstream enabled")))
}

fn details(
    shared: &Shared,
    js: &JetStream,
    accounts: Vec<Arc<JsAccount>>,
    options: &JszOptions,
) -> Vec<JsAccountDetail> {
    let until = Instant::now() + PATIENCE;
    // All questions are out before the first answer is waited for.
    type Question = (Arc<Stream>, Option<Asked>);
    let questions: Vec<(Arc<JsAccount>, Vec<Question>)> = accounts
        .into_iter()
        .map(|account| {
            let streams = if options.streams {
                account.streams()
            } else {
                Vec::new()
            };
            let asked = streams
                .into_iter()
                .map(|stream| {
                    let asked =
                        (options.consumer && stream.consumers() > 0).then(|| ask_consumers(stream.clone()));
                    (stream, asked)
                })
                .collect();
            (account, asked)
        })
        .collect();
    questions
        .into_iter()
        .map(|(account, streams)| {
            let limits = account.limits();
            JsAccountDetail {
                name: account.account.display_name.to_string(),
                id: account.name().to_owned(),
                stats: Stats::of_account(&Totals::of(&account), limits.max_memory, limits.max_store),
                stream_detail: streams
                    .into_iter()
                    .map(|(stream, asked)| {
                        let consumers = asked.map(|asked| asked.wait(until));
                        detail(shared, js, &stream, consumers, options)
                    })
                    .collect(),
            }
        })
        .collect()
}

fn detail(
    shared: &Shared,
    js: &JetStream,
    stream: &Stream,
    consumers: Option<Option<Vec<ConsumerInfo>>>,
    options: &JszOptions,
) -> StreamDetail {
    if matches!(consumers, Some(None)) {
        tracing::warn!(stream = %stream.name, "jsz without the consumers of a stream that did not answer within {PATIENCE:?}");
    }
    let consumers = consumers.flatten().unwrap_or_default();
    let (direct, plain): (Vec<_>, Vec<_>) = consumers.into_iter().partition(|info| info.config.direct);
    let shown = |infos: Vec<ConsumerInfo>| {
        infos
            .into_iter()
            .map(|info| ConsumerDetail::of(info, options.config))
            .collect()
    };
    let (mirror, sources) = stream.copying(js.now());
    StreamDetail {
        name: stream.name.to_string(),
        created: stream.created,
        cluster: ClusterInfo {
            leader: shared.name.clone(),
            ..ClusterInfo::default()
        },
        config: options.config.then(|| (*stream.config()).clone()),
        state: stream.state(),
        consumer_detail: shown(plain),
        direct_consumer_detail: if options.direct_consumer {
            shown(direct)
        } else {
            Vec::new()
        },
        mirror,
        sources,
    }
}
