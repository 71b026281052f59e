//! What a move does when it is ended at any step, or its target goes away.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::super::topology;
use super::*;

/// Drives a future for so many polls and then drops it, wherever it is.
async fn for_polls<F: Future>(mut polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(move |cx| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_at_any_step_it_is_taken_up_and_balances() {
    let cluster = Cluster::start(topology()).await;
    let target = cluster.broker().await;
    let mut service = Service::start(&["acme", "globex"]).await;
    let mut published = BTreeMap::<String, Vec<String>>::new();
    for number in 0..24 {
        for (tenant, table) in [("acme", "a"), ("acme", "b"), ("globex", "a")] {
            let options = match number % 4 {
                0 => PublishOptions::new().idempotency_key(format!("{tenant}/{table}/{number}")),
                _ => PublishOptions::new(),
            };
            service.publish_with(tenant, table, number, options).await;
            published
                .entry(format!("{tenant}.{table}"))
                .or_default()
                .push(number.to_string());
        }
    }
    let mut parked = 0;
    service
        .work(72, async |message| {
            if &message.data()[..] == b"23" {
                park(&service, &message, "bad").await;
                parked += 1;
            }
        })
        .await;
    published.values_mut().for_each(|rows| drop(rows.pop()));

    let mut polls = 1;
    let report = loop {
        let options = options().batch(3).remainder(4).hold(NEVER);
        match for_polls(polls, service.broker.graduate(&target, options)).await {
            Some(report) => break report.unwrap(),
            None if polls % 7 == 0 => service.restart().await,
            None => {}
        }
        // Publishes go on between the runs.
        if polls % 3 == 0 && polls < 90 {
            service.publish("acme", "a", format!("later-{polls}")).await;
            published
                .get_mut("acme.a")
                .unwrap()
                .push(format!("later-{polls}"));
        }
        polls += 1;
    };
    assert!(report.is_balanced(), "{report:?}");
    assert!(polls > 10, "it was never interrupted");
    let totals = report.totals();
    let expected: u64 = published.values().map(|rows| rows.len() as u64).sum();
    assert_eq!(
        (
            totals.events.moved + totals.events.already_there,
            totals.events.repeated
        ),
        (expected, 0)
    );
    assert_eq!(cluster.tables(), published);
    assert_eq!(cluster.rows("WH_DLQ").len(), parked);
    assert_eq!(totals.dead_letters.found, parked as u64);
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

/// The target has forgotten the ids by the time the move goes on: what arrived is found in the history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_targets_window_what_arrived_is_found_in_the_history() {
    let cluster = Cluster::start(windjet_mq::nats::Topology {
        publish_timeout: Duration::from_millis(300),
        ..topology()
    })
    .await;
    for stream in ["WH_INGEST_0", "WH_INGEST_1", "WH_DLQ"] {
        let shorten = |config: &mut Value| config["duplicate_window"] = json!(1_500_000_000);
        cluster.operate(|operator| operator.update_stream(stream, shorten).unwrap());
    }
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    service.idle_worker().await;
    for number in 0..200 {
        service.publish("acme", "t", number).await;
    }
    let interrupted = async {
        while cluster.stored() < 5 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        moved = service.broker.graduate(&target, options().batch(1_000)) => panic!("too fast to be interrupted: {moved:?}"),
        () = interrupted => {}
    }
    let arrived = cluster.stored();
    let probe = async |attempt: u64| {
        let mut probe = cluster.broker().await;
        let options = PublishOptions::new().idempotency_key("probe");
        probe
            .publish(
                &Ctx::new(),
                &topic("probe", "t"),
                attempt.to_string().into(),
                options,
            )
            .await
            .unwrap();
        probe = probe.clone();
        probe.close().await.unwrap();
    };
    probe(0).await;
    until("the server to forget", || async {
        probe(1).await;
        (cluster.tables()["probe.t"].len() > 1).then_some(())
    })
    .await;
    let report = service.broker.graduate(&target, options()).await.unwrap();
    let totals = report.totals();
    assert!(
        report.is_balanced() && totals.events.already_there >= arrived,
        "{totals:?}"
    );
    assert_eq!(totals.events.repeated, 0);
    assert_eq!(cluster.tables()["acme.t"], numbers("", 200));
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_goes_away_is_waited_for() {
    let cluster = Cluster::start(windjet_mq::nats::Topology {
        publish_timeout: Duration::from_millis(300),
        ..topology()
    })
    .await;
    let target = cluster.broker().await;
    let service = Service::start(&["acme"]).await;
    service.idle_worker().await;
    for number in 0..500 {
        service.publish("acme", "t", number).await;
    }
    let graduate = service.broker.graduate(&target, options());
    let disturb = async {
        until("some rows", || async { (cluster.stored() > 5).then_some(()) }).await;
        tokio::task::block_in_place(|| cluster.deployment().restart().unwrap());
    };
    let (report, ()) = tokio::join!(graduate, disturb);
    let report = report.unwrap();
    assert!(report.is_balanced(), "{report:?}");
    assert_eq!(cluster.tables()["acme.t"], numbers("", 500));
    service.broker.close().await.unwrap();
    target.close().await.unwrap();
}
