//! The farm under what farms suffer: real processes, killed, paused, restarted.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::io::{BufRead as _, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(40);

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn signal(&self, name: &str) {
        let done = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.0.id().to_string())
            .status();
        assert!(done.unwrap().success());
    }

    fn wait(&mut self) -> bool {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < end, "the process does not end");
            pause();
        }
    }
}

fn farm() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farm"));
    command
        .env(
            "FARM_LOG",
            std::env::var("FARM_LOG").unwrap_or_else(|_| "warn".to_owned()),
        )
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    command
}

/// Starts a process and waits for its line `ready …`.
fn start(command: &mut Command) -> (Process, Vec<String>) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.first().map(String::as_str), Some("ready"), "{line:?}");
    (Process(child), words)
}

struct Farm {
    server: Process,
    url: String,
    control: String,
    folder: TempDir,
}

impl Farm {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (server, words) = start(&mut server(folder.path(), "127.0.0.1:0", "127.0.0.1:0"));
        Self {
            server,
            url: words[1].clone(),
            control: words[3].clone(),
            folder,
        }
    }

    fn server_again(&self) -> Command {
        server(
            self.folder.path(),
            &self.url.replace("nats://", ""),
            &self.control,
        )
    }

    /// Kills the server and starts it again on the same folder and ports.
    fn restart_server(&mut self) {
        self.server.signal("KILL");
        self.server.wait();
        self.server = start(&mut self.server_again()).0;
    }

    fn worker(&self, id: &str, more: &[&str]) -> Process {
        self.worker_at(&self.url, id, more)
    }

    fn worker_at(&self, url: &str, id: &str, more: &[&str]) -> Process {
        let mut command = farm();
        command.args(["worker", "--fast", "--url", url, "--id", id, "--dir"]);
        start(command.arg(self.folder.path().join("workers")).args(more)).0
    }

    fn ask(&self, args: &[&str]) -> String {
        let output = farm()
            .args(args)
            .args(["--control", &self.control])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn submit(&self, args: &[&str]) -> String {
        self.ask(&[&["submit"], args].concat()).trim().to_owned()
    }

    fn job(&self, job: &str) -> Value {
        let answer: Value = serde_json::from_str(&self.ask(&["status", "--job", job])).unwrap();
        answer["jobs"][0].clone()
    }

    fn task(&self, job: &str, task: usize) -> Value {
        self.job(job)["tasks"][task].clone()
    }

    fn online(&self, worker: &str) -> bool {
        let answer: Value = serde_json::from_str(&self.ask(&["workers"])).unwrap();
        let workers = answer["workers"].as_array().unwrap().clone();
        workers
            .iter()
            .any(|one| one["id"] == worker && one["online"] == true)
    }

    fn until_task(&self, job: &str, task: usize, state: &str) {
        until(&format!("task {task} of {job} is {state}"), || {
            self.task(job, task)["state"] == state
        });
    }

    fn until_job(&self, job: &str, state: &str) {
        until(&format!("{job} is {state}"), || self.job(job)["state"] == state);
    }

    /// Every task succeeded exactly once and its output is whole.
    fn assert_done_once(&self, job: &str) {
        self.until_job(job, "succeeded");
        until("the output is whole", || {
            let job = self.job(job);
            job["tasks"]
                .as_array()
                .unwrap()
                .iter()
                .all(|task| task["missing_logs"] == 0)
        });
        for task in self.job(job)["tasks"].as_array().unwrap() {
            assert_eq!(
                (&task["state"], &task["succeeded"]),
                (&"succeeded".into(), &1.into()),
                "{task}"
            );
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn server(folder: &Path, addr: &str, control: &str) -> Command {
    let mut command = farm();
    command.args([
        "server",
        "--fast",
        "--addr",
        addr,
        "--control",
        control,
        "--data-dir",
    ]);
    command.arg(folder.join("server"));
    command
}

/// A wire between a worker and the server that can be cut.
struct Wire {
    url: String,
    /// The connections, or `None` while it is cut.
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Wire {
    fn to(url: &str) -> Self {
        let target = url.replace("nats://", "");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let of_listener = open.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let mut open = of_listener.lock().unwrap();
                // What is cut ends a connection at once.
                let Some(open) = open.as_mut() else { continue };
                let far = TcpStream::connect(&target).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.extend([near, far]);
            }
        });
        Self { url, open }
    }

    fn cut(&self) {
        for end in self.open.lock().unwrap().take().unwrap() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}

/// Between two looks at a condition that has a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "the processes under test have their own clocks"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        pause();
    }
}

fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A command that writes down when it begins and ends, so that two runs at once can be seen.
fn noted(file: &Path, work: &str) -> String {
    let file = file.display();
    format!("echo begin {{n}} >> {file}; echo line; {work}; echo end {{n}} >> {file}")
}

