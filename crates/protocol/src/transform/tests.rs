//! Transforms and mappings: golden values taken from the reference server, its error texts, and properties.

use proptest::prelude::*;

use super::*;
use crate::subject::is_literal;

fn apply(source: &str, destination: &str, subject: &str) -> Option<String> {
    let transform = Transform::new(source, destination).unwrap();
    let mut out = Vec::new();
    transform
        .apply(subject.as_bytes(), &mut out)
        .then(|| String::from_utf8(out).unwrap())
}

/// Checks rows of source, destination, subject and result.
fn golden(rows: &[[&str; 4]]) {
    for &[source, destination, subject, result] in rows {
        let found = apply(source, destination, subject);
        assert_eq!(
            found.as_deref(),
            Some(result),
            "{source} -> {destination} of {subject}"
        );
    }
}

#[test]
fn tokens_move() {
    golden(&[
        ["foo", "bar", "foo", "bar"],
        ["in.*", "o.{{wildcard(1)}}", "in.abcdef", "o.abcdef"],
        ["in.*", "o.$1", "in.abcdef", "o.abcdef"],
        ["in.*", "o.$+1", "in.abcdef", "o.abcdef"],
        ["in.*.*", "o.$2.$1", "in.a.b", "o.b.a"],
        ["in.*.*", "o.$1", "in.a.b", "o.a"],
        [
            "one.*.three.*.five",
            "uno.$2.$1",
            "one.two.three.four.five",
            "uno.four.two",
        ],
        ["in.>", "o.>", "in.a.b", "o.a.b"],
        ["in.>", ">", "in.a.b.c", "a.b.c"],
        ["in.*.>", "o.>", "in.a.b.c", "o.b.c"],
        ["in.*.>", "o.$1.x.>", "in.a.b.c", "o.a.x.b.c"],
        ["", "o.>", "in.a.b", "o.in.a.b"],
        [">", ">", "in.a", "in.a"],
    ]);
    assert_eq!(apply("in.*", "o.$1", "in.a.b"), None);
    assert_eq!(apply("in.>", "o.>", "in"), None);
}

#[test]
fn tokens_that_are_no_functions_are_literals() {
    golden(&[
        ["in.*", "o.$x", "in.a", "o.$x"],
        ["in.*", "$JS.API.$1", "in.a", "$JS.API.a"],
        ["in.*", "o.$", "in.a", "o.$"],
        ["in.*", "o.{{}}", "in.a", "o.{{}}"],
        ["in.*", "o.{{wildcard(1)}}x", "in.a", "o.{{wildcard(1)}}x"],
        ["in.*", "x{{wildcard(1)}}", "in.a", "x{{wildcard(1)}}"],
        ["in.*", "o.{{wildcard(1)", "in.a", "o.{{wildcard(1)"],
        ["in.*", "o.{{split(1,.)}}", "in.a", "o.{{split(1,.)}}"],
    ]);
}

#[test]
fn names_vary_in_their_capitals_and_blanks_are_allowed() {
    golden(&[
        ["in.*", "o.{{ Wildcard ( 1 ) }}", "in.a", "o.a"],
        ["in.*", "{{\twildcard(1)}}", "in.a", "a"],
        ["in.*", "o.{{wildcard(1) }}.{{left(1,1)}}", "in.abc", "o.abc.a"],
        ["in.*", "{{splitFromLeft(1, 2)}}", "in.abc", "ab.c"],
        ["in.*", "{{SplitfromLeft(1,2)}}", "in.abc", "ab.c"],
        ["in.*", "{{splitfromleft(1,2)}}", "in.abc", "ab.c"],
    ]);
}

#[test]
fn partitions_are_those_of_the_reference() {
    golden(&[
        ["h.*", "{{partition(5,1)}}", "h.abc", "1"],
        ["p.*.*", "{{partition(10,1,2)}}", "p.foo.bar", "0"],
        ["p.*.*", "{{partition(10,1,2)}}", "p.baz.qux", "6"],
        ["h2.*", "{{partition(5)}}", "h2.abc", "2"],
        ["h.*", "{{partition(5)}}", "h.abc", "1"],
        ["in.*", "o.{{partition(5)}}", "in.abcdef", "o.0"],
        ["in.*", "o.{{partition(5,1)}}", "in.abcdef", "o.1"],
        ["in.*", "o.{{partition(5,1,1)}}", "in.abcdef", "o.2"],
        ["in.*", "o.{{partition(0)}}", "in.abcdef", "o.0"],
        ["", "{{partition(5)}}.>", "p.q", "2.p.q"],
        ["in.*.>", "o.{{partition(5,1)}}.>", "in.a.b.c", "o.0.b.c"],
        ["x", "o.{{partition(5)}}", "x", "o.0"],
    ]);
}

