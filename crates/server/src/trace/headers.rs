//! The headers that ask for a trace.
//!
//! `Nats-Trace-Dest` names a destination and stands in exactly this spelling. `traceparent` is the header of W3C Trace
//! Context, in any case, and counts where its sampled flag is set: the destination is then the account's.

use std::collections::BTreeMap;

use windjet_protocol::header::block;

use super::{DESTINATION, DISABLED, ONLY};

/// The line that a header block without a status begins with.
const HEAD: &[u8] = b"NATS/1.0\r\n";
/// Header of W3C Trace Context.
const TRACE_PARENT: &[u8] = b"traceparent";

/// What a message asks for: its headers, and whether the account says where the trace goes.
#[derive(Debug)]
pub(crate) struct Asked {
    /// All headers that have a name and a value, by name as sent.
    pub(super) fields: BTreeMap<String, Vec<String>>,
    /// Asked for by `traceparent` alone.
    pub(super) external: bool,
}

impl Asked {
    /// The first value of a header.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.first().map(String::as_str)
    }

    /// Whether the message is to be traced without being delivered.
    pub(super) fn only(&self) -> bool {
        !self.external
            && self.first(ONLY).is_some_and(|value| {
                ["1", "true", "on"]
                    .iter()
                    .any(|yes| value.eq_ignore_ascii_case(yes))
            })
    }
}

/// What a header block asks for; `None` when that is nothing.
pub(super) fn asked(headers: &[u8]) -> Option<Asked> {
    if !headers.starts_with(HEAD) {
        return None;
    }
    let (mut named, mut sampled) = (false, false);
    for (name, value) in fields(headers) {
        if name == DESTINATION.as_bytes() {
            if !named && value == DISABLED.as_bytes() {
                return None;
            }
            named = true;
        } else if name.eq_ignore_ascii_case(TRACE_PARENT) {
            sampled = sampled || is_sampled(value);
        }
    }
    if !named && !sampled {
        return None;
    }
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in fields(headers) {
        all.entry(text(name)).or_default().push(text(value));
    }
    Some(Asked {
        fields: all,
        external: !named,
    })
}

/// Headers with a name and a value, without the blanks around the value.
fn fields(headers: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    block::fields(headers)
        .map(|(name, value)| (name, value.trim_ascii()))
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the last of the four parts, two hexadecimal digits, has its lowest bit set. Values beyond a signed byte do not
/// count, as on nats-server.
fn is_sampled(value: &[u8]) -> bool {
    let Ok(value) = std::str::from_utf8(value) else {
        return false;
    };
    let parts: Vec<&str> = value.split('-').collect();
    let [_, _, _, flags] = parts[..] else {
        return false;
    };
    flags.len() == 2 && i8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1)
}

/// A message that was refused by its command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused<'b> {
    pub(super) subject: &'b [u8],
    /// Bytes announced.
    pub(super) size: usize,
    /// As much of the header block as has arrived.
    pub(super) headers: &'b [u8],
}

/// Reads the `HPUB` line that `rest` begins with, and the headers after it. `None` for anything else.
pub(super) fn refused(rest: &[u8]) -> Option<Refused<'_>> {
    let end = memchr::memchr(b'\n', rest)?;
    let mut words = rest[..end]
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .filter(|word| !word.is_empty());
    if !words.next()?.eq_ignore_ascii_case(b"hpub") {
        return None;
    }
    let words: Vec<&[u8]> = words.collect();
    let ([subject, header_len, size] | [subject, _, header_len, size]) = words[..] else {
        return None;
    };
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<usize>().ok();
    let (header_len, size) = (number(header_len)?, number(size)?);
    let headers = &rest[end + 1..];
    Some(Refused {
        subject,
        size,
        headers: &headers[..headers.len().min(header_len)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(lines: &str) -> Vec<u8> {
        format!("NATS/1.0\r\n{}\r\n\r\n", lines.replace(';', "\r\n")).into_bytes()
    }

    #[test]
    fn a_destination_asks_unless_it_says_disabled() {
        let asked_by = |lines: &str| asked(&block(lines));
        let found = asked_by("A: 1;Nats-Trace-Dest: t.x ;A: 2;Empty:").unwrap();
        assert_eq!(found.first(DESTINATION), Some("t.x"));
        assert_eq!(found.fields["A"], ["1", "2"]);
        assert!(!found.external && !found.fields.contains_key("Empty"));
        for lines in [
            "A: 1",
            "nats-trace-dest: t",
            "Nats-Trace-Dest:",
            "Nats-Trace-Dest: trace disabled",
        ] {
            assert!(asked_by(lines).is_none(), "{lines}");
        }
        assert!(asked(b"NATS/1.0 503\r\nNats-Trace-Dest: t\r\n\r\n").is_none());
        assert!(asked(b"").is_none());
    }

    #[test]
    fn only_a_sampled_trace_parent_asks() {
        for (flags, samples) in [
            ("01", true),
            ("03", true),
            ("00", false),
            ("81", false),
            ("1", false),
            ("zz", false),
        ] {
            let lines = format!("TraceParent: 00-a-b-{flags};Nats-Trace-Only: 1");
            let found = asked(&block(&lines));
            assert_eq!(found.is_some(), samples, "{flags}");
            assert!(found.is_none_or(|asked| asked.external && !asked.only()));
        }
    }

    #[test]
    fn a_refused_line_gives_what_has_arrived_of_its_headers() {
        let refused_by = |text: &'static str| refused(text.as_bytes());
        let found = refused_by("HPUB foo in 12 90\r\nNATS/1.0\r\n").unwrap();
        assert_eq!((found.subject, found.size), (&b"foo"[..], 90));
        assert_eq!(found.headers, b"NATS/1.0\r\n");
        assert_eq!(refused_by("hpub foo 2 90\r\nNATS").unwrap().headers, b"NA");
        for text in [
            "PUB foo 90\r\n",
            "HPUB foo 90\r\n",
            "HPUB foo x 90\r\n",
            "HPUB foo 1 90",
            "",
        ] {
            assert_eq!(refused_by(text), None, "{text}");
        }
    }
}
