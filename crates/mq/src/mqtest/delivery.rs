//! Cases: order, redelivery, settling, subscriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use parking_lot::Mutex;

use super::support::{Collected, Inbox, config, consume, create, publish, text, topic, until};
use super::{Instance, WATCH};
use crate::{Ctx, Handler, Listener, Message, PublishOptions};

pub(super) async fn each_tenant_is_in_order(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    let rows = ["1", "2", "3", "4", "5"];
    for row in rows {
        publish(instance, &topic("acme", "events"), row).await;
        publish(instance, &topic("globex", "events"), row).await;
    }
    let delivered = inbox.acked(instance, 10).await;
    for id in ["acme", "globex"] {
        let own = topic(id, "events");
        let of_tenant = delivered.iter().filter(|message| message.topic() == own);
        assert_eq!(of_tenant.map(text).collect::<Vec<_>>(), rows, "{id}");
    }
}

pub(super) async fn a_refused_event_comes_back(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "events"), "x").await;
    inbox.next(instance).await.nak().await.unwrap();
    let again = inbox.next(instance).await;
    assert_eq!(text(&again), "x");
    again.double_ack(&Ctx::new()).await.unwrap();
    inbox.nothing(instance).await;
}

pub(super) async fn a_delayed_refusal_comes_back_no_sooner(instance: &dyn Instance) {
    let delay = WATCH * 3;
    let (inbox, _consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "events"), "x").await;
    let first = inbox.next(instance).await;
    let refused = instance.now();
    first.nak_with_delay(delay).await.unwrap();
    let again = inbox.next(instance).await;
    let after = instance.now().duration_since(refused).unwrap_or_default();
    assert!(after >= delay, "came back after {after:?}");
    again.double_ack(&Ctx::new()).await.unwrap();
}

pub(super) async fn an_unsettled_event_comes_back_after_the_ack_wait(instance: &dyn Instance) {
    if !instance.capabilities().configures_durables {
        return;
    }
    let config = config().ack_wait(Duration::from_millis(200));
    let (inbox, _consuming) = consume(instance, config).await;
    let topic = topic("acme", "events");
    publish(instance, &topic, "acked").await;
    inbox.acked(instance, 1).await;
    publish(instance, &topic, "left").await;
    let left = inbox.next(instance).await;
    let again = inbox.acked(instance, 1).await;
    assert_eq!([text(&left), text(&again[0])], ["left", "left"]);
    inbox.nothing(instance).await;
}

pub(super) async fn settling_lets_go_once(instance: &dyn Instance) {
    let (inbox, _consuming) = consume(instance, config()).await;
    publish(instance, &topic("acme", "events"), "x").await;
    let settled = Arc::new(AtomicUsize::new(0));
    for delivery in 1..=2 {
        let message = inbox.next(instance).await;
        let count = Arc::clone(&settled);
        message.on_settled(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(settled.load(Ordering::SeqCst), delivery - 1);
        if delivery == 1 {
            message.nak().await.unwrap();
        } else {
            message.double_ack(&Ctx::new()).await.unwrap();
            // The broker may refuse a second settlement; letting go happens once either way.
            let _ = message.ack().await;
        }
        assert_eq!(settled.load(Ordering::SeqCst), delivery);
    }
}

pub(super) async fn a_subscription_carries_the_trace_context(instance: &dyn Instance) {
    let (broker, ctx) = (instance.broker(), Ctx::new());
    let seen: Arc<Mutex<Vec<SpanContext>>> = Arc::default();
    let into = Arc::clone(&seen);
    let listener = Listener::new(move |message: Message| {
        let into = Arc::clone(&into);
        async move {
            into.lock()
                .push(message.ctx().trace().span().span_context().clone());
            message.ack().await?;
            Ok(())
        }
    });
    broker.subscribe(&ctx, "hub-bridge", listener).await.unwrap();
    let span = SpanContext::new(
        TraceId::from_bytes([7; 16]),
        SpanId::from_bytes([9; 8]),
        TraceFlags::SAMPLED,
        false,
        TraceState::NONE,
    );
    let publisher = Ctx::new().with_trace(Context::new().with_remote_span_context(span.clone()));
    let options = PublishOptions::new()
        .header("X-Beside", "1")
        .header("traceparent", "overwritten");
    let topic = topic("acme", "events");
    broker
        .publish(&publisher, &topic, "x".into(), options)
        .await
        .unwrap();
    let got = until(instance, "the message", || async { seen.lock().pop() }).await;
    assert_eq!((got.trace_id(), got.span_id()), (span.trace_id(), span.span_id()));
    assert!(got.is_remote());
    ctx.cancel();
}

pub(super) async fn a_subscription_sees_every_tenant(instance: &dyn Instance) {
    let (seen, ctx) = (Collected::default(), Ctx::new());
    let into = seen.clone();
    let listener = Listener::new(move |message: Message| {
        into.push(format!("{} {}", message.topic_key(), text(&message)).as_bytes());
        async move { Ok(message.ack().await?) }
    });
    instance
        .broker()
        .subscribe(&ctx, "hub-bridge", listener)
        .await
        .unwrap();
    publish(instance, &topic("acme", "events"), "a").await;
    publish(instance, &topic("globex", "events"), "g").await;
    until(instance, "both tenants", || async {
        let mut all = seen.all();
        all.sort();
        (all == ["acme.events a", "globex.events g"]).then_some(())
    })
    .await;
    ctx.cancel();
    instance.pass(WATCH).await;
    publish(instance, &topic("acme", "events"), "after the end").await;
    instance.pass(WATCH).await;
    assert_eq!(seen.all().len(), 2, "{:?}", seen.all());
}

pub(super) async fn a_subscription_redelivers_what_its_listener_refused(instance: &dyn Instance) {
    let (seen, ctx) = (Collected::default(), Ctx::new());
    let into = seen.clone();
    let listener = Listener::new(move |message: Message| {
        into.push(message.data());
        let first = into.all().len() == 1;
        async move {
            if first {
                return Err("not now".into());
            }
            Ok(message.double_ack(&Ctx::new()).await?)
        }
    });
    instance
        .broker()
        .subscribe(&ctx, "hub-bridge", listener)
        .await
        .unwrap();
    publish(instance, &topic("acme", "events"), "x").await;
    let times = if instance.capabilities().subscription_redelivers {
        2
    } else {
        1
    };
    until(instance, "the deliveries", || async {
        (seen.all().len() >= times).then_some(())
    })
    .await;
    instance.pass(WATCH).await;
    assert_eq!(seen.all(), vec!["x"; times]);
    ctx.cancel();
}

pub(super) async fn a_panicking_handler_costs_one_delivery(instance: &dyn Instance) {
    let consumer = create(instance, config()).await;
    let (inbox, pass_on) = Inbox::new();
    let handler = Handler::new(move |message: Message| {
        let pass_on = pass_on.clone();
        async move {
            assert_ne!(text(&message), "bad", "a row that the handler cannot stand");
            pass_on.call(message).await.unwrap();
        }
    });
    let _consuming = consumer.consume(handler, 16).await.unwrap();
    publish(instance, &topic("acme", "events"), "bad").await;
    publish(instance, &topic("acme", "events"), "good").await;
    assert_eq!(text(&inbox.acked(instance, 1).await[0]), "good");
}