#[test]
fn tokens_are_cut() {
    golden(&[
        ["*", "{{splitFromLeft(1,2)}}", "abcdef", "ab.cdef"],
        ["*", "{{splitFromRight(1,2)}}", "abcdef", "abcd.ef"],
        ["*", "{{sliceFromLeft(1,2)}}", "abcde", "ab.cd.e"],
        ["*", "{{sliceFromRight(1,2)}}", "abcde", "a.bc.de"],
        ["*", "{{slicefromleft(1,3)}}", "1234567890", "123.456.789.0"],
        ["*", "{{slicefromright(1,3)}}", "1234567890", "1.234.567.890"],
        ["*", "{{slicefromleft(1,3)}}", "abcdef", "abc.def"],
        ["*", "{{slicefromright(1,3)}}", "abcdef", "abc.def"],
        ["*", "{{splitfromleft(1,3)}}", "12345", "123.45"],
        ["*", "{{left(1,3)}}", "abcdef", "abc"],
        ["*", "{{right(1,2)}}", "abcdef", "ef"],
    ]);
}

#[test]
fn a_size_out_of_range_leaves_the_token_whole() {
    for function in [
        "splitfromleft",
        "splitfromright",
        "slicefromleft",
        "slicefromright",
        "left",
        "right",
    ] {
        for size in ["0", "-2", "6", "99"] {
            let destination = format!("o.{{{{{function}(1,{size})}}}}");
            golden(&[["*", &destination, "abcdef", "o.abcdef"]]);
        }
    }
}

#[test]
fn tokens_are_split_at_delimiters() {
    golden(&[
        ["*", "{{split(1,-)}}", "-a-b--c-", "a.b.c"],
        ["*", "{{split(1,-)}}", "-abc-def--ghij-", "abc.def.ghij"],
        ["*", "{{split(1,-)}}", "abc", "abc"],
        ["*", "{{split(1,cd)}}", "abcdef", "ab.ef"],
        ["*", "{{split(1, c)}}", "abcdef", "ab.def"],
        ["*", "{{split(1,)}}", "aé\u{1f600}b", "a.é.\u{1f600}.b"],
        // The reference makes empty tokens of these.
        ["*", "o.{{split(1,-)}}", "--a--b", "o.a.b"],
        ["*", "o.{{split(1,-)}}", "---", "o.---"],
    ]);
}

#[test]
fn chance_is_bounded_and_can_be_given() {
    let transform = Transform::new("in.*", "o.{{random(3)}}.{{random(0)}}").unwrap();
    let mut out = Vec::new();
    let mut asked = Vec::new();
    assert!(transform.apply_with(b"in.a", &mut out, |n| {
        asked.push(n);
        n - 1
    }));
    assert_eq!(
        (out.as_slice(), asked.as_slice()),
        (b"o.2.0".as_slice(), [3].as_slice())
    );
    for _ in 0..100 {
        let drawn = apply("x", "{{random(3)}}", "x").unwrap();
        assert!(["0", "1", "2"].contains(&drawn.as_str()), "{drawn}");
    }
}

