use windjet_protocol::jetstream::{DiscardPolicy, RetentionPolicy, StreamConfig};

use super::*;
use crate::jetstream::publish::testing::{Model, block_of};

const SECOND: u64 = 1_000_000_000;

struct Client {
    stream: Model,
    batches: Batches,
    shared: Shared,
    now: u64,
    advisory: Option<Reason>,
}

impl Client {
    fn new(change: impl FnOnce(&mut StreamConfig)) -> Self {
        Self::with(Limits::default(), change)
    }

    fn with(limits: Limits, change: impl FnOnce(&mut StreamConfig)) -> Self {
        let shared = Shared::default();
        let copy = Shared {
            batches: shared.batches.clone(),
            bytes: shared.bytes.clone(),
        };
        let stream = Model::new(|c| {
            (c.allow_atomic, c.allow_rollup_hdrs, c.allow_msg_ttl) = (true, true, true);
            change(c);
        });
        Self {
            stream,
            batches: Batches::new(limits, copy),
            shared,
            now: 0,
            advisory: None,
        }
    }

    /// Sends one message and tells the answer: nothing when it waits, `ok LAST COUNT`, or the error.
    fn send(
        &mut self,
        id: &str,
        seq: &str,
        commit: Option<&str>,
        subject: &str,
        fields: &[(&str, &str)],
    ) -> String {
        let mut all = vec![("Nats-Batch-Id", id), ("Nats-Batch-Sequence", seq)];
        all.extend(commit.map(|commit| ("Nats-Batch-Commit", commit)));
        all.extend_from_slice(fields);
        self.send_block(subject, &block_of(&all), b"x")
    }

    fn send_block(&mut self, subject: &str, block: &[u8], payload: &[u8]) -> String {
        self.advisory = None;
        let payload = if self.stream.rules.counters { b"" } else { payload };
        let message = Incoming::new(subject.as_bytes(), block, payload);
        let told = |error: ApiError| format!("{} {error}", error.err_code);
        match self
            .batches
            .accept(&self.stream.rules, &self.stream, &message, self.now)
        {
            Accepted::Staged => String::new(),
            Accepted::Refused { error, advisory } => {
                self.advisory = advisory;
                told(error)
            }
            Accepted::Commit(batch) => match batch.decide(&self.stream.rules, &self.stream) {
                Ok(planned) => {
                    for planned in &planned {
                        let subject = std::str::from_utf8(planned.subject).unwrap();
                        assert_eq!(self.stream.apply(subject, &planned.plan), planned.seq);
                    }
                    format!("ok {} {}", self.stream.last_seq, batch.len())
                }
                Err(Stop::Refuse(error)) => told(error),
                Err(stop) => format!("{stop:?}"),
            },
        }
    }

    /// Sends a whole batch of subjects with fields and gives the last answer.
    fn batch(&mut self, messages: &[(&str, &[(&str, &str)])]) -> String {
        let mut answer = String::new();
        for (i, (subject, fields)) in messages.iter().enumerate() {
            assert_eq!(answer, "");
            let commit = (i + 1 == messages.len()).then_some("1");
            answer = self.send("b", &(i + 1).to_string(), commit, subject, fields);
        }
        answer
    }

    fn taken(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.shared.batches), load(&self.shared.bytes))
    }
}

const INCOMPLETE: &str = "10176 atomic publish batch is incomplete";
const LARGE: &str = "10199 atomic publish batch is too large: 1000";

#[test]
fn a_batch_is_stored_with_its_last_message() {
    let mut c = Client::new(|_| {});
    assert_eq!(c.send("i", "1", None, "a", &[("A", "b")]), "");
    assert_eq!((c.stream.last_seq, c.taken().0), (0, 1));
    assert_eq!(c.send("i", "2", Some("1"), "b", &[]), "ok 2 2");
    assert_eq!(c.stream.live(), [1, 2]);
    assert_eq!(
        c.stream.block(1),
        "NATS/1.0\r\nNats-Batch-Id: i\r\nNats-Batch-Sequence: 1\r\nA: b\r\n\r\n"
    );
    assert_eq!(
        c.stream.block(2),
        "NATS/1.0\r\nNats-Batch-Id: i\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n\r\n"
    );
    assert_eq!(c.send("i", "1", Some("1"), "a", &[]), "ok 3 1");
    assert_eq!(c.taken(), (0, 0));
}

