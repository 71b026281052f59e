use proptest::prelude::*;
use windjet_protocol::jetstream::StreamConfig;

use super::*;
use crate::jetstream::publish::testing::block_of;

const SECOND: u64 = 1_000_000_000;
const PATTERN: &str = "error 10206";
const UNKNOWN: &str = "error 10208";

struct Client {
    rules: Rules,
    batches: FastBatches,
    seq: u64,
    now: u64,
}

impl Client {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let config = StreamConfig {
            allow_batched: true,
            ..StreamConfig::default()
        };
        Self {
            rules: Rules::new(&config, 1 << 20).unwrap(),
            batches: FastBatches::new(limits, Arc::default()),
            seq: 0,
            now: 0,
        }
    }

    /// Sends a message whose reply is `_INBOX.z.<reply>.$FI` and tells the answers; it is stored if that is asked for.
    fn send(&mut self, reply: &str) -> String {
        let seq = self.seq + 1;
        self.send_with(reply, Outcome::Stored(seq))
    }

    /// The same with something else that becomes of the message.
    fn send_with(&mut self, reply: &str, outcome: Outcome) -> String {
        self.send_message(reply, &Incoming::new(b"f", b"", b""), outcome)
    }

    fn send_message(&mut self, reply: &str, message: &Incoming<'_>, outcome: Outcome) -> String {
        let reply = format!("_INBOX.z.{reply}.$FI");
        let control = Control::parse(reply.as_bytes()).unwrap();
        let known = control.as_ref().map_err(|code| *code);
        let answer = match self.batches.accept(&self.rules, known, message, self.now) {
            Step::Answer(answer) => answer,
            Step::Store => {
                let again = self.batches.accept(&self.rules, known, message, self.now);
                assert_eq!(again, Step::Store);
                if let Outcome::Stored(seq) = outcome {
                    self.seq = seq;
                }
                self.batches.finish(known.unwrap(), outcome, self.now)
            }
        };
        told(&answer)
    }

    /// Sends batch sequences from first to last and joins what is told.
    fn appends(&mut self, id: &str, flow: u64, first: u64, last: u64) -> String {
        let told: Vec<String> = (first..=last)
            .map(|seq| self.send(&format!("{id}.{flow}.ok.{seq}.1")))
            .filter(|told| !told.is_empty())
            .collect();
        told.join(" ")
    }
}

fn told(answer: &Answer) -> String {
    let mut parts: Vec<String> = answer
        .flow
        .iter()
        .map(|flow| match flow {
            BatchFlow::Ack { seq, msgs } => format!("ack {seq}/{msgs}"),
            BatchFlow::Gap { last_seq, seq } => format!("gap {last_seq}/{seq}"),
            BatchFlow::Error { seq, error } => format!("err {seq}:{}", error.err_code),
        })
        .collect();
    if let Some(end) = answer.end {
        let mark = if end.duplicate { "!" } else { "" };
        parts.push(format!("end {}{mark} {}", end.seq, end.count));
    }
    parts.extend(
        answer
            .error
            .as_ref()
            .map(|error| format!("error {}", error.err_code)),
    );
    parts.join(" ")
}

fn refused() -> Outcome {
    Outcome::Refused(ErrorCode::WrongLastSequence.with(5))
}

#[test]
fn long_messages_do_not_count() {
    let mut c = Client::new();
    c.rules.max_msg_size = Some(3);
    let mut long = |reply| c.send_message(reply, &Incoming::new(b"f", b"", b"long"), Outcome::Stored(9));
    assert_eq!(long("p.2.fail.1.0"), "error 10054");
    assert_eq!(c.send("p.2.fail.1.0"), "ack 0/2");
    let mut long = |reply| c.send_message(reply, &Incoming::new(b"f", b"", b"long"), Outcome::Stored(9));
    assert_eq!(long("p.2.fail.2.1"), "error 10054");
    assert_eq!(long("p.2.fail.2.2"), "error 10054");
    assert_eq!(c.send("p.2.fail.3.1"), "gap 2/3 end 1 1");
}

#[test]
fn the_api_level_is_not_stored() {
    let block = block_of(&[("Nats-Required-Api-Level", "2"), ("A", "b")]);
    let stored = stored_block(&Incoming::new(b"f", &block, b"")).into_owned();
    assert_eq!(stored, block_of(&[("A", "b")]));
    assert!(matches!(
        stored_block(&Incoming::new(b"f", &stored, b"")),
        Cow::Borrowed(_)
    ));
}

