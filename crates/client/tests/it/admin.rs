//! Managers, and replays.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config as RawConsumer, DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::kv::Config as KvConfig;
use async_nats::jetstream::object_store::Config as ObjectConfig;
use async_nats::jetstream::stream::{Config as StreamConfig, RetentionPolicy};
use time::OffsetDateTime;
use windjet_client::admin::DurableConfig;
use windjet_client::ops::replay::{META_LIMIT, META_UNTIL_SEQ, RANGE_MAX, ReplayOptions};
use windjet_client::{Delivery, Disposition, ErrorKind, HandlerError, MessageType, async_nats};

use crate::harness::{pass, until};
use crate::jetstream_tests;

fn stream(name: &str, subject: &str) -> StreamConfig {
    StreamConfig {
        name: name.into(),
        subjects: vec![subject.into()],
        ..Default::default()
    }
}

jetstream_tests! {

async fn streams_are_managed(world: World) {
    let streams = world.kit().await.streams();
    let info = streams.create_or_update(StreamConfig { num_replicas: 0, ..stream("B", "b.>") }).await.unwrap();
    assert_eq!(info.config.num_replicas, 1);
    streams.add(&stream("A", "a.>")).await.unwrap();
    assert_eq!(streams.add(&stream("A", "other.>")).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(streams.names().await.unwrap(), ["A", "B"]);
    let (page, total) = streams.list_page(1, Some(5)).await.unwrap();
    assert_eq!((page.len(), page[0].config.name.as_str(), total), (1, "B", 2));
    assert_eq!(streams.list().await.unwrap().len(), 2);

    let changed = streams.update_with("B", |config| config.max_messages = 7).await.unwrap();
    assert_eq!((changed.config.max_messages, changed.config.subjects), (7, vec!["b.>".to_owned()]));
    let replaced = streams.create_or_update(stream("B", "b.>")).await.unwrap();
    assert_eq!(replaced.config.max_messages, -1);

    world.publish("b.x", 3).await;
    world.publish("b.y", 2).await;
    assert_eq!(streams.purge("B", Some("b.x")).await.unwrap(), 3);
    let message = streams.get_message("B", 4).await.unwrap();
    assert_eq!((message.subject.as_str(), &message.data[..], message.sequence), ("b.y", &b"0"[..], 4));
    assert_eq!(message.message_type, MessageType::Json);
    assert_eq!(streams.get_message("B", 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(streams.get_last_message("B", "b.*").await.unwrap().sequence, 5);
    assert_eq!(streams.get_next_message_after("B", 0).await.unwrap().sequence, 4);
    assert_eq!(streams.get_next_message_after("B", 5).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(streams.purge("B", None).await.unwrap(), 2);

    streams.delete("B").await.unwrap();
    assert_eq!(streams.info("B").await.unwrap_err().kind(), ErrorKind::StreamNotFound);
    assert_eq!(streams.info("B.x").await.unwrap_err().kind(), ErrorKind::InvalidStreamName);
    assert_eq!(streams.purge("A", Some("a..b")).await.unwrap_err().kind(), ErrorKind::InvalidSubject);
}

async fn more_names_than_a_page_are_all_listed(world: World) {
    let streams = world.kit().await.streams();
    let mut expected = Vec::new();
    for number in 0..1100 {
        let name = format!("S{number:04}");
        let config = StreamConfig { storage: async_nats::jetstream::stream::StorageType::Memory, ..stream(&name, &name) };
        streams.add(&config).await.unwrap();
        expected.push(name);
    }
    assert_eq!(streams.names().await.unwrap(), expected);
    let (page, total) = streams.list_page(1098, Some(10)).await.unwrap();
    assert_eq!((page.len(), total), (2, 1100));
}

async fn a_durable_is_created_and_changed_where_it_can_be(world: World) {
    world.stream("S").await;
    let consumers = world.kit().await.consumers();
    let config = DurableConfig {
        deliver_policy: Some(DeliverPolicy::New),
        filter_subjects: Some(vec!["s.a".into()]),
        max_ack_pending: Some(42),
        ack_wait: Some(Duration::from_secs(15)),
        max_deliver: Some(7),
        inactive_threshold: Some(Duration::from_secs(3600)),
        metadata: [("team".to_owned(), "orders".to_owned())].into(),
        ..DurableConfig::new("c")
    };
    let info = consumers.create_or_update("S", &config).await.unwrap();
    assert_eq!((info.config.ack_policy, info.config.replay_policy), (AckPolicy::Explicit, ReplayPolicy::Instant));
    assert_eq!((info.config.max_ack_pending, info.config.max_deliver, info.config.ack_wait.as_secs()), (42, 7, 15));
    assert_eq!(info.config.metadata["team"], "orders");
    // Again, unchanged.
    consumers.create_or_update("S", &config).await.unwrap();
    // What is not said stays: above all where it begins.
    let changed = DurableConfig { max_ack_pending: Some(99), ..DurableConfig::new("c") };
    let info = consumers.create_or_update("S", &changed).await.unwrap();
    assert_eq!((info.config.deliver_policy, info.config.max_ack_pending), (DeliverPolicy::New, 99));
    assert_eq!((info.config.filter_subject.as_str(), info.config.metadata["team"].as_str()), ("s.a", "orders"));

    let mutable = DurableConfig { filter_subjects: Some(vec!["s.a".into(), "s.b".into()]), max_deliver: Some(3), description: Some("x".into()), ..DurableConfig::new("c") };
    let info = consumers.create_or_update("S", &mutable).await.unwrap();
    assert_eq!(info.config.filter_subjects, ["s.a", "s.b"]);

    let none = DurableConfig { ack_policy: Some(AckPolicy::None), ..DurableConfig::new("none") };
    assert_eq!(consumers.create_or_update("S", &none).await.unwrap().config.ack_policy, AckPolicy::None);
    consumers.delete("S", "none").await.unwrap();
    assert_eq!(consumers.info("S", "none").await.unwrap_err().kind(), ErrorKind::ConsumerNotFound);
}

/// The original sent these changes and got an error that named nothing.
async fn what_cannot_be_changed_is_named_and_nothing_is_changed(world: World) {
    world.stream("S").await;
    let consumers = world.kit().await.consumers();
    consumers.create_or_update("S", &DurableConfig::new("c")).await.unwrap();
    let before = world.info("S", "c").await.config;
    let base = || DurableConfig { max_ack_pending: Some(3), ..DurableConfig::new("c") };
    let table = [
        ("deliver_policy", DurableConfig { deliver_policy: Some(DeliverPolicy::New), ..base() }),
        ("deliver_policy", DurableConfig { deliver_policy: Some(DeliverPolicy::ByStartSequence { start_sequence: 3 }), ..base() }),
        ("ack_policy", DurableConfig { ack_policy: Some(AckPolicy::None), ..base() }),
        ("replay_policy", DurableConfig { replay_policy: Some(ReplayPolicy::Original), ..base() }),
        ("memory_storage", DurableConfig { memory_storage: Some(true), ..base() }),
        ("max_waiting", DurableConfig { max_waiting: Some(3), ..base() }),
        ("deliver_subject", DurableConfig { deliver_subject: Some("inbox".into()), ..base() }),
    ];
    for (name, config) in table {
        let error = consumers.create_or_update("S", &config).await.unwrap_err();
        assert_eq!((error.kind(), error.details()), (ErrorKind::ConsumerRecreateRequired, &[name.to_owned()][..]), "{name}");
    }
    assert_eq!(world.info("S", "c").await.config, before);
    // The server's own refusal has the same kind.
    let raw = RawConsumer { deliver_policy: DeliverPolicy::New, ..before };
    assert_eq!(consumers.update("S", &raw).await.unwrap_err().kind(), ErrorKind::ConsumerRecreateRequired);
}

async fn a_consumer_is_paused_and_resumed(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let consumers = world.kit().await.consumers();
    consumers.pause("S", "c", OffsetDateTime::now_utc() + Duration::from_secs(60)).await.unwrap();
    assert!(world.info("S", "c").await.paused);
    consumers.resume("S", "c").await.unwrap();
    assert!(!world.info("S", "c").await.paused);
}

async fn buckets_and_keys_are_managed(world: World) {
    let client = world.kit().await;
    let (buckets, keys) = (client.kv(), client.kv_keys());
    buckets.create_or_update(KvConfig { bucket: "b".into(), ..Default::default() }).await.unwrap();
    assert_eq!(keys.list_keys("b", 0, None).await.unwrap(), (vec![], 0));
    for (key, value) in [("z", "1"), ("a/b", "2"), ("m", "3")] {
        let entry = keys.put("b", key, value).await.unwrap();
        assert_eq!((entry.key.as_str(), &entry.value[..]), (key, value.as_bytes()));
    }
    // The official client would say 0: it remembers what it saw at opening.
    let status = buckets.bucket_info("b").await.unwrap();
    assert_eq!((status.values, status.history), (3, 1));
    assert_eq!(keys.list_keys("b", 1, Some(1)).await.unwrap(), (vec!["m".to_owned()], 3));
    keys.delete_key("b", "z").await.unwrap();
    assert_eq!(keys.get("b", "z").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(keys.get("b", "never").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(keys.get("b", "a:b").await.unwrap_err().kind(), ErrorKind::InvalidKvKey);
    assert_eq!(keys.get("none", "a").await.unwrap_err().kind(), ErrorKind::NotFound);
    let history = keys.history("b", "z").await.unwrap();
    assert!(history[0].deleted);

    buckets.create_or_update(KvConfig { bucket: "b".into(), history: 5, max_age: Duration::from_secs(60), ..Default::default() }).await.unwrap();
    assert_eq!(buckets.bucket_info("b").await.unwrap().history, 5);
    assert_eq!(buckets.list_buckets().await.unwrap().len(), 1);
    assert_eq!(buckets.open("a.b").await.unwrap_err().kind(), ErrorKind::InvalidBucketName);
    buckets.delete("b").await.unwrap();
    assert_eq!(buckets.delete("b").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(buckets.list_buckets().await.unwrap().is_empty());
}

async fn objects_are_managed_and_the_large_ones_refused(world: World) {
    let objects = world.kit().await.objects();
    let config = ObjectConfig { bucket: "o".into(), description: Some("d".into()), ..Default::default() };
    assert_eq!(objects.create(config).await.unwrap().description, "d");
    assert_eq!(objects.list_objects("o", 0, None).await.unwrap(), (vec![], 0));
    objects.put("o", "b", vec![7; 300_000]).await.unwrap();
    objects.put("o", "a", "x").await.unwrap();
    let entry = objects.get("o", "b").await.unwrap();
    assert_eq!((entry.size, entry.data.len()), (300_000, 300_000));
    assert_eq!(objects.list_objects("o", 0, Some(1)).await.unwrap(), (vec!["a".to_owned()], 2));
    objects.delete_object("o", "a").await.unwrap();
    assert_eq!(objects.get("o", "a").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(objects.get("o", "").await.unwrap_err().kind(), ErrorKind::InvalidObjectName);
    assert_eq!(objects.get("none", "a").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(objects.list_buckets().await.unwrap().len(), 1);
    let store = objects.open("o").await.unwrap();
    let mut large = tokio::io::AsyncReadExt::take(tokio::io::repeat(0), (64 << 20) + 1);
    store.put("large", &mut large).await.unwrap();
    let before = world.client.statistics().in_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(objects.get("o", "large").await.unwrap_err().kind(), ErrorKind::PayloadTooLarge);
    let after = world.client.statistics().in_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert!(after - before < 1 << 20);
    objects.delete("o").await.unwrap();
}

async fn a_durable_is_set_back_and_keeps_its_settings(world: World) {
    world.stream("S").await;
    let client = world.kit().await;
    let config = DurableConfig { max_ack_pending: Some(42), filter_subjects: Some(vec!["s.a".into()]), metadata: [("k".to_owned(), "v".to_owned())].into(), ..DurableConfig::new("c") };
    client.consumers().create_or_update("S", &config).await.unwrap();
    world.publish("s.a", 5).await;
    let replay = client.replay();
    let options = || ReplayOptions::new();
    let result = replay.reset_consumer("S", "c", options().from_seq(3).until_seq(4).limit(2).replay_policy(ReplayPolicy::Original)).await.unwrap();
    assert_eq!((result.durable.as_str(), result.start_seq, result.until_seq, result.limit), ("c", Some(3), Some(4), Some(2)));
    let config = world.info("S", "c").await.config;
    assert_eq!((config.max_ack_pending, config.filter_subject.as_str(), config.metadata["k"].as_str()), (42, "s.a", "v"));
    assert_eq!((config.metadata[META_UNTIL_SEQ].as_str(), config.metadata[META_LIMIT].as_str()), ("4", "2"));
    assert_eq!(config.replay_policy, ReplayPolicy::Original);
    let mut puller = world.puller("S", "c").await;
    let batch = puller.fetch(&windjet_client::pull::Request::batch(1)).await.unwrap();
    assert_eq!(batch.deliveries[0].metadata().unwrap().stream_sequence, 3);

    // Only the filter: it begins where it did. The bounds of before are gone.
    replay.reset_consumer("S", "c", options().filter_subjects(["s.>"])).await.unwrap();
    let config = world.info("S", "c").await.config;
    assert_eq!(config.deliver_policy, DeliverPolicy::ByStartSequence { start_sequence: 3 });
    assert!(!config.metadata.contains_key(META_UNTIL_SEQ) && !config.metadata.contains_key(META_LIMIT));

    let one = replay.reset_consumer("S", "new", options().one_message(2)).await.unwrap();
    assert_eq!((one.start_seq, one.until_seq, one.limit), (Some(2), Some(2), Some(1)));
    let error = replay.reset_consumer("S", "c", options().from_seq(3).until_seq(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidReplayBound);
    world.info("S", "c").await;
}

/// The original deletes and creates: when the second fails, the durable is gone.
async fn a_reset_that_fails_leaves_the_old_consumer(world: World) {
    world.stream_with("S", StreamConfig { retention: RetentionPolicy::WorkQueue, ..Default::default() }).await;
    let client = world.kit().await;
    let part = |name: &str, filter: &str| DurableConfig { filter_subjects: Some(vec![filter.into()]), ..DurableConfig::new(name) };
    client.consumers().create_or_update("S", &part("a", "s.a")).await.unwrap();
    client.consumers().create_or_update("S", &part("b", "s.b")).await.unwrap();
    // A work queue lets no two consumers select the same message.
    let error = client.replay().reset_consumer("S", "a", ReplayOptions::new().filter_subjects(["s.b"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Api);
    assert_eq!(world.info("S", "a").await.config.filter_subject, "s.a");
    let error = client.replay().create_replay_consumer("S", "a", ReplayOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

/// Live traffic goes on meanwhile, messages fail and panic, and the live consumer does not move.
async fn a_replay_is_run_to_its_end_and_leaves_nothing(world: World) {
    world.stream("S").await;
    let client = world.kit().await;
    let none = DurableConfig { ack_policy: Some(AckPolicy::None), ..DurableConfig::new("c") };
    client.consumers().create_or_update("S", &none).await.unwrap();
    world.publish("s.a", 10).await;
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let replayed = async |options: ReplayOptions| {
        seen.lock().unwrap().clear();
        let (note, publisher) = (Arc::clone(&seen), client.publisher());
        let handler = move |delivery: Arc<Delivery>| {
            let (note, publisher) = (Arc::clone(&note), publisher.clone());
            async move {
                publisher.publish_bytes("s.new", "x").await.unwrap();
                let found = delivery.metadata().unwrap();
                match (found.stream_sequence, found.delivered) {
                    (4, 1) => return Err(HandlerError::failed("once")),
                    (5, 1) => panic!("once"),
                    (6, 1) => return Ok(Disposition::Nak(None)),
                    _ => note.lock().unwrap().push(found.stream_sequence),
                }
                Ok(Disposition::Ack)
            }
        };
        let came_to = client.replay().run("S", "c", options, handler).await.unwrap();
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        assert_eq!(came_to.handled, seen.len() as u64);
        (seen, came_to.failed)
    };
    let options = ReplayOptions::new;
    assert_eq!(replayed(options().from_seq(3).until_seq(7)).await, (vec![3, 4, 5, 6, 7], 2));
    assert_eq!(replayed(options().from_seq(3).limit(2)).await, (vec![3, 4], 1));
    assert_eq!(replayed(options().one_message(9)).await, (vec![9], 0));
    // Past the end there is nothing to wait for.
    assert_eq!(replayed(options().from_seq(1_000)).await, (vec![], 0));
    // To the end that the stream has now, which is moving.
    let last = client.streams().info("S").await.unwrap().state.last_sequence;
    let (all, _) = replayed(options().from_beginning()).await;
    assert_eq!(all, (1..=last).collect::<Vec<_>>());
    // One that fails for good is given up by the server.
    let gives_up = DurableConfig { max_deliver: Some(1), ..DurableConfig::new("d") };
    client.consumers().create_or_update("S", &gives_up).await.unwrap();
    let poison = |_: Arc<Delivery>| async { Err::<(), _>(HandlerError::failed("always")) };
    let came_to = client.replay().run("S", "d", options().from_seq(2).until_seq(3), poison).await.unwrap();
    assert_eq!((came_to.handled, came_to.failed), (0, 2));
    let error = client.replay().run("S", "c", options().from_new(), poison).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidReplayBound);
    assert_eq!(client.consumers().names("S").await.unwrap(), ["c", "d"]);
}

/// A copy of a push consumer had its deliver subject: the replay went to the live worker.
async fn a_sidecar_of_a_push_consumer_is_a_pull_consumer(world: World) {
    world.stream("S").await;
    let client = world.kit().await;
    let push = DurableConfig { deliver_subject: Some("live".into()), heartbeat: Some(Duration::from_secs(5)), flow_control: Some(true), ..DurableConfig::new("push") };
    client.consumers().create_or_update("S", &push).await.unwrap();
    world.publish("s.a", 3).await;
    let replay = client.replay();
    let made = replay.create_replay_consumer("S", "push", ReplayOptions::new().from_beginning().durable("side")).await.unwrap();
    assert_eq!(made.durable, "side");
    let config = world.info("S", "side").await.config;
    assert_eq!((config.deliver_subject, config.flow_control), (None, false));
    let consumer = client.consumer().pull("S", "side").await.unwrap();
    assert_eq!(consumer.fetch_no_wait(10).await.unwrap().deliveries.len(), 3);
    // Again, it is replaced; under a name made up, it is another one; the source's own name is refused.
    replay.create_replay_consumer("S", "push", ReplayOptions::new().from_seq(2).durable("side")).await.unwrap();
    let other = replay.create_replay_consumer("S", "push", ReplayOptions::new()).await.unwrap();
    assert!(other.durable.starts_with("push-replay-"));
    let error = replay.create_replay_consumer("S", "push", ReplayOptions::new().durable("push")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidDurableName);
    let error = replay.create_replay_consumer("S", "nobody", ReplayOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConsumerNotFound);
}

async fn ranges_skip_gaps_and_say_whether_there_is_more(world: World) {
    let stream = world.stream("S").await;
    world.publish("s.a", 10).await;
    for gone in [2, 3, 7] {
        stream.delete_message(gone).await.unwrap();
    }
    let replay = world.kit().await.replay();
    let range = async |start, end, max| {
        let (found, more) = replay.get_range("S", start, end, max).await.unwrap();
        (found.iter().map(|message| message.sequence).collect::<Vec<_>>(), more)
    };
    assert_eq!(range(1, 8, RANGE_MAX).await, (vec![1, 4, 5, 6, 8], false));
    assert_eq!(range(1, 8, 4).await, (vec![1, 4, 5, 6], true));
    assert_eq!(range(1, 7, 4).await, (vec![1, 4, 5, 6], false));
    assert_eq!(range(9, 99, RANGE_MAX).await, (vec![9, 10], false));
    assert_eq!(range(11, 99, RANGE_MAX).await, (vec![], false));
    for (start, end) in [(0, 5), (5, 0), (5, 4)] {
        let error = replay.get_range("S", start, end, RANGE_MAX).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidReplayBound);
    }
}

/// On messages 1 and 4 of four, the original's search for a time between them never ended.
async fn times_are_found_across_gaps(world: World) {
    let stream = world.stream("S").await;
    let replay = world.kit().await.replay();
    assert_eq!(replay.find_first_seq_at_or_after("S", OffsetDateTime::UNIX_EPOCH).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(replay.find_last_seq_at_or_before("S", OffsetDateTime::now_utc()).await.unwrap_err().kind(), ErrorKind::NotFound);
    world.publish("s.a", 3).await;
    pass(Duration::from_millis(20)).await;
    let between = OffsetDateTime::now_utc();
    pass(Duration::from_millis(20)).await;
    world.publish("s.a", 1).await;
    for gone in [2, 3] {
        stream.delete_message(gone).await.unwrap();
    }
    let end = OffsetDateTime::now_utc();
    assert_eq!(replay.find_first_seq_at_or_after("S", between).await.unwrap(), 4);
    assert_eq!(replay.find_last_seq_at_or_before("S", between).await.unwrap(), 1);
    assert_eq!(replay.find_last_seq_at_or_before("S", end).await.unwrap(), 4);
    assert_eq!(replay.find_first_seq_at_or_after("S", end).await.unwrap_err().kind(), ErrorKind::NotFound);
    let (found, more) = replay.get_range_by_time("S", between, end, 10).await.unwrap();
    assert_eq!((found.len(), found[0].sequence, more), (1, 4, false));
    let made = replay.reset_consumer("S", "c", ReplayOptions::new().from_beginning().until_time(between)).await.unwrap();
    assert_eq!((made.until_seq, made.until_time), (Some(1), Some(between)));
    let long_ago = OffsetDateTime::UNIX_EPOCH;
    let error = replay.reset_consumer("S", "c", ReplayOptions::new().until_time(long_ago)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidReplayBound);
}

/// However many messages are missing, a search takes a number of calls that a person could count.
async fn a_time_in_a_stream_of_gaps_is_found_in_few_calls(world: World) {
    world.stream_with("S", StreamConfig { max_messages_per_subject: 1, ..Default::default() }).await;
    for _ in 0..40 {
        world.publish("s.same", 500).await;
    }
    world.publish("s.last", 1).await;
    let client = world.kit().await;
    let replay = client.replay();
    let sent = || client.inner().statistics().out_messages.load(std::sync::atomic::Ordering::Relaxed);
    let before = sent();
    let found = until("the sequence", || async { replay.find_last_seq_at_or_before("S", OffsetDateTime::now_utc()).await.ok() }).await;
    assert_eq!(found, 20_001);
    assert!(sent() - before < 50, "{}", sent() - before);
}

}
