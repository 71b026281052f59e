use super::*;

const WAIT: &str = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":100000000}"#;

#[test]
fn what_expires_together_comes_again_in_order_and_before_new() {
    let mut bench = Bench::start(&xs(3), WAIT);
    bench.pull("a", "3");
    bench.out();
    bench.advance(99);
    bench.publish(&["x"]);
    bench.pull("a", "2");
    assert_eq!(bench.line(), "a: 4/4 x1 p0");
    bench.advance(1);
    bench.pull("a", "9");
    assert_eq!(bench.line(), "a: 1/5 x2 p0 | a: 2/6 x2 p0 | a: 3/7 x2 p0");
    assert_eq!(bench.state(), "4/7 0/0 a4 r3 p0");
    bench.advance(99);
    assert_eq!(bench.line(), "a: 4/8 x2 p0");
}

/// The simulation found it: with the window full, the request ended with nothing, or stayed, though what filled the window was
/// to go out again.
#[test]
fn a_request_that_does_not_wait_gets_what_is_due_before_the_timer_is_looked_at() {
    let json = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":100000000,"max_ack_pending":1}"#;
    let mut bench = Bench::start(&xs(2), json);
    bench.pull("a", "1");
    assert_eq!(bench.line(), "a: 1/1 x1 p1");
    bench.move_to(bench.now.mono + 100 * MS);
    bench.pull("a", r#"{"no_wait":true}"#);
    assert_eq!(bench.line(), "a: 1/2 x2 p1");
    // Also when there is nothing else.
    let mut bench = Bench::start(&xs(1), WAIT);
    bench.pull("a", "1");
    bench.out();
    bench.move_to(bench.now.mono + 100 * MS);
    bench.pull("a", r#"{"no_wait":true}"#);
    assert_eq!(bench.line(), "a: 1/2 x2 p0");
}

#[test]
fn waiting_to_go_out_again_costs_no_delivery() {
    let mut bench = Bench::start(&["x"], WAIT);
    bench.pull("a", "1");
    bench.advance(10_000);
    assert_eq!(bench.c.as_mut().unwrap().next_deadline(), None);
    bench.out();
    bench.pull("a", "1");
    assert_eq!(bench.line(), "a: 1/2 x2 p0");
}

#[test]
fn back_off_spaces_deliveries_and_then_gives_up() {
    let json = r#"{"ack_policy":"explicit","backoff":[200000000,400000000,800000000],"max_deliver":5}"#;
    let mut bench = Bench::start(&["x"], json);
    bench.pull("a", "9");
    let mut at = 0;
    let mut times = Vec::new();
    while at < 4000 {
        if bench.out().iter().any(|line| line.starts_with("a: 1/")) {
            times.push(at);
        }
        bench.advance(50);
        at += 50;
    }
    assert_eq!(times, [0, 200, 600, 1400, 2200]);
    assert_eq!(bench.state(), "1/5 0/0 a0 r1 p0");
}

#[test]
fn progress_restarts_the_wait() {
    let mut bench = Bench::start(&["x"], WAIT);
    bench.pull("a", "2");
    bench.advance(60);
    bench.ack(1, 1, "+WPI");
    bench.out();
    bench.advance(99);
    assert_eq!(bench.line(), "");
    bench.advance(1);
    assert_eq!(bench.line(), "a: 1/2 x2 p0");
}

#[test]
fn refusals_come_again_at_once_or_when_asked() {
    let mut bench = Bench::start(&xs(3), r#"{"ack_policy":"explicit"}"#);
    bench.pull("a", "9");
    bench.out();
    bench.ack(2, 1, "-NAK");
    assert_eq!(
        bench.line(),
        r#"ADVISORY.CONSUMER.MSG_NAKED {"consumer_seq":2,"deliveries":1,"stream_seq":2} | r: + | a: 2/4 x2 p0"#
    );
    for (seq, payload, ms) in [
        (1, r#"-NAK {"delay":30000000}"#, 30),
        (2, "-NAK 20ms", 20),
        (3, "-NAK1s", 1000),
        (3, "-NAK {}", 0),
        (3, "-NAK 0.5", 0),
        (3, "-NAK -3s", 0),
    ] {
        bench.pull("a", "1");
        bench.out();
        let count = bench.c.as_ref().unwrap().tracked.deliveries(seq);
        bench.ack(seq, count, payload);
        bench.out();
        if ms > 0 {
            bench.advance(ms - 1);
            assert_eq!(bench.line(), "", "{payload}");
            bench.advance(1);
            assert!(bench.line().starts_with(&format!("a: {seq}/")), "{payload}");
        }
    }
}

#[test]
fn a_refused_message_waits_once_and_an_ack_takes_it_out() {
    let mut bench = Bench::start(&xs(2), EXPLICIT);
    bench.pull("a", "2");
    bench.out();
    for _ in 0..3 {
        bench.ack(2, 1, "-NAK");
        bench.ack(1, 1, "-NAK");
    }
    bench.ack(1, 1, "");
    bench.out();
    bench.pull("a", "5");
    assert_eq!(bench.line(), "a: 2/3 x2 p0");
}

#[test]
fn refusals_of_what_is_not_in_hand_are_ignored_but_answered() {
    let mut bench = Bench::start(&xs(3), EXPLICIT);
    bench.pull("a", "2");
    bench.ack(1, 1, "");
    bench.out();
    bench.ack(1, 1, "-NAK");
    bench.ack_at("$JS.ACK.S.C.1.3.3.0.0", "-NAK");
    bench.ack_at("$JS.ACK.S.C.1.2.9.0.0", "-NAK");
    bench.ack_at("$JS.ACK.S.C.1.2.1.0.0", "-NAK");
    assert_eq!(bench.line(), "r: + | r: + | r: + | r: +");
    assert_eq!(bench.state(), "2/2 1/1 a1 r0 p1");
}

#[test]
fn going_out_again_needs_no_room() {
    let json = r#"{"ack_policy":"explicit","max_ack_pending":1,"ack_wait":100000000}"#;
    let mut bench = Bench::start(&xs(2), json);
    bench.pull("a", "3");
    bench.advance(100);
    assert_eq!(bench.line(), "a: 1/1 x1 p1 | a: 1/2 x2 p1");
    bench.ack(1, 2, "");
    assert_eq!(bench.line(), "r: + | a: 2/3 x1 p0");
}

#[test]
fn giving_up() {
    let json = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":100000000,"max_deliver":2,"max_ack_pending":1}"#;
    let mut bench = Bench::start(&xs(2), json);
    bench.pull("a", "2");
    bench.advance(100);
    assert_eq!(bench.line(), "a: 1/1 x1 p1 | a: 1/2 x2 p1");
    // Without a request waiting, and it makes room.
    bench.advance(100);
    assert_eq!(
        bench.line(),
        r#"ADVISORY.CONSUMER.MAX_DELIVERIES {"deliveries":2,"stream_seq":1}"#
    );
    assert_eq!(bench.state(), "1/2 0/0 a0 r1 p1");
    assert!(bench.c.as_ref().unwrap().needs(1));
    bench.restart(50);
    assert_eq!(bench.state(), "1/2 0/0 a0 r1 p1");
    bench.update(&json.replace(r#""max_deliver":2"#, r#""max_deliver":9"#));
    bench.pull("a", "1");
    assert_eq!(bench.line(), "a: 2/3 x1 p0");
    // A late ack counts.
    bench.port.settled.clear();
    bench.ack(1, 2, "");
    assert_eq!(
        (bench.line().as_str(), bench.state().as_str()),
        ("r: +", "2/3 0/0 a1 r0 p0")
    );
    assert_eq!(bench.port.settled, [(1, 1)]);
    assert!(!bench.c.as_ref().unwrap().needs(1));
    // It held the floor, until nothing is in hand.
    bench.ack(2, 1, "");
    assert_eq!(bench.state(), "2/3 2/3 a0 r0 p0");
}

#[test]
fn a_refusal_of_the_last_delivery_gives_up_at_once() {
    let mut bench = Bench::start(&["x"], r#"{"ack_policy":"explicit","max_deliver":1}"#);
    bench.pull("a", "1");
    bench.out();
    bench.ack(1, 1, "-NAK");
    assert_eq!(
        bench.line(),
        concat!(
            r#"ADVISORY.CONSUMER.MSG_NAKED {"consumer_seq":1,"deliveries":1,"stream_seq":1} | "#,
            r#"ADVISORY.CONSUMER.MAX_DELIVERIES {"deliveries":1,"stream_seq":1} | r: +"#
        )
    );
    // With one delivery at most, none is reported as delivered again.
    assert_eq!(bench.state(), "1/1 0/0 a0 r0 p0");
}

#[test]
fn shorter_waits_count_for_what_is_in_hand() {
    let mut bench = Bench::start(&["x"], r#"{"ack_policy":"explicit","durable_name":"C"}"#);
    bench.pull("a", "2");
    bench.advance(50);
    bench.update(WAIT);
    bench.out();
    bench.advance(49);
    assert_eq!(bench.line(), "");
    bench.advance(1);
    assert_eq!(bench.line(), "a: 1/2 x2 p0");
}

#[test]
fn what_a_lost_connection_had_comes_again_at_once_if_wanted() {
    for (metadata, lines) in [
        (
            r#"{"windjet.requeue_on_disconnect":"true"}"#,
            "b: 1/4 x2 p0 | b: 3/5 x2 p0",
        ),
        (r#"{}"#, ""),
    ] {
        let json = format!(r#"{{"ack_policy":"explicit","metadata":{metadata}}}"#);
        let mut bench = Bench::start(&xs(3), &json);
        bench.pull_by("a", "1", 1);
        bench.pull_by("c", "1", 2);
        bench.pull_by("a", "1", 1);
        bench.pull_by("b", "9", 2);
        bench.out();
        bench.with(|c, port, now| c.holder_gone(port, 1, now));
        assert_eq!(bench.line(), lines);
    }
}

#[test]
fn a_restart_is_the_end_of_every_connection() {
    for (metadata, lines) in [
        (
            r#"{"windjet.requeue_on_disconnect":"true"}"#,
            "b: 1/4 x2 p0 | b: 2/5 x2 p0",
        ),
        (r#"{}"#, ""),
    ] {
        let json = format!(
            r#"{{"durable_name":"C","ack_policy":"explicit","ack_wait":1000000000,"metadata":{metadata}}}"#
        );
        let mut bench = Bench::start(&xs(3), &json);
        bench.pull_by("a", "3", 1);
        // It is nobody's, and its delay is longer than any ack wait that may be left.
        bench.ack(3, 1, r#"-NAK {"delay":5000000000}"#);
        bench.out();
        bench.restart(10);
        bench.pull_by("b", "9", 2);
        bench.advance(1);
        assert_eq!(bench.line(), lines);
    }
}

/// A delay shorter than what was left of the ack wait was due at once after a restart, and the end of a connection cut every delay
/// short: a message that is asked for later counted as held by whoever had it.
#[test]
fn a_delay_is_kept_when_the_connection_or_the_server_ends() {
    let json = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":30000000000,"metadata":{"windjet.requeue_on_disconnect":"true"}}"#;
    for server in [true, false] {
        let mut bench = Bench::start(&xs(3), json);
        bench.pull_by("a", "3", 1);
        bench.ack(1, 1, r#"-NAK {"delay":500000000}"#);
        // Somebody works on it: it is held again.
        bench.ack(2, 1, r#"-NAK {"delay":500000000}"#);
        bench.ack(2, 1, "+WPI");
        bench.ack(3, 1, r#"-NAK {"delay":5000000000}"#);
        bench.out();
        if server {
            bench.restart(0);
        } else {
            bench.with(|c, port, now| c.holder_gone(port, 1, now));
        }
        bench.pull_by("b", "9", 2);
        bench.advance(1);
        assert_eq!(bench.line(), "b: 2/4 x2 p0", "{server}");
        bench.advance(498);
        assert_eq!(bench.line(), "", "{server}");
        bench.advance(1);
        assert!(bench.line().contains("b: 1/"), "{server}");
        // It was delivered, so it is held again.
        if server {
            bench.restart(0);
            bench.pull_by("d", "9", 3);
            bench.advance(1);
            assert_eq!(bench.line(), "d: 1/6 x3 p0 | d: 2/7 x3 p0");
        }
    }
}
