//! JetStream by typed calls: what a consumer hands to code in this process, and what becomes of it.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use windjet_server::Server;
use windjet_server::jetstream::PublishError;
use windjet_server::jetstream::{
    AckError, ConsumeError, ConsumeOptions, Consumer, Delivery, FetchError, FetchOptions, GetError,
    JetStreamContext, KeyValueConfig, KeyValueError, NewMessage, Operation, OrderedConfig, StartAt,
    StreamConfig,
};

use crate::jetstream::{PATIENCE, config, consumer, start};

/// An ack wait that no test lives to see.
const EXPLICIT: &str = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":3600000000000}"#;

/// A work queue with so many messages, and its consumer.
async fn queue(js: &JetStreamContext, messages: u64, settings: &str) -> Consumer {
    js.create_stream(config(
        r#"{"name":"Q","subjects":["q.>"],"retention":"workqueue"}"#,
    ))
    .await
    .unwrap();
    js.create_consumer("Q", consumer(settings)).await.unwrap();
    publish(js, messages).await;
    js.consumer("Q", "C").await.unwrap()
}

async fn publish(js: &JetStreamContext, messages: u64) {
    let acks: Vec<_> = (0..messages)
        .map(|n| js.publish("Q", "q.a", format!("{n}")).unwrap())
        .collect();
    for ack in acks {
        ack.await.unwrap();
    }
}

