//! Cases: back-pressure, the end of delivery, joining, restarting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::support::{
    Collected, Inbox, config, consume, create, failure, no_failure, publish, tenant, text, topic, until,
};
use super::{BUDGET, Instance, WATCH};
use crate::{ConsumerConfig, Ctx, ErrorKind, Handler, Message, PublishOptions, Topic};

pub(super) async fn a_blocked_handler_holds_back_its_own_tenant(instance: &dyn Instance) {
    if !instance.capabilities().configures_durables {
        return;
    }
    let broker = instance.broker();
    broker
        .set_max_bytes(&Ctx::new(), &tenant("initech"), BUDGET)
        .await
        .unwrap();
    let consumer = create(instance, config().max_ack_pending(2)).await;
    let received: Arc<Mutex<BTreeMap<String, Vec<String>>>> = Arc::default();
    let (into, blocked) = (Arc::clone(&received), CancellationToken::new());
    let until_freed = blocked.clone();
    let handler = Handler::new(move |message: Message| {
        let id = message
            .topic()
            .tenant
            .map(|id| id.to_string())
            .unwrap_or_default();
        into.lock().entry(id.clone()).or_default().push(text(&message));
        let until_freed = until_freed.clone();
        async move {
            match id.as_str() {
                "globex" => message.double_ack(&Ctx::new()).await.unwrap(),
                "initech" => until_freed.cancelled().await,
                _ => {}
            }
        }
    });
    let consuming = consumer.consume(handler, 16).await.unwrap();
    let rows = ["1", "2", "3", "4", "5"];
    for row in rows {
        for id in ["acme", "globex", "initech"] {
            publish(instance, &topic(id, "events"), row).await;
        }
    }
    let of = |id: &str| received.lock().get(id).cloned().unwrap_or_default();
    until(instance, "globex to be through", || async {
        (of("globex").len() == 5).then_some(())
    })
    .await;
    until(instance, "acme to reach its cap", || async {
        (of("acme").len() == 2).then_some(())
    })
    .await;
    instance.pass(WATCH).await;
    assert_eq!(of("globex"), rows);
    assert_eq!(of("acme"), ["1", "2"], "two unsettled events are the cap");
    assert_eq!(of("initech"), ["1"], "the handler is still at the first");
    consuming.stop();
    blocked.cancel();
}

pub(super) async fn delivery_that_ends_by_itself_is_reported_once(instance: &dyn Instance) {
    let (inbox, mut consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "events"), "a").await;
    publish(instance, &topic("globex", "events"), "g").await;
    inbox.acked(instance, 2).await;
    no_failure(instance, &mut consuming).await;
    instance.end_delivery().await;
    let error = failure(instance, &mut consuming).await;
    assert!(error.is(ErrorKind::DeliveryEnded), "{error:?}");
    no_failure(instance, &mut consuming).await;
}

pub(super) async fn nothing_is_reported_after_a_stop(instance: &dyn Instance) {
    let (inbox, mut consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "events"), "a").await;
    inbox.acked(instance, 1).await;
    consuming.stop();
    consuming.stop();
    instance.end_delivery().await;
    no_failure(instance, &mut consuming).await;
}

pub(super) async fn nothing_is_reported_for_a_close(instance: &dyn Instance) {
    let (inbox, mut consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "events"), "a").await;
    inbox.acked(instance, 1).await;
    instance.broker().close().await.unwrap();
    no_failure(instance, &mut consuming).await;
}

pub(super) async fn units_are_refused_by_a_broker_without_any(instance: &dyn Instance) {
    let broker = instance.broker();
    let asked: &[&[&str]] = match broker.as_sharded() {
        Some(_) => &[&["no/such-unit"]],
        None => &[&["no/such-unit"], &[]],
    };
    for units in asked {
        let config = ConsumerConfig::new(super::DURABLE).units(units.iter().copied());
        let refused = broker.create_consumer(&Ctx::new(), config).await.err();
        assert!(
            refused.is_some_and(|error| error.is(ErrorKind::UnitsUnsupported)),
            "{units:?}"
        );
    }
}

pub(super) async fn a_durable_goes_on_where_it_stopped(instance: &dyn Instance) {
    let topic = topic("acme", "events");
    let (inbox, consuming) = consume(instance, config()).await;
    publish(instance, &topic, "1").await;
    inbox.acked(instance, 1).await;
    consuming.stop();
    // What was under way has ended, so that nothing of what follows goes to the first consumer.
    instance.pass(Duration::from_secs(2)).await;
    publish(instance, &topic, "2").await;
    let (inbox, _consuming) = consume(instance, config()).await;
    assert_eq!(text(&inbox.acked(instance, 1).await[0]), "2");
    inbox.nothing(instance).await;
}

pub(super) async fn a_queue_opened_later_is_joined(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    let heard = Collected::default();
    let (into, ctx) = (heard.clone(), Ctx::new());
    let listener = crate::Listener::new(move |message: Message| {
        into.push(message.data());
        async move { Ok(message.ack().await?) }
    });
    instance
        .broker()
        .subscribe(&ctx, "hub-bridge", listener)
        .await
        .unwrap();
    let stopped = consume(instance, ConsumerConfig::new(super::DURABLE)).await;
    stopped.1.stop();
    instance.pass(Duration::from_secs(2)).await;

    instance
        .broker()
        .set_max_bytes(&Ctx::new(), &tenant("initech"), BUDGET)
        .await
        .unwrap();
    publish(instance, &topic("initech", "events"), "late").await;
    assert_eq!(text(&inbox.acked(instance, 1).await[0]), "late");
    until(instance, "the subscription", || async {
        (heard.all() == ["late"]).then_some(())
    })
    .await;
    stopped.0.nothing(instance).await;
    ctx.cancel();
}

pub(super) async fn a_restart_loses_nothing(instance: &dyn Instance) {
    let topic = topic("acme", "events");
    let (inbox, consuming) = consume(instance, config()).await;
    let key = || PublishOptions::new().idempotency_key("acme/events/left");
    publish(instance, &topic, "acked").await;
    super::support::publish_with(instance, &topic, "left", key())
        .await
        .unwrap();
    inbox.acked(instance, 1).await;
    inbox.next(instance).await;
    drop(consuming);
    let Some(broker) = instance.restart().await else {
        return;
    };
    let ctx = Ctx::new();
    broker.publish(&ctx, &topic, "again".into(), key()).await.unwrap();
    let (inbox, handler) = Inbox::new();
    let consumer = broker.create_consumer(&ctx, config()).await.unwrap();
    let consuming = consumer.consume(handler, 16).await.unwrap();
    let message = inbox.next(instance).await;
    assert_eq!(
        text(&message),
        "left",
        "what was acknowledged stays so, a repeated key is dropped"
    );
    message.double_ack(&ctx).await.unwrap();
    inbox.nothing(instance).await;
    let fresh = Topic::new(tenant("globex"), "events");
    broker
        .publish(&ctx, &fresh, "fresh".into(), PublishOptions::new())
        .await
        .unwrap();
    assert_eq!(text(&inbox.next(instance).await), "fresh");
    consuming.stop();
    broker.close().await.unwrap();
}
