//! The bus in memory keeps the rules that code on the bus relies on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use windjet_bus::client::{
    ConsumeOptions, ConsumerKind, Delivery, LeaseCall, Outcome, Publication, To, lease_handler,
};
use windjet_bus::fake::FakeBus;
use windjet_bus::{Bus, ErrorKind, Layout};

use crate::support::{LIMIT, Seen, bytes, token};

#[tokio::test]
async fn messages_reach_their_handlers_in_order_and_what_fails_becomes_a_dead_letter() {
    let bus = FakeBus::default();
    let seen = Seen::new();
    let remember = seen.clone();
    let handler = Arc::new(move |delivery: Arc<Delivery>| {
        let poison = &delivery.payload[..] == b"poison";
        remember.add(delivery);
        std::future::ready(if poison { Outcome::nak("no") } else { Outcome::Ack })
    });
    let options = ConsumeOptions {
        max_deliver: Some(2),
        ..ConsumeOptions::default()
    };
    bus.consume(ConsumerKind::TaskStatus, options, handler)
        .await
        .unwrap();
    for text in ["a", "poison", "b"] {
        bus.publish_task_status(&token("j1"), bytes(text)).await.unwrap();
    }
    bus.settled(ConsumerKind::TaskStatus).await;
    let got: Vec<Bytes> = seen.all().iter().map(|one| one.payload.clone()).collect();
    assert_eq!(got, ["a", "poison", "poison", "b"].map(bytes));
    let dead = bus.dead();
    assert_eq!(
        (dead.len(), dead[0].reason.as_str(), dead[0].deliveries),
        (1, "no", 2)
    );
    bus.drain(LIMIT).await.unwrap();
    let error = bus
        .publish_task_status(&token("j1"), bytes("late"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Closed);
}

#[tokio::test]
async fn publishes_fail_when_told_and_an_unknown_outcome_is_stored() {
    let bus = FakeBus::new(Layout::Identity).of_worker(token("w1"));
    bus.fail_publishes([ErrorKind::NoStream, ErrorKind::Unknown]);
    let publication = Publication::new(To::TaskStatus(token("j1")), "x").id("a1:1");
    let refused = bus.publish(publication.clone()).await.unwrap_err();
    assert_eq!((refused.kind(), bus.published().len()), (&ErrorKind::NoStream, 0));
    let unknown = bus.publish(publication.clone()).await.unwrap_err();
    assert!(unknown.outcome_unknown());
    let again = bus.publish(publication).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(bus.published().len(), 1);
    assert_eq!(bus.published()[0].subject, "task.status.w1.j1");
}

#[tokio::test]
async fn leases_diagnostics_and_cancels_pass() {
    let server = FakeBus::new(Layout::Identity);
    let worker = server.of_worker(token("w1"));
    let nobody = worker.request_lease("q1", bytes("x"), LIMIT).await.unwrap_err();
    assert_eq!(nobody.kind(), &ErrorKind::NoResponders);
    let handler =
        lease_handler(
            |call: LeaseCall| async move { format!("{}:{}", call.worker.unwrap(), call.queue).into() },
        );
    server.subscribe_lease(handler).await.unwrap();
    assert_eq!(
        worker.request_lease("q1", bytes("x"), LIMIT).await.unwrap(),
        bytes("w1:q1")
    );
    server
        .subscribe_lease(lease_handler(|_| std::future::pending()))
        .await
        .unwrap();
    let limit = Duration::from_millis(20);
    let late = worker.request_lease("q1", bytes("x"), limit).await.unwrap_err();
    assert_eq!(late.kind(), &ErrorKind::Timeout { limit });

    let heard: Arc<Mutex<Vec<(String, Bytes)>>> = Arc::default();
    let ear = heard.clone();
    server
        .subscribe_worker_diag(Arc::new(move |subject, data| {
            ear.lock().push((subject.to_owned(), data));
        }))
        .await
        .unwrap();
    worker
        .publish_worker_diag(&token("w1"), bytes("d"))
        .await
        .unwrap();
    assert_eq!(heard.lock().clone(), [("worker.diag.w1".to_owned(), bytes("d"))]);

    server
        .publish_task_cancel(&token("t1"), bytes("early"))
        .await
        .unwrap();
    let cancels: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let ear = cancels.clone();
    let hearing = worker
        .subscribe_task_cancel(&token("t1"), Arc::new(move |data| ear.lock().push(data)))
        .await
        .unwrap();
    server
        .publish_task_cancel(&token("t1"), bytes("late"))
        .await
        .unwrap();
    hearing.stop().await;
    server
        .publish_task_cancel(&token("t1"), bytes("after"))
        .await
        .unwrap();
    assert_eq!(cancels.lock().clone(), [bytes("early"), bytes("late")]);
}
