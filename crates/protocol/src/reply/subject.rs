//! The subjects: [`AckSubject`] and [`FlowControlSubject`].

use sha2::{Digest, Sha256};

use crate::subject::{SEPARATOR, tokens};

/// What acknowledgement subjects begin with.
const ACK: &[u8] = b"$JS.ACK.";

/// What flow-control subjects begin with.
const FLOW_CONTROL: &[u8] = b"$JS.FC.";

/// The domain token when there is no domain.
const NO_DOMAIN: &[u8] = b"_";

/// Where the extended forms say a consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<'s> {
    /// The JetStream domain, if there is one.
    pub domain: Option<&'s [u8]>,
    /// The [`account_hash`] of the account's name.
    pub account_hash: &'s [u8],
}

/// One delivery of one message, as told in the reply subject of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckSubject<'s> {
    /// `None` in the plain form.
    pub scope: Option<Scope<'s>>,
    /// Stream name.
    pub stream: &'s [u8],
    /// Consumer name.
    pub consumer: &'s [u8],
    /// How often the message has been delivered, this time included; from 1.
    pub delivered: u64,
    /// Sequence of the message in its stream.
    pub stream_seq: u64,
    /// Number of the delivery, counted by the consumer.
    pub consumer_seq: u64,
    /// When the message was stored, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Messages that were still to come after it.
    pub pending: u64,
}

impl<'s> AckSubject<'s> {
    /// Reads either form. `None` when it is neither, or a number is none.
    #[must_use]
    pub fn parse(subject: &'s [u8]) -> Option<Self> {
        let rest = subject.strip_prefix(ACK)?;
        let (scope, words) = scoped::<7, 9>(rest)?;
        let [
            stream,
            consumer,
            delivered,
            stream_seq,
            consumer_seq,
            time,
            pending,
        ] = words;
        Some(Self {
            scope,
            stream,
            consumer,
            delivered: number(delivered)?,
            stream_seq: number(stream_seq)?,
            consumer_seq: number(consumer_seq)?,
            time_ns: signed(time)?,
            pending: number(pending)?,
        })
    }

    /// Appends the subject, in the extended form when there is a scope.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(ACK);
        write_scope(out, self.scope);
        out.extend_from_slice(self.stream);
        out.push(SEPARATOR);
        out.extend_from_slice(self.consumer);
        let mut digits = itoa::Buffer::new();
        for value in [self.delivered, self.stream_seq, self.consumer_seq] {
            out.push(SEPARATOR);
            out.extend_from_slice(digits.format(value).as_bytes());
        }
        out.push(SEPARATOR);
        out.extend_from_slice(digits.format(self.time_ns).as_bytes());
        out.push(SEPARATOR);
        out.extend_from_slice(digits.format(self.pending).as_bytes());
    }
}

/// A flow-control request, as told in its reply subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowControlSubject<'s> {
    /// `None` in the plain form.
    pub scope: Option<Scope<'s>>,
    /// Stream name.
    pub stream: &'s [u8],
    /// Consumer name.
    pub consumer: &'s [u8],
    /// Which request; one token.
    pub id: &'s [u8],
}

impl<'s> FlowControlSubject<'s> {
    /// Reads either form. `None` when it is neither.
    #[must_use]
    pub fn parse(subject: &'s [u8]) -> Option<Self> {
        let rest = subject.strip_prefix(FLOW_CONTROL)?;
        let extended = tokens(rest).count() == 5;
        let (scope, [stream, consumer, id]) = scoped::<3, 5>(rest)?;
        // Unlike acknowledgements, these have nothing after the last known token.
        (scope.is_some() == extended).then_some(Self {
            scope,
            stream,
            consumer,
            id,
        })
    }

    /// Appends the subject, in the extended form when there is a scope.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(FLOW_CONTROL);
        write_scope(out, self.scope);
        out.extend_from_slice(self.stream);
        out.push(SEPARATOR);
        out.extend_from_slice(self.consumer);
        out.push(SEPARATOR);
        out.extend_from_slice(self.id);
    }
}

/// The token that stands for an account in the extended forms: eight letters and digits from its name's hash.
#[must_use]
pub fn account_hash(account: &[u8]) -> [u8; 8] {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digest = Sha256::digest(account);
    let mut token = [0; 8];
    for (letter, byte) in token.iter_mut().zip(digest.iter()) {
        *letter = LETTERS[usize::from(*byte) % LETTERS.len()];
    }
    token
}

fn write_scope(out: &mut Vec<u8>, scope: Option<Scope<'_>>) {
    if let Some(scope) = scope {
        out.extend_from_slice(scope.domain.unwrap_or(NO_DOMAIN));
        out.push(SEPARATOR);
        out.extend_from_slice(scope.account_hash);
        out.push(SEPARATOR);
    }
}

