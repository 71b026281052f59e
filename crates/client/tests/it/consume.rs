//! Consumers and handlers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull::Config as PullConfig;
use windjet_client::config::Backpressure;
use windjet_client::consumer::{FetchOptions, OnUndecodable, RetryDelay};
use windjet_client::handler::{BoxHandler, typed};
use windjet_client::message::MessageType;
use windjet_client::ops::adaptive::{AdaptivePressure, Config as PressureConfig, Input};
use windjet_client::ops::circuit::{CircuitBreaker, Config as CircuitConfig};
use windjet_client::pull::End;
use windjet_client::{
    Compression, Delivery, Disposition, ErrorKind, HandlerError, Message, ProcessOptions, async_nats,
};

use crate::harness::{Seen, noting, seen, settled, soon, text, until};
use crate::jetstream_tests;

fn quick() -> ProcessOptions {
    ProcessOptions::default().retry_delay(RetryDelay::None)
}

jetstream_tests! {

async fn success_acknowledges_and_failure_comes_again(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 3).await;
    let client = world.kit().await;
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let seen_by = Seen::default();
    let note = Arc::clone(&seen_by);
    let worker = consumer.start(move |delivery: Arc<Delivery>| {
        let note = Arc::clone(&note);
        async move {
            note.lock().unwrap().push(text(&delivery));
            match (text(&delivery).as_str(), delivery.metadata().unwrap().delivered) {
                ("1", 1) => Err(HandlerError::failed("first time")),
                ("2", 1) => panic!("on purpose"),
                _ => Ok(()),
            }
        }
    }, quick());
    assert_eq!(seen(&seen_by, 5).await, ["0", "1", "2", "1", "2"]);
    settled(&world, "c").await;
    let vitals = consumer.vitals();
    assert_eq!((vitals.succeeded(), vitals.failed(), vitals.redelivered(), vitals.handled()), (3, 2, 2, 5));
    worker.stop().await.unwrap();
}

async fn a_failure_waits_before_it_comes_again(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 1).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let times = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&times);
    let retry = RetryDelay::Exponential { first: Duration::from_millis(150), max: Duration::from_secs(1) };
    let _worker = consumer.start(move |_: Arc<Delivery>| {
        note.lock().unwrap().push(Instant::now());
        async { Err::<(), _>(HandlerError::failed("always")) }
    }, ProcessOptions::default().retry_delay(retry));
    until("three tries", || async { (times.lock().unwrap().len() >= 3).then_some(()) }).await;
    let times = times.lock().unwrap().clone();
    assert!(times[1] - times[0] >= Duration::from_millis(150), "{times:?}");
    assert!(times[2] - times[1] >= Duration::from_millis(300), "{times:?}");
}

async fn what_the_handler_settled_stands(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 2).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let _worker = consumer.start(move |delivery: Arc<Delivery>| {
        count.fetch_add(1, Ordering::AcqRel);
        async move {
            if text(&delivery) == "0" {
                delivery.ack().await.unwrap();
                return Ok(());
            }
            delivery.term().await.unwrap();
            Err(HandlerError::failed("termed, and failed"))
        }
    }, quick());
    settled(&world, "c").await;
    until("the outcomes", || async { (consumer.vitals().failed() == 1).then_some(()) }).await;
    assert_eq!((calls.load(Ordering::Acquire), consumer.vitals().succeeded()), (2, 1));
    assert_eq!(world.info("S", "c").await.num_redelivered, 0);
}

async fn the_answer_of_a_handler_is_obeyed(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 4).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let kept: Arc<Mutex<Vec<Arc<Delivery>>>> = Arc::default();
    let seen_by = Seen::default();
    let (keep, note) = (Arc::clone(&kept), Arc::clone(&seen_by));
    let _worker = consumer.start(move |delivery: Arc<Delivery>| {
        let (keep, note) = (Arc::clone(&keep), Arc::clone(&note));
        async move {
            let again = delivery.metadata().unwrap().is_redelivery();
            note.lock().unwrap().push(text(&delivery));
            Ok::<_, HandlerError>(match text(&delivery).as_str() {
                "0" if !again => Disposition::Nak(None),
                "1" => Disposition::Term(Some("no use".into())),
                "2" => {
                    keep.lock().unwrap().push(delivery);
                    Disposition::InHand
                }
                "3" => Err(HandlerError::DlqRouted(None))?,
                _ => Disposition::Ack,
            })
        }
    }, quick());
    let mut all = seen(&seen_by, 5).await;
    all.sort();
    assert_eq!(all, ["0", "0", "1", "2", "3"]);
    until("two to be open", || async { (world.info("S", "c").await.num_ack_pending == 2).then_some(()) }).await;
    assert_eq!(consumer.vitals().routed(), 1);
    let kept: Vec<_> = std::mem::take(&mut *kept.lock().unwrap());
    kept[0].ack_confirmed(Duration::from_secs(5)).await.unwrap();
    assert_eq!(world.info("S", "c").await.num_ack_pending, 1);
}