fn seqs(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|d| d.stream_sequence).collect()
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_gives_what_there_is_and_says_which_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(&js, 5, EXPLICIT).await;
    let got = within(c.fetch(3, PATIENCE)).await.unwrap();
    let shown: Vec<_> = got
        .iter()
        .map(|d| (d.stream_sequence, d.consumer_sequence, d.delivered, d.pending))
        .collect();
    assert_eq!(shown, [(1, 1, 1, 4), (2, 2, 1, 3), (3, 3, 1, 2)]);
    assert_eq!(
        (&got[0].subject[..], &got[0].payload[..]),
        (&b"q.a"[..], &b"0"[..])
    );
    // There are fewer than asked for: what there is comes at once.
    let rest = within(c.fetch(10, Duration::from_secs(3600))).await.unwrap();
    assert_eq!(seqs(&rest), [4, 5]);
    let none = within(c.fetch_with(&FetchOptions::new(10).no_wait()))
        .await
        .unwrap();
    assert!(none.is_empty());
    let none = within(c.fetch(10, Duration::from_millis(1))).await.unwrap();
    assert!(none.is_empty());
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// Over the wire such a request stays, as with nats-server, and nothing would ever end it here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_does_not_wait_comes_back_from_a_full_window() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(
        &js,
        5,
        r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":3600000000000,"max_ack_pending":2}"#,
    )
    .await;
    let at_once = FetchOptions::new(3).no_wait();
    let got = within(c.fetch_with(&at_once)).await.unwrap();
    assert_eq!(seqs(&got), [1, 2]);
    assert!(within(c.fetch_with(&at_once)).await.unwrap().is_empty());
    got[0].double_ack().await.unwrap();
    assert_eq!(seqs(&within(c.fetch_with(&at_once)).await.unwrap()), [3]);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_form_of_an_ack_does_what_it_does_over_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(&js, 4, EXPLICIT).await;
    let got = within(c.fetch_with(&FetchOptions::new(4).fill())).await.unwrap();
    got[0].progress().unwrap();
    got[0].double_ack().await.unwrap();
    got[1].term("broken").unwrap();
    got[2].nak(None).unwrap();
    got[3].nak(Some(Duration::from_secs(3600))).unwrap();
    let again = within(c.fetch(4, PATIENCE)).await.unwrap();
    assert_eq!(seqs(&again), [3]);
    assert_eq!((again[0].delivered, again[0].consumer_sequence), (2, 5));
    again[0].double_ack().await.unwrap();
    // Once more, and that of the earlier delivery: settled is settled.
    again[0].double_ack().await.unwrap();
    got[2].double_ack().await.unwrap();
    let info = c.info().await.unwrap();
    assert_eq!((info.num_ack_pending, info.num_pending), (1, 0));
    assert_eq!(js.stream_info("Q").await.unwrap().state.messages, 1);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmed_ack_outlives_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(&js, 3, EXPLICIT).await;
    let got = within(c.fetch_with(&FetchOptions::new(3).fill())).await.unwrap();
    got[1].double_ack().await.unwrap();
    assert!(server.shutdown(PATIENCE).await.complete);
    assert_eq!(got[0].ack(), Err(AckError::Gone));
    assert_eq!(got[0].double_ack().await, Err(AckError::Gone));

    let (server, js) = start(folder.path()).await;
    let state = js.stream_info("Q").await.unwrap().state;
    assert_eq!((state.messages, state.num_deleted), (2, 1));
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_cannot_get_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(
        &js,
        1,
        r#"{"durable_name":"C","ack_policy":"explicit","max_batch":5,"max_waiting":1}"#,
    )
    .await;
    let refused = within(c.fetch(6, PATIENCE)).await.unwrap_err();
    assert!(matches!(refused, FetchError::Refused(_)), "{refused:?}");
    let small = FetchOptions::new(1).max_bytes(3);
    assert_eq!(
        within(c.fetch_with(&small)).await.unwrap_err(),
        FetchError::TooLarge
    );
    within(c.fetch(1, PATIENCE)).await.unwrap();
    {
        // One that waits, and one too many.
        let mut waits = pin!(c.fetch(1, PATIENCE));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let full = within(c.fetch(1, PATIENCE)).await.unwrap_err();
        assert_eq!(full, FetchError::TooManyWaiting);
        assert!(full.is_retryable());
        js.delete_consumer("Q", "C").await.unwrap();
        assert_eq!(within(waits).await.unwrap_err(), FetchError::Deleted);
    }
    let gone = within(c.fetch(1, PATIENCE)).await.unwrap_err();
    assert!(matches!(gone, FetchError::NoConsumer { .. }));
    assert!(js.consumer("Q", "C").await.is_err());
    js.create_consumer("Q", consumer(EXPLICIT)).await.unwrap();
    assert_eq!(within(c.fetch(1, PATIENCE)).await.unwrap().len(), 1);
    {
        let mut waits = pin!(c.fetch(1, PATIENCE));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        js.delete_stream("Q").await.unwrap();
        assert_eq!(within(waits).await.unwrap_err(), FetchError::Deleted);
    }
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuming_goes_on_until_the_consumer_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(&js, 1000, EXPLICIT).await;
    for options in [
        ConsumeOptions::default().max_messages(1),
        ConsumeOptions::default().max_messages(7),
        ConsumeOptions::default().max_messages(100).max_bytes(700),
    ] {
        let mut messages = c.messages(options).unwrap();
        for _ in 0..200 {
            let delivery = within(messages.next()).await.unwrap().unwrap();
            assert_eq!(delivery.delivered - 1, 0);
            delivery.double_ack().await.unwrap();
        }
        // What was asked for in advance goes back at once.
        drop(messages);
        let rest = within(c.fetch_with(&FetchOptions::new(200).fill()))
            .await
            .unwrap();
        assert_eq!(rest.len(), 200);
        for delivery in &rest {
            delivery.ack().unwrap();
        }
        js.purge_stream("Q", Default::default()).await.unwrap();
        publish(&js, 1000).await;
    }
    js.purge_stream("Q", Default::default()).await.unwrap();
    let mut messages = c.messages(ConsumeOptions::default()).unwrap();
    publish(&js, 3).await;
    let got: Vec<_> = messages.by_ref().take(3).map(Result::unwrap).collect().await;
    assert_eq!(got.len(), 3);
    js.delete_consumer("Q", "C").await.unwrap();
    let end = within(messages.next()).await.unwrap().unwrap_err();
    assert_eq!(end, ConsumeError::Deleted);
    assert!(within(messages.next()).await.is_none());
    js.create_consumer("Q", consumer(EXPLICIT)).await.unwrap();
    let mut messages = c.messages(ConsumeOptions::default()).unwrap();
    assert_eq!(within(messages.by_ref().take(3).count()).await, 3);
    assert!(server.shutdown(PATIENCE).await.complete);
    assert_eq!(
        within(messages.next()).await.unwrap().unwrap_err(),
        ConsumeError::Shutdown
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_the_window_ends_consuming() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(&js, 2, EXPLICIT).await;
    js.publish("Q", "q.a", vec![b'x'; 1000]).unwrap().await.unwrap();
    let mut messages = c.messages(ConsumeOptions::default().max_bytes(500)).unwrap();
    for _ in 0..2 {
        within(messages.next()).await.unwrap().unwrap().ack().unwrap();
    }
    assert_eq!(
        within(messages.next()).await.unwrap().unwrap_err(),
        ConsumeError::TooLarge
    );
    let mut messages = c.messages(ConsumeOptions::default().max_bytes(1500)).unwrap();
    assert_eq!(
        within(messages.next()).await.unwrap().unwrap().payload.len(),
        1000
    );
    assert!(server.shutdown(PATIENCE).await.complete);
}

