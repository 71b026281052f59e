//! JetStream on a disk and by a clock of the test, and within budgets.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use windjet_server::jetstream::{
    ErrorCode, JetStreamContext, Nanos, PublishError, PurgeRequest, StreamInfo, TestClock,
};
use windjet_server::{Builder, Server, StartError};
use windjet_store::{DiskOp, SimDisk, Survival};

use crate::jetstream::{PATIENCE, config, consumer};

const BUDGET: u64 = 32 << 20;
const PAYLOAD: usize = 256 << 10;

fn builder(disk: &SimDisk, clock: &TestClock) -> Builder {
    Server::builder()
        .disk(Arc::new(disk.clone()))
        .clock(clock.clone())
}

async fn js_of(builder: Builder) -> (Server, JetStreamContext) {
    let server = builder.start().await.unwrap();
    let js = server.jetstream().unwrap();
    (server, js)
}

/// The stream's info, once it is as wanted.
async fn info(js: &JetStreamContext, stream: &str, wanted: impl Fn(&StreamInfo) -> bool) -> StreamInfo {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let info = js.stream_info(stream).await.unwrap();
        if wanted(&info) {
            return info;
        }
        assert!(tokio::time::Instant::now() < end, "{info:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_end_when_the_clock_of_the_test_says_so() {
    let (disk, clock) = (SimDisk::new(1), TestClock::new(SystemTime::now()));
    let (server, js) = js_of(builder(&disk, &clock)).await;
    js.create_stream(config(
        r#"{"name":"S","subjects":["s"],"max_age":3600000000000,"duplicate_window":60000000000}"#,
    ))
    .await
    .unwrap();
    js.publish("S", "s", "old").unwrap().await.unwrap();
    clock.advance(Duration::from_secs(1800));
    js.publish("S", "s", "new").unwrap().await.unwrap();
    clock.advance(Duration::from_secs(1799));
    assert_eq!(js.stream_info("S").await.unwrap().state.messages, 2);
    clock.advance(Duration::from_secs(2));
    let left = info(&js, "S", |info| info.state.messages < 2).await.state;
    assert_eq!((left.messages, left.first_seq), (1, 2));
    let stamp = js.get_message("S", 2).await.unwrap().unwrap().timestamp;
    let now = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let stored = now - Duration::from_secs(1801);
    assert_eq!(stamp.unix_nanos(), i64::try_from(stored.as_nanos()).unwrap());
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// The journal may be done with a stream's creation before the stream's task looks at anything.
#[tokio::test]
async fn a_creation_is_announced_also_when_the_disk_is_faster_than_the_task() {
    let (disk, clock) = (SimDisk::new(9), TestClock::new(SystemTime::now()));
    let (server, js) = js_of(builder(&disk, &clock)).await;
    let client = server.client();
    let mut heard = client
        .subscribe("$JS.EVENT.ADVISORY.STREAM.CREATED.>")
        .await
        .unwrap();
    disk.record();
    let mut create = std::pin::pin!(js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#)));
    assert!(futures_util::poll!(create.as_mut()).is_pending());
    // This thread is the only one of the runtime, so that the task waits. Behind the sync an idle journal writes once more.
    let mut synced = false;
    let end = std::time::Instant::now() + PATIENCE;
    while !disk.take_events().iter().any(|event| {
        let journal = event.name.starts_with("journal");
        synced |= journal && event.op == DiskOp::Sync;
        synced && journal && event.op == DiskOp::Write
    }) {
        assert!(std::time::Instant::now() < end);
        std::thread::yield_now();
    }
    create.await.unwrap();
    let advisory = tokio::time::timeout(PATIENCE, heard.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&advisory.subject[..], b"$JS.EVENT.ADVISORY.STREAM.CREATED.S");
    // Whoever finds it creates nothing.
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    js.create_stream(config(r#"{"name":"T","subjects":["t"]}"#))
        .await
        .unwrap();
    let advisory = tokio::time::timeout(PATIENCE, heard.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&advisory.subject[..], b"$JS.EVENT.ADVISORY.STREAM.CREATED.T");
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// Which messages are too old is read from the disk; what cannot be read stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_read_expires_nothing_that_is_young() {
    let (disk, clock) = (SimDisk::new(8), TestClock::new(SystemTime::now()));
    let (server, js) = js_of(builder(&disk, &clock)).await;
    let kept = config(r#"{"name":"S","subjects":["s"],"duplicate_window":60000000000}"#);
    let mut aging = kept.clone();
    aging.max_age = Nanos::from_secs(3600);
    js.create_stream(kept).await.unwrap();
    js.publish("S", "s", "old").unwrap().await.unwrap();
    clock.advance(Duration::from_secs(1800));
    js.publish("S", "s", "new").unwrap().await.unwrap();
    assert!(server.shutdown(PATIENCE).await.complete);

    // In a segment now, of which nothing is in memory: a stream without ages does not look at its messages at the start.
    let (server, js) = js_of(builder(&disk, &clock)).await;
    disk.fail_reads(Some(("seg", std::io::ErrorKind::Other)));
    clock.advance(Duration::from_secs(1801));
    js.update_stream(aging).await.unwrap();
    js.publish("S", "s", "newest").unwrap().await.unwrap();
    let state = js.stream_info("S").await.unwrap().state;
    assert_eq!((state.messages, state.first_seq), (3, 1));
    disk.fail_reads(None);
    clock.advance(Duration::from_secs(1));
    let state = info(&js, "S", |info| info.state.messages == 2).await.state;
    assert_eq!((state.first_seq, state.last_seq), (2, 3));
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_comes_again_when_the_clock_of_the_test_passed_its_wait() {
    let (disk, clock) = (SimDisk::new(2), TestClock::new(SystemTime::now()));
    let (server, js) = js_of(builder(&disk, &clock)).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    let settings = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":3600000000000}"#;
    js.create_consumer("S", consumer(settings)).await.unwrap();
    js.publish("S", "s", "x").unwrap().await.unwrap();
    let c = js.consumer("S", "C").await.unwrap();
    let first = c.fetch(1, PATIENCE).await.unwrap();
    assert_eq!(first[0].delivered, 1);
    let (mut again, mut moved) = (Box::pin(c.fetch(1, Duration::from_secs(2 * 3600))), false);
    let second = tokio::time::timeout(
        PATIENCE,
        std::future::poll_fn(|cx| {
            let polled = again.as_mut().poll(cx);
            if polled.is_pending() && !std::mem::replace(&mut moved, true) {
                clock.advance(Duration::from_secs(3601));
            }
            polled
        }),
    );
    let second = second.await.unwrap().unwrap();
    assert!(moved);
    assert_eq!(second[0].delivered, 2);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_leaves_what_was_acknowledged() {
    let (disk, clock) = (SimDisk::new(3), TestClock::new(SystemTime::now()));
    let (server, js) = js_of(builder(&disk, &clock)).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    for n in 1..=20 {
        let ack = js.publish("S", "s", format!("{n}")).unwrap().await.unwrap();
        assert_eq!(ack.seq, n);
    }
    disk.power_cut(Survival::Nothing);
    drop(js);
    server.shutdown(PATIENCE).await;
    let (server, js) = js_of(builder(&disk, &clock)).await;
    let state = js.stream_info("S").await.unwrap().state;
    assert_eq!((state.messages, state.last_seq), (20, 20));
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// A full budget is an error with a name and not an outage: reads and deletions go on, and deletions end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_storage_budget_refuses_publishes_until_there_is_room() {
    let (disk, clock) = (SimDisk::new(4), TestClock::new(SystemTime::now()));
    let (server, js) = js_of(builder(&disk, &clock).storage_budget(BUDGET)).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    let publish = || async { js.publish("S", "s", vec![7; PAYLOAD])?.await };
    let mut acked = 0;
    let refusal = loop {
        match publish().await {
            Ok(ack) => acked = ack.seq,
            Err(error) => break error,
        }
        let used = server.storage().unwrap().used;
        assert!(used <= BUDGET, "{used} bytes");
        assert!(acked * (PAYLOAD as u64) <= BUDGET, "nothing is refused");
    };
    assert!(refusal.is_retryable() && !refusal.outcome_unknown());
    let PublishError::Refused(error) = refusal else {
        panic!("{refusal}");
    };
    assert!(error.is(ErrorCode::InsufficientStorage), "{error:?}");
    // Journal and ballast take a sixth; most of the rest is messages.
    assert!(acked * (PAYLOAD as u64) > BUDGET / 2, "{acked} messages");

    for seq in [1, acked] {
        let message = js.get_message("S", seq).await.unwrap().unwrap();
        assert_eq!(message.payload.len(), PAYLOAD);
    }
    assert_eq!(js.stream_info("S").await.unwrap().state.messages, acked);

    assert_eq!(
        js.purge_stream("S", PurgeRequest::default()).await.unwrap(),
        acked
    );
    let end = tokio::time::Instant::now() + PATIENCE;
    let seq = loop {
        // The store looks once a second whether there is room.
        clock.advance(Duration::from_secs(1));
        match publish().await {
            Ok(ack) => break ack.seq,
            Err(PublishError::Refused(error)) if error.is(ErrorCode::InsufficientStorage) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(tokio::time::Instant::now() < end, "never taken again");
    };
    assert_eq!(seq, acked + 1);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_and_what_is_used_of_them_are_reported() {
    let (disk, clock) = (SimDisk::new(5), TestClock::new(SystemTime::now()));
    let budgets = builder(&disk, &clock)
        .memory_budget(8 << 20)
        .storage_budget(BUDGET);
    let (server, js) = js_of(budgets).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s"]}"#))
        .await
        .unwrap();
    let before = server.memory();
    assert_eq!((before.budget, before.cache), (Some(8 << 20), 0));
    // Over what tails may take, so that some of it goes into segments.
    for _ in 0..20 {
        js.publish("S", "s", vec![7; PAYLOAD]).unwrap().await.unwrap();
        assert!(
            server.memory().tails <= (2 << 20) + PAYLOAD as u64,
            "{:?}",
            server.memory()
        );
    }
    assert!(server.memory().tails > 0);
    for seq in 1..=20 {
        js.get_message("S", seq).await.unwrap().unwrap();
    }
    let memory = server.memory();
    assert!(memory.cache > 0 && memory.cache <= 2 << 20, "{memory:?}");
    let storage = server.storage().unwrap();
    assert_eq!(storage.budget, Some(BUDGET));
    assert!(
        storage.used > 20 * PAYLOAD as u64 && storage.used <= BUDGET,
        "{storage:?}"
    );
    assert!(server.shutdown(PATIENCE).await.complete);

    let server = Server::builder().start().await.unwrap();
    assert_eq!((server.storage(), server.memory().budget), (None, None));
}

#[tokio::test]
async fn a_storage_budget_that_no_store_keeps_to_is_refused() {
    let disk = SimDisk::new(6);
    let clock = TestClock::new(SystemTime::now());
    let started = builder(&disk, &clock).storage_budget(1 << 20).start().await;
    let Err(StartError::Options(problem)) = started else {
        panic!("{started:?}");
    };
    assert_eq!(
        problem.to_string(),
        "storage_budget (1048576) must be at least 33554432 bytes"
    );
}
