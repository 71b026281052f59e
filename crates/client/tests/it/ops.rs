//! Ordered consumers, shadows, watchers and schedules.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::Config as StreamConfig;
use windjet_client::consumer::{OrderedConfig, RetryDelay};
use windjet_client::handler::Stack;
use windjet_client::ops::fingerprint::{self, Config as FingerprintConfig};
use windjet_client::ops::liveness::{self, Config as LivenessConfig};
use windjet_client::ops::recorder::FlightRecorder;
use windjet_client::ops::schedule::ScheduleConfig;
use windjet_client::ops::shadow::{Graduation, Phase, Ramp, Shadow};
use windjet_client::ops::slow::{self, Config as SlowConfig};
use windjet_client::ops::supervise::Supervisor;
use windjet_client::{Delivery, ErrorKind, Handler, HandlerError, Message, ProcessOptions, async_nats};

use crate::harness::{soon, until};
use crate::jetstream_tests;

type Seen = Arc<Mutex<Vec<u64>>>;

/// Notes stream sequences; every seventh message fails.
fn noting(seen: &Seen) -> impl Handler + use<> {
    let seen = Arc::clone(seen);
    move |delivery: Arc<Delivery>| {
        let sequence = delivery.metadata().unwrap().stream_sequence;
        seen.lock().unwrap().push(sequence);
        async move {
            assert!(!sequence.is_multiple_of(14), "on purpose");
            if sequence.is_multiple_of(7) {
                Err(HandlerError::failed("seven"))
            } else {
                Ok(())
            }
        }
    }
}

async fn count(seen: &Seen, wanted: usize) -> Vec<u64> {
    until("the messages", || async {
        (seen.lock().unwrap().len() >= wanted).then_some(())
    })
    .await;
    seen.lock().unwrap().clone()
}

jetstream_tests! {

async fn an_ordered_consumer_has_no_gap_across_a_restart(world: World) {
    world.stream("S").await;
    world.publish("s.a", 3000).await;
    let client = world.kit().await;
    let seen = Seen::default();
    let mut ordered = client.consumer().ordered("S", OrderedConfig::default(), noting(&seen)).await.unwrap();
    count(&seen, 500).await;
    world.restart();
    until("the connection", || async { world.js.publish("s.a", "x".into()).await.ok()?.await.ok() }).await;
    world.publish("s.a", 1000).await;
    let total = world.js.get_stream("S").await.unwrap().get_info().await.unwrap().state.last_sequence;
    let all = count(&seen, usize::try_from(total).unwrap()).await;
    assert!(all.iter().copied().eq(1..=total), "a gap or a repetition");
    assert!(ordered.vitals().failed() > 100);
    ordered.stop();
    tokio::time::timeout(Duration::from_secs(10), ordered.stopped()).await.unwrap();
    assert!(ordered.is_stopped());
}

/// With the official client, "only new" begins at the first message of all after a reconnect.
async fn only_new_stays_only_new(world: World) {
    world.stream("S").await;
    world.publish("s.a", 10).await;
    let client = world.kit().await;
    let seen = Seen::default();
    let config = OrderedConfig { deliver_policy: DeliverPolicy::New, ..OrderedConfig::default() };
    let _ordered = client.consumer().ordered("S", config, noting(&seen)).await.unwrap();
    world.restart();
    until("the connection", || async { world.js.publish("s.a", "x".into()).await.ok()?.await.ok() }).await;
    let begun = Instant::now();
    assert_eq!(count(&seen, 1).await[0], 11);
    // The request for a consumer may have gone with the old connection; the official client would wait 10 s for its answer.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

async fn an_ordered_consumer_filters_and_ends_with_its_stream(world: World) {
    let stream = world.stream("S").await;
    world.publish("s.a", 2).await;
    world.publish("s.b", 2).await;
    let client = world.kit().await;
    let seen = Seen::default();
    let config = OrderedConfig { filter_subjects: vec!["s.b".into()], name_prefix: "mine".into(), ..OrderedConfig::default() };
    let mut ordered = client.consumer().ordered("S", config, noting(&seen)).await.unwrap();
    assert_eq!(count(&seen, 2).await, [3, 4]);
    let info = stream.consumer_info("mine_1").await.unwrap();
    assert!(info.config.memory_storage && info.config.inactive_threshold == Duration::from_secs(300));
    world.js.delete_stream("S").await.unwrap();
    soon("the end", ordered.stopped()).await;
    let refused = async |stream: &str, prefix: &str| {
        let config = OrderedConfig { name_prefix: prefix.into(), ..OrderedConfig::default() };
        client.consumer().ordered(stream, config, noting(&Seen::default())).await.unwrap_err().kind()
    };
    assert_eq!(refused("S", "").await, ErrorKind::StreamNotFound);
    assert_eq!(refused("S", "a.b").await, ErrorKind::InvalidDurableName);
}

async fn a_shadow_is_compared_and_harms_nobody(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 20).await;
    let client = world.kit().await;
    let recorder = FlightRecorder::default();
    let replies = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&replies);
    let shadow = Shadow::new(move |copy: Arc<Delivery>| {
        count.fetch_add(usize::from(copy.reply.is_some()), Ordering::AcqRel);
        async move {
            assert!(copy.payload != "3", "on purpose");
            if copy.payload == "4" { Err(HandlerError::failed("four")) } else { Ok(()) }
        }
    }).sample_rate(1.0).recorder(recorder.clone());
    let handler = Stack::new().shadow(shadow.clone()).around(|_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) });
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let worker = consumer.start(handler, ProcessOptions::default());
    until("the comparisons", || async { (shadow.compared() == 20).then_some(()) }).await;
    assert_eq!((shadow.errors(), shadow.mismatches(), replies.load(Ordering::Acquire)), (2, 2, 0));
    assert_eq!(consumer.vitals().succeeded(), 20);
    let told: Vec<_> = recorder.snapshot().into_iter().map(|incident| (incident.detail, incident.err)).collect();
    assert!(told.contains(&("shadow_mismatch".into(), "primary=nil shadow=four".into())), "{told:?}");
    assert!(told.contains(&("shadow_error".into(), "handler panic: on purpose".into())), "{told:?}");
    worker.stop().await.unwrap();
}

