//! A consumer on a real memory stream, with a clock moved by hand and everything that goes out written down.
//!
//! After every event the consumer is run as the stream's task does, its change is staged, and what the store then knows is
//! held against what the consumer says, as is the number of messages to come against a count of its own.

mod acks;
mod lifecycle;
mod model;
mod priority;
mod pull;
mod push;
mod redelivery;
mod start;
mod vanish;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::header::block;
use windjet_protocol::jetstream::{ConsumerConfig, ConsumerInfo, Timestamp};
use windjet_protocol::reply::AckSubject;
use windjet_protocol::subject;
use windjet_store::{
    Append, Found, Op, Purge, SeqRange, SimClock, SimDisk, Storage, Store, StoreOptions, StreamOptions,
    StreamReader, StreamWriter,
};

use super::{
    AckMessage, Budget, Consumer, Delivered, Delivery, Due, Fetched, Home, Now, Port, Progress, Pull, Stop,
};

const MS: u64 = 1_000_000;
const WALL: i64 = 1_800_000_000_000_000_000;

/// What a consumer sees of the outside.
struct Fake {
    reader: StreamReader,
    /// Patterns that somebody listens to.
    listening: BTreeSet<String>,
    /// Deliver subject and group that somebody listens to.
    bound: Option<(String, Option<String>)>,
    /// Subjects whose receivers take nothing.
    full: BTreeSet<String>,
    /// Sequences that are on the disk.
    on_disk: BTreeSet<u64>,
    out: Vec<String>,
    acks: BTreeMap<(u64, u64), Vec<u8>>,
    settled: Vec<(u64, u64)>,
    sent_bytes: u64,
    flow: Option<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn headers(bytes: &[u8]) -> String {
    block::fields(bytes)
        .map(|(name, value)| format!(" {}={}", text(name), text(value)))
        .collect()
}

impl Port for Fake {
    fn deliver(&mut self, delivery: &Delivery<'_>) -> Delivered {
        let to = text(delivery.to);
        if self.full.contains(&to) {
            return Delivered::Full;
        }
        if !self.wanted(delivery.to) && self.bound.as_ref().is_none_or(|(subject, _)| *subject != to) {
            return Delivered::NoInterest;
        }
        let ack = AckSubject::parse(delivery.ack).unwrap();
        self.sent_bytes += (delivery.subject.len() + delivery.ack.len()) as u64;
        self.sent_bytes += (delivery.headers.len() + delivery.payload.len()) as u64;
        self.acks
            .insert((ack.stream_seq, ack.delivered), delivery.ack.to_vec());
        self.out.push(format!(
            "{to}: {}/{} x{} p{}{}",
            ack.stream_seq,
            ack.consumer_seq,
            ack.delivered,
            ack.pending,
            headers(delivery.headers)
        ));
        Delivered::Taken
    }

    fn status(&mut self, to: &[u8], reply: Option<&[u8]>, block: &[u8]) {
        let line = text(block::status_text(block).unwrap());
        self.out.push(format!("{}: {line}{}", text(to), headers(block)));
        if let Some(reply) = reply {
            self.flow = Some(text(reply));
        }
    }

    fn wanted(&self, to: &[u8]) -> bool {
        self.listening
            .iter()
            .any(|pattern| subject::matches(pattern.as_bytes(), to))
    }

    fn bound(&self, subject: &[u8], group: Option<&[u8]>) -> bool {
        self.bound.as_ref().is_some_and(|(bound, of)| {
            bound.as_bytes() == subject && of.as_deref().map(str::as_bytes) == group
        })
    }

    fn advise(&mut self, subject: &[u8], body: Vec<u8>) {
        let mut value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let members = value.as_object_mut().unwrap();
        for key in ["type", "id", "timestamp", "stream", "consumer"] {
            members.remove(key).unwrap();
        }
        let kind = text(subject)
            .strip_prefix("$JS.EVENT.")
            .unwrap()
            .replace(".S.C", "");
        self.out.push(format!("{kind} {value}"));
    }

    fn fetch(&mut self, seq: u64) -> Fetched {
        if self.on_disk.contains(&seq) {
            return Fetched::Later;
        }
        match self.reader.read(seq) {
            Found::InMemory(message) => Fetched::Message(message),
            _ => Fetched::Absent,
        }
    }

    fn settled(&mut self, first: u64, last: u64) {
        assert!(first <= last);
        self.settled.push((first, last));
    }

    fn confirm(&mut self, reply: &[u8]) {
        self.out.push(format!("{}: +", text(reply)));
    }
}

/// The stream's task, by hand.
struct Bench {
    _store: Store,
    writer: StreamWriter,
    home: Arc<Home>,
    port: Fake,
    now: Now,
    c: Option<Consumer>,
    deleted: bool,
}

fn config(json: &str) -> ConsumerConfig {
    let mut config: ConsumerConfig = serde_json::from_str(json).unwrap();
    config.name = Some("C".into());
    config.fill_defaults(&Default::default());
    config
}

impl Bench {
    /// A stream with nothing in it, and everybody listening.
    fn new() -> Self {
        Self::with_home(|_| {})
    }

