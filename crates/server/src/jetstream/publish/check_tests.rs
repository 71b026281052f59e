use windjet_protocol::jetstream::{DiscardPolicy, Nanos, RetentionPolicy, StorageType, SubjectTransform};

use super::*;
use crate::jetstream::publish::testing::{Model, block_of};

const ID: &str = "Nats-Msg-Id";
const EXPECT_SEQ: &str = "Nats-Expected-Last-Sequence";
const EXPECT_SUBJECT_SEQ: &str = "Nats-Expected-Last-Subject-Sequence";
const EXPECT_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
const EXPECT_ID: &str = "Nats-Expected-Last-Msg-Id";
const ROLLUP: &str = "Nats-Rollup";

#[test]
fn a_plain_message_is_stored_as_it_is() {
    let mut stream = Model::new(|_| {});
    assert_eq!(stream.publish("a", &[], "x"), "ok 1");
    assert_eq!(stream.publish("a", &[("A", "b")], ""), "ok 2");
    assert_eq!(stream.block(2), "NATS/1.0\r\nA: b\r\n\r\n");
    let message = Incoming::new(b"a", b"", b"hello");
    let plan = check(&stream.rules, &stream, &message, Place::Alone).unwrap();
    assert_eq!((plan.size, plan.before), (36, 2));
    assert!(plan.remove.is_empty() && plan.purge.is_none() && plan.id.is_none());
    assert!(matches!(
        (plan.block, plan.payload),
        (Cow::Borrowed(_), Cow::Borrowed(_))
    ));
}

#[test]
fn status_and_request_info_are_cut() {
    let mut stream = Model::new(|_| {});
    let block = b"NATS/1.0 503 foo\r\nNats-Request-Info: {}\r\n\r\n";
    assert_eq!(stream.publish_from(Origin::Client, "a", block, "x"), "ok 1");
    assert_eq!(stream.block(1), "");
}

#[test]
fn a_sealed_stream_takes_nothing() {
    let mut stream = Model::new(|c| (c.sealed, c.max_msg_size) = (true, 1));
    let answer = stream.publish("a", &[("Nats-Incr", "1")], "xxxx");
    assert_eq!(answer, "10109 invalid operation on sealed stream");
}

#[test]
fn long_messages_are_refused() {
    let mut stream = Model::new(|c| c.max_msg_size = 30);
    assert_eq!(stream.publish("a", &[], &"x".repeat(30)), "ok 1");
    let refusal = "10054 message size exceeds maximum allowed";
    assert_eq!(stream.publish("a", &[], &"x".repeat(31)), refusal);
    assert_eq!(stream.publish("a", &[("A", "b")], &"x".repeat(13)), refusal);
    assert_eq!(stream.publish("a", &[("A", "b")], &"x".repeat(12)), "ok 2");

    let mut stream = Model::new(|_| {});
    let block = |length: usize| block_of(&[("H", &"h".repeat(length - 17))]);
    assert_eq!(block(65_535).len(), 65_535);
    assert_eq!(
        stream.publish_from(Origin::Client, "a", &block(65_535), ""),
        "ok 1"
    );
    let answer = stream.publish_from(Origin::Client, "a", &block(65_536), "");
    assert_eq!(answer, "10097 header size exceeds maximum allowed of 64k");
    let answer = stream.publish("a", &[], &"x".repeat(32 << 20));
    assert_eq!(answer, "10077 message too large");
}

#[test]
fn expected_stream() {
    let mut stream = Model::new(|_| {});
    assert_eq!(stream.publish("a", &[("Nats-Expected-Stream", "S")], ""), "ok 1");
    assert_eq!(stream.publish("a", &[("Nats-Expected-Stream", "")], ""), "ok 2");
    assert_eq!(
        stream.publish("a", &[("Nats-Expected-Stream", "s")], ""),
        "10060 expected stream does not match"
    );
}

