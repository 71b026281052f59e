//! Text that tries to exhaust the parser.

use super::super::Environment;
use super::*;

#[test]
fn deep_nesting_is_refused_before_the_stack_ends() {
    let deep = "config is too large: maps and arrays nested deeper than 128";
    assert_eq!(bad(&format!("a: {}", "[".repeat(1_000_000))), deep);
    assert_eq!(bad(&"a {".repeat(1_000_000)), deep);
    // Braces outside of maps nest nothing.
    assert!(parse(&"{".repeat(1_000_000)).is_ok());
}

#[test]
fn variables_do_not_multiply_without_bound() {
    let mut text = "v0: [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let one = format!("$v{} ", level - 1);
        text.push_str(&format!("v{level}: [{}]\n", vec![one; 10].join(",")));
    }
    assert_eq!(
        bad(&text),
        "config is too large: more than 32 MiB with all includes and variables"
    );
}

#[test]
fn variables_do_not_nest_without_bound() {
    let mut text = "v0: [x]\n".to_owned();
    for level in 1..200 {
        text.push_str(&format!("v{level}: [ $v{} ]\n", level - 1));
    }
    assert_eq!(
        bad(&text),
        "config is too large: maps and arrays nested deeper than 128"
    );
}

#[test]
fn environment_variables_do_not_chain_without_bound() {
    let environment = Environment::isolated().with_variables(|name| {
        let number: usize = name.strip_prefix('V')?.parse().ok()?;
        Some(format!("$V{}", number + 1))
    });
    let error = parse_str("a: $V0", &environment).unwrap_err().to_string();
    assert!(error.contains("variable reference cycle"), "{error}");
}

#[test]
fn includes_do_not_multiply_without_bound() {
    let environment = Environment::isolated().with_files(|path| {
        let name = path.to_str().unwrap_or_default();
        let level: usize = name.strip_prefix('f').and_then(|n| n.parse().ok()).unwrap_or(0);
        Ok(format!("include f{}\n", level + 1).repeat(4).into_bytes())
    });
    let error = parse_file("f0", &environment).unwrap_err().to_string();
    assert!(
        error.ends_with("more than 1000 files, or includes deeper than 32"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_place() {
    let environment = Environment::isolated().with_files(|_| Ok(b"a: 1\nb: \xff".to_vec()));
    assert_eq!(
        parse_file("x.conf", &environment).unwrap_err().to_string(),
        "config is not valid UTF-8 (x.conf:2:4)"
    );
}

#[test]
fn nul_bytes_end_nothing_quietly() {
    for text in [
        "a: 1\n\0",
        "a\0: 1",
        "a { b: x\0 }",
        "a: [\0]",
        "a: \"\0\"",
        "# note \0 rest\nfoo: 1",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}
