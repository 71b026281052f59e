//! Cases: publishing, budgets, closing.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::Instance;
use super::support::{
    Inbox, Mark, config, consume, marked, no_failure, publish, publish_with, tenant, text, topic,
};
use crate::{Ctx, ErrorKind, PublishOptions, TenantId, Topic};

pub(super) async fn an_event_comes_back_as_it_was_published(instance: &dyn Instance) {
    static MARK: AtomicU64 = AtomicU64::new(1);
    let mark = MARK.fetch_add(1, Ordering::Relaxed);
    let topics = [
        topic("acme", "events"),
        topic("acme", "a.b*c> d%e").scope("s.1 *>%"),
        topic("globex", "events").scope("x"),
    ];
    let created = instance.broker().create_consumer(&marked(mark), config()).await;
    let consumer = created.unwrap_or_else(|error| panic!("{error:#}"));
    let (inbox, handler) = Inbox::new();
    let _consuming = consumer.consume(handler, 16).await.unwrap();
    for (number, topic) in topics.iter().enumerate() {
        let options = PublishOptions::new().header("X-One", "1").header("X-One", "2");
        publish_with(instance, topic, &format!("data {number}"), options)
            .await
            .unwrap();
    }
    let mut left = topics.to_vec();
    for message in inbox.acked(instance, topics.len()).await {
        assert_eq!(
            message.ctx().trace().get(),
            Some(&Mark(mark)),
            "the consumer's context"
        );
        assert_eq!(message.topic_key(), message.topic().key());
        let number = topics.iter().position(|topic| *topic == message.topic());
        let number = number.unwrap_or_else(|| panic!("unknown topic {}", message.topic_key()));
        assert_eq!(text(&message), format!("data {number}"));
        left.retain(|topic| *topic != message.topic());
    }
    assert!(left.is_empty(), "not delivered: {left:?}");
}

pub(super) async fn a_topic_without_a_tenant_is_refused(instance: &dyn Instance) {
    let nobodys = Topic {
        table: "events".into(),
        ..Topic::default()
    };
    let error = publish_with(instance, &nobodys, "x", PublishOptions::new())
        .await
        .unwrap_err();
    assert!(
        error.is(ErrorKind::Invalid) && !error.is(ErrorKind::QueueFull),
        "{error:?}"
    );
    let mut nothing = |_: Bytes| panic!("an event of nobody");
    let replay = instance.broker();
    let replayed = replay
        .replay_since(&Ctx::new(), &nobodys, instance.now(), &mut nothing)
        .await;
    assert!(replayed.unwrap_err().is(ErrorKind::Invalid));
    for id in ["", "a.b", "*", ">", "a b"] {
        assert!(TenantId::parse(id).is_err(), "{id:?} could reach a subject");
    }
}

pub(super) async fn a_repeated_idempotency_key_is_stored_once(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    let topic = topic("acme", "events");
    for data in ["first", "again"] {
        let options = PublishOptions::new().idempotency_key("acme/events/1");
        publish_with(instance, &topic, data, options).await.unwrap();
    }
    for data in ["no key", "an empty key"] {
        let options = PublishOptions::new();
        let options = if data == "no key" {
            options
        } else {
            options.idempotency_key("")
        };
        publish_with(instance, &topic, data, options).await.unwrap();
    }
    let delivered: Vec<_> = inbox.acked(instance, 3).await.iter().map(text).collect();
    assert_eq!(delivered, ["first", "no key", "an empty key"]);
    inbox.nothing(instance).await;
}

pub(super) async fn a_full_queue_refuses_and_another_tenant_publishes(instance: &dyn Instance) {
    let acme = tenant("acme");
    if !instance.fill(&acme).await {
        return;
    }
    let filled = Topic::new(acme, "filler");
    let error = publish_with(instance, &filled, "x", PublishOptions::new())
        .await
        .unwrap_err();
    assert!(
        error.is(ErrorKind::QueueFull) && error.is_retryable(),
        "{error:?}"
    );
    if instance.capabilities().per_tenant_budget {
        publish(instance, &topic("globex", "events"), "x").await;
    }
}

pub(super) async fn the_budget_is_reported_once_applied(instance: &dyn Instance) {
    let (broker, acme) = (instance.broker(), tenant("acme"));
    for budget in [32 << 20, 48 << 20] {
        broker.set_max_bytes(&Ctx::new(), &acme, budget).await.unwrap();
        assert_eq!(broker.max_bytes(&acme), budget);
    }
    assert_eq!(broker.max_bytes(&tenant("initech")), 0);
}

pub(super) async fn a_canceled_publish_is_refused(instance: &dyn Instance) {
    let ctx = Ctx::new();
    ctx.cancel();
    let topic = topic("acme", "events");
    let published = instance
        .broker()
        .publish(&ctx, &topic, Bytes::new(), PublishOptions::new())
        .await;
    assert!(published.unwrap_err().is(ErrorKind::Canceled));
}

pub(super) async fn stats_count_a_connection(instance: &dyn Instance) {
    assert!(instance.broker().stats().unwrap().connections >= 1);
}

pub(super) async fn a_queue_that_cannot_be_opened_costs_its_tenant_alone(instance: &dyn Instance) {
    let (broker, hooli) = (instance.broker(), tenant("hooli"));
    if !instance.refuse_opening(&hooli, true).await {
        return;
    }
    let (inbox, mut consuming) = consume(instance, config()).await;
    let error = broker
        .set_max_bytes(&Ctx::new(), &hooli, 1 << 20)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("hooli"), "{error:#}");
    assert_eq!(broker.max_bytes(&hooli), 0, "the budget is not applied");
    let row = topic("hooli", "events");
    let error = publish_with(instance, &row, "lost", PublishOptions::new())
        .await
        .unwrap_err();
    assert!(error.is(ErrorKind::QueueFull), "{error:?}");
    publish(instance, &topic("acme", "events"), "a").await;
    assert_eq!(text(&inbox.acked(instance, 1).await[0]), "a");
    no_failure(instance, &mut consuming).await;

    instance.refuse_opening(&hooli, false).await;
    broker.set_max_bytes(&Ctx::new(), &hooli, 1 << 20).await.unwrap();
    publish(instance, &row, "b").await;
    assert_eq!(text(&inbox.acked(instance, 1).await[0]), "b");
}

pub(super) async fn a_closed_broker_refuses(instance: &dyn Instance) {
    let broker = instance.broker();
    broker.close().await.unwrap();
    broker.close().await.unwrap();
    let published = publish_with(instance, &topic("acme", "events"), "x", PublishOptions::new()).await;
    let error = published.unwrap_err();
    assert!(!error.is(ErrorKind::QueueFull), "{error:?}");
}
