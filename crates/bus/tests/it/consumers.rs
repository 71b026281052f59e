//! Stored messages: what is published reaches its handler, and what becomes of answers.

use std::sync::Arc;
use std::time::Duration;

use windjet_bus::client::{ConsumeOptions, ConsumerKind, Delivery, Handler, Outcome, Publication, To};
use windjet_bus::streams::{STREAM_CANCEL, STREAM_DEAD, STREAM_LOGS, STREAM_TASK, STREAM_WORKER};
use windjet_bus::{Bus, ErrorKind};
use windjet_protocol::jetstream::{AckPolicy, ConsumerConfig};

use crate::support::{Kind, LIMIT, Seen, Setup, bytes, token, until};

fn options() -> ConsumeOptions {
    ConsumeOptions {
        backoff: vec![Duration::from_millis(30)],
        ..ConsumeOptions::default()
    }
}

on_both! {
    /// C-1: for status, logs, heartbeat and registration the handler gets the very bytes.
    async fn c1_what_is_published_reaches_its_handler_byte_for_byte(setup: Setup) {
        let client = setup.client().await;
        let every: Vec<u8> = (0..=255).collect();
        let seen = Seen::new();
        let handler = seen.answering(Outcome::Ack);
        for kind in [ConsumerKind::TaskStatus, ConsumerKind::TaskLogs, ConsumerKind::Worker] {
            client.consume(kind, options(), handler.clone()).await.unwrap();
        }
        client.publish_task_status(&token("j1"), every.clone().into()).await.unwrap();
        client.publish_task_log(&token("t1"), every.clone().into()).await.unwrap();
        client.publish_worker_heartbeat(every.clone().into()).await.unwrap();
        client.publish_worker_register(every.clone().into()).await.unwrap();
        client.publish_worker_deregister(every.clone().into()).await.unwrap();
        seen.wait_for(5).await;
        let mut subjects: Vec<String> = seen.all().iter().map(|one| one.subject.clone()).collect();
        subjects.sort();
        let wanted = ["task.logs.t1", "task.status.j1", "worker.deregister", "worker.heartbeat", "worker.register"];
        assert_eq!(subjects, wanted);
        assert!(seen.all().iter().all(|one| one.payload == every && one.deliveries == 1));
    }

    /// C-2: a cancel is stored; a filtered consumer made later reads it.
    async fn c2_a_cancel_is_stored_for_a_consumer_that_comes_later(setup: Setup) {
        let client = setup.client().await;
        client.publish_task_cancel(&token("t1"), bytes("stop")).await.unwrap();
        client.publish_task_cancel(&token("t2"), bytes("other")).await.unwrap();
        let config = ConsumerConfig {
            durable_name: Some("w".to_owned()),
            ack_policy: AckPolicy::Explicit,
            filter_subject: Some("task.cancel.t1".to_owned()),
            ..ConsumerConfig::default()
        };
        setup.js().create_consumer(STREAM_CANCEL, config).await.unwrap();
        let consumer = setup.js().consumer(STREAM_CANCEL, "w").await.unwrap();
        let got = consumer.fetch(5, Duration::from_millis(200)).await.unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!(&got[0].payload[..], b"stop");
    }

    /// C-3: a status that is not answered comes again after the ack wait, up to the last delivery.
    async fn c3_an_unanswered_status_comes_again_until_its_last_delivery(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        let remember = seen.clone();
        let handler = Arc::new(move |delivery: Arc<Delivery>| {
            remember.add(delivery);
            std::future::pending::<Outcome>()
        });
        let options = ConsumeOptions {
            lanes: 4,
            ack_wait: Some(Duration::from_millis(300)),
            max_deliver: Some(3),
            hold: Duration::ZERO,
            ..options()
        };
        // A handler that hangs blocks its lane, so each delivery needs a client with free lanes.
        let mut consuming = Vec::new();
        for _ in 0..3 {
            consuming.push(client.consume(ConsumerKind::TaskStatus, options.clone(), handler.clone()).await.unwrap());
        }
        client.publish_task_status(&token("j1"), bytes("x")).await.unwrap();
        seen.wait_for(1).await;
        let info = || async {
            setup.js().consumer_info(STREAM_TASK, "sqi-task-status-srv").await.unwrap()
        };
        until("three deliveries", || async { info().await.delivered.consumer_seq >= 3 }).await;
        // Two more ack waits pass without a fourth.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(info().await.delivered.consumer_seq, 3);
        assert!(seen.all().iter().any(|one| one.deliveries > 1) || consuming.len() == 3);
        assert_eq!(setup.messages(STREAM_TASK).await, 1);
        assert_eq!(client.drain(Duration::from_millis(50)).await.unwrap_err().kind(),
            &ErrorKind::Timeout { limit: Duration::from_millis(50) });
    }

    /// C-4: an acknowledged message leaves a work queue; an acknowledged log stays.
    async fn c4_an_acknowledged_status_is_gone_and_an_acknowledged_log_is_there(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        let handler = seen.answering(Outcome::Ack);
        client.consume(ConsumerKind::TaskStatus, options(), handler.clone()).await.unwrap();
        client.consume(ConsumerKind::TaskLogs, options(), handler).await.unwrap();
        client.publish_task_status(&token("j1"), bytes("x")).await.unwrap();
        client.publish_task_log(&token("t1"), bytes("x")).await.unwrap();
        seen.wait_for(2).await;
        until("the status goes", || async { setup.messages(STREAM_TASK).await == 0 }).await;
        client.drain(LIMIT).await.unwrap();
        assert_eq!(setup.messages(STREAM_LOGS).await, 1);
    }

    /// C-5: what was published while nobody consumed is delivered after a restart of broker and client.
    async fn c5_what_nobody_consumed_is_delivered_after_a_restart(setup: Setup) {
        let mut setup = setup;
        let client = setup.client().await;
        for number in 0..20 {
            client.publish_task_status(&token("j1"), bytes(&number.to_string())).await.unwrap();
        }
        client.drain(LIMIT).await.unwrap();
        setup.restart().await;
        let client = setup.client().await;
        let seen = Seen::new();
        client.consume_task_status(seen.answering(Outcome::Ack)).await.unwrap();
        seen.wait_for(20).await;
        let got: Vec<String> = seen.all().iter().map(|one| String::from_utf8_lossy(&one.payload).into_owned()).collect();
        let wanted: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        assert_eq!(got, wanted);
    }

    /// C-6: publishing what no stream stores is an error.
    async fn c6_publishing_without_a_stream_fails(setup: Setup) {
        let client = setup.client().await;
        setup.js().delete_stream(STREAM_TASK).await.unwrap();
        let error = client.publish_task_status(&token("j1"), bytes("x")).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::NoStream);
        assert!(error.to_string().contains("task.status.j1"), "{error}");
    }

    /// W-03: naks come back with pauses; after the last delivery the message is a dead letter with its reason, and those
    /// behind it were handled meanwhile.
    async fn w03_a_message_that_nothing_can_handle_becomes_a_dead_letter(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        let remember = seen.clone();
        let handler = Arc::new(move |delivery: Arc<Delivery>| {
            let poison = &delivery.payload[..] == b"poison";
            remember.add(delivery);
            std::future::ready(if poison { Outcome::nak("the store is down") } else { Outcome::Ack })
        });
        client.publish_worker_register(bytes("poison")).await.unwrap();
        client.publish_worker_register(bytes("fine")).await.unwrap();
        client.consume(ConsumerKind::Worker, options(), handler).await.unwrap();
        until("the dead letter", || async { setup.messages(STREAM_DEAD).await == 1 }).await;
        until("an empty queue", || async { setup.messages(STREAM_WORKER).await == 0 }).await;
        let all = seen.all();
        let order: Vec<(&[u8], u64)> = all.iter().map(|one| (&one.payload[..], one.deliveries)).collect();
        assert_eq!(order, [(&b"poison"[..], 1), (b"fine", 1), (b"poison", 2), (b"poison", 3)]);
        let letter = setup.js().get_message(STREAM_DEAD, 1).await.unwrap().unwrap();
        assert_eq!(letter.header("Bus-Dead-Reason"), Some("the store is down"));
        assert_eq!(letter.header("Bus-Dead-Subject"), Some("worker.register"));
        assert_eq!(letter.header("Bus-Dead-Deliveries"), Some("3"));
        assert_eq!(&letter.payload[..], b"poison");
        let counts = client.counts();
        assert_eq!((counts.naked, counts.dead, counts.acked, counts.redelivered), (2, 1, 1, 2));
    }

    /// W-03: a dead letter that its stream refuses is none, and the message comes again.
    async fn w03_a_message_stays_while_its_dead_letter_is_refused(setup: Setup) {
        let mut dead = setup.js().stream_info(STREAM_DEAD).await.unwrap().config;
        dead.max_msg_size = 1;
        setup.js().update_stream(dead.clone()).await.unwrap();
        let client = setup.client().await;
        let seen = Seen::new();
        let own = ConsumeOptions {
            ack_wait: Some(Duration::from_secs(1)),
            ..options()
        };
        let handler = seen.answering(Outcome::Term { reason: "no such worker".to_owned() });
        client.consume(ConsumerKind::Worker, own, handler).await.unwrap();
        client.publish_worker_register(bytes("poison")).await.unwrap();
        seen.wait_for(2).await;
        assert_eq!((setup.messages(STREAM_WORKER).await, client.counts().dead), (1, 0));
        dead.max_msg_size = -1;
        setup.js().update_stream(dead).await.unwrap();
        until("the dead letter", || async { setup.messages(STREAM_DEAD).await == 1 }).await;
        until("an empty queue", || async { setup.messages(STREAM_WORKER).await == 0 }).await;
        assert_eq!(client.counts().dead, 1);
    }

    /// Zero stands for the default, as it says.
    async fn zeros_among_the_options_are_the_defaults(setup: Setup) {
        let client = setup.client().await;
        let own = ConsumeOptions {
            lanes: 0,
            prefetch: 0,
            ack_wait: Some(Duration::ZERO),
            max_deliver: Some(0),
            ..options()
        };
        let seen = Seen::new();
        client.consume(ConsumerKind::Worker, own, seen.answering(Outcome::Ack)).await.unwrap();
        client.publish_worker_register(bytes("x")).await.unwrap();
        seen.wait_for(1).await;
        let (stream, name) = (ConsumerKind::Worker.stream(), ConsumerKind::Worker.durable());
        let made = setup.js().consumer_info(stream, name).await.unwrap().config;
        assert_eq!((made.ack_wait.0, made.max_deliver), (10_000_000_000, 3));
    }

    /// A handler that panics counts as a nak and ends nothing.
    async fn a_handler_that_panics_is_a_nak(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        let remember = seen.clone();
        let handler = Arc::new(move |delivery: Arc<Delivery>| {
            remember.add(delivery.clone());
            async move {
                assert!(delivery.deliveries > 1, "the first delivery fails on purpose");
                Outcome::Ack
            }
        });
        client.consume(ConsumerKind::TaskStatus, options(), handler).await.unwrap();
        client.publish_task_status(&token("j1"), bytes("x")).await.unwrap();
        until("the second delivery is acknowledged", || async { client.counts().acked == 1 }).await;
        assert_eq!((seen.len(), client.counts().panicked), (2, 1));
    }

    /// W-08: a slow handler with many messages in hand causes no second delivery.
    async fn w08_a_slow_handler_causes_no_redelivery(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        let remember = seen.clone();
        let handler = Arc::new(move |delivery: Arc<Delivery>| {
            remember.add(delivery);
            async {
                tokio::time::sleep(Duration::from_millis(40)).await;
                Outcome::Ack
            }
        });
        for number in 0..50 {
            client.publish_task_status(&token("j1"), bytes(&number.to_string())).await.unwrap();
        }
        let options = ConsumeOptions {
            ack_wait: Some(Duration::from_millis(500)),
            prefetch: 50,
            ..options()
        };
        client.consume(ConsumerKind::TaskStatus, options, handler).await.unwrap();
        until("all are handled", || async { client.counts().acked == 50 }).await;
        until("the queue is empty", || async { setup.messages(STREAM_TASK).await == 0 }).await;
        assert_eq!((seen.len(), client.counts().redelivered), (50, 0));
    }

    /// W-19: one slow job holds up only itself, and each job's messages stay in order.
    async fn w19_a_slow_job_holds_up_only_itself(setup: Setup) {
        let client = setup.client().await;
        let release = Arc::new(tokio::sync::Notify::new());
        let seen = Seen::new();
        let (remember, gate) = (seen.clone(), release.clone());
        let handler = Arc::new(move |delivery: Arc<Delivery>| {
            let (remember, gate) = (remember.clone(), gate.clone());
            async move {
                if delivery.subject == "task.status.slow" {
                    gate.notified().await;
                }
                remember.add(delivery);
                Outcome::Ack
            }
        });
        let options = ConsumeOptions { lanes: 16, ..options() };
        client.consume(ConsumerKind::TaskStatus, options, handler).await.unwrap();
        client.publish_task_status(&token("slow"), bytes("0")).await.unwrap();
        for number in 0..5 {
            for job in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
                client.publish_task_status(&token(job), bytes(&number.to_string())).await.unwrap();
            }
        }
        // Jobs that share the slow one's lane wait for it; with 16 lanes those are few.
        until("most jobs are done", || async { seen.len() >= 30 }).await;
        release.notify_one();
        seen.wait_for(46).await;
        for job in ["a", "e", "i"] {
            let all = seen.all();
            let of: Vec<&[u8]> = all.iter().filter(|one| one.subject.ends_with(&format!(".{job}"))).map(|one| &one.payload[..]).collect();
            assert_eq!(of, [b"0", b"1", b"2", b"3", b"4"]);
        }
    }

    /// W-20: with an id a message is stored once, and its second acknowledgement says so.
    async fn w20_a_message_with_an_id_is_stored_once(setup: Setup) {
        let client = setup.client().await;
        let publication = Publication::new(To::TaskStatus(token("j1")), "x").id("a1:running:1");
        let first = client.publish(publication.clone()).await.unwrap();
        let second = client.publish(publication).await.unwrap();
        assert_eq!((first.duplicate, second.duplicate, second.seq), (false, true, first.seq));
        assert_eq!(setup.messages(STREAM_TASK).await, 1);
        let stored = setup.js().get_message(STREAM_TASK, first.seq).await.unwrap().unwrap();
        assert_eq!(stored.header("Bus-Version"), Some("2"));
        assert!(stored.header("Bus-Sent-At").is_some());
    }

    /// W-16: a heartbeat lives two minutes, a registration a day.
    async fn w16_heartbeats_expire_by_themselves_and_registrations_stay(setup: Setup) {
        let client = setup.client().await;
        let beat = client.publish_worker_heartbeat(bytes("x")).await.unwrap();
        let registration = client.publish_worker_register(bytes("x")).await.unwrap();
        let beat = setup.js().get_message(STREAM_WORKER, beat.seq).await.unwrap().unwrap();
        assert_eq!(beat.header("Nats-TTL"), Some("120s"));
        let registration = setup.js().get_message(STREAM_WORKER, registration.seq).await.unwrap().unwrap();
        assert_eq!(registration.header("Nats-TTL"), None);
    }
}

/// The contract's answer times and delivery counts stand on the durables.
#[tokio::test]
async fn the_durables_are_those_of_the_contract() {
    let setup = Setup::new(Kind::InProcess).await;
    let client = setup.client().await;
    let handler: Arc<dyn Handler> = Seen::new().answering(Outcome::Ack);
    client.consume_task_status(handler.clone()).await.unwrap();
    client.consume_task_logs(handler.clone()).await.unwrap();
    client.consume_worker(handler).await.unwrap();
    for (stream, name, wait, deliveries) in [
        (STREAM_TASK, "sqi-task-status-srv", 30, 10),
        (STREAM_LOGS, "sqi-task-logs-srv", 30, 5),
        (STREAM_WORKER, "sqi-worker-srv", 10, 3),
    ] {
        let info = setup.js().consumer_info(stream, name).await.unwrap();
        assert_eq!(info.config.ack_wait.0, wait * 1_000_000_000);
        assert_eq!(info.config.max_deliver, deliveries);
        assert_eq!(info.config.ack_policy, AckPolicy::Explicit);
    }
}