#[test]
fn other_replies_are_none_of_this() {
    for reply in ["_INBOX.x", "a.b.1.ok.1.0.$FJ", "$FI", ""] {
        assert_eq!(Control::parse(reply.as_bytes()), None, "{reply}");
    }
}

#[test]
fn patterns() {
    for reply in [
        "x.5.ok.0.0",
        "x.5.ok.1.1",
        "x.5.ok.2.0",
        "x.5.ok.1.3",
        "x.5.ok.0.4",
        "x.5.ok.1.5",
        "x.5.no.1.0",
        "x.5.OK.1.2",
        "x.5.ok.z.0",
        "x.5.ok.-1.0",
        "x.5.ok.1.z",
        "x.5.ok.1",
    ] {
        assert_eq!(Client::new().send(reply), PATTERN, "{reply}");
    }
    let short = Control::parse(b"id.5.ok.1.2.$FI").unwrap();
    assert_eq!(short, Err(ErrorCode::BatchPublishPatternInvalid));
    let control = Control::parse(b"a.b.c.id.5.ok.1.2.$FI").unwrap().unwrap();
    assert_eq!((control.id(), control.flow), (&b"id"[..], 5));
    for flow in ["y", "0", "-4", "70000", ""] {
        let reply = format!("x.{flow}.ok.1.0");
        assert_eq!(Client::new().send(&reply), "ack 0/10", "{flow}");
    }
    let mut c = Client::new();
    assert_eq!(c.send(&format!("{}.5.ok.1.0", "y".repeat(65))), "error 10207");
    assert_eq!(c.send(&format!("{}.5.ok.1.2", "y".repeat(64))), "end 1 1");
    for unknown in [
        "x.5.ok.1.4",
        "x.5.ok.2.1",
        "x.5.ok.2.2",
        "x.5.ok.2.3",
        "x.5.ok.2.4",
    ] {
        assert_eq!(c.send(unknown), UNKNOWN, "{unknown}");
    }
}

#[test]
fn the_stream_must_take_batches() {
    let mut c = Client::new();
    c.rules.fast = false;
    assert_eq!(c.send("a.10.ok.1.0"), "error 10205");
    c.rules.sealed = true;
    assert_eq!(c.send("a.10.ok.1.0"), "error 10109");
    let mut c = Client::new();
    for (level, answer) in [("9", "error 10185"), ("x", "error 10185"), ("3", "end 7 1")] {
        let block = block_of(&[("Nats-Required-Api-Level", level)]);
        let message = Incoming::new(b"f", &block, b"");
        let told = c.send_message("a.10.ok.1.2", &message, Outcome::Stored(7));
        assert_eq!(told, answer, "{level}");
    }
}

#[test]
fn a_batch_from_start_to_end() {
    let mut c = Client::new();
    assert_eq!(c.send("a.10.ok.1.0"), "ack 0/10");
    assert_eq!(c.send("a.10.ok.2.1"), "");
    assert_eq!(c.send("a.10.ok.3.1"), "");
    assert_eq!(c.send("a.10.ok.4.2"), "end 4 4");
    assert_eq!(c.send("a.10.ok.5.1"), UNKNOWN);
    assert_eq!(c.send("b.10.ok.1.2"), "end 5 1");
    assert_eq!(c.send("c.1000.ok.1.0"), "ack 0/500");
    assert_eq!(c.send("c.1000.ok.2.3"), "end 6 1");
    assert!(c.batches.is_empty());
}

#[test]
fn acknowledgements_become_rarer() {
    let mut c = Client::new();
    c.send("keep.100.ok.1.0");
    assert_eq!(c.send("z.100.ok.1.0"), "ack 0/1 ack 1/2");
    assert_eq!(c.appends("z", 100, 2, 62), "ack 3/4 ack 7/8 ack 15/16 ack 31/32");
    assert_eq!(
        c.appends("z", 100, 63, 330),
        "ack 63/64 ack 127/100 ack 227/100 ack 327/100"
    );
    // What is due with the last message is left out.
    let mut c = Client::new();
    assert_eq!(c.send("g.2.ok.1.0"), "ack 0/2");
    assert_eq!(c.appends("g", 2, 2, 5), "ack 2/2 ack 4/2");
    assert_eq!(c.send("g.2.ok.6.2"), "end 6 6");
}

