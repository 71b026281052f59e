//! Cases: dead letters, replay, purge.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::support::{Collected, config, consume, publish, tenant, text, topic, until};
use super::{DURABLE, Instance};
use crate::{Ctx, DeadLetterCounts, Error, ErrorKind, PublishOptions, Topic};

fn counts(tables: &[(&str, u64)], total: u64) -> DeadLetterCounts {
    let tables = tables.iter().map(|&(table, count)| (table.to_owned(), count));
    DeadLetterCounts {
        tables: tables.collect(),
        total,
    }
}

async fn parked(instance: &dyn Instance, id: &str, table: Option<&str>) -> Result<DeadLetterCounts, Error> {
    let broker = instance.broker();
    broker.dead_letter_counts(&Ctx::new(), &tenant(id), table).await
}

pub(super) async fn a_parked_event_keeps_its_topic_and_is_not_acked(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "t").scope("s"), "x").await;
    let message = inbox.next(instance).await;
    let options = PublishOptions::new().header("X-Why", "a bad row");
    instance
        .broker()
        .dead_letter(&Ctx::new(), &message, options)
        .await
        .unwrap();
    message.nak().await.unwrap();
    inbox.acked(instance, 1).await;
    assert_eq!(
        parked(instance, "acme", None).await.unwrap(),
        counts(&[("t", 1)], 1)
    );
}

pub(super) async fn dead_letters_are_counted_by_table(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    let nothing = counts(&[], 0);
    assert_eq!(parked(instance, "globex", None).await.unwrap(), nothing);
    let topics = [
        topic("acme", "t1"),
        topic("acme", "t1"),
        topic("acme", "t2"),
        topic("acme", "t1").scope("s"),
        topic("acme", "odd.name"),
        topic("globex", "t1"),
    ];
    for topic in &topics {
        publish(instance, topic, "x").await;
    }
    for _ in &topics {
        let message = inbox.next(instance).await;
        instance
            .broker()
            .dead_letter(&Ctx::new(), &message, PublishOptions::new())
            .await
            .unwrap();
        message.double_ack(&Ctx::new()).await.unwrap();
    }
    let all = counts(&[("t1", 3), ("t2", 1), ("odd.name", 1)], 5);
    assert_eq!(parked(instance, "acme", None).await.unwrap(), all);
    assert_eq!(
        parked(instance, "acme", Some("t1")).await.unwrap(),
        counts(&[("t1", 3)], 5)
    );
    assert_eq!(
        parked(instance, "acme", Some("none")).await.unwrap(),
        counts(&[], 5)
    );
    assert_eq!(
        parked(instance, "globex", None).await.unwrap(),
        counts(&[("t1", 1)], 1)
    );
    let unbudgeted = parked(instance, "initech", None).await;
    if instance.capabilities().unbudgeted_not_found {
        assert!(unbudgeted.unwrap_err().is(ErrorKind::NoDeadLetterQueue));
    } else {
        assert_eq!(unbudgeted.unwrap(), nothing);
    }
}

async fn replay(instance: &dyn Instance, topic: &Topic, since: SystemTime) -> Vec<String> {
    let sent = Collected::default();
    let into = sent.clone();
    let mut sink = move |data: Bytes| {
        into.push(&data);
        true
    };
    let replayed = instance
        .broker()
        .replay_since(&Ctx::new(), topic, since, &mut sink)
        .await;
    replayed.unwrap_or_else(|error| panic!("replay: {error:#}"));
    sent.all()
}

/// The store that is replayed from may trail what was published.
async fn replays(instance: &dyn Instance, topic: &Topic, since: SystemTime, rows: &[&str]) {
    until(
        instance,
        &format!("a replay of {rows:?} on {}", topic.key()),
        || async { (replay(instance, topic, since).await == rows).then_some(()) },
    )
    .await;
}

pub(super) async fn a_replay_sends_its_topic_since_a_time(instance: &dyn Instance) {
    let step = Duration::from_millis(50);
    let (events, scoped) = (topic("acme", "events"), topic("acme", "events").scope("s"));
    publish(instance, &events, "one").await;
    instance.pass(step).await;
    let since = instance.now();
    instance.pass(step).await;
    publish(instance, &events, "two").await;
    publish(instance, &topic("acme", "others"), "other table").await;
    publish(instance, &scoped, "scoped").await;
    publish(instance, &topic("globex", "events"), "other tenant").await;
    publish(instance, &events, "three").await;
    let begin = SystemTime::UNIX_EPOCH;
    replays(instance, &events, since, &["two", "three"]).await;
    replays(instance, &events, begin, &["one", "two", "three"]).await;
    replays(instance, &events, instance.now() + Duration::from_secs(3600), &[]).await;
    replays(instance, &scoped, begin, &["scoped"]).await;
    replays(instance, &topic("globex", "events"), begin, &["other tenant"]).await;
}

