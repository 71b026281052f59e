use super::*;
use crate::jetstream::publish::check::Origin;
use crate::jetstream::publish::testing::{Model, block_of};

fn stream() -> Model {
    Model::new(|c| {
        c.subjects = vec!["s.>".into(), "t.>".into()];
        (c.allow_msg_schedules, c.allow_rollup_hdrs, c.allow_msg_ttl) = (true, true, true);
    })
}

/// Publishes a schedule to `s.own`, with fields in addition, and answers the number of the error or 0.
fn asked(stream: &mut Model, schedule: &str, target: &str, fields: &[(&str, &str)]) -> u16 {
    let mut all = vec![("Nats-Schedule", schedule), ("Nats-Schedule-Target", target)];
    all.extend_from_slice(fields);
    let answer = stream.publish("s.own", &all, "x");
    let (first, _) = answer.split_once(' ').unwrap();
    first.parse().unwrap_or(0)
}

#[test]
fn forms() {
    let mut stream = stream();
    for (text, error) in [
        ("@at 2030-01-01T00:00:00Z", 0),
        ("@at 2030-01-01T00:00:00+02:00", 0),
        ("@at 2030-01-01T00:00:00.5Z", 0),
        ("@at 2030-01-01 00:00:00Z", 10189),
        ("@at  2030-01-01T00:00:00Z", 10189),
        ("@At 2030-01-01T00:00:00Z", 10189),
        ("@at 2030-01-01T00:00Z", 10189),
        ("@at 2030-01-01t00:00:00z", 10189),
        ("@at", 10189),
        ("@at x", 10189),
        ("@every 1s", 0),
        ("@every 1500ms", 0),
        ("@every 1h30m", 0),
        ("@every 2562047h", 0),
        ("@every 999ms", 10189),
        ("@every 60", 10189),
        ("@every -5s", 10189),
        ("@every  5s", 10189),
        ("@every 5s ", 10189),
        ("@every 0s", 10189),
        ("@hourly", 0),
        ("0 0 0 * * *", 0),
        ("junk", 10189),
    ] {
        assert_eq!(asked(&mut stream, text, "t.1", &[]), error, "{text:?}");
    }
}

#[test]
fn time_zones() {
    let mut stream = stream();
    for (zone, cron, every) in [
        ("UTC", 0, 10189),
        ("Local", 0, 10189),
        ("Europe/Berlin", 0, 10189),
        ("CET", 0, 10189),
        ("Etc/GMT+5", 0, 10189),
        ("US/Pacific", 0, 10189),
        ("", 10223, 10223),
        ("europe/berlin", 10223, 10223),
        ("utc", 10223, 10223),
        ("local", 10223, 10223),
        ("+02:00", 10223, 10223),
        ("Nope", 10223, 10223),
        ("America/New_York ", 10223, 10223),
        ("../x", 10223, 10223),
    ] {
        let field = [("Nats-Schedule-Time-Zone", zone)];
        assert_eq!(asked(&mut stream, "@hourly", "t.1", &field), cron, "{zone:?}");
        for text in ["@every 5s", "@at 2030-01-01T00:00:00Z"] {
            assert_eq!(asked(&mut stream, text, "t.1", &field), every, "{zone:?} {text}");
        }
    }
}

#[test]
fn targets_and_sources() {
    let mut stream = stream();
    for target in ["", "t.*", "t.>", "s.own", "x.y", "t", "t..1", "t. 1"] {
        assert_eq!(asked(&mut stream, "@hourly", target, &[]), 10190, "{target:?}");
    }
    for source in ["t.*", "s.own", "t.1", "x.y", "t..1", "t"] {
        let field = [("Nats-Schedule-Source", source)];
        assert_eq!(asked(&mut stream, "@hourly", "t.1", &field), 10203, "{source:?}");
    }
    for source in ["", "s.2", "t.2"] {
        let field = [("Nats-Schedule-Source", source)];
        assert_eq!(asked(&mut stream, "@hourly", "t.1", &field), 0, "{source:?}");
    }
}

