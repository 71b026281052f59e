use super::*;

fn four(json: &str) -> Bench {
    let mut bench = Bench::start(&xs(4), json);
    bench.pull("a", "4");
    bench.out();
    bench
}

#[test]
fn what_each_payload_does_and_that_it_is_answered() {
    for (payload, state) in [
        ("", "4/4 1/1 a3 r0 p0"),
        ("+ACK", "4/4 1/1 a3 r0 p0"),
        ("+OK", "4/4 1/1 a3 r0 p0"),
        ("+TERM", "4/4 1/1 a3 r0 p0"),
        ("-NAK", "4/4 0/0 a4 r0 p0"),
        ("+WPI", "4/4 0/0 a4 r0 p0"),
        ("+WPI ", "4/4 0/0 a4 r0 p0"),
        ("+ack", "4/4 0/0 a4 r0 p0"),
        ("junk", "4/4 0/0 a4 r0 p0"),
    ] {
        let mut bench = four(EXPLICIT);
        bench.ack(1, 1, payload);
        let out: Vec<_> = bench
            .out()
            .into_iter()
            .filter(|line| !line.contains("ADVISORY"))
            .collect();
        assert_eq!(out, ["r: +"], "{payload:?}");
        assert_eq!(bench.state(), state, "{payload:?}");
        let settled = if state.starts_with("4/4 1/1") {
            vec![(1, 1)]
        } else {
            vec![]
        };
        assert_eq!(bench.port.settled, settled, "{payload:?}");
    }
}