#[test]
fn expected_last_sequence_counts_what_is_gone() {
    let mut stream = Model::new(|_| {});
    assert_eq!(stream.publish("a", &[(EXPECT_SEQ, "0")], ""), "ok 1");
    assert_eq!(
        stream.publish("a", &[(EXPECT_SEQ, "0")], ""),
        "10071 wrong last sequence: 1"
    );
    assert_eq!(
        stream.publish("a", &[(EXPECT_SEQ, "x")], ""),
        "10071 wrong last sequence: 1"
    );
    assert_eq!(stream.publish("a", &[(EXPECT_SEQ, "")], ""), "ok 2");
    stream.messages.clear();
    assert_eq!(stream.publish("a", &[(EXPECT_SEQ, "2")], ""), "ok 3");
}

#[test]
fn expected_subject_sequence_is_that_of_the_newest_live_message() {
    let mut stream = Model::new(|_| {});
    assert_eq!(stream.publish("a.1", &[(EXPECT_SUBJECT_SEQ, "0")], ""), "ok 1");
    assert_eq!(stream.publish("a.2", &[(EXPECT_SUBJECT_SEQ, "0")], ""), "ok 2");
    assert_eq!(stream.publish("a.1", &[(EXPECT_SUBJECT_SEQ, "1")], ""), "ok 3");
    let wrong = "10071 wrong last sequence: 3";
    assert_eq!(stream.publish("a.1", &[(EXPECT_SUBJECT_SEQ, "1")], ""), wrong);
    assert_eq!(stream.publish("a.1", &[(EXPECT_SUBJECT_SEQ, "x")], ""), wrong);
    stream.messages.remove(&3);
    let wrong = "10071 wrong last sequence: 1";
    assert_eq!(stream.publish("a.1", &[(EXPECT_SUBJECT_SEQ, "3")], ""), wrong);
    stream.messages.remove(&1);
    assert_eq!(stream.publish("a.1", &[(EXPECT_SUBJECT_SEQ, "0")], ""), "ok 4");
}

#[test]
fn expected_subject_sequence_may_be_about_other_subjects() {
    let mut stream = Model::new(|_| {});
    stream.publish("a.1", &[], "");
    stream.publish("b.1", &[], "");
    let expect =
        |seq: &'static str, subject: &'static str| [(EXPECT_SUBJECT_SEQ, seq), (EXPECT_SUBJECT, subject)];
    assert_eq!(stream.publish("c", &expect("1", "a.1"), ""), "ok 3");
    assert_eq!(stream.publish("c", &expect("2", "*.1"), ""), "ok 4");
    assert_eq!(
        stream.publish("c", &expect("2", ">"), ""),
        "10071 wrong last sequence: 4"
    );
    assert_eq!(
        stream.publish("c", &expect("1", "a..1"), ""),
        "10071 wrong last sequence: 0"
    );
    assert_eq!(stream.publish("c", &expect("0", "none"), ""), "ok 5");
    assert_eq!(
        stream.publish("c", &[(EXPECT_SUBJECT, "a.1")], ""),
        "10193 missing sequence for expected last sequence per subject"
    );
    stream.staged = true;
    assert_eq!(stream.publish("c", &expect("2", "*.1"), ""), "wait");
    assert_eq!(stream.publish("c", &expect("1", "a.1"), ""), "ok 6");
}

#[test]
fn the_transformed_subject_is_checked() {
    let mut stream = Model::new(|c| {
        c.subject_transform = Some(SubjectTransform {
            src: "a.*".into(),
            dest: "b.$1".into(),
        });
    });
    assert_eq!(stream.publish("a.x", &[], ""), "ok 1");
    assert_eq!(stream.messages[&1].subject, "b.x");
    assert_eq!(stream.publish("a.x", &[(EXPECT_SUBJECT_SEQ, "1")], ""), "ok 2");
}

#[test]
fn duplicates_are_told_with_the_original() {
    let mut stream = Model::new(|_| {});
    assert_eq!(stream.publish("a", &[(ID, "1")], ""), "ok 1");
    assert_eq!(stream.publish("b", &[(ID, "1")], ""), "duplicate 1");
    assert_eq!(stream.publish("b", &[(ID, "2")], ""), "ok 2");
    assert_eq!(stream.publish("b", &[(ID, "")], ""), "ok 3");
    // A stale expectation is told first.
    let answer = stream.publish("a", &[(ID, "1"), (EXPECT_SEQ, "0")], "");
    assert_eq!(answer, "10071 wrong last sequence: 3");
    // A wrong last id is told after.
    assert_eq!(
        stream.publish("a", &[(ID, "1"), (EXPECT_ID, "x")], ""),
        "duplicate 1"
    );
}

