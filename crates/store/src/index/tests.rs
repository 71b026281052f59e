//! The index against a vector that is scanned.

use proptest::prelude::*;

use super::*;
use crate::options::Storage;
use crate::record::{Effect, Kind, Parts, Record, SeqRange, put_effect};
use crate::segment::FooterPart;

#[derive(Debug, Clone)]
enum Step {
    Append { subject: usize, size: usize },
    Skip,
    Remove(u64, u64),
    Purge { filter: usize, below: u64 },
}

const SUBJECTS: [&str; 6] = ["a.1", "a.2", "b.1", "b.2.x", "c", "a-.1"];
const FILTERS: [&str; 7] = ["", "a.*", "*.1", "b.>", "c", "zzz", "*.2.x"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..SUBJECTS.len(), 0usize..400).prop_map(|(subject, size)| Step::Append { subject, size }),
        1 => Just(Step::Skip),
        3 => (0u64..400, 0u64..3).prop_map(|(a, n)| Step::Remove(a, a + n)),
        1 => (0..FILTERS.len(), 0u64..400).prop_map(|(filter, below)| Step::Purge { filter, below }),
    ]
}

fn record(kind: Kind, seq: u64, subject: &str, effects: &[u8], payload: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let payload = vec![0; payload];
    Parts {
        kind,
        remaining: 0,
        incarnation: 1,
        seq,
        time: seq as i64,
        subject: subject.as_bytes(),
        effects,
        headers: &[],
        payload: &payload,
    }
    .encode(&mut out);
    out
}

fn matches(filter: &str, subject: &str) -> bool {
    filter.is_empty() || filter_matches(filter.as_bytes(), subject.as_bytes())
}