async fn a_missing_consumer_fails_at_once_and_names_are_checked(world: World) {
    world.stream("S").await;
    let consumers = world.kit().await.consumer();
    let kind = async |stream: &str, durable: &str| consumers.pull(stream, durable).await.unwrap_err().kind();
    assert_eq!(kind("S", "nobody").await, ErrorKind::ConsumerNotFound);
    assert_eq!(kind("NONE", "c").await, ErrorKind::StreamNotFound);
    assert_eq!(kind("S.x", "c").await, ErrorKind::InvalidStreamName);
    assert_eq!(kind("S", "").await, ErrorKind::InvalidDurableName);
}

async fn fetches_by_hand_and_a_close_that_hands_back(world: World) {
    world.stream("S").await;
    world.durable_with("S", "c", PullConfig { filter_subjects: vec!["s.a".into(), "s.b".into()], ..Default::default() }).await;
    world.publish("s.a", 1).await;
    world.publish("s.other", 1).await;
    world.publish("s.b", 1).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let options = FetchOptions::default().max_wait(Duration::from_millis(200));
    let batch = consumer.fetch(10, options).await.unwrap();
    let subjects: Vec<_> = batch.deliveries.iter().map(|d| d.subject.to_string()).collect();
    assert_eq!((subjects, batch.end), (vec!["s.a".to_owned(), "s.b".to_owned()], End::TimedOut));
    let begun = Instant::now();
    assert!(consumer.fetch_no_wait(10).await.unwrap().deliveries.is_empty());
    // The original waited five seconds.
    assert!(begun.elapsed() < Duration::from_secs(3));
    consumer.close().await;
    consumer.close().await;
    assert_eq!(consumer.fetch(1, options).await.unwrap_err().kind(), ErrorKind::InvalidSubscription);
}

async fn handlers_run_at_the_same_time_and_neighbours_do_not_suffer(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 4).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let barrier = Arc::new(tokio::sync::Barrier::new(4));
    let _worker = consumer.start(move |delivery: Arc<Delivery>| {
        let barrier = Arc::clone(&barrier);
        async move {
            if !delivery.metadata().unwrap().is_redelivery() {
                // Passes only when four are here together.
                barrier.wait().await;
                if text(&delivery) == "1" {
                    return Err(HandlerError::failed("one bad message"));
                }
            }
            Ok(())
        }
    }, quick().concurrency(4));
    soon("four at a time", settled(&world, "c")).await;
    assert_eq!(consumer.vitals().redelivered(), 1);
}

async fn processing_goes_on_after_a_restart_of_the_server(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 1).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let seen_by = Seen::default();
    let worker = consumer.start(noting(&seen_by), quick());
    seen(&seen_by, 1).await;
    world.restart();
    until("the connection", || async { world.js.publish("s.a", "again".into()).await.ok()?.await.ok() }).await;
    until("the message", || async { seen_by.lock().unwrap().contains(&"again".to_owned()).then_some(()) }).await;
    assert!(!worker.is_finished());
    worker.stop().await.unwrap();
}

async fn a_deleted_consumer_ends_processing_with_an_error(world: World) {
    let stream = world.stream("S").await;
    world.durable("S", "c").await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let worker = consumer.start(noting(&Seen::default()), quick());
    until("the request", || async { (world.info("S", "c").await.num_waiting > 0).then_some(()) }).await;
    stream.delete_consumer("c").await.unwrap();
    let error = soon("the end", worker.finished()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Pull | ErrorKind::ConsumerNotFound), "{error}");
    assert!(!error.is_retryable());
}

/// With the original's defaults, heartbeat and wait both five seconds, processing failed at once.
async fn the_defaults_work_when_idle_and_when_busy(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let seen_by = Seen::default();
    let worker = consumer.start(noting(&seen_by), ProcessOptions::default());
    until("one whole request to pass", || async {
        let info = world.info("S", "c").await;
        // A message after the first heartbeats of an idle request.
        (info.num_waiting > 0).then_some(())
    }).await;
    crate::harness::pass(Duration::from_millis(5500)).await;
    assert!(!worker.is_finished());
    world.publish("s.a", 50).await;
    seen(&seen_by, 50).await;
    worker.stop().await.unwrap();
}

