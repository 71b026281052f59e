//! The in-process client.

use std::time::Duration;

use windjet_protocol::HeaderMap;
use windjet_server::Server;
use windjet_server::client::{PublishError, RequestError, SubscribeError};

const DEADLINE: Duration = Duration::from_secs(5);

async fn server() -> Server {
    Server::builder().start().await.unwrap()
}

#[tokio::test]
async fn a_message_reaches_every_matching_subscription_once() {
    let server = server().await;
    let client = server.client();
    let mut literal = client.subscribe("a.b").await.unwrap();
    let mut star = client.subscribe("a.*").await.unwrap();
    let mut rest = server.client().subscribe(">").await.unwrap();
    let mut other = client.subscribe("a.c").await.unwrap();
    client.publish("a.b", "x").await.unwrap();
    for subscription in [&mut literal, &mut star, &mut rest] {
        let message = subscription.try_next().unwrap();
        assert_eq!(
            (&message.subject[..], &message.payload[..]),
            (&b"a.b"[..], &b"x"[..])
        );
        assert!(subscription.try_next().is_none());
    }
    assert!(other.try_next().is_none());
}

#[tokio::test]
async fn one_member_of_a_queue_group_gets_each_message() {
    let server = server().await;
    let client = server.client();
    let mut members = Vec::new();
    for pattern in ["jobs.>", "jobs.*", "jobs.a"] {
        members.push(client.queue_subscribe(pattern, "workers").await.unwrap());
    }
    for _ in 0..300 {
        client.publish("jobs.a", "").await.unwrap();
    }
    let taken: Vec<usize> = members
        .iter()
        .map(windjet_server::client::Subscription::pending)
        .collect();
    assert_eq!(taken.iter().sum::<usize>(), 300, "{taken:?}");
    assert!(
        taken.iter().all(|&count| count > 30),
        "every member takes part: {taken:?}"
    );
}

#[tokio::test]
async fn requests_are_answered_and_leave_nothing_behind() {
    let server = server().await;
    let client = server.client();
    let mut service = client.subscribe("double").await.unwrap();
    let answering = {
        let client = client.clone();
        tokio::spawn(async move {
            while let Some(request) = service.next().await {
                let reply = request.reply.clone().unwrap();
                client
                    .publish(&reply, [&request.payload[..], &request.payload[..]].concat())
                    .await
                    .unwrap();
            }
        })
    };
    for n in 0..10 {
        let answer = client.request("double", n.to_string()).await.unwrap();
        assert_eq!(answer.payload, format!("{n}{n}"));
    }
    assert!(matches!(
        client.request("nobody", "").await,
        Err(RequestError::NoResponders(_))
    ));
    answering.abort();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_taken_but_not_answered_times_out_as_unknown() {
    let server = server().await;
    let client = server.client();
    let _silent = client.subscribe("void").await.unwrap();
    let error = client
        .request_within("void", None, "", Duration::from_secs(3))
        .await
        .unwrap_err();
    assert_eq!(error, RequestError::TimedOut(Duration::from_secs(3)));
    assert!(error.outcome_unknown());
}

#[tokio::test]
async fn headers_keep_order_case_and_duplicates() {
    let server = server().await;
    let client = server.client();
    let mut subscription = client.subscribe("h").await.unwrap();
    let mut headers = HeaderMap::default();
    headers.append("X-one", "1").unwrap();
    headers.append("x-One", "2").unwrap();
    headers.append("X-one", "3").unwrap();
    client.publish_with_headers("h", &headers, "body").await.unwrap();
    let message = subscription.next().await.unwrap();
    let received = message.headers().unwrap().unwrap();
    assert_eq!(received, headers);
    assert_eq!(received.get_all("X-one").collect::<Vec<_>>(), [b"1", b"3"]);
}

#[tokio::test]
async fn a_subscription_ends_after_its_limit_and_can_be_read_to_its_end() {
    let server = server().await;
    let client = server.client();
    let mut subscription = client.subscribe("s").await.unwrap();
    subscription.unsubscribe_after(2);
    for n in 0..4 {
        client.publish("s", n.to_string()).await.unwrap();
    }
    assert_eq!(subscription.next().await.unwrap().payload, "0");
    assert_eq!(subscription.next().await.unwrap().payload, "1");
    assert!(subscription.next().await.is_none());
}

#[tokio::test]
async fn a_full_mailbox_drops_the_newest_and_counts() {
    let server = server().await;
    let client = server.client();
    let mut small = client.subscribe_bounded("s", None, 2, 1 << 20).await.unwrap();
    for n in 0..5 {
        client.publish("s", n.to_string()).await.unwrap();
    }
    assert_eq!(small.dropped(), 3);
    assert_eq!(small.next().await.unwrap().payload, "0");
    assert_eq!(small.next().await.unwrap().payload, "1");
    assert!(small.try_next().is_none());
}

#[tokio::test]
async fn wrong_subjects_and_sizes_are_refused_with_a_reason() {
    let server = Server::builder().max_payload(8).start().await.unwrap();
    let client = server.client();
    for subject in ["", "a..b", ".a", "a b", "a.*", ">"] {
        assert_eq!(
            client.publish(subject, "").await,
            Err(PublishError::InvalidSubject(subject.to_owned()))
        );
    }
    assert_eq!(
        client.publish("a", "123456789").await,
        Err(PublishError::TooLarge { size: 9, limit: 8 })
    );
    for pattern in ["", "a..b", ">.a", "a b"] {
        assert_eq!(
            client.subscribe(pattern).await.unwrap_err(),
            SubscribeError::InvalidSubject(pattern.to_owned())
        );
    }
}

#[tokio::test]
async fn shutdown_ends_subscriptions_and_tasks_and_can_be_repeated() {
    let server = server().await;
    let client = server.client();
    let mut subscription = client.subscribe("s").await.unwrap();
    client.publish("s", "last").await.unwrap();
    let (first, second) = tokio::join!(server.shutdown(DEADLINE), server.shutdown(DEADLINE));
    assert!(first.complete && second.complete);
    assert_eq!(first.connections, 1);
    assert_eq!(subscription.next().await.unwrap().payload, "last");
    assert!(subscription.next().await.is_none());
    assert_eq!(client.publish("s", "").await, Err(PublishError::Closed));
    assert!(
        server.client().is_closed(),
        "a client of a stopped server is born closed"
    );
}

#[tokio::test]
async fn five_hundred_servers_live_side_by_side() {
    let mut servers = Vec::new();
    for n in 0..500 {
        let server = if n % 10 == 0 {
            Server::builder().listen_loopback().start().await.unwrap()
        } else {
            server().await
        };
        servers.push(server);
    }
    let mut subscriptions = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let client = server.client();
        let subscription = client.subscribe("n").await.unwrap();
        client.publish("n", n.to_string()).await.unwrap();
        subscriptions.push((client, subscription));
    }
    for (n, (_, subscription)) in subscriptions.iter_mut().enumerate() {
        assert_eq!(subscription.next().await.unwrap().payload, n.to_string());
    }
    drop(subscriptions);
    for server in servers {
        assert!(server.shutdown(DEADLINE).await.complete);
    }
}