#[test]
fn life_times_and_rollups() {
    let mut stream = stream();
    for (ttl, error) in [
        ("", 0),
        ("5", 0),
        ("5s", 0),
        ("never", 0),
        ("0", 10191),
        ("x", 10191),
        ("500ms", 10191),
    ] {
        let field = [("Nats-Schedule-TTL", ttl)];
        assert_eq!(asked(&mut stream, "@hourly", "t.1", &field), error, "{ttl:?}");
    }
    for (word, asked_for, own) in [
        ("", 0, 0),
        ("sub", 0, 0),
        ("Sub", 10192, 0),
        ("all", 10192, 10192),
        ("x", 10192, 10192),
    ] {
        let field = [("Nats-Schedule-Rollup", word)];
        assert_eq!(
            asked(&mut stream, "@hourly", "t.1", &field),
            asked_for,
            "{word:?}"
        );
        assert_eq!(
            asked(&mut stream, "@hourly", "t.1", &[("Nats-Rollup", word)]),
            own,
            "{word:?}"
        );
    }
    stream.rules.ttls = false;
    let field = [("Nats-Schedule-TTL", "5")];
    assert_eq!(asked(&mut stream, "@hourly", "t.1", &field), 10166);
    stream.rules.schedules = false;
    assert_eq!(asked(&mut stream, "junk", "", &[]), 10188);
    assert_eq!(asked(&mut stream, "", "", &[]), 0);
}

#[test]
fn the_first_fault_is_told() {
    // In the order in which nats-server 2.15.1 looks.
    let order = [
        ("Nats-Schedule-Time-Zone", "Nope", 10223),
        ("pattern", "junk", 10189),
        ("Nats-Schedule-TTL", "x", 10191),
        ("Nats-Schedule-Rollup", "x", 10192),
        ("Nats-Schedule-Source", "t.*", 10203),
        ("target", "x.y", 10190),
        ("Nats-Rollup", "all", 10192),
    ];
    let mut stream = stream();
    for (i, first) in order.iter().enumerate() {
        let faults = &order[i..];
        let value = |name| faults.iter().find(|fault| fault.0 == name).map(|fault| fault.1);
        let fields: Vec<_> = faults
            .iter()
            .filter(|fault| fault.0.starts_with("Nats-"))
            .map(|fault| (fault.0, fault.1))
            .collect();
        let (pattern, target) = (
            value("pattern").unwrap_or("@hourly"),
            value("target").unwrap_or("t.1"),
        );
        assert_eq!(
            asked(&mut stream, pattern, target, &fields),
            first.2,
            "{}",
            first.0
        );
    }
}

#[test]
fn a_subject_has_one_schedule() {
    let mut stream = stream();
    assert_eq!(asked(&mut stream, "@hourly", "t.1", &[("A", "b")]), 0);
    assert_eq!(
        stream.block(1),
        "NATS/1.0\r\nNats-Schedule: @hourly\r\nNats-Schedule-Target: t.1\r\nA: b\r\nNats-Rollup: sub\r\n\r\n"
    );
    assert_eq!(asked(&mut stream, "@daily", "t.1", &[("Nats-Rollup", "Sub")]), 0);
    assert_eq!(stream.live(), [2]);
    assert!(stream.block(2).ends_with("Nats-Rollup: Sub\r\n\r\n"));
    assert_eq!(
        (stream.schedules.len(), stream.schedules.get(b"s.own")),
        (1, Some(2))
    );
    // Any other message on the subject ends it.
    assert_eq!(stream.publish("s.own", &[], ""), "ok 3");
    assert_eq!((stream.schedules.len(), stream.schedules.next_due()), (0, None));
}

