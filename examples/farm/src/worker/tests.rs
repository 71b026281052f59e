//! The worker's side of the contract, over the bus: its client in process, and over TCP. The server is what each test needs.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use windjet_bus::client::lease_handler;
use windjet_bus::message::{
    Action, AssignMsg, LeaseReply, LogChunkMsg, TaskCancelMsg, TaskStatusMsg, decode, encode,
};
use windjet_bus::streams::{STREAM_LOGS, STREAM_TASK, STREAM_WORKER};
use windjet_bus::{Broker, BrokerConfig, Bus as _, Client, ConnectOptions, Layout, Token};

use super::output::Output;
use super::task::{End, Running};
use super::{Settings, Worker};

const LIMIT: Duration = Duration::from_secs(20);

/// Runs a test with a worker whose client is in the broker's process and with one over TCP.
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($setup:ident: Setup) $body:block)*) => {
        $(
            mod $name {
                use super::*;

                $(#[$doc])*
                async fn check($setup: Setup) $body

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn in_process() {
                    check(Setup::new(false).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn over_tcp() {
                    check(Setup::new(true).await).await;
                }
            }
        )*
    };
}

struct Setup {
    broker: Broker,
    server: Client,
    worker: Arc<Worker>,
    folder: TempDir,
}

impl Setup {
    async fn new(tcp: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::new(BrokerConfig {
            addr: "127.0.0.1:0".to_owned(),
            data_dir: folder.path().join("bus"),
            max_store_mb: 64,
            ..BrokerConfig::default()
        });
        broker.start().await.unwrap();
        let client = if tcp {
            let url = broker.client_url().unwrap();
            Client::connect(&url, ConnectOptions::new()).await.unwrap()
        } else {
            broker.client().unwrap()
        };
        Self {
            server: broker.client().unwrap(),
            worker: Arc::new(worker(client, folder.path())),
            broker,
            folder,
        }
    }

    /// What a stream has, oldest first.
    async fn stored(&self, stream: &str) -> Vec<bytes::Bytes> {
        let js = self.broker.jetstream().unwrap();
        let state = js.stream_info(stream).await.unwrap().state;
        let mut stored = Vec::new();
        for seq in state.first_seq..=state.last_seq {
            if let Some(message) = js.get_message(stream, seq).await.unwrap() {
                stored.push(message.payload);
            }
        }
        stored
    }

    async fn statuses(&self) -> Vec<TaskStatusMsg> {
        let stored = self.stored(STREAM_TASK).await;
        stored.iter().map(|body| decode(body).unwrap()).collect()
    }

    async fn output(&self) -> Vec<LogChunkMsg> {
        let stored = self.stored(STREAM_LOGS).await;
        stored.iter().map(|body| decode(body).unwrap()).collect()
    }

    async fn without(&self, stream: &str) -> impl Future<Output = ()> + use<> {
        let js = self.broker.jetstream().unwrap();
        let config = js.stream_info(stream).await.unwrap().config;
        js.delete_stream(stream).await.unwrap();
        async move {
            js.create_stream(config).await.unwrap();
        }
    }

    /// Reads what is written to the other end as a task's output does.
    fn reading(
        &self,
        attempt: &str,
        stream: &'static str,
    ) -> (tokio::io::DuplexStream, tokio::task::JoinHandle<()>) {
        let (output, sending) = Output::new(&self.worker, &Token::new("t").unwrap(), attempt);
        let (write, read) = tokio::io::duplex(1 << 20);
        tokio::spawn(sending);
        let reading = tokio::spawn(output.read(self.worker.clone(), stream, read));
        (write, reading)
    }

    async fn end(self) {
        self.worker.client.drain(LIMIT).await.unwrap();
        self.server.drain(LIMIT).await.unwrap();
        self.broker.shutdown(LIMIT).await.unwrap();
    }
}

fn worker(client: Client, folder: &Path) -> Worker {
    let settings = Settings {
        url: String::new(),
        id: "w1".to_owned(),
        queues: Vec::new(),
        cpus: 4,
        dir: folder.join("worker"),
        fast: true,
    };
    Worker::new(client, Token::new("w1").unwrap(), &settings).unwrap()
}

fn assignment(task: &str, command: Option<&str>) -> AssignMsg {
    AssignMsg {
        task_id: task.to_owned(),
        attempt_id: format!("{task}-a1"),
        job_id: "j".to_owned(),
        worker_id: "w1".to_owned(),
        on_run: command.map(|command| Action {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), command.to_owned()],
            ..Action::default()
        }),
        ..AssignMsg::new(Layout::Plain)
    }
}

