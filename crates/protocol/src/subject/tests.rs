//! Subjects against a naive model that enumerates every short literal, and the tables of the wire specification.

use std::collections::HashMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

#[test]
fn validity_follows_the_table() {
    // subject, subscribe, publish, literal
    let table: &[(&[u8], bool, bool, bool)] = &[
        (b"foo", true, true, true),
        (b"foo.bar", true, true, true),
        (b"", false, false, false),
        (b".", false, false, false),
        (b"a..b", false, false, false),
        (b".a", false, false, false),
        (b"a.", false, false, false),
        (b"a b", false, false, false),
        (b"a\tb", false, false, false),
        (b"a\rb", false, false, false),
        (b"a\nb", false, false, false),
        (b"a\x0cb", false, false, false),
        (b"a\x0bb", true, true, true),
        (b"a\x00b", true, true, true),
        (b"\xff\xfe.\x80", true, true, true),
        (b"*", true, true, false),
        (b">", true, true, false),
        (b"a.*.b", true, true, false),
        (b"a.>", true, true, false),
        (b">.a", false, true, false),
        (b"a.>.b", false, true, false),
        (b"a.>.>", false, true, false),
        (b"foo*", true, true, true),
        (b"foo>bar", true, true, true),
        (b"a.b*c", true, true, true),
        (b"a.>b", true, true, true),
        (b"a.b>.c", true, true, true),
        (b"**", true, true, true),
        (b">>", true, true, true),
    ];
    for &(subject, subscribe, publish, literal) in table {
        let name = subject.escape_ascii();
        assert_eq!(is_valid_subscription(subject), subscribe, "subscribe {name}");
        assert_eq!(is_valid_publish(subject), publish, "publish {name}");
        assert_eq!(is_literal(subject), literal, "literal {name}");
    }
}

#[test]
fn a_published_wildcard_is_a_plain_token() {
    for pattern in ["a.*", "a.>", ">", "*.*"] {
        assert!(matches(pattern.as_bytes(), b"a.*"), "{pattern}");
    }
    assert!(!matches(b"a.b", b"a.*"));
    assert!(!matches(b"a.b", b"a.>"));
    assert!(matches(b"a.*", b"a.>"));
}

#[test]
fn malformed_published_subjects_match_nothing() {
    for literal in ["a..b", ".a", "a.", "", "."] {
        for pattern in [">", "*", "*.*", "*.*.*", "a.>", "a.*", literal] {
            assert!(
                !matches(pattern.as_bytes(), literal.as_bytes()),
                "{pattern} {literal}"
            );
        }
    }
}

#[test]
fn tail_needs_at_least_one_token() {
    assert!(!matches(b"a.>", b"a"));
    assert!(matches(b"a.>", b"a.b"));
    assert!(matches(b"a.>", b"a.b.c.d"));
    assert!(!is_subset(b">", b"*.>"));
    assert!(is_subset(b"*.>", b">"));
    assert!(!overlaps(b"a", b"a.>"));
    assert!(overlaps(b"a.*", b"*.b"));
    assert!(!overlaps(b"a.*.c", b"*.b.d"));
    assert!(overlaps(b"a.*.>", b"*.b.c.d"));
    assert!(!overlaps(b"a.*.>", b"*.b"));
}

#[test]
fn token_iteration_keeps_empty_tokens() {
    let split: Vec<&[u8]> = tokens(b"a..bc.").collect();
    assert_eq!(split, [b"a".as_slice(), b"", b"bc", b""]);
    assert_eq!(tokens(b"").count(), 1);
    assert_eq!(token_count(b""), 1);
    let mut walk = tokens(b"a.b.c");
    walk.next();
    assert_eq!(walk.rest(), Some(b"b.c".as_slice()));
}

#[test]
fn the_types_validate_and_say_why_not() {
    assert_eq!("".parse::<Subject>(), Err(SubjectError::Empty));
    assert_eq!("a b".parse::<Subject>(), Err(SubjectError::Whitespace));
    assert_eq!("a..b".parse::<Subject>(), Err(SubjectError::EmptyToken));
    assert_eq!("a.*".parse::<Subject>(), Err(SubjectError::Wildcard));
    assert_eq!("a.>.b".parse::<Subject>(), Err(SubjectError::MisplacedTail));
    assert_eq!("a.>.b".parse::<SubjectFilter>(), Err(SubjectError::MisplacedTail));
    let subject = Subject::try_from("a.b").unwrap();
    assert_eq!(subject, "a.b");
    assert_eq!(format!("{subject:>5}|{subject:?}"), "  a.b|Subject(b\"a.b\")");
    assert_eq!(subject.as_str(), Ok("a.b"));
    assert_eq!(&subject[..1], b"a");
    let odd = SubjectFilter::try_from(vec![b'a', 0xff]).unwrap();
    assert!(odd.as_str().is_err());
    assert_eq!(odd.to_string(), "a\u{fffd}");
}

#[test]
fn types_can_be_looked_up_by_bytes() {
    let mut map = HashMap::new();
    map.insert(Subject::try_from(Bytes::from_static(b"a.b")).unwrap(), 7);
    assert_eq!(map.get(b"a.b".as_slice()), Some(&7));
}

#[test]
fn filters_relate() {
    let all = SubjectFilter::all();
    let narrow: SubjectFilter = "a.*".parse().unwrap();
    let literal = SubjectFilter::from("a.b".parse::<Subject>().unwrap());
    assert!(literal.is_literal() && !narrow.is_literal());
    assert!(literal.is_subset_of(&narrow) && narrow.is_subset_of(&all) && !all.is_subset_of(&narrow));
    assert!(narrow.overlaps(&literal) && narrow.matches(b"a.x"));
}