#[test]
fn a_closing_message_is_not_stored() {
    let mut c = Client::new(|_| {});
    c.send("i", "1", None, "a", &[]);
    c.send("i", "2", None, "a", &[]);
    assert_eq!(c.send("i", "3", Some("eob"), "zzz", &[]), "ok 2 2");
    assert!(c.stream.block(2).ends_with("Nats-Batch-Commit: 1\r\n\r\n"));
    assert_eq!(c.send("i", "1", Some("eob"), "a", &[]), INCOMPLETE);
    assert_eq!(c.advisory, Some(Reason::Incomplete));
}

#[test]
fn the_feature_and_the_headers_must_be_there() {
    let mut c = Client::new(|c| c.allow_atomic = false);
    assert_eq!(
        c.send("i", "1", None, "a", &[]),
        "10174 atomic publish is disabled"
    );
    c.stream.rules.sealed = true;
    assert_eq!(
        c.send("i", "1", None, "a", &[]),
        "10109 invalid operation on sealed stream"
    );

    let mut c = Client::new(|_| {});
    assert_eq!(c.send(&"i".repeat(64), "1", Some("1"), "a", &[]), "ok 1 1");
    let invalid = "10179 atomic publish batch ID is invalid";
    assert_eq!(c.send(&"i".repeat(65), "1", None, "a", &[]), invalid);
    assert_eq!(c.send(&"i".repeat(65), "x", None, "a", &[]), invalid);
    assert_eq!(c.send("i", "1", None, "a", &[]), "");
    for seq in ["x", "", "-1"] {
        let answer = c.send("i", seq, None, "a", &[]);
        assert_eq!(answer, "10175 atomic publish sequence is missing", "{seq}");
    }
    let answer = c.send_block("a", &block_of(&[("Nats-Batch-Id", "i")]), b"");
    assert_eq!(answer, "10175 atomic publish sequence is missing");
    // The batch is still there.
    assert_eq!(c.send("i", "2", Some("1"), "a", &[]), "ok 3 2");
}

#[test]
fn unknown_batches() {
    let mut c = Client::new(|_| {});
    for (seq, answer) in [
        ("0", INCOMPLETE),
        ("2", INCOMPLETE),
        ("1000", INCOMPLETE),
        ("1001", LARGE),
    ] {
        assert_eq!(c.send("u", seq, None, "a", &[]), answer, "{seq}");
        assert_eq!(c.advisory, None);
    }
}

#[test]
fn gaps_and_repeats_end_a_batch() {
    for wrong in ["1", "2", "4"] {
        let mut c = Client::new(|_| {});
        c.send("g", "1", None, "a", &[]);
        c.send("g", "2", None, "a", &[]);
        let commit = (wrong == "4").then_some("1");
        assert_eq!(c.send("g", wrong, commit, "a", &[]), INCOMPLETE, "{wrong}");
        assert_eq!((c.advisory, c.taken()), (Some(Reason::Incomplete), (0, 0)));
        assert_eq!(c.send("g", "3", None, "a", &[]), INCOMPLETE);
    }
}

#[test]
fn words_that_end_nothing() {
    let mut c = Client::new(|_| {});
    let invalid = "10200 atomic publish batch commit is invalid";
    assert_eq!(c.send("s", "1", Some("2"), "a", &[]), invalid);
    assert_eq!(c.send("s", "1", Some(""), "a", &[]), invalid);
    assert_eq!(c.send("s", "2", Some("1"), "a", &[]), INCOMPLETE);
    assert_eq!(c.send("s", "5", Some("x"), "a", &[]), INCOMPLETE);
    assert_eq!(c.send("s", "1", None, "a", &[]), "");
    assert_eq!(c.send("s", "2", Some("x"), "a", &[]), invalid);
    assert_eq!(
        (c.send("s", "3", None, "a", &[]), c.taken()),
        (INCOMPLETE.into(), (0, 0))
    );
}

#[test]
fn the_api_level_is_looked_at_and_not_stored() {
    let mut c = Client::new(|_| {});
    let level = |level| [("Nats-Required-Api-Level", level)];
    for wrong in ["9", "x", "-1"] {
        let answer = c.send("l", "1", None, "a", &level(wrong));
        assert_eq!(answer, "10185 JetStream minimum api level required");
        assert_eq!(c.advisory, Some(Reason::Unsupported));
    }
    assert_eq!(c.send("l", "1", Some("1"), "a", &level("2")), "ok 1 1");
    assert!(!c.stream.block(1).contains("Level"));
    c.send("l", "1", None, "a", &[]);
    c.send("l", "2", None, "a", &level("9"));
    assert_eq!(c.send("l", "2", Some("1"), "a", &[]), INCOMPLETE);
}