#[test]
fn acknowledgements_become_more_frequent_with_more_batches() {
    let mut c = Client::new();
    assert_eq!(c.send("a.400.ok.1.0"), "ack 0/400");
    for n in 0..9 {
        c.send(&format!("b{n}.400.ok.1.0"));
    }
    assert_eq!(
        c.appends("a", 400, 2, 1000),
        "ack 400/200 ack 600/100 ack 700/50 ack 750/50 ack 800/50 ack 850/50 ack 900/50 ack 950/50 ack 1000/50"
    );
}

#[test]
fn gaps() {
    let mut c = Client::new();
    c.send("g.2.ok.1.0");
    assert_eq!(c.send("g.2.ok.4.1"), "gap 2/4 ack 4/2");
    assert_eq!(c.send("g.2.ok.5.1"), "");
    assert_eq!(c.send("g.2.ok.6.2"), "end 4 6");
    c.send("h.2.fail.1.0");
    assert_eq!(c.send("h.2.fail.2.1"), "ack 2/2");
    assert_eq!(c.send("h.2.fail.4.1"), "gap 3/4 end 6 2");
    assert_eq!(c.send("h.2.fail.5.1"), UNKNOWN);
    for (close, told) in [
        ("w.2.ok.5.3", "gap 2/5 end 7 4"),
        ("w.2.fail.5.3", "gap 2/5 end 8 1"),
        ("w.2.ok.5.2", "gap 2/5 end 10 5"),
        ("w.2.fail.5.2", "gap 2/5 end 11 1"),
    ] {
        c.send("w.2.ok.1.0");
        assert_eq!(c.send(close), told, "{close}");
        assert!(c.batches.is_empty());
    }
}

#[test]
fn what_comes_again_ends_the_batch() {
    for (again, told) in [
        ("i.2.ok.2.1", "gap 3/2 end 2 2"),
        ("i.2.fail.2.1", "gap 3/2 end 2 2"),
        ("i.2.ok.1.0", "gap 3/1 end 2 2"),
        ("i.2.ok.1.2", "gap 3/1 end 2 2"),
        ("i.2.ok.2.2", "gap 3/2 end 2 2"),
        ("i.2.ok.2.3", "gap 3/2 end 2 2"),
    ] {
        let mut c = Client::new();
        c.send("i.2.ok.1.0");
        c.send("i.2.ok.2.1");
        // A wrong pattern changes nothing.
        assert_eq!(c.send("i.2.ok.1.1"), PATTERN);
        assert_eq!(c.send(again), told, "{again}");
        assert_eq!(c.send("i.2.ok.3.1"), UNKNOWN);
    }
}

#[test]
fn pings() {
    let mut c = Client::new();
    c.send("k.3.ok.1.0");
    assert_eq!(c.send("k.3.ok.1.4"), "ack 0/3");
    assert_eq!(c.send("k.3.ok.2.1"), "");
    assert_eq!(c.send("k.3.ok.2.4"), "ack 0/3");
    assert_eq!(c.send("k.3.ok.5.4"), "gap 3/6 ack 3/3");
    assert_eq!(c.send("k.3.ok.6.1"), "ack 6/3");
    assert_eq!(c.send("k.3.ok.7.4"), "gap 7/8 ack 6/3");
    assert_eq!(c.send("k.3.ok.8.2"), "end 4 8");
    c.send("l.3.fail.1.0");
    assert_eq!(c.send("l.3.fail.5.4"), "gap 2/6 end 5 1");
    assert_eq!(c.send("l.3.fail.2.1"), UNKNOWN);
}

#[test]
fn refused_messages() {
    let mut c = Client::new();
    assert_eq!(c.send_with("m.2.ok.1.0", refused()), "ack 0/2 err 1:10071");
    assert_eq!(c.send_with("m.2.ok.2.1", refused()), "err 2:10071");
    assert_eq!(c.send("m.2.ok.3.1"), "ack 2/2");
    assert_eq!(c.send_with("m.2.ok.4.2", refused()), "err 4:10071 end 1 3");

    assert_eq!(c.send_with("n.2.fail.1.0", refused()), "ack 0/2 error 10071");
    assert_eq!(c.send("n.2.fail.2.1"), UNKNOWN);
    c.send("n.2.fail.1.0");
    assert_eq!(c.send("n.2.fail.2.1"), "ack 2/2");
    assert_eq!(c.send_with("n.2.fail.3.1", refused()), "err 3:10071 end 3 2");
    assert_eq!(c.send("n.2.fail.4.1"), UNKNOWN);
    c.send("n.2.fail.1.0");
    assert_eq!(c.send_with("n.2.fail.2.2", refused()), "err 2:10071 end 4 1");

    assert_eq!(c.send_with("q.2.fail.1.2", refused()), "error 10071");
    assert_eq!(c.send_with("q.2.ok.1.2", refused()), "err 1:10071 end 0 0");
    c.send("v.2.ok.1.0");
    assert_eq!(
        c.send_with("v.2.ok.5.2", refused()),
        "gap 2/5 err 5:10071 end 5 4"
    );
    assert!(c.batches.is_empty());
}

