use windjet_bus::Layout;

use super::{Canceled, Chunk, Registration, Report, Reported, Step, Store, WHOLE_MACHINE};
use crate::profile::Profile;

fn worker(id: &str, cpus: i64) -> Registration {
    Registration {
        id: id.to_owned(),
        instance: "i1".to_owned(),
        boot_ms: 1,
        queues: Vec::new(),
        cpus,
    }
}

fn steps(tasks: u32) -> Vec<Step> {
    vec![Step {
        command: "true".to_owned(),
        tasks,
    }]
}

fn farm(cpus: i64) -> Store {
    let mut store = Store::in_memory();
    store.register(&worker("w1", cpus), 0).unwrap();
    store
}

fn lease(store: &mut Store, worker: &str, now: i64) -> Vec<String> {
    let leased = store.lease(worker, "i1", None, Layout::Plain, now).unwrap();
    leased.batch.into_iter().map(|one| one.attempt_id).collect()
}

fn report<'r>(attempt: &'r str, status: &'r str) -> Report<'r> {
    Report {
        task: attempt.rsplit_once("-a").unwrap().0,
        attempt,
        worker: "w1",
        status,
        exit_code: None,
        message: "",
        worker_shutdown: false,
        last_log_seq: 0,
    }
}

fn tell(store: &mut Store, attempt: &str, status: &str, now: i64) -> Reported {
    store
        .report(report(attempt, status), &Profile::named(true), now)
        .unwrap()
}

fn state(store: &Store, place: usize) -> String {
    store.jobs(Some("j")).unwrap()[0].tasks[place].state.clone()
}

fn job_state(store: &Store) -> String {
    store.jobs(Some("j")).unwrap()[0].state.clone()
}

#[test]
fn k1_four_tasks_of_one_core_fill_four_cores_in_one_batch() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(5), 1, 0).unwrap();
    assert_eq!(lease(&mut store, "w1", 1).len(), 4);
    assert_eq!(lease(&mut store, "w1", 1).len(), 0);
    assert_eq!(state(&store, 3), "assigned");
    assert_eq!(state(&store, 4), "ready");
}

#[test]
fn k2_k3_k4_what_does_not_fit_stays_ready() {
    let mut store = farm(4);
    store.submit("big", "q", &steps(1), 8, 0).unwrap();
    store.submit("three", "q", &steps(1), 3, 1).unwrap();
    store.submit("two", "q", &steps(1), 2, 2).unwrap();
    assert_eq!(lease(&mut store, "w1", 3), ["three-s0-t0-a1"]);
    let mut store = farm(4);
    store.submit("whole", "q", &steps(2), WHOLE_MACHINE, 0).unwrap();
    assert_eq!(lease(&mut store, "w1", 1), ["whole-s0-t0-a1"]);
    assert_eq!(lease(&mut store, "w1", 1).len(), 0);
}

#[test]
fn w12_a_worker_of_two_queues_never_gets_a_third_and_a_request_names_its_queue() {
    let mut store = Store::in_memory();
    let mut two = worker("w1", 8);
    two.queues = vec!["q1".to_owned(), "q2".to_owned()];
    store.register(&two, 0).unwrap();
    for queue in ["q1", "q2", "q3"] {
        store.submit(queue, queue, &steps(1), 1, 0).unwrap();
    }
    let leased = store.lease("w1", "i1", Some("q2"), Layout::Plain, 1).unwrap();
    assert_eq!(leased.batch[0].job_id, "q2");
    assert_eq!(lease(&mut store, "w1", 1), ["q1-s0-t0-a1"]);
    assert!(store.lease("w1", "i1", None, Layout::Plain, 1).unwrap().more);
}

#[test]
fn a_queue_has_a_limit() {
    let mut store = farm(8);
    store.limit_queue("q", 2).unwrap();
    store.submit("j", "q", &steps(5), 1, 0).unwrap();
    assert_eq!(lease(&mut store, "w1", 1).len(), 2);
    tell(&mut store, "j-s0-t0-a1", "succeeded", 2);
    assert_eq!(lease(&mut store, "w1", 3).len(), 1);
}