#[test]
fn queue_filters_have_one_or_two_words() {
    let entry: QueueFilter = " foo.>  *.prod ".parse().unwrap();
    assert_eq!(entry.to_string(), "foo.> *.prod");
    assert!(entry.matches_queue(b"eu.prod") && !entry.matches_queue(b"prod"));
    let plain: QueueFilter = "foo".parse().unwrap();
    assert_eq!(plain.to_string(), "foo");
    assert!(!plain.matches_queue(b"any"));
    assert_eq!("".parse::<QueueFilter>(), Err(SubjectError::Empty));
    assert_eq!("a b c".parse::<QueueFilter>(), Err(SubjectError::TooManyWords));
    assert_eq!("a b..c".parse::<QueueFilter>(), Err(SubjectError::EmptyToken));
}

/// The definition, written for being obviously right.
fn naive_matches(pattern: &[u8], literal: &[u8]) -> bool {
    fn walk(pattern: &[&[u8]], literal: &[&[u8]]) -> bool {
        match (pattern, literal) {
            ([], []) => true,
            ([b">"], [_, ..]) => true,
            ([b"*", p @ ..], [_, l @ ..]) => walk(p, l),
            ([a, p @ ..], [b, l @ ..]) => a == b && walk(p, l),
            _ => false,
        }
    }
    let split = |subject| -> Vec<&[u8]> { <[u8]>::split(subject, |&b| b == b'.').collect() };
    let literal = split(literal);
    literal.iter().all(|token| !token.is_empty()) && walk(&split(pattern), &literal)
}

/// Every literal over the alphabet {a, b, z} of up to `depth` tokens; `z` occurs in no pattern, so it stands for "any
/// other token", which makes the enumeration complete for patterns of fewer than `depth` tokens.
fn universe(depth: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut layer = vec![Vec::new()];
    for _ in 0..depth {
        let mut next = Vec::new();
        for base in &layer {
            for token in [b'a', b'b', b'z'] {
                let mut longer: Vec<u8> = base.clone();
                if !longer.is_empty() {
                    longer.push(b'.');
                }
                longer.push(token);
                next.push(longer);
            }
        }
        all.extend(next.iter().cloned());
        layer = next;
    }
    all
}

fn filter() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![Just("a"), Just("b"), Just("*")];
    (prop::collection::vec(token, 0..=3), any::<bool>()).prop_map(|(mut tokens, tail)| {
        if tail || tokens.is_empty() {
            tokens.push(">");
        }
        tokens.join(".").into_bytes()
    })
}

fn messy() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        Just(b'a'),
        Just(b'b'),
        Just(b'.'),
        Just(b'*'),
        Just(b'>'),
        Just(b' '),
        any::<u8>(),
    ];
    prop::collection::vec(byte, 0..12)
}

proptest! {
    #[test]
    fn matching_agrees_with_the_definition(pattern in filter(), literal in messy()) {
        prop_assert_eq!(matches(&pattern, &literal), naive_matches(&pattern, &literal));
    }

    #[test]
    fn set_relations_agree_with_enumeration(a in filter(), b in filter()) {
        let (mut both, mut only_a) = (false, false);
        for literal in universe(5) {
            let in_a = naive_matches(&a, &literal);
            let in_b = naive_matches(&b, &literal);
            both |= in_a && in_b;
            only_a |= in_a && !in_b;
        }
        prop_assert_eq!(overlaps(&a, &b), both);
        prop_assert_eq!(is_subset(&a, &b), !only_a);
    }

    #[test]
    fn validity_agrees_with_the_definition(subject in messy()) {
        let parts: Vec<&[u8]> = subject.split(|&b| b == b'.').collect();
        let space = |b: &u8| b" \t\r\n\x0c".contains(b);
        let publish = parts.iter().all(|token| !token.is_empty() && !token.iter().any(space));
        let tail_ok = parts.iter().rev().skip(1).all(|token| *token != b">");
        let wild = parts.iter().any(|token| matches!(*token, b"*" | b">"));
        prop_assert_eq!(is_valid_publish(&subject), publish);
        prop_assert_eq!(is_valid_subscription(&subject), publish && tail_ok);
        prop_assert_eq!(has_wildcards(&subject), wild);
        prop_assert_eq!(is_literal(&subject), publish && !wild);
        prop_assert_eq!(token_count(&subject), parts.len());
        prop_assert!(tokens(&subject).eq(parts));
    }

    #[test]
    fn any_bytes_are_answered_and_a_filter_matches_its_own_text(a in messy(), b in messy()) {
        let own = is_valid_subscription(&a);
        prop_assert!(!own || (matches(&a, &a) && overlaps(&a, &a) && is_subset(&a, &a)));
        prop_assert!(!matches(&a, &b) || is_valid_publish(&b) || b.iter().any(|&byte| is_space(byte)));
        prop_assert_eq!(overlaps(&a, &b), overlaps(&b, &a));
    }

    #[test]
    fn a_type_holds_exactly_what_its_check_accepts(subject in messy()) {
        prop_assert_eq!(Subject::try_from(subject.as_slice()).is_ok(), is_literal(&subject));
        prop_assert_eq!(SubjectFilter::try_from(subject.as_slice()).is_ok(), is_valid_subscription(&subject));
    }
}
