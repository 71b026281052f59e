//! What the reply subject of a delivery says about it.

use std::time::{Duration, SystemTime};

/// Where a delivered message stands. Read from its reply subject, in either of the two forms servers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata<'a> {
    /// The JetStream domain, when the subject names one.
    pub domain: Option<&'a str>,
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// How often the message has been delivered, this time included.
    pub delivered: u64,
    /// Its sequence in the stream.
    pub stream_sequence: u64,
    /// The number of this delivery among all of the consumer.
    pub consumer_sequence: u64,
    /// When the stream stored it, in nanoseconds since 1970.
    pub stored_nanos: u64,
    /// Messages that were still waiting for this consumer.
    pub pending: u64,
}

impl<'a> Metadata<'a> {
    /// Reads an ack subject; `None` when it is none.
    #[must_use]
    pub fn parse(subject: &'a str) -> Option<Self> {
        // In one pass, and by hand: every delivery is read, and a splitter with number parsers takes several times as long.
        let rest = subject.strip_prefix("$JS.ACK.")?;
        let mut tokens = [""; 9];
        let (mut count, mut begin) = (0, 0);
        for (at, &byte) in rest.as_bytes().iter().enumerate() {
            if byte == b'.' {
                if let Some(slot) = tokens.get_mut(count) {
                    *slot = &rest[begin..at];
                }
                (count, begin) = (count + 1, at + 1);
            }
        }
        if let Some(slot) = tokens.get_mut(count) {
            *slot = &rest[begin..];
        }
        // Seven tokens in the old form. The new one puts domain and account in front and may add some behind.
        let (domain, [stream, consumer, numbers @ ..]) = match (count + 1, tokens) {
            (7, [a, b, c, d, e, f, g, ..]) => (None, [a, b, c, d, e, f, g]),
            (9.., [domain, _, a, b, c, d, e, f, g]) => (
                Some(domain).filter(|domain| *domain != "_"),
                [a, b, c, d, e, f, g],
            ),
            _ => return None,
        };
        let [
            delivered,
            stream_sequence,
            consumer_sequence,
            stored_nanos,
            pending,
        ] = numbers;
        Some(Self {
            domain,
            stream,
            consumer,
            delivered: number(delivered)?,
            stream_sequence: number(stream_sequence)?,
            consumer_sequence: number(consumer_sequence)?,
            stored_nanos: number(stored_nanos)?,
            pending: number(pending)?,
        })
    }

    /// When the stream stored the message.
    #[must_use]
    pub fn stored(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.stored_nanos)
    }

    /// Whether the message was delivered before.
    #[must_use]
    pub fn is_redelivery(&self) -> bool {
        self.delivered > 1
    }
}

/// A number of decimal digits and nothing else.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_say_the_same() {
        let old = Metadata::parse("$JS.ACK.ORDERS.worker.2.17.20.1700000000000000001.5").unwrap();
        assert_eq!((old.stream, old.consumer, old.delivered), ("ORDERS", "worker", 2));
        assert_eq!(
            (old.stream_sequence, old.consumer_sequence, old.pending),
            (17, 20, 5)
        );
        assert!(old.is_redelivery());
        assert_eq!(old.domain, None);
        let new = Metadata::parse("$JS.ACK._.szMpdrwD.ORDERS.worker.2.17.20.1700000000000000001.5").unwrap();
        assert_eq!(old, new);
        let more = Metadata::parse("$JS.ACK.hub.szMpdrwD.ORDERS.worker.2.17.20.1700000000000000001.5.x.y");
        assert_eq!(
            more.unwrap(),
            Metadata {
                domain: Some("hub"),
                ..old
            }
        );
        assert_eq!(old.stored_nanos, 1_700_000_000_000_000_001);
        let most = Metadata::parse("$JS.ACK.S.C.1.2.3.4.18446744073709551615").unwrap();
        assert_eq!(most.pending, u64::MAX);
    }

    #[test]
    fn other_subjects_have_none() {
        for subject in [
            "",
            "_INBOX.a",
            "$JS.ACK.S.C.1.2.3.4",
            "$JS.ACK.S.C.1.2.3.4.5.6",
            "$JS.ACK.S.C.x.2.3.4.5",
            "$JS.ACK.S.C.-1.2.3.4.5",
            "$JS.ACK.S.C.+1.2.3.4.5",
            "$JS.ACK.S.C..2.3.4.5",
            "$JS.ACK.S.C.1.2.3.4.18446744073709551616",
        ] {
            assert_eq!(Metadata::parse(subject), None, "{subject}");
        }
    }

    proptest! {
        #[test]
        fn no_subject_makes_it_panic(subject in r"(\$JS\.ACK\.)?[a-z0-9._$-]{0,80}") {
            let _ = Metadata::parse(&subject);
        }
    }
}