/// A future that is dropped after any number of polls takes nothing away: what it acknowledged stays so, all else comes
/// again.
#[tokio::test]
async fn a_call_may_be_dropped_at_every_await() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let settings = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":3600000000000,
        "metadata":{"windjet.requeue_on_disconnect":"true"}}"#;
    let c = queue(&js, 40, settings).await;
    let (mut said, mut settled) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..30 {
        let mut work = Box::pin(async {
            let own = js.consumer("Q", "C").await.unwrap();
            for delivery in own.fetch(2, PATIENCE).await.unwrap() {
                // Whatever was said before comes no more.
                assert!(said.insert(delivery.stream_sequence));
                delivery.double_ack().await.unwrap();
                settled.insert(delivery.stream_sequence);
            }
        });
        // Dropped after this many polls, each of which something woke it for.
        let mut polls = round % 6;
        within(poll_fn(|cx| {
            if polls == 0 || work.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            polls -= 1;
            if polls == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }))
        .await;
    }
    assert!(!settled.is_empty() && settled.len() < said.len() && said.len() < 40);
    let rest = within(c.fetch_with(&FetchOptions::new(100).no_wait()))
        .await
        .unwrap();
    let rest: BTreeSet<u64> = seqs(&rest).into_iter().collect();
    let unsaid: BTreeSet<u64> = (1..=40).filter(|seq| !said.contains(seq)).collect();
    assert_eq!(rest, unsaid);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test]
