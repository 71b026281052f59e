//! The scheduler's side of the contract, over the bus: the server's and the workers' clients in process, and over TCP.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use windjet_bus::client::{Publication, To};
use windjet_bus::message::{
    AssignMsg, DeregisterMsg, HeartbeatMsg, LeaseReply, LeaseRequest, LogChunkMsg, RegisterMsg,
    TaskStatusMsg, Timestamp, decode, encode,
};
use windjet_bus::streams::{STREAM_DEAD, STREAM_LOGS, STREAM_TASK, STREAM_WORKER};
use windjet_bus::{Broker, BrokerConfig, Bus as _, Client, ConnectOptions, Layout, Token};

use super::{Farm, sweep};
use crate::profile::Profile;
use crate::store::{Step, Store, now_ms};

mod hostile;

const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    InProcess,
    OverTcp,
}

/// Runs a test with clients in the broker's process and with clients over TCP.
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($setup:ident: Setup) $body:block)*) => {
        $(
            mod $name {
                use super::*;

                $(#[$doc])*
                async fn check($setup: Setup) $body

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn in_process() {
                    check(Setup::new(Kind::InProcess, Layout::Plain).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn over_tcp() {
                    check(Setup::new(Kind::OverTcp, Layout::Plain).await).await;
                }
            }
        )*
    };
}

struct Setup {
    kind: Kind,
    broker: Arc<Broker>,
    farm: Arc<Farm>,
    worker: Client,
    _folder: TempDir,
}

/// Times of a test: what is waited for in it is short, what must not happen in it is far away.
fn profile() -> Profile {
    Profile {
        hold: Duration::from_secs(2),
        sweep: Duration::from_secs(3600),
        ..Profile::named(true)
    }
}

async fn client(kind: Kind, broker: &Broker, layout: Layout, worker: Option<&str>) -> Client {
    if kind == Kind::InProcess {
        return broker.client().unwrap();
    }
    let mut options = ConnectOptions::new();
    options.layout = layout;
    options.worker = worker.map(|worker| Token::new(worker).unwrap());
    Client::connect(&broker.client_url().unwrap(), options)
        .await
        .unwrap()
}

impl Setup {
    async fn new(kind: Kind, layout: Layout) -> Self {
        Self::with(kind, layout, profile()).await
    }

    async fn with(kind: Kind, layout: Layout, profile: Profile) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Arc::new(Broker::new(BrokerConfig {
            addr: "127.0.0.1:0".to_owned(),
            data_dir: folder.path().join("bus"),
            max_store_mb: 64,
            layout,
            ..BrokerConfig::default()
        }));
        broker.start().await.unwrap();
        // Over TCP only workers are of the identity layout.
        let of_server = if layout == Layout::Identity {
            Kind::InProcess
        } else {
            kind
        };
        let server = client(of_server, &broker, layout, None).await;
        let worker = client(kind, &broker, layout, Some("w1")).await;
        let farm = Farm::open(broker.clone(), server, Store::in_memory(), profile)
            .await
            .unwrap();
        Self {
            kind,
            broker,
            farm,
            worker,
            _folder: folder,
        }
    }

    fn layout(&self) -> Layout {
        self.worker.layout()
    }

    fn registration(&self, worker: &str, cpus: i64) -> RegisterMsg {
        let mut message = RegisterMsg::new(self.layout(), &Token::new(worker).unwrap());
        message.cpu_count = cpus;
        message
    }

    async fn publish(&self, to: To, message: &impl serde::Serialize) {
        let mut publication = Publication::new(to, encode(message).unwrap());
        if self.layout() == Layout::Identity && self.kind == Kind::InProcess {
            publication = publication.worker(Token::new("w1").unwrap());
        }
        self.worker.publish(publication).await.unwrap();
    }

    /// A worker that is registered.
    async fn register(&self, worker: &str, cpus: i64) {
        self.publish(To::Register, &self.registration(worker, cpus)).await;
        self.until("the worker is registered", |store| {
            store
                .workers()
                .unwrap()
                .iter()
                .any(|one| one.id == worker && one.online)
        })
        .await;
    }

    fn submit(&self, job: &str, tasks: u32, cores: i64) {
        let steps = [Step {
            command: "true".to_owned(),
            tasks,
        }];
        self.farm
            .store
            .lock()
            .submit(job, "q", &steps, cores, now_ms())
            .unwrap();
        self.farm.waiters.wake("q");
    }

    async fn ask(&self, request: &LeaseRequest) -> LeaseReply {
        let answer = self
            .worker
            .request_lease("q", encode(request).unwrap(), LIMIT)
            .await
            .unwrap();
        decode(&answer).unwrap()
    }

    async fn lease(&self, worker: &str) -> LeaseReply {
        self.ask(&LeaseRequest {
            worker_id: worker.to_owned(),
            ..LeaseRequest::default()
        })
        .await
    }

    fn state(&self, job: &str, task: usize) -> String {
        self.farm.store.lock().jobs(Some(job)).unwrap()[0].tasks[task]
            .state
            .clone()
    }

    fn report(&self, assignment: &AssignMsg, status: &str) -> TaskStatusMsg {
        let mut report = TaskStatusMsg::new(self.layout(), status);
        report.task_id.clone_from(&assignment.task_id);
        report.attempt_id.clone_from(&assignment.attempt_id);
        report.job_id.clone_from(&assignment.job_id);
        report.worker_id.clone_from(&assignment.worker_id);
        report
    }

    fn job(job: &str) -> To {
        To::TaskStatus(Token::new(job).unwrap())
    }

    async fn messages(&self, stream: &str) -> u64 {
        self.broker
            .jetstream()
            .unwrap()
            .stream_info(stream)
            .await
            .unwrap()
            .state
            .messages
    }

    /// Everything that was published is handled and gone, and nothing of it became a dead letter.
    async fn until_handled(&self) {
        until("all messages are handled", || async {
            self.messages(STREAM_WORKER).await == 0 && self.messages(STREAM_TASK).await == 0
        })
        .await;
        assert_eq!(self.messages(STREAM_DEAD).await, 0);
        let counts = self.farm.client.counts();
        assert_eq!((counts.naked, counts.termed), (0, 0), "{counts:?}");
    }

    async fn until(&self, what: &str, condition: impl Fn(&Store) -> bool) {
        until(what, || async { condition(&self.farm.store.lock()) }).await;
    }

    async fn end(self) {
        self.worker.drain(LIMIT).await.unwrap();
        self.farm.client.drain(LIMIT).await.unwrap();
        self.broker.shutdown(LIMIT).await.unwrap();
    }
}

/// Between two looks at a condition that has a deadline.
async fn until<F, R>(what: &str, mut condition: F)
where
    F: FnMut() -> R,
    R: Future<Output = bool>,
{
    let end = Instant::now() + LIMIT;
    while !condition().await {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

on_both! {
    async fn k1_a_batch_takes_as_many_cores_as_are_free(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("j", 4, 1);
        let reply = setup.lease("w1").await;
        assert_eq!(reply.assignments.len(), 4);
        assert!((0..4).all(|task| setup.state("j", task) == "assigned"));
        setup.end().await;
    }

    async fn k2_k3_k4_what_does_not_fit_is_not_leased(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("eight", 1, 8);
        setup.submit("three", 1, 3);
        setup.submit("two", 1, 2);
        let reply = setup.lease("w1").await;
        assert_eq!(reply.assignments.len(), 1);
        assert_eq!(reply.assignments[0].job_id, "three");
        assert_eq!(setup.state("eight", 0), "ready");
        setup.publish(Setup::job("three"), &setup.report(&reply.assignments[0], "succeeded")).await;
        setup.until("the cores are free", |store| store.jobs(Some("three")).unwrap()[0].state == "succeeded").await;
        setup.farm.store.lock().cancel(Some("two"), None, now_ms()).unwrap();
        setup.submit("whole", 2, crate::store::WHOLE_MACHINE);
        let reply = setup.lease("w1").await;
        assert_eq!(reply.assignments.len(), 1);
        assert_eq!(setup.lease("w1").await.assignments.len(), 0);
        setup.end().await;
    }

    /// The answer says that the store failed; it is not an answer without work.
    async fn k5_a_store_error_in_the_policy_gate_is_told(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("j", 1, 1);
        setup.farm.store.lock().run("ALTER TABLE queues RENAME TO away");
        let begun = Instant::now();
        let reply = setup.lease("w1").await;
        assert!(reply.assignments.is_empty() && reply.reason.contains("store failed"), "{reply:?}");
        assert!(begun.elapsed() >= Duration::from_secs(1));
        assert_eq!(setup.state("j", 0), "ready");
        setup.farm.store.lock().run("ALTER TABLE away RENAME TO queues");
        assert_eq!(setup.lease("w1").await.assignments.len(), 1);
        setup.end().await;
    }

    async fn k6_without_work_the_answer_comes_after_the_hold_and_is_empty(setup: Setup) {
        setup.register("w1", 4).await;
        let begun = Instant::now();
        let request = encode(&LeaseRequest { worker_id: "w1".to_owned(), ..LeaseRequest::default() }).unwrap();
        let answer = setup.worker.request_lease("q", request, LIMIT).await.unwrap();
        assert!(begun.elapsed() >= profile().hold);
        let answer: serde_json::Value = decode(&answer).unwrap();
        assert_eq!(answer["assignments"], serde_json::json!([]));
        setup.end().await;
    }

    async fn k8_requests_at_once_never_take_more_cores_than_there_are(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("j", 20, 1);
        let many = (0..8).map(|_| setup.lease("w1"));
        let replies = futures_util::future::join_all(many).await;
        let leased: usize = replies.iter().map(|reply| reply.assignments.len()).sum();
        assert_eq!(leased, 4);
        assert_eq!(
            setup.farm.store.lock().number("SELECT count(*) FROM tasks WHERE state = 'assigned'"),
            4
        );
        setup.end().await;
    }

    /// Also over the bus: work that becomes ready while the request is parked is leased at once.
    async fn k10_work_that_becomes_ready_later_is_leased_at_once(setup: Setup) {
        setup.register("w1", 4).await;
        for round in 0..20 {
            let job = format!("j{round}");
            let asked = setup.lease("w1");
            let submitted = async {
                for _ in 0..round * 50 {
                    tokio::task::yield_now().await;
                }
                setup.submit(&job, 1, 1);
                Instant::now()
            };
            let (reply, at) = futures_util::future::join(asked, submitted).await;
            assert_eq!(reply.assignments.len(), 1, "round {round}: {reply:?}");
            assert!(at.elapsed() < profile().hold, "{:?}", at.elapsed());
            setup.publish(Setup::job(&job), &setup.report(&reply.assignments[0], "succeeded")).await;
            setup.until("the cores are free", |store| store.jobs(Some(&job)).unwrap()[0].state == "succeeded").await;
        }
        setup.end().await;
    }

    /// Messages that no other delivery would mend: acknowledged, and nothing changes.
    async fn h1_what_cannot_be_believed_is_acknowledged_and_changes_nothing(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("j", 1, 1);
        let assignment = setup.lease("w1").await.assignments.remove(0);
        let seen = |setup: &Setup| {
            let store = setup.farm.store.lock();
            let tables = ["workers", "tasks", "attempts", "logs"];
            tables.map(|table| store.number(&format!("SELECT count(*) FROM {table}")))
        };
        let before = seen(&setup);
        let job = || Setup::job("j");
        let right = setup.report(&assignment, "running");
        // Not JSON, on every class.
        for to in [To::Register, To::Heartbeat, To::Deregister, job(), To::TaskLogs(Token::new("t").unwrap())] {
            setup.worker.publish(Publication::new(to, "{")).await.unwrap();
        }
        // Without the ids they are about, of nothing that exists, of another worker, of no known state.
        setup.publish(To::Register, &RegisterMsg { worker_id: String::new(), ..setup.registration("w1", 4) }).await;
        let mut gone = DeregisterMsg::new(setup.layout(), &Token::new("nobody").unwrap());
        gone.reason = "test".to_owned();
        setup.publish(To::Deregister, &gone).await;
        for wrong in [
            TaskStatusMsg { task_id: String::new(), ..right.clone() },
            TaskStatusMsg { attempt_id: String::new(), ..right.clone() },
            TaskStatusMsg { attempt_id: "none".to_owned(), ..right.clone() },
            TaskStatusMsg { task_id: "none".to_owned(), ..right.clone() },
            TaskStatusMsg { worker_id: "w2".to_owned(), ..right.clone() },
            TaskStatusMsg { status: "dancing".to_owned(), ..right.clone() },
        ] {
            setup.publish(job(), &wrong).await;
        }
        let mut chunk = LogChunkMsg::new(setup.layout());
        chunk.seq_num = 1;
        setup.publish(To::TaskLogs(Token::new("t").unwrap()), &chunk).await;
        setup.until_handled().await;
        assert_eq!(seen(&setup), before);
        assert_eq!(setup.state("j", 0), "assigned");
        // What is right is applied; again it is no change; what does not follow from the state is ignored.
        setup.publish(job(), &right).await;
        setup.publish(job(), &right).await;
        setup.until_handled().await;
        assert_eq!(setup.state("j", 0), "running");
        setup.publish(job(), &setup.report(&assignment, "succeeded")).await;
        setup.publish(job(), &right).await;
        setup.until_handled().await;
        assert_eq!(setup.state("j", 0), "succeeded");
        setup.end().await;
    }

    /// Rows of the table that ask for another delivery: an unknown worker's heartbeat, and every error of the store.
    async fn h1_what_another_delivery_may_mend_is_asked_for_again(setup: Setup) {
        setup.publish(To::Heartbeat, &HeartbeatMsg::new(setup.layout(), &Token::new("w1").unwrap())).await;
        until("a nak", || async { setup.farm.client.counts().naked == 1 }).await;
        // The registration was on its way.
        setup.register("w1", 4).await;
        setup.farm.store.lock().run("UPDATE workers SET seen_ms = 0");
        setup.until("the heartbeat counts", |store| store.number("SELECT seen_ms FROM workers") > 0).await;
        setup.submit("j", 1, 1);
        let assignment = setup.lease("w1").await.assignments.remove(0);
        setup.farm.store.lock().run("ALTER TABLE attempts RENAME TO away");
        setup.publish(Setup::job("j"), &setup.report(&assignment, "running")).await;
        until("a nak", || async { setup.farm.client.counts().naked >= 2 }).await;
        setup.farm.store.lock().run("ALTER TABLE away RENAME TO attempts");
        setup.until("the report counts", |store| store.jobs(Some("j")).unwrap()[0].tasks[0].state == "running").await;
        setup.farm.store.lock().run("ALTER TABLE logs RENAME TO away");
        let naked = setup.farm.client.counts().naked;
        let mut chunk = LogChunkMsg::new(setup.layout());
        (chunk.task_id, chunk.attempt_id, chunk.seq_num) = (assignment.task_id, assignment.attempt_id, 1);
        chunk.data = "hi".to_owned();
        setup.publish(To::TaskLogs(Token::new("t").unwrap()), &chunk).await;
        until("a nak", || async { setup.farm.client.counts().naked > naked }).await;
        setup.farm.store.lock().run("ALTER TABLE away RENAME TO logs");
        setup.until("the output is there", |store| store.number("SELECT count(*) FROM logs") == 1).await;
        // A log stays when it is acknowledged.
        assert_eq!(setup.messages(STREAM_LOGS).await, 1);
        setup.end().await;
    }

    async fn h2_other_versions_change_nothing_and_are_acknowledged(setup: Setup) {
        for version in ["", "1", "3", "02", "2 "] {
            let message = RegisterMsg { version: version.to_owned(), ..setup.registration("w1", 4) };
            setup.publish(To::Register, &message).await;
        }
        setup.until_handled().await;
        assert_eq!(setup.farm.store.lock().workers().unwrap().len(), 0);
        setup.register("w1", 4).await;
        setup.submit("j", 1, 1);
        let assignment = setup.lease("w1").await.assignments.remove(0);
        setup.farm.store.lock().run("UPDATE workers SET seen_ms = 1");
        for version in ["", "1", "3"] {
            let mut beat = HeartbeatMsg::new(setup.layout(), &Token::new("w1").unwrap());
            beat.version = version.to_owned();
            setup.publish(To::Heartbeat, &beat).await;
            let report = TaskStatusMsg { version: version.to_owned(), ..setup.report(&assignment, "running") };
            setup.publish(Setup::job("j"), &report).await;
        }
        setup.until_handled().await;
        assert_eq!(setup.farm.store.lock().number("SELECT seen_ms FROM workers"), 1);
        assert_eq!(setup.state("j", 0), "assigned");
        setup.end().await;
    }

    async fn h3_a_farewell_gives_assigned_and_running_tasks_back(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("j", 2, 1);
        let leased = setup.lease("w1").await.assignments;
        setup.publish(Setup::job("j"), &setup.report(&leased[0], "running")).await;
        setup.until("it runs", |store| store.jobs(Some("j")).unwrap()[0].tasks[0].state == "running").await;
        setup.publish(To::Deregister, &DeregisterMsg::new(setup.layout(), &Token::new("w1").unwrap())).await;
        setup.until("both are ready", |store| {
            let tasks = &store.jobs(Some("j")).unwrap()[0].tasks;
            tasks.iter().all(|task| task.state == "ready" && task.worker.is_empty())
        })
        .await;
        let closed = "SELECT count(*) FROM attempts WHERE state = 'failed' AND message = 'worker went offline'";
        assert_eq!(setup.farm.store.lock().number(closed), 2);
        assert!(!setup.farm.store.lock().workers().unwrap()[0].online);
        setup.end().await;
    }

    async fn h4_a_registration_counts_also_when_its_bookkeeping_fails(setup: Setup) {
        let message = RegisterMsg { compute_location: "cellar".to_owned(), ..setup.registration("w1", 4) };
        setup.farm.store.lock().run("ALTER TABLE locations RENAME TO away");
        setup.publish(To::Register, &message).await;
        setup.until_handled().await;
        assert!(setup.farm.store.lock().workers().unwrap()[0].online);
        setup.farm.store.lock().run("ALTER TABLE away RENAME TO locations");
        for _ in 0..2 {
            setup.publish(To::Register, &message).await;
        }
        setup.until_handled().await;
        assert_eq!(setup.farm.store.lock().number("SELECT count(*) FROM locations WHERE name = 'cellar'"), 1);
        setup.end().await;
    }

    async fn h6_h7_the_sweep_takes_from_the_silent_and_leaves_the_others(setup: Setup) {
        setup.register("w1", 4).await;
        setup.submit("j", 1, 1);
        let leased = setup.lease("w1").await.assignments;
        setup.publish(Setup::job("j"), &setup.report(&leased[0], "running")).await;
        setup.until("it runs", |store| store.jobs(Some("j")).unwrap()[0].tasks[0].state == "running").await;
        sweep(&setup.farm).await.unwrap();
        assert_eq!(setup.state("j", 0), "running");
        let silence = i64::try_from(profile().worker_timeout.as_millis()).unwrap() + 1;
        setup.farm.store.lock().run(&format!("UPDATE workers SET seen_ms = {}", now_ms() - silence));
        sweep(&setup.farm).await.unwrap();
        let task = setup.farm.store.lock().jobs(Some("j")).unwrap()[0].tasks[0].clone();
        assert_eq!((task.state.as_str(), task.message.as_str()), ("ready", ""));
        assert_eq!(
            setup.farm.store.lock().number("SELECT count(*) FROM attempts WHERE message = 'worker went offline' AND state = 'failed'"),
            1
        );
        // Assigned for too long, or not yet.
        setup.register("w1", 4).await;
        assert_eq!(setup.lease("w1").await.assignments.len(), 1);
        sweep(&setup.farm).await.unwrap();
        assert_eq!(setup.state("j", 0), "assigned");
        let long = i64::try_from(profile().assigned_timeout.as_millis()).unwrap() + 1;
        setup.farm.store.lock().run(&format!("UPDATE tasks SET assigned_ms = {}", now_ms() - long));
        sweep(&setup.farm).await.unwrap();
        assert_eq!(setup.state("j", 0), "ready");
        setup.end().await;
    }

    /// A refused registration fences the worker: it gets no work, is told why, and cannot ask in a loop.
    async fn w10_w26_a_worker_of_another_version_is_told_and_asks_no_faster_than_once_a_second(setup: Setup) {
        let message = RegisterMsg { version: "1".to_owned(), ..setup.registration("w1", 4) };
        setup.publish(To::Register, &message).await;
        setup.until_handled().await;
        setup.submit("j", 1, 1);
        let begun = Instant::now();
        let silent = setup.lease("w1").await;
        assert!(silent.assignments.is_empty() && silent.reason.contains("register"), "{silent:?}");
        assert!(silent.retry_after_ms >= 1000);
        let telling = LeaseRequest { worker_id: "w1".to_owned(), version: "1".to_owned(), ..LeaseRequest::default() };
        let told = setup.ask(&telling).await;
        assert!(told.reason.contains("\"1\"") && told.reason.contains("\"2\""), "{told:?}");
        let nobody = setup.worker.request_lease("q", "{".into(), LIMIT).await.unwrap();
        assert!(decode::<LeaseReply>(&nobody).unwrap().retry_after_ms >= 1000);
        assert!(begun.elapsed() >= Duration::from_secs(3));
        assert_eq!(setup.state("j", 0), "ready");
        setup.end().await;
    }

    /// A clock that is wrong by minutes makes nobody live or dead; it is shown.
    async fn w15_whether_a_worker_lives_is_by_the_servers_clock(setup: Setup) {
        setup.register("w1", 4).await;
        for minutes in [-5_i64, 5] {
            let off = minutes * 60_000;
            let mut beat = HeartbeatMsg::new(setup.layout(), &Token::new("w1").unwrap());
            beat.at = Timestamp::from_unix_nanos((now_ms() + off) * 1_000_000);
            setup.publish(To::Heartbeat, &beat).await;
            setup.until("the skew is shown", |store| {
                (store.workers().unwrap()[0].skew_ms - off).abs() < 30_000
            })
            .await;
            sweep(&setup.farm).await.unwrap();
            let seen = setup.farm.store.lock().number("SELECT seen_ms FROM workers");
            assert!((now_ms() - seen).abs() < 30_000);
            assert!(setup.farm.store.lock().workers().unwrap()[0].online);
        }
        setup.end().await;
    }

    /// The first task always fits; the asker's bounds cut the rest, which stays ready.
    async fn w09_a_batch_is_cut_to_what_the_asker_and_a_message_take(setup: Setup) {
        setup.register("w1", 64).await;
        setup.submit("j", 6, 1);
        let two = LeaseRequest { worker_id: "w1".to_owned(), max_tasks: 2, ..LeaseRequest::default() };
        assert_eq!(setup.ask(&two).await.assignments.len(), 2);
        let few = LeaseRequest { worker_id: "w1".to_owned(), max_bytes: 1, ..LeaseRequest::default() };
        assert_eq!(setup.ask(&few).await.assignments.len(), 1);
        assert_eq!(setup.lease("w1").await.assignments.len(), 3);
        let steps = [Step { command: "#".repeat(100 * 1024), tasks: 50 }];
        setup.farm.store.lock().submit("big", "q", &steps, 1, now_ms()).unwrap();
        let mut leased = 0;
        while leased < 50 {
            let reply = setup.lease("w1").await;
            assert!(!reply.assignments.is_empty() && reply.assignments.len() < 10);
            leased += reply.assignments.len();
        }
        setup.end().await;
    }

    /// An assignment that can never be sent fails its task with the reason, and the others are leased.
    async fn w28_what_cannot_be_sent_is_failed_before_it_is_recorded_as_anybodys(setup: Setup) {
        setup.register("w1", 4).await;
        let steps = [Step { command: "#".repeat(1024 * 1024), tasks: 1 }];
        setup.farm.store.lock().submit("big", "q", &steps, 1, now_ms()).unwrap();
        setup.submit("j", 1, 1);
        let reply = setup.lease("w1").await;
        assert_eq!(reply.assignments.len(), 1);
        assert_eq!(reply.assignments[0].job_id, "j");
        let big = setup.farm.store.lock().jobs(Some("big")).unwrap()[0].clone();
        assert_eq!((big.state.as_str(), big.tasks[0].attempts), ("failed", 0));
        assert!(big.tasks[0].message.contains("too large"), "{:?}", big.tasks[0]);
        setup.end().await;
    }

    /// What was ready before the server began, and a worker that registers, need no sweep.
    async fn w29_work_from_before_a_restart_is_leased_at_once(setup: Setup) {
        setup.submit("j", 1, 1);
        // A request that parked before the worker had a core free is woken by its registration.
        let request = LeaseRequest { worker_id: "w1".to_owned(), ..LeaseRequest::default() };
        setup.register("w1", 4).await;
        let begun = Instant::now();
        assert_eq!(setup.ask(&request).await.assignments.len(), 1);
        assert!(begun.elapsed() < Duration::from_secs(1));
        setup.end().await;
    }

    /// 64 requests wait, one task comes: one request is answered with it, and at most two looked.
    async fn w11_one_task_wakes_one_of_64(setup: Setup) {
        for worker in 0..64 {
            setup.publish(To::Register, &setup.registration(&format!("w{worker}"), 1)).await;
        }
        setup.until("all are registered", |store| store.workers().unwrap().len() == 64).await;
        setup.until_handled().await;
        let names: Vec<String> = (0..64).map(|worker| format!("w{worker}")).collect();
        let waiting = futures_util::future::join_all(names.iter().map(|name| setup.lease(name)));
        let submitted = async {
            until("all wait", || async { setup.farm.waiters.parked() == 64 }).await;
            let before = setup.farm.looks();
            setup.submit("j", 1, 1);
            setup.until("it is leased", |store| store.jobs(Some("j")).unwrap()[0].tasks[0].state == "assigned").await;
            setup.farm.looks() - before
        };
        let (replies, looked) = futures_util::future::join(waiting, submitted).await;
        assert!(looked <= 2, "{looked} looked for the one task");
        assert_eq!(replies.iter().map(|reply| reply.assignments.len()).sum::<usize>(), 1);
        setup.end().await;
    }
}