async fn a_stop_finishes_what_is_in_hand_and_hands_the_rest_back(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 10).await;
    let client = world.kit().await;
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let (gate, entered) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicBool::new(false)));
    let (wait, tell) = (Arc::clone(&gate), Arc::clone(&entered));
    let worker = consumer.start(move |_: Arc<Delivery>| {
        let (wait, tell) = (Arc::clone(&wait), Arc::clone(&tell));
        async move {
            tell.store(true, Ordering::Release);
            wait.notified().await;
            Ok::<_, HandlerError>(())
        }
    }, quick());
    until("the first message", || async { entered.load(Ordering::Acquire).then_some(()) }).await;
    until("the rest to arrive", || async { (world.info("S", "c").await.num_ack_pending == 10).then_some(()) }).await;
    // Its first step is the stop; only then may the handler go on, or the next message would begin.
    let mut closing = Box::pin(client.close());
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(closing.as_mut().poll(cx))).await;
    assert!(first.is_pending());
    assert!(!worker.is_finished());
    gate.notify_one();
    let report = soon("the end", closing).await;
    assert!(report.is_clean(), "{report:?}");
    // The nine others come at once to whoever asks, not after the ack wait of a minute.
    let mut puller = world.puller("S", "c").await;
    let batch = soon("the rest", puller.fetch(&windjet_client::pull::Request::batch(9))).await.unwrap();
    assert_eq!(batch.deliveries.len(), 9);
    assert_eq!(world.info("S", "c").await.ack_floor.stream_sequence, 1);
}

async fn dropping_the_future_hands_running_messages_back(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 4).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&running);
    let forever = move |_: Arc<Delivery>| {
        count.fetch_add(1, Ordering::AcqRel);
        std::future::pending::<Result<(), HandlerError>>()
    };
    tokio::select! {
        _ = consumer.process(forever, quick().concurrency(4)) => panic!("it never ends"),
        () = until("four to run", || async { (running.load(Ordering::Acquire) == 4).then_some(()) }) => {}
    }
    let mut puller = world.puller("S", "c").await;
    let batch = soon("all four", puller.fetch(&windjet_client::pull::Request::batch(4))).await.unwrap();
    assert_eq!(batch.deliveries.len(), 4);
}

async fn compressed_payloads_are_expanded_before_the_handler(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut config = world.config();
    config.publisher.compression = Compression::Gzip;
    let client = world.kit_with(config.clone()).await;
    client.publisher().publish_json("s.a", &"x".repeat(100_000)).await.unwrap();
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let lengths = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&lengths);
    let worker = consumer.start(typed(None, move |subject: String, value: String| {
        note.lock().unwrap().push((subject, value.len()));
        async { Ok::<_, HandlerError>(()) }
    }), quick());
    settled(&world, "c").await;
    assert_eq!(*lengths.lock().unwrap(), [("s.a".to_owned(), 100_000)]);
    worker.stop().await.unwrap();

    config.consumer.decompression = false;
    world.durable("S", "plain").await;
    let plain = world.kit_with(config).await.consumer().pull("S", "plain").await.unwrap();
    let batch = plain.fetch(1, FetchOptions::default()).await.unwrap();
    assert!(batch.deliveries[0].payload.len() < 50_000);
    assert!(batch.deliveries[0].headers.as_ref().unwrap().get("Content-Encoding").is_some());
}

async fn what_cannot_be_expanded_never_reaches_the_handler(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    let broken = Message::raw("no gzip").with_header("Content-Encoding", "gzip");
    client.publisher().publish("s.a", broken).await.unwrap();
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let seen_by = Seen::default();
    let worker = consumer.start(noting(&seen_by), quick());
    until("it to come again", || async { (consumer.vitals().failed() >= 2).then_some(()) }).await;
    worker.stop().await.unwrap();
    assert_eq!((seen_by.lock().unwrap().len(), consumer.vitals().handled()), (0, 0));

    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let _worker = consumer.start(noting(&seen_by), quick().on_undecodable(OnUndecodable::Term));
    settled(&world, "c").await;
    assert!(seen_by.lock().unwrap().is_empty());
}

async fn a_typed_handler_that_cannot_decode_fails_like_any_other(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    client.publisher().publish_bytes("s.a", "not json").await.unwrap();
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let handler = typed(Some(MessageType::Json), |_: String, _: HashMap<String, u64>| async { Ok::<_, HandlerError>(()) });
    let _worker = consumer.start(BoxHandler::new(handler), quick());
    until("two tries", || async { (consumer.vitals().failed() >= 2).then_some(()) }).await;
    assert_eq!(consumer.vitals().succeeded(), 0);
}

