//! The grammar: every kind of value, separator, comment, include and variable, and every syntax error.

use super::super::value::{Node, Value};
use super::super::{Environment, source};
use super::*;

fn tree(text: &str) -> Result<Value, String> {
    tree_with(text, &Environment::isolated())
}

fn tree_with(text: &str, environment: &Environment<'_>) -> Result<Value, String> {
    source::parse(text.as_bytes(), "x.conf", environment)
        .map(Value::Map)
        .map_err(|error| error.to_string())
}

/// Every pair of texts means the same.
#[test]
fn spellings_of_the_same_content_are_equal() {
    for (left, right) in [
        ("a: 1", "a = 1"),
        ("a: 1", "a 1"),
        ("a: 1", "\"a\": 1"),
        ("a: 1", "'a' 1"),
        ("a: 1\nb: 2", "a: 1, b: 2"),
        ("a: 1\nb: 2", "a: 1; b: 2;"),
        ("a: 1\r\nb: 2\r\n", "a: 1\nb: 2"),
        ("a: 1\nb: 2", "{\"a\": 1, \"b\": 2}"),
        ("a: 1", "{ { a: 1 } }"),
        ("a: 1", "a: 1 }"),
        ("a: 1", "a: 1\n}"),
        ("a: 1", "# note\na: 1 # note\n// note"),
        ("a: 1", "a: 1 // note"),
        ("a { b: 1 }", "a: { b: 1 }"),
        ("a { b: 1 }", "a = { b = 1 }"),
        ("a { b: 1 }", "a\n{\nb\n1\n}"),
        ("a { b: 1 }", "a { b:\n 1 }"),
        ("a { b: 1, c: 2 }", "a { b: 1; c: 2; }"),
        ("a { b: 1, c: 2 }", "a { b: 1 # note\n c: 2 // note\n}"),
        ("a { b: 1 }", "a { # note\n // note\n b: 1 }"),
        ("a\n1", "a: 1"),
        ("a: [x, y]", "a: [x\ny]"),
        ("a: [x, y]", "a: [\n x,\n y,\n]"),
        ("a: [x, y]", "a = [ # note\n x // note\n y ]"),
        ("a: [{b: 1}, {b: 2}]", "a: [\n {b: 1}\n {b: 2}\n]"),
        ("a: [[x], []]", "a [ [x]\n [] ]"),
        ("a: 1\na: 2", "a: 2"),
        ("a: yes", "a: TRUE"),
        ("a: off", "a: False"),
        ("a: 'x'", "a: \"x\""),
        ("a: x", "a: \"x\""),
        ("a: foo.>", "a: 'foo.>'"),
        ("a: nats://h:4222", "a: 'nats://h:4222'"),
        ("a: 127.0.0.1:4222", "a: '127.0.0.1:4222'"),
        ("a: $2a$11$x.y/z", "a: '$2a$11$x.y/z'"),
        ("a: 1k", "a: 1000"),
        ("a: 1kb", "a: 1024"),
        ("a: (\nx\n)\n", "a: \"\nx\n\""),
        ("a: 2m", "a: 2000000"),
        ("a: 30s", "a: \"30s\""),
        ("x: 1, a { y: 2, b: $x, c: $y }", "x: 1, a { y: 2, b: 1, c: 2 }"),
        ("x: {b: 1}, a: $x", "x: {b: 1}, a: {b: 1}"),
        ("x: 1, a: [ $x, $x ]", "x: 1, a: [ 1, 1 ]"),
        ("x: 1, a { x: 2, b: $x }", "x: 1, a { x: 2, b: 2 }"),
    ] {
        let (left_tree, right_tree) = (tree(left).unwrap(), tree(right).unwrap());
        assert_eq!(left_tree.to_string(), right_tree.to_string(), "{left} | {right}");
    }
}

