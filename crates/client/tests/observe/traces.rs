//! Spans, and their way over messages.

use std::sync::{Arc, OnceLock};

use opentelemetry::trace::{SpanKind, Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::Instrument as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use windjet_client::rpc::{Call, RespondOptions};
use windjet_client::{Config, Delivery, HandlerError, ProcessOptions};

use crate::harness::{World, until};
use crate::jetstream_tests;

/// All spans of this process.
fn spans() -> &'static InMemorySpanExporter {
    static SPANS: OnceLock<InMemorySpanExporter> = OnceLock::new();
    SPANS.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let wanted = Targets::new()
            .with_target("windjet_client::trace", tracing::Level::INFO)
            .with_target("observe", tracing::Level::INFO);
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(wanted));
        tracing::subscriber::set_global_default(subscriber).unwrap();
        exporter
    })
}

/// Waits for the span of this name about this subject.
async fn span(name: &str, subject: &str) -> SpanData {
    until(name, || async {
        let all = spans().get_finished_spans().unwrap();
        all.into_iter().find(|span| {
            span.name == name && attribute(span, "messaging.destination").as_deref() == Some(subject)
        })
    })
    .await
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|pair| pair.key.as_str() == key)?;
    Some(found.value.to_string())
}

/// Settings with nothing but the defaults; subjects tell the tests of one process apart.
fn traced(world: &World) -> Config {
    spans();
    world.config()
}

/// A subject that no other test has.
fn subject(front: &str) -> String {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    format!(
        "{front}.{}",
        NEXT.fetch_add(1, std::sync::atomic::Ordering::AcqRel)
    )
}

jetstream_tests! {

async fn a_delivery_is_the_child_of_its_publish(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    let (client, subject) = (world.kit_with(traced(&world)).await, subject("s"));
    client.publisher().publish_json(&subject, &1).await.unwrap();
    let consumer = client.consumer().pull("S", "d").await.unwrap();
    let handler = |_: Arc<Delivery>| async { Err::<(), _>(HandlerError::failed("bad\nday")) };
    let _running = consumer.start(handler, ProcessOptions::default());
    let publish = span("nats.publish", &subject).await;
    let process = span("nats.process", &subject).await;
    assert_eq!(publish.span_kind, SpanKind::Producer);
    assert_eq!(attribute(&publish, "messaging.system").as_deref(), Some("nats"));
    assert_eq!(attribute(&publish, "messaging.operation").as_deref(), Some("publish"));
    assert_eq!(publish.status, Status::Unset);
    assert_eq!(process.span_kind, SpanKind::Consumer);
    assert_eq!(process.span_context.trace_id(), publish.span_context.trace_id());
    assert_eq!(process.parent_span_id, publish.span_context.span_id());
    assert_eq!(attribute(&process, "messaging.operation").as_deref(), Some("process"));
    assert_eq!(attribute(&process, "messaging.nats.stream_sequence").as_deref(), Some("1"));
    assert_eq!(attribute(&process, "messaging.nats.delivery_count").as_deref(), Some("1"));
    assert!(matches!(process.status, Status::Error { .. }), "{:?}", process.status);
    let stored = &world.stored("S").await[0];
    let header = |name: &str| stored.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Trace-Id"), Some(publish.span_context.trace_id().to_string()));
    let parent = format!("00-{}-{}-01", publish.span_context.trace_id(), publish.span_context.span_id());
    assert_eq!(header("traceparent"), Some(parent));
    // A message with headers says what it is.
    assert_eq!(header("Nats-Content-Type").as_deref(), Some("json"));
}

async fn a_reply_is_the_child_of_its_request(world: World) {
    let (client, subject) = (world.kit_with(traced(&world)).await, subject("r"));
    let handler = |call: Arc<Call>| async move { call.respond_bytes("ok").await };
    client.responder().subscribe(&subject, RespondOptions::default(), handler).await.unwrap();
    client.requester().request_bytes(&subject, "x").await.unwrap();
    let (request, reply) = (span("nats.request", &subject).await, span("nats.reply", &subject).await);
    assert_eq!((request.span_kind, reply.span_kind.clone()), (SpanKind::Client, SpanKind::Server));
    assert_eq!(reply.span_context.trace_id(), request.span_context.trace_id());
    assert_eq!(reply.parent_span_id, request.span_context.span_id());
    client.requester().request_bytes("nobody.there", "x").await.unwrap_err();
    assert!(matches!(span("nats.request", "nobody.there").await.status, Status::Error { .. }));
}

async fn a_publish_is_the_child_of_the_span_around_it_and_replaces_what_it_carries(world: World) {
    world.stream("S").await;
    let (client, subject) = (world.kit_with(traced(&world)).await, subject("s"));
    let around = tracing::info_span!(target: "observe", "around");
    let old = "00-11111111111111111111111111111111-1111111111111111-01";
    let message = windjet_client::Message::raw("x").with_header("traceparent", old).with_header("Trace-Id", "old");
    client.publisher().publish(&subject, message).instrument(around.clone()).await.unwrap();
    drop(around);
    let publish = span("nats.publish", &subject).await;
    let around = until("the span around it", || async {
        let all = spans().get_finished_spans().unwrap();
        all.into_iter().find(|span| span.span_context.span_id() == publish.parent_span_id)
    }).await;
    assert_eq!(around.name, "around");
    let stored = &world.stored("S").await[0];
    assert_eq!(stored.headers.get_all("traceparent").count(), 1);
    let trace = publish.span_context.trace_id().to_string();
    assert!(stored.headers.get("traceparent").unwrap().as_str().contains(&trace));
    assert_eq!(stored.headers.get("Trace-Id").unwrap().as_str(), trace);
}

async fn tracing_that_is_off_changes_nothing(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    let mut config = traced(&world);
    config.metrics.allow_tracing = false;
    let (client, subject) = (world.kit_with(config).await, subject("s"));
    let around = tracing::info_span!(target: "observe", "around", messaging.destination = subject);
    async {
        client.publisher().publish_bytes(&subject, "x").await.unwrap();
        // The caller's span is still the current one.
        assert_eq!(tracing::Span::current().metadata().unwrap().name(), "around");
    }
    .instrument(around)
    .await;
    let around = span("around", &subject).await;
    assert_eq!(around.status, Status::Unset);
    assert!(world.stored("S").await[0].headers.is_empty());
    let all = spans().get_finished_spans().unwrap();
    assert!(all.iter().all(|span| span.name == "around" || attribute(span, "messaging.destination").as_deref() != Some(&subject)));
}

async fn one_component_may_be_left_out_and_names_may_be_the_conventions(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    let mut config = traced(&world);
    config.publisher.allow_tracing = false;
    config.metrics.semantic_names = true;
    let (client, subject) = (world.kit_with(config).await, subject("s"));
    client.publisher().publish_bytes(&subject, "x").await.unwrap();
    let consumer = client.consumer().pull("S", "d").await.unwrap();
    let _running = consumer.start(|_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) }, ProcessOptions::default());
    let process = until("the span", || async {
        let all = spans().get_finished_spans().unwrap();
        all.into_iter().find(|span| attribute(span, "messaging.destination.name").as_deref() == Some(&subject))
    }).await;
    assert_eq!(process.name, "nats.process");
    assert_eq!(attribute(&process, "messaging.operation.type").as_deref(), Some("process"));
    assert_eq!(attribute(&process, "messaging.destination"), None);
    assert!(world.stored("S").await[0].headers.is_empty());
}

}