#[test]
fn w14_an_offline_worker_is_told_to_register_and_a_heartbeat_brings_it_back() {
    let mut store = farm(4);
    assert!(store.lease("other", "", None, Layout::Plain, 1).unwrap().register);
    assert!(store.lease("w1", "i2", None, Layout::Plain, 1).unwrap().register);
    assert_eq!(store.sweep(10, 20).unwrap(), ["w1"]);
    assert!(store.lease("w1", "i1", None, Layout::Plain, 21).unwrap().register);
    assert_eq!(store.heartbeat("w1", &[], 22).unwrap(), Some(Vec::new()));
    assert!(!store.lease("w1", "i1", None, Layout::Plain, 23).unwrap().register);
    assert_eq!(store.heartbeat("nobody", &[], 22).unwrap(), None);
}

#[test]
fn h6_a_silent_workers_tasks_are_ready_again_without_a_failure() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(2), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    tell(&mut store, "j-s0-t0-a1", "running", 2);
    assert_eq!(store.sweep(0, 5).unwrap().len(), 0);
    store.sweep(10, 20).unwrap();
    let job = store.jobs(Some("j")).unwrap().pop().unwrap();
    for task in &job.tasks {
        assert_eq!(
            (task.state.as_str(), task.message.as_str(), task.worker.as_str()),
            ("ready", "", "")
        );
    }
    // A late report of the old execution changes nothing.
    store
        .register(
            &Registration {
                id: "w2".to_owned(),
                ..worker("w2", 4)
            },
            21,
        )
        .unwrap();
    assert_eq!(lease(&mut store, "w2", 22).len(), 2);
    assert!(matches!(
        tell(&mut store, "j-s0-t0-a1", "succeeded", 23),
        Reported::Ignored(_)
    ));
    assert_eq!(state(&store, 0), "assigned");
}

#[test]
fn h7_only_tasks_assigned_for_too_long_are_reaped() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(2), 1, 0).unwrap();
    lease(&mut store, "w1", 10);
    tell(&mut store, "j-s0-t1-a1", "running", 11);
    assert_eq!(store.reap(10, 12).unwrap(), 0);
    assert_eq!(store.reap(11, 12).unwrap(), 1);
    assert_eq!(
        (state(&store, 0).as_str(), state(&store, 1).as_str()),
        ("ready", "running")
    );
}

#[test]
fn h3_a_farewell_gives_tasks_back_and_one_of_an_older_process_does_not() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(1), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    assert_eq!(store.deregister("w1", "i0", 2).unwrap(), 0);
    assert_eq!(state(&store, 0), "assigned");
    assert_eq!(store.deregister("w1", "i1", 3).unwrap(), 1);
    assert_eq!(state(&store, 0), "ready");
    assert!(!store.workers().unwrap()[0].online);
}

#[test]
fn w13_a_new_process_takes_over_and_an_old_registration_is_ignored() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(1), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    let newer = Registration {
        instance: "i2".to_owned(),
        boot_ms: 2,
        ..worker("w1", 4)
    };
    assert!(store.register(&newer, 2).unwrap());
    assert_eq!(state(&store, 0), "ready");
    assert!(!store.register(&worker("w1", 4), 3).unwrap());
    assert!(store.lease("w1", "i1", None, Layout::Plain, 4).unwrap().register);
    assert_eq!(
        store
            .lease("w1", "i2", None, Layout::Plain, 4)
            .unwrap()
            .batch
            .len(),
        1
    );
}

#[test]
fn failures_are_tried_again_after_a_pause_and_a_workers_shutdown_costs_no_try() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(1), 1, 0).unwrap();
    let mut now = 1;
    lease(&mut store, "w1", now);
    let stopped = Report {
        worker_shutdown: true,
        ..report("j-s0-t0-a1", "failed")
    };
    store.report(stopped, &Profile::named(true), now).unwrap();
    for attempt in ["j-s0-t0-a2", "j-s0-t0-a3", "j-s0-t0-a4"] {
        assert_eq!(lease(&mut store, "w1", now), [attempt]);
        tell(&mut store, attempt, "running", now);
        tell(&mut store, attempt, "failed", now);
        assert_eq!(lease(&mut store, "w1", now + 299).len(), 0);
        now += 300;
    }
    assert_eq!(
        (state(&store, 0).as_str(), job_state(&store).as_str()),
        ("failed", "failed")
    );
}

