//! Provisioning: idempotent, mends drift, refuses what a live stream cannot become.

use std::path::Path;
use std::time::Duration;

use windjet_bus::broker::StreamLimits;
use windjet_bus::streams::{STREAM_LOGS, STREAM_TASK};
use windjet_bus::{Broker, Bus, ErrorKind, Layout};
use windjet_protocol::jetstream::{RetentionPolicy, StorageType, StreamConfig};
use windjet_server::Server;

use crate::support::{Kind, LIMIT, Setup, bytes, config, token, until};

async fn stored() -> Setup {
    let setup = Setup::new(Kind::InProcess).await;
    let client = setup.client().await;
    client
        .publish_task_status(&token("j1"), bytes("kept"))
        .await
        .unwrap();
    setup
}

#[tokio::test]
async fn t2_provisioning_again_changes_nothing_and_keeps_messages() {
    let mut setup = stored().await;
    let before = setup.js().stream_info(STREAM_TASK).await.unwrap();
    setup.restart().await;
    let after = setup.js().stream_info(STREAM_TASK).await.unwrap();
    assert_eq!(after.config, before.config);
    assert_eq!(
        (after.state.messages, after.state.last_seq),
        (1, before.state.last_seq)
    );
}

#[tokio::test]
async fn t3_a_changed_limit_is_applied_at_the_next_start_and_messages_stay() {
    let setup = stored().await;
    let mut config = setup.broker.config().clone();
    setup.broker.shutdown(LIMIT).await.unwrap();
    config.streams = StreamLimits {
        task_age: Duration::from_secs(7200),
        ..StreamLimits::default()
    };
    let broker = Broker::new(config);
    broker.start().await.unwrap();
    let info = broker
        .jetstream()
        .unwrap()
        .stream_info(STREAM_TASK)
        .await
        .unwrap();
    assert_eq!(info.config.max_age.0, 7_200_000_000_000);
    assert_eq!(info.state.messages, 1);
    broker.shutdown(LIMIT).await.unwrap();
}

#[tokio::test]
async fn t3_the_layout_can_be_changed_and_the_subjects_follow() {
    let setup = stored().await;
    let mut config = setup.broker.config().clone();
    setup.broker.shutdown(LIMIT).await.unwrap();
    config.layout = Layout::Identity;
    let broker = Broker::new(config);
    broker.start().await.unwrap();
    let info = broker
        .jetstream()
        .unwrap()
        .stream_info("SQI_WORKER")
        .await
        .unwrap();
    assert_eq!(
        info.config.subjects,
        ["worker.register.>", "worker.heartbeat.>", "worker.deregister.>"]
    );
    broker.shutdown(LIMIT).await.unwrap();
}

#[tokio::test]
async fn t4_a_stream_that_cannot_become_what_is_wanted_is_an_error_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    let server = Server::builder()
        .jetstream(&config.data_dir)
        .start()
        .await
        .unwrap();
    let other = StreamConfig {
        name: STREAM_TASK.to_owned(),
        subjects: vec!["task.status.>".to_owned()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        ..StreamConfig::default()
    };
    let js = server.jetstream().unwrap();
    js.create_stream(other).await.unwrap();
    server.client().request("task.status.j1", "kept").await.unwrap();
    server.shutdown(LIMIT).await;

    let broker = Broker::new(config.clone());
    let error = broker.start().await.unwrap_err();
    let ErrorKind::Incompatible { stream, field } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(stream, STREAM_TASK);
    assert!(field.contains("retention"), "{field}");

    let server = Server::builder()
        .jetstream(&config.data_dir)
        .start()
        .await
        .unwrap();
    let info = server
        .jetstream()
        .unwrap()
        .stream_info(STREAM_TASK)
        .await
        .unwrap();
    assert_eq!(
        (info.config.retention, info.state.messages),
        (RetentionPolicy::Limits, 1)
    );
    server.shutdown(LIMIT).await;
}

on_both! {
    /// B-12, W-17: output twice as large as the whole cap never makes a status fail, stays within its share, and the folder's
    /// files never take more than the cap and a tenth. The folder was written under a larger cap, and comes down.
    async fn b12_w17_output_that_fills_its_share_never_refuses_a_status(setup: Setup) {
        const CAP: u64 = 8 * 1024 * 1024;
        let mut setup = setup;
        let mut config = setup.broker.config().clone();
        let folder = config.data_dir.clone();
        setup.broker.shutdown(LIMIT).await.unwrap();
        config.max_store_mb = 8;
        setup.broker = Broker::new(config);
        setup.broker.start().await.unwrap();
        until("the files come down", || async { size_of(&folder) <= CAP / 10 * 11 }).await;
        let client = setup.client().await;
        let mut most = 0;
        for (len, count) in [(64 * 1024, 256_u32), (1024, 2000)] {
            let chunk = bytes(&"x".repeat(len));
            for number in 0..count {
                client.publish_task_log(&token("t1"), chunk.clone()).await.unwrap();
                if number % 8 == 0 {
                    client.publish_task_status(&token("j1"), bytes(&number.to_string())).await.unwrap();
                    let logs = setup.js().stream_info(STREAM_LOGS).await.unwrap().state;
                    assert!(logs.bytes <= CAP * 45 / 100, "{} bytes of output", logs.bytes);
                    let files = size_of(&folder);
                    most = most.max(files);
                    assert!(files <= CAP / 10 * 11, "{files} bytes of files after {number} chunks of {len}");
                }
            }
        }
        assert!(most > CAP / 2, "{most} bytes: the folder that was measured is not the one in use");
        assert_eq!(setup.messages(STREAM_TASK).await, 32 + 250);
        let logs = setup.js().stream_info(STREAM_LOGS).await.unwrap().state;
        assert!(logs.first_seq > 1 && logs.last_seq == 2256, "{logs:?}");
        client.drain(LIMIT).await.unwrap();
        setup.restart().await;
        assert_eq!(setup.messages(STREAM_TASK).await, 32 + 250);
        assert_eq!(setup.messages(STREAM_LOGS).await, logs.messages);
        let files = size_of(&folder);
        assert!(files <= CAP / 10 * 11, "{files} bytes of files after a restart");
    }
}

/// A start whose shares leave the store no room, or whose cap is less than any store keeps to, says so at once.
#[tokio::test]
async fn b12_a_cap_that_cannot_be_kept_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    config.max_store_mb = 7;
    let error = Broker::new(config.clone()).start().await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Config) && error.to_string().contains("at least 8"),
        "{error}"
    );
    config.max_store_mb = 64;
    config.streams.logs_share = 60;
    let error = Broker::new(config).start().await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Config) && error.to_string().contains("at most 75"),
        "{error}"
    );
}

/// Bytes of all files below a folder.
fn size_of(folder: &Path) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        sum += match entry.metadata() {
            Ok(of) if of.is_dir() => size_of(&entry.path()),
            Ok(of) => of.len(),
            // The store removed it meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => panic!("{error}"),
        };
    }
    sum
}
