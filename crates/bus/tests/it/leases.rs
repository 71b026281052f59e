//! Requests for work, diagnostics, cancels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use windjet_bus::client::{LeaseCall, lease_handler};
use windjet_bus::message::{RawLeaseReply, decode};
use windjet_bus::{Bus, Client, ErrorKind};

use crate::support::{Kind, LIMIT, Proxy, Setup, bus, bytes, quick, token, until};

fn echo() -> windjet_bus::client::LeaseHandler {
    lease_handler(|call: LeaseCall| async move {
        Bytes::from([call.queue.as_bytes(), b":", &call.data[..]].concat())
    })
}

on_both! {
    /// L-1, L-2: queue and bytes reach the handler unchanged, its reply comes back unchanged; an empty queue fails at once.
    async fn l1_l2_a_request_and_its_reply_pass_unchanged(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        server.subscribe_lease(echo()).await.unwrap();
        let reply = bus(&worker).request_lease("q1", bytes("payload"), LIMIT).await.unwrap();
        assert_eq!(&reply[..], b"q1:payload");
        let reply = worker.request_lease("_any", bytes(""), LIMIT).await.unwrap();
        assert_eq!(&reply[..], b"_any:");
        let begun = Instant::now();
        for queue in ["", "_other", "a.b", "*"] {
            let error = worker.request_lease(queue, bytes("x"), LIMIT).await.unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::BadToken, "{queue}");
        }
        assert!(begun.elapsed() < LIMIT);
    }

    /// L-3: nobody serves: at once. Somebody who never answers: a timeout.
    async fn l3_nobody_there_is_told_at_once_and_silence_after_the_limit(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        let begun = Instant::now();
        let error = worker.request_lease("q1", bytes("x"), Duration::from_secs(15)).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::NoResponders);
        assert!(begun.elapsed() < Duration::from_secs(5));
        server.subscribe_lease(lease_handler(|_| std::future::pending())).await.unwrap();
        let limit = Duration::from_millis(150);
        let error = worker.request_lease("q1", bytes("x"), limit).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Timeout { limit });
    }

    /// L-4: a request right after the subscription never finds nobody.
    async fn l4_a_request_right_after_the_subscription_is_served(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        for _ in 0..1000 {
            let serving = server.subscribe_lease(echo()).await.unwrap();
            worker.request_lease("q1", bytes("x"), LIMIT).await.unwrap();
            // A subscription that is being ended may still take a request of the next round, and answers it.
            serving.stop().await;
        }
    }

    /// L-5: fifty requests that wait do not hold up another.
    async fn l5_requests_that_wait_hold_up_nobody(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let waiting = gate.clone();
        let handler = lease_handler(move |call: LeaseCall| {
            let gate = waiting.clone();
            async move {
                if call.queue == "slow" {
                    let _open = gate.acquire().await;
                }
                call.data
            }
        });
        server.subscribe_lease(handler).await.unwrap();
        let mut slow = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let worker = worker.clone();
            slow.spawn(async move { worker.request_lease("slow", bytes("s"), LIMIT).await });
        }
        let quick = worker.request_lease("quick", bytes("q"), Duration::from_secs(5)).await.unwrap();
        assert_eq!(&quick[..], b"q");
        gate.add_permits(50);
        while let Some(reply) = slow.join_next().await {
            assert_eq!(&reply.unwrap().unwrap()[..], b"s");
        }
    }

    /// W-22: one that gives up is not there any more, so it is not given work.
    async fn w22_an_asker_that_gave_up_is_not_there(setup: Setup) {
        let (server, worker) = (setup.broker.client().unwrap(), setup.client().await);
        let (calls, mut called) = tokio::sync::mpsc::unbounded_channel();
        let handler = lease_handler(move |call: LeaseCall| {
            calls.send(call.asker).unwrap();
            std::future::pending()
        });
        server.subscribe_lease(handler).await.unwrap();
        let asked = tokio::spawn(async move { worker.request_lease("q1", bytes("x"), LIMIT).await });
        let asker = called.recv().await.unwrap();
        assert!(asker.is_there());
        asked.abort();
        until("it is gone", || async { !asker.is_there() }).await;
    }

    /// L-7: diagnostics arrive with their subject and bytes.
    async fn l7_diagnostics_arrive_with_their_subject_and_bytes(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        let heard: Arc<Mutex<Vec<(String, Bytes)>>> = Arc::default();
        let ear = heard.clone();
        let hearing = server
            .subscribe_worker_diag(Arc::new(move |subject, data| {
            ear.lock().push((subject.to_owned(), data));
        }))
            .await
            .unwrap();
        worker.publish_worker_diag(&token("w1"), bytes("one")).await.unwrap();
        until("it is heard", || async { !heard.lock().is_empty() }).await;
        assert_eq!(heard.lock().clone(), [("worker.diag.w1".to_owned(), bytes("one"))]);
        hearing.stop().await;
    }

    /// W-24: two servers on one bus, one answer.
    async fn w24_of_two_servers_one_answers(setup: Setup) {
        let (one, two, worker) = (setup.client().await, setup.client().await, setup.client().await);
        let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for server in [&one, &two] {
            let calls = calls.clone();
            server
                .subscribe_lease(lease_handler(move |call: LeaseCall| {
                    calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    async move { call.data }
                }))
                .await
                .unwrap();
        }
        for _ in 0..40 {
            worker.request_lease("q1", bytes("x"), LIMIT).await.unwrap();
        }
        assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 40);
    }

    /// W-09: a reply over the limit is answered with a reason instead of with silence.
    async fn w09_a_reply_that_is_too_large_is_told(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        let handler = lease_handler(|_| std::future::ready(Bytes::from(vec![b'x'; 2 * 1024 * 1024])));
        server.subscribe_lease(handler).await.unwrap();
        let reply = worker.request_lease("q1", bytes("x"), LIMIT).await.unwrap();
        let reply: RawLeaseReply = decode(&reply).unwrap();
        assert!(reply.assignments.is_empty() && reply.reason.contains("too large"), "{reply:?}");
    }

    /// W-22: a request without a reply address is never handed to the handler.
    async fn w22_a_request_without_a_reply_address_is_dropped(setup: Setup) {
        let server = setup.client().await;
        let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = calls.clone();
        let handler = lease_handler(move |call: LeaseCall| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move { call.data }
        });
        server.subscribe_lease(handler).await.unwrap();
        let raw = setup.raw().await;
        raw.publish("work.lease.q1", "x".into()).await.unwrap();
        until("it is dropped", || async { server.counts().leases_dropped == 1 }).await;
        assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 0);
    }

    /// W-01: a cancel reaches its task whether it was sent before the listening or during it, and no other task.
    async fn w01_a_cancel_sent_before_anybody_listened_is_heard(setup: Setup) {
        let (server, worker) = (setup.client().await, setup.client().await);
        server.publish_task_cancel(&token("t1"), bytes("early")).await.unwrap();
        let heard: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let ear = |heard: &Arc<Mutex<Vec<Bytes>>>| {
            let heard = heard.clone();
            Arc::new(move |data| heard.lock().push(data))
        };
        let other: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let first = worker.subscribe_task_cancel(&token("t1"), ear(&heard)).await.unwrap();
        worker.subscribe_task_cancel(&token("t2"), ear(&other)).await.unwrap();
        assert_eq!(heard.lock().clone(), [bytes("early")]);
        server.publish_task_cancel(&token("t1"), bytes("late")).await.unwrap();
        until("the second is heard", || async { heard.lock().len() >= 2 }).await;
        first.stop().await;
        first.stop().await;
        server.publish_task_cancel(&token("t1"), bytes("too late")).await.unwrap();
        server.publish_task_cancel(&token("t2"), bytes("other")).await.unwrap();
        until("the other task's is heard", || async { !other.lock().is_empty() }).await;
        assert_eq!(heard.lock().len(), 2);
        assert_eq!(other.lock().clone(), [bytes("other")]);
    }
}