#[test]
fn long_messages_are_refused_at_once_and_do_not_count() {
    let mut c = Client::new(|c| c.max_msg_size = 200);
    let block = |seq| block_of(&[("Nats-Batch-Id", "z"), ("Nats-Batch-Sequence", seq)]);
    let long = [b'x'; 300];
    let refused = "10054 message size exceeds maximum allowed";
    assert_eq!(c.send_block("a", &block("1"), &long), refused);
    assert_eq!(c.send("z", "2", None, "a", &[]), INCOMPLETE);
    c.send("z", "1", None, "a", &[]);
    assert_eq!(c.send_block("a", &block("2"), &long), refused);
    assert_eq!(c.send("z", "2", Some("1"), "a", &[]), "ok 2 2");
}

#[test]
fn usage_is_looked_at_at_once() {
    let mut c = Client::new(|_| {});
    c.stream.account_room = 100;
    assert_eq!(c.send("z", "1", None, "a", &[]), "");
    // Together they are too much.
    let answer = c.send("z", "2", Some("1"), "a", &[]);
    assert_eq!(answer, "10002 resource limits exceeded for account");
    c.stream.account_room = 10;
    let answer = c.send("z", "1", None, "a", &[]);
    assert_eq!(answer, "10002 resource limits exceeded for account");
    c.stream.server_full = true;
    assert_eq!(c.send("z", "1", None, "a", &[]), "10023 insufficient resources");
}

#[test]
fn batches_have_a_length() {
    let mut c = Client::new(|_| {});
    let fill = |c: &mut Client| {
        for seq in 1..=1000 {
            assert_eq!(c.send("m", &seq.to_string(), None, "a", &[]), "");
        }
    };
    fill(&mut c);
    assert_eq!(c.send("m", "1001", Some("eob"), "a", &[]), "ok 1000 1000");
    fill(&mut c);
    assert_eq!(c.send("m", "1001", Some("1"), "a", &[]), LARGE);
    assert_eq!(c.advisory, Some(Reason::Large));
    assert_eq!(c.send("m", "1002", None, "a", &[]), LARGE);
    assert_eq!((c.advisory, c.taken()), (None, (0, 0)));
}

#[test]
fn open_batches_are_bounded() {
    let mut c = Client::new(|_| {});
    for n in 0..50 {
        assert_eq!(c.send(&format!("m{n}"), "1", None, "a", &[]), "");
    }
    let full = "10210 atomic publish too many inflight";
    assert_eq!(c.send("n", "1", None, "a", &[]), full);
    assert_eq!(c.send("n", "1", Some("1"), "a", &[]), full);
    assert_eq!(c.send("m0", "2", Some("1"), "a", &[]), "ok 2 2");
    assert_eq!(c.send("n", "1", None, "a", &[]), "");
    assert_eq!(c.taken().0, 50);
    c.batches.clear();
    assert_eq!(c.taken(), (0, 0));

    let limits = Limits {
        total: 1,
        ..Limits::default()
    };
    let mut c = Client::with(limits, |_| {});
    c.send("m", "1", None, "a", &[]);
    assert_eq!(c.send("n", "1", None, "a", &[]), full);
}

