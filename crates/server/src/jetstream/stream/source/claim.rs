//! Messages of an origin that go when nobody needs them: a consumer there holds them back until the copy is durable.
//!
//! The consumer is an ordinary durable push consumer in lists and counts, but nothing is pushed: the copying stream reads by
//! itself and reports how far its copy is durable. On a work queue it is the queue's consumer, and is refused where another
//! one wants the same messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use windjet_protocol::jetstream::consumer::requests::{ConsumerAction, ConsumerCreateRequest};
use windjet_protocol::jetstream::{AckPolicy, ApiError, ConsumerConfig, DeliverPolicy, Nanos, StreamSource};

use super::follow::Follower;
use super::header::hash;
use super::route::Route;
use crate::jetstream::account::JsAccount;
use crate::jetstream::consumer::Now;
use crate::jetstream::stream::task::Task;

/// What a stream asks of its origin.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Name of the consumer.
    pub(crate) name: String,
    config: ConsumerConfig,
    follower: Arc<Follower>,
    answer: Mutex<Option<Result<(), ApiError>>>,
}

impl Claim {
    /// A claim on everything that `source` takes after the sequence `after`.
    pub(super) fn new(
        source: &StreamSource,
        mirror: bool,
        account: &JsAccount,
        stream: &str,
        key: &str,
        after: u64,
        follower: Arc<Follower>,
    ) -> Arc<Self> {
        let (prefix, label) = if mirror {
            ("JS_MIRROR_", "mirror")
        } else {
            ("JS_SRC_", "src")
        };
        // The same after a restart, so that the consumer is found again.
        let id = hash(&format!("{} {stream} {key}", account.name()));
        let mut metadata = BTreeMap::from([
            (format!("_nats.{label}.stream"), stream.to_owned()),
            (format!("_nats.{label}.acc"), account.name().to_owned()),
        ]);
        if let Some(domain) = account.domain() {
            metadata.insert(format!("_nats.{label}.domain"), domain.to_owned());
        }
        let mut filters = Route::new(source).filters();
        let single = (filters.len() == 1).then(|| filters.remove(0));
        let name = format!("{prefix}{id}");
        let config = ConsumerConfig {
            durable_name: Some(name.clone()),
            deliver_subject: Some(format!("$JS.S.{id}")),
            ack_policy: AckPolicy::FlowControl,
            deliver_policy: if after > 0 {
                DeliverPolicy::ByStartSequence
            } else {
                DeliverPolicy::All
            },
            opt_start_seq: if after > 0 { after + 1 } else { 0 },
            filter_subject: single,
            filter_subjects: filters,
            flow_control: true,
            idle_heartbeat: Nanos::from_millis(1000),
            sourcing: true,
            metadata: metadata.into_iter().collect(),
            ..ConsumerConfig::default()
        };
        Arc::new(Self {
            name,
            config,
            follower,
            answer: Mutex::default(),
        })
    }

    /// What the origin answered, once it has.
    pub(super) fn granted(&self) -> Option<Result<(), ApiError>> {
        self.answer.lock().clone()
    }
}

impl Task {
    /// A stream that copies from this one wants messages held back.
    pub(in crate::jetstream::stream) fn claim(&mut self, claim: Arc<Claim>, now: Now) {
        let known = self.consumers.find(&claim.name).is_some();
        let made = if known {
            Ok(())
        } else {
            self.make_claim(&claim, now)
        };
        self.then(move |_| {
            *claim.answer.lock() = Some(made);
            claim.follower.tell();
        });
    }

    fn make_claim(&mut self, claim: &Claim, now: Now) -> Result<(), ApiError> {
        let request = ConsumerCreateRequest {
            stream_name: self.stream.name.to_string(),
            config: claim.config.clone(),
            action: ConsumerAction::CreateOrUpdate,
            ..ConsumerCreateRequest::default()
        };
        self.create_internal(request, &claim.name, now)
    }

    /// A stream that copies from this one has stored everything up to a sequence.
    pub(in crate::jetstream::stream) fn taken(&mut self, consumer: &str, seq: u64, now: Now) {
        if let Some(number) = self.consumers.find(consumer) {
            self.with_consumer(number, now, |consumer, port| consumer.taken(port, seq, now));
            self.consumers.store_now(now);
        }
    }

    /// A stream does not copy from this one any more.
    pub(in crate::jetstream::stream) fn unclaim(&mut self, consumer: &str, now: Now) {
        if let Some(number) = self.consumers.find(consumer) {
            self.delete_consumer(number, now);
        }
    }
}
