//! A purge by filter of many messages: in turns, and readers see all of it or nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;

use windjet_store::{
    Append, Matcher, Op, Purge, SimClock, SimDisk, StageError, Storage, Store, StoreOptions, StreamOptions,
};

#[test]
fn a_purge_of_many_messages_yields_between_turns_and_is_seen_whole() {
    const MESSAGES: u64 = 100_000;
    let options = StoreOptions {
        ballast: false,
        turn: 10_000,
        ..StoreOptions::default()
    };
    let (store, _) = Store::open(options, Arc::new(SimDisk::new(1)), Arc::new(SimClock::new(1))).unwrap();
    let stream = StreamOptions {
        name: "M".into(),
        storage: Storage::Memory,
        ..StreamOptions::default()
    };
    let mut w = store.create_stream(stream).unwrap();
    w.commit().unwrap();
    for i in 0..MESSAGES {
        let subject = format!("s.{}.{}", i % 2, i % 100);
        let append = Append {
            subject: subject.as_bytes(),
            payload: b"x",
            ..Append::default()
        };
        w.stage(Op::Append(append)).unwrap();
        if i % 1000 == 0 {
            w.submit();
            w.commit().unwrap();
        }
    }
    w.submit();
    w.commit().unwrap();
    let reader = w.reader();
    let below = MESSAGES - 9;
    let ticket = w
        .stage(Op::Purge(Purge {
            filter: b"s.1.*",
            below,
        }))
        .unwrap();
    w.submit();
    let mut turns = 1;
    let before = reader.state();
    while w.commit().unwrap() < ticket.op {
        turns += 1;
        assert_eq!(
            reader.state(),
            before,
            "readers see nothing of it before it is whole"
        );
        assert_eq!(
            w.stage(Op::Append(Append {
                subject: b"late",
                ..Append::default()
            })),
            Err(StageError::Barrier)
        );
    }
    assert!(turns >= 6, "{MESSAGES} messages in {turns} turns");
    let after = reader.state();
    // Five of the odd ones stand above the bound.
    assert_eq!(after.messages, MESSAGES / 2 + 5);
    assert_eq!((after.first_seq, after.last_seq), (1, MESSAGES));
    assert_eq!(reader.count(&mut Matcher::new(["s.1.*"]), 0), 5);
    assert_eq!(
        reader.next_match(&mut Matcher::new(["s.1.*"]), 0),
        Some(MESSAGES - 8)
    );
    assert_eq!(reader.last_by_subject(b"s.1.1"), None);
    assert_eq!(after.subjects, 55);
    assert_eq!(w.messages(), after.messages);
}
