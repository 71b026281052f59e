//! JetStream in one process: what is acknowledged is there after a restart, and what is settled stays settled.

use std::time::Duration;

use windjet_server::jetstream::{
    ConsumerConfig, ErrorCode, Explanation, JetStreamContext, PublishError, PurgeRequest, StreamConfig,
};
use windjet_server::{Client, Server};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn start(folder: &std::path::Path) -> (Server, JetStreamContext) {
    let server = Server::builder().jetstream(folder).start().await.unwrap();
    let js = server.jetstream().unwrap();
    (server, js)
}

pub(crate) fn config(text: &str) -> StreamConfig {
    serde_json::from_str(text).unwrap()
}

pub(crate) fn consumer(text: &str) -> ConsumerConfig {
    serde_json::from_str(text).unwrap()
}

/// The next message of a consumer, and where its ack goes.
async fn next(client: &Client, stream: &str, consumer: &str) -> Option<(Vec<u8>, String)> {
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
    // A message comes under its own subject, so the reply needs a subscription rather than a request.
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(inbox.as_str()).await.unwrap();
    client
        .publish_with_reply(subject, inbox.as_str(), r#"{"batch":1,"no_wait":true}"#)
        .await
        .unwrap();
    let message = tokio::time::timeout(PATIENCE, replies.next())
        .await
        .unwrap()
        .unwrap();
    let ack = message.reply.as_deref()?;
    let ack = String::from_utf8(ack.to_vec()).unwrap();
    Some((message.payload.to_vec(), ack))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishes_are_pipelined_and_acknowledged_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s.*"]}"#))
        .await
        .unwrap();
    let acks: Vec<_> = (0..2000)
        .map(|n| js.publish("S", "s.a", format!("{n}")).unwrap())
        .collect();
    for (n, ack) in (1..).zip(acks) {
        let ack = tokio::time::timeout(PATIENCE, ack).await.unwrap().unwrap();
        assert_eq!((ack.seq, ack.duplicate), (n, false));
    }
    let refused = js.publish("S", "other", "x").unwrap_err();
    assert!(matches!(refused, PublishError::WrongSubject { .. }) && !refused.is_retryable());
    assert!(matches!(
        js.publish("T", "s.a", "x"),
        Err(PublishError::NoStream(_))
    ));
    let expects = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 7\r\n\r\n";
    let outcome = js.publish_with("S", "s.a", expects, "x").unwrap().await;
    assert!(matches!(outcome, Err(PublishError::Refused(error)) if error.is(ErrorCode::WrongLastSequence)));
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_acknowledged_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"Q","subjects":["q"],"retention":"workqueue"}"#))
        .await
        .unwrap();
    js.create_consumer("Q", consumer(r#"{"durable_name":"W","ack_policy":"explicit"}"#))
        .await
        .unwrap();
    let with_id = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n";
    js.publish_with("Q", "q", with_id, "1").unwrap().await.unwrap();
    js.publish("Q", "q", "2").unwrap().await.unwrap();
    js.publish("Q", "q", "3").unwrap().await.unwrap();
    let client = server.client();
    let (payload, ack) = next(&client, "Q", "W").await.unwrap();
    assert_eq!(payload, b"1");
    // A request on the ack subject is answered when the ack is durable.
    client.request(ack, "+ACK").await.unwrap();
    assert_eq!(js.stream_info("Q").await.unwrap().state.messages, 2);
    let (payload, _) = next(&client, "Q", "W").await.unwrap();
    assert_eq!(payload, b"2");
    assert!(server.shutdown(PATIENCE).await.complete);

    let (server, js) = start(folder.path()).await;
    let info = js.stream_info("Q").await.unwrap();
    let state = (info.state.messages, info.state.first_seq, info.state.last_seq);
    assert_eq!(state, (2, 2, 3));
    let info = js.consumer_info("Q", "W").await.unwrap();
    assert_eq!(
        (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq),
        (1, 1, 1)
    );
    // The id is remembered although its message is gone.
    let ack = js.publish_with("Q", "q", with_id, "1").unwrap().await.unwrap();
    assert_eq!((ack.seq, ack.duplicate), (1, true));
    let (payload, _) = next(&server.client(), "Q", "W").await.unwrap();
    assert_eq!(payload, b"3");
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_made_again_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    for round in 0..20 {
        js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
            .await
            .unwrap();
        let ack = js.publish("S", "s", "x").unwrap().await.unwrap();
        assert_eq!(ack.seq, 1, "round {round}");
        js.delete_stream("S").await.unwrap();
    }
    let missing = js.stream_info("S").await.unwrap_err();
    assert!(missing.is(ErrorCode::StreamNotFound));
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_says_why_nothing_comes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"],"storage":"memory"}"#))
        .await
        .unwrap();
    js.create_consumer("S", consumer(r#"{"durable_name":"C","ack_policy":"explicit"}"#))
        .await
        .unwrap();
    assert_eq!(js.explain_consumer("S", "D").await, None);
    js.publish("S", "s", "x").unwrap().await.unwrap();
    assert_eq!(js.explain_consumer("S", "C").await, Some(Explanation::NoRequest));
    let client = server.client();
    assert!(next(&client, "S", "C").await.is_some());
    assert_eq!(js.purge_stream("S", PurgeRequest::default()).await, Ok(1));
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_dropped_lets_go_of_its_folder_and_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    js.publish("S", "s", "x").unwrap().await.unwrap();
    drop((js, server));
    let again = async {
        loop {
            match Server::builder().jetstream(folder.path()).start().await {
                Ok(server) => break server,
                // The store is still in the hands of the one before.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let server = tokio::time::timeout(PATIENCE, again).await.unwrap();
    let info = server.jetstream().unwrap().stream_info("S").await.unwrap();
    assert_eq!(info.state.messages, 1);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_publish_has_an_outcome_when_its_stream_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    for _ in 0..10 {
        js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
            .await
            .unwrap();
        let deleting = js.clone();
        let delete = tokio::spawn(async move { deleting.delete_stream("S").await });
        let publishes: Vec<_> = (0..500).filter_map(|_| js.publish("S", "s", "x").ok()).collect();
        delete.await.unwrap().unwrap();
        for publish in publishes {
            // Stored before the end, or not: but never nothing.
            let outcome = tokio::time::timeout(PATIENCE, publish).await.unwrap();
            let known = matches!(&outcome, Ok(stored) if stored.seq > 0);
            assert!(
                known
                    || matches!(
                        &outcome,
                        Err(PublishError::OutcomeUnknown | PublishError::Refused(_))
                    )
            );
        }
    }
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// Its deadline came back while it waited for its deletion, and the stream's task never left the loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_nobody_uses_goes_and_its_stream_works_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::builder().jetstream(folder.path()).start().await.unwrap();
    let js = server.jetstream().unwrap();
    js.create_stream(config(r#"{"name":"Q","subjects":["q.>"]}"#))
        .await
        .unwrap();
    let unused = consumer(r#"{"name":"E","ack_policy":"explicit","inactive_threshold":50000000}"#);
    js.create_consumer("Q", unused).await.unwrap();
    let gone = async {
        while js.consumer_info("Q", "E").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        js.publish("Q", "q.a", "still here").unwrap().await.unwrap();
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("the stream does not answer");
    assert!(server.shutdown(PATIENCE).await.complete);
}

pub(crate) async fn reload(
    server: &Server,
    change: impl FnOnce(&mut windjet_server::Options),
) -> Vec<String> {
    let mut options = (*server.options()).clone();
    change(&mut options);
    let server = server.clone();
    let report = tokio::task::spawn_blocking(move || server.reload(options));
    let report = report.await.unwrap().unwrap();
    report.applied.iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_switches_jetstream_off_and_on_with_what_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let client = server.client();
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    js.publish("S", "s", "kept").unwrap().await.unwrap();
    let settings = server.options().jetstream.clone();

    let applied = reload(&server, |options| options.jetstream = None).await;
    assert!(applied.contains(&"JetStream".to_owned()), "{applied:?}");
    assert!(server.jetstream().is_none() && server.jetstream_report().is_none());
    assert!(client.request("$JS.API.INFO", "").await.is_err());
    assert!(js.publish("S", "s", "lost").is_err());
    // Its subjects are plain ones, so nobody takes this.
    assert!(client.request("s", "lost").await.is_err());

    for round in 1..=2 {
        let applied = reload(&server, |options| options.jetstream.clone_from(&settings)).await;
        assert!(applied.contains(&"JetStream".to_owned()), "{applied:?}");
        let js = server.jetstream().unwrap();
        assert_eq!(js.stream_info("S").await.unwrap().state.messages, round);
        // Over the wire as well.
        assert!(client.request("$JS.API.INFO", "").await.is_ok());
        let ack = client.request("s", "more").await.unwrap();
        assert_eq!(
            &ack.payload[..],
            format!(r#"{{"stream":"S","seq":{}}}"#, round + 1).as_bytes()
        );
        reload(&server, |options| options.jetstream = None).await;
    }
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// nats-server brings the streams back too, but when the account itself was gone in between, nothing is captured any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_loses_jetstream_finds_its_files_when_it_has_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut with = windjet_server::options::AccountOptions::default();
    let without = with.clone();
    with.jetstream = Some(windjet_server::options::AccountJetStreamLimits::default());
    let builder = Server::builder().jetstream(folder.path());
    let builder = builder.configure(|options| {
        options.accounts.insert("A".into(), with.clone());
    });
    let server = builder.start().await.unwrap();
    let js = server.jetstream_of("A").unwrap();
    for (name, storage) in [("F", "file"), ("M", "memory")] {
        let settings = format!(r#"{{"name":"{name}","subjects":["{name}.*"],"storage":"{storage}"}}"#);
        js.create_stream(config(&settings)).await.unwrap();
        js.publish(name, &format!("{name}.1"), "kept")
            .unwrap()
            .await
            .unwrap();
    }
    js.create_consumer("F", consumer(r#"{"durable_name":"C","ack_policy":"explicit"}"#))
        .await
        .unwrap();
    for (round, meanwhile) in [Some(without), None].into_iter().enumerate() {
        let js = server.jetstream_of("A").unwrap();
        reload(&server, |options| match meanwhile {
            Some(without) => drop(options.accounts.insert("A".into(), without)),
            None => drop(options.accounts.remove("A")),
        })
        .await;
        assert!(server.jetstream_of("A").is_none());
        // Who has it in hand still makes nothing that nobody would end.
        let refused = js.create_stream(config(r#"{"name":"N"}"#)).await.unwrap_err();
        assert!(refused.is(ErrorCode::NotEnabledForAccount), "{refused}");
        assert!(js.publish("F", "F.1", "lost").is_err());
        reload(&server, |options| {
            options.accounts.insert("A".into(), with.clone());
        })
        .await;
        let js = server.jetstream_of("A").unwrap();
        let state = js.stream_info("F").await.unwrap().state;
        assert_eq!((state.messages, state.consumer_count), (round as u64 + 1, 1));
        assert!(
            js.stream_info("M")
                .await
                .unwrap_err()
                .is(ErrorCode::StreamNotFound)
        );
        let client = server.client_of("A").unwrap();
        let ack = client.request("F.2", "captured").await.unwrap();
        assert_eq!(
            &ack.payload[..],
            format!(r#"{{"stream":"F","seq":{}}}"#, round + 2).as_bytes()
        );
        let (payload, _) = next(&client, "F", "C").await.unwrap();
        assert_eq!(payload, [&b"kept"[..], b"captured"][round]);
    }
    assert!(server.shutdown(PATIENCE).await.complete);
    // And none of it was lost by a restart.
    let builder = Server::builder().jetstream(folder.path());
    let builder = builder.configure(|options| {
        options.accounts.insert("A".into(), with);
    });
    let server = builder.start().await.unwrap();
    let js = server.jetstream_of("A").unwrap();
    assert_eq!(js.stream_info("F").await.unwrap().state.messages, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jetstream_that_cannot_start_refuses_the_reload() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = start(folder.path()).await;
    let server = Server::builder().start().await.unwrap();
    let mut options = (*server.options()).clone();
    options.jetstream.clone_from(&first.options().jetstream);
    options.max_payload = 5;
    let reloading = server.clone();
    let refused = tokio::task::spawn_blocking(move || reloading.reload(options).unwrap_err());
    let refused = refused.await.unwrap().to_string();
    assert!(refused.starts_with("JetStream does not start: "), "{refused}");
    assert!(server.jetstream().is_none());
    assert_ne!(server.options().max_payload, 5);
}

/// Other accounts and streams count as well; what goes makes room, and so does a reload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_publishes_of_every_stream_of_the_kind() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = windjet_server::Options::default();
    let mut settings = windjet_server::options::JetStreamOptions::default();
    settings.store_dir = Some(folder.path().to_owned());
    settings.max_memory_store = Some(1000);
    settings.max_file_store = Some(1 << 20);
    options.jetstream = Some(settings);
    let server = Server::builder().options(options).start().await.unwrap();
    let js = server.jetstream().unwrap();
    for (name, storage) in [("A", "memory"), ("B", "memory"), ("F", "file")] {
        let settings = format!(r#"{{"name":"{name}","subjects":["{name}"],"storage":"{storage}"}}"#);
        js.create_stream(config(&settings)).await.unwrap();
    }
    let publish = |stream: &'static str| {
        let publish = js.publish(stream, stream, vec![0; 600]);
        async { publish.unwrap().await }
    };
    publish("A").await.unwrap();
    // The bound is passed by the message that reaches it, as in nats-server.
    publish("B").await.unwrap();
    for stream in ["A", "B"] {
        let refused = publish(stream).await.unwrap_err();
        assert!(
            matches!(&refused, PublishError::Refused(error) if error.is(ErrorCode::InsufficientResources)),
            "{refused}"
        );
        assert!(refused.is_retryable());
    }
    publish("F").await.unwrap();
    js.purge_stream("A", PurgeRequest::default()).await.unwrap();
    publish("B").await.unwrap();
    publish("B").await.unwrap_err();
    js.delete_stream("B").await.unwrap();
    publish("A").await.unwrap();
    publish("A").await.unwrap();
    publish("A").await.unwrap_err();
    let applied = reload(&server, |options| {
        if let Some(settings) = &mut options.jetstream {
            settings.max_memory_store = Some(2000);
        }
    })
    .await;
    assert_eq!(applied, ["JetStream max_mem_store = 1.95 KB"]);
    publish("A").await.unwrap();
    assert!(server.shutdown(PATIENCE).await.complete);
}
