use super::super::Explanation;
use super::*;

const WAIT: &str = r#"{"durable_name":"C","ack_policy":"explicit","ack_wait":1000000000}"#;

fn pause(bench: &mut Bench, ms: i64) -> String {
    let until = if ms == 0 { Timestamp::ZERO } else { bench.time(ms) };
    let answer = bench.with(|c, port, now| c.pause(port, until, now));
    assert_eq!(answer.pause_until, until);
    format!("{} {}", answer.paused, answer.pause_remaining)
}

#[test]
fn a_paused_consumer_delivers_nothing_and_does_all_else() {
    let mut bench = Bench::start(
        &xs(2),
        r#"{"ack_policy":"explicit","ack_wait":100000000,"max_deliver":1}"#,
    );
    bench.pull("a", "1");
    bench.out();
    assert_eq!(pause(&mut bench, 500), "true 500ms");
    let until = bench.time(500);
    assert_eq!(
        bench.line(),
        format!(r#"ADVISORY.CONSUMER.PAUSE {{"pause_until":"{until}","paused":true}}"#)
    );
    bench.pull("n", r#"{"no_wait":true}"#);
    bench.pull("e", &format!(r#"{{"expires":{}}}"#, 50 * MS));
    bench.pull(
        "h",
        &format!(r#"{{"expires":{},"idle_heartbeat":{}}}"#, 900 * MS, 300 * MS),
    );
    bench.ack(1, 1, "+WPI");
    bench.advance(400);
    assert_eq!(
        bench.out(),
        [
            "n: 404 No Messages",
            "r: +",
            "e: 408 Request Timeout Nats-Pending-Messages=1 Nats-Pending-Bytes=0",
            r#"ADVISORY.CONSUMER.MAX_DELIVERIES {"deliveries":1,"stream_seq":1}"#,
            "h: 100 Idle Heartbeat Nats-Last-Consumer=1 Nats-Last-Stream=1",
        ]
    );
    let info = bench.info();
    assert_eq!(
        (info.paused, info.pause_remaining.to_string()),
        (true, "100ms".into())
    );
    assert!(matches!(
        bench.with(|c, port, now| c.explain(port, now)),
        Explanation::Paused { .. }
    ));
    bench.advance(99);
    assert_eq!(bench.line(), "");
    bench.advance(1);
    assert_eq!(
        bench.line(),
        format!(r#"ADVISORY.CONSUMER.PAUSE {{"pause_until":"{until}","paused":false}} | h: 2/2 x1 p0"#)
    );
    assert!(!bench.info().paused);
}

#[test]
fn resuming_tells_only_of_a_change() {
    let mut bench = Bench::start(&[], WAIT);
    assert_eq!(pause(&mut bench, 0), "false 0s");
    assert_eq!(bench.line(), "");
    pause(&mut bench, 500);
    pause(&mut bench, 500);
    assert_eq!(bench.out().len(), 1);
    assert_eq!(pause(&mut bench, -500), "false 0s");
    assert_eq!(bench.out().len(), 1);
    assert_eq!(bench.c.as_mut().unwrap().next_deadline(), None);
}

#[test]
fn a_pause_survives_updates_and_restarts_and_is_told_of() {
    let mut bench = Bench::new();
    let until = bench.time(500);
    bench.create(&format!(
        r#"{{"durable_name":"C","ack_policy":"explicit","pause_until":"{until}"}}"#
    ));
    bench.with(|c, port, now| c.announce(port, now));
    let told = format!(r#"ADVISORY.CONSUMER.PAUSE {{"pause_until":"{until}","paused":true}}"#);
    assert_eq!(
        bench.line(),
        format!(r#"ADVISORY.CONSUMER.CREATED {{"action":"create"}} | {told}"#)
    );
    bench.update(WAIT);
    assert_eq!(bench.line(), told);
    bench.pull("a", "1");
    bench.publish(&["x"]);
    bench.restart(200);
    bench.pull("a", "1");
    bench.advance(299);
    assert_eq!(bench.line(), "");
    bench.advance(1);
    assert_eq!(bench.out().len(), 2);
}

#[test]
fn a_restart_keeps_deadlines_and_counts() {
    let mut bench = Bench::start(&xs(4), WAIT);
    bench.pull("a", "3");
    bench.ack(3, 1, r#"-NAK {"delay":1500000000}"#);
    bench.ack(1, 1, "-NAK");
    bench.pull("a", "1");
    bench.ack(2, 1, "");
    bench.advance(400);
    bench.out();
    assert_eq!(bench.state(), "3/4 0/0 a2 r1 p1");
    bench.restart(100);
    assert_eq!(bench.state(), "3/4 0/0 a2 r1 p1");
    bench.pull("a", "1");
    bench.pull("a", "9");
    assert_eq!(bench.line(), "a: 4/5 x1 p0");
    bench.advance(499);
    assert_eq!(bench.line(), "");
    bench.advance(1);
    assert_eq!(bench.line(), "a: 1/6 x3 p0");
    bench.advance(500);
    assert_eq!(bench.line(), "a: 3/7 x2 p0 | a: 4/8 x2 p0");
}

#[test]
fn deadlines_that_passed_while_down_are_due_at_once() {
    let mut bench = Bench::start(&xs(2), WAIT);
    bench.pull("a", "2");
    bench.out();
    bench.restart(60_000);
    bench.pull("a", "9");
    bench.advance(1);
    assert_eq!(bench.line(), "a: 1/3 x2 p0 | a: 2/4 x2 p0");
}

#[test]
fn a_consumer_steps_back_when_the_stream_lost_its_end() {
    let mut bench = Bench::start(&xs(6), WAIT);
    bench.pull("a", "6");
    for seq in [1, 2, 3, 5, 6] {
        bench.ack(seq, 1, "");
    }
    let mut record = bench.home.reader.consumer("C").unwrap();
    let lost = |bench: &mut Bench, record: &windjet_store::ConsumerRecord, last: usize| {
        let mut short = Bench::start(&xs(last), WAIT);
        short.now = bench.now;
        let c = Consumer::restore(short.home.clone(), "C", record, short.now).unwrap();
        short.c = Some(c);
        // This store knows nothing of the history.
        let c = short.c.as_mut().unwrap();
        c.log.reset();
        for seq in c.tracked.seqs(0, u64::MAX) {
            c.log.touch(seq);
        }
        let state = short.state();
        short.publish(&["x"]);
        short.pull("a", "1");
        (state, short.line())
    };
    assert_eq!(
        lost(&mut bench, &record, 5),
        ("4/6 3/3 a1 r0 p1".into(), "a: 5/7 x1 p1".into())
    );
    assert_eq!(
        lost(&mut bench, &record, 2),
        ("2/6 2/6 a0 r0 p0".into(), "a: 3/7 x1 p0".into())
    );
    // A start behind the end is meant.
    record.state = windjet_store::ConsumerState::default();
    record.state.delivered.stream_seq = 9;
    record.state.floor.stream_seq = 9;
    assert_eq!(
        lost(&mut bench, &record, 5),
        ("9/0 9/0 a0 r0 p0".into(), String::new())
    );
}

#[test]
fn messages_that_went_while_down_are_settled() {
    let mut bench = Bench::start(&xs(3), WAIT);
    bench.pull("a", "3");
    bench.op(Op::Remove(&[SeqRange { first: 1, last: 2 }]));
    bench.restart(0);
    assert_eq!(bench.state(), "3/3 2/2 a1 r0 p0");
}

#[test]
fn a_stored_configuration_that_cannot_be_read_is_an_error() {
    let bench = Bench::start(&[], WAIT);
    let mut record = bench.home.reader.consumer("C").unwrap();
    record.config = Bytes::from_static(b"{}");
    assert!(Consumer::restore(bench.home.clone(), "C", &record, bench.now).is_err());
}

#[test]
fn reset_begins_anew() {
    let mut bench = Bench::start(&xs(6), WAIT);
    bench.pull("a", "4");
    bench.ack(1, 1, "");
    bench.ack(2, 1, "");
    bench.pull("b", "2");
    bench.out();
    let reset = |bench: &mut Bench, seq| bench.with(|c, port, now| c.reset(port, seq, None, now)).unwrap();
    bench.port.listening.clear();
    bench.port.settled.clear();
    assert_eq!(reset(&mut bench, 0), 3);
    assert_eq!(bench.state(), "2/0 2/0 a0 r0 p4");
    assert!(bench.info().delivered.last_active.is_none());
    // The message of an earlier delivery is to come again: its ack is not answered.
    bench.ack(3, 1, "");
    assert_eq!(bench.line(), "");
    assert_eq!(reset(&mut bench, 1), 1);
    assert_eq!(bench.state(), "0/0 0/0 a0 r0 p6");
    assert_eq!(reset(&mut bench, 9), 9);
    assert_eq!(
        (bench.state().as_str(), bench.port.settled.as_slice()),
        ("8/0 8/0 a0 r0 p0", [(1, 8)].as_slice())
    );
    bench.port.listening = [">".into()].into();
    bench.pull("c", "5");
    reset(&mut bench, 5);
    assert_eq!(bench.line(), "c: 5/1 x1 p1 | c: 6/2 x1 p0");
}

#[test]
fn reset_keeps_to_the_start_policy() {
    for (json, by_time, seq, expected) in [
        (
            r#"{"deliver_policy":"by_start_sequence","opt_start_seq":3}"#,
            None,
            2,
            "invalid reset: below start seq",
        ),
        (
            r#"{"deliver_policy":"by_start_sequence","opt_start_seq":3}"#,
            None,
            3,
            "",
        ),
        (
            r#"{"deliver_policy":"by_start_time"}"#,
            Some(3),
            2,
            "invalid reset: below start time",
        ),
        (r#"{"deliver_policy":"by_start_time"}"#, Some(3), 3, ""),
        (
            r#"{"deliver_policy":"by_start_time"}"#,
            None,
            4,
            "invalid reset: below start time",
        ),
        (
            r#"{"deliver_policy":"new"}"#,
            None,
            1,
            "invalid reset: not allowed",
        ),
        (r#"{"deliver_policy":"new"}"#, None, 0, ""),
    ] {
        let mut bench = Bench::start(&xs(4), json);
        let result = bench.with(|c, port, now| c.reset(port, seq, by_time, now));
        let error = result.map_or_else(|error| error.description.to_string(), |_| String::new());
        assert_eq!(error, expected, "{json}");
    }
}

#[test]
fn other_filters_count_for_what_is_to_come() {
    let json = r#"{"durable_name":"C","ack_policy":"explicit","filter_subject":"a"}"#;
    let mut bench = Bench::start(&["a", "b", "a", "b"], json);
    bench.pull("r", "1");
    bench.out();
    let config = config(&json.replace("\"a\"", "\"b\""));
    let updated = bench.with(|c, port, now| c.update(port, config, now)).unwrap();
    assert!(updated.filters);
    assert_eq!(bench.state(), "1/1 0/0 a1 r0 p2");
    bench.ack(1, 1, "-NAK");
    bench.out();
    bench.pull("r", "9");
    assert_eq!(bench.line(), "r: 1/2 x2 p2 | r: 2/3 x1 p1 | r: 4/4 x1 p0");
}

#[test]
fn more_room_resumes_at_once() {
    let json = r#"{"ack_policy":"explicit","max_ack_pending":1}"#;
    let mut bench = Bench::start(&xs(3), json);
    bench.pull("a", "9");
    bench.out();
    let why = bench.with(|c, port, now| c.explain(port, now));
    assert!(
        matches!(&why, Explanation::MaxAckPending { pending: 1, max: 1, sequences, until: Some(_) } if *sequences == [1]),
        "{why:?}"
    );
    bench.update(&json.replace(":1}", ":2}"));
    assert_eq!(bench.line(), "a: 2/2 x1 p1");
}

#[test]
fn unused_pull_consumers_go_and_used_ones_stay() {
    let json = r#"{"ack_policy":"explicit","ack_wait":3000000000,"inactive_threshold":1000000000}"#;
    let mut bench = Bench::start(&xs(1), json);
    bench.advance(1000);
    assert!(!bench.deleted);
    // A request that waits keeps it.
    bench.pull("a", "100");
    bench.advance(30_000);
    assert!(!bench.deleted);
    bench.port.listening.clear();
    bench.advance(6_000);
    assert!(bench.deleted);
    // So does a message in hand, up to the end of its wait.
    let mut bench = Bench::start(&xs(1), json);
    bench.pull("a", "1");
    bench.advance(3_900);
    assert!(!bench.deleted);
    bench.advance(1_200);
    assert!(bench.deleted);
    let mut bench = Bench::start(&[], r#"{"durable_name":"C"}"#);
    bench.advance(86_400_000);
    assert!(!bench.deleted);
    let mut bench = Bench::start(&[], "{}");
    bench.advance(5_099);
    assert!(!bench.deleted);
    bench.advance(901);
    assert!(bench.deleted);
}

#[test]
fn why_nothing_is_delivered() {
    let explain = |bench: &mut Bench| bench.with(|c, port, now| c.explain(port, now));
    let mut bench = Bench::start(&[], EXPLICIT);
    assert_eq!(explain(&mut bench), Explanation::NoRequest);
    bench.pull("a", "1");
    assert_eq!(explain(&mut bench), Explanation::NoMessages);
    bench.port.listening.clear();
    assert_eq!(explain(&mut bench), Explanation::NoListener);
    let mut bench = Bench::start(&xs(2), EXPLICIT);
    bench.pull("a", "9");
    let why = explain(&mut bench);
    assert!(
        matches!(&why, Explanation::AwaitingAcks { pending: 2, sequences, until: Some(_) } if *sequences == [1, 2]),
        "{why:?}"
    );
    let mut bench = Bench::start(&xs(2), r#"{"ack_policy":"explicit","filter_subject":"nobody"}"#);
    bench.pull("a", "9");
    let filters = vec!["nobody".to_owned()];
    assert_eq!(explain(&mut bench), Explanation::NoMatch { filters });
    let mut bench = Bench::start(&[], r#"{"deliver_subject":"d"}"#);
    assert_eq!(explain(&mut bench), Explanation::NotBound);
}

#[test]
fn a_consumer_in_memory_stores_nothing() {
    let mut bench = Bench::start(&xs(2), r#"{"ack_policy":"explicit","mem_storage":true}"#);
    bench.pull("a", "2");
    bench.ack(1, 1, "");
    let c = bench.c.as_mut().unwrap();
    assert!(!c.is_dirty() && c.take_change(bench.now).is_none());
}
