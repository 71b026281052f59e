//! Drain, close, reconnect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use windjet_bus::client::{ConsumeOptions, ConsumerKind, Delivery, Outcome};
use windjet_bus::streams::STREAM_TASK;
use windjet_bus::{Bus, ErrorKind, LinkState};

use crate::support::{Kind, LIMIT, Seen, Setup, bytes, token, until};

on_both! {
    /// D-1: after a drain publishing fails and the connection is closed.
    async fn d1_after_a_drain_publishing_fails(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        client.consume_task_status(seen.answering(Outcome::Ack)).await.unwrap();
        client.publish_task_status(&token("j1"), bytes("x")).await.unwrap();
        seen.wait_for(1).await;
        client.drain(LIMIT).await.unwrap();
        assert_eq!(*client.state().borrow(), LinkState::Closed);
        let error = client.publish_task_status(&token("j1"), bytes("y")).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Closed);
        let error = client.consume_task_status(seen.answering(Outcome::Ack)).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Closed);
        client.drain(LIMIT).await.unwrap();
    }

    /// D-2: a drain during a handler returns after that handler's ack is stored, and no other handler begins.
    async fn d2_a_drain_waits_for_the_handler_that_runs_and_starts_no_other(setup: Setup) {
        let client = setup.client().await;
        let started = Arc::new(AtomicUsize::new(0));
        let finished = Arc::new(AtomicBool::new(false));
        let (count, done) = (started.clone(), finished.clone());
        let handler = Arc::new(move |_: Arc<Delivery>| {
            let (count, done) = (count.clone(), done.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(500)).await;
                done.store(true, Ordering::SeqCst);
                Outcome::Ack
            }
        });
        for number in 0..10 {
            client.publish_task_status(&token("j1"), bytes(&number.to_string())).await.unwrap();
        }
        client.consume_task_status(handler).await.unwrap();
        until("a handler runs", || async { started.load(Ordering::SeqCst) == 1 }).await;
        client.drain(LIMIT).await.unwrap();
        assert!(finished.load(Ordering::SeqCst));
        assert_eq!(started.load(Ordering::SeqCst), 1);
        // The ack is stored: the message has left the work queue, the others have not.
        assert_eq!(setup.messages(STREAM_TASK).await, 9);
        assert_eq!(client.counts().acked, 1);
    }

    /// D-3: a drain past its limit is an error, and the connection is closed all the same.
    async fn d3_a_late_drain_is_a_timeout_and_closes(setup: Setup) {
        let client = setup.client().await;
        let seen = Seen::new();
        let remember = seen.clone();
        let handler = Arc::new(move |delivery: Arc<Delivery>| {
            remember.add(delivery);
            std::future::pending::<Outcome>()
        });
        client.consume_task_status(handler).await.unwrap();
        client.publish_task_status(&token("j1"), bytes("x")).await.unwrap();
        seen.wait_for(1).await;
        let limit = Duration::from_millis(100);
        let error = client.drain(limit).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Timeout { limit });
        assert_eq!(*client.state().borrow(), LinkState::Closed);
        assert!(client.publish_task_status(&token("j1"), bytes("y")).await.is_err());
        assert_eq!(setup.messages(STREAM_TASK).await, 1);
    }

    /// D-4: closing twice is fine.
    async fn d4_closing_twice_is_fine(setup: Setup) {
        let client = setup.client().await;
        client.close().await;
        client.close().await;
        assert_eq!(*client.state().borrow(), LinkState::Closed);
        client.drain(LIMIT).await.unwrap();
    }

    /// Too large a message is refused before it leaves, with the sizes.
    async fn a_message_over_the_limit_is_refused_with_its_size(setup: Setup) {
        let client = setup.client().await;
        let big = Bytes::from(vec![b'x'; 1024 * 1024 + 1]);
        let error = client.publish_task_log(&token("t1"), big).await.unwrap_err();
        let ErrorKind::TooLarge { limit, actual } = error.kind() else { panic!("{error}") };
        assert_eq!((*limit, *actual), (1024 * 1024, 1024 * 1024 + 1));
    }
}

/// D-5: a client over TCP lives through a restart of the broker; one in process ends with its broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_publishes_and_consumers_go_on_after_the_broker_came_back() {
    let mut setup = Setup::new(Kind::OverTcp).await;
    let client = setup.client().await;
    let seen = Seen::new();
    let options = ConsumeOptions {
        ack_wait: Some(Duration::from_secs(1)),
        ..ConsumeOptions::default()
    };
    client
        .consume(ConsumerKind::TaskStatus, options, seen.answering(Outcome::Ack))
        .await
        .unwrap();
    client
        .publish_task_status(&token("j1"), bytes("before"))
        .await
        .unwrap();
    seen.wait_for(1).await;
    setup.restart().await;
    until("the connection is back", || async { client.is_connected() }).await;
    client
        .publish_task_status(&token("j1"), bytes("after"))
        .await
        .unwrap();
    until("what came after is handled", || async {
        seen.all().iter().any(|one| &one.payload[..] == b"after")
    })
    .await;
    until("the queue is empty", || async {
        setup.messages(STREAM_TASK).await == 0
    })
    .await;
    client.drain(LIMIT).await.unwrap();
}

/// A client in process whose broker has stopped says that it is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_process_ends_with_its_broker() {
    let setup = Setup::new(Kind::InProcess).await;
    let client = setup.client().await;
    client
        .consume_task_status(Seen::new().answering(Outcome::Ack))
        .await
        .unwrap();
    setup.broker.shutdown(LIMIT).await.unwrap();
    assert_eq!(*client.state().borrow(), LinkState::Closed);
    let error = client
        .publish_task_status(&token("j1"), bytes("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Closed);
    client.drain(LIMIT).await.unwrap();
}
