//! What a worker must not be able to do: speak for others, or stop the rest with what nobody can handle.

use super::*;

/// In the identity layout who publishes is in the subject; the server's client is in the process, the worker's of either kind.
async fn forged(kind: Kind) {
    let setup = Setup::new(kind, Layout::Identity).await;
    for worker in ["w1", "w2"] {
        // Another worker registers by itself, on its own subject.
        let publication = Publication::new(To::Register, encode(&setup.registration(worker, 4)).unwrap());
        let own = publication.worker(Token::new(worker).unwrap());
        setup.broker.client().unwrap().publish(own).await.unwrap();
    }
    setup
        .until("both are registered", |store| store.workers().unwrap().len() == 2)
        .await;
    setup.submit("j", 1, 1);
    let leased = setup
        .farm
        .store
        .lock()
        .lease("w2", "", None, Layout::Identity, now_ms())
        .unwrap();
    let assignment = &leased.batch[0];
    setup.farm.store.lock().run("UPDATE workers SET seen_ms = 1");

    // On w1's subjects, about w2.
    let w2 = Token::new("w2").unwrap();
    setup
        .publish(
            To::Register,
            &RegisterMsg {
                instance_id: "x".to_owned(),
                ..setup.registration("w2", 99)
            },
        )
        .await;
    setup
        .publish(To::Heartbeat, &HeartbeatMsg::new(Layout::Identity, &w2))
        .await;
    setup
        .publish(To::Deregister, &DeregisterMsg::new(Layout::Identity, &w2))
        .await;
    let report = setup.report(assignment, "succeeded");
    setup.publish(Setup::job("j"), &report).await;
    setup
        .publish(
            Setup::job("j"),
            &TaskStatusMsg {
                worker_id: String::new(),
                ..report
            },
        )
        .await;
    let mut chunk = LogChunkMsg::new(Layout::Identity);
    chunk.task_id.clone_from(&assignment.task_id);
    chunk.attempt_id.clone_from(&assignment.attempt_id);
    chunk.seq_num = 1;
    setup
        .publish(To::TaskLogs(Token::new("t").unwrap()), &chunk)
        .await;
    setup.until_handled().await;
    until("the output is dealt with", || async {
        let js = setup.broker.jetstream().unwrap();
        let info = js.consumer_info(STREAM_LOGS, "sqi-task-logs-srv").await.unwrap();
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;

    assert_eq!(setup.state("j", 0), "assigned");
    let workers = setup.farm.store.lock().workers().unwrap();
    assert!(workers.iter().all(|worker| worker.online && worker.cpus == 4));
    let number = |of: &str| setup.farm.store.lock().number(of);
    assert_eq!(number("SELECT max(seen_ms) FROM workers"), 1);
    assert_eq!(number("SELECT count(*) FROM logs"), 0);
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_forged_messages_change_nothing_in_process() {
    forged(Kind::InProcess).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_forged_messages_change_nothing_over_tcp() {
    forged(Kind::OverTcp).await;
}

/// Only a client over TCP is a worker of the identity layout; the broker's own client asks for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k9_a_request_that_names_another_worker_gets_nothing() {
    let setup = Setup::new(Kind::OverTcp, Layout::Identity).await;
    setup.register("w1", 4).await;
    let publication = Publication::new(To::Register, encode(&setup.registration("w2", 4)).unwrap());
    let own = publication.worker(Token::new("w2").unwrap());
    setup.broker.client().unwrap().publish(own).await.unwrap();
    setup
        .until("both are registered", |store| store.workers().unwrap().len() == 2)
        .await;
    setup.submit("j", 1, 1);
    let reply = setup.lease("w2").await;
    assert!(
        reply.assignments.is_empty() && reply.reason.contains("another worker"),
        "{reply:?}"
    );
    assert_eq!(setup.state("j", 0), "ready");
    assert_eq!(setup.lease("w1").await.assignments.len(), 1);
    setup.end().await;
}

/// Scenario 20: what the store can never take is told among the dead letters, and nobody waits for it.
async fn poison(kind: Kind) {
    let quick = Profile {
        pause_max: Duration::from_millis(20),
        ..profile()
    };
    let setup = Setup::with(kind, Layout::Plain, quick).await;
    setup.register("w1", 4).await;
    for job in ["poison", "sound"] {
        setup.submit(job, 1, 1);
    }
    let leased = setup.lease("w1").await.assignments;
    setup.farm.store.lock().run(
        "CREATE TRIGGER poison BEFORE UPDATE ON attempts WHEN NEW.task LIKE 'poison%'
         BEGIN SELECT RAISE(ABORT, 'poisoned'); END",
    );
    for assignment in &leased {
        setup
            .publish(
                Setup::job(&assignment.job_id),
                &setup.report(assignment, "succeeded"),
            )
            .await;
    }
    setup
        .until("the sound one is through", |store| {
            store.jobs(Some("sound")).unwrap()[0].state == "succeeded"
        })
        .await;
    until("a dead letter", || async {
        setup.messages(STREAM_DEAD).await == 1
    })
    .await;
    let js = setup.broker.jetstream().unwrap();
    let letter = js.get_message(STREAM_DEAD, 1).await.unwrap().unwrap();
    let report: TaskStatusMsg = decode(&letter.payload).unwrap();
    assert_eq!(report.job_id, "poison");
    // It is counted after it is stored, and its message is gone last.
    until("it is counted", || async { setup.farm.client.counts().dead == 1 }).await;
    until("it is gone", || async { setup.messages(STREAM_TASK).await == 0 }).await;
    let counts = setup.farm.client.counts();
    assert_eq!(
        (counts.dead, counts.naked, counts.redelivered),
        (1, 9, 9),
        "{counts:?}"
    );
    assert_eq!(setup.state("poison", 0), "assigned");
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w03_w27_a_status_that_the_store_never_takes_becomes_a_dead_letter_in_process() {
    poison(Kind::InProcess).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w03_w27_a_status_that_the_store_never_takes_becomes_a_dead_letter_over_tcp() {
    poison(Kind::OverTcp).await;
}
