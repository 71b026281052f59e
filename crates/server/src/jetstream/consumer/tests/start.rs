use super::*;

/// Where a consumer begins, how much is to come, and what comes first.
fn begin(bench: &mut Bench, json: &str) -> String {
    bench.create(json);
    let state = bench.state();
    bench.pull("a", r#"{"no_wait":true}"#);
    format!("{state} -> {}", bench.line())
}

#[test]
fn every_policy_on_an_empty_stream() {
    for (json, state) in [
        (r#"{}"#, "0/0 0/0 a0 r0 p0"),
        (r#"{"deliver_policy":"last"}"#, "0/0 0/0 a0 r0 p0"),
        (r#"{"deliver_policy":"new"}"#, "0/0 0/0 a0 r0 p0"),
        (
            r#"{"deliver_policy":"by_start_sequence","opt_start_seq":7}"#,
            "6/0 6/0 a0 r0 p0",
        ),
        (
            r#"{"deliver_policy":"by_start_time","opt_start_time":"2020-01-01T00:00:00Z"}"#,
            "0/0 0/0 a0 r0 p0",
        ),
        (
            r#"{"deliver_policy":"last_per_subject","filter_subject":">"}"#,
            "0/0 0/0 a0 r0 p0",
        ),
    ] {
        assert_eq!(
            begin(&mut Bench::new(), json),
            format!("{state} -> a: 404 No Messages"),
            "{json}"
        );
    }
}

#[test]
fn every_policy_with_a_gap_at_the_head() {
    for (json, expected) in [
        (r#"{}"#, "2/0 2/0 a0 r0 p6 -> a: 3/1 x1 p5"),
        (r#"{"filter_subject":"b"}"#, "2/0 2/0 a0 r0 p1 -> a: 4/1 x1 p0"),
        (
            r#"{"filter_subjects":["b","c.*"]}"#,
            "2/0 2/0 a0 r0 p4 -> a: 4/1 x1 p3",
        ),
        (
            r#"{"filter_subject":"none"}"#,
            "2/0 2/0 a0 r0 p0 -> a: 404 No Messages",
        ),
        (r#"{"deliver_policy":"last"}"#, "7/0 7/0 a0 r0 p1 -> a: 8/1 x1 p0"),
        (
            r#"{"deliver_policy":"last","filter_subjects":["b","c.*"]}"#,
            "6/0 6/0 a0 r0 p1 -> a: 7/1 x1 p0",
        ),
        (
            r#"{"deliver_policy":"last","filter_subject":"none"}"#,
            "2/0 2/0 a0 r0 p0 -> a: 404 No Messages",
        ),
        (
            r#"{"deliver_policy":"new"}"#,
            "8/0 8/0 a0 r0 p0 -> a: 404 No Messages",
        ),
        (
            r#"{"deliver_policy":"by_start_sequence","opt_start_seq":1}"#,
            "2/0 2/0 a0 r0 p6 -> a: 3/1 x1 p5",
        ),
        (
            r#"{"deliver_policy":"by_start_sequence","opt_start_seq":6}"#,
            "5/0 5/0 a0 r0 p3 -> a: 6/1 x1 p2",
        ),
        (
            r#"{"deliver_policy":"last_per_subject","filter_subjects":["b","c.*"]}"#,
            "3/0 3/0 a0 r0 p3 -> a: 4/1 x1 p2",
        ),
        (
            r#"{"deliver_policy":"last_per_subject","filter_subject":"none"}"#,
            "7/0 7/0 a0 r0 p0 -> a: 404 No Messages",
        ),
    ] {
        let mut bench = Bench::new();
        //                                     3    4    5      6      7    8
        bench.publish(&["a", "b", "a", "b", "c.1", "c.2", "c.1", "a"]);
        bench.op(Op::Remove(&[SeqRange { first: 1, last: 2 }]));
        assert_eq!(begin(&mut bench, json), expected, "{json}");
    }
}

#[test]
fn a_start_time_is_looked_up_by_the_caller() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.publish(&["x"]);
        bench.now.wall += 1_000_000;
    }
    for (after, first) in [(-5, Some(1)), (1, Some(2)), (9, None)] {
        let start = WALL + after * 1_000_000;
        let found = match bench.home.reader.first_at(start) {
            windjet_store::FoundSeq::Seq(seq) => Some(seq),
            windjet_store::FoundSeq::None => None,
            windjet_store::FoundSeq::NeedsDisk(_) => panic!("a memory stream"),
        };
        assert_eq!(found, first);
        let mut config = config(r#"{"deliver_policy":"by_start_time"}"#);
        config.opt_start_time = Some(Timestamp::from_unix_nanos(start));
        let consumer = Consumer::create(bench.home.clone(), "C", config, found, bench.now);
        assert_eq!(consumer.delivered.stream_seq, first.unwrap_or(4) - 1);
    }
}

#[test]
fn a_start_behind_the_end_waits_for_the_stream_to_get_there() {
    let mut bench = Bench::start(
        &xs(2),
        r#"{"deliver_policy":"by_start_sequence","opt_start_seq":5}"#,
    );
    bench.pull("a", "2");
    bench.publish(&xs(2));
    assert_eq!(bench.line(), "");
    bench.publish(&xs(2));
    assert_eq!(bench.line(), "a: 5/1 x1 p0 | a: 6/2 x1 p0");
}

#[test]
fn the_last_of_each_subject_come_first_then_everything_after_them() {
    let json = r#"{"deliver_policy":"last_per_subject","filter_subject":"k.*","ack_policy":"explicit"}"#;
    let mut bench = Bench::start(&["k.1", "k.2", "o", "k.1", "k.3", "o"], json);
    assert_eq!(bench.state(), "1/0 1/0 a0 r0 p3");
    bench.publish(&["k.2", "o", "k.2"]);
    assert_eq!(bench.state(), "1/0 1/0 a0 r0 p5");
    // A member that goes before its turn is skipped; the message before it does not take its place.
    bench.remove(5, 5);
    bench.pull("a", "10");
    assert_eq!(
        bench.line(),
        "a: 2/1 x1 p3 | a: 4/2 x1 p2 | a: 7/3 x1 p1 | a: 9/4 x1 p0"
    );
    bench.publish(&["k.9"]);
    assert_eq!(bench.line(), "a: 10/5 x1 p0");
}

#[test]
fn one_message_for_each_subject_needs_no_set() {
    let mut bench = Bench::with_home(|home| home.max_msgs_per_subject = 1);
    bench.publish(&["k.1", "k.2"]);
    bench.create(r#"{"deliver_policy":"last_per_subject","filter_subject":">"}"#);
    assert!(bench.c.as_ref().unwrap().initial_up_to.is_none());
    assert_eq!(bench.state(), "0/0 0/0 a0 r0 p2");
}

#[test]
fn an_initial_set_survives_a_restart_in_its_middle() {
    let json = r#"{"deliver_policy":"last_per_subject","filter_subject":">","durable_name":"C"}"#;
    let mut bench = Bench::start(&["1", "2", "1", "3", "2", "4"], json);
    bench.publish(&["1"]);
    bench.pull("a", "2");
    assert_eq!(bench.line(), "a: 3/1 x1 p4 | a: 4/2 x1 p3");
    bench.restart(0);
    assert_eq!(bench.state(), "4/2 4/2 a0 r0 p3");
    bench.pull("a", "9");
    assert_eq!(bench.line(), "a: 5/3 x1 p2 | a: 6/4 x1 p1 | a: 7/5 x1 p0");
    bench.restart(0);
    assert_eq!(bench.state(), "7/5 7/5 a0 r0 p0");
}

#[test]
fn a_start_at_the_end_survives_a_restart_before_the_first_delivery() {
    let mut bench = Bench::start(&xs(3), r#"{"deliver_policy":"new","durable_name":"C"}"#);
    bench.publish(&["x"]);
    bench.restart(0);
    assert_eq!(bench.state(), "3/0 3/0 a0 r0 p1");
}