#[test]
fn errors_have_the_texts_of_the_reference() {
    let text = |source: &str, destination: &str| Transform::new(source, destination).unwrap_err().to_string();
    let index = "invalid mapping destination: wildcard index out of range in ";
    let few = "invalid mapping destination: not enough arguments passed to the function in ";
    let many = "invalid mapping destination: too many arguments passed to the function in ";
    let argument = "invalid mapping destination: function argument is invalid or in the wrong format in ";
    let unknown = "invalid mapping destination: unknown function in ";
    let invalid = "invalid mapping destination: invalid transform";
    let rows = [
        ("{{WILDCARD(1)}}", unknown, "{{WILDCARD(1)}}"),
        ("{{SPLITfromleft(1,2)}}", unknown, "{{SPLITfromleft(1,2)}}"),
        ("{{x}}", unknown, "{{x}}"),
        ("{{x()}}", unknown, "{{x()}}"),
        ("{{wildcard()}}", few, "{{wildcard()}}"),
        ("{{wildcard(2)}}", index, "{{wildcard(2)}}: [2]"),
        ("$2", index, "$2: [2]"),
        ("{{wildcard(a)}}", argument, "{{wildcard(a)}}"),
        (
            "{{wildcard(1)}}{{wildcard(1)}}",
            argument,
            "{{wildcard(1)}}{{wildcard(1)}}",
        ),
        ("{{wildcard(1,2)}}", many, "{{wildcard(1,2)}}"),
        ("{{partition()}}", argument, "{{partition()}}"),
        ("{{partition(x)}}", argument, "{{partition(x)}}"),
        ("{{partition(5,)}}", argument, "{{partition(5,)}}"),
        (
            "{{partition(99999999999)}}",
            argument,
            "{{partition(99999999999)}}",
        ),
        ("{{partition(5,2)}}", index, "{{partition(5,2)}}: [2]"),
        ("{{random()}}", argument, "{{random()}}"),
        ("{{random(x)}}", argument, "{{random(x)}}"),
        ("{{random(1,2)}}", few, "{{random(1,2)}}"),
        ("{{splitFromLeft(1)}}", few, "{{splitFromLeft(1)}}"),
        ("{{splitfromleft(1,2,3)}}", many, "{{splitfromleft(1,2,3)}}"),
        ("{{splitfromleft(x,2)}}", argument, "{{splitfromleft(x,2)}}"),
        ("{{splitfromleft(1,y)}}", argument, "{{splitfromleft(1,y)}}"),
        ("{{split(1)}}", few, "{{split(1)}}"),
        ("{{split(1,c )}}", argument, "{{split(1,c )}}"),
        ("{{split(1,,)}}", many, "{{split(1,,)}}"),
        (">.x", invalid, " in x"),
        (".x", invalid, ""),
        ("a b", invalid, ""),
        ("\t{{wildcard(1)}}", invalid, ""),
        // These the reference accepts, with results that make no sense.
        ("$0", index, "$0: [0]"),
        ("{{wildcard(-1)}}", index, "{{wildcard(-1)}}: [-1]"),
        ("{{partition(-3)}}", argument, "{{partition(-3)}}"),
        ("{{random(-1)}}", argument, "{{random(-1)}}"),
    ];
    for (token, reason, tail) in rows {
        assert_eq!(text("in.*", &format!("o.{token}")), format!("{reason}{tail}"));
    }
    for (source, destination) in [
        ("in.*", "o.*"),
        ("in.*", "o.>"),
        ("in.>", "o.x"),
        ("x", ">"),
        ("in.*", ""),
    ] {
        assert_eq!(
            text(source, destination),
            "invalid subject",
            "{source} -> {destination}"
        );
    }
    for source in ["in..a", ">.x", "a b"] {
        assert_eq!(text(source, "o"), format!("invalid subject {source}"));
    }
    assert_eq!(text("x", "o.{{left(1,1)}}"), format!("{index}{{{{left(1,1)}}}}"));
}

#[test]
fn imports_only_move_tokens_and_keep_them_all() {
    let text = |source, destination| ImportTransform::new(source, destination).unwrap_err().to_string();
    assert_eq!(
        text("a.*", "b.{{left(1,2)}}"),
        "invalid mapping destination: the only mapping function allowed for import transforms is {{Wildcard()}} in b.{{left(1,2)}}"
    );
    assert_eq!(
        text("a.*.*", "b.$1"),
        "invalid mapping destination: not using all of the token wildcard(s) in b.$1"
    );
    assert_eq!(
        text("a", "{{partition(5)}}").find("the only mapping function"),
        Some(29)
    );
    let import = ImportTransform::new("q.*.x.*.>", "ask.$2.{{wildcard(1)}}.>").unwrap();
    let mut out = Vec::new();
    assert!(import.apply(b"q.1.x.2.3.4", &mut out));
    assert_eq!(out, b"ask.2.1.3.4");
    out.clear();
    assert!(import.apply_filter(b"q.*.x.b.>", &mut out));
    assert_eq!(out, b"ask.b.*.>");
    out.clear();
    assert!(!import.apply_filter(b"q.>", &mut out) && !import.apply(b"q.1", &mut out));
    assert!(out.is_empty());
    let back = import.inverse().unwrap();
    assert_eq!(back.as_transform().source(), &"ask.*.*.>");
    assert!(back.apply(b"ask.2.1.3.4", &mut out));
    assert_eq!(out, b"q.1.x.2.3.4");
    assert!(ImportTransform::new("a.*", "$1.$1").unwrap().inverse().is_err());
}

/// The table's answer when chance gives `draw`.
fn mapped(table: &MappingTable, subject: &str, draw: u32) -> (Mapped, String) {
    let mut out = Vec::new();
    let result = table.apply_with(subject.as_bytes(), &mut out, |n| {
        assert_eq!(n, 100);
        draw
    });
    (result, String::from_utf8(out).unwrap())
}

fn to(subject: &str) -> (Mapped, String) {
    (Mapped::To, subject.to_owned())
}

