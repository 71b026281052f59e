//! How a tenant's queues are called and configured in the server. Nothing outside the module sees it.

use windjet_server::jetstream::{
    AckPolicy, ConsumerConfig as Durable, DiscardPolicy, Nanos, RetentionPolicy, StorageType, StreamConfig,
};

use crate::{EMBEDDED_DUPLICATE_WINDOW, TenantId};

/// What ingest subjects begin with.
pub(super) const INGEST: &str = "ingest.";
/// What dead-letter subjects begin with.
pub(super) const DEAD: &str = "dlq.";
const INGEST_STREAM: &str = "INGEST_";
const DEAD_STREAM: &str = "DLQ_";
/// The pair that an earlier layout kept for all tenants together.
pub(super) const LEGACY: [&str; 2] = ["WAVEHOUSE", "WAVEHOUSE_DLQ"];
/// How much of a budget goes to dead letters: a tenth.
const DEAD_LETTER_SHARE: u64 = 10;
/// What a process held when it ended is delivered again at once.
const REQUEUE: (&str, &str) = ("windjet.requeue_on_disconnect", "true");

pub(super) fn ingest_stream(tenant: &TenantId) -> String {
    format!("{INGEST_STREAM}{tenant}")
}

pub(super) fn dead_stream(tenant: &TenantId) -> String {
    format!("{DEAD_STREAM}{tenant}")
}

/// One of a tenant's two streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Ingest(TenantId),
    Dead(TenantId),
}

/// What a stream of this name is to us; `None` for a foreign one.
pub(super) fn kind(stream: &str) -> Option<Kind> {
    let of = |prefix| TenantId::parse(stream.strip_prefix(prefix)?).ok();
    of(INGEST_STREAM)
        .map(Kind::Ingest)
        .or_else(|| of(DEAD_STREAM).map(Kind::Dead))
}

/// The dead-letter queue's part of a budget.
pub(super) fn dead_share(budget: u64) -> u64 {
    budget / DEAD_LETTER_SHARE
}

fn stream(name: String, subjects: String, bytes: u64, discard: DiscardPolicy) -> StreamConfig {
    StreamConfig {
        name,
        subjects: vec![subjects],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        max_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        discard,
        num_replicas: 1,
        ..StreamConfig::default()
    }
}

/// A full ingest queue refuses.
pub(super) fn ingest_config(tenant: &TenantId, bytes: u64) -> StreamConfig {
    let window = i64::try_from(EMBEDDED_DUPLICATE_WINDOW.as_nanos()).unwrap_or(i64::MAX);
    StreamConfig {
        duplicate_window: Nanos(window),
        ..stream(
            ingest_stream(tenant),
            format!("{INGEST}{tenant}.>"),
            bytes,
            DiscardPolicy::New,
        )
    }
}

/// A full dead-letter queue drops its oldest.
pub(super) fn dead_config(tenant: &TenantId, bytes: u64) -> StreamConfig {
    stream(
        dead_stream(tenant),
        format!("{DEAD}{tenant}.>"),
        bytes,
        DiscardPolicy::Old,
    )
}

/// The pair of the early package, at a limit for the first; the second keeps what it holds.
#[cfg(feature = "compat")]
pub(super) fn early_pair(bytes: u64, held: u64) -> [StreamConfig; 2] {
    let dead = dead_share(bytes).max(held).max(1);
    let make = |name: &str, subjects: &str, bytes, discard| {
        stream(name.to_owned(), subjects.to_owned(), bytes, discard)
    };
    [
        make(LEGACY[0], "ingest.>", bytes, DiscardPolicy::New),
        make(LEGACY[1], "dlq.>", dead, DiscardPolicy::Old),
    ]
}

/// What a durable must have.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) durable: String,
    /// Part of the stream's subjects, or all of them.
    pub(super) filter: Option<String>,
    pub(super) ack_wait: Option<std::time::Duration>,
    pub(super) max_ack_pending: Option<usize>,
}

