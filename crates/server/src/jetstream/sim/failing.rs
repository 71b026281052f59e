//! A journal that fails under JetStream: what can no longer be promised is not promised, and reading goes on.

use std::io::ErrorKind;
use std::time::Duration;

use windjet_store::{SimDisk, Survival};

use super::{World, clock, runtime};
use crate::jetstream::{
    AckError, AckPolicy, ConsumerConfig, ErrorCode, FetchOptions, RetentionPolicy, StreamConfig,
};

#[test]
fn a_failed_journal_refuses_and_confirms_nothing_and_reads_go_on() {
    runtime().block_on(async {
        let (disk, clock) = (SimDisk::new(1), clock());
        let world = World::start(&disk, &clock).await;
        let js = &world.js;
        let config = StreamConfig {
            name: "Q".into(),
            subjects: vec!["q".into()],
            retention: RetentionPolicy::WorkQueue,
            ..StreamConfig::default()
        };
        world.drive(js.create_stream(config)).await.unwrap().unwrap();
        let config = ConsumerConfig {
            durable_name: Some("C".into()),
            ack_policy: AckPolicy::Explicit,
            ..ConsumerConfig::default()
        };
        world
            .drive(js.create_consumer("Q", config))
            .await
            .unwrap()
            .unwrap();
        for _ in 0..4 {
            world
                .drive(js.publish("Q", "q", "x").unwrap())
                .await
                .unwrap()
                .unwrap();
        }
        let c = world.drive(js.consumer("Q", "C")).await.unwrap().unwrap();
        let two = FetchOptions::new(2).no_wait();
        let got = world.drive(c.fetch_with(&two)).await.unwrap().unwrap();
        assert_eq!(got.len(), 2);

        disk.fail_syncs(Some(("journal", ErrorKind::Other)));
        // On their way when the journal fails: nobody knows.
        let on_its_way = js.publish("Q", "q", "x").unwrap();
        tokio::task::yield_now().await;
        let purged = world
            .drive(js.purge_stream("Q", Default::default()))
            .await
            .unwrap();
        assert!(purged.is_err());
        let failed = world.drive(on_its_way).await.unwrap().unwrap_err();
        assert!(failed.outcome_unknown(), "{failed:?}");
        // After that: refused, and known to be so; also behind a purge that never comes to an end.
        let refused = world
            .drive(js.publish("Q", "q", "x").unwrap())
            .await
            .unwrap()
            .unwrap_err();
        assert!(!refused.outcome_unknown(), "{refused:?}");
        let unconfirmed = world.drive(got[0].double_ack()).await.unwrap();
        assert_eq!(unconfirmed, Err(AckError::OutcomeUnknown));
        let purged = world
            .drive(js.purge_stream("Q", Default::default()))
            .await
            .unwrap();
        assert!(purged.is_err());
        let made = world.drive(js.delete_consumer("Q", "C")).await.unwrap();
        assert!(made.is_err_and(|error| error.is(ErrorCode::StoreFailed)));
        // Reading goes on.
        assert!(
            world
                .drive(js.get_message("Q", 3))
                .await
                .unwrap()
                .unwrap()
                .is_some()
        );
        assert_eq!(
            world
                .drive(js.stream_info("Q"))
                .await
                .unwrap()
                .unwrap()
                .state
                .messages,
            4
        );
        disk.stop_after(0);
        drop(world);
        drop(got);

        // The store opens again, and has all that was acknowledged.
        disk.fail_syncs(None);
        disk.power_cut(Survival::Nothing);
        let world = World::start(&disk, &clock).await;
        world.pass(&clock, Duration::from_secs(60)).await;
        let state = world
            .drive(world.js.stream_info("Q"))
            .await
            .unwrap()
            .unwrap()
            .state;
        assert_eq!(state.messages, 4, "{state:?}");
        assert!(world.shutdown().await);
    });
}
