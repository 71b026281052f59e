use super::*;

const GONE: &str = "Unacknowledged message was deleted";

#[test]
fn deleted_messages_are_settled_not_counted_or_forgotten() {
    let json = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":100000000,"max_deliver":1,"max_ack_pending":2}"#;
    let mut bench = Bench::start(&xs(5), json);
    bench.pull("a", "9");
    bench.advance(100);
    bench.out();
    // 1 and 2 are given up, 3 and 4 in hand, 5 to come.
    assert_eq!(bench.state(), "4/4 0/0 a2 r0 p1");
    bench.remove(3, 3);
    assert_eq!(
        bench.line(),
        format!(
            r#"ADVISORY.CONSUMER.MSG_TERMINATED {{"consumer_seq":3,"deliveries":1,"reason":"{GONE}","stream_seq":3}} | a: 5/5 x1 p0"#
        )
    );
    assert_eq!(bench.state(), "5/5 0/0 a2 r0 p0");
    bench.remove(1, 2);
    assert!(!bench.c.as_ref().unwrap().needs(1));
    bench.ack(3, 1, "");
    assert_eq!(bench.line(), "r: +");
}

#[test]
fn deletions_ahead_are_not_to_come() {
    let mut bench = Bench::start(&xs(9), EXPLICIT);
    bench.pull("a", "1");
    bench.remove(2, 3);
    bench.remove(8, 9);
    assert_eq!(bench.state(), "1/1 0/0 a1 r0 p4");
    bench.out();
    bench.pull("a", "9");
    assert_eq!(bench.out().len(), 4);
}

#[test]
fn a_deleted_message_does_not_come_again() {
    let mut bench = Bench::start(&xs(2), EXPLICIT);
    bench.pull("a", "2");
    bench.ack(1, 1, "-NAK");
    bench.ack(2, 1, "-NAK");
    bench.out();
    bench.remove(1, 1);
    bench.out();
    bench.pull("a", "9");
    assert_eq!(bench.line(), "a: 2/3 x2 p0");
}

#[test]
fn a_removal_that_is_not_told_yet_is_met_on_the_way() {
    let mut bench = Bench::start(&xs(3), EXPLICIT);
    bench.pull("a", "1");
    bench.ack(1, 1, "-NAK");
    bench.out();
    let ranges = [SeqRange { first: 1, last: 2 }];
    bench.op(Op::Remove(&ranges));
    let now = bench.now;
    let pull = Pull {
        payload: b"9",
        headers: b"",
        reply: b"a",
        holder: 1,
    };
    let c = bench.c.as_mut().unwrap();
    c.pull(&mut bench.port, pull, now);
    c.deliver(&mut bench.port, &mut Budget::default(), now);
    bench.with(|c, port, now| c.removed(port, &ranges, now));
    let out = bench.out();
    assert_eq!(out.len(), 2);
    assert_eq!(out[1], "a: 3/2 x1 p0");
    assert_eq!(bench.state(), "3/2 1/1 a1 r0 p0");
}

#[test]
fn a_full_purge_moves_everything_to_the_end() {
    let mut bench = Bench::start(&xs(5), EXPLICIT);
    bench.pull("a", "3");
    bench.ack(3, 1, "-NAK");
    bench.out();
    bench.purge("", u64::MAX);
    assert_eq!(
        (bench.line().as_str(), bench.state().as_str()),
        ("", "5/3 5/3 a0 r0 p0")
    );
    bench.publish(&["x"]);
    bench.pull("a", "1");
    assert_eq!(bench.line(), "a: 6/4 x1 p0");
}

#[test]
fn a_purge_up_to_a_sequence_moves_up_never_down() {
    let mut bench = Bench::start(&xs(9), EXPLICIT);
    bench.pull("a", "6");
    bench.purge("", 4);
    assert_eq!(bench.state(), "6/6 3/3 a3 r0 p3");
    bench.purge("", 9);
    assert_eq!(bench.state(), "8/6 8/6 a0 r0 p1");
    // A filtered consumer with nothing left stays where it is, too.
    let json = r#"{"durable_name":"C","filter_subject":"x"}"#;
    let mut bench = Bench::start(&["o", "o", "x", "o", "o"], json);
    bench.pull("a", "1");
    bench.purge("", 3);
    assert_eq!(bench.state(), "3/1 3/1 a0 r0 p0");
    bench.purge("", 5);
    assert_eq!(bench.state(), "4/1 4/1 a0 r0 p0");
}

#[test]
fn a_purge_of_a_subject() {
    // Inside the purged subject, with nothing left: to the end.
    let json = r#"{"durable_name":"C","ack_policy":"explicit","filter_subject":"k.1"}"#;
    let mut bench = Bench::start(&["k.1", "o", "k.1", "o"], json);
    bench.pull("a", "1");
    bench.out();
    bench.purge("k.*", u64::MAX);
    assert_eq!(bench.state(), "4/1 4/1 a0 r0 p0");
    // Wider: it keeps its position and loses what is purged.
    let mut bench = Bench::start(&["k.1", "o", "k.1", "o", "k.1"], EXPLICIT);
    bench.pull("a", "3");
    bench.out();
    bench.purge("k.1", u64::MAX);
    assert_eq!(
        (bench.line().as_str(), bench.state().as_str()),
        ("", "3/3 1/1 a1 r0 p1")
    );
}

#[test]
fn what_an_interest_stream_must_keep() {
    let mut bench = Bench::start(&xs(5), EXPLICIT);
    bench.pull("a", "3");
    bench.ack(2, 1, "");
    let needs = |bench: &Bench| {
        (1..=5)
            .filter(|seq| bench.c.as_ref().unwrap().needs(*seq))
            .collect::<Vec<_>>()
    };
    assert_eq!(needs(&bench), [1, 3, 4, 5]);
    let mut bench = Bench::start(
        &xs(5),
        r#"{"ack_policy":"all","deliver_policy":"by_start_sequence","opt_start_seq":2}"#,
    );
    bench.pull("a", "3");
    assert_eq!(needs(&bench), [2, 3, 4, 5]);
    bench.ack(3, 1, "");
    assert_eq!(needs(&bench), [4, 5]);
}