#[test]
fn scenario_4_and_5_tasks_run_once_on_workers_of_their_queue_and_their_output_is_in_order() {
    let farm = Farm::new();
    let _workers = [
        farm.worker("w1", &["--queue", "q1"]),
        farm.worker("w2", &["--queue", "q2"]),
        farm.worker("w3", &[]),
    ];
    let command = "for i in 1 2 3 4 5; do echo $i; done";
    let job = farm.submit(&[
        "--queue",
        "q1",
        "--tasks",
        "8",
        "--cmd",
        command,
        "--then",
        "1:echo merged",
        "--wait",
    ]);
    farm.assert_done_once(&job);
    for task in farm.job(&job)["tasks"].as_array().unwrap() {
        assert_eq!(task["attempts"], 1, "{task}");
        assert!(!task["attempt"].as_str().unwrap().is_empty());
    }
    assert_eq!(
        farm.ask(&["logs", "--task", &format!("{job}-s0-t3"), "--follow"]),
        "1\n2\n3\n4\n5\n"
    );
    assert_eq!(
        farm.ask(&["logs", "--task", &format!("{job}-s1-t0"), "--follow"]),
        "merged\n"
    );
    let streams: Value = serde_json::from_str(&farm.ask(&["streams"])).unwrap();
    assert_eq!(
        (&streams["streams"][0]["name"], &streams["streams"][4]["messages"]),
        (&"SQI_TASK".into(), &0.into())
    );
}

#[test]
fn scenario_6_a_task_that_fails_is_tried_again_up_to_the_limit_and_says_why() {
    let farm = Farm::new();
    let _worker = farm.worker("w1", &[]);
    let job = farm.submit(&["--cmd", "exit 3"]);
    farm.until_job(&job, "failed");
    let task = farm.task(&job, 0);
    assert_eq!(
        (&task["attempts"], &task["message"]),
        (&3.into(), &"exit code 3".into())
    );
}

#[test]
fn scenario_7_and_8_a_cancel_ends_the_process_also_when_the_worker_was_paused() {
    let farm = Farm::new();
    let worker = farm.worker("w1", &[]);
    for paused in [false, true] {
        let file = farm.file(&format!("pid-{paused}"));
        let command = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 600", file.display());
        let job = farm.submit(&["--cmd", &command]);
        until("it runs", || file.exists());
        let pid = lines(&file)[0].clone();
        if paused {
            worker.signal("STOP");
        }
        farm.ask(&["cancel", "--job", &job]);
        assert_eq!(farm.task(&job, 0)["state"], "canceled");
        if paused {
            worker.signal("CONT");
        }
        until("the process is gone", || !Path::new("/proc").join(&pid).exists());
        assert_eq!(farm.job(&job)["state"], "canceled");
    }
}

#[test]
fn scenario_9_a_task_goes_on_while_its_worker_is_cut_off_and_nothing_is_lost_or_doubled() {
    let farm = Farm::new();
    let wire = Wire::to(&farm.url);
    let _worker = farm.worker_at(&wire.url, "w1", &[]);
    let (gate, done) = (farm.file("gate"), farm.file("done"));
    let command = format!(
        "echo before; while [ ! -e {} ]; do sleep 0.05; done; for i in 1 2 3; do echo $i; done; touch {}",
        gate.display(),
        done.display()
    );
    let job = farm.submit(&["--cmd", &command]);
    farm.until_task(&job, 0, "running");
    wire.cut();
    // It ends while nobody can be told.
    std::fs::write(&gate, b"").unwrap();
    until("the task is through", || done.exists());
    assert_eq!(farm.task(&job, 0)["state"], "running");
    wire.mend();
    farm.assert_done_once(&job);
    assert_eq!(farm.task(&job, 0)["attempts"], 1);
    assert_eq!(
        farm.ask(&["logs", "--task", &format!("{job}-s0-t0"), "--follow"]),
        "before\n1\n2\n3\n"
    );
}

#[test]
fn scenario_10_a_cancel_that_was_sent_during_a_cut_is_heard_after_it() {
    let farm = Farm::new();
    let wire = Wire::to(&farm.url);
    let _worker = farm.worker_at(&wire.url, "w1", &[]);
    let file = farm.file("pid");
    let command = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 600", file.display());
    let job = farm.submit(&["--cmd", &command]);
    until("it runs", || file.exists());
    let process = Path::new("/proc").join(&lines(&file)[0]);
    wire.cut();
    farm.ask(&["cancel", "--job", &job]);
    assert!(process.exists());
    wire.mend();
    until("the process is gone", || !process.exists());
    assert_eq!(farm.job(&job)["state"], "canceled");
}

#[test]
fn scenario_11_a_worker_that_stops_politely_gives_its_task_back() {
    let farm = Farm::new();
    let mut first = farm.worker("w1", &[]);
    let file = farm.file("noted");
    let gate = farm.file("gate");
    let work = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    let job = farm.submit(&["--cmd", &noted(&file, &work)]);
    farm.until_task(&job, 0, "running");
    first.signal("TERM");
    assert!(first.wait());
    until("w1 is offline", || !farm.online("w1"));
    let _second = farm.worker("w3", &[]);
    std::fs::write(&gate, b"").unwrap();
    farm.assert_done_once(&job);
    assert_eq!(farm.task(&job, 0)["attempts"], 2);
    assert_eq!(
        lines(&file).iter().filter(|line| line.starts_with("end")).count(),
        1
    );
}