    fn with_home(change: impl FnOnce(&mut Home)) -> Self {
        let options = StoreOptions {
            ballast: false,
            ..StoreOptions::default()
        };
        let clock = Arc::new(SimClock::new(WALL));
        let (store, _) = Store::open(options, Arc::new(SimDisk::new(1)), clock).unwrap();
        let mut writer = store
            .create_stream(StreamOptions {
                name: "$G/S".into(),
                storage: Storage::Memory,
                ..StreamOptions::default()
            })
            .unwrap();
        writer.submit();
        writer.commit().unwrap();
        let reader = writer.reader();
        let mut home = Home {
            account: "$G".into(),
            stream: "S".into(),
            domain: None,
            reader: reader.clone(),
            max_msgs_per_subject: -1,
            burst: 1 << 20,
        };
        change(&mut home);
        let port = Fake {
            reader,
            listening: [">".to_owned()].into(),
            bound: None,
            full: BTreeSet::new(),
            on_disk: BTreeSet::new(),
            out: Vec::new(),
            acks: BTreeMap::new(),
            settled: Vec::new(),
            sent_bytes: 0,
            flow: None,
        };
        Self {
            _store: store,
            writer,
            home: Arc::new(home),
            port,
            now: Now {
                mono: 5 * MS,
                wall: WALL,
            },
            c: None,
            deleted: false,
        }
    }

    /// A stream with messages on these subjects, and a consumer.
    fn start(subjects: &[&str], json: &str) -> Self {
        let mut bench = Self::new();
        bench.publish(subjects);
        bench.create(json);
        bench
    }

    fn op(&mut self, op: Op<'_>) {
        self.writer.stage(op).unwrap();
        self.writer.submit();
        self.writer.commit().unwrap();
    }

    fn create(&mut self, json: &str) {
        let consumer = Consumer::create(self.home.clone(), "C", config(json), None, self.now);
        self.adopt(consumer);
    }

    fn adopt(&mut self, consumer: Consumer) {
        let put = consumer.stored_config();
        self.op(Op::ConsumerPut {
            name: "C",
            config: &put,
        });
        self.c = Some(consumer);
        self.with(|c, port, now| c.interest_changed(port, now));
    }

    /// Does something to the consumer, then what the stream's task does after it.
    fn with<T>(&mut self, f: impl FnOnce(&mut Consumer, &mut Fake, Now) -> T) -> T {
        let c = self.c.as_mut().unwrap();
        let result = f(c, &mut self.port, self.now);
        self.run();
        result
    }

    fn run(&mut self) {
        let c = self.c.as_mut().unwrap();
        if !self.deleted && c.is_ready(self.now) {
            while c.deliver(&mut self.port, &mut Budget::default(), self.now) == Progress::More {}
            assert!(
                self.port.full.len() + self.port.on_disk.len() > 0
                    || c.push.is_none()
                    || !c.is_ready(self.now),
                "stopped although it is ready"
            );
        }
        self.save();
        self.check();
    }

    fn save(&mut self) {
        let c = self.c.as_mut().unwrap();
        if c.is_dirty() {
            let change = c.take_change(self.now).unwrap();
            self.op(Op::ConsumerChange {
                name: "C",
                change: &change,
                remove: &[],
            });
        }
    }

    /// Holds the consumer against the store, and its count against the stream.
    fn check(&mut self) {
        let c = self.c.as_mut().unwrap();
        let reader = &self.home.reader;
        if !c.config.mem_storage {
            let state = reader.consumer("C").unwrap().state;
            assert_eq!((state.delivered, state.floor), (c.delivered, c.floor));
            let stored: Vec<_> = state
                .pending
                .iter()
                .map(|(seq, p)| (*seq, super::record::numbered(p.consumer_seq).0))
                .collect();
            let seqs = c.tracked.seqs(0, u64::MAX);
            let own: Vec<_> = seqs
                .iter()
                .map(|seq| (*seq, c.tracked.get(*seq).unwrap().dseq()))
                .collect();
            assert_eq!(stored, own);
            let stored: Vec<_> = state.redelivered.into_iter().collect();
            let seqs = c.tracked.counted(0, u64::MAX);
            let own: Vec<_> = seqs
                .iter()
                .map(|seq| (*seq, c.tracked.deliveries(*seq)))
                .collect();
            assert_eq!(stored, own);
        }
        let mut to_come = 0;
        for seq in 1..=reader.state().last_seq {
            let in_set = c
                .initial
                .as_ref()
                .is_some_and(|initial| initial.set.contains(&seq));
            let subject = reader.subject_of(seq);
            let matches = subject.is_some_and(|subject| c.matcher.matches(&subject));
            to_come += u64::from(matches && (seq >= c.next || in_set));
        }
        assert_eq!(c.num_pending(), to_come);
        assert!(
            c.floor.stream_seq <= c.delivered.stream_seq && c.floor.consumer_seq <= c.delivered.consumer_seq
        );
    }