#[test]
fn steps_follow_each_other_and_a_failed_one_ends_the_job() {
    let mut store = farm(4);
    let two = [steps(2), steps(1)].concat();
    store.submit("j", "q", &two, 1, 0).unwrap();
    assert_eq!(lease(&mut store, "w1", 1).len(), 2);
    tell(&mut store, "j-s0-t0-a1", "succeeded", 2);
    assert_eq!(state(&store, 2), "pending");
    assert_eq!(
        tell(&mut store, "j-s0-t1-a1", "succeeded", 2),
        Reported::Applied {
            queue: "q".to_owned()
        }
    );
    assert_eq!(lease(&mut store, "w1", 3), ["j-s1-t0-a1"]);
    tell(&mut store, "j-s1-t0-a1", "succeeded", 4);
    assert_eq!(tell(&mut store, "j-s1-t0-a1", "succeeded", 5), Reported::Same);
    assert_eq!(job_state(&store), "succeeded");
}

#[test]
fn a_cancel_names_those_that_run_and_a_heartbeat_those_that_should_not() {
    let mut store = farm(1);
    store.submit("j", "q", &steps(2), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    let held = store.cancel(Some("j"), None, 2).unwrap();
    let canceled = Canceled {
        task: "j-s0-t0".to_owned(),
        attempt: String::new(),
        job: "j".to_owned(),
    };
    assert_eq!(held, std::slice::from_ref(&canceled));
    assert_eq!(job_state(&store), "canceled");
    assert_eq!(store.cancel(Some("j"), None, 3).unwrap(), []);
    let stray = store.heartbeat("w1", &["j-s0-t0".to_owned()], 4).unwrap();
    let attempt = "j-s0-t0-a1".to_owned();
    assert_eq!(stray, Some(vec![Canceled { attempt, ..canceled }]));
    assert!(matches!(
        tell(&mut store, "j-s0-t0-a1", "succeeded", 5),
        Reported::Ignored(_)
    ));
}

#[test]
fn a_heartbeat_ends_only_the_execution_that_its_worker_was_given() {
    let mut store = farm(1);
    store.register(&worker("w2", 1), 0).unwrap();
    store.submit("j", "q", &steps(1), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    // It was not reported running in time, and went to another worker.
    assert_eq!(store.reap(2, 3).unwrap(), 1);
    assert_eq!(lease(&mut store, "w2", 4), ["j-s0-t0-a2"]);
    let running = ["j-s0-t0".to_owned()];
    let stray = store.heartbeat("w1", &running, 5).unwrap().unwrap();
    assert_eq!(stray.len(), 1);
    assert_eq!(stray[0].attempt, "j-s0-t0-a1");
    assert_eq!(store.heartbeat("w2", &running, 5).unwrap(), Some(Vec::new()));
}

#[test]
fn h1_reports_that_cannot_be_believed_are_ignored() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(2), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    let profile = Profile::named(true);
    let wrong = [
        Report {
            attempt: "none",
            ..report("j-s0-t0-a1", "running")
        },
        Report {
            task: "j-s0-t1",
            ..report("j-s0-t0-a1", "running")
        },
        Report {
            worker: "w2",
            ..report("j-s0-t0-a1", "running")
        },
        report("j-s0-t0-a1", "dancing"),
    ];
    for report in wrong {
        assert!(
            matches!(store.report(report, &profile, 2).unwrap(), Reported::Ignored(_)),
            "{report:?}"
        );
    }
    assert_eq!(state(&store, 0), "assigned");
}

#[test]
fn output_is_stored_once_in_order_and_what_is_missing_is_counted() {
    let mut store = farm(4);
    store.submit("j", "q", &steps(1), 1, 0).unwrap();
    lease(&mut store, "w1", 1);
    let chunk = |seq| Chunk {
        attempt: "j-s0-t0-a1".to_owned(),
        seq,
        stream: "stdout".to_owned(),
        data: format!("line {seq}"),
    };
    for seq in [2, 1, 1, 2] {
        store.log(&chunk(seq)).unwrap();
    }
    let end = Report {
        last_log_seq: 3,
        ..report("j-s0-t0-a1", "succeeded")
    };
    store.report(end, &Profile::named(true), 2).unwrap();
    assert_eq!(store.jobs(Some("j")).unwrap()[0].tasks[0].missing_logs, 1);
    store.log(&chunk(3)).unwrap();
    assert_eq!(store.jobs(Some("j")).unwrap()[0].tasks[0].missing_logs, 0);
    let read = |after| {
        store
            .logs("j-s0-t0", after)
            .unwrap()
            .iter()
            .map(|one| one.seq)
            .collect::<Vec<_>>()
    };
    assert_eq!(read(None), [1, 2, 3]);
    assert_eq!(read(Some(("j-s0-t0-a1", 2))), [3]);
}