#[test]
fn scenario_12_the_tasks_of_a_killed_worker_go_to_another() {
    let farm = Farm::new();
    let first = farm.worker("w1", &[]);
    let gate = farm.file("gate");
    let work = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    let job = farm.submit(&["--tasks", "2", "--cmd", &work]);
    farm.until_task(&job, 0, "running");
    farm.until_task(&job, 1, "running");
    let _second = farm.worker("w2", &[]);
    first.signal("KILL");
    until("w1 is offline", || !farm.online("w1"));
    std::fs::write(&gate, b"").unwrap();
    farm.assert_done_once(&job);
    assert_eq!(farm.task(&job, 0)["attempts"], 2);
}

#[test]
fn scenario_13_a_worker_killed_and_started_at_once_does_not_keep_its_old_task() {
    let farm = Farm::new();
    let first = farm.worker("w1", &[]);
    let gate = farm.file("gate");
    let job = farm.submit(&[
        "--cmd",
        &format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display()),
    ]);
    farm.until_task(&job, 0, "running");
    first.signal("KILL");
    let _again = farm.worker("w1", &[]);
    std::fs::write(&gate, b"").unwrap();
    farm.assert_done_once(&job);
    assert_eq!(farm.task(&job, 0)["attempts"], 2);
}

#[test]
fn scenario_14_a_killed_server_comes_back_and_every_task_ends_once() {
    let mut farm = Farm::new();
    let _workers = [farm.worker("w1", &[]), farm.worker("w2", &[])];
    let file = farm.file("noted");
    let job = farm.submit(&["--tasks", "16", "--cmd", &noted(&file, "sleep 0.3")]);
    for done in [1, 6] {
        until("some tasks have ended", || {
            lines(&file).iter().filter(|line| line.starts_with("end")).count() >= done
        });
        farm.restart_server();
    }
    farm.assert_done_once(&job);
    // No task ran twice at once: between two beginnings of one there is an end.
    let noted = lines(&file);
    for task in 0..16 {
        let (begin, end) = (format!("begin {task}"), format!("end {task}"));
        let of: Vec<&String> = noted
            .iter()
            .filter(|line| **line == begin || **line == end)
            .collect();
        assert!(
            of.chunks(2)
                .all(|pair| *pair[0] == begin && pair.get(1).is_none_or(|line| **line == end)),
            "{of:?}"
        );
    }
}

#[test]
fn scenario_15_a_server_that_stops_politely_is_quick_and_goes_on_where_it_was() {
    let mut farm = Farm::new();
    let _workers = [farm.worker("w1", &[]), farm.worker("w2", &[])];
    let file = farm.file("noted");
    let job = farm.submit(&["--tasks", "24", "--cmd", &noted(&file, "sleep 0.1")]);
    for done in [1, 8] {
        until("some tasks have ended", || {
            lines(&file).iter().filter(|line| line.starts_with("end")).count() >= done
        });
        let begun = Instant::now();
        farm.server.signal("TERM");
        assert!(farm.server.wait());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        farm.server = start(&mut farm.server_again()).0;
    }
    farm.assert_done_once(&job);
    for task in farm.job(&job)["tasks"].as_array().unwrap() {
        assert_eq!(task["attempts"], 1, "{task}");
    }
    let streams: Value = serde_json::from_str(&farm.ask(&["streams"])).unwrap();
    assert_eq!(
        (&streams["streams"][4]["name"], &streams["streams"][4]["messages"]),
        (&"SQI_DEAD".into(), &0.into())
    );
    let counts: Value = serde_json::from_str(&farm.ask(&["counts"])).unwrap();
    assert!(counts["counts"]["acked"].as_u64().unwrap() > 0, "{counts}");
    assert_eq!(counts["counts"]["dead"], 0);
}

#[test]
fn scenario_16_a_second_server_fails_at_once_and_the_first_is_unaffected() {
    let farm = Farm::new();
    for second in [
        farm.server_again(),
        server(farm.folder.path(), "127.0.0.1:0", "127.0.0.1:0"),
        server(
            &farm.file("other"),
            &farm.url.replace("nats://", ""),
            "127.0.0.1:0",
        ),
    ] {
        let mut second = second;
        let begun = Instant::now();
        let output = second.output().unwrap();
        assert!(!output.status.success());
        assert!(begun.elapsed() < Duration::from_secs(5));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("listen") || text.contains("another"), "{text}");
    }
    let _worker = farm.worker("w1", &[]);
    let job = farm.submit(&["--cmd", "true", "--wait"]);
    farm.assert_done_once(&job);
}