async fn a_long_handler_keeps_its_message_when_it_asks_for_that(world: World) {
    world.stream("S").await;
    world.durable_with("S", "c", PullConfig { ack_wait: Duration::from_millis(500), ..Default::default() }).await;
    world.publish("s.a", 1).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let _worker = consumer.start(move |_: Arc<Delivery>| {
        count.fetch_add(1, Ordering::AcqRel);
        async { crate::harness::pass(Duration::from_millis(1500)).await; Ok::<_, HandlerError>(()) }
    }, quick().concurrency(4).extend_ack_wait(100).confirm_acks(Duration::from_secs(5)));
    settled(&world, "c").await;
    assert_eq!(calls.load(Ordering::Acquire), 1);
}

async fn two_consumers_on_the_shared_pool_call_their_own_handlers(world: World) {
    world.stream("S").await;
    world.durable("S", "a").await;
    world.durable("S", "b").await;
    world.publish("s.x", 50).await;
    let mut config = world.config();
    config.consumer.worker_pool_enabled = true;
    config.backpressure.mode = Backpressure::Block;
    let client = world.kit_with(config).await;
    let (first, second) = (Seen::default(), Seen::default());
    let _one = client.consumer().pull("S", "a").await.unwrap().start(noting(&first), quick());
    let _two = client.consumer().pull("S", "b").await.unwrap().start(noting(&second), quick());
    settled(&world, "a").await;
    settled(&world, "b").await;
    assert_eq!((first.lock().unwrap().len(), second.lock().unwrap().len()), (50, 50));
    assert!(client.close().await.is_clean());
}

async fn a_full_pool_hands_back_or_gives_up_as_configured(world: World) {
    world.stream("S").await;
    for (name, mode) in [("nak", Backpressure::Nak), ("term", Backpressure::Term), ("drop", Backpressure::Drop)] {
        world.durable("S", name).await;
        let mut config = world.config();
        config.consumer.worker_pool_enabled = true;
        config.consumer.worker_pool_size = 1;
        // Without room to wait, every message is run or settled; the original lost the decision here.
        config.consumer.worker_buffer_size = 0;
        config.backpressure.mode = mode;
        let client = world.kit_with(config).await;
        let consumer = client.consumer().pull("S", name).await.unwrap();
        let (gate, entered) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (wait, count) = (Arc::clone(&gate), Arc::clone(&entered));
        let _worker = consumer.start(move |_: Arc<Delivery>| {
            let (wait, count) = (Arc::clone(&wait), Arc::clone(&count));
            async move {
                count.fetch_add(1, Ordering::AcqRel);
                let _pass = wait.acquire().await;
                Ok::<_, HandlerError>(())
            }
        }, quick());
        if name == "nak" {
            world.publish("s.a", 3).await;
        }
        until("one to run", || async { (entered.load(Ordering::Acquire) >= 1).then_some(()) }).await;
        until("the others", || async { (consumer.vitals().backpressured() >= 2).then_some(()) }).await;
        gate.add_permits(100);
        settled(&world, name).await;
        let handled = if mode == Backpressure::Nak { 3 } else { 1 };
        until("the handlers", || async { (entered.load(Ordering::Acquire) == handled).then_some(()) }).await;
        assert!(client.close().await.is_clean());
    }
}

async fn while_the_circuit_is_open_nothing_is_fetched(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 3).await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let pressure = Arc::new(AdaptivePressure::new(PressureConfig { enabled: true, ..Default::default() }));
    let circuit = Arc::new(CircuitBreaker::new(CircuitConfig { enabled: true, pause: Duration::from_millis(50), ..Default::default() }).unwrap());
    // Slower and slower: the usual time is learnt from the first messages.
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let handler = move |_: Arc<Delivery>| {
        let call = count.fetch_add(1, Ordering::AcqRel);
        async move {
            if call > 0 {
                crate::harness::pass(Duration::from_millis(200)).await;
            }
            Ok::<_, HandlerError>(())
        }
    };
    let worker = consumer.start(handler, quick().pressure(Arc::clone(&pressure)).circuit(Arc::clone(&circuit)));
    until("the circuit", || async { circuit.is_open().then_some(()) }).await;
    assert_eq!(circuit.opens(), 1);
    worker.stop().await.unwrap();
    let _ = Input::default();
}

}