/// An answer that went with its connection is not waited for: whoever asked asks again as soon as there is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_ends_with_its_connection() {
    let setup = Setup::new(Kind::OverTcp).await;
    let (proxy, url) = Proxy::start(&setup.broker.client_url().unwrap()).await;
    let worker = Client::connect(&url, quick()).await.unwrap();
    let server = setup.broker.client().unwrap();
    let (calls, mut called) = tokio::sync::mpsc::unbounded_channel();
    let handler = lease_handler(move |call: LeaseCall| {
        calls.send(call.asker).unwrap();
        std::future::pending()
    });
    server.subscribe_lease(handler).await.unwrap();
    let asking = worker.clone();
    let asked = tokio::spawn(async move {
        asking
            .request_lease("q1", bytes("x"), Duration::from_secs(3600))
            .await
    });
    called.recv().await.unwrap();
    proxy.cut();
    let error = tokio::time::timeout(LIMIT, asked)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unknown);
    assert!(error.is_retryable());
    // Asked while there is no connection, it goes with the next.
    until("the worker is away", || async { !worker.is_connected() }).await;
    let asking = worker.clone();
    let asked = tokio::spawn(async move { asking.request_lease("q2", bytes("x"), LIMIT).await });
    proxy.mend();
    let asker = called.recv().await.unwrap();
    assert!(asker.is_there());
    asked.abort();
    until("it is gone", || async { !asker.is_there() }).await;
    worker.drain(LIMIT).await.unwrap();
}

/// W-01: a cancel sent while the worker's connection was lost is heard when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w01_a_cancel_sent_while_the_worker_was_away_is_heard_on_its_return() {
    let setup = Setup::new(Kind::OverTcp).await;
    let (proxy, url) = Proxy::start(&setup.broker.client_url().unwrap()).await;
    let worker = Client::connect(&url, quick()).await.unwrap();
    let heard: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let ear = heard.clone();
    worker
        .subscribe_task_cancel(&token("t1"), Arc::new(move |data| ear.lock().push(data)))
        .await
        .unwrap();
    proxy.cut();
    until("the worker is away", || async { !worker.is_connected() }).await;
    let server = setup.broker.client().unwrap();
    server
        .publish_task_cancel(&token("t1"), bytes("stop"))
        .await
        .unwrap();
    proxy.mend();
    until("it is heard", || async { !heard.lock().is_empty() }).await;
    worker.drain(LIMIT).await.unwrap();
}
