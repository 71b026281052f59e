//! [`Ack`]: the payload of an acknowledgement.

use serde::Deserialize;

use crate::jetstream::Nanos;

/// What an acknowledgement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack<'p> {
    /// Done: empty, `+ACK` or `+OK`.
    Done,
    /// Not done, deliver again: `-NAK`, alone or with a delay.
    Nak {
        /// After how long; `None` means at once. May be negative or zero, which also means at once.
        delay: Option<Nanos>,
    },
    /// Still at work: `+WPI`.
    Progress,
    /// Never deliver again: `+TERM`, alone or with a reason.
    Term {
        /// The reason without surrounding whitespace, possibly empty.
        reason: &'p [u8],
    },
    /// Done, and here is a pull request: `+NXT`, alone or with the request's body.
    Next {
        /// The body without surrounding whitespace, possibly empty.
        request: &'p [u8],
    },
}

impl<'p> Ack<'p> {
    /// Reads a payload. `None` for anything that is no acknowledgement; such a payload has no effect but is answered.
    ///
    /// A delay that cannot be read counts as none, so that the message comes again at once rather than never.
    #[must_use]
    pub fn parse(payload: &'p [u8]) -> Option<Self> {
        match payload {
            b"" | b"+ACK" | b"+OK" => return Some(Self::Done),
            b"+WPI" => return Some(Self::Progress),
            _ => {}
        }
        if let Some(rest) = payload.strip_prefix(b"-NAK") {
            return Some(Self::Nak {
                delay: parse_delay(trim(rest)),
            });
        }
        if let Some(rest) = payload.strip_prefix(b"+TERM") {
            return Some(Self::Term { reason: trim(rest) });
        }
        let rest = payload.strip_prefix(b"+NXT")?;
        Some(Self::Next { request: trim(rest) })
    }

    /// Appends the payload that clients send.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (verb, argument): (&[u8], &[u8]) = match *self {
            Self::Done => (b"+ACK", b""),
            Self::Progress => (b"+WPI", b""),
            Self::Nak { delay: None } => (b"-NAK", b""),
            Self::Nak { delay: Some(delay) } => {
                out.extend_from_slice(b"-NAK {\"delay\":");
                out.extend_from_slice(itoa::Buffer::new().format(delay.0).as_bytes());
                out.push(b'}');
                return;
            }
            Self::Term { reason } => (b"+TERM", reason),
            Self::Next { request } => (b"+NXT", request),
        };
        out.extend_from_slice(verb);
        if !argument.is_empty() {
            out.push(b' ');
            out.extend_from_slice(argument);
        }
    }
}

/// The object form of a delay.
#[derive(Deserialize)]
struct Delay {
    #[serde(default)]
    delay: Option<Nanos>,
}

fn parse_delay(text: &[u8]) -> Option<Nanos> {
    if text.first() == Some(&b'{') {
        return serde_json::from_slice::<Delay>(text).ok()?.delay;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Without ASCII whitespace around it, vertical tab included.
fn trim(text: &[u8]) -> &[u8] {
    let space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let start = text.iter().take_while(|byte| space(byte)).count();
    let end = text.iter().rev().take_while(|byte| space(byte)).count();
    &text[start..text.len().saturating_sub(end).max(start)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nak(delay: Option<i64>) -> Option<Ack<'static>> {
        Some(Ack::Nak {
            delay: delay.map(Nanos),
        })
    }

    #[test]
    fn exact_payloads_are_exact() {
        for payload in ["", "+ACK", "+OK"] {
            assert_eq!(Ack::parse(payload.as_bytes()), Some(Ack::Done), "{payload:?}");
        }
        assert_eq!(Ack::parse(b"+WPI"), Some(Ack::Progress));
        for payload in [
            " ", "+ACK ", "+ack", "+OKAY", "+WPI ", "-nak", "+NX", "hello", "-ERR", "{}",
        ] {
            assert_eq!(Ack::parse(payload.as_bytes()), None, "{payload:?}");
        }
    }

    #[test]
    fn a_nak_has_a_delay_in_two_forms() {
        assert_eq!(Ack::parse(b"-NAK"), nak(None));
        assert_eq!(Ack::parse(b"-NAK {\"delay\": 1500}"), nak(Some(1500)));
        assert_eq!(Ack::parse(b"-NAK{\"delay\":1500,\"x\":1}"), nak(Some(1500)));
        assert_eq!(Ack::parse(b"-NAK 300ms"), nak(Some(300_000_000)));
        assert_eq!(Ack::parse(b"-NAK  1m30s \r\n"), nak(Some(90_000_000_000)));
        assert_eq!(Ack::parse(b"-NAK300ms"), nak(Some(300_000_000)));
        assert_eq!(Ack::parse(b"-NAK {\"delay\":-1}"), nak(Some(-1)));
    }

    #[test]
    fn a_delay_that_cannot_be_read_is_none() {
        for rest in [
            "x",
            " 5",
            " {",
            " {}",
            " {\"delay\":\"1s\"}",
            " {\"delay\":null}",
            " 1.5",
            "\u{e9}",
        ] {
            assert_eq!(
                Ack::parse(format!("-NAK{rest}").as_bytes()),
                nak(None),
                "{rest:?}"
            );
        }
        assert_eq!(Ack::parse(b"-NAK \xff"), nak(None));
    }

    #[test]
    fn reasons_and_requests_are_trimmed() {
        assert_eq!(Ack::parse(b"+TERM"), Some(Ack::Term { reason: b"" }));
        assert_eq!(
            Ack::parse(b"+TERM  bad input \n"),
            Some(Ack::Term { reason: b"bad input" })
        );
        assert_eq!(Ack::parse(b"+TERMx"), Some(Ack::Term { reason: b"x" }));
        assert_eq!(Ack::parse(b"+NXT"), Some(Ack::Next { request: b"" }));
        assert_eq!(Ack::parse(b"+NXT \x0b "), Some(Ack::Next { request: b"" }));
        assert_eq!(
            Ack::parse(b"+NXT {\"batch\":5} "),
            Some(Ack::Next {
                request: b"{\"batch\":5}"
            })
        );
        assert_eq!(Ack::parse(b"+NXT 10"), Some(Ack::Next { request: b"10" }));
    }

    fn argument() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..12).prop_map(|bytes| trim(&bytes).to_vec())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(kind in 0..5, argument in argument(), delay in prop::option::of(any::<i64>())) {
            let ack = match kind {
                0 => Ack::Done,
                1 => Ack::Progress,
                2 => Ack::Nak { delay: delay.map(Nanos) },
                3 => Ack::Term { reason: &argument },
                _ => Ack::Next { request: &argument },
            };
            let mut out = Vec::new();
            ack.write(&mut out);
            prop_assert_eq!(Ack::parse(&out), Some(ack));
        }

        #[test]
        fn any_payload_is_answered(payload in prop::collection::vec(any::<u8>(), 0..20), verb in 0..4_usize) {
            let verb = ["-NAK", "+TERM", "+NXT", ""][verb];
            let payload = [verb.as_bytes(), &payload].concat();
            prop_assert!(verb.is_empty() || Ack::parse(&payload).is_some());
        }
    }
}
