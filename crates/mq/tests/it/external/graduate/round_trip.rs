//! What a move does when nothing disturbs it.

use windjet_mq::graduate::{Phase, Unbalanced};
use windjet_mq::nats::Topology;
use windjet_mq::{DeadLetterStats as _, ErrorKind, Replayer as _, Sharded as _, Subscriber as _};

use super::super::topology;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_everything_arrives_once_and_in_order_and_balances_to_zero() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme", "globex"]).await;
    for number in 0..30 {
        service.publish("acme", "old", number).await;
    }
    // Written out of order: every third. Two are parked.
    service
        .work(30, async |message| {
            let number: u32 = std::str::from_utf8(message.data()).unwrap().parse().unwrap();
            match number {
                4 | 5 => park(&service, &message, "bad").await,
                number if number % 3 == 0 => message.double_ack(&Ctx::new()).await.unwrap(),
                _ => {}
            }
        })
        .await;
    let left: Vec<_> = (0..30)
        .filter(|number| number % 3 != 0 && ![4, 5].contains(number))
        .collect();

    let stop = Arc::default();
    let publishers = [
        load(&service.broker, "acme", &stop),
        load(&service.broker, "globex", &stop),
    ];
    until("some load", || async {
        (service
            .broker
            .server()
            .jetstream()?
            .stream_info("INGEST_globex")
            .await
            .ok()?
            .state
            .messages
            > 300)
            .then_some(())
    })
    .await;
    let report = service
        .broker
        .graduate(&target, options().remainder(50))
        .await
        .unwrap();
    assert!(report.is_balanced(), "{report:?}");
    // Publishes go on through the same handle, to the cluster now.
    let switched = cluster.stored();
    until("more load, on the cluster", || async {
        (cluster.stored() > switched + 100).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);

    let mut tables = cluster.tables();
    let old: Vec<_> = left.iter().map(ToString::to_string).collect();
    assert_eq!(tables.remove("acme.old"), Some(old));
    let (acme, globex) = report_counts(&report);
    let mut published = 0;
    for (tenant, publisher) in ["acme", "globex"].into_iter().zip(publishers) {
        for (table, count) in publisher.await.unwrap() {
            published += count;
            let key = format!("{tenant}.{table}");
            let mut rows = tables.remove(&key).unwrap();
            // What arrived after it was read here is not of interest; there is no hole and nothing twice.
            rows.truncate(usize::try_from(count).unwrap());
            assert_eq!(rows, numbers("load-", rows.len() as u64), "{key}");
        }
    }
    assert!(tables.is_empty(), "{:?}", tables.keys());
    assert_eq!(cluster.stored(), published + left.len() as u64);
    // All of acme's 30 minus the first, which was the floor, were found; what is written was passed over.
    assert_eq!(acme.skipped, 11, "{acme:?}");
    assert_eq!(
        (acme.already_there, globex.already_there, globex.skipped),
        (0, 0, 0)
    );
    assert_eq!(acme.moved + globex.moved, switched.min(acme.moved + globex.moved));

    let parked: Vec<_> = cluster.rows("WH_DLQ");
    let parked: Vec<_> = parked
        .iter()
        .map(|row| (&*row.subject, &*row.data, row.header("X-Reason")))
        .collect();
    assert_eq!(
        parked,
        [
            ("wh.dlq.acme.old", "4", vec!["bad"]),
            ("wh.dlq.acme.old", "5", vec!["bad"])
        ]
    );
    let tenant = TenantId::parse("acme").unwrap();
    let counts = target
        .dead_letter_counts(&Ctx::new(), &tenant, None)
        .await
        .unwrap();
    assert_eq!(counts.total, 2);
    assert_eq!(report.totals().dead_letters.moved, 2);
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

fn report_counts(
    report: &windjet_mq::graduate::GraduateReport,
) -> (windjet_mq::graduate::QueueCount, windjet_mq::graduate::QueueCount) {
    let of = |id: &str| report.tenants[&TenantId::parse(id).unwrap()].events;
    (of("acme"), of("globex"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_and_keys_go_along_and_a_repetition_is_a_duplicate_there() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    service.idle_worker().await;
    let keyed = || {
        PublishOptions::new()
            .header("X-One", "1")
            .header("X-One", "2")
            .idempotency_key("acme/orders/1")
    };
    service.publish_with("acme", "orders", "first", keyed()).await;
    service.publish("acme", "orders", "second").await;
    let report = service.broker.graduate(&target, options()).await.unwrap();
    assert_eq!(report.totals().events.moved, 2);

    for broker in [&service.broker as &dyn windjet_mq::Broker, &target] {
        broker
            .publish(&Ctx::new(), &topic("acme", "orders"), "first".into(), keyed())
            .await
            .unwrap();
    }
    let rows = cluster.events();
    let data: Vec<_> = rows.iter().map(|row| &*row.data).collect();
    assert_eq!(data, ["first", "second"]);
    assert_eq!(
        (rows[0].header("X-One"), rows[0].header("Nats-Msg-Id")),
        (vec!["1", "2"], vec!["acme/orders/1"])
    );
    assert_eq!(rows[1].header("Nats-Msg-Id").len(), 1, "{:?}", rows[1]);
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

/// A client repeats what was written here just before the move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_written_event_is_known_there_and_nobody_sees_how() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    let keyed = |key: &str| PublishOptions::new().idempotency_key(key);
    service.publish_with("acme", "t", "written", keyed("k1")).await;
    service
        .work(1, async |message| message.double_ack(&Ctx::new()).await.unwrap())
        .await;
    service.publish_with("acme", "t", "open", keyed("k2")).await;
    let (sender, mut heard) = mpsc::unbounded_channel();
    let listener = windjet_mq::Listener::new(move |message: Message| {
        // Nobody looks any more once the test is over.
        let _ = sender.send(message);
        async { Ok(()) }
    });
    target.subscribe(&Ctx::new(), "hub", listener).await.unwrap();
    let report = service.broker.graduate(&target, options()).await.unwrap();
    let events = report.totals().events;
    assert_eq!((events.moved, events.keys), (1, 1), "{events:?}");

    for key in ["k1", "k2"] {
        target
            .publish(&Ctx::new(), &topic("acme", "t"), "again".into(), keyed(key))
            .await
            .unwrap();
    }
    target
        .publish(&Ctx::new(), &topic("acme", "t"), "new".into(), keyed("k3"))
        .await
        .unwrap();
    let (sender, mut messages) = mpsc::unbounded_channel();
    let handler = Handler::new(move |message| {
        let _ = sender.send(message);
        async {}
    });
    let consumer = target
        .create_consumer(&Ctx::new(), ConsumerConfig::new(DURABLE))
        .await
        .unwrap();
    let consuming = consumer.consume(handler, 16).await.unwrap();
    for (inbox, expected) in [(&mut messages, ["open", "new"]), (&mut heard, ["open", "new"])] {
        for data in expected {
            let message = tokio::time::timeout(PATIENCE, inbox.recv())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(&message.data()[..], data.as_bytes());
            message.double_ack(&Ctx::new()).await.unwrap();
        }
    }
    until("nothing to be left", || async {
        (cluster.stored() == 0).then_some(())
    })
    .await;
    let mut replayed = Vec::new();
    let mut sink = |data: bytes::Bytes| {
        replayed.push(data);
        true
    };
    target
        .replay_since(&Ctx::new(), &topic("acme", "t"), std::time::UNIX_EPOCH, &mut sink)
        .await
        .unwrap();
    assert_eq!(replayed, ["open", "new"]);
    consuming.stop();
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_two_tenants_use_costs_neither_an_event() {
    let one = Topology {
        partitions: 1,
        ..topology()
    };
    let cluster = Cluster::start(one).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme", "globex"]).await;
    service.idle_worker().await;
    for tenant in ["acme", "globex"] {
        let options = PublishOptions::new().idempotency_key("not-unique");
        service.publish_with(tenant, "t", tenant, options).await;
    }
    let report = service.broker.graduate(&target, options()).await.unwrap();
    assert_eq!(report.totals().events.moved, 2, "{report:?}");
    let rows = cluster.events();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let renamed: Vec<_> = rows
        .iter()
        .filter(|row| row.header("Windjet-Msg-Id") == ["not-unique"])
        .collect();
    assert_eq!(renamed.len(), 1, "{rows:?}");
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_counts_and_changes_nothing() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    for number in 0..10 {
        service.publish("acme", "t", number).await;
    }
    let mut parked = false;
    service
        .work(10, async |message| match &message.data()[..] {
            b"0" | b"5" => message.double_ack(&Ctx::new()).await.unwrap(),
            b"7" => {
                park(&service, &message, "x").await;
                parked = true;
            }
            _ => {}
        })
        .await;
    assert!(parked);
    let js = service.broker.server().jetstream().unwrap();
    let before = (
        js.stream_names(),
        js.consumer_unsettled("INGEST_acme", DURABLE).await,
    );
    let report = service
        .broker
        .graduate(&target, options().dry_run())
        .await
        .unwrap();
    assert!(report.dry_run);
    let totals = report.totals();
    assert_eq!(
        (
            totals.events.found,
            totals.events.skipped,
            totals.events.to_move()
        ),
        (9, 2, 7),
        "{totals:?}"
    );
    assert_eq!((totals.dead_letters.found, totals.dead_letters.to_move()), (1, 1));
    assert_eq!((totals.events.moved, cluster.stored()), (0, 0));
    assert_eq!(
        before,
        (
            js.stream_names(),
            js.consumer_unsettled("INGEST_acme", DURABLE).await
        )
    );
    // Neither is anything refused.
    service.publish("acme", "t", "10").await;
    service.idle_worker().await;
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_moved_refuses_publishes_and_reports_again() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let mut service = Service::start(&["acme"]).await;
    service.idle_worker().await;
    service.publish("acme", "t", 0).await;
    let report = service.broker.graduate(&target, options()).await.unwrap();
    service.restart().await;
    let publish = async |service: &Service| {
        service
            .broker
            .publish(
                &Ctx::new(),
                &topic("acme", "t"),
                "1".into(),
                PublishOptions::new(),
            )
            .await
    };
    let error = publish(&service).await.unwrap_err();
    assert!(
        error.is(ErrorKind::Closed) && error.to_string().contains("WH_DLQ"),
        "{error:?}"
    );
    service.work(0, async |_| {}).await;
    let again = service.broker.graduate(&target, options()).await.unwrap();
    assert_eq!(again.tenants, report.tenants);
    publish(&service).await.unwrap();
    assert_eq!(cluster.tables()["acme.t"], ["0", "1"]);
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_is_refused_while_its_consumer_works_and_for_a_name_that_no_queue_knows() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    service.publish("acme", "t", 0).await;
    let error = service.broker.graduate(&target, options()).await.unwrap_err();
    assert!(error.is(ErrorKind::ConsumerNotFound), "{error:?}");
    let consumer = service
        .broker
        .create_consumer(&Ctx::new(), ConsumerConfig::new(DURABLE))
        .await
        .unwrap();
    let consuming = consumer.consume(Handler::new(|_| async {}), 1).await.unwrap();
    let error = service.broker.graduate(&target, options()).await.unwrap_err();
    assert!(
        error.is(ErrorKind::Invalid) && error.to_string().contains("stop it"),
        "{error:?}"
    );
    consuming.stop();
    assert_eq!(cluster.stored(), 0);
    service.broker.graduate(&target, options()).await.unwrap();
    assert_eq!(target.ingest_units().configured.len(), 4);
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

/// Somebody deletes an event behind the broker's back, after it was counted as moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_that_do_not_add_up_are_an_error_and_nothing_is_switched() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    service.idle_worker().await;
    for number in 0..10 {
        service.publish("acme", "t", number).await;
    }
    let js = service.broker.server().jetstream().unwrap();
    let (meddled, deleting) = (AtomicBool::new(false), js.clone());
    let observed = options().observe(move |progress| {
        if progress.phase == Phase::Copying && progress.done == 10 && !meddled.swap(true, Ordering::Relaxed) {
            let delete = deleting.delete_message("INGEST_acme", 3);
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(delete)).unwrap();
        }
    });
    let moved = service.broker.graduate(&target, observed).await;
    if let Err(error) = moved {
        let unbalanced = error.find::<Unbalanced>().expect("the counts are the cause");
        assert_eq!(unbalanced.report.totals().events.found, 9, "{unbalanced}");
        // Publishes go on here.
        service.publish("acme", "t", "on").await;
        assert_eq!(js.stream_info("INGEST_acme").await.unwrap().state.last_seq, 11);
    } else {
        panic!("an event was deleted under the move, and it balances");
    }
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}
