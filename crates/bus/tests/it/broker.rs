//! The broker's life: states, bad input, the disk cap.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windjet_bus::broker::Auth;
use windjet_bus::client::ConnectOptions;
use windjet_bus::{Broker, BrokerConfig, Bus, Client, ErrorKind, Layout};

use crate::support::{Kind, LIMIT, Setup, bytes, config, quick, token};

async fn start_error(config: BrokerConfig) -> ErrorKind {
    let broker = Broker::new(config);
    let begun = Instant::now();
    let error = broker.start().await.unwrap_err();
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{error} took {:?}",
        begun.elapsed()
    );
    assert_eq!(broker.client_url(), None);
    assert!(broker.check().await.is_err());
    error.kind().clone()
}

#[tokio::test]
async fn b1_before_the_start_nothing_works_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::new(config(&folder));
    assert_eq!(broker.check().await.unwrap_err().kind(), &ErrorKind::NotStarted);
    assert_eq!(broker.client().unwrap_err().kind(), &ErrorKind::NotStarted);
    assert_eq!(broker.client_url(), None);
    let reload = broker.reload_credentials(Vec::new()).await;
    assert_eq!(reload.unwrap_err().kind(), &ErrorKind::NotStarted);
    broker.shutdown(LIMIT).await.unwrap();
}

#[tokio::test]
async fn b2_b5_after_the_start_the_check_is_good_and_the_four_streams_exist() {
    let setup = Setup::new(Kind::InProcess).await;
    let health = setup.broker.check().await.unwrap();
    assert_eq!(health.cap, Some(64 * 1024 * 1024));
    let names: Vec<&str> = health.messages.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["SQI_TASK", "SQI_LOGS", "SQI_WORKER", "SQI_CANCEL"]);
    let again = setup.broker.start().await.unwrap_err();
    assert_eq!(again.kind(), &ErrorKind::AlreadyStarted);
}

#[tokio::test]
async fn b3_after_a_shutdown_the_check_fails_and_a_second_shutdown_is_harmless() {
    let setup = Setup::new(Kind::InProcess).await;
    setup.broker.shutdown(LIMIT).await.unwrap();
    assert_eq!(
        setup.broker.check().await.unwrap_err().kind(),
        &ErrorKind::NotStarted
    );
    assert_eq!(setup.broker.client_url(), None);
    setup.broker.shutdown(LIMIT).await.unwrap();
}

#[tokio::test]
async fn b4_an_address_that_is_none_makes_the_start_fail() {
    let folder = tempfile::tempdir().unwrap();
    for addr in [
        "127.0.0.1",
        "127.0.0.1:abc",
        "127.0.0.1:70000",
        "127.0.0.1:-1",
        "",
        "::1:4222",
    ] {
        let config = BrokerConfig {
            addr: addr.to_owned(),
            ..config(&folder)
        };
        assert_eq!(start_error(config).await, ErrorKind::BadAddr, "{addr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b6_a_shutdown_beside_every_other_call_tears_nothing() {
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let broker = Arc::new(Broker::new(config(&folder)));
        broker.start().await.unwrap();
        let asking = broker.clone();
        let asker = tokio::spawn(async move {
            loop {
                let url = asking.client_url();
                let client = asking.client();
                let check = asking.check().await;
                let _ = asking.reload_credentials(Vec::new()).await;
                // Either it runs or it does not; what it says afterwards is never more than before.
                if url.is_none() {
                    assert!(client.is_err() && check.is_err());
                    return;
                }
            }
        });
        let (first, second) = tokio::join!(broker.shutdown(LIMIT), broker.shutdown(LIMIT));
        first.unwrap();
        second.unwrap();
        asker.await.unwrap();
    }
}

#[tokio::test]
async fn b13_a_port_in_use_is_named_within_a_second_and_nothing_stays_behind() {
    let setup = Setup::new(Kind::InProcess).await;
    let folder = tempfile::tempdir().unwrap();
    let taken = setup.broker.client_url().unwrap().replace("nats://", "");
    let config = BrokerConfig {
        addr: taken,
        ..config(&folder)
    };
    assert_eq!(start_error(config.clone()).await, ErrorKind::AddrInUse);
    setup.broker.check().await.unwrap();
    setup.broker.shutdown(LIMIT).await.unwrap();
    let broker = Broker::new(config);
    broker.start().await.unwrap();
    broker.shutdown(LIMIT).await.unwrap();
}

#[tokio::test]
async fn b13_a_folder_that_cannot_be_used_is_named_and_another_brokers_folder_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"no folder").unwrap();
    let config = BrokerConfig {
        data_dir: file,
        ..config(&folder)
    };
    assert_eq!(start_error(config).await, ErrorKind::Storage);
    let setup = Setup::new(Kind::InProcess).await;
    let mut same = setup.broker.config().clone();
    same.addr = "127.0.0.1:0".to_owned();
    assert_eq!(start_error(same).await, ErrorKind::InUse);
    setup.broker.check().await.unwrap();
}

#[tokio::test]
async fn b14_port_0_gives_an_address_that_can_be_dialled_also_when_listening_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::new(BrokerConfig {
        addr: "0.0.0.0:0".to_owned(),
        allow_unauthenticated: true,
        ..config(&folder)
    });
    broker.start().await.unwrap();
    let url = broker.client_url().unwrap();
    assert!(
        url.starts_with("nats://127.0.0.1:") && !url.ends_with(":0"),
        "{url}"
    );
    let client = Client::connect(&url, quick()).await.unwrap();
    client.publish_worker_register(bytes("hello")).await.unwrap();
    client.drain(LIMIT).await.unwrap();
    broker.shutdown(LIMIT).await.unwrap();
}

#[tokio::test]
async fn w02_listening_everywhere_without_authentication_must_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for addr in ["0.0.0.0:0", ":0", "[::]:0"] {
        let config = BrokerConfig {
            addr: addr.to_owned(),
            ..config(&folder)
        };
        assert_eq!(start_error(config).await, ErrorKind::Exposed, "{addr}");
    }
    let authenticated = BrokerConfig {
        addr: "0.0.0.0:0".to_owned(),
        layout: Layout::Identity,
        auth: Some(Auth::default()),
        ..config(&folder)
    };
    let broker = Broker::new(authenticated.clone());
    broker.start().await.unwrap();
    broker.shutdown(LIMIT).await.unwrap();
    let plain = BrokerConfig {
        layout: Layout::Plain,
        ..authenticated
    };
    assert_eq!(start_error(plain).await, ErrorKind::Config);
}

#[tokio::test]
async fn w25_a_worker_may_be_started_before_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("nats://{addr}");
    let once = Client::connect(&url, ConnectOptions::new()).await.unwrap_err();
    assert_eq!(once.kind(), &ErrorKind::Connect);
    assert!(once.to_string().contains(&url), "{once}");
    let connecting = tokio::spawn(async move { Client::connect_patiently(&url, quick()).await });
    tokio::task::yield_now().await;
    let broker = Broker::new(BrokerConfig {
        addr: addr.to_string(),
        ..config(&folder)
    });
    broker.start().await.unwrap();
    let client = tokio::time::timeout(LIMIT, connecting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    client
        .publish_task_status(&token("j1"), bytes("x"))
        .await
        .unwrap();
    client.close().await;
    broker.shutdown(LIMIT).await.unwrap();
}