#[test]
fn expected_last_id_is_that_of_the_last_message() {
    let mut stream = Model::new(|_| {});
    assert_eq!(
        stream.publish("a", &[(EXPECT_ID, "q")], ""),
        "10070 wrong last msg ID: "
    );
    assert_eq!(stream.publish("a", &[(ID, "1")], ""), "ok 1");
    assert_eq!(
        stream.publish("a", &[(EXPECT_ID, "q")], ""),
        "10070 wrong last msg ID: 1"
    );
    assert_eq!(stream.publish("a", &[(EXPECT_ID, "1")], ""), "ok 2");
    assert_eq!(
        stream.publish("a", &[(EXPECT_ID, "1")], ""),
        "10070 wrong last msg ID: "
    );
}

#[test]
fn rollups_need_permission_and_a_known_word() {
    let mut stream = Model::new(|_| {});
    for word in ["sub", "zzz"] {
        assert_eq!(
            stream.publish("a", &[(ROLLUP, word)], ""),
            "10111 rollup not permitted"
        );
    }
    let mut stream = Model::new(|c| (c.allow_rollup_hdrs, c.deny_purge) = (true, true));
    assert_eq!(
        stream.publish("a", &[(ROLLUP, "sub")], ""),
        "10111 rollup not permitted"
    );
    let mut stream = Model::new(|c| c.allow_rollup_hdrs = true);
    assert_eq!(
        stream.publish("a", &[(ROLLUP, "zzz")], ""),
        r#"10111 rollup value invalid: "zzz""#
    );
    assert_eq!(stream.publish("a", &[(ROLLUP, "")], ""), "ok 1");
    assert_eq!(stream.publish("a", &[(ROLLUP, "SUB")], ""), "ok 2");
    assert_eq!(stream.live(), [2]);
}

#[test]
fn rollups_remove_older_messages() {
    let mut stream = Model::new(|c| c.allow_rollup_hdrs = true);
    for subject in ["a", "b", "a", "c"] {
        stream.publish(subject, &[], "");
    }
    assert_eq!(stream.publish("a", &[(ROLLUP, "sub")], ""), "ok 5");
    assert_eq!(stream.live(), [2, 4, 5]);
    assert_eq!(stream.block(5), "NATS/1.0\r\nNats-Rollup: sub\r\n\r\n");
    assert_eq!(stream.publish("d", &[(ROLLUP, "all")], ""), "ok 6");
    assert_eq!(stream.live(), [6]);
}

#[test]
fn small_rollups_do_without_a_purge() {
    let mut stream = Model::new(|c| c.allow_rollup_hdrs = true);
    let plan_of = |stream: &Model, word: &str| {
        let block = block_of(&[(ROLLUP, word)]);
        let message = Incoming::new(b"a", &block, b"");
        let plan = check(&stream.rules, stream, &message, Place::Alone).unwrap();
        (plan.remove.ranges().len(), plan.purge, plan.purge(b"a", 9))
    };
    assert_eq!(plan_of(&stream, "sub"), (0, None, None));
    stream.publish("a", &[], "");
    stream.publish("b", &[], "");
    assert_eq!(plan_of(&stream, "sub"), (1, None, None));
    stream.publish("a", &[], "");
    assert_eq!(plan_of(&stream, "sub"), (2, None, None));
    assert_eq!(plan_of(&stream, "all"), (1, None, None));
    (0..200).for_each(|_| drop(stream.publish("a", &[], "")));
    let subject_purge = Purge {
        filter: b"a",
        below: 9,
    };
    assert_eq!(
        plan_of(&stream, "sub"),
        (0, Some(Rollup::Subject), Some(subject_purge))
    );
    let all = Purge {
        filter: b"",
        below: 9,
    };
    assert_eq!(plan_of(&stream, "all"), (0, Some(Rollup::All), Some(all)));
}