#[test]
fn the_first_matching_mapping_decides() {
    let mut table = MappingTable::new();
    assert!(table.is_empty());
    table.insert(Mapping::new("a.*", "first.$1").unwrap());
    table.insert(Mapping::new("a.b", "second").unwrap());
    table.insert(Mapping::new("up.*.*", "o6.$2").unwrap());
    assert_eq!(mapped(&table, "a.b", 0), to("first.b"));
    assert_eq!(mapped(&table, "up.x.y", 0), to("o6.y"));
    assert_eq!(mapped(&table, "other", 0), (Mapped::Unchanged, String::new()));
    table.insert(Mapping::new("a.*", "replaced.$1").unwrap());
    assert_eq!(mapped(&table, "a.b", 0), to("replaced.b"));
    assert!(table.remove("a.*") && !table.remove("a.*"));
    assert_eq!(mapped(&table, "a.b", 0), to("second"));
    assert_eq!(
        table.iter().map(Mapping::source).collect::<Vec<_>>(),
        ["a.b", "up.*.*"]
    );
}

#[test]
fn weights_choose_and_the_remainder_stays() {
    let mut table = MappingTable::new();
    table.insert(Mapping::weighted("a.*.>", [("b.$1.>", 50), ("c.>", 20)]).unwrap());
    for (draw, result) in [
        (0, "b.x.y"),
        (49, "b.x.y"),
        (50, "c.y"),
        (69, "c.y"),
        (70, "a.x.y"),
        (99, "a.x.y"),
    ] {
        assert_eq!(mapped(&table, "a.x.y", draw), to(result), "{draw}");
    }
    table.insert(Mapping::weighted("none", []).unwrap());
    table.insert(Mapping::weighted("zero", [("x", 0)]).unwrap());
    assert_eq!(mapped(&table, "none", 99), to("none"));
    assert_eq!(mapped(&table, "zero", 0), to("zero"));
}

#[test]
fn a_remainder_is_dropped_when_the_source_is_a_destination() {
    let mut table = MappingTable::new();
    table.insert(Mapping::weighted("loss.>", [("loss.>", 60), ("b.>", 20)]).unwrap());
    assert_eq!(mapped(&table, "loss.x", 59), to("loss.x"));
    assert_eq!(mapped(&table, "loss.x", 79), to("b.x"));
    assert_eq!(mapped(&table, "loss.x", 80), (Mapped::Dropped, String::new()));
}

#[test]
fn weights_are_checked() {
    let text = |destinations: &[(&str, u32)]| {
        Mapping::weighted("a", destinations.iter().copied())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(text(&[("b", 50), ("c", 60)]), "total weight needs to be <= 100");
    assert_eq!(text(&[("b", 101)]), "individual weights need to be <= 100");
    assert_eq!(text(&[("b", 50), ("b", 10)]), "duplicate entry for \"b\"");
    assert_eq!(text(&[("b.*", 50)]), "invalid subject");
    assert_eq!(
        Mapping::new("a..b", "x").unwrap_err().to_string(),
        "invalid subject a..b"
    );
    assert!(Mapping::weighted("", []).is_err());
}

fn destination_token() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("lit".to_owned()),
        "\\$[0-3]",
        "\\{\\{(wildcard|left|right|split|splitFromLeft|SliceFromRight|slicefromleft|partition|random)\\([0-3](, ?[0-4a-])?\\)\\}\\}",
        "\\{\\{ ?[a-z(),0-9 ]{0,8}\\}\\}",
    ]
}

proptest! {
    #[test]
    fn a_literal_subject_stays_literal(
        source in prop::sample::select(vec!["*", "a.*", "*.*", "*.b.*.>", ">", "a"]),
        destination in prop::collection::vec(destination_token(), 1..4),
        subject in "[ab-]{1,5}(\\.[ab-]{1,5}){0,4}",
    ) {
        let mut destination = destination.join(".");
        if source.ends_with('>') {
            destination.push_str(".>");
        }
        if let Ok(transform) = Transform::new(source, &destination) {
            let mut out = b"kept ".to_vec();
            let matched = transform.apply(subject.as_bytes(), &mut out);
            prop_assert_eq!(matched, transform.source().matches(subject.as_bytes()));
            prop_assert_eq!(&out[..5], b"kept ");
            prop_assert_eq!(is_literal(&out[5..]), matched, "{} {}", destination, out.escape_ascii());
        }
    }

    #[test]
    fn an_inverse_undoes(subject in "[ab]{1,3}\\.[ab]{1,3}\\.[ab]{1,3}(\\.[ab]{1,3}){1,3}") {
        let import = ImportTransform::new("*.*.*.>", "x.$3.y.$1.$2.>").unwrap();
        let (mut there, mut back) = (Vec::new(), Vec::new());
        prop_assert!(import.apply(subject.as_bytes(), &mut there));
        prop_assert!(import.inverse().unwrap().apply(&there, &mut back));
        prop_assert_eq!(back, subject.as_bytes());
    }
}