#[test]
fn schedules_are_cancelled() {
    let mut stream = stream();
    assert_eq!(asked(&mut stream, "@hourly", "t.1", &[]), 0);
    stream.publish("s.plain", &[], "");
    let refused = "10212 message schedules invalid scheduler";
    for (scheduler, next) in [
        ("s.own", ""),
        ("", "purge"),
        ("s.own", "x"),
        ("s.own", "Purge"),
        ("s.*", "purge"),
        ("t.9", "purge"),
        ("s.plain", "purge"),
    ] {
        let fields = [("Nats-Scheduler", scheduler), ("Nats-Schedule-Next", next)];
        assert_eq!(stream.publish("t.9", &fields, ""), refused, "{scheduler} {next}");
    }
    let mut cancel = |scheduler| {
        let fields = [("Nats-Scheduler", scheduler), ("Nats-Schedule-Next", "purge")];
        stream.publish("t.9", &fields, "y")
    };
    assert_eq!(cancel("s.none"), "ok 3");
    assert_eq!(cancel("zz.q"), "ok 4");
    assert_eq!(cancel("s.own"), "ok 5");
    assert_eq!(cancel("s.own"), "ok 6");
    assert_eq!(stream.live(), [2, 3, 4, 5, 6]);
    stream.rules.schedules = false;
    let fields = [("Nats-Scheduler", "s.x"), ("Nats-Schedule-Next", "purge")];
    assert_eq!(
        stream.publish("t.9", &fields, ""),
        "10188 message schedules is disabled"
    );
    assert_eq!(stream.publish("t.9", &fields[..1], ""), refused);
}

#[test]
fn the_last_message_of_a_schedule_removes_it() {
    let mut stream = stream();
    assert_eq!(asked(&mut stream, "@at 2020-01-01T00:00:00Z", "t.1", &[]), 0);
    let schedule = stream.messages[&1].block.clone();
    let block = produced_block(b"s.own", &schedule, &schedule, None);
    assert_eq!(stream.publish_from(Origin::Engine, "t.1", &block, "x"), "ok 2");
    assert_eq!(stream.live(), [2]);
    assert_eq!(stream.publish_from(Origin::Engine, "t.1", &block, "x"), "ok 3");
    let block = produced_block(b"s.own", &schedule, &schedule, Some("2030-01-01T00:00:00Z"));
    assert_eq!(stream.publish_from(Origin::Engine, "t.1", &block, "x"), "ok 4");
    assert_eq!(stream.live(), [2, 3, 4]);
}

fn time(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().unix_nanos()
}

fn when(text: &str, zone: Option<&str>) -> When {
    When::parse(text.as_bytes(), zone.map(str::as_bytes)).unwrap()
}

#[test]
fn due_times() {
    let stored = time("2026-12-02T08:36:18.7698Z");
    let at = when("@at 2020-01-01T00:00:00Z", None);
    assert_eq!(at.first(stored), Some(time("2020-01-01T00:00:00Z")));
    assert_eq!(at.after(0, stored), None);

    let every = when("@every 1s", None);
    let first = every.first(stored).unwrap();
    assert_eq!(first, time("2026-12-02T08:36:20Z"));
    let next = every.after(first, time("2026-12-02T08:36:20.156Z")).unwrap();
    assert_eq!(every.shown(next), "2026-12-02T08:36:21Z");
    // Missed ones do not come.
    let next = every.after(first, time("2026-12-02T09:00:00.2Z")).unwrap();
    assert_eq!(every.shown(next), "2026-12-02T09:00:01Z");
    let every = when("@every 1500ms", None);
    assert_eq!(
        every.shown(every.after(first, first).unwrap()),
        "2026-12-02T08:36:21.5Z"
    );
    assert_eq!(when("@every 2562047h", None).first(stored), None);

    let cron = when("* * * * * *", Some("Europe/Berlin"));
    let first = cron.first(stored).unwrap();
    assert_eq!(cron.shown(first), "2026-12-02T09:36:19+01:00");
    assert_eq!(cron.after(first, first + 1), Some(first + SECOND));
    let cron = when("@hourly", None);
    assert_eq!(cron.shown(cron.first(stored).unwrap()), "2026-12-02T09:00:00Z");
    let cron = when("@hourly", Some("Europe/London"));
    assert_eq!(cron.shown(cron.first(stored).unwrap()), "2026-12-02T09:00:00Z");
}

