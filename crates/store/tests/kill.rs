//! Real processes killed at random moments: what a child said is acknowledged is there afterwards.
//!
//! The child is this test binary itself, started again with an environment variable.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use windjet_store::{
    Append, ConsumerChange, Disk, Found, Op, Position, Purge, RealDisk, SeqRange, Store, StoreOptions,
    StreamOptions, SystemClock,
};

const DIR: &str = "WINDJET_KILL_DIR";
/// The number of the next stream `T` that a child makes.
const NEXT: &str = "WINDJET_KILL_NEXT";

fn open(dir: &std::path::Path) -> Store {
    let options = StoreOptions {
        journal_max: 2 << 20,
        ballast: false,
        ..StoreOptions::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir).unwrap());
    let (mut store, report) = Store::open(options, disk, Arc::new(SystemClock::new())).unwrap();
    assert!(report.is_intact(), "{:?}", report.findings);
    store.start().unwrap();
    store
}

/// Works until killed: appends to a stream, removes from it, purges it by filter, acknowledges on a consumer, and creates,
/// fills and deletes another stream, again and again. Says what it is about to do to what is there (`?`) and, when it is
/// acknowledged, what was done (`!`), a line each:
///
/// | line | |
/// |---|---|
/// | `append! SEQ` | |
/// | `remove? SEQ`, `remove! SEQ` | |
/// | `purge? BELOW`, `purge! BELOW` | of subject `p` |
/// | `ack! SEQ` | the consumer's floor |
/// | `create? N`, `create! N` | of the N-th stream `T` |
/// | `fill! N SEQ` | a message in it |
/// | `delete? N`, `delete! N` | |
#[test]
fn child_of_the_kill_test() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let store = open(dir.as_ref());
    let mut w = match store.writer("K") {
        Some(w) => w,
        None => create(&store, "K", 0),
    };
    let mut next: u64 = std::env::var(NEXT).unwrap().parse().unwrap();
    let mut out = Child {
        out: std::io::stdout(),
        said: VecDeque::new(),
    };
    // The harness has begun a line of its own.
    out.say("");
    if !w.has_consumer("c") {
        w.stage(Op::ConsumerPut {
            name: "c",
            config: b"config",
        })
        .unwrap();
    }
    let mut other = store.writer("T").map(|w| (number_of(&w.options().config), w));
    let (mut other_said, mut other_left) = (VecDeque::new(), 0);
    let mut acked = 0;
    for turn in 0u64.. {
        let last = w.last_seq();
        let payload = (last + 1).to_le_bytes().repeat(1 + (last as usize * 7) % 60);
        let subject: &[u8] = if last % 4 == 0 { b"p" } else { b"k" };
        if let Ok(t) = w.stage(Op::Append(Append {
            subject,
            payload: &payload,
            ..Append::default()
        })) {
            out.when(t.op, format!("append! {}", t.seq));
        }
        if last.is_multiple_of(3) && last > 20 {
            let gone = last - 15;
            out.say(&format!("remove? {gone}"));
            if let Ok(t) = w.stage(Op::Remove(&[SeqRange::one(gone)])) {
                out.when(t.op, format!("remove! {gone}"));
            }
        }
        if turn % 5 == 0 && last > acked {
            let mut change = ConsumerChange::default();
            let at = Position {
                stream_seq: last,
                consumer_seq: last,
            };
            (change.delivered, change.floor) = (Some(at), Some(at));
            if let Ok(t) = w.stage(Op::ConsumerChange {
                name: "c",
                change: &change,
                remove: &[],
            }) {
                acked = last;
                out.when(t.op, format!("ack! {last}"));
            }
        }
        if turn % 40 == 39 {
            let below = last.saturating_sub(5);
            out.say(&format!("purge? {below}"));
            if let Ok(t) = w.stage(Op::Purge(Purge { filter: b"p", below })) {
                out.when(t.op, format!("purge! {below}"));
            }
        }
        w.submit();
        out.committed(w.commit().unwrap());
        match &mut other {
            None => {
                out.say(&format!("create? {next}"));
                let w = create(&store, "T", next);
                other_said.push_back((1, format!("create! {next}")));
                other = Some((next, w));
                other_left = 4;
                next += 1;
            }
            Some((n, w)) => {
                if other_left > 0 {
                    other_left -= 1;
                    let t = w.stage(Op::Append(Append {
                        subject: b"t",
                        ..Append::default()
                    }));
                    other_said.extend(t.ok().map(|t| (t.op, format!("fill! {n} {}", t.seq))));
                } else if other_said.is_empty() {
                    out.say(&format!("delete? {n}"));
                    let t = w.stage(Op::Delete).unwrap();
                    other_said.push_back((t.op, format!("delete! {n}")));
                }
                w.submit();
                let op = w.commit().unwrap();
                while let Some((_, line)) = other_said.pop_front_if(|(o, _)| *o <= op) {
                    out.say(&line);
                    if line.starts_with("delete!") {
                        other = None;
                        break;
                    }
                }
            }
        }
        std::thread::yield_now();
    }
}

