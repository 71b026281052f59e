//! Monitoring of JetStream over HTTP: what the parity scripts do not show.

use std::path::Path;

use serde_json::Value;
use windjet_server::Server;
use windjet_server::jetstream::JetStreamContext;
use windjet_server::options::ListenAddress;

use crate::jetstream::{PATIENCE, config, consumer};
use crate::monitor::get;

async fn start(folder: &Path) -> (Server, JetStreamContext, std::net::SocketAddr) {
    let server = Server::builder()
        .jetstream(folder)
        .configure(|options| options.monitoring.http = Some(ListenAddress::loopback()))
        .start()
        .await
        .unwrap();
    let js = server.jetstream().unwrap();
    let address = server.monitoring_addr().unwrap();
    (server, js, address)
}

/// A stream tells of its consumers in pages of 256; all of them are in the document.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jsz_shows_every_consumer_of_a_stream_with_many() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js, address) = start(folder.path()).await;
    for stream in ["A", "B", "EMPTY"] {
        let subjects = format!(r#"{{"name":"{stream}","subjects":["{stream}.>"]}}"#);
        js.create_stream(config(&subjects)).await.unwrap();
    }
    for n in 0..600 {
        let settings = format!(r#"{{"durable_name":"c{n:03}","ack_policy":"explicit"}}"#);
        js.create_consumer("A", consumer(&settings)).await.unwrap();
    }
    js.create_consumer(
        "B",
        consumer(r#"{"durable_name":"only","ack_policy":"explicit"}"#),
    )
    .await
    .unwrap();
    let (head, body) = get(address, "/jsz?consumers=1").await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let document: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(document["consumers"], 601);
    let streams = document["account_details"][0]["stream_detail"]
        .as_array()
        .unwrap();
    let names = |stream: &Value| -> Vec<String> {
        let consumers = stream["consumer_detail"].as_array().cloned().unwrap_or_default();
        consumers
            .iter()
            .map(|consumer| consumer["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let all: Vec<String> = (0..600).map(|n| format!("c{n:03}")).collect();
    assert_eq!(names(&streams[0]), all);
    assert_eq!(names(&streams[1]), ["only"]);
    assert_eq!(streams[2]["name"], "EMPTY");
    assert_eq!(names(&streams[2]), [""; 0]);
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// A stream whose stored configuration asks for more than this version can is left alone at the start; the health check is
/// how an operator hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthz_names_a_stream_that_did_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    store_a_stream_of_tomorrow(&folder.path().join("jetstream"));
    let (server, js, address) = start(folder.path()).await;
    let why = r#"{"status":"unavailable","error":"JetStream stream '$G \u003e T' could not be recovered"}"#;
    let (head, body) = get(address, "/healthz").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, why);
    let (_, body) = get(address, "/healthz?details=1").await;
    let details = concat!(
        r#"{"status":"error","errors":[{"type":"STREAM","account":"$G","stream":"T","#,
        r#""error":"JetStream stream '$G \u003e T' could not be recovered"}]}"#
    );
    assert_eq!(body, details);
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    for healthy in [
        "/healthz?js-enabled-only=1",
        "/healthz?js-server-only=1",
        "/healthz?account=$G&stream=S",
    ] {
        let (head, body) = get(address, healthy).await;
        assert!(head.starts_with("http/1.1 200"), "{healthy}: {body}");
    }
    assert!(server.shutdown(PATIENCE).await.complete);
}

fn store_a_stream_of_tomorrow(folder: &Path) {
    use windjet_store::{RealDisk, Store, StoreOptions, StreamOptions, SystemClock};
    std::fs::create_dir_all(folder).unwrap();
    let disk = std::sync::Arc::new(RealDisk::new(folder).unwrap());
    let clock = std::sync::Arc::new(SystemClock::new());
    let (store, _) = Store::open(StoreOptions::default(), disk, clock).unwrap();
    let stored = r#"{"created":1,"config":{"name":"T","metadata":{"_nats.req.level":"99"}}}"#;
    let mut writer = store
        .create_stream(StreamOptions {
            name: "$G/T".into(),
            config: stored.into(),
            ..StreamOptions::default()
        })
        .unwrap();
    writer.submit();
    drop(writer);
    store.close().unwrap();
}
