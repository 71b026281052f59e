use super::*;

const PUSH: &str =
    r#"{"durable_name":"C","deliver_subject":"d","ack_policy":"explicit","ack_wait":100000000}"#;

#[test]
fn messages_go_while_somebody_listens() {
    let mut bench = Bench::start(&xs(2), PUSH);
    assert_eq!(bench.line(), "");
    assert!(!bench.info().push_bound);
    bench.bind("d", None);
    assert_eq!(bench.line(), "d: 1/1 x1 p1 | d: 2/2 x1 p0");
    assert!(bench.info().push_bound);
    bench.unbind();
    bench.publish(&["x"]);
    bench.advance(99);
    // What is in hand is not delivered again for a new listener before its wait is over.
    bench.bind("d", None);
    assert_eq!(bench.line(), "d: 3/3 x1 p0");
    bench.unbind();
    bench.advance(300);
    assert_eq!(bench.line(), "");
    bench.bind("d", None);
    assert_eq!(bench.line(), "d: 1/4 x2 p0 | d: 2/5 x2 p0 | d: 3/6 x2 p0");
}

#[test]
fn only_the_group_counts_and_changing_it_looks_again() {
    let group = r#"{"durable_name":"C","deliver_subject":"d","deliver_group":"g"}"#;
    let mut bench = Bench::start(&xs(1), group);
    bench.bind("d", None);
    bench.bind("d", Some("h"));
    assert_eq!(bench.line(), "");
    bench.update(&group.replace("\"g\"", "\"h\""));
    assert_eq!(bench.line(), "d: 1/1 x1 p0");
}

#[test]
fn another_deliver_subject_gets_everything_in_hand_at_once() {
    let mut bench = Bench::start(&xs(2), PUSH);
    bench.bind("d", None);
    let other = PUSH.replace("\"d\"", "\"e\"");
    let refused = bench
        .with(|c, port, now| c.update(port, config(&other), now))
        .unwrap_err();
    assert_eq!(refused.err_code, 10013);
    bench.unbind();
    bench.out();
    bench.update(&other);
    bench.publish(&["x"]);
    bench.bind("e", None);
    assert_eq!(bench.line(), "e: 1/3 x2 p1 | e: 2/4 x2 p1 | e: 3/5 x1 p0");
}

#[test]
fn heartbeats_fill_the_silence() {
    let json = r#"{"deliver_subject":"d","idle_heartbeat":100000000,"filter_subject":"x"}"#;
    let mut bench = Bench::start(&[], json);
    bench.advance(400);
    assert_eq!(bench.line(), "");
    bench.bind("d", None);
    bench.advance(100);
    assert_eq!(
        bench.line(),
        "d: 100 Idle Heartbeat Nats-Last-Consumer=0 Nats-Last-Stream=0"
    );
    bench.advance(50);
    bench.publish(&["x", "o"]);
    bench.advance(99);
    assert_eq!(bench.line(), "d: 1/1 x1 p0");
    bench.advance(1);
    assert_eq!(
        bench.line(),
        "d: 100 Idle Heartbeat Nats-Last-Consumer=1 Nats-Last-Stream=2"
    );
    bench.unbind();
    bench.advance(300);
    assert_eq!(bench.line(), "");
}

/// Stores as many messages of 100 kB as go out, and gives how many.
fn fill(bench: &mut Bench) -> usize {
    let payload = vec![b'x'; 100_000];
    let mut sent = 0;
    loop {
        bench.publish_one("x", b"", &payload);
        let out = bench.out().iter().filter(|line| line.contains(" x1 ")).count();
        if out == 0 {
            return sent;
        }
        sent += out;
    }
}

fn answer(bench: &mut Bench) -> usize {
    let subject = bench.port.flow.take().unwrap();
    let id = subject.strip_prefix("$JS.FC.S.C.").unwrap();
    assert_eq!(id.len(), 4);
    bench.with(|c, port, now| c.flow_answer(port, id.as_bytes(), b"", now));
    bench.out().iter().filter(|line| line.contains(" x1 ")).count()
}

#[test]
fn flow_control_windows_grow() {
    let json = r#"{"deliver_subject":"d","flow_control":true,"idle_heartbeat":100000000}"#;
    let mut bench = Bench::start(&[], json);
    bench.bind("d", None);
    // 2 MiB and one message: 21 messages of about 100,048 bytes.
    assert_eq!(fill(&mut bench), 21);
    assert!(bench.c.as_ref().unwrap().stalled().is_some());
    bench.advance(100);
    let asked = bench.port.flow.clone().unwrap();
    assert_eq!(
        bench.line(),
        format!(
            "d: 100 Idle Heartbeat Nats-Last-Consumer=21 Nats-Last-Stream=21 Nats-Consumer-Stalled={asked}"
        )
    );
    bench.with(|c, port, now| c.flow_answer(port, b"none", b"", now));
    assert_eq!(bench.line(), "");
    // The request covers the first 11: 10 are on their way, the window is 4 MiB.
    let held = answer(&mut bench);
    assert_eq!(held, 1);
    assert_eq!(fill(&mut bench) + held + 10, 42);
    let held = answer(&mut bench);
    assert!(held >= 1);
}