#[test]
fn duplicates_are_passed_over() {
    let mut c = Client::new();
    c.send("r.2.ok.1.0");
    let again = || Outcome::Duplicate(1);
    assert_eq!(c.send_with("r.2.ok.2.1", again()), "ack 2/2");
    assert_eq!(c.send_with("r.2.ok.3.1", again()), "");
    assert_eq!(c.send_with("r.2.ok.4.2", again()), "ack 4/2 end 1 4");
    assert_eq!(c.send_with("s.2.fail.1.0", again()), "ack 0/2");
    assert_eq!(c.send_with("s.2.fail.2.1", again()), "ack 2/2");
    assert_eq!(c.send_with("s.2.fail.3.2", again()), "end 0 3");
    assert_eq!(c.send_with("t.2.ok.1.2", again()), "end 0 1");
    assert_eq!(c.send_with("t.2.fail.1.2", again()), "end 1! 1");
}

#[test]
fn open_batches_are_bounded_and_time_out() {
    let limits = Limits {
        per_stream: 2,
        ..Limits::default()
    };
    let mut c = Client::with(limits);
    let total = c.batches.total.clone();
    c.send("a.2.ok.1.0");
    c.now = SECOND;
    c.send("b.2.ok.1.0");
    assert_eq!(c.send("c.2.ok.1.0"), "error 10211");
    assert_eq!(c.send("c.2.ok.1.2"), "error 10211");
    c.now = 3 * SECOND;
    c.send("a.2.ok.1.4");
    assert_eq!(c.batches.next_timeout(), Some(11 * SECOND));
    c.batches.expire(11 * SECOND - 1);
    assert_eq!(total.load(Ordering::Relaxed), 2);
    c.batches.expire(11 * SECOND);
    assert_eq!(total.load(Ordering::Relaxed), 1);
    assert_eq!(c.send("b.2.ok.2.1"), UNKNOWN);
    c.send("c.2.ok.1.0");
    drop(c);
    assert_eq!(total.load(Ordering::Relaxed), 0);

    let limits = Limits {
        total: 1,
        ..Limits::default()
    };
    let mut c = Client::with(limits);
    c.send("a.2.ok.1.0");
    assert_eq!(c.send("c.2.ok.1.0"), "error 10211");
    assert_eq!(c.batches.next_timeout(), Some(10 * SECOND));
}

proptest! {
    #[test]
    fn any_reply_is_read(reply in "[a-z0-9.$-]{0,30}") {
        let _ = Control::parse(format!("{reply}.$FI").as_bytes());
    }

    #[test]
    fn acknowledgements_never_run_ahead(messages in proptest::collection::vec((1..30u64, 0..5u8, any::<bool>()), 1..60)) {
        let mut c = Client::new();
        let mut highest = 0;
        for (seq, op, refuse) in messages {
            let reply = format!("_INBOX.z.a.3.ok.{seq}.{op}.$FI");
            let control = Control::parse(reply.as_bytes()).unwrap();
            let known = control.as_ref().map_err(|code| *code);
            let message = Incoming::new(b"f", b"", b"");
            let answer = match c.batches.accept(&c.rules, known, &message, 0) {
                Step::Answer(answer) => answer,
                Step::Store => {
                    let outcome = if refuse { refused() } else { Outcome::Stored(seq) };
                    c.batches.finish(known.unwrap(), outcome, 0)
                }
            };
            highest = if c.batches.is_empty() { 0 } else { highest.max(seq) };
            for flow in &answer.flow {
                if let BatchFlow::Ack { seq: acked, .. } = flow && !c.batches.is_empty() {
                    prop_assert!(*acked <= highest);
                }
            }
        }
    }
}