/// The original made a new bound for every message, which bounded nothing.
async fn shadows_under_way_are_bounded_and_end_with_their_handler(world: World) {
    struct Running(Arc<AtomicUsize>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 50).await;
    let client = world.kit().await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, note) = (Arc::clone(&running), Arc::clone(&most));
    let graduation = Graduation::new(Ramp { start: 1.0, ..Ramp::default() });
    let shadow = Shadow::new(move |_: Arc<Delivery>| {
        note.fetch_max(count.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
        let running = Running(Arc::clone(&count));
        async move {
            let _running = running;
            std::future::pending::<Result<(), HandlerError>>().await
        }
    }).max_in_flight(3).graduation(graduation.clone());
    let handler = Stack::new().shadow(shadow).around(|_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) });
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let worker = consumer.start(handler, ProcessOptions::default());
    until("all to be handled", || async { (consumer.vitals().succeeded() == 50).then_some(()) }).await;
    until("the shadows", || async { (running.load(Ordering::Acquire) == 3).then_some(()) }).await;
    assert_eq!((graduation.status().phase, graduation.status().samples), (Phase::Ramping, 0));
    worker.stop().await.unwrap();
    until("their end", || async { (running.load(Ordering::Acquire) == 0).then_some(()) }).await;
    assert_eq!(most.load(Ordering::Acquire), 3);
}

async fn a_stuck_consumer_is_noticed_and_a_busy_one_is_not(world: World) {
    world.stream("S").await;
    for name in ["stuck", "busy"] {
        world.durable("S", name).await;
    }
    let client = world.kit().await;
    let stuck = client.consumer().pull("S", "stuck").await.unwrap();
    let busy = client.consumer().pull("S", "busy").await.unwrap();
    let _working = busy.start(|_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) }, ProcessOptions::default());
    let config = LivenessConfig { poll_interval: Duration::from_millis(50), stall_after: Duration::from_millis(400), ..Default::default() };
    let stalls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&stalls);
    let recorder = FlightRecorder::default();
    let record = recorder.on_stall("S", "stuck");
    let watch = liveness::watch(&stuck, config, move |stall| { record(stall); count.fetch_add(1, Ordering::AcqRel); });
    let other = liveness::watch(&busy, config, |_| {});
    let mut events = watch.events();
    until("the stall", || async {
        world.publish("s.a", 1).await;
        watch.is_raised().then_some(())
    }).await;
    let stall = events.recv().await.unwrap();
    assert!(stall.num_pending > 0 && stall.stalled_for >= Duration::from_millis(400));
    assert!(stalls.load(Ordering::Acquire) >= 1 && watch.was_raised());
    assert_eq!(recorder.snapshot()[0].num_pending, stall.num_pending);
    // The traffic of one subscription does not hide the stall of another, nor the other way round.
    assert!(!other.was_raised());
    watch.stop().await;
}

