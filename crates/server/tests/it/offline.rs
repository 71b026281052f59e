//! Streams that the store has and the server cannot run.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use windjet_server::jetstream::{ErrorCode, TestClock};
use windjet_server::{Client, Server};
use windjet_store::{SimDisk, Store, StoreOptions, StreamOptions, SystemClock};

use crate::jetstream::{PATIENCE, config};

async fn api(client: &Client, call: &str, body: Value) -> Value {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let answer = client.request(format!("$JS.API.{call}"), body).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

/// A store with one good stream and two others, as other versions may leave it.
fn prepare(disk: &SimDisk) {
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let (mut store, _) = Store::open(options, Arc::new(disk.clone()), Arc::new(SystemClock::new())).unwrap();
    store.start().unwrap();
    let newer = r#"{"name":"NEWER","subjects":["newer"],"metadata":{"_nats.req.level":"9"}}"#;
    for (name, stored) in [
        ("NEWER", format!(r#"{{"created":1,"config":{newer}}}"#)),
        (
            "GOOD",
            r#"{"created":1,"config":{"name":"GOOD","subjects":["good"]}}"#.to_owned(),
        ),
        ("BROKEN", "no configuration".to_owned()),
    ] {
        let options = StreamOptions {
            name: format!("$G/{name}"),
            config: stored.into_bytes().into(),
            ..StreamOptions::default()
        };
        store.create_stream(options).unwrap().submit();
    }
    store.close().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_run_is_listed_with_the_reason_and_kept() {
    let (disk, clock) = (SimDisk::new(1), TestClock::new(SystemTime::now()));
    prepare(&disk);
    let start = || {
        let builder = Server::builder().disk(Arc::new(disk.clone()));
        builder.clock(clock.clone()).start()
    };
    for _ in 0..2 {
        let server = start().await.unwrap();
        let (client, js) = (server.client(), server.jetstream().unwrap());
        let names = api(&client, "STREAM.NAMES", Value::Null).await;
        assert_eq!(names["streams"], json!(["BROKEN", "GOOD", "NEWER"]));
        let list = api(&client, "STREAM.LIST", Value::Null).await;
        assert_eq!(list["streams"].as_array().unwrap().len(), 1);
        assert_eq!(list["missing"], json!(["BROKEN", "NEWER"]));
        let reason = "unsupported - required API level: 9, current API level: 5";
        assert_eq!(list["offline"]["NEWER"], reason);
        let text = list["offline"]["BROKEN"].as_str().unwrap();
        assert!(text.starts_with("its configuration cannot be read"), "{text}");
        for (call, body) in [
            ("STREAM.INFO.NEWER", Value::Null),
            ("STREAM.PURGE.NEWER", Value::Null),
            ("STREAM.DELETE.NEWER", Value::Null),
            (
                "STREAM.CREATE.NEWER",
                json!({"name": "NEWER", "subjects": ["newer"]}),
            ),
            ("CONSUMER.NAMES.NEWER", Value::Null),
            (
                "CONSUMER.CREATE.NEWER.C",
                json!({"stream_name": "NEWER", "config": {"name": "C"}}),
            ),
        ] {
            let answer = api(&client, call, body).await;
            assert_eq!(answer["error"]["err_code"], 10194, "{call}: {answer}");
            assert_eq!(
                answer["error"]["description"],
                format!("stream is offline: {reason}")
            );
        }
        let refused = js
            .create_stream(config(r#"{"name":"X","subjects":["newer"]}"#))
            .await;
        assert!(refused.unwrap_err().is(ErrorCode::SubjectOverlap));
        js.publish("GOOD", "good", "x").unwrap().await.unwrap();
        assert!(server.shutdown(PATIENCE).await.complete);
    }
}
