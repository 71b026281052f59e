//! Snapshots and restores in one process: what hostile or unlucky senders and receivers can do, and what is left of it.

use serde_json::{Value, json};
use windjet_protocol::jetstream::backup::archive::{Entry, MAGIC};
use windjet_protocol::jetstream::backup::s2::Packer;
use windjet_server::options::{AccountJetStreamLimits, AccountOptions};
use windjet_server::{Client, Server};

use crate::jetstream::{PATIENCE, config, reload, start};

async fn api(client: &Client, call: &str, body: Value) -> Value {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let answer = client.request(format!("$JS.API.{call}"), body).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

fn entry(name: &str, seq: u64, headers: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let entry = Entry {
        name: name.as_bytes(),
        time: 1_767_225_600_000_000_000,
        seq,
        headers: headers.as_bytes(),
        payload,
    };
    entry.encode(&mut out);
    out
}

fn end() -> Vec<u8> {
    let mut out = Vec::new();
    Entry::END.encode(&mut out);
    out
}

fn state(more: &Value) -> Vec<u8> {
    let mut state = json!({"messages": 1, "bytes": 10, "first_seq": 5, "last_seq": 9, "consumer_count": 0});
    for (key, value) in more.as_object().unwrap() {
        state[key] = value.clone();
    }
    entry("state.json", 0, "", state.to_string().as_bytes())
}

fn packed(parts: &[Vec<u8>]) -> Vec<u8> {
    let (mut packer, mut out) = (Packer::default(), Vec::new());
    packer.content().extend_from_slice(MAGIC);
    for part in parts {
        packer.content().extend_from_slice(part);
    }
    packer.pack(true, &mut out);
    out
}

async fn begin(client: &Client, config: Value) -> String {
    let answer = api(
        client,
        "STREAM.RESTORE.R",
        json!({"config": config, "state": {"messages": 1}}),
    )
    .await;
    answer["deliver_subject"].as_str().unwrap().to_owned()
}

/// Restores as stream `R`; what its end was.
async fn restore(client: &Client, more: Value, bytes: &[u8]) -> Value {
    let mut config = json!({"name": "R", "subjects": ["r.>"]});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let to = begin(client, config).await;
    for chunk in bytes.chunks(100_000) {
        let answer = client.request(to.as_str(), chunk.to_vec()).await.unwrap();
        assert!(answer.payload.is_empty());
    }
    let answer = client.request(to.as_str(), "").await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

const CONSUMER: &str = r#"{"config":{"durable_name":"c","ack_policy":"explicit","deliver_policy":"all","replay_policy":"instant"},
    "state":{"delivered":{"consumer_seq":1,"stream_seq":6},"ack_floor":{"consumer_seq":0,"stream_seq":5},
    "pending":{"6":{"Sequence":1,"Timestamp":1767225600000000000}}}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_backup_is_refused_and_leaves_no_stream() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _js) = start(folder.path()).await;
    let client = server.client();
    let message = |seq| entry("r.a", seq, "", b"hello");
    let consumer = |text: &str| entry("consumers/c", 0, "", text.as_bytes());
    let plain = state(&json!({}));
    let one_consumer = state(&json!({"consumer_count": 1}));
    let mut damaged = packed(&[plain.clone(), message(6), end()]);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let mut promising = packed(std::slice::from_ref(&plain));
    let mut long = Vec::new();
    // A message of as many bytes as a number can say, of which none come.
    long.extend_from_slice(&[
        3, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
    ]);
    long.extend_from_slice(b"r.a");
    let mut packer = Packer::default();
    packer.content().extend_from_slice(&long);
    packer.pack(true, &mut promising);
    let ttl = "NATS/1.0\r\nNats-TTL: soon\r\n\r\n";
    let cases: [(&str, Vec<u8>); 24] = [
        ("EOF", Vec::new()),
        ("s2: corrupt input", b"hello world, this is not a backup".to_vec()),
        ("s2: corrupt input, crc mismatch", damaged),
        (
            "s2: corrupt input",
            packed(&[plain.clone(), message(6)])[..40].to_vec(),
        ),
        ("EOF", packed(&[plain.clone(), message(6)])),
        ("EOF", packed(&[])),
        ("exceeds maximum payload size", promising),
        ("expected state.json first", packed(&[message(6), end()])),
        ("expected state.json first", packed(&[end()])),
        (
            "expected state.json first",
            packed(&[entry("state", 0, "", b"{}")]),
        ),
        (
            "error in state.json",
            packed(&[entry("state.json", 0, "", b"nope")]),
        ),
        (
            "negative consumer count",
            packed(&[state(&json!({"consumer_count": -1}))]),
        ),
        ("inconsistent", packed(&[state(&json!({"first_seq": 20}))])),
        ("inconsistent", packed(&[state(&json!({"last_seq": u64::MAX}))])),
        ("message count exceeds", packed(&[state(&json!({"messages": 6}))])),
        (
            "expected consumer, found \"r.a\"",
            packed(&[one_consumer.clone(), message(6), end()]),
        ),
        (
            "is missing state",
            packed(&[one_consumer.clone(), consumer(r#"{"config":{"name":"c"}}"#)]),
        ),
        (
            "is missing config",
            packed(&[one_consumer.clone(), consumer("{}")]),
        ),
        (
            "error in consumer",
            packed(&[one_consumer.clone(), consumer("[")]),
        ),
        (
            "expected message sequence",
            packed(&[plain.clone(), consumer(CONSUMER), end()]),
        ),
        (
            "message sequence 6 out of order",
            packed(&[plain.clone(), message(6), message(6), end()]),
        ),
        (
            "message sequence 4 out of order",
            packed(&[plain.clone(), message(4), end()]),
        ),
        (
            "message sequence 6 has no valid subject",
            packed(&[plain.clone(), entry("r.*", 6, "", b""), end()]),
        ),
        (
            "failed to parse message TTL",
            packed(&[plain.clone(), entry("r.a", 6, ttl, b""), end()]),
        ),
    ];
    for (n, (text, bytes)) in cases.into_iter().enumerate() {
        let end = restore(&client, json!({}), &bytes).await;
        let description = end["error"]["description"].as_str().unwrap_or_default();
        assert!(description.starts_with("restore failed: "), "case {n}: {end}");
        assert!(
            description.contains(text),
            "case {n}: {description:?} is not {text:?}"
        );
        assert_eq!(end["error"]["err_code"], 10062);
        let info = api(&client, "STREAM.INFO.R", Value::Null).await;
        assert_eq!(info["error"]["err_code"], 10059, "case {n} left {info}");
    }
    let old = restore(&client, json!({}), &{
        let (mut packer, mut out) = (Packer::default(), Vec::new());
        packer.content().extend_from_slice(&[0; 2048]);
        packer.pack(true, &mut out);
        out
    })
    .await;
    assert!(
        old["error"]["description"]
            .as_str()
            .unwrap()
            .contains("older server")
    );
    // The name is free, and the same in order is a stream.
    let good = packed(&[
        one_consumer,
        consumer(CONSUMER),
        message(6),
        end(),
        b"whatever".to_vec(),
    ]);
    let restored = restore(&client, json!({"retention": "workqueue"}), &good).await;
    assert!(restored.get("error").is_none(), "{restored}");
    let state = &restored["state"];
    assert_eq!(
        (state["first_seq"].as_u64(), state["last_seq"].as_u64()),
        (Some(6), Some(9))
    );
    assert_eq!(state["last_ts"], "2026-01-01T00:00:00Z");
    assert_eq!(state["consumer_count"], 1);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_bomb_is_read_block_by_block() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _js) = start(folder.path()).await;
    let client = server.client();
    // Blocks of 4 MiB of zeros behind the end, of a few bytes each.
    let mut bytes = packed(&[
        state(&json!({"messages": 0, "first_seq": 1, "last_seq": 0})),
        end(),
    ]);
    let bomb = {
        let content = vec![0; 4 << 20];
        let mut block = vec![0x80, 0x80, 0x80, 0x02, 0, 0];
        block.extend_from_slice(&[0b1101, 1]);
        // 8 bytes are there; the rest repeats the offset.
        let mut left = content.len() - 8;
        while left > 0 {
            let here = left.min(65_540 + 0xff_ffff);
            block.push(0b1_1101);
            block.push(0);
            block.extend_from_slice(&(here - 65_540).to_le_bytes()[..3]);
            left -= here;
        }
        let sum = crc32c(&content).rotate_right(15).wrapping_add(0xa282_ead8);
        let mut chunk = vec![0];
        chunk.extend_from_slice(&(block.len() as u32 + 4).to_le_bytes()[..3]);
        chunk.extend_from_slice(&sum.to_le_bytes());
        chunk.extend_from_slice(&block);
        chunk
    };
    for _ in 0..32 {
        bytes.extend_from_slice(&bomb);
    }
    assert!(bytes.len() < 2000);
    let restored = restore(&client, json!({}), &bytes).await;
    assert!(restored.get("error").is_none(), "{restored}");
    assert!(server.shutdown(PATIENCE).await.complete);
}

fn crc32c(content: &[u8]) -> u32 {
    !content.iter().fold(u32::MAX, |mut sum, byte| {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0x82f6_3b78
            } else {
                sum >> 1
            };
        }
        sum
    })
}