impl Wanted {
    /// The configuration to apply, when what is there (if anything) does not do.
    pub(super) fn change(&self, there: Option<&Durable>) -> Option<Durable> {
        let ack_wait = self
            .ack_wait
            .map(|wait| Nanos(i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX)));
        let cap = self
            .max_ack_pending
            .map(|cap| i64::try_from(cap).unwrap_or(i64::MAX));
        let fits = there.is_some_and(|there| {
            there.ack_policy == AckPolicy::Explicit
                && there.filter_subject == self.filter
                && there.filter_subjects.is_empty()
                && there
                    .metadata
                    .get(REQUEUE.0)
                    .is_some_and(|value| value == REQUEUE.1)
                && ack_wait.is_none_or(|wait| wait == there.ack_wait)
                && cap.is_none_or(|cap| cap == there.max_ack_pending)
        });
        if fits {
            return None;
        }
        let mut config = there.cloned().unwrap_or_else(|| Durable {
            durable_name: Some(self.durable.clone()),
            ..Durable::default()
        });
        config.ack_policy = AckPolicy::Explicit;
        config.filter_subject.clone_from(&self.filter);
        config.filter_subjects.clear();
        config.metadata.insert(REQUEUE.0.to_owned(), REQUEUE.1.to_owned());
        if let Some(wait) = ack_wait {
            config.ack_wait = wait;
        }
        if let Some(cap) = cap {
            config.max_ack_pending = cap;
        }
        Some(config)
    }
}

#[cfg(test)]
mod tests {
    use windjet_testkit::page;

    use super::*;

    fn tenant(id: &str) -> TenantId {
        TenantId::parse(id).unwrap()
    }

    #[test]
    fn no_tenants_stream_is_anothers_or_a_legacy_one() {
        let long = "a".repeat(64);
        for id in ["0", "DLQ", "DLQ_acme", "INGEST_acme", "WAVEHOUSE", long.as_str()] {
            let tenant = tenant(id);
            assert_eq!(kind(&ingest_stream(&tenant)), Some(Kind::Ingest(tenant.clone())));
            assert_eq!(kind(&dead_stream(&tenant)), Some(Kind::Dead(tenant)));
        }
        for foreign in ["INGEST_a.b", "DLQ_", "INGEST_", "ingest_a", LEGACY[0], LEGACY[1]] {
            assert_eq!(kind(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_pair_is_configured_as_specified() {
        let ingest = ingest_config(&tenant("acme"), 1 << 20);
        assert_eq!(
            (ingest.name.as_str(), ingest.subjects),
            ("INGEST_acme", vec!["ingest.acme.>".to_owned()])
        );
        assert_eq!((ingest.max_bytes, ingest.discard), (1 << 20, DiscardPolicy::New));
        assert_eq!(ingest.duplicate_window, Nanos::from_secs(120));
        let dead = dead_config(&tenant("acme"), dead_share(1 << 20));
        assert_eq!(
            (dead.name.as_str(), dead.subjects),
            ("DLQ_acme", vec!["dlq.acme.>".to_owned()])
        );
        assert_eq!((dead.max_bytes, dead.discard), (104_857, DiscardPolicy::Old));
    }

    #[test]
    fn the_page_has_the_pairs_names() {
        let (ingest, dead) = (ingest_config(&tenant("acme"), 1), dead_config(&tenant("acme"), 1));
        let names = [&ingest.name, &ingest.subjects[0], &dead.name, &dead.subjects[0]];
        let page = page::rows(&page::read("mq-topology.md").unwrap(), "Names").unwrap();
        let rows = page.iter().filter(|row| row[0].starts_with("in the process"));
        let page: Vec<_> = rows.map(|row| row[1].trim_matches('`')).collect();
        assert_eq!(page, names);
    }

    #[test]
    fn a_durable_that_does_is_left_alone_and_one_that_does_not_keeps_the_rest() {
        let wanted = Wanted {
            durable: "worker".to_owned(),
            filter: None,
            ack_wait: None,
            max_ack_pending: Some(7),
        };
        let made = wanted.change(None).unwrap();
        assert_eq!(
            (made.durable_name.as_deref(), made.max_ack_pending),
            (Some("worker"), 7)
        );
        assert!(wanted.change(Some(&made)).is_none());
        let other = Durable {
            max_ack_pending: 9,
            ack_wait: Nanos::from_secs(5),
            ..made
        };
        let changed = wanted.change(Some(&other)).unwrap();
        assert_eq!(
            (changed.max_ack_pending, changed.ack_wait),
            (7, Nanos::from_secs(5))
        );
        let any = Wanted {
            max_ack_pending: None,
            ..wanted
        };
        assert!(
            any.change(Some(&other)).is_none(),
            "what was not asked for is not compared"
        );
    }
}