fn check(
    index: &mut StreamIndex,
    model: &[(u64, &'static str, u32)],
    last: u64,
) -> Result<(), TestCaseError> {
    let state = index.state();
    prop_assert_eq!(state.messages, model.len() as u64);
    prop_assert_eq!(state.bytes, model.iter().map(|m| u64::from(m.2)).sum::<u64>());
    prop_assert_eq!(state.last_seq, last);
    prop_assert_eq!(state.first_seq, model.first().map_or(last + 1, |m| m.0));
    for subject in SUBJECTS {
        let of: Vec<u64> = model.iter().filter(|m| m.1 == subject).map(|m| m.0).collect();
        let want = of.first().map(|first| SubjectState {
            count: of.len() as u64,
            first: *first,
            last: of[of.len() - 1],
        });
        prop_assert_eq!(index.subject(subject.as_bytes()), want);
    }
    for filter in FILTERS {
        let mut matcher = if filter.is_empty() {
            Matcher::new([""; 0])
        } else {
            Matcher::new([filter])
        };
        let set = matcher.resolve(&index.subjects).clone();
        for from in [0, last / 3, last / 2, last] {
            let of: Vec<u64> = model
                .iter()
                .filter(|m| m.0 >= from && matches(filter, m.1))
                .map(|m| m.0)
                .collect();
            prop_assert_eq!(index.next_match(&set, from), of.first().copied());
            prop_assert_eq!(
                index.count(&set, from),
                of.len() as u64,
                "{} from {}",
                filter,
                from
            );
            let last = from + last / 4;
            let inside = model.iter().filter(|m| (from..=last).contains(&m.0)).count() as u64;
            prop_assert_eq!(index.count_range(from, last), inside);
            let prev = model
                .iter()
                .rev()
                .find(|m| m.0 <= from && matches(filter, m.1))
                .map(|m| m.0);
            prop_assert_eq!(index.prev_match(&set, from), prev);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_index_answers_like_a_scanned_list(steps in proptest::collection::vec(step(), 1..500)) {
        let mut index = StreamIndex::new(1, StreamOptions::default());
        let mut model: Vec<(u64, &'static str, u32)> = Vec::new();
        let mut last = 0;
        let mut log = Vec::new();
        for s in steps {
            let mut e = Vec::new();
            let bytes = match s {
                Step::Append { subject, size } => {
                    last += 1;
                    model.push((last, SUBJECTS[subject], wire_size(Storage::File, SUBJECTS[subject].len(), 0, size)));
                    record(Kind::Message, last, SUBJECTS[subject], &[], size)
                }
                Step::Skip => {
                    last += 1;
                    record(Kind::Skip, last, "", &[], 0)
                }
                Step::Remove(first, end) => {
                    let end = end.min(last);
                    model.retain(|m| !(first..=end).contains(&m.0));
                    put_effect(&mut e, &Effect::Remove(SeqRange { first, last: end }));
                    record(Kind::Effects, 0, "", &e, 0)
                }
                Step::Purge { filter, below } => {
                    let below = below.min(last + 1);
                    model.retain(|m| m.0 >= below || !matches(FILTERS[filter], m.1));
                    put_effect(&mut e, &Effect::Purge { filter: FILTERS[filter].as_bytes(), below });
                    record(Kind::Effects, 0, "", &e, 0)
                }
            };
            let r = Record::parse_checked(&bytes).unwrap();
            let mut purging = Purging::new(&index, 1, &bytes);
            while !purging.turn(&index, 3) {}
            index.prepared = purging.into_prepared();
            prop_assert_eq!(index.apply(&r, 100).missing, None);
            log.push(bytes);
        }
        check(&mut index, &model, last)?;
        // Replaying a history over its own end changes nothing.
        for bytes in &log {
            index.apply(&Record::parse(bytes).unwrap(), 100);
        }
        check(&mut index, &model, last)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn an_index_from_footers_answers_like_one_from_records(
        lens in proptest::collection::vec(1usize..200, 1..5),
        gaps in proptest::collection::vec(any::<bool>(), 1..50),
        dead in proptest::collection::vec(any::<bool>(), 1..90),
    ) {
        let (mut built, mut grown) = (StreamIndex::new(1, StreamOptions::default()), StreamIndex::new(1, StreamOptions::default()));
        let mut model = Vec::new();
        let mut seq = 0u64;
        let is_live = |seq: u64| !dead[seq as usize % dead.len()];
        for (i, len) in lens.iter().enumerate() {
            let mut part = FooterPart::new(1);
            for n in 0..*len {
                seq += 1 + u64::from(i % 2 == 1 && gaps[n % gaps.len()]);
                let subject = SUBJECTS[(seq as usize * 7 + i) % SUBJECTS.len()];
                let size = seq as usize % 5;
                let bytes = record(Kind::Message, seq, subject, &[], size);
                part.add(&Record::parse(&bytes).unwrap());
                if is_live(seq) {
                    let size = wire_size(Storage::File, subject.len(), 0, size);
                    grown.push(seq, subject.as_bytes(), size);
                    model.push((seq, subject, size));
                }
            }
            let mut adding = Adding::new(part);
            let mut at = 0;
            while let Some(first) = adding.part.seqs.get(at) {
                let n = adding.part.seqs.below(at, (locate(first).0 + 1) * SPAN as u64);
                adding.span(&mut built, at..at + n, dead.iter().all(|d| !d), is_live);
                at += n;
            }
            adding.finish(&mut built);
        }
        for index in [&mut built, &mut grown] {
            index.last_seq = seq;
            index.first_seq = index.next_live(0).unwrap_or(seq + 1);
            check(index, &model, seq)?;
        }
    }
}

#[test]
fn a_prepared_purge_counts_what_came_before_it_in_its_chunk() {
    let mut index = StreamIndex::new(1, StreamOptions::default());
    for seq in 1..=200u64 {
        let subject = SUBJECTS[seq as usize % SUBJECTS.len()];
        index.apply(
            &Record::parse(&record(Kind::Message, seq, subject, &[], 1)).unwrap(),
            1,
        );
    }
    let mut e = Vec::new();
    // As many as are added, so that no count tells that something changed.
    put_effect(&mut e, &Effect::Remove(SeqRange::one(198)));
    let mut chunk = record(Kind::Message, 201, "a.1", &e, 1);
    e.clear();
    put_effect(&mut e, &Effect::Remove(SeqRange { first: 20, last: 30 }));
    chunk.extend(record(Kind::Effects, 0, "", &e, 0));
    e.clear();
    put_effect(
        &mut e,
        &Effect::Purge {
            filter: b"a.*",
            below: 250,
        },
    );
    chunk.extend(record(Kind::Effects, 0, "", &e, 0));
    let mut purging = Purging::new(&index, 1, &chunk);
    let mut turns = 1;
    while !purging.turn(&index, 50) {
        turns += 1;
    }
    assert!(turns > 2, "{turns}");
    assert_eq!(index.messages, 200, "nothing is gone before the step itself");
    index.prepared = purging.into_prepared();
    let mut at = 0;
    while let Some(r) = chunk.get(at..).and_then(Record::parse) {
        index.apply(&r, 1);
        at += r.len();
    }
    let model: Vec<_> = (1..=201u64)
        .filter(|seq| !(20..=30).contains(seq) && ![198, 201].contains(seq))
        .map(|seq| (seq, SUBJECTS[seq as usize % SUBJECTS.len()], 31))
        .filter(|m| !matches("a.*", m.1))
        .map(|(seq, subject, _)| (seq, subject, 30 + subject.len() as u32 + 1))
        .collect();
    check(&mut index, &model, 201).unwrap();
}

#[test]
fn a_span_that_died_and_began_anew_before_a_prepared_purge_is_not_taken_for_the_old_one() {
    let mut index = StreamIndex::new(1, StreamOptions::default());
    index.apply(
        &Record::parse(&record(Kind::Message, 1, "a.1", &[], 1)).unwrap(),
        1,
    );
    let mut e = Vec::new();
    put_effect(&mut e, &Effect::Remove(SeqRange::one(1)));
    let mut chunk = record(Kind::Effects, 0, "", &e, 0);
    chunk.extend(record(Kind::Message, 2, "c", &[], 1));
    e.clear();
    put_effect(
        &mut e,
        &Effect::Purge {
            filter: b"a.*",
            below: 3,
        },
    );
    chunk.extend(record(Kind::Effects, 0, "", &e, 0));
    let mut purging = Purging::new(&index, 1, &chunk);
    while !purging.turn(&index, 1) {}
    index.prepared = purging.into_prepared();
    let mut at = 0;
    while let Some(r) = chunk.get(at..).and_then(Record::parse) {
        index.apply(&r, 1);
        at += r.len();
    }
    check(&mut index, &[(2, "c", 32)], 2).unwrap();
}

#[test]
fn a_gap_in_the_sequences_is_told() {
    let mut index = StreamIndex::new(1, StreamOptions::default());
    index.apply(&Record::parse(&record(Kind::Message, 1, "a", &[], 1)).unwrap(), 1);
    let applied = index.apply(&Record::parse(&record(Kind::Message, 5, "a", &[], 1)).unwrap(), 1);
    assert_eq!(applied.missing, Some(SeqRange { first: 2, last: 4 }));
    assert_eq!(index.state().deleted, 3);
}

#[test]
fn a_removed_message_of_a_renumbered_subject_is_still_found() {
    let mut index = StreamIndex::new(1, StreamOptions::default());
    for seq in 1..=3000u64 {
        index.push(seq, format!("s.{seq}").as_bytes(), 10);
        index.last_seq = seq;
    }
    for seq in 1..=2900 {
        index.remove(seq);
    }
    assert_eq!(
        index.subject(b"s.2950"),
        Some(SubjectState {
            count: 1,
            first: 2950,
            last: 2950
        })
    );
    assert_eq!(index.subject(b"s.2800"), None);
    assert_eq!(index.state().subjects, 100);
    assert!(index.subjects.len() < 3000, "dead subjects were dropped");
}