fn text(assignment: &AssignMsg) -> String {
    String::from_utf8(encode(assignment).unwrap().to_vec()).unwrap()
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
    async fn w1t_of_a_batch_only_what_has_another_version_is_skipped(setup: Setup) {
        let wrong = AssignMsg { version: "9".to_owned(), ..assignment("wrong", None) };
        let error = setup.worker.accept(&text(&wrong)).unwrap_err().to_string();
        assert!(error.contains("\"9\"") && error.contains("\"2\""), "{error}");
        setup.worker.accept("{").unwrap_err();
        // The same in a batch, as the worker gets it.
        let batch = LeaseReply {
            assignments: vec![assignment("one", None), wrong, assignment("two", None)],
            ..LeaseReply::default()
        };
        let batch = Mutex::new(Some(encode(&batch).unwrap()));
        let handler = lease_handler(move |_| {
            let batch = batch.lock().take();
            async move {
                match batch {
                    Some(batch) => batch,
                    None => std::future::pending().await,
                }
            }
        });
        let serving = setup.server.subscribe_lease(handler).await.unwrap();
        let asking = tokio::spawn(setup.worker.clone().ask_for_work(Token::new("q").unwrap()));
        until("both are reported", || async {
            setup.statuses().await.iter().filter(|status| status.status == "succeeded").count() == 2
        })
        .await;
        asking.abort();
        assert!(setup.statuses().await.iter().all(|status| status.task_id != "wrong"));
        drop(serving);
        setup.server.close().await;
        setup.end().await;
    }

    async fn w3t_a_registration_needs_a_stream_and_is_stored_once(setup: Setup) {
        let again = setup.without(STREAM_WORKER).await;
        let begun = Instant::now();
        let error = setup.worker.register_within(Duration::from_millis(600)).await.unwrap_err();
        assert!(error.to_string().contains("not stored"), "{error:#}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(setup.worker.registered.lock().is_none());
        let registering = setup.worker.register_within(LIMIT);
        let appearing = async {
            tokio::time::sleep(Duration::from_millis(250)).await;
            again.await;
        };
        futures_util::future::join(registering, appearing).await.0.unwrap();
        assert_eq!(setup.stored(STREAM_WORKER).await.len(), 1);
        let first = setup.worker.registered.lock().unwrap();
        setup.worker.register().await.unwrap();
        assert!(setup.worker.registered.lock().unwrap() > first);
        setup.end().await;
    }

    /// A report that cannot be stored waits on disk; once it can be, it is stored once.
    async fn w4t_w05_a_report_is_kept_until_it_is_stored_once(setup: Setup) {
        let again = setup.without(STREAM_TASK).await;
        let mut report = TaskStatusMsg::new(Layout::Plain, "succeeded");
        (report.task_id, report.attempt_id, report.job_id) = ("t".to_owned(), "a".to_owned(), "j".to_owned());
        setup.worker.outbox.keep(&report).unwrap();
        let sending = {
            let (worker, report) = (setup.worker.clone(), report.clone());
            tokio::spawn(async move { worker.send_report(&report).await })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!sending.is_finished());
        assert_eq!(setup.worker.outbox.waiting().unwrap().reports, std::slice::from_ref(&report));
        // A worker that is ended meanwhile returns at once and has it still.
        let begun = Instant::now();
        sending.abort();
        assert!(sending.await.unwrap_err().is_cancelled());
        assert!(begun.elapsed() < Duration::from_millis(200));
        again.await;
        let old = setup.worker.outbox.waiting().unwrap();
        setup.worker.clone().send_old_reports(old).await;
        // Whatever was sent before, it is there once.
        setup.worker.send_report(&report).await;
        assert_eq!(setup.statuses().await, [report]);
        assert_eq!(setup.worker.outbox.waiting().unwrap().reports, []);
        setup.end().await;
    }

    async fn w4t_a_stop_reports_each_task_once_as_the_workers_fault(setup: Setup) {
        setup.worker.finish().await;
        assert_eq!(setup.statuses().await, []);
        for task in ["t1", "t2"] {
            setup.worker.accept(&text(&assignment(task, Some("sleep 600")))).unwrap();
        }
        until("both run", || async { setup.statuses().await.len() == 2 }).await;
        assert!(setup.statuses().await.iter().all(|status| status.status == "running" && status.exit_code.is_none()));
        setup.worker.finish().await;
        until("both are reported", || async { setup.statuses().await.len() == 4 }).await;
        let mut ended: Vec<_> = setup.statuses().await.split_off(2);
        ended.sort_by(|a, b| a.task_id.cmp(&b.task_id));
        for (status, task) in ended.iter().zip(["t1", "t2"]) {
            assert_eq!(status.task_id, task);
            assert!(status.is_worker_shutdown() && status.exit_code.is_none(), "{status:?}");
        }
        setup.end().await;
    }

    async fn w5t_chunks_are_numbered_by_execution_and_cut_by_lines_bytes_and_time(setup: Setup) {
        let (mut write, reading) = setup.reading("a", "stdout");
        // Lines: 50 go at once.
        write.write_all("line\n".repeat(50).as_bytes()).await.unwrap();
        until("50 lines", || async { setup.output().await.len() == 1 }).await;
        // Bytes: 16384 go at once.
        write.write_all(format!("{}\n", "x".repeat(20_000)).as_bytes()).await.unwrap();
        until("20000 bytes", || async { setup.output().await.len() == 2 }).await;
        // Time: one line goes after the interval.
        let begun = Instant::now();
        write.write_all(b"late\n").await.unwrap();
        until("one line", || async { setup.output().await.len() == 3 }).await;
        assert!(begun.elapsed() < Duration::from_secs(5));
        // The end: what is left goes, a line without an end included.
        write.write_all(b"last").await.unwrap();
        drop(write);
        reading.await.unwrap();
        until("the rest", || async { setup.output().await.len() == 4 }).await;
        let chunks = setup.output().await;
        assert_eq!(chunks.iter().map(|chunk| chunk.seq_num).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(chunks[0].data.lines().count(), 50);
        assert!(!chunks[0].data.ends_with('\n'));
        assert_eq!((chunks[2].data.as_str(), chunks[3].data.as_str()), ("late", "last"));
        // Another execution counts from 1; one without output has no chunk.
        let (mut write, reading) = setup.reading("b", "stderr");
        write.write_all(b"other\n").await.unwrap();
        drop(write);
        reading.await.unwrap();
        let (write, reading) = setup.reading("c", "stdout");
        drop(write);
        reading.await.unwrap();
        until("the other one", || async { setup.output().await.len() == 5 }).await;
        let other = setup.output().await.pop().unwrap();
        assert_eq!((other.attempt_id.as_str(), other.seq_num, other.stream.as_str()), ("b", 1, "stderr"));
        setup.end().await;
    }

    /// All output is stored before the end is reported, each stream in chunks of its own; what cannot be stored for a while
    /// disturbs the task no further.
    async fn w5t_w04_output_is_whole_before_the_end_also_when_the_stream_was_away(setup: Setup) {
        let again = setup.without(STREAM_LOGS).await;
        let gate = setup.folder.path().join("gate");
        let command = format!(
            "for i in $(seq 200); do echo out $i; echo err $i >&2; done; touch {0}; exit 7",
            gate.display()
        );
        setup.worker.accept(&text(&assignment("t", Some(&command)))).unwrap();
        until("the command is through", || async { gate.exists() }).await;
        assert!(setup.statuses().await.iter().all(|status| status.status == "running"));
        again.await;
        until("the end", || async { setup.statuses().await.len() == 2 }).await;
        let end = setup.statuses().await.pop().unwrap();
        assert_eq!((end.status.as_str(), end.exit_code), ("failed", Some(7)));
        let chunks = setup.output().await;
        assert_eq!(i64::try_from(chunks.len()).unwrap(), end.last_log_seq);
        let mut numbers: Vec<_> = chunks.iter().map(|chunk| chunk.seq_num).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=end.last_log_seq).collect::<Vec<_>>());
        for (stream, word) in [("stdout", "out"), ("stderr", "err")] {
            let of: Vec<&LogChunkMsg> = chunks.iter().filter(|chunk| chunk.stream == stream).collect();
            let lines: Vec<&str> = of.iter().flat_map(|chunk| chunk.data.lines()).collect();
            assert_eq!(lines, (1..=200).map(|i| format!("{word} {i}")).collect::<Vec<_>>());
        }
        setup.end().await;
    }

    async fn w6t_a_cancel_ends_the_task_that_it_names_and_no_other(setup: Setup) {
        for task in ["t1", "t2"] {
            setup.worker.accept(&text(&assignment(task, Some("sleep 600")))).unwrap();
        }
        until("both run", || async { setup.statuses().await.len() == 2 }).await;
        let cancel = |of: &str| TaskCancelMsg { task_id: of.to_owned(), ..TaskCancelMsg::default() };
        let t1 = Token::new("t1").unwrap();
        // What cannot be read, and what names another task, is ignored.
        setup.server.publish_task_cancel(&t1, "{".into()).await.unwrap();
        setup.server.publish_task_cancel(&t1, encode(&cancel("t2")).unwrap()).await.unwrap();
        // Of a task that does not run here.
        setup.server.publish_task_cancel(&Token::new("t3").unwrap(), encode(&cancel("t3")).unwrap()).await.unwrap();
        setup.server.publish_task_cancel(&t1, encode(&cancel("t1")).unwrap()).await.unwrap();
        until("the end", || async { setup.statuses().await.len() == 3 }).await;
        let end = setup.statuses().await.pop().unwrap();
        assert_eq!((end.task_id.as_str(), end.status.as_str(), end.exit_code), ("t1", "canceled", None));
        assert_eq!(setup.worker.running.lock().keys().collect::<Vec<_>>(), ["t2"]);
        setup.worker.finish().await;
        setup.end().await;
    }
}

/// Told before the process exists, it is remembered; the first reason counts.
#[test]
fn w6t_a_cancel_before_the_process_exists_is_remembered() {
    let running = Running::default();
    let cancel = |attempt: &str| {
        let message = TaskCancelMsg {
            task_id: "t".to_owned(),
            attempt_id: attempt.to_owned(),
            ..TaskCancelMsg::default()
        };
        encode(&message).unwrap()
    };
    running.hear(b"", "t", "a2");
    running.hear(&cancel(""), "another", "a2");
    assert_eq!(running.ended(), None);
    running.hear(&cancel(""), "t", "a2");
    running.end(End::Shutdown);
    assert_eq!(running.ended(), Some(End::Canceled));

    let next = Running::default();
    next.hear(&cancel("a1"), "t", "a2");
    assert_eq!(
        next.ended(),
        None,
        "the cancel of an earlier execution is kept in the stream, and is not for this one"
    );
    next.hear(&cancel("a2"), "t", "a2");
    assert_eq!(next.ended(), Some(End::Canceled));
}