#[test]
fn life_times_need_the_feature() {
    let mut stream = Model::new(|_| {});
    let off = "10166 per-message TTL is disabled";
    let invalid = "10165 invalid per-message TTL";
    assert_eq!(stream.publish("a", &[("Nats-TTL", "5")], ""), off);
    assert_eq!(stream.publish("a", &[("Nats-TTL", "never")], ""), off);
    assert_eq!(stream.publish("a", &[("Nats-TTL", "x")], ""), invalid);
    assert_eq!(stream.publish("a", &[("Nats-TTL", "")], ""), "ok 1");
    assert_eq!(stream.publish("a", &[("Nats-TTL", "00")], ""), "ok 2");
    let mut stream = Model::new(|c| c.allow_msg_ttl = true);
    assert_eq!(stream.publish("a", &[("Nats-TTL", "0")], ""), invalid);
    let plan = |ttl: &str| {
        let block = block_of(&[("Nats-TTL", ttl)]);
        let message = Incoming::new(b"a", &block, b"");
        check(&stream.rules, &stream, &message, Place::Alone).unwrap().ttl
    };
    assert_eq!(plan("5"), Some(Ttl::Seconds(5)));
    assert_eq!(plan("never"), Some(Ttl::Never));
    assert_eq!(plan("00"), None);
}

#[test]
fn life_times_are_raised_to_the_markers() {
    let marked = |per_subject| {
        Model::new(move |c| {
            c.allow_msg_ttl = true;
            c.max_msgs_per_subject = per_subject;
            c.subject_delete_marker_ttl = Nanos::from_secs(60);
        })
    };
    let mut stream = marked(-1);
    stream.publish("a", &[("Nats-TTL", "5"), ("A", "b")], "");
    assert_eq!(stream.block(1), "NATS/1.0\r\nA: b\r\nNats-TTL: 60\r\n\r\n");
    stream.publish("a", &[("Nats-TTL", "1m")], "");
    assert_eq!(stream.block(2), "NATS/1.0\r\nNats-TTL: 1m\r\n\r\n");
    let mut stream = marked(1);
    stream.publish("a", &[("Nats-TTL", "5")], "");
    assert_eq!(stream.block(1), "NATS/1.0\r\nNats-TTL: 5\r\n\r\n");
}