#[test]
fn what_is_produced() {
    let schedule = block_of(&[
        ("Nats-Schedule", "@at 2020-01-01T00:00:00Z"),
        ("Nats-Schedule-Target", "t.at"),
        ("Nats-Schedule-TTL", "1m"),
        ("Nats-Schedule-Rollup", "sub"),
        ("A", "b"),
        ("Nats-Msg-Id", "id1"),
        ("Nats-TTL", "100"),
        ("Nats-Expected-Stream", "S"),
        ("Z", "z"),
        ("Nats-Rollup", "sub"),
    ]);
    let block = produced_block(b"s.at", &schedule, &schedule, None);
    let expected = block_of(&[
        ("A", "b"),
        ("Z", "z"),
        ("Nats-Scheduler", "s.at"),
        ("Nats-Schedule-Next", "purge"),
        ("Nats-TTL", "1m"),
        ("Nats-Rollup", "sub"),
    ]);
    assert_eq!(block, expected);
    assert_eq!(next_in(&block, b"s.at"), None);

    let schedule = block_of(&[("Nats-Schedule", "@every 1s"), ("Own", "1")]);
    let source = block_of(&[
        ("Src", "1"),
        ("Nats-Scheduler", "other"),
        ("Nats-Schedule-Next", "x"),
    ]);
    let block = produced_block(b"s.src", &schedule, &source, Some("2026-12-02T08:36:21Z"));
    let expected = block_of(&[
        ("Src", "1"),
        ("Nats-Scheduler", "s.src"),
        ("Nats-Schedule-Next", "2026-12-02T08:36:21Z"),
    ]);
    assert_eq!(block, expected);
    assert_eq!(next_in(&block, b"s.src"), Some(time("2026-12-02T08:36:21Z")));
    assert_eq!(next_in(&block, b"s.other"), None);
    let bare = produced_block(b"s", &schedule, b"", None);
    assert_eq!(
        bare,
        block_of(&[("Nats-Scheduler", "s"), ("Nats-Schedule-Next", "purge")])
    );
}

#[test]
fn the_queue_gives_what_is_due_in_order() {
    let mut schedules = Schedules::default();
    let every = || Some(when("@every 10s", None));
    schedules.stored(b"a", 1, 0, every());
    schedules.stored(b"b", 2, -5 * SECOND, every());
    schedules.stored(b"c", 3, 0, Some(when("@at 1970-01-01T00:00:10Z", None)));
    schedules.stored(b"d", 4, 0, None);
    assert_eq!((schedules.len(), schedules.next_due()), (3, Some(5 * SECOND)));
    assert_eq!(schedules.due(5 * SECOND - 1), None);
    let mut fired = Vec::new();
    let now = 12 * SECOND;
    while let Some(due) = schedules.due(now) {
        let (seq, next) = (due.seq, due.when.after(due.due, now));
        fired.push((String::from_utf8(due.subject.to_vec()).unwrap(), seq));
        schedules.fired(seq, next);
    }
    let expected = [("b", 2), ("a", 1), ("c", 3)].map(|(subject, seq)| (subject.to_owned(), seq));
    assert_eq!(fired, expected);
    // A one-time schedule stays, silent, until its message is gone.
    assert_eq!((schedules.len(), schedules.next_due()), (3, Some(15 * SECOND)));
    schedules.removed(3);
    schedules.removed(99);
    schedules.fired(99, Some(0));
    schedules.removed_where(|subject, seq| subject == b"b" && seq == 2);
    assert_eq!((schedules.len(), schedules.next_due()), (1, Some(20 * SECOND)));
    assert_eq!(schedules.get(b"b"), None);
    schedules.restore(b"a", 1, 0, when("@every 10s", None), Some(7));
    assert_eq!((schedules.len(), schedules.next_due()), (1, Some(7)));
    schedules.restore(b"a", 1, 0, when("@every 10s", None), None);
    assert_eq!(schedules.next_due(), Some(10 * SECOND));
}
