//! The fingerprint of a configuration: `sha256:<hex>` over its content.
//!
//! It is the number that nats-server 2.15 prints with `-t` and shows as `config_digest`, so that two
//! servers, or a server and a file, can be compared. What is hashed is the parsed content as JSON in Go's
//! spelling: keys sorted bytewise, no blanks, `<`, `>` and `&` escaped, one newline at the end. Comments,
//! order, quoting and the way a file is split into includes make no difference.

use sha2::{Digest as _, Sha256};

use super::value::{Map, Value};

/// The digest of a whole configuration.
pub(super) fn digest(map: &Map) -> String {
    let mut json = String::new();
    write_map(&mut json, map);
    json.push('\n');
    let hash = Sha256::digest(json.as_bytes());
    let mut out = String::with_capacity(7 + 64);
    out.push_str("sha256:");
    out.push_str(&data_encoding::HEXLOWER.encode(&hash));
    out
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Map(map) => write_map(out, map),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, &item.value);
            }
            out.push(']');
        }
        Value::String(text) | Value::DateTime(text) => write_string(out, text),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Integer(number) => out.push_str(&number.to_string()),
        Value::Float(number) => write_float(out, *number),
    }
}

fn write_map(out: &mut String, map: &Map) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (i, (key, node)) in entries.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write_value(out, &node.value);
    }
    out.push('}');
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Shortest digits; exponents for very small and very large numbers only.
fn write_float(out: &mut String, number: f64) {
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        out.push_str(&if size < 1.0 { text } else { text.replace('e', "e+") });
    } else {
        out.push_str(&number.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment::Environment;
    use super::super::source::parse;
    use super::*;

    fn digest_of(text: &str) -> String {
        digest(&parse(text.as_bytes(), "", &Environment::isolated()).unwrap())
    }

    /// Recorded from `nats-server -t` 2.15.1.
    #[test]
    fn digests_equal_those_of_nats_server() {
        assert_eq!(
            digest_of("{\"port\": 4222}"),
            "sha256:797533ebd0dfba7d34a0f9337ecf147e442871f48ddfd07ed751575a5737267e"
        );
        assert_eq!(
            digest_of("server_tags: [1k]"),
            "sha256:f811c8c20d87b6e8d75f755ca21959d76c12736d8698bd4b6285d0ff51d42313"
        );
    }

    #[test]
    fn spelling_and_order_of_the_file_do_not_matter() {
        assert_eq!(
            digest_of("a { y: 1, x: [ 'q' ] } # note\nb = true"),
            digest_of("{ \"b\": yes, \"a\": { \"x\": [\"q\"], \"y\": 1 } }")
        );
    }

    #[test]
    fn floats_and_text_are_spelled_as_in_go() {
        for (number, text) in [
            (1.5, "1.5"),
            (2.0, "2"),
            (0.000_001, "0.000001"),
            (0.000_000_1, "1e-7"),
            (1e21, "1e+21"),
            (-0.5, "-0.5"),
        ] {
            let mut out = String::new();
            write_float(&mut out, number);
            assert_eq!(out, text);
        }
        let mut out = String::new();
        write_string(&mut out, "<a&b>\u{1}\u{2028}\u{7f}é\t");
        assert_eq!(out, "\"\\u003ca\\u0026b\\u003e\\u0001\\u2028\u{7f}é\\t\"");
    }
}