async fn a_slow_consumer_is_told_with_its_reasons(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 20).await;
    let client = world.kit().await;
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let config = SlowConfig { poll_interval: Duration::from_millis(20), sustain_for: Duration::from_millis(100), pending_threshold: 10, lag_threshold: 15, ..Default::default() };
    let watch = slow::watch(&consumer, Some(client.streams()), config, |_| {});
    let event = soon("the event", watch.events().recv()).await.unwrap();
    assert_eq!((event.reasons, event.pending, event.lag), (vec!["pending", "lag"], 20, 20));
    assert!(event.sustained_for >= Duration::from_millis(100) && watch.is_raised());
    let worker = consumer.start(|_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) }, ProcessOptions::default());
    until("the end of the episode", || async { (!watch.is_raised()).then_some(()) }).await;
    assert!(watch.was_raised());
    worker.stop().await.unwrap();
}

async fn a_fingerprint_is_learnt_and_written_for_consoles(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    client.kv().create_or_update(async_nats::jetstream::kv::Config { bucket: fingerprint::DEFAULT_BUCKET.into(), ..Default::default() }).await.unwrap();
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let slow = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now_slow = Arc::clone(&slow);
    let handler = move |_: Arc<Delivery>| {
        let time = if now_slow.load(Ordering::Acquire) { 300 } else { 2 };
        async move { crate::harness::pass(Duration::from_millis(time)).await; Ok::<_, HandlerError>(()) }
    };
    let _worker = consumer.start(handler, ProcessOptions::default().concurrency(64));
    let config = FingerprintConfig {
        poll_interval: Duration::from_millis(50),
        window: Duration::from_millis(500),
        warmup: Duration::from_millis(700),
        min_samples: 10,
        rate_tolerance: 0.9,
        sustain_for: Duration::from_millis(100),
        ..Default::default()
    };
    let bucket = (client.kv_keys(), fingerprint::DEFAULT_BUCKET.to_owned());
    let watch = fingerprint::watch(&consumer, Some(bucket), config, |_| {});
    let stored = async || {
        let entry = client.kv_keys().get(fingerprint::DEFAULT_BUCKET, "S/c").await.ok()?;
        serde_json::from_slice::<fingerprint::Record>(&entry.value).ok()
    };
    let normal = until("the first record", || async {
        world.publish("s.a", 1).await;
        stored().await
    }).await;
    let learnt = watch.snapshot();
    assert!(learnt.normal.is_some_and(|usual| usual.msg_per_min > 0.0 && usual.processing >= Duration::from_millis(1)));
    assert!(!normal.anomaly && normal.normal.msg_per_min > 0.0 && normal.normal.processing_ms >= 1.0);
    slow.store(true, Ordering::Release);
    let mut events = watch.events();
    until("the anomaly", || async {
        world.publish("s.a", 1).await;
        watch.is_raised().then_some(())
    }).await;
    let event = events.recv().await.unwrap();
    assert!(event.current.processing > event.normal.processing * 3 && event.stream == "S");
    until("its record", || async { stored().await.filter(|record| record.anomaly && record.sustained_for_ms >= 100) }).await;
}

async fn supervised_processing_outlives_its_consumer(world: World) {
    let stream = world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    let seen = Seen::default();
    let supervisor = Supervisor::new().backoff(Duration::from_millis(20), Duration::from_millis(50)).max_retries(None);
    let (note, consumers) = (Arc::clone(&seen), client.consumer());
    let supervised = tokio::spawn(async move {
        supervisor.run(|| async {
            let consumer = consumers.pull("S", "c").await?;
            consumer.process(noting(&note), ProcessOptions::default().retry_delay(RetryDelay::None)).await
        }).await
    });
    world.publish("s.a", 1).await;
    count(&seen, 1).await;
    stream.delete_consumer("c").await.unwrap();
    world.durable("S", "c").await;
    count(&seen, 2).await;
    client.close().await;
    let end = soon("the end", supervised).await.unwrap();
    // The client is closed: there is nothing to start again.
    drop(end);
}

async fn messages_are_scheduled_by_subject_and_by_the_server(world: World) {
    let config = StreamConfig { allow_message_schedules: true, ..Default::default() };
    world.stream_with("S", config).await;
    let publisher = world.kit().await.publisher();
    let convention = ScheduleConfig::default();
    publisher.publish_scheduled("s.a", Message::raw("x"), Duration::from_secs(5), &convention).await.unwrap();
    publisher.publish_scheduled("s.a", Message::raw("now"), Duration::ZERO, &convention).await.unwrap();
    let stored = world.stored("S").await;
    assert_eq!((stored[0].subject.as_str(), stored[1].subject.as_str()), ("s.a.delay.5000", "s.a"));
    assert!(stored[0].headers.get("X-NATS-Scheduled-For").unwrap().as_str().ends_with('Z'));
    publisher.publish_server_scheduled("s.later", "s.target", Message::raw("late"), Duration::from_millis(1200)).await.unwrap();
    let arrived = until("the message", || async {
        world.stored("S").await.into_iter().find(|message| message.subject.as_str() == "s.target")
    }).await;
    assert_eq!(&arrived.payload[..], b"late");
}

}