async fn a_fetch_that_is_dropped_gives_back_what_it_was_handed() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let c = queue(&js, 3, EXPLICIT).await;
    {
        let options = FetchOptions::new(10).fill();
        let mut fetch = pin!(c.fetch_with(&options));
        let mut context = Context::from_waker(Waker::noop());
        assert!(fetch.as_mut().poll(&mut context).is_pending());
        // It was handed all three, and waits for seven more.
        while c.info().await.unwrap().num_ack_pending < 3 {}
        assert!(fetch.as_mut().poll(&mut context).is_pending());
    }
    let got = within(c.fetch_with(&FetchOptions::new(3).fill())).await.unwrap();
    let shown: Vec<_> = got.iter().map(|d| (d.stream_sequence, d.delivered)).collect();
    assert_eq!(shown, [(1, 2), (2, 2), (3, 2)]);
    assert_eq!(c.info().await.unwrap().num_waiting, 0);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_holder_goes_what_it_holds_if_the_consumer_wants_that() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let settings = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":3600000000000,
        "metadata":{"windjet.requeue_on_disconnect":"true"}}"#;
    let c = queue(&js, 3, settings).await;
    let holder = js.consumer("Q", "C").await.unwrap();
    let got = within(holder.fetch_with(&FetchOptions::new(3).fill()))
        .await
        .unwrap();
    drop(holder);
    // The deliveries are still in somebody's hands.
    assert_eq!(c.info().await.unwrap().num_ack_pending, 3);
    got[1].double_ack().await.unwrap();
    drop(got);
    let again = within(c.fetch_with(&FetchOptions::new(2).fill())).await.unwrap();
    let shown: Vec<_> = again.iter().map(|d| (d.stream_sequence, d.delivered)).collect();
    assert_eq!(shown, [(1, 2), (3, 2)]);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_messages_are_read_by_place_subject_and_filter() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s.*"]}"#))
        .await
        .unwrap();
    for n in 0..3000 {
        let subject = ["s.a", "s.b", "s.c"][n % 3];
        drop(js.publish("S", subject, format!("{n}")).unwrap());
    }
    js.publish("S", "s.z", "end").unwrap().await.unwrap();
    let second = js.get_message("S", 2).await.unwrap().unwrap();
    assert_eq!(
        (second.subject_str(), &second.payload[..]),
        ("s.b".into(), &b"1"[..])
    );
    assert_eq!(js.get_message("S", 3002).await.unwrap(), None);
    assert_eq!(js.last_message("S", "s.b").await.unwrap().unwrap().sequence, 2999);
    assert_eq!(js.last_message("S", "s.*").await.unwrap().unwrap().sequence, 3001);
    assert_eq!(js.last_message("S", "s.y").await.unwrap(), None);
    let next = js.next_message("S", 5, &["s.a", "s.z"]).await.unwrap().unwrap();
    assert_eq!(next.sequence, 7);
    let (mut from, mut replayed) = (0, Vec::new());
    loop {
        let batch = js.read_messages("S", from, &["s.c"], 300).await.unwrap();
        let Some(last) = batch.last() else { break };
        from = last.sequence + 1;
        replayed.extend(batch.iter().map(|m| m.sequence));
    }
    assert_eq!(replayed, (1..=1000).map(|n| n * 3).collect::<Vec<u64>>());
    assert_eq!(js.get_message("T", 1).await, Err(GetError::NoStream("T".into())));
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_reader_sees_everything_once_and_what_comes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s.*"]}"#))
        .await
        .unwrap();
    let publishing = js.clone();
    let mut all = js.ordered("S", OrderedConfig::default()).await.unwrap();
    let publisher = tokio::spawn(async move {
        for n in 0..5000 {
            let publish = publishing.publish("S", ["s.a", "s.b"][n % 2], "x").unwrap();
            if n % 7 == 0 {
                publish.await.unwrap();
            }
        }
    });
    for seq in 1..=5000 {
        assert_eq!(within(all.next()).await.unwrap().unwrap().sequence, seq);
    }
    publisher.await.unwrap();
    assert_eq!(all.pending(), 0);
    js.delete_message("S", 4997).await.unwrap();
    for (start, expected) in [
        (StartAt::Sequence(4995), vec![4995, 4999]),
        (StartAt::Last, vec![4999]),
        (StartAt::LastPerSubject, vec![4999]),
        (StartAt::New, vec![]),
    ] {
        let config = OrderedConfig::default().filter("s.a").start(start).stop_at_end();
        let mut some = js.ordered("S", config).await.unwrap();
        let mut seqs = Vec::new();
        while let Some(message) = within(some.next()).await {
            seqs.push(message.unwrap().sequence);
        }
        assert_eq!(seqs, expected, "{start:?}");
    }
    let stamp = js.get_message("S", 3000).await.unwrap().unwrap().timestamp;
    let config = OrderedConfig::default().start(StartAt::Time(stamp));
    let mut later = js.ordered("S", config).await.unwrap();
    let first = within(later.next()).await.unwrap().unwrap();
    assert!(first.sequence <= 3000 && first.timestamp == stamp);
    // A consumer or a stream that is gone is an end, not silence.
    js.delete_stream("S").await.unwrap();
    assert_eq!(
        within(all.next()).await.unwrap(),
        Err(GetError::NoStream("S".into()))
    );
    assert!(within(all.next()).await.is_none());
    js.create_stream(config_of("S")).await.unwrap();
    let mut none = js.ordered("S", OrderedConfig::default()).await.unwrap();
    assert!(server.shutdown(PATIENCE).await.complete);
    assert_eq!(within(none.next()).await.unwrap(), Err(GetError::Shutdown));
}