/// The `PLAIN` words after the scope, if there are exactly so many words, or at least `EXTENDED` with the scope's two.
fn scoped<const PLAIN: usize, const EXTENDED: usize>(
    rest: &[u8],
) -> Option<(Option<Scope<'_>>, [&[u8]; PLAIN])> {
    let mut words = [b"".as_slice(); EXTENDED];
    let mut count = 0;
    for word in tokens(rest) {
        if word.is_empty() {
            return None;
        }
        if let Some(place) = words.get_mut(count) {
            *place = word;
        }
        count += 1;
    }
    if count == PLAIN {
        return words.first_chunk().map(|words| (None, *words));
    }
    if count < EXTENDED {
        return None;
    }
    let (&[domain, account_hash], words) = words.split_first_chunk()?;
    let domain = (domain != NO_DOMAIN).then_some(domain);
    Some((Some(Scope { domain, account_hash }), *words.first_chunk()?))
}

/// Decimal digits, and nothing else, that fit.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The same with a minus sign, for times before 1970.
fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => 0_i64.checked_sub_unsigned(number(digits)?),
        None => number(text)?.try_into().ok(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> AckSubject<'static> {
        AckSubject {
            scope: None,
            stream: b"ORDERS",
            consumer: b"work-1",
            delivered: 2,
            stream_seq: 20,
            consumer_seq: 15,
            time_ns: 1_700_000_000_123_456_789,
            pending: 7,
        }
    }

    fn written(subject: &AckSubject<'_>) -> String {
        let mut out = Vec::new();
        subject.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_plain_form_has_nine_tokens() {
        let text = "$JS.ACK.ORDERS.work-1.2.20.15.1700000000123456789.7";
        assert_eq!(written(&sample()), text);
        assert_eq!(AckSubject::parse(text.as_bytes()), Some(sample()));
    }

    #[test]
    fn the_extended_form_has_eleven_tokens_or_more() {
        let hash = account_hash(b"$G");
        for domain in [None, Some(b"hub".as_slice())] {
            let scope = Some(Scope {
                domain,
                account_hash: &hash,
            });
            let subject = AckSubject { scope, ..sample() };
            let name = domain.map_or("_", |_| "hub");
            let text = format!("$JS.ACK.{name}.szMpdrwD.ORDERS.work-1.2.20.15.1700000000123456789.7");
            assert_eq!(written(&subject), text);
            for tail in ["", ".token", ".a.b.c.d"] {
                assert_eq!(
                    AckSubject::parse(format!("{text}{tail}").as_bytes()),
                    Some(subject)
                );
            }
        }
    }

    #[test]
    fn what_is_neither_form_is_refused() {
        for text in [
            "",
            "$JS.ACK.",
            "$JS.ACK.S.C.1.2.3.4",
            "$JS.ACK.S.C.1.2.3.4.5.6",
            "$JS.ACK.S.C.x.2.3.4.5",
            "$JS.ACK.S.C.1.-2.3.4.5",
            "$JS.ACK.S.C.1.+2.3.4.5",
            "$JS.ACK.S.C.1.2.3.4.18446744073709551616",
            "$JS.ACK.S.C.1.2.3.9223372036854775808.5",
            "$JS.ACK.S.C.1.2.3..5",
            "$JS.ACK.S..1.2.3.4.5",
            "$JS.ACK._.hash.S.C.1.2.3.4.",
            "$JS.ACK._.hash.S.C.1.2.3.4.x",
            "JS.ACK.S.C.1.2.3.4.5",
            "$JS.FC.S.C.1.2.3.4.5",
        ] {
            assert_eq!(AckSubject::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn flow_control_subjects_have_two_forms() {
        let parse = |text: &'static str| FlowControlSubject::parse(text.as_bytes());
        let plain = FlowControlSubject {
            scope: None,
            stream: b"S",
            consumer: b"C",
            id: b"a1B2",
        };
        let scope = Some(Scope {
            domain: Some(b"hub"),
            account_hash: b"szMpdrwD",
        });
        assert_eq!(parse("$JS.FC.S.C.a1B2"), Some(plain));
        assert_eq!(
            parse("$JS.FC.hub.szMpdrwD.S.C.a1B2"),
            Some(FlowControlSubject { scope, ..plain })
        );
        for text in [
            "$JS.FC.S.C",
            "$JS.FC.S.C.x.y",
            "$JS.FC._.h.S.C.x.y",
            "$JS.FC.S..x",
            "$JS.ACK.S.C.x",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        for subject in [plain, FlowControlSubject { scope, ..plain }] {
            let mut out = Vec::new();
            subject.write(&mut out);
            assert_eq!(FlowControlSubject::parse(&out), Some(subject));
        }
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(
            any::<u8>().prop_filter("a token", |byte| !b". \t\r\n\x0c".contains(byte)),
            1..6,
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            names in (name(), name(), name(), name()),
            extended in any::<bool>(),
            numbers in any::<(u64, u64, u64, i64, u64)>(),
        ) {
            let (domain, hash, stream, consumer) = &names;
            let domain = (domain.as_slice() != NO_DOMAIN).then_some(domain.as_slice());
            let (delivered, stream_seq, consumer_seq, time_ns, pending) = numbers;
            let scope = extended.then_some(Scope { domain, account_hash: hash });
            let subject =
                AckSubject { scope, stream, consumer, delivered, stream_seq, consumer_seq, time_ns, pending };
            let mut out = Vec::new();
            subject.write(&mut out);
            prop_assert_eq!(AckSubject::parse(&out), Some(subject));
        }
    }
}