#[test]
fn a_flow_control_request_is_directly_behind_what_it_covers() {
    let json = r#"{"deliver_subject":"d","flow_control":true,"idle_heartbeat":100000000}"#;
    let mut bench = Bench::start(&[], json);
    bench.bind("d", None);
    let payload = vec![b'x'; 600_000];
    for _ in 0..3 {
        bench.publish_one("x", b"", &payload);
    }
    assert_eq!(
        bench.line(),
        "d: 1/1 x1 p0 | d: 2/2 x1 p0 | d: 100 FlowControl Request | d: 3/3 x1 p0"
    );
}

#[test]
fn the_flow_control_policy_is_acknowledged_by_answers() {
    let json = r#"{"deliver_subject":"d","ack_policy":"flow_control","max_ack_pending":3}"#;
    let mut bench = Bench::start(&xs(5), json);
    bench.bind("d", None);
    assert_eq!(
        bench.line(),
        "d: 1/1 x1 p4 | d: 2/2 x1 p3 | d: 3/3 x1 p2 | d: 100 FlowControl Request"
    );
    bench.advance(60_000);
    bench.out();
    let subject = bench.port.flow.take().unwrap();
    let id = subject.strip_prefix("$JS.FC.S.C.").unwrap();
    let headers = b"NATS/1.0\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n";
    bench.with(|c, port, now| c.flow_answer(port, id.as_bytes(), headers, now));
    assert_eq!(
        bench.line(),
        "d: 4/4 x1 p1 | d: 5/5 x1 p0 | d: 100 FlowControl Request"
    );
    assert_eq!(bench.state(), "5/5 2/2 a3 r0 p0");
    assert_eq!(bench.port.settled, [(1, 2)]);
}

#[test]
fn a_rate_limit_spaces_what_is_over_the_bucket() {
    let mut bench = Bench::with_home(|home| home.burst = 2_500);
    // 1,000 bytes a second.
    bench.create(r#"{"deliver_subject":"d","rate_limit_bps":8000}"#);
    bench.bind("d", None);
    let payload = vec![b'x'; 960];
    for _ in 0..4 {
        bench.publish_one("x", b"", &payload);
    }
    assert_eq!(bench.out().len(), 2);
    bench.advance(400);
    assert_eq!(bench.out().len(), 0);
    bench.advance(200);
    assert_eq!(bench.out().len(), 1);
    bench.advance(1000);
    assert_eq!(bench.out().len(), 1);
    // One that is larger than the bucket waits for a full one, and goes.
    bench.publish_one("x", b"", &vec![b'x'; 10_000]);
    bench.advance(1000);
    assert_eq!(bench.out().len(), 0);
    bench.advance(2000);
    assert_eq!(bench.out().len(), 1);
}

#[test]
fn original_pace_is_kept_until_the_consumer_has_caught_up() {
    let mut bench = Bench::new();
    for ms in [0, 50, 0, 200] {
        bench.now.wall += ms * 1_000_000;
        bench.publish(&["x"]);
    }
    bench.create(r#"{"replay_policy":"original"}"#);
    bench.pull("a", "9");
    assert_eq!(bench.out().len(), 1);
    bench.advance(49);
    assert_eq!(bench.out().len(), 0);
    bench.advance(1);
    assert_eq!(bench.out().len(), 2);
    bench.advance(200);
    assert_eq!(bench.out().len(), 1);
    bench.now.wall += 900_000_000_000;
    bench.publish(&["x"]);
    assert_eq!(bench.out().len(), 1);
}

#[test]
fn without_listeners_a_push_consumer_goes() {
    let mut bench = Bench::start(&[], r#"{"deliver_subject":"d","inactive_threshold":1000000000}"#);
    bench.advance(999);
    bench.bind("d", None);
    bench.advance(9_000);
    assert!(!bench.deleted);
    bench.unbind();
    bench.advance(999);
    assert!(!bench.deleted);
    bench.advance(1);
    assert!(bench.deleted);
    assert_eq!(bench.line(), r#"ADVISORY.CONSUMER.DELETED {"action":"delete"}"#);
}

#[test]
fn what_another_stream_has_copied_is_settled_without_a_delivery() {
    let json =
        r#"{"deliver_subject":"d","ack_policy":"flow_control","max_ack_pending":3,"filter_subject":"a"}"#;
    let mut bench = Bench::start(&["a", "a", "b", "a", "a"], json);
    bench.with(|c, port, now| c.taken(port, 4, now));
    assert_eq!(bench.port.settled, [(1, 2), (4, 4)]);
    assert_eq!(bench.state(), "4/3 4/3 a0 r0 p1");
    bench.with(|c, port, now| c.taken(port, 3, now));
    bench.with(|c, port, now| c.taken(port, 100, now));
    assert_eq!(bench.port.settled, [(1, 2), (4, 4), (5, 5)]);
    assert_eq!(bench.state(), "5/4 5/4 a0 r0 p0");
}