fn create(store: &Store, name: &str, n: u64) -> windjet_store::StreamWriter {
    store
        .create_stream(StreamOptions {
            name: name.into(),
            config: n.to_le_bytes().to_vec().into(),
            ..StreamOptions::default()
        })
        .unwrap()
}

fn number_of(config: &[u8]) -> u64 {
    u64::from_le_bytes(config.try_into().unwrap())
}

/// What the child says, at once or when an operation is acknowledged.
struct Child {
    out: std::io::Stdout,
    said: VecDeque<(u64, String)>,
}

impl Child {
    fn say(&mut self, line: &str) {
        writeln!(self.out, "{line}").unwrap();
        self.out.flush().unwrap();
    }

    fn when(&mut self, op: u64, line: String) {
        self.said.push_back((op, line));
    }

    fn committed(&mut self, op: u64) {
        while let Some((_, line)) = self.said.pop_front_if(|(o, _)| *o <= op) {
            self.say(&line);
        }
    }
}

/// What the children have said so far.
#[derive(Default)]
struct Heard {
    appended: BTreeSet<u64>,
    maybe_removed: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    maybe_purged: u64,
    purged: u64,
    acked: u64,
    /// The newest stream `T` that may exist, that does, that may be gone, that is.
    maybe_created: u64,
    created: u64,
    maybe_deleted: u64,
    deleted: u64,
    /// Newest stream `T` with an acknowledged message, and its sequence.
    filled: (u64, u64),
}

impl Heard {
    fn line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|n| n.parse::<u64>().ok());
        let Some(n) = number() else { return };
        match what {
            "append!" => drop(self.appended.insert(n)),
            "remove?" => drop(self.maybe_removed.insert(n)),
            "remove!" => drop(self.removed.insert(n)),
            "purge?" => self.maybe_purged = self.maybe_purged.max(n),
            "purge!" => self.purged = self.purged.max(n),
            "ack!" => self.acked = self.acked.max(n),
            "create?" => self.maybe_created = n,
            "create!" => self.created = n,
            "delete?" => self.maybe_deleted = n,
            "delete!" => self.deleted = n,
            "fill!" => self.filled = (n, number().unwrap_or(0)),
            _ => {}
        }
    }

    fn check(&self, store: &Store) {
        self.check_other(store);
        let Some(reader) = store.reader("K") else {
            assert!(self.appended.is_empty(), "the stream is gone");
            return;
        };
        assert!(
            Some(&reader.state().last_seq) >= self.appended.last(),
            "the last sequence went back"
        );
        for seq in &self.appended {
            let found = match reader.read(*seq) {
                Found::InMemory(m) => Some(m),
                Found::NeedsDisk(t) => t.read().unwrap(),
                Found::Absent => None,
            };
            let purgeable = seq % 4 == 1;
            match found {
                Some(m) => {
                    assert!(!self.removed.contains(seq), "{seq} came back");
                    assert!(
                        !purgeable || *seq >= self.purged,
                        "{seq} came back, purged below {}",
                        self.purged
                    );
                    assert_eq!(m.payload()[..8], seq.to_le_bytes());
                }
                None => assert!(
                    self.maybe_removed.contains(seq) || purgeable && *seq < self.maybe_purged,
                    "{seq} is lost"
                ),
            }
        }
        let floor = reader.consumer("c").map_or(0, |c| c.state.floor.stream_seq);
        assert!(floor >= self.acked, "the floor {floor} was {} before", self.acked);
    }

    fn check_other(&self, store: &Store) {
        let Some(reader) = store.reader("T") else {
            assert!(
                self.maybe_deleted >= self.created,
                "stream {} is gone",
                self.created
            );
            return;
        };
        let n = number_of(&reader.options().config);
        assert!(n > self.deleted, "stream {n} came back");
        assert!(
            n >= self.created && n <= self.maybe_created,
            "stream {n} is there"
        );
        if self.filled.0 == n {
            assert!(reader.state().messages >= self.filled.1, "{n} lost messages");
        }
    }
}

#[test]
fn nothing_a_killed_process_acknowledged_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let loops: u64 = std::env::var("WINDJET_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(25);
    let mut heard = Heard::default();
    for round in 0..loops {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_of_the_kill_test", "--nocapture"])
            .env(DIR, dir.path())
            .env(NEXT, (heard.maybe_created + 1).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let wanted = 10 + (round * 137) % 900;
        for (i, line) in lines.lines().enumerate() {
            let Ok(line) = line else { break };
            heard.line(&line);
            if i as u64 == wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        println!("round {round}");
        heard.check(&open(dir.path()));
    }
    assert!(heard.purged > 0 && heard.acked > 0 && heard.deleted > 0 && !heard.removed.is_empty());
}