#[test]
fn values_keep_their_types() {
    for (text, type_name) in [
        ("a: 1", "int64"),
        ("a: -1", "int64"),
        ("a: 1.5", "float64"),
        ("a: true", "bool"),
        ("a: \"true\"", "string"),
        ("a: 2016-05-04T18:53:41Z", "time.Time"),
        ("a: []", "[]interface {}"),
        ("a: {}", "map[string]interface {}"),
        ("a: 1h30m", "string"),
        ("a:", "string"),
    ] {
        let Value::Map(map) = tree(text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(map.get("a").unwrap().value.type_name(), type_name, "{text}");
    }
}

#[test]
fn maps_keep_the_order_and_the_case_of_their_keys() {
    let Value::Map(map) = tree("B: 1, a: 2, A: 3, B: 4").unwrap() else {
        panic!()
    };
    let entries: Vec<_> = map
        .iter()
        .map(|(key, node)| format!("{key}={}", node.value))
        .collect();
    assert_eq!(entries, ["B=4", "a=2", "A=3"]);
}

#[test]
fn positions_are_those_of_keys_and_of_elements() {
    let Value::Map(map) = tree("one: 1\n two { three: [\n  'x'\n ] }").unwrap() else {
        panic!()
    };
    let place = |node: &Node| node.position.to_string();
    assert_eq!(place(map.get("one").unwrap()), "x.conf:1:0");
    let two = map.get("two").unwrap();
    assert_eq!(place(two), "x.conf:2:2");
    let Value::Map(inner) = &two.value else { panic!() };
    let three = inner.get("three").unwrap();
    assert_eq!(place(three), "x.conf:2:8");
    let Value::Array(items) = &three.value else {
        panic!()
    };
    assert_eq!(place(&items[0]), "x.conf:3:4");
}

#[test]
fn syntax_errors_have_the_known_texts() {
    let top = "Expected a top-level value to end with a new line, comment or EOF, but got";
    let array = "Expected an array value terminator \",\" or an array terminator \"]\", but got";
    let map = "Expected a map value terminator \",\" or a map terminator \"}\", but got";
    for (text, error) in [
        ("port 4222 debug true", format!("Parse error on line 1: '{top} 'd' instead.'")),
        ("max_payload: 1 MB", format!("Parse error on line 1: '{top} 'M' instead.'")),
        ("a: \"x\" y", format!("Parse error on line 1: '{top} 'y' instead.'")),
        ("a: [x y]", format!("Parse error on line 1: '{array} 'y' instead.'")),
        ("a: [x", format!("Parse error on line 1: '{array} '\0' instead.'")),
        ("a { b: \"x\" y }", format!("Parse error on line 1: '{map} 'y' instead.'")),
        ("a { b: \"x\"", format!("Parse error on line 1: '{map} '\0' instead.'")),
        ("{ a: 1", "Parse error on line 1: 'Expected a block-level value to end with a new line, comment or EOF, but got '\0' instead.'".to_owned()),
        ("{ { a: 1 } b: 2 }", "Parse error on line 1: 'Expected a block-level to end with a '}', but got 'b' instead.'".to_owned()),
        ("a:\n1", "Parse error on line 2: 'Expected value but found new line'".to_owned()),
        ("\n\n=1", "Parse error on line 3: 'Unexpected key separator '=''".to_owned()),
        ("a { :1 }", "Parse error on line 1: 'Unexpected key separator ':'.'".to_owned()),
        ("a { ] }", "Parse error on line 1: 'Unexpected array end ']' processing map.'".to_owned()),
        ("a {", "Parse error on line 1: 'Unexpected EOF processing map.'".to_owned()),
        ("a { b", "Parse error on line 1: 'Unexpected EOF processing map key.'".to_owned()),
        ("a { 'b", "Parse error on line 1: 'Unexpected EOF processing quoted map key.'".to_owned()),
        ("a { \"b", "Parse error on line 1: 'Unexpected EOF processing double quoted map key.'".to_owned()),
        ("a { b: , }", "Parse error on line 1: 'Unexpected map value terminator \",\".'".to_owned()),
        ("a: [x,,y]", "Parse error on line 1: 'Unexpected array value terminator ','.'".to_owned()),
        ("a: [/x]", "Parse error on line 1: 'Unexpected array value terminator ','.'".to_owned()),
        ("/", "Parse error on line 1: 'Unexpected EOF.'".to_owned()),
        ("a: \"x", "Parse error on line 1: 'Unexpected EOF.'".to_owned()),
        ("a: .5", "Parse error on line 1: 'Floats must start with a digit'".to_owned()),
        ("a: 12-3", "Parse error on line 1: 'All ISO8601 dates must be in full Zulu form.'".to_owned()),
        ("a: 99999999999999999999", "integer '99999999999999999999' is out of the range".to_owned()),
        ("port", "config is invalid (x.conf:1:4)".to_owned()),
        ("a: 1\nport", "config is invalid (x.conf:2:5)".to_owned()),
        ("[1]", "config is invalid (x.conf:1:3)".to_owned()),
        ("include [", "Parse error on line 1: 'Expected include value but found start of an array'".to_owned()),
        ("include {", "Parse error on line 1: 'Expected include value but found start of a map'".to_owned()),
        ("include (", "Parse error on line 1: 'Expected include value but found start of a block'".to_owned()),
        ("include 1", "Parse error on line 1: 'Expected include value but found start of a number'".to_owned()),
        ("include \\", "Parse error on line 1: 'Expected include value but found escape sequence'".to_owned()),
        ("include \n", "Parse error on line 2: 'Expected include value but found new line'".to_owned()),
        ("include 'x", "Parse error on line 1: 'Unexpected EOF in quoted include'".to_owned()),
        ("include \"x", "Parse error on line 1: 'Unexpected EOF in double quoted include'".to_owned()),
        ("a: 1\nb: $NO", "variable reference for 'NO' on line 2 can not be found".to_owned()),
        ("a: $", "variable reference for '' on line 1 can not be found".to_owned()),
        // A variable is not seen before it is defined, nor from outside of its map.
        ("b: $a, a: 1", "variable reference for 'a' on line 1 can not be found".to_owned()),
        ("m { a: 1 }, b: $a", "variable reference for 'a' on line 1 can not be found".to_owned()),
    ] {
        assert_eq!(tree(text).unwrap_err(), error, "{text}");
    }
}

/// nats-server moves such a key to the enclosing map or drops it without a word.
#[test]
fn what_nats_server_guesses_is_an_error_here() {
    for (text, error) in [
        (
            "a { b }",
            "Parse error on line 1: 'Expected value but found end of the map'",
        ),
        ("a: 1kbb", "integer '1kbb' has an unknown unit"),
        ("a: 10e", "integer '10e' is out of the range"),
        (
            "a: \"\\xff\"",
            "Parse error on line 1: 'String with \\x escapes is not valid UTF-8'",
        ),
    ] {
        assert_eq!(tree(text).unwrap_err(), error, "{text}");
    }
    // nats-server makes the bracket a part of the number.
    assert_eq!(tree("a: [1]").unwrap().to_string(), "map[a:[1]]");
}

#[test]
fn variables_come_from_enclosing_maps_and_then_from_the_environment() {
    let environment = Environment::isolated().with_variables(|name| {
        Some(
            match name {
                "NUMBER" => "4222",
                "SIZE" => "1k",
                "LIST" => "[x, y]",
                "CHAIN" => "$NUMBER",
                "QUOTED" => "\"4222\"",
                "LOOP" => "$LOOP",
                "BROKEN" => "[x y]",
                "EMPTY" => "",
                _ => return None,
            }
            .to_owned(),
        )
    });
    for (name, type_name, shown) in [
        ("NUMBER", "int64", "4222"),
        ("SIZE", "int64", "1000"),
        ("LIST", "[]interface {}", "[x y]"),
        ("CHAIN", "int64", "4222"),
        ("QUOTED", "string", "4222"),
        ("EMPTY", "string", ""),
    ] {
        let Value::Map(map) = tree_with(&format!("a: ${name}"), &environment).unwrap() else {
            panic!()
        };
        let value = &map.get("a").unwrap().value;
        assert_eq!(
            (value.type_name(), value.to_string().as_str()),
            (type_name, shown)
        );
    }
    assert_eq!(
        tree_with("NUMBER: 1, a: $NUMBER", &environment)
            .unwrap()
            .to_string(),
        "map[NUMBER:1 a:1]"
    );
    assert_eq!(
        tree_with("\na: $LOOP", &environment).unwrap_err(),
        "variable reference for 'LOOP' on line 2 could not be parsed: \
         variable reference for 'LOOP' on line 1 could not be parsed: variable reference cycle for 'LOOP'"
    );
    assert!(tree_with("a: $BROKEN", &environment).unwrap_err().starts_with(
        "variable reference for 'BROKEN' on line 1 could not be parsed: Parse error on line 1:"
    ));
}

#[test]
fn includes_are_merged_where_they_stand() {
    let parsed = parse_files(
        "conf/main.conf",
        &[
            (
                "conf/main.conf",
                "port: 1\ninclude ./net.conf\nauthorization { include 'users/all.conf' }",
            ),
            ("conf/net.conf", "port: 4333, host: $H2\nH2: 'later'"),
            ("conf/users/all.conf", "include \"../one.conf\"\ntimeout: 1"),
            ("conf/one.conf", "user: a, password: b"),
        ],
    );
    // Variables of an included file are its own; this one is used before it is defined.
    assert_eq!(
        parsed.unwrap_err().to_string(),
        "error parsing include file './net.conf', variable reference for 'H2' on line 1 can not be found"
    );
    let options = parse_files(
        "conf/main.conf",
        &[
            (
                "conf/main.conf",
                "port: 1\ninclude ./net.conf\nauthorization { include 'users/all.conf' }",
            ),
            ("conf/net.conf", "H2: later, port: 4333, host: $H2"),
            ("conf/users/all.conf", "include \"../one.conf\"\ntimeout: 1"),
            ("conf/one.conf", "user: a, password: b"),
        ],
    )
    .unwrap()
    .options;
    let listen = options.listen.unwrap();
    assert_eq!((listen.host.as_str(), listen.port), ("later", Some(4333)));
    assert_eq!(options.auth.user, Some(("a".to_owned(), "b".to_owned())));
    assert_eq!(options.auth.timeout, Some(std::time::Duration::from_secs(1)));
}

#[test]
fn include_errors_name_the_file() {
    for (files, error) in [
        (
            &[("x.conf", "include './nope.conf'")][..],
            "error parsing include file './nope.conf', open nope.conf: no such file or directory",
        ),
        (
            &[("x.conf", "include y.conf"), ("y.conf", "\na: [x y]")][..],
            "error parsing include file 'y.conf', Parse error on line 2: 'Expected an array value terminator \
             \",\" or an array terminator \"]\", but got 'y' instead.'",
        ),
        (
            &[("x.conf", "include y.conf"), ("y.conf", "\n foo: 1")][..],
            "y.conf:2:2: unknown field \"foo\"",
        ),
        (
            &[("x.conf", "include y.conf"), ("y.conf", "include './x.conf'")][..],
            "error parsing include file 'y.conf', include cycle through 'x.conf'",
        ),
        (
            &[("x.conf", "include './x.conf'")][..],
            "include cycle through 'x.conf'",
        ),
    ] {
        assert_eq!(parse_files("x.conf", files).unwrap_err().to_string(), error);
    }
}

#[test]
fn a_missing_file_is_reported_as_by_open() {
    let error = parse_files("/nope/x.conf", &[]).unwrap_err();
    assert_eq!(error.to_string(), "open /nope/x.conf: no such file or directory");
}