    /// Stores messages, one commit each.
    fn publish(&mut self, subjects: &[&str]) {
        for subject in subjects {
            self.publish_one(subject, b"", b"12345");
        }
    }

    fn publish_one(&mut self, subject: &str, headers: &[u8], payload: &[u8]) {
        let append = Append {
            subject: subject.as_bytes(),
            headers,
            payload,
            time: Some(self.now.wall),
            ..Append::default()
        };
        self.op(Op::Append(append));
        let seq = self.writer.last_seq();
        if let Some(c) = &mut self.c {
            c.appended(seq, subject.as_bytes());
            self.run();
        }
    }

    fn remove(&mut self, first: u64, last: u64) {
        let ranges = [SeqRange { first, last }];
        self.op(Op::Remove(&ranges));
        self.with(|c, port, now| c.removed(port, &ranges, now));
    }

    fn purge(&mut self, filter: &str, below: u64) {
        self.op(Op::Purge(Purge {
            filter: filter.as_bytes(),
            below,
        }));
        self.with(|c, _, now| c.purged(filter.as_bytes(), now));
    }

    fn pull(&mut self, reply: &str, payload: &str) {
        self.pull_by(reply, payload, 1);
    }

    fn pull_by(&mut self, reply: &str, payload: &str, holder: u64) {
        let pull = Pull {
            payload: payload.as_bytes(),
            headers: b"",
            reply: reply.as_bytes(),
            holder,
        };
        self.with(|c, port, now| c.pull(port, pull, now));
    }

    /// Acknowledges delivery `count` of a message; the answer goes to `r`.
    fn ack(&mut self, seq: u64, count: u64, payload: &str) {
        let subject = self.port.acks[&(seq, count)].clone();
        self.ack_at(&text(&subject), payload);
    }

    fn ack_at(&mut self, subject: &str, payload: &str) {
        let ack = AckMessage {
            subject: AckSubject::parse(subject.as_bytes()).unwrap(),
            payload: payload.as_bytes(),
            reply: Some(b"r"),
            holder: 1,
        };
        self.with(|c, port, now| c.ack(port, ack, now));
    }

    /// Moves the clocks, from deadline to deadline.
    fn advance(&mut self, ms: u64) {
        let to = self.now.mono + ms * MS;
        while !self.deleted {
            let Some(due) = self.c.as_mut().unwrap().next_deadline().filter(|due| *due <= to) else {
                break;
            };
            self.move_to(due.max(self.now.mono));
            if self.with(|c, port, now| c.expire(port, now)) == Due::Delete {
                self.deleted = true;
                self.with(|c, port, now| c.stop(port, Stop::Deleted, now));
            }
        }
        self.move_to(to);
    }

    fn move_to(&mut self, mono: u64) {
        self.now.wall += i64::try_from(mono - self.now.mono).unwrap();
        self.now.mono = mono;
    }

    fn bind(&mut self, subject: &str, group: Option<&str>) {
        self.port.bound = Some((subject.into(), group.map(Into::into)));
        self.with(|c, port, now| c.interest_changed(port, now));
    }

    fn unbind(&mut self) {
        self.port.bound = None;
        self.with(|c, port, now| c.interest_changed(port, now));
    }

    fn update(&mut self, json: &str) {
        let config = config(json);
        let updated = self.with(|c, port, now| c.update(port, config, now)).unwrap();
        assert!(updated.changed);
    }

    /// Takes the consumer up from what is stored, after so many milliseconds.
    fn restart(&mut self, ms: u64) {
        let record = self.home.reader.consumer("C").unwrap();
        self.now.wall += i64::try_from(ms * MS).unwrap();
        // The monotonic clock begins anew.
        self.now.mono = 7;
        self.c = Some(Consumer::restore(self.home.clone(), "C", &record, self.now).unwrap());
        self.with(|c, port, now| c.interest_changed(port, now));
    }

    fn info(&mut self) -> ConsumerInfo {
        self.with(|c, port, now| c.info(port, now))
    }

    /// `delivered`, `ack_floor`, pending acks, redelivered, to come; pairs as stream/consumer.
    fn state(&mut self) -> String {
        let info = self.info();
        format!(
            "{}/{} {}/{} a{} r{} p{}",
            info.delivered.stream_seq,
            info.delivered.consumer_seq,
            info.ack_floor.stream_seq,
            info.ack_floor.consumer_seq,
            info.num_ack_pending,
            info.num_redelivered,
            info.num_pending
        )
    }

    /// What went out since the last call.
    fn out(&mut self) -> Vec<String> {
        std::mem::take(&mut self.port.out)
    }

    /// What went out, as one line.
    fn line(&mut self) -> String {
        self.out().join(" | ")
    }

    fn time(&self, ms: i64) -> Timestamp {
        Timestamp::from_unix_nanos(self.now.wall + ms * 1_000_000)
    }
}

/// So many messages on `x`.
fn xs(count: usize) -> Vec<&'static str> {
    vec!["x"; count]
}

const EXPLICIT: &str = r#"{"ack_policy":"explicit","durable_name":"C"}"#;