#[test]
fn an_ack_with_a_request_is_answered_by_messages() {
    let mut bench = Bench::start(&xs(3), EXPLICIT);
    bench.pull("a", "1");
    bench.out();
    bench.ack(1, 1, "+NXT");
    assert_eq!(bench.line(), "r: 2/2 x1 p1");
    bench.ack(2, 1, r#"+NXT {"batch":5,"no_wait":true}"#);
    assert_eq!(bench.line(), "r: 3/3 x1 p0 | r: 404 No Messages");
    assert_eq!(bench.state(), "3/3 2/2 a1 r0 p0");
}

#[test]
fn the_floor_waits_for_the_lowest() {
    let mut bench = four(EXPLICIT);
    bench.ack(2, 1, "");
    bench.ack(3, 1, "");
    assert_eq!(bench.state(), "4/4 0/0 a2 r0 p0");
    bench.ack(1, 1, "");
    assert_eq!(bench.state(), "4/4 3/3 a1 r0 p0");
}

#[test]
fn with_nothing_in_hand_the_floor_is_the_last_delivery() {
    let mut bench = Bench::start(&xs(11), EXPLICIT);
    bench.pull("a", "20");
    bench.ack(4, 1, "-NAK");
    for seq in (1..=11).filter(|seq| *seq != 4) {
        bench.ack(seq, 1, "");
    }
    assert_eq!(bench.state(), "11/12 3/3 a1 r1 p0");
    bench.ack(4, 2, "");
    assert_eq!(bench.state(), "11/12 11/12 a0 r0 p0");
}

#[test]
fn a_filtered_floor_moves_with_the_lowest_only() {
    let mut bench = Bench::start(
        &["o", "x", "o", "x", "x"],
        r#"{"ack_policy":"explicit","filter_subject":"x"}"#,
    );
    bench.pull("a", "3");
    bench.ack(4, 1, "");
    assert_eq!(bench.state(), "5/3 0/0 a2 r0 p0");
    bench.ack(2, 1, "");
    assert_eq!(bench.state(), "5/3 4/2 a1 r0 p0");
}

#[test]
fn acks_that_come_too_late_or_too_early() {
    let mut bench = Bench::start(&xs(4), EXPLICIT);
    bench.pull("a", "2");
    bench.out();
    bench.ack(1, 1, "");
    bench.ack(1, 1, "");
    assert_eq!(bench.line(), "r: + | r: +");
    bench.ack_at("$JS.ACK.S.C.1.3.3.0.0", "");
    bench.ack_at("$JS.ACK.S.C.1.99.3.0.0", "+TERM");
    assert_eq!(
        bench.line(),
        r#"ADVISORY.CONSUMER.MSG_TERMINATED {"consumer_seq":3,"deliveries":1,"stream_seq":99}"#
    );
    bench.ack_at("$JS.ACK.S.C.1.0.0.0.0", "");
    assert_eq!(bench.line(), "r: +");
    assert_eq!(bench.state(), "2/2 1/1 a1 r0 p2");
    // The extended form, and the ack of another delivery than the last.
    bench.ack_at("$JS.ACK._.szMpdrwD.S.C.7.2.9.0.0.more", "");
    assert_eq!(
        (bench.line().as_str(), bench.state().as_str()),
        ("r: +", "2/2 2/2 a0 r0 p2")
    );
}

#[test]
fn a_caught_up_filtered_consumer_answers_for_what_never_matched() {
    let mut bench = Bench::start(&["x", "o"], r#"{"ack_policy":"explicit","filter_subject":"x"}"#);
    bench.pull("a", "1");
    bench.out();
    bench.ack_at("$JS.ACK.S.C.1.2.9.0.0", "");
    assert_eq!(bench.line(), "r: +");
}

#[test]
fn ack_all_settles_everything_below() {
    let json = r#"{"ack_policy":"all","ack_wait":100000000}"#;
    let mut bench = four(json);
    bench.ack(3, 1, "");
    assert_eq!(
        (bench.line().as_str(), bench.state().as_str()),
        ("r: +", "4/4 3/3 a1 r0 p0")
    );
    assert_eq!(bench.port.settled, [(1, 3)]);
    // Below the floor: no effect, but an answer.
    bench.ack(2, 1, "");
    bench.ack(2, 1, "-NAK");
    assert_eq!(
        (bench.line().as_str(), bench.state().as_str()),
        ("r: + | r: +", "4/4 3/3 a1 r0 p0")
    );
    bench.pull("a", "1");
    bench.advance(100);
    assert_eq!(bench.line(), "a: 4/5 x2 p0");
    bench.ack(4, 2, "+TERM why");
    assert_eq!(
        bench.line(),
        r#"ADVISORY.CONSUMER.MSG_TERMINATED {"consumer_seq":5,"deliveries":2,"reason":"why","stream_seq":4} | r: +"#
    );
    assert_eq!(bench.state(), "4/5 4/5 a0 r0 p0");
    bench.ack_at("$JS.ACK.S.C.1.9.9.0.0", "");
    assert_eq!(bench.line(), "");
}

#[test]
fn without_acks_the_floor_is_the_last_delivery() {
    let mut bench = four(r#"{}"#);
    assert_eq!(bench.state(), "4/4 4/4 a0 r0 p0");
    assert_eq!(bench.port.settled, [(1, 1), (2, 2), (3, 3), (4, 4)]);
}

#[test]
fn samples_are_measured() {
    let mut bench = four(r#"{"ack_policy":"explicit","sample_freq":"100%"}"#);
    bench.advance(20);
    bench.ack(2, 1, "");
    assert_eq!(
        bench.line(),
        r#"METRIC.CONSUMER.ACK {"ack_time":20000000,"consumer_seq":2,"deliveries":1,"stream_seq":2} | r: +"#
    );
    bench.ack(2, 1, "");
    assert_eq!(bench.line(), "r: +");
    bench.update(r#"{"ack_policy":"explicit","sample_freq":"0"}"#);
    bench.ack(3, 1, "");
    assert_eq!(bench.line(), "r: +");
}

#[test]
fn events_are_not_made_when_nobody_listens() {
    let mut bench = four(EXPLICIT);
    bench.port.listening = ["a".into(), "r".into()].into();
    bench.ack(1, 1, "+TERM");
    assert_eq!(bench.line(), "r: +");
}

#[test]
fn activity_is_shown_since_the_start() {
    let mut bench = Bench::start(&xs(2), EXPLICIT);
    let info = bench.info();
    assert_eq!(
        (info.delivered.last_active, info.ack_floor.last_active),
        (None, None)
    );
    bench.pull("a", "2");
    let delivered = bench.time(0);
    bench.advance(5);
    bench.ack(2, 1, "");
    let info = bench.info();
    assert_eq!(info.delivered.last_active, Some(delivered));
    assert_eq!(info.ack_floor.last_active, Some(bench.time(0)));
    bench.restart(0);
    assert_eq!(bench.info().delivered.last_active, None);
}