#[test]
fn waiting_bytes_are_bounded() {
    let limits = Limits {
        bytes: 1000,
        ..Limits::default()
    };
    let mut c = Client::with(limits, |_| {});
    let block = |seq| block_of(&[("Nats-Batch-Id", "z"), ("Nats-Batch-Sequence", seq)]);
    assert_eq!(c.send_block("a", &block("1"), &[b'x'; 400]), "");
    let answer = c.send_block("a", &block("2"), &[b'x'; 400]);
    assert_eq!(answer, "10210 atomic publish too many inflight");
    assert_eq!((c.advisory, c.taken()), (Some(Reason::Large), (0, 0)));
    assert_eq!(c.send("z", "2", None, "a", &[]), INCOMPLETE);
    c.send("z", "1", None, "a", &[]);
    let shared = Shared {
        batches: c.shared.batches.clone(),
        bytes: c.shared.bytes.clone(),
    };
    drop(c);
    assert_eq!(shared.batches.load(Ordering::Relaxed), 0);
    assert_eq!(shared.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn silent_batches_are_given_up() {
    let mut c = Client::new(|_| {});
    assert_eq!(c.batches.next_timeout(), None);
    c.send("a", "1", None, "a", &[]);
    c.now = 4 * SECOND;
    c.send("b", "1", None, "a", &[]);
    c.send("a", "2", None, "a", &[]);
    c.now = 5 * SECOND;
    c.send("a", "3", None, "a", &[]);
    assert_eq!(c.batches.next_timeout(), Some(14 * SECOND));
    assert!(c.batches.expire(14 * SECOND - 1).is_empty());
    assert_eq!(c.batches.expire(14 * SECOND), [Box::from(*b"b")]);
    assert_eq!(c.send("b", "2", None, "a", &[]), INCOMPLETE);
    assert_eq!(c.send("a", "4", Some("1"), "a", &[]), "ok 4 4");
    assert!(c.batches.is_empty());
}

#[test]
fn one_bad_message_refuses_all() {
    for (fields, answer) in [
        ([("Nats-TTL", "x")], "10165 invalid per-message TTL"),
        (
            [("Nats-Expected-Stream", "x")],
            "10060 expected stream does not match",
        ),
        (
            [("Nats-Expected-Last-Msg-Id", "q")],
            "10177 atomic publish unsupported header used: Nats-Expected-Last-Msg-Id",
        ),
        (
            [("Nats-Expected-Last-Subject-Sequence", "7")],
            "10071 wrong last sequence: 0",
        ),
        ([("Nats-Rollup", "x")], r#"10111 rollup value invalid: "x""#),
    ] {
        let mut c = Client::new(|_| {});
        assert_eq!(c.batch(&[("a", &fields), ("b", &[])]), answer);
        assert_eq!(c.batch(&[("a", &[]), ("b", &fields)]), answer);
        assert_eq!((c.stream.last_seq, c.taken()), (0, (0, 0)));
    }
}

#[test]
fn ids_of_the_stream_and_of_the_batch_are_known() {
    let mut c = Client::new(|_| {});
    let duplicate = "10201 atomic publish batch contains duplicate message id";
    let id = [("Nats-Msg-Id", "d")];
    assert_eq!(c.batch(&[("a", &id), ("b", &id), ("c", &[])]), duplicate);
    assert_eq!(c.batch(&[("a", &id), ("b", &[])]), "ok 2 2");
    assert_eq!(c.batch(&[("a", &id)]), duplicate);
}

#[test]
fn expected_sequences() {
    let mut c = Client::new(|_| {});
    (0..15).for_each(|_| drop(c.stream.publish("z", &[], "")));
    let seq = |seq| [("Nats-Expected-Last-Sequence", seq)];
    assert_eq!(
        c.batch(&[("a", &seq("3")), ("b", &[])]),
        "10071 wrong last sequence: 15"
    );
    assert_eq!(
        c.batch(&[("a", &[]), ("b", &seq("15"))]),
        "10071 wrong last sequence: 16"
    );
    assert_eq!(
        c.batch(&[("a", &[]), ("b", &seq("16"))]),
        "10164 wrong last sequence"
    );
    assert_eq!(c.batch(&[("a", &seq("15")), ("b", &[])]), "ok 17 2");

    let of_subject = |seq| [("Nats-Expected-Last-Subject-Sequence", seq)];
    assert_eq!(
        c.batch(&[("n", &[]), ("n", &of_subject("0"))]),
        "10164 wrong last sequence"
    );
    assert_eq!(c.batch(&[("n", &[]), ("m", &of_subject("0"))]), "ok 19 2");
    let wild = |seq| {
        [
            ("Nats-Expected-Last-Subject-Sequence", seq),
            ("Nats-Expected-Last-Subject-Sequence-Subject", "*"),
        ]
    };
    assert_eq!(
        c.batch(&[("n", &[]), ("o", &wild("0"))]),
        "10071 wrong last sequence: 19"
    );
    assert_eq!(c.batch(&[("n", &[]), ("o", &wild("19"))]), "ok 21 2");
}

#[test]
fn rollups() {
    let mut c = Client::new(|_| {});
    let (sub, all) = ([("Nats-Rollup", "sub")], [("Nats-Rollup", "all")]);
    assert_eq!(
        c.batch(&[("n", &[]), ("n", &sub)]),
        "10111 batch rollup sub invalid"
    );
    assert_eq!(
        c.batch(&[("n", &[]), ("p", &all)]),
        "10111 batch rollup all invalid"
    );
    (0..300).for_each(|_| drop(c.stream.publish("n", &[], "")));
    c.stream.publish("m", &[], "");
    assert_eq!(c.batch(&[("n", &sub), ("n", &[]), ("m", &sub)]), "ok 304 3");
    assert_eq!(c.stream.live(), [302, 303, 304]);
    (0..300).for_each(|_| drop(c.stream.publish("n", &[], "")));
    assert_eq!(c.batch(&[("n", &all), ("n", &[])]), "ok 606 2");
    assert_eq!(c.stream.live(), [605, 606]);
}

#[test]
fn old_messages_make_room_for_each_message() {
    let mut c = Client::new(|c| c.max_msgs = 2);
    assert_eq!(c.batch(&[("a", &[]), ("b", &[]), ("c", &[])]), "ok 3 3");
    assert_eq!(c.stream.live(), [2, 3]);
    assert_eq!(c.batch(&[("a", &[]), ("b", &[]), ("c", &[])]), "ok 6 3");
    assert_eq!(c.stream.live(), [5, 6]);

    let mut c = Client::new(|c| (c.max_msgs_per_subject, c.max_msgs) = (2, 4));
    for subject in ["a", "a", "b", "b"] {
        c.stream.publish(subject, &[], "");
    }
    // c pushes the first a out, so the next a has room and pushes the second one out by the limit of the stream.
    assert_eq!(c.batch(&[("c", &[]), ("a", &[]), ("a", &[])]), "ok 7 3");
    assert_eq!(c.stream.live(), [4, 5, 6, 7]);
}

#[test]
fn a_full_stream_counts_the_whole_batch() {
    let mut c = Client::new(|c| {
        c.discard = DiscardPolicy::New;
        (c.max_msgs, c.max_msgs_per_subject) = (2, 1);
    });
    let full = "10077 maximum messages exceeded";
    assert_eq!(c.batch(&[("n", &[]), ("m", &[]), ("o", &[])]), full);
    assert_eq!(c.batch(&[("n", &[]), ("m", &[]), ("n", &[])]), full);
    assert_eq!(c.batch(&[("n", &[]), ("m", &[])]), "ok 2 2");
    assert_eq!(c.batch(&[("n", &[])]), full);
    let mut c = Client::new(|c| (c.discard, c.max_bytes) = (DiscardPolicy::New, 150));
    let full = "10077 maximum bytes exceeded";
    assert_eq!(c.batch(&[("n", &[]), ("m", &[])]), full);
    let mut c = Client::new(|c| {
        c.discard = DiscardPolicy::New;
        (c.discard_new_per_subject, c.max_msgs_per_subject) = (true, 1);
    });
    let full = "10077 maximum messages per subject exceeded";
    assert_eq!(c.batch(&[("n", &[]), ("n", &[])]), full);
    assert_eq!(c.batch(&[("n", &[]), ("m", &[])]), "ok 2 2");
}

#[test]
fn counters_add_up_within_a_batch() {
    let mut c = Client::new(|c| (c.allow_msg_counter, c.allow_msg_ttl) = (true, false));
    let add = |by| [("Nats-Incr", by)];
    assert_eq!(c.batch(&[("n", &add("1")), ("n", &add("2"))]), "ok 2 2");
    assert_eq!(c.stream.payload(2), r#"{"val":"3"}"#);
    assert_eq!(c.batch(&[("n", &add("4")), ("m", &add("2"))]), "ok 4 2");
    assert_eq!(c.stream.payload(3), r#"{"val":"7"}"#);
    let missing = "10169 message counter increment is missing";
    assert_eq!(c.batch(&[("n", &add("4")), ("n", &[])]), missing);
    c.stream.totals.clear();
    assert_eq!(c.batch(&[("n", &add("4"))]), "Read(3)");
}

#[test]
fn what_nobody_wants_is_not_kept() {
    let mut c = Client::new(|c| c.retention = RetentionPolicy::Interest);
    c.stream.interest = Some(vec!["wanted".into()]);
    let id = [("Nats-Msg-Id", "1")];
    assert_eq!(c.batch(&[("n", &id), ("wanted", &[]), ("n", &[])]), "ok 3 3");
    assert_eq!(c.stream.live(), [2]);
    assert!(c.stream.ids.contains_key(&b"1"[..]));
}

#[test]
fn schedules_within_a_batch() {
    let mut c = Client::new(|c| c.allow_msg_schedules = true);
    let schedule = [("Nats-Schedule", "@hourly"), ("Nats-Schedule-Target", "t")];
    let cancel = [("Nats-Scheduler", "s"), ("Nats-Schedule-Next", "purge")];
    assert_eq!(c.batch(&[("s", &schedule), ("t", &cancel)]), "ok 2 2");
    assert_eq!(c.stream.live(), [2]);
    assert_eq!(
        c.batch(&[("s", &[]), ("t", &cancel)]),
        "10212 message schedules invalid scheduler"
    );
}