/// Publishes three rows and waits until they can be replayed.
async fn replayable(instance: &dyn Instance) -> Topic {
    let events = topic("acme", "events");
    for row in ["1", "2", "3"] {
        publish(instance, &events, row).await;
    }
    replays(instance, &events, SystemTime::UNIX_EPOCH, &["1", "2", "3"]).await;
    events
}

pub(super) async fn a_replay_ends_with_its_context(instance: &dyn Instance) {
    let (events, ctx) = (replayable(instance).await, Ctx::new());
    let (sent, ending) = (Collected::default(), ctx.clone());
    let into = sent.clone();
    let mut sink = move |data: Bytes| {
        into.push(&data);
        ending.cancel();
        true
    };
    let replayed = instance
        .broker()
        .replay_since(&ctx, &events, SystemTime::UNIX_EPOCH, &mut sink)
        .await;
    assert!(replayed.unwrap_err().is(ErrorKind::Canceled));
    assert_eq!(sent.all(), ["1"]);
}

pub(super) async fn a_replay_ends_when_the_sink_has_enough(instance: &dyn Instance) {
    let (events, sent) = (replayable(instance).await, Collected::default());
    let into = sent.clone();
    let mut sink = move |data: Bytes| {
        into.push(&data);
        into.all().len() < 2
    };
    let broker = instance.broker();
    broker
        .replay_since(&Ctx::new(), &events, SystemTime::UNIX_EPOCH, &mut sink)
        .await
        .unwrap();
    assert_eq!(sent.all(), ["1", "2"]);
}

/// A sink that closes the broker with the first event.
struct Closes<'a> {
    instance: &'a dyn Instance,
    sent: usize,
}

#[crate::async_trait]
impl crate::ReplaySink for Closes<'_> {
    async fn send(&mut self, _data: Bytes) -> bool {
        self.sent += 1;
        self.instance.broker().close().await.unwrap();
        true
    }
}

pub(super) async fn a_replay_that_loses_its_broker_fails(instance: &dyn Instance) {
    let events = replayable(instance).await;
    let mut sink = Closes { instance, sent: 0 };
    let broker = instance.broker();
    let replayed = broker
        .replay_since(&Ctx::new(), &events, SystemTime::UNIX_EPOCH, &mut sink)
        .await;
    let error = replayed.expect_err("a replay that lost its broker is not caught up");
    assert!(!error.is(ErrorKind::Canceled), "{error:?}");
    assert_eq!(sink.sent, 1);
}

pub(super) async fn a_purge_removes_what_is_acked_and_old(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    let events = topic("acme", "events");
    for row in ["a", "b", "c", "left"] {
        publish(instance, &events, row).await;
    }
    inbox.acked(instance, 3).await;
    assert_eq!(text(&inbox.next(instance).await), "left");
    replays(
        instance,
        &events,
        SystemTime::UNIX_EPOCH,
        &["a", "b", "c", "left"],
    )
    .await;
    let purge = |cutoff: SystemTime| async move {
        let cutoffs: BTreeMap<_, _> = ["acme", "globex"].map(|id| (tenant(id), cutoff)).into();
        let outcome = instance
            .broker()
            .purge_acked(&Ctx::new(), DURABLE, &cutoffs)
            .await;
        outcome
            .into_result()
            .unwrap_or_else(|error| panic!("purge: {error:#}"))
    };
    assert!(!purge(SystemTime::UNIX_EPOCH).await, "nothing is as old as that");
    let purges = instance.capabilities().purges_acked;
    assert_eq!(purge(instance.now() + Duration::from_secs(3600)).await, purges);
    let kept: &[&str] = if purges {
        &["left"]
    } else {
        &["a", "b", "c", "left"]
    };
    replays(instance, &events, SystemTime::UNIX_EPOCH, kept).await;
    assert!(
        !purge(instance.now() + Duration::from_secs(3600)).await,
        "nothing is left to remove"
    );
}

pub(super) async fn a_purge_of_an_unknown_consumer_fails(instance: &dyn Instance) {
    publish(instance, &topic("acme", "events"), "x").await;
    let outcome = instance
        .broker()
        .purge_acked(&Ctx::new(), "no-such-consumer", &BTreeMap::new())
        .await;
    assert!(!outcome.purged);
    assert!(
        outcome
            .error
            .is_some_and(|error| error.is(ErrorKind::ConsumerNotFound))
    );
}