/// Waits until nobody listens to a subject any more.
async fn gone(client: &Client, subject: &str) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while client.request(subject, "x").await.is_ok() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{subject} is still served"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_who_wants_no_answers_ends_its_restore() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let client = server.client();
    let to = begin(&client, json!({"name": "R", "subjects": ["r"]})).await;
    let half = packed(&[state(&json!({})), entry("r.a", 6, "", b"hello")]);
    client.request(to.as_str(), half).await.unwrap();
    // The name and its subjects are taken.
    for text in [
        r#"{"name":"R","subjects":["x"]}"#,
        r#"{"name":"X","subjects":["r"]}"#,
    ] {
        let refused = js.create_stream(config(text)).await.unwrap_err();
        assert!([10058, 10065].contains(&refused.err_code), "{refused}");
    }
    client.publish(to.as_str(), "x").await.unwrap();
    gone(&client, &to).await;
    let made = loop {
        // The store lets go of the name when the end is durable.
        let made = js.create_stream(config(r#"{"name":"R","subjects":["r"]}"#)).await;
        if !made.as_ref().is_err_and(|error| error.err_code == 10058) {
            break made;
        }
    };
    assert_eq!(made.unwrap().state.messages, 0);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfinished_restore_is_gone_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    {
        let (server, _js) = start(folder.path()).await;
        let client = server.client();
        let to = begin(&client, json!({"name": "R", "subjects": ["r"]})).await;
        let half = packed(&[state(&json!({})), entry("r.a", 6, "", b"hello")]);
        client.request(to.as_str(), half).await.unwrap();
        assert!(server.shutdown(PATIENCE).await.complete);
    }
    let (server, js) = start(folder.path()).await;
    let missing = js.stream_info("R").await.unwrap_err();
    assert_eq!(missing.err_code, 10059);
    let info = js
        .create_stream(config(r#"{"name":"R","subjects":["r"]}"#))
        .await
        .unwrap();
    assert_eq!((info.state.messages, info.state.last_seq), (0, 0));
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// It would hold the stream's writer, and the stream would be listed as one that cannot be run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_ends_with_its_accounts_jetstream() {
    let folder = tempfile::tempdir().unwrap();
    let mut with = AccountOptions::default();
    let without = with.clone();
    with.jetstream = Some(AccountJetStreamLimits::default());
    let server = Server::builder()
        .jetstream(folder.path())
        .configure(|options| drop(options.accounts.insert("A".into(), with.clone())))
        .start()
        .await
        .unwrap();
    let settings = server.options().jetstream.clone();
    for whole in [false, true] {
        let client = server.client_of("A").unwrap();
        let to = begin(&client, json!({"name": "R", "subjects": ["r"]})).await;
        let half = packed(&[state(&json!({})), entry("r.a", 6, "", b"hello")]);
        client.request(to.as_str(), half).await.unwrap();
        reload(&server, |options| {
            if whole {
                options.jetstream = None;
            } else {
                options.accounts.insert("A".into(), without.clone());
            }
        })
        .await;
        // Nobody takes chunks any more.
        client.request(to.as_str(), "").await.unwrap_err();
        reload(&server, |options| {
            options.jetstream.clone_from(&settings);
            options.accounts.insert("A".into(), with.clone());
        })
        .await;
        let js = server.jetstream_of("A").unwrap();
        let made = js.create_stream(config(r#"{"name":"R","subjects":["r"]}"#)).await;
        assert_eq!(made.unwrap().state.last_seq, 0, "{whole}");
        js.delete_stream("R").await.unwrap();
    }
    assert!(server.shutdown(PATIENCE).await.complete);
}

async fn filled(folder: &std::path::Path) -> (Server, Client) {
    let (server, js) = start(folder).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    let mut seed = 1_u32;
    for _ in 0..40 {
        let payload: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .take(700)
        .collect();
        js.publish("S", "s", payload).unwrap().await.unwrap();
    }
    let client = server.client();
    (server, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_answers_nothing_gets_a_window_of_chunks_and_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = filled(folder.path()).await;
    let mut chunks = client.subscribe("chunks").await.unwrap();
    let mut events = client
        .subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
        .await
        .unwrap();
    let request = json!({"deliver_subject": "chunks", "chunk_size": 1024, "window_size": 4096});
    api(&client, "STREAM.SNAPSHOT.S", request).await;
    for n in 0..4 {
        let chunk = tokio::time::timeout(PATIENCE, chunks.next())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(chunk.payload.len(), 1024, "chunk {n}");
        assert!(chunk.reply.is_some());
    }
    let end = tokio::time::timeout(PATIENCE, chunks.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&end.header_block()[..], b"NATS/1.0 408 No Flow Response\r\n\r\n");
    let event = tokio::time::timeout(PATIENCE, events.next())
        .await
        .unwrap()
        .unwrap();
    let event: Value = serde_json::from_slice(&event.payload).unwrap();
    assert_eq!(event["error"], "no flow response");
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_answers_gets_all_through_a_small_window() {
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = filled(folder.path()).await;
    let mut chunks = client.subscribe("chunks").await.unwrap();
    let request = json!({"deliver_subject": "chunks", "chunk_size": 1024, "window_size": 2048});
    api(&client, "STREAM.SNAPSHOT.S", request).await;
    let mut bytes = Vec::new();
    let end = loop {
        let chunk = tokio::time::timeout(PATIENCE, chunks.next())
            .await
            .unwrap()
            .unwrap();
        if chunk.payload.is_empty() {
            break chunk;
        }
        bytes.extend_from_slice(&chunk.payload);
        if let Some(reply) = &chunk.reply {
            client
                .publish(std::str::from_utf8(reply).unwrap(), "")
                .await
                .unwrap();
        }
    };
    assert_eq!(&end.header_block()[..], b"NATS/1.0 204\r\n\r\n");
    // Forty payloads that cannot be packed.
    assert!(bytes.len() > 40 * 700, "{}", bytes.len());
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_goes_ends_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = filled(folder.path()).await;
    let mut chunks = client.subscribe("chunks").await.unwrap();
    let mut events = client
        .subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
        .await
        .unwrap();
    let request = json!({"deliver_subject": "chunks", "chunk_size": 1024, "window_size": 1024});
    api(&client, "STREAM.SNAPSHOT.S", request).await;
    tokio::time::timeout(PATIENCE, chunks.next())
        .await
        .unwrap()
        .unwrap();
    drop(chunks);
    let event = tokio::time::timeout(PATIENCE, events.next())
        .await
        .unwrap()
        .unwrap();
    let event: Value = serde_json::from_slice(&event.payload).unwrap();
    assert_eq!(event["error"], "no interest");
    assert!(server.shutdown(PATIENCE).await.complete);
}