#[test]
fn counters_add_up() {
    let mut stream = Model::new(|c| c.allow_msg_counter = true);
    assert_eq!(stream.publish("a", &[("Nats-Incr", "+5")], ""), "ok 1");
    assert_eq!(stream.payload(1), r#"{"val":"5"}"#);
    assert_eq!(stream.block(1), "NATS/1.0\r\nNats-Incr: +5\r\n\r\n");
    let long = "-123456789012345678901234567890";
    assert_eq!(stream.publish("a", &[("Nats-Incr", long)], ""), "ok 2");
    assert_eq!(stream.payload(2), r#"{"val":"-123456789012345678901234567885"}"#);
    assert_eq!(stream.publish("b", &[("Nats-Incr", "1")], ""), "ok 3");
    assert_eq!(stream.payload(3), r#"{"val":"1"}"#);
    // After a restart the newest message must be read first.
    stream.totals.clear();
    assert_eq!(stream.publish("b", &[("Nats-Incr", "1")], ""), "read 3");
    stream.read(3);
    assert_eq!(stream.publish("b", &[("Nats-Incr", "1")], ""), "ok 4");
    assert_eq!(stream.payload(4), r#"{"val":"2"}"#);
    stream.messages.remove(&4);
    assert_eq!(stream.publish("b", &[("Nats-Incr", "7")], ""), "read 3");
}

#[test]
fn counters_refuse_what_is_no_increment() {
    let mut stream = Model::new(|_| {});
    assert_eq!(
        stream.publish("a", &[("Nats-Incr", "1")], ""),
        "10168 message counters is disabled"
    );
    let invalid = "10171 message counter increment is invalid";
    assert_eq!(stream.publish("a", &[("Nats-Incr", "z")], ""), invalid);
    assert_eq!(stream.publish("a", &[("Nats-Incr", "")], ""), "ok 1");

    let mut stream = Model::new(|c| c.allow_msg_counter = true);
    assert_eq!(
        stream.publish("a", &[], ""),
        "10169 message counter increment is missing"
    );
    assert_eq!(
        stream.publish("a", &[("Nats-Incr", "1")], "x"),
        "10170 message counter has payload"
    );
    for (name, value) in [
        (ROLLUP, "sub"),
        ("Nats-Expected-Stream", "S"),
        (EXPECT_SEQ, "0"),
        (EXPECT_SUBJECT_SEQ, "0"),
        (EXPECT_SUBJECT, "a"),
        (EXPECT_ID, "0"),
    ] {
        let answer = stream.publish("a", &[("Nats-Incr", "1"), (name, value)], "");
        assert_eq!(answer, invalid, "{name}");
    }
    assert_eq!(stream.publish("a", &[("Nats-Incr", "1"), (ID, "i")], ""), "ok 1");
    assert_eq!(
        stream.publish("a", &[("Nats-Incr", "1"), (ID, "i")], ""),
        "duplicate 1"
    );
    stream.messages.get_mut(&1).unwrap().payload = b"?".to_vec();
    stream.read(1);
    assert_eq!(
        stream.publish("a", &[("Nats-Incr", "1")], ""),
        "10172 message counter is broken"
    );
}

#[test]
fn a_counter_may_not_outgrow_the_payload() {
    let mut stream = Model::new(|c| c.allow_msg_counter = true);
    stream.rules.max_payload = 12;
    assert_eq!(stream.publish("a", &[("Nats-Incr", "99")], ""), "ok 1");
    assert_eq!(
        stream.publish("a", &[("Nats-Incr", "1")], ""),
        "10054 message size exceeds maximum allowed"
    );
}

#[test]
fn counters_of_other_streams_are_merged() {
    let mut stream = Model::new(|c| c.allow_msg_counter = true);
    stream.publish("c", &[("Nats-Incr", "10")], "");
    let source = |value: &str| {
        let fields = [("Nats-Incr", value), ("Nats-Stream-Source", "A 5 > > a.b id")];
        block_of(&fields)
    };
    let from = Origin::Source;
    assert_eq!(
        stream.publish_from(from, "c", &source("3"), r#"{"val":"3"}"#),
        "ok 2"
    );
    assert_eq!(stream.payload(2), r#"{"val":"13"}"#);
    assert_eq!(
        stream.publish_from(from, "c", &source("3"), r#"{"val":"6"}"#),
        "ok 3"
    );
    assert_eq!(stream.payload(3), r#"{"val":"16"}"#);
    assert_eq!(
        stream.block(3),
        "NATS/1.0\r\nNats-Incr: 3\r\nNats-Stream-Source: A 5 > > a.b id\r\n\
         Nats-Counter-Sources: {\"A\":{\"a.b\":\"6\"}}\r\n\r\n"
    );
    // Own increments carry the sources on.
    stream.publish("c", &[("Nats-Incr", "1")], "");
    assert!(
        stream
            .block(4)
            .contains("Nats-Counter-Sources: {\"A\":{\"a.b\":\"6\"}}\r\n")
    );
    assert_eq!(
        stream.publish_from(from, "c", &source("3"), "x"),
        "10172 message counter is broken"
    );
}

#[test]
fn messages_of_other_streams_are_not_refused_for_features() {
    let mut stream = Model::new(|_| {});
    let block = block_of(&[
        ("Nats-Incr", "1"),
        ("Nats-TTL", "5"),
        (ROLLUP, "sub"),
        ("Nats-Stream-Source", "A 5"),
        ("Nats-Schedule", "@hourly"),
    ]);
    assert_eq!(stream.publish_from(Origin::Source, "a", &block, "x"), "ok 1");
    assert_eq!(stream.publish_from(Origin::Source, "a", &block, "x"), "ok 2");
    assert_eq!(stream.live(), [1, 2]);
    let block = block_of(&[("Nats-TTL", "x")]);
    assert_eq!(stream.publish_from(Origin::Source, "a", &block, "x"), "ok 3");
    assert_eq!(
        stream.publish("a", &[("Nats-Stream-Source", "A 5")], ""),
        "10227 message stream source header is not allowed"
    );
}

#[test]
fn what_nobody_wants_is_skipped() {
    let mut stream = Model::new(|c| c.retention = RetentionPolicy::Interest);
    stream.interest = Some(vec!["a.*".into()]);
    assert_eq!(stream.publish("a.b", &[], ""), "ok 1");
    assert_eq!(stream.publish("b", &[(ID, "1")], ""), "skip 2");
    assert_eq!(stream.publish("b", &[(ID, "1")], ""), "duplicate 2");
    assert_eq!(stream.publish("b", &[(EXPECT_ID, "1")], ""), "skip 3");
    assert_eq!(
        stream.publish("b", &[(EXPECT_SEQ, "2")], ""),
        "10071 wrong last sequence: 3"
    );
    // Later checks are not made.
    assert_eq!(stream.publish("b", &[("Nats-TTL", "x")], ""), "skip 4");
    let mut stream = Model::new(|_| {});
    stream.interest = Some(Vec::new());
    assert_eq!(stream.publish("b", &[], ""), "ok 1");
}

#[test]
fn usage_is_bounded() {
    let mut stream = Model::new(|_| {});
    stream.account_room = 32;
    assert_eq!(stream.publish("a", &[], "x"), "ok 1");
    assert_eq!(
        stream.publish("a", &[], "xx"),
        "10002 resource limits exceeded for account"
    );
    stream.server_full = true;
    assert_eq!(stream.publish("a", &[], "xx"), "10023 insufficient resources");
}

#[test]
fn old_messages_make_room() {
    let mut stream = Model::new(|c| c.max_msgs = 2);
    for seq in 1..=4 {
        assert_eq!(stream.publish("a", &[], ""), format!("ok {seq}"));
    }
    assert_eq!(stream.live(), [3, 4]);
    // 31 + 9 bytes each.
    let mut stream = Model::new(|c| c.max_bytes = 100);
    (0..3).for_each(|_| drop(stream.publish("a", &[], "123456789")));
    assert_eq!(stream.live(), [2, 3]);
    stream.publish("a", &[], &"x".repeat(40));
    assert_eq!(stream.live(), [4]);
    // Larger than everything: it goes with the rest.
    assert_eq!(stream.publish("a", &[], &"x".repeat(70)), "ok 5");
    assert!(stream.live().is_empty());
    assert_eq!(stream.publish("a", &[], ""), "ok 6");
    assert_eq!(stream.live(), [6]);
}

#[test]
fn a_full_subject_makes_room_for_itself() {
    let mut stream = Model::new(|c| (c.max_msgs_per_subject, c.max_msgs) = (1, 3));
    for subject in ["a", "b", "c", "b", "d"] {
        stream.publish(subject, &[], "");
    }
    // The second b took the first one's place; d needed the oldest one's.
    assert_eq!(stream.live(), [3, 4, 5]);
    let mut stream = Model::new(|c| c.max_msgs_per_subject = 2);
    (0..4).for_each(|_| drop(stream.publish("a", &[], "")));
    assert_eq!(stream.live(), [3, 4]);
}

#[test]
fn a_full_stream_of_the_new_kind_refuses() {
    let mut stream = Model::new(|c| {
        c.discard = DiscardPolicy::New;
        (c.max_msgs, c.max_msgs_per_subject) = (2, 1);
    });
    assert_eq!(stream.publish("a", &[], ""), "ok 1");
    assert_eq!(stream.publish("b", &[(ID, "1")], ""), "ok 2");
    assert_eq!(stream.publish("a", &[], ""), "ok 3");
    assert_eq!(stream.live(), [2, 3]);
    let full = "10077 maximum messages exceeded";
    assert_eq!(stream.publish("c", &[(ID, "2")], ""), full);
    // Nothing is remembered of what was refused.
    assert_eq!(stream.publish("c", &[(ID, "2")], ""), full);
    assert_eq!(stream.last_seq, 3);

    let mut stream = Model::new(|c| {
        c.discard = DiscardPolicy::New;
        (c.max_bytes, c.max_msgs_per_subject) = (40, 1);
    });
    let full = "10077 maximum bytes exceeded";
    assert_eq!(stream.publish("a", &[], "xxx"), "ok 1");
    assert_eq!(stream.publish("a", &[], "xxxx"), full);
    assert_eq!(stream.publish("b", &[], ""), full);
    assert_eq!(stream.publish("a", &[], "yyy"), "ok 2");
    assert_eq!(stream.publish("a", &[], ""), "ok 3");
    assert_eq!(stream.live(), [3]);
}

#[test]
fn a_full_subject_of_the_new_kind_refuses() {
    let mut stream = Model::new(|c| {
        c.discard = DiscardPolicy::New;
        c.max_msgs_per_subject = 1;
        (c.discard_new_per_subject, c.allow_rollup_hdrs) = (true, true);
    });
    assert_eq!(stream.publish("a", &[], ""), "ok 1");
    assert_eq!(
        stream.publish("a", &[], ""),
        "10077 maximum messages per subject exceeded"
    );
    assert_eq!(stream.publish("a", &[(ROLLUP, "sub")], ""), "ok 2");
    assert_eq!(stream.publish("a", &[(ROLLUP, "all")], ""), "ok 3");
    assert_eq!(stream.live(), [3]);
}

#[test]
fn room_is_made_before_a_rollup() {
    // As nats-server does: what a rollup frees does not help other subjects.
    let mut stream = Model::new(|c| (c.allow_rollup_hdrs, c.max_msgs) = (true, 3));
    for subject in ["a", "b", "b"] {
        stream.publish(subject, &[], "");
    }
    stream.publish("b", &[(ROLLUP, "sub")], "");
    assert_eq!(stream.live(), [4]);
}

#[test]
fn memory_counts_otherwise() {
    let stream = Model::new(|c| c.storage = StorageType::Memory);
    let message = Incoming::new(b"s1.a", b"", b"hello");
    let plan = check(&stream.rules, &stream, &message, Place::Alone).unwrap();
    assert_eq!(plan.size, 25);
}

/// The order in which nats-server 2.15.1 complains, found by sending every pair of faults to it.
#[test]
fn the_first_fault_is_told() {
    let mut stream = Model::new(|c| {
        c.max_msg_size = 70_000;
        c.discard = DiscardPolicy::New;
        (c.max_msgs_per_subject, c.discard_new_per_subject) = (1, true);
    });
    stream.publish("x.a", &[(ID, "D")], "x");
    stream.publish("x.b", &[], "x");
    let (long_body, long_header) = ("y".repeat(70_001), "h".repeat(65_600));
    let faults: &[(&str, &str, &str)] = &[
        ("", "", "10054"),
        ("H", &long_header, "10097"),
        ("Nats-Incr", "z", "10171"),
        ("Nats-Incr", "1", "10168"),
        ("Nats-Expected-Stream", "Q", "10060"),
        ("Nats-TTL", "5", "10166"),
        (EXPECT_SUBJECT_SEQ, "77", "10071 wrong last sequence: 1"),
        (EXPECT_SUBJECT, "x.a", "10193"),
        (EXPECT_SEQ, "99", "10071 wrong last sequence: 2"),
        ("Nats-Schedule", "@hourly", "10188"),
        ("Nats-Scheduler", "q", "10212"),
        ("Nats-Stream-Source", "x", "10227"),
        (ID, "D", "duplicate 1"),
        (EXPECT_ID, "zz", "10070"),
        (ROLLUP, "sub", "10111"),
        ("Nats-TTL", "x", "10165"),
        ("A", "b", "10077"),
    ];
    for (i, first) in faults.iter().enumerate() {
        for second in &faults[i..] {
            // Two of the same name, or one that makes the other harmless.
            let same = first.0 == second.0 && first != second;
            if same || (first.0 == EXPECT_SUBJECT_SEQ && second.0 == EXPECT_SUBJECT) {
                continue;
            }
            let body = if first.0.is_empty() { &long_body } else { "x" };
            let mut fields = vec![(first.0, first.1), (second.0, second.1)];
            fields.dedup();
            fields.retain(|field| !field.0.is_empty());
            let answer = stream.publish("x.a", &fields, body);
            assert!(
                answer.starts_with(first.2),
                "{} with {}: {answer}",
                first.0,
                second.0
            );
        }
    }
}