#[tokio::test]
async fn mailboxes_share_the_memory_budget_and_give_it_back() {
    let server = Server::builder().memory_budget(1000).start().await.unwrap();
    let client = server.client();
    let (mut first, second) = (
        client.subscribe("a").await.unwrap(),
        client.subscribe("b").await.unwrap(),
    );
    client.publish("a", vec![0; 600]).await.unwrap();
    client.publish("b", vec![0; 600]).await.unwrap();
    assert_eq!((first.dropped(), second.dropped()), (0, 1));
    assert_eq!(server.memory().waiting, 601);
    first.next().await.unwrap();
    client.publish("b", vec![0; 600]).await.unwrap();
    assert_eq!(second.pending(), 1);
    drop(second);
    assert_eq!(server.memory().waiting, 0);
}

#[tokio::test]
async fn a_traced_message_tells_what_became_of_it() {
    let server = server().await;
    let client = server.client();
    let mut traces = client.subscribe("traces").await.unwrap();
    let mut tiny = client.subscribe_bounded("a.b", None, 1, 1 << 20).await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Trace-Dest", "traces").unwrap();
    for outcome in [
        None,
        Some("Not delivered because the mailbox of the subscription is full"),
    ] {
        client.publish_with_headers("a.b", &headers, "x").await.unwrap();
        let trace = traces.try_next().unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&trace.payload).unwrap();
        let events = trace["events"].as_array().unwrap();
        assert_eq!(events.len(), 2, "{trace}");
        assert_eq!(
            (&events[0]["type"], &events[0]["subj"]),
            (&"in".into(), &"a.b".into())
        );
        assert_eq!(
            (&events[1]["type"], &events[1]["sub"]),
            (&"eg".into(), &"a.b".into())
        );
        assert_eq!(events[1]["error"].as_str(), outcome);
    }
    headers.insert("Nats-Trace-Only", "true").unwrap();
    let _ = tiny.try_next().unwrap();
    client.publish_with_headers("a.b", &headers, "x").await.unwrap();
    assert!(traces.try_next().is_some());
    assert!(
        tiny.try_next().is_none(),
        "a message that is only traced was delivered"
    );
}
