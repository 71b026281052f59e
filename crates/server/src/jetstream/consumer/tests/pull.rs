use super::*;

#[test]
fn payloads_have_four_forms() {
    let mut bench = Bench::start(&xs(7), r#"{}"#);
    for (payload, count) in [("", 1), (" 2 ", 2), (r#"{"batch":2}"#, 2), ("junk", 1)] {
        bench.pull("a", payload);
        assert_eq!(bench.out().len(), count, "{payload:?}");
    }
}

#[test]
fn refusals_are_exact() {
    let json = r#"{"max_batch":5,"max_expires":1500000000,"max_bytes":100,"max_waiting":1}"#;
    let mut bench = Bench::start(&[], json);
    for (payload, line) in [
        (
            r#"{"idle_heartbeat":100}"#,
            "400 Bad Request - heartbeat value too large",
        ),
        (
            r#"{"expires":1000000000,"idle_heartbeat":500000001}"#,
            "400 Bad Request - heartbeat value too large",
        ),
        ("6", "409 Exceeded MaxRequestBatch of 5"),
        (
            r#"{"expires":1500000001}"#,
            "409 Exceeded MaxRequestExpires of 1.5s",
        ),
        (r#"{"max_bytes":101}"#, "409 Exceeded MaxRequestMaxBytes of 100"),
        (r#"{"no_wait":true}"#, "404 No Messages"),
        (
            r#"{"expires":-1}"#,
            "408 Request Timeout Nats-Pending-Messages=1 Nats-Pending-Bytes=0",
        ),
        (
            r#"{"min_pending":1}"#,
            "400 Bad Request - Not a Overflow Priority consumer",
        ),
        (
            r#"{"id":"x"}"#,
            "400 Bad Request - Not a Pinned Client Priority consumer",
        ),
        (
            r#"{"priority":10}"#,
            "400 Bad Request - Priority must be between 0 and 9",
        ),
    ] {
        bench.pull("a", payload);
        assert_eq!(bench.line(), format!("a: {line}"), "{payload}");
    }
    bench.pull("a", "{");
    assert!(bench.line().starts_with("a: 400 Bad Request - "));
    assert_eq!(bench.info().num_waiting, 0);
    let level = Pull {
        payload: b"",
        headers: b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n",
        reply: b"a",
        holder: 1,
    };
    bench.with(|c, port, now| c.pull(port, level, now));
    assert_eq!(bench.line(), "a: 412 Required Api Level");
    bench.pull("a", r#"{"group":"any","priority":3}"#);
    bench.pull("b", "1");
    assert_eq!(bench.line(), "b: 409 Exceeded MaxWaiting");
    bench.pull("b", r#"{"expires":1000000000,"idle_heartbeat":1000000}"#);
    assert_eq!(bench.line(), "");
}

#[test]
fn a_push_consumer_is_not_pulled_from() {
    let mut bench = Bench::start(&[], r#"{"deliver_subject":"d"}"#);
    bench.pull("a", "{");
    assert_eq!(bench.line(), "a: 409 Consumer is push based");
}

#[test]
fn a_full_queue_drops_what_is_over_first() {
    let mut bench = Bench::start(&[], r#"{"max_waiting":2}"#);
    bench.pull("gone", "1");
    bench.pull("a", "1");
    bench.port.listening = ["a".into(), "b".into()].into();
    bench.pull("b", "1");
    bench.publish(&xs(2));
    assert_eq!(bench.line(), "a: 1/1 x1 p0 | b: 2/2 x1 p0");
}

#[test]
fn three_requests_take_turns() {
    let mut bench = Bench::start(&[], r#"{}"#);
    for reply in ["a", "b", "c"] {
        bench.pull(reply, "3");
    }
    bench.publish(&xs(9));
    let receivers: String = bench
        .out()
        .iter()
        .map(|line| line.chars().next().unwrap())
        .collect();
    assert_eq!(receivers, "abcabcabc");
    assert_eq!(bench.info().num_waiting, 0);
}

#[test]
fn requests_end_in_the_order_of_their_ends() {
    let mut bench = Bench::start(&[], r#"{}"#);
    for ms in [200, 100, 25, 75] {
        bench.pull(
            &format!("r{ms}"),
            &format!(r#"{{"batch":2,"expires":{}}}"#, ms * MS),
        );
    }
    bench.advance(24);
    assert_eq!(bench.line(), "");
    bench.advance(300);
    let p = "Nats-Pending-Messages=2 Nats-Pending-Bytes=0";
    let expected: Vec<_> = [25, 75, 100, 200]
        .iter()
        .map(|ms| format!("r{ms}: 408 Request Timeout {p}"))
        .collect();
    assert_eq!(bench.out(), expected);
}

#[test]
fn an_expired_request_takes_no_message_even_before_its_timer_ran() {
    let mut bench = Bench::start(&[], r#"{}"#);
    bench.pull("a", &format!(r#"{{"expires":{}}}"#, 10 * MS));
    bench.pull("b", "1");
    let late = bench.now.mono + 10 * MS;
    bench.move_to(late);
    bench.publish(&["x"]);
    assert_eq!(
        bench.line(),
        "a: 408 Request Timeout Nats-Pending-Messages=1 Nats-Pending-Bytes=0 | b: 1/1 x1 p0"
    );
}

#[test]
fn heartbeats_come_after_silence() {
    let mut bench = Bench::start(&["o"], r#"{"filter_subject":"x"}"#);
    bench.pull(
        "a",
        &format!(
            r#"{{"batch":9,"expires":{},"idle_heartbeat":{}}}"#,
            1000 * MS,
            100 * MS
        ),
    );
    bench.advance(99);
    assert_eq!(bench.line(), "");
    bench.advance(1);
    assert_eq!(
        bench.line(),
        "a: 100 Idle Heartbeat Nats-Last-Consumer=0 Nats-Last-Stream=1"
    );
    bench.advance(60);
    bench.publish(&["x", "o"]);
    bench.advance(60);
    assert_eq!(bench.line(), "a: 2/1 x1 p0");
    bench.advance(40);
    assert_eq!(
        bench.line(),
        "a: 100 Idle Heartbeat Nats-Last-Consumer=1 Nats-Last-Stream=3"
    );
}

#[test]
fn requests_whose_replies_nobody_wants_vanish() {
    let mut bench = Bench::start(&[], r#"{}"#);
    bench.pull("gone.1", "5");
    bench.pull("a.1", "1");
    bench.port.listening = ["a.*".into()].into();
    bench.publish(&["x"]);
    assert_eq!(bench.line(), "a.1: 1/1 x1 p0");
    assert_eq!(bench.info().num_waiting, 0);
}

#[test]
fn a_request_that_does_not_wait() {
    let no_wait = r#"{"batch":5,"no_wait":true}"#;
    let one_shot = format!(r#"{{"batch":5,"no_wait":true,"expires":{}}}"#, 100 * MS);
    let p5 = "Nats-Pending-Messages=5 Nats-Pending-Bytes=0";
    // Nothing there.
    let mut bench = Bench::start(&[], r#"{}"#);
    bench.pull("a", no_wait);
    assert_eq!(bench.line(), "a: 404 No Messages");
    bench.pull("a", &one_shot);
    assert_eq!(bench.line(), "");
    bench.advance(100);
    assert_eq!(bench.line(), format!("a: 408 Request Timeout {p5}"));
    bench.pull("a", &one_shot);
    bench.publish(&["x"]);
    assert_eq!(bench.line(), "a: 1/1 x1 p0 | a: 404 No Messages");
    // Fewer, and more than wanted.
    for (count, end) in [(2, Some("a: 404 No Messages")), (5, None), (7, None)] {
        for payload in [no_wait, &one_shot] {
            let mut bench = Bench::start(&xs(count), r#"{}"#);
            bench.pull("a", payload);
            let out = bench.out();
            assert_eq!(out.len(), count.min(5) + usize::from(end.is_some()));
            assert_eq!(
                end,
                out.last().filter(|line| line.contains("404")).map(String::as_str)
            );
        }
    }
}

#[test]
fn a_request_that_does_not_wait_stands_back_for_those_that_do() {
    let mut bench = Bench::start(&[], r#"{"ack_policy":"explicit","max_ack_pending":1}"#);
    bench.pull("w", "5");
    bench.publish(&xs(3));
    assert_eq!(bench.line(), "w: 1/1 x1 p0");
    bench.pull("a", r#"{"no_wait":true}"#);
    assert_eq!(bench.line(), "a: 408 Requests Pending");
}

#[test]
fn being_full_of_unacknowledged_messages_is_not_being_out_of_messages() {
    let mut bench = Bench::start(&xs(3), r#"{"ack_policy":"explicit","max_ack_pending":1}"#);
    bench.pull("a", r#"{"batch":2,"no_wait":true}"#);
    assert_eq!(bench.line(), "a: 1/1 x1 p2");
    bench.ack(1, 1, "");
    assert_eq!(bench.line(), "r: + | a: 2/2 x1 p1");
    // But it ends a request that does not wait when the next request is due, be it its own heartbeat.
    let mut bench = Bench::start(&xs(3), r#"{"ack_policy":"explicit","max_ack_pending":1}"#);
    bench.pull(
        "a",
        &format!(
            r#"{{"batch":2,"no_wait":true,"expires":{},"idle_heartbeat":{}}}"#,
            900 * MS,
            100 * MS
        ),
    );
    bench.advance(99);
    assert_eq!(bench.line(), "a: 1/1 x1 p2");
    bench.advance(1);
    assert_eq!(bench.line(), "a: 404 No Messages");
}

#[test]
fn byte_budgets() {
    // Each message takes the same bytes.
    let bench = || Bench::start(&xs(4), r#"{}"#);
    let size = {
        let mut bench = bench();
        bench.pull("a", "1");
        bench.port.sent_bytes
    };
    let pull = |bytes: u64| {
        let mut bench = bench();
        bench.pull("a", &format!(r#"{{"batch":2,"max_bytes":{bytes}}}"#));
        (bench.out(), bench.info().num_waiting)
    };
    let (one, two) = ("a: 1/1 x1 p3".to_owned(), "a: 2/2 x1 p2".to_owned());
    let over = |messages, bytes| {
        format!(
            "a: 409 Message Size Exceeds MaxBytes Nats-Pending-Messages={messages} Nats-Pending-Bytes={bytes}"
        )
    };
    assert_eq!(pull(size - 1), (vec![over(2, size - 1)], 0));
    assert_eq!(pull(size), (vec![one.clone()], 0));
    assert_eq!(pull(2 * size - 1), (vec![one.clone(), over(1, size - 1)], 0));
    assert_eq!(pull(2 * size), (vec![one.clone(), two.clone()], 0));
    let completed = "a: 409 Batch Completed Nats-Pending-Messages=0 Nats-Pending-Bytes=7".to_owned();
    assert_eq!(pull(2 * size + 7), (vec![one, two, completed], 0));
}

#[test]
fn a_message_too_big_for_one_goes_to_the_next() {
    let mut bench = Bench::start(&[], r#"{}"#);
    bench.pull("a", r#"{"max_bytes":10}"#);
    bench.pull("b", "1");
    bench.publish(&["x"]);
    assert_eq!(
        bench.line(),
        "a: 409 Message Size Exceeds MaxBytes Nats-Pending-Messages=1 Nats-Pending-Bytes=10 | b: 1/1 x1 p0"
    );
}

#[test]
fn headers_only_tells_the_size() {
    let mut bench = Bench::start(&[], r#"{"headers_only":true}"#);
    bench.publish(&["x"]);
    bench.publish_one("x", b"NATS/1.0\r\nA: b\r\n\r\n", b"123");
    bench.pull("a", "2");
    assert_eq!(
        bench.line(),
        "a: 1/1 x1 p1 Nats-Msg-Size=5 | a: 2/2 x1 p0 A=b Nats-Msg-Size=3"
    );
}

#[test]
fn a_full_receiver_is_passed_over_and_nothing_is_lost() {
    let mut bench = Bench::start(&[], EXPLICIT);
    bench.pull("slow", "2");
    bench.pull("a", "1");
    bench.port.full = ["slow".into()].into();
    bench.publish(&xs(2));
    assert_eq!(bench.line(), "a: 1/1 x1 p0");
    let (port, now) = (&mut bench.port, bench.now);
    let progress = bench
        .c
        .as_mut()
        .unwrap()
        .deliver(port, &mut Budget::default(), now);
    assert_eq!(progress, Progress::Full);
    bench.port.full.clear();
    bench.with(|_, _, _| {});
    assert_eq!(bench.line(), "slow: 2/2 x1 p0");
    assert_eq!(bench.info().num_waiting, 1);
}

#[test]
fn a_message_on_the_disk_is_waited_for() {
    let mut bench = Bench::start(&xs(2), EXPLICIT);
    bench.port.on_disk = [1].into();
    bench.pull("a", "2");
    let (port, now) = (&mut bench.port, bench.now);
    let progress = bench
        .c
        .as_mut()
        .unwrap()
        .deliver(port, &mut Budget::default(), now);
    assert_eq!((progress, bench.line().as_str()), (Progress::Blocked(1), ""));
    bench.port.on_disk.clear();
    bench.with(|_, _, _| {});
    assert_eq!(bench.line(), "a: 1/1 x1 p1 | a: 2/2 x1 p0");
}

#[test]
fn a_turn_keeps_to_its_budget() {
    let mut bench = Bench::start(&xs(300), r#"{}"#);
    let (port, now) = (&mut bench.port, bench.now);
    let c = bench.c.as_mut().unwrap();
    let pull = Pull {
        payload: b"300",
        headers: b"",
        reply: b"a",
        holder: 1,
    };
    c.pull(port, pull, now);
    assert_eq!(c.deliver(port, &mut Budget::default(), now), Progress::More);
    assert_eq!(port.out.len(), 256);
    assert_eq!(c.deliver(port, &mut Budget::default(), now), Progress::Idle);
    assert_eq!(port.out.len(), 300);
}

#[test]
fn the_end_of_a_consumer_and_of_the_server_end_requests() {
    for (why, line) in [
        (
            Stop::Deleted,
            r#"a: 409 Consumer Deleted | ADVISORY.CONSUMER.DELETED {"action":"delete"}"#,
        ),
        (
            Stop::Shutdown,
            "a: 409 Server Shutdown Nats-Pending-Messages=4 Nats-Pending-Bytes=0",
        ),
    ] {
        let mut bench = Bench::start(&[], r#"{}"#);
        bench.pull("a", "4");
        bench.with(|c, port, now| c.stop(port, why, now));
        assert_eq!(bench.line(), line);
    }
}

#[test]
fn an_idle_consumer_is_small() {
    let mut bench = Bench::start(&[], EXPLICIT);
    bench.pull("a", "1");
    bench.publish(&xs(3));
    bench.ack(1, 1, "");
    assert!(bench.c.as_mut().unwrap().next_deadline().is_none());
    let bytes = bench.c.as_ref().unwrap().memory();
    assert!(bytes <= 1150, "{bytes}");
}
