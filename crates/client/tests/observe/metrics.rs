//! Measurements.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use windjet_client::config::TrackedConsumer;
use windjet_client::consumer::{FetchOptions, RetryDelay};
use windjet_client::observe::prometheus::Prometheus;
use windjet_client::observe::{INSTRUMENTS, Kind, Labels, otel};
use windjet_client::ops::shadow::Shadow;
use windjet_client::rpc::RespondOptions;
use windjet_client::{Config, Delivery, Disposition, HandlerError, Layer as _, Message, ProcessOptions};

use crate::harness::{World, soon, until};
use crate::jetstream_tests;

/// Settings whose measurements go to `prometheus`, with places of their own for labels.
fn measured(world: &World, prometheus: &Prometheus) -> Config {
    let mut config = world.config();
    config.metrics.sink = prometheus.sink();
    config.metrics.labels = Labels::at_most(100);
    config.metrics.collect_interval = Duration::from_millis(20);
    config
}

/// Series and their values, histograms by their counts and sums.
fn series(prometheus: &Prometheus) -> BTreeMap<String, f64> {
    let text = prometheus.render();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Waits until a series has a value.
async fn reads(prometheus: &Prometheus, name: &str, value: f64) {
    let read = || series(prometheus).get(name).copied();
    let last = std::sync::Mutex::new(None);
    let found = tokio::time::timeout(crate::harness::PATIENCE, async {
        loop {
            *last.lock().unwrap() = read();
            if read().is_some_and(|read| (read - value).abs() < 1e-9) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(
        found.await.is_ok(),
        "{name} is {:?}, not {value}",
        last.lock().unwrap()
    );
}

jetstream_tests! {

async fn publishes_are_measured(world: World) {
    world.stream("S").await;
    let prometheus = Prometheus::new().unwrap();
    let client = world.kit_with(measured(&world, &prometheus)).await;
    let publisher = client.publisher();
    for _ in 0..3 {
        publisher.publish_bytes("s.a", "12345").await.unwrap();
    }
    publisher.publish_bytes("nowhere", "x").await.unwrap_err();
    // What is refused before it begins is no publish.
    publisher.publish_bytes("s.*", "x").await.unwrap_err();
    publisher.publish_async_bytes("s.b", "1234567").await.unwrap().await.unwrap();
    publisher.publish_async_bytes("nowhere", "x").await.unwrap().await.unwrap_err();
    let found = series(&prometheus);
    let value = |name: &str| found.get(name).copied();
    assert_eq!(value(r#"nats_publish_total{subject="s.a"}"#), Some(3.0));
    assert_eq!(value(r#"nats_publish_latency_seconds_count{subject="s.a"}"#), Some(3.0));
    assert_eq!(value(r#"nats_publish_bytes_sum{subject="s.a"}"#), Some(15.0));
    assert_eq!(value(r#"nats_publish_bytes_bucket{subject="s.a",le="64"}"#), Some(3.0));
    assert_eq!(value(r#"nats_publish_errors{subject="nowhere"}"#), Some(1.0));
    assert_eq!(value(r#"nats_publish_total{subject="s.*"}"#), None);
    // An asynchronous one counts when it is accepted, has no latency, and its failure has no label.
    assert_eq!(value(r#"nats_publish_total{subject="s.b"}"#), Some(1.0));
    assert_eq!(value(r#"nats_publish_latency_seconds_count{subject="s.b"}"#), Some(0.0));
    assert_eq!(value("nats_publish_errors"), Some(1.0));
}

async fn deliveries_and_fetches_are_measured(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    let prometheus = Prometheus::new().unwrap();
    let client = world.kit_with(measured(&world, &prometheus)).await;
    world.publish("s.good", 4).await;
    world.publish("s.bad", 1).await;
    world.publish("s.term", 1).await;
    let consumer = client.consumer().pull("S", "d").await.unwrap();
    let failed = Arc::new(AtomicUsize::new(0));
    let handler = move |delivery: Arc<Delivery>| {
        let (subject, first) = (delivery.subject.to_string(), failed.clone());
        async move {
            match subject.as_str() {
                "s.bad" if first.fetch_add(1, Ordering::AcqRel) == 0 => Err(HandlerError::failed("bad")),
                "s.term" => Ok(Disposition::Term(None)),
                _ => Ok(Disposition::Ack),
            }
        }
    };
    let running = consumer.start(handler, ProcessOptions::default().retry_delay(RetryDelay::None));
    crate::harness::settled(&world, "d").await;
    reads(&prometheus, r#"nats_ack_total{subject="s.bad"}"#, 1.0).await;
    let found = series(&prometheus);
    let value = |name: &str| found.get(name).copied();
    assert_eq!(value(r#"nats_messages_received{subject="s.good"}"#), Some(4.0));
    assert_eq!(value(r#"nats_ack_total{subject="s.good"}"#), Some(4.0));
    assert_eq!(value(r#"nats_message_handling_seconds_count{subject="s.good"}"#), Some(4.0));
    assert_eq!(value(r#"nats_message_bytes_sum{subject="s.good"}"#), Some(4.0));
    assert_eq!(value(r#"nats_messages_received{subject="s.bad"}"#), Some(2.0));
    assert_eq!(value(r#"nats_messages_errors{subject="s.bad"}"#), Some(1.0));
    assert_eq!(value(r#"nats_nak_total{subject="s.bad"}"#), Some(1.0));
    assert_eq!(value(r#"nats_redelivery_total{subject="s.bad"}"#), Some(1.0));
    assert_eq!(value(r#"nats_term_total{subject="s.term"}"#), Some(1.0));
    running.stop().await.unwrap();
    let again = client.consumer().pull("S", "d").await.unwrap();
    let before = series(&prometheus)["nats_fetch_batch_size_count"];
    world.publish("s.good", 3).await;
    let batch = again.fetch(3, FetchOptions::default()).await.unwrap();
    assert_eq!(batch.deliveries.len(), 3);
    assert_eq!(again.fetch_no_wait(1).await.unwrap().deliveries.len(), 0);
    let found = series(&prometheus);
    // A fetch that brought nothing is one too.
    assert_eq!(found["nats_fetch_batch_size_count"] - before, 2.0);
    assert_eq!(found["nats_fetch_wait_seconds_count"], found["nats_fetch_batch_size_count"]);
    assert!(found["nats_pull_batch_process_seconds_count"] >= 1.0);
}

async fn what_the_handler_settled_itself_is_not_counted_as_acknowledged(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    let prometheus = Prometheus::new().unwrap();
    let client = world.kit_with(measured(&world, &prometheus)).await;
    world.publish("s.a", 1).await;
    let consumer = client.consumer().pull("S", "d").await.unwrap();
    let vitals = Arc::clone(consumer.vitals());
    let handler = |delivery: Arc<Delivery>| async move {
        delivery.ack().await?;
        Ok::<_, HandlerError>(())
    };
    let running = consumer.start(handler, ProcessOptions::default());
    until("the success", || async { (vitals.succeeded() == 1).then_some(()) }).await;
    running.stop().await.unwrap();
    let found = series(&prometheus);
    assert_eq!(found[r#"nats_messages_received{subject="s.a"}"#], 1.0);
    assert_eq!(found[r#"nats_ack_total{subject="s.a"}"#], 0.0);
}

async fn requests_and_replies_are_measured(world: World) {
    let prometheus = Prometheus::new().unwrap();
    let client = world.kit_with(measured(&world, &prometheus)).await;
    let handler = |call: Arc<windjet_client::rpc::Call>| async move {
        if &call.message().payload[..] == b"bad" {
            return Err(HandlerError::failed("bad"));
        }
        call.respond_bytes("ok").await?;
        Ok(())
    };
    let options = RespondOptions::default().error_replies();
    client.responder().subscribe("echo", options, handler).await.unwrap();
    client.requester().request_bytes("echo", "12").await.unwrap();
    client.requester().request_bytes("echo", "bad").await.unwrap_err();
    client.requester().request_bytes("nobody", "x").await.unwrap_err();
    reads(&prometheus, r#"nats_reply_handled{subject="echo"}"#, 1.0).await;
    reads(&prometheus, r#"nats_reply_errors{subject="echo"}"#, 1.0).await;
    let found = series(&prometheus);
    assert_eq!(found[r#"nats_request_total{subject="echo"}"#], 1.0);
    assert_eq!(found[r#"nats_request_errors{subject="echo"}"#], 1.0);
    assert_eq!(found[r#"nats_request_errors{subject="nobody"}"#], 1.0);
    assert_eq!(found[r#"nats_request_bytes_sum{subject="echo"}"#], 2.0);
    assert_eq!(found[r#"nats_request_latency_seconds_count{subject="echo"}"#], 1.0);
}

async fn connection_and_server_are_looked_at(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    world.publish("s.a", 5).await;
    let prometheus = Prometheus::new().unwrap();
    let mut config = measured(&world, &prometheus);
    config.metrics.tracked_streams = vec!["S".into(), "GONE".into()];
    config.metrics.tracked_consumers = ["d", "gone"].map(|durable| TrackedConsumer {
        stream: "S".into(),
        durable: durable.into(),
    }).into();
    let _client = world.kit_with(config).await;
    reads(&prometheus, "nats_connection_state", 1.0).await;
    reads(&prometheus, r#"nats_stream_messages{stream="S"}"#, 5.0).await;
    reads(&prometheus, r#"nats_consumer_num_pending{stream="S",consumer="d"}"#, 5.0).await;
    // What cannot be asked leaves out nothing else.
    until("the round trip", || async {
        let found = series(&prometheus);
        (found.get("nats_connection_rtt_seconds_count").is_some_and(|count| *count > 0.0)).then_some(())
    }).await;
    let found = series(&prometheus);
    assert_eq!(found[r#"nats_stream_last_seq{stream="S"}"#], 5.0);
    assert_eq!(found[r#"nats_consumer_lag_messages{stream="S",consumer="d"}"#], 5.0);
    assert!(found["nats_connection_in_bytes"] > 0.0 && found["nats_connection_out_bytes"] > 0.0);
    assert!(found.contains_key("nats_jetstream_storage_bytes"));
    assert!(!prometheus.render().contains("GONE") && !prometheus.render().contains("gone"));
    world.restart();
    reads(&prometheus, "nats_reconnect_count", 1.0).await;
    reads(&prometheus, "nats_connection_state", 1.0).await;
}

async fn lite_asks_the_server_nothing_and_names_may_be_the_models(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    let tracked = TrackedConsumer { stream: "S".into(), durable: "d".into() };
    let (light, model) = (Prometheus::new().unwrap(), Prometheus::new().unwrap());
    let mut config = measured(&world, &light);
    config.metrics.lite = true;
    config.metrics.tracked_streams = vec!["S".into()];
    config.metrics.tracked_consumers = vec![tracked];
    let mut old = config.clone();
    let _light = world.kit_with(config).await;
    old.metrics.sink = model.sink();
    old.metrics.lite = false;
    old.metrics.names_as_subject = true;
    let _model = world.kit_with(old).await;
    reads(&model, r#"nats_consumer_num_pending{subject="S.d"}"#, 0.0).await;
    reads(&model, r#"nats_stream_messages{subject="S"}"#, 0.0).await;
    until("the light one to look", || async {
        (series(&light)["nats_connection_in_bytes"] > 0.0).then_some(())
    }).await;
    let text = light.render();
    for known in INSTRUMENTS.iter().filter(|known| !known.lite) {
        assert!(!text.contains(known.name), "{}", known.name);
    }
}

async fn what_is_off_is_not_measured(world: World) {
    world.stream("S").await;
    let prometheus = Prometheus::new().unwrap();
    let mut config = measured(&world, &prometheus);
    config.metrics.allow_metrics = false;
    config.publisher.allow_metrics = false;
    // The connection's switch alone is enough for what has none of its own.
    let client = world.kit_with(config.clone()).await;
    assert!(client.metrics().is_on());
    client.publisher().publish_bytes("s.a", "x").await.unwrap();
    client.requester().request_bytes("nobody", "x").await.unwrap_err();
    let found = series(&prometheus);
    assert!(!found.contains_key(r#"nats_publish_total{subject="s.a"}"#));
    assert_eq!(found[r#"nats_request_errors{subject="nobody"}"#], 1.0);
    config.connection.allow_metrics = false;
    let nothing = Prometheus::new().unwrap();
    config.metrics.sink = nothing.sink();
    let client = world.kit_with(config).await;
    assert!(!client.metrics().is_on());
    client.requester().request_bytes("nobody", "x").await.unwrap_err();
    assert_eq!(nothing.render(), "");
}

async fn cardinality_is_bounded(world: World) {
    world.stream("S").await;
    let (few, fixed) = (Prometheus::new().unwrap(), Prometheus::new().unwrap());
    let mut config = measured(&world, &few);
    config.metrics.labels = Labels::at_most(2);
    let client = world.kit_with(config.clone()).await;
    for subject in ["s.1", "s.2", "s.3", "s.4", "s.1"] {
        client.publisher().publish_bytes(subject, "x").await.unwrap();
    }
    let found = series(&few);
    assert_eq!(found[r#"nats_publish_total{subject="s.1"}"#], 2.0);
    assert_eq!(found[r#"nats_publish_total{subject="_overflow"}"#], 2.0);
    assert!(!found.contains_key(r#"nats_publish_total{subject="s.3"}"#));
    config.metrics.sink = fixed.sink();
    config.metrics.fixed_cardinality = true;
    config.metrics.prefix = "shop".into();
    let client = world.kit_with(config).await;
    for subject in ["s.1", "s.2", "s.3"] {
        client.publisher().publish_bytes(subject, "x").await.unwrap();
    }
    let text = fixed.render();
    assert!(text.contains("shop_publish_total 3"), "{text}");
    assert!(!text.contains("subject="), "{text}");
}

async fn a_shadow_is_counted(world: World) {
    world.stream("S").await;
    world.durable("S", "d").await;
    world.publish("s.a", 1).await;
    let prometheus = Prometheus::new().unwrap();
    let client = world.kit_with(measured(&world, &prometheus)).await;
    let shadow = Shadow::new(|_: Arc<Delivery>| async { Err::<(), _>(HandlerError::failed("new")) })
        .sample_rate(1.0)
        .metrics(client.metrics());
    let handler = shadow.layer(|_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) });
    let consumer = client.consumer().pull("S", "d").await.unwrap();
    let _running = consumer.start(handler, ProcessOptions::default());
    reads(&prometheus, "nats_shadow_error_total", 1.0).await;
    reads(&prometheus, "nats_shadow_mismatch_total", 1.0).await;
}

async fn the_endpoint_serves_prometheus_text(world: World) {
    let prometheus = Prometheus::new().unwrap();
    let client = world.kit_with(measured(&world, &prometheus)).await;
    let endpoint = prometheus.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    client.requester().request("nobody", Message::raw("x")).await.unwrap_err();
    let (status, text) = soon("the text", get(endpoint.local_addr(), "/metrics")).await;
    assert_eq!(status, 200);
    assert!(text.contains("# TYPE nats_request_errors counter"), "{text}");
    assert!(text.contains(r#"nats_request_errors{subject="nobody"} 1"#), "{text}");
    assert_eq!(soon("the answer", get(endpoint.local_addr(), "/")).await.0, 404);
    let address = endpoint.local_addr();
    soon("the end", endpoint.stop()).await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

async fn opentelemetry_gets_names_units_and_buckets(world: World) {
    world.stream("S").await;
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let mut config = world.config();
    config.metrics.sink = otel::sink(provider.meter("kit"));
    config.metrics.labels = Labels::at_most(100);
    let client = world.kit_with(config).await;
    client.publisher().publish_bytes("s.a", "12345").await.unwrap();
    tokio::task::spawn_blocking(move || provider.force_flush()).await.unwrap().unwrap();
    let exported = exporter.get_finished_metrics().unwrap();
    let metrics: Vec<_> = exported.iter().flat_map(ResourceMetrics::scope_metrics).flat_map(ScopeMetrics::metrics).collect();
    let find = |name: &str| *metrics.iter().find(|metric| metric.name() == name).unwrap();
    assert_eq!(find("nats/publish_latency_seconds").unit(), "s");
    let AggregatedMetrics::U64(MetricData::Sum(total)) = find("nats/publish_total").data() else { panic!("no sum") };
    let point = total.data_points().next().unwrap();
    assert_eq!(point.value(), 1);
    let labels: Vec<_> = point.attributes().map(|pair| (pair.key.to_string(), pair.value.to_string())).collect();
    assert_eq!(labels, [("subject".to_owned(), "s.a".to_owned())]);
    let AggregatedMetrics::F64(MetricData::Histogram(bytes)) = find("nats/publish_bytes").data() else { panic!("no histogram") };
    let point = bytes.data_points().next().unwrap();
    assert_eq!((point.count(), point.sum()), (1, 5.0));
    assert_eq!(point.bounds().next(), Some(64.0));
}

}

/// The status and text of a page.
async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let request = hyper::Request::get(path)
        .header("host", "x")
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    drop(sender);
    let _ = driver.await;
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The dashboard shows what there is, under the names that Prometheus has.
#[test]
fn the_dashboard_asks_for_what_is_measured() {
    let text = include_str!("../../../../docs/client-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let mut shown = std::collections::BTreeSet::new();
    for query in queries {
        let query = query["expr"].as_str().unwrap();
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for name in words.filter_map(|word| word.strip_prefix("nats_")) {
            let known = INSTRUMENTS.iter().find(|known| match known.kind {
                Kind::Histogram => ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|end| name == format!("{}{end}", known.name)),
                _ => name == known.name,
            });
            shown.insert(known.unwrap_or_else(|| panic!("{name} is not measured")).name);
        }
    }
    let hidden: Vec<_> = INSTRUMENTS
        .iter()
        .filter(|known| !shown.contains(known.name))
        .map(|known| known.name)
        .collect();
    assert_eq!(hidden, Vec::<&str>::new());
}