fn config_of(name: &str) -> StreamConfig {
    config(&format!(r#"{{"name":"{name}","subjects":["{name}.*"]}}"#))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_is_repeated_under_its_id_and_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config_of("S")).await.unwrap();
    let message = NewMessage::new("S.a", "x").message_id("7").unwrap();
    let first = js.publish_within("S", &message, PATIENCE).await.unwrap();
    assert_eq!((first.seq, first.duplicate), (1, false));
    let again = js.publish_within("S", &message, PATIENCE).await.unwrap();
    assert_eq!((again.seq, again.duplicate), (1, true));
    let other = NewMessage::new("S.a", "y").expect_last_subject_sequence(0);
    let refused = js.publish_within("S", &other, PATIENCE).await.unwrap_err();
    assert!(!refused.is_retryable() && !refused.outcome_unknown());
    assert!(NewMessage::new("S.a", "x").message_id("a\r\nb").is_err());
    assert!(server.shutdown(PATIENCE).await.complete);
    // The stream is gone for this process: not stored, and no sense in trying again.
    let gone = js.publish_within("S", &other, PATIENCE).await.unwrap_err();
    assert!(!gone.is_retryable(), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_keeps_its_keys_their_history_and_tells_of_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let kv = js
        .create_key_value(KeyValueConfig::new("B").history(3))
        .await
        .unwrap();
    let mut watch = kv.watch("a.*").await.unwrap();
    assert_eq!(watch.pending(), 0);
    assert_eq!(kv.create("a.x", "1").await.unwrap(), 1);
    assert_eq!(kv.create("a.x", "2").await, Err(KeyValueError::WrongRevision));
    assert_eq!(kv.update("a.x", "2", 9).await, Err(KeyValueError::WrongRevision));
    assert_eq!(kv.update("a.x", "2", 1).await.unwrap(), 2);
    kv.put("b", "3").await.unwrap();
    assert_eq!(kv.delete_at("a.x", 1).await, Err(KeyValueError::WrongRevision));
    kv.delete_at("a.x", 2).await.unwrap();
    assert_eq!(kv.get("a.x").await.unwrap(), None);
    assert_eq!(kv.keys().await.unwrap(), ["b"]);
    // What was deleted can be created again.
    let again = kv.create("a.x", "4").await.unwrap();
    assert_eq!(kv.get("a.x").await.unwrap().as_deref(), Some(&b"4"[..]));
    assert_eq!(kv.entry_at("a.x", again).await.unwrap().unwrap().value, "4");
    assert_eq!(kv.entry_at("b", again).await.unwrap(), None);
    let history: Vec<_> = kv
        .history("a.x")
        .await
        .unwrap()
        .iter()
        .map(|e| e.operation)
        .collect();
    assert_eq!(history, [Operation::Put, Operation::Delete, Operation::Put]);
    kv.purge("a.x").await.unwrap();
    assert_eq!(kv.history("a.x").await.unwrap().len(), 1);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let entry = within(watch.next()).await.unwrap().unwrap();
        seen.push((entry.key, entry.operation));
        if seen.last().unwrap().1 == Operation::Purge {
            break;
        }
    }
    // The watcher began before all of it; what a purge removed before it was seen is not shown.
    assert_eq!(seen.last().unwrap(), &("a.x".to_owned(), Operation::Purge));
    assert_eq!(
        kv.put("a b", "x").await,
        Err(KeyValueError::InvalidKey("a b".into()))
    );
    assert!(matches!(
        js.create_key_value(KeyValueConfig::new("a.b")).await,
        Err(KeyValueError::InvalidBucket(_))
    ));
    let status = js.key_value("B").await.unwrap().status().await.unwrap();
    assert_eq!((status.values, status.history), (2, 3));
    js.delete_key_value("B").await.unwrap();
    assert!(js.key_value("B").await.is_err());
    assert!(within(watch.next()).await.unwrap().is_err());
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_atomic_batch_is_stored_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    js.create_stream(config(r#"{"name":"S","subjects":["s.*"],"allow_atomic":true}"#))
        .await
        .unwrap();
    let batch = (0..10).map(|n| NewMessage::new("s.a", format!("{n}")));
    assert_eq!(js.publish_batch("S", batch).await.unwrap().seq, 10);
    assert_eq!(
        js.publish_batch("S", [NewMessage::new("s.b", "x")])
            .await
            .unwrap()
            .seq,
        11
    );
    let unfit = [
        NewMessage::new("s.a", "1"),
        NewMessage::new("s.b", "2").expect_last_subject_sequence(7),
    ];
    let refused = js.publish_batch("S", unfit).await.unwrap_err();
    assert!(matches!(refused, PublishError::Refused(_)) && !refused.outcome_unknown());
    let foreign = [NewMessage::new("s.a", "1"), NewMessage::new("t", "2")];
    assert!(matches!(
        js.publish_batch("S", foreign).await,
        Err(PublishError::WrongSubject { .. })
    ));
    assert!(js.publish_batch("S", []).await.is_err());
    let state = js.stream_info("S").await.unwrap().state;
    assert_eq!((state.messages, state.last_seq), (11, 11));
    assert_eq!(js.get_message("S", 3).await.unwrap().unwrap().payload, "2");
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_told_of_and_consumers_explain_themselves_over_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let client = server.client();
    let mut events = client.subscribe("$WJ.EVENT.LIMIT.>").await.unwrap();
    js.create_stream(config(r#"{"name":"S","subjects":["s"],"max_msgs":20}"#))
        .await
        .unwrap();
    for _ in 0..25 {
        js.publish("S", "s", "x").unwrap().await.unwrap();
    }
    for (percent, value) in [(80, 16), (95, 19), (100, 20)] {
        let event = within(events.next()).await.unwrap();
        assert_eq!(&event.subject[..], b"$WJ.EVENT.LIMIT.S");
        let text =
            format!(r#"{{"stream":"S","limit":"max_msgs","percent":{percent},"value":{value},"max":20}}"#);
        assert_eq!(event.payload, text);
    }
    js.purge_stream("S", Default::default()).await.unwrap();
    for _ in 0..16 {
        js.publish("S", "s", "x").unwrap().await.unwrap();
    }
    let event = within(events.next()).await.unwrap();
    assert!(String::from_utf8_lossy(&event.payload).contains(r#""percent":80"#));

    js.create_consumer(
        "S",
        consumer(r#"{"durable_name":"C","ack_policy":"explicit","max_ack_pending":2}"#),
    )
    .await
    .unwrap();
    let explain = async |name: &str| {
        let answer = client
            .request(format!("$WJ.API.CONSUMER.EXPLAIN.{name}"), "")
            .await
            .unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()
    };
    assert_eq!(
        explain("S.C").await,
        serde_json::json!({"stream":"S","consumer":"C","state":"no_request","text":"no pull request waits"})
    );
    let c = js.consumer("S", "C").await.unwrap();
    let got = within(c.fetch_with(&FetchOptions::new(2).fill())).await.unwrap();
    let mut waits = pin!(c.fetch(1, PATIENCE));
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    // A call may overtake the request, which nobody has answered.
    let why = within(async {
        loop {
            let why = explain("S.C").await;
            if why["state"] != "no_request" {
                break why;
            }
        }
    })
    .await;
    assert_eq!(
        (&why["state"], &why["max"]),
        (&"max_ack_pending".into(), &2.into())
    );
    assert_eq!(
        why["sequences"],
        serde_json::json!([got[0].stream_sequence, got[1].stream_sequence])
    );
    assert_eq!(explain("S.D").await["error"]["err_code"], 10014);
    assert_eq!(explain("T.C").await["error"]["err_code"], 10059);
    assert!(server.shutdown(PATIENCE).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_weaker_durability_is_shown_and_does_not_stick() {
    let folder = tempfile::tempdir().unwrap();
    let (server, js) = start(folder.path()).await;
    let info = js.create_stream(config_of("S")).await.unwrap();
    assert!(
        !info
            .config
            .metadata
            .keys()
            .any(|key| key.starts_with("_windjet."))
    );
    assert!(server.shutdown(PATIENCE).await.complete);
    let mut options = windjet_server::Options::default();
    let settings = options.jetstream.get_or_insert_default();
    settings.store_dir = Some(folder.path().to_owned());
    settings.sync_interval = Some(Duration::from_millis(200));
    let server = Server::builder().options(options);
    let server = server.start().await.unwrap();
    let js = server.jetstream().unwrap();
    let info = js.create_stream(config_of("T")).await.unwrap();
    assert_eq!(info.config.metadata["_windjet.durability"], "interval:200ms");
    // What was shown may be sent back.
    let same = js.create_stream(info.config.clone()).await.unwrap();
    assert_eq!(same.config.metadata, info.config.metadata);
    let updated = js.update_stream(info.config).await.unwrap();
    assert_eq!(updated.config.metadata["_windjet.durability"], "interval:200ms");
    assert!(server.shutdown(PATIENCE).await.complete);
}
