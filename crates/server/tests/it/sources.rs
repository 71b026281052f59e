//! Mirrors and sources on one server.

use std::path::Path;
use std::time::Duration;

use windjet_protocol::jetstream::{DiscardPolicy, RetentionPolicy, StreamSource};
use windjet_server::Server;
use windjet_server::jetstream::{JetStreamContext, PurgeRequest, StreamConfig, StreamInfo};

const DEADLINE: Duration = Duration::from_secs(20);

async fn start(folder: &Path) -> (Server, JetStreamContext) {
    let server = Server::builder().jetstream(folder).start().await.unwrap();
    let js = server.jetstream().unwrap();
    (server, js)
}

fn origin(name: &str) -> StreamConfig {
    StreamConfig {
        name: name.into(),
        subjects: vec![format!("{name}.>")],
        ..StreamConfig::default()
    }
}

fn source(name: &str) -> StreamSource {
    StreamSource {
        name: name.into(),
        ..StreamSource::default()
    }
}

fn sourcing(origins: &[&str]) -> StreamConfig {
    StreamConfig {
        name: "M".into(),
        sources: origins.iter().map(|name| source(name)).collect(),
        ..StreamConfig::default()
    }
}

fn mirroring(origin: &str) -> StreamConfig {
    StreamConfig {
        name: "M".into(),
        mirror: Some(source(origin)),
        ..StreamConfig::default()
    }
}

async fn fill(js: &JetStreamContext, stream: &str, count: usize) {
    for _ in 0..count {
        js.publish(stream, &format!("{stream}.x"), "m")
            .unwrap()
            .await
            .unwrap();
    }
}

/// Asks until the answer is the wanted one.
async fn eventually(js: &JetStreamContext, stream: &str, wanted: impl Fn(&StreamInfo) -> bool) -> StreamInfo {
    let mut last = None;
    let asking = async {
        loop {
            let info = js.stream_info(stream).await.unwrap();
            if wanted(&info) {
                return info;
            }
            last = Some(info);
            tokio::task::yield_now().await;
        }
    };
    match tokio::time::timeout(DEADLINE, asking).await {
        Ok(info) => info,
        Err(_) => panic!("{stream} stays as it is: {last:?}"),
    }
}

fn holds(messages: u64, last: u64) -> impl Fn(&StreamInfo) -> bool {
    move |info| (info.state.messages, info.state.last_seq) == (messages, last)
}

async fn purge(js: &JetStreamContext, stream: &str) {
    js.purge_stream(stream, PurgeRequest::default()).await.unwrap();
}

#[tokio::test]
async fn a_source_goes_on_where_it_was_though_its_copies_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(origin("O")).await.unwrap();
    fill(&js, "O", 3).await;
    js.create_stream(sourcing(&["O"])).await.unwrap();
    eventually(&js, "M", holds(3, 3)).await;
    purge(&js, "M").await;
    server.shutdown(DEADLINE).await;

    let (server, js) = start(folder.path()).await;
    fill(&js, "O", 1).await;
    let info = eventually(&js, "M", holds(1, 4)).await;
    assert_eq!((info.sources[0].seq, info.sources[0].lag), (4, 0));
    server.shutdown(DEADLINE).await;

    let (server, js) = start(folder.path()).await;
    fill(&js, "O", 1).await;
    eventually(&js, "M", holds(2, 5)).await;
    server.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn a_source_that_comes_back_takes_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    for name in ["O", "P"] {
        js.create_stream(origin(name)).await.unwrap();
        fill(&js, name, 2).await;
    }
    js.create_stream(sourcing(&["O"])).await.unwrap();
    eventually(&js, "M", holds(2, 2)).await;
    js.update_stream(sourcing(&["P"])).await.unwrap();
    eventually(&js, "M", holds(4, 4)).await;
    js.update_stream(sourcing(&["P", "O"])).await.unwrap();
    fill(&js, "O", 1).await;
    let info = eventually(&js, "M", holds(5, 5)).await;
    assert_eq!(info.sources.len(), 2);
    server.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn a_source_begins_anew_with_a_new_origin() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(sourcing(&["O"])).await.unwrap();
    eventually(&js, "M", |info| info.sources[0].error.is_some()).await;
    js.create_stream(origin("O")).await.unwrap();
    fill(&js, "O", 3).await;
    eventually(&js, "M", holds(3, 3)).await;
    js.delete_stream("O").await.unwrap();
    eventually(&js, "M", |info| info.sources[0].error.is_some()).await;
    js.create_stream(origin("O")).await.unwrap();
    fill(&js, "O", 1).await;
    let info = eventually(&js, "M", holds(4, 4)).await;
    assert!(info.sources[0].error.is_none());
    server.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn a_mirror_waits_until_a_new_origin_has_passed_it() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(origin("O")).await.unwrap();
    fill(&js, "O", 2).await;
    js.create_stream(mirroring("O")).await.unwrap();
    eventually(&js, "M", holds(2, 2)).await;
    js.delete_stream("O").await.unwrap();
    js.create_stream(origin("O")).await.unwrap();
    fill(&js, "O", 3).await;
    eventually(&js, "M", holds(3, 3)).await;
    server.shutdown(DEADLINE).await;

    let (server, js) = start(folder.path()).await;
    fill(&js, "O", 1).await;
    let info = eventually(&js, "M", holds(4, 4)).await;
    assert_eq!(info.mirror.unwrap().lag, 0);
    server.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn a_full_stream_that_refuses_holds_its_source_up() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(origin("O")).await.unwrap();
    fill(&js, "O", 5).await;
    let config = StreamConfig {
        max_msgs: 2,
        discard: DiscardPolicy::New,
        ..sourcing(&["O"])
    };
    js.create_stream(config).await.unwrap();
    let full = |info: &StreamInfo| info.sources[0].error.is_some() && info.sources[0].lag == 3;
    eventually(&js, "M", full).await;
    purge(&js, "M").await;
    eventually(&js, "M", holds(2, 4)).await;
    server.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn messages_leave_a_work_queue_when_their_copies_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let queue = StreamConfig {
        retention: RetentionPolicy::WorkQueue,
        ..origin("O")
    };
    js.create_stream(queue).await.unwrap();
    fill(&js, "O", 3).await;
    js.create_stream(sourcing(&["O"])).await.unwrap();
    eventually(&js, "M", holds(3, 3)).await;
    let info = eventually(&js, "O", holds(0, 3)).await;
    assert_eq!(info.state.consumer_count, 1);
    server.shutdown(DEADLINE).await;

    let (server, js) = start(folder.path()).await;
    fill(&js, "O", 1).await;
    eventually(&js, "M", holds(4, 4)).await;
    eventually(&js, "O", holds(0, 4)).await;
    js.update_stream(StreamConfig {
        subjects: vec!["own".into()],
        ..sourcing(&[])
    })
    .await
    .unwrap();
    eventually(&js, "O", |info| info.state.consumer_count == 0).await;
    server.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn a_long_origin_is_copied_from_the_disk_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(origin("O")).await.unwrap();
    let waits: Vec<_> = (0..3000).map(|_| js.publish("O", "O.x", "m").unwrap()).collect();
    for wait in waits {
        wait.await.unwrap();
    }
    server.shutdown(DEADLINE).await;

    let (server, js) = start(folder.path()).await;
    js.create_stream(sourcing(&["O"])).await.unwrap();
    let info = eventually(&js, "M", holds(3000, 3000)).await;
    assert_eq!((info.sources[0].seq, info.sources[0].lag), (3000, 0));
    server.shutdown(DEADLINE).await;
}
