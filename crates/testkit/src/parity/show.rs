//! How operations and documents look in a transcript.

use crate::json::Json;
use crate::wire::{Message, Op};

use super::escape::text_of;
use super::normal::Normal;

/// A document up to this length is shown on one line.
const SHORT: usize = 110;

/// An operation in full, normalised, as lines.
pub(super) fn op(normal: &Normal, op: &Op) -> Vec<String> {
    match op {
        Op::Info(text) => document(normal, "INFO", text.trim_end()),
        Op::Msg(message) => self::message(normal, message),
        Op::Ping => vec!["PING".to_owned()],
        Op::Pong => vec!["PONG".to_owned()],
        Op::Other(line) => vec![normal.text(&text_of(line.as_bytes()))],
    }
}

/// An operation in a word, when its content is of no interest.
pub(super) fn kind(normal: &Normal, op: &Op) -> String {
    match op {
        Op::Info(_) => "INFO".to_owned(),
        other => self::op(normal, other).join(" "),
    }
}

/// An operation as it came, for patterns.
pub(super) fn plain(op: &Op) -> String {
    match op {
        Op::Info(text) => format!("INFO {text}"),
        Op::Msg(message) => format!(
            "{}\n{}{}",
            message.control.join(" "),
            String::from_utf8_lossy(message.headers.as_deref().unwrap_or_default()),
            String::from_utf8_lossy(&message.payload)
        ),
        Op::Ping => "PING".to_owned(),
        Op::Pong => "PONG".to_owned(),
        Op::Other(line) => line.clone(),
    }
}

/// A JSON text with a lead, normalised; any other text escaped.
pub(super) fn document(normal: &Normal, lead: &str, text: &str) -> Vec<String> {
    match Json::parse(text) {
        Ok(json) => {
            let style = json.style(text);
            laid_out(&format!("{lead} {style}"), &normal.json(json))
        }
        Err(_) => vec![format!(
            "{lead} no JSON: {}",
            normal.text(&text_of(text.as_bytes()))
        )],
    }
}

/// A document with a lead: on one line when it is short, else indented.
pub(super) fn laid_out(lead: &str, json: &Json) -> Vec<String> {
    let compact = json.compact();
    if compact.len() <= SHORT {
        return vec![format!("{lead} {compact}")];
    }
    let mut lines = vec![lead.to_owned()];
    lines.extend(json.pretty().lines().map(|line| format!("  {line}")));
    lines
}

/// Headers and payload of a message, normalised, as lines.
pub(super) fn body(normal: &Normal, message: &Message) -> Vec<String> {
    let lines = content(normal, message).0.into_iter();
    // Without headers the payload needs no mark.
    let skip = if message.headers.is_some() { 2 } else { 4 };
    lines
        .enumerate()
        .map(|(index, line)| line[if index == 0 { skip } else { 2 }..].to_owned())
        .collect()
}

fn message(normal: &Normal, message: &Message) -> Vec<String> {
    let (mut lines, altered) = content(normal, message);
    let sizes = if message.headers.is_some() { 2 } else { 1 };
    let words = message.control.len();
    let control = message.control.iter().enumerate().map(|(index, word)| {
        if altered && index + sizes >= words {
            "<size>".to_owned()
        } else {
            normal.text(&text_of(word.as_bytes()))
        }
    });
    lines.insert(0, control.collect::<Vec<_>>().join(" "));
    if lines.len() == 2 {
        // The usual short message fits on its control line.
        let body = lines.remove(1);
        lines[0].push_str(&body[1..]);
    }
    lines
}

/// Headers and payload as lines, and whether normalising has altered them.
fn content(normal: &Normal, message: &Message) -> (Vec<String>, bool) {
    let mut altered = false;
    let mut lines = Vec::new();
    for line in message.headers.as_deref().map(header_lines).unwrap_or_default() {
        let shown = match line.split_once(": ") {
            Some((name, value)) if value.starts_with('{') => match Json::parse(value) {
                Ok(json) => format!("{name}: {}", normal.json(json).compact()),
                Err(_) => normal.text(&line),
            },
            _ => normal.text(&line),
        };
        altered |= shown != line;
        lines.push(format!("  : {shown}"));
    }
    let text = String::from_utf8_lossy(&message.payload);
    match Json::parse(&text) {
        Ok(json) if text.starts_with(['{', '[']) => {
            let style = json.style(&text);
            let json = normal.json(json);
            altered |= json.compact() != text;
            lines.extend(laid_out(&format!("  | {style}"), &json));
        }
        _ => {
            let plain = text_of(&message.payload);
            let shown = normal.text(&plain);
            altered |= shown != plain;
            lines.push(format!("  | {shown}"));
        }
    }
    (lines, altered)
}

/// The lines of a header block; anything behind the blank line is shown too.
fn header_lines(block: &[u8]) -> Vec<String> {
    let text = block.strip_suffix(b"\r\n\r\n").unwrap_or(block);
    text.split(|&byte| byte == b'\n')
        .map(|line| text_of(line.strip_suffix(b"\r").unwrap_or(line)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(headers: Option<&str>, payload: &str) -> Vec<String> {
        let control: &[&str] = if headers.is_some() {
            &["HMSG", "a", "1", "9", "9"]
        } else {
            &["MSG", "a", "1", "9"]
        };
        let message = Message {
            control: control.iter().map(|word| (*word).to_owned()).collect(),
            headers: headers.map(Vec::from),
            payload: payload.into(),
        };
        op(&Normal::default(), &Op::Msg(message))
    }

    #[test]
    fn a_short_message_is_one_line() {
        assert_eq!(shown(None, "hi\n"), ["MSG a 1 9 | hi\\n"]);
    }

    #[test]
    fn headers_come_line_by_line() {
        let lines = shown(Some("NATS/1.0\r\nA: b\r\n\r\n"), "hi");
        assert_eq!(lines, ["HMSG a 1 9 9", "  : NATS/1.0", "  : A: b", "  | hi"]);
    }

    #[test]
    fn the_size_is_hidden_only_when_the_content_was_changed() {
        assert_eq!(shown(None, r#"{"a":1}"#), [r#"MSG a 1 9 | compact {"a":1}"#]);
        assert_eq!(
            shown(None, r#"{"cid":1}"#),
            [r#"MSG a 1 <size> | compact {"cid":<cid>}"#]
        );
    }
}
