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
        let rest = subject.strip_prefix("$JS.ACK.")?;
        let mut tokens = [""; 9];
        let mut count = 0;
        for token in rest.split('.') {
            if let Some(slot) = tokens.get_mut(count) {
                *slot = token;
            }
            count += 1;
        }
        // Seven tokens in the old form. The new one puts domain and account in front and may add some behind.
        let (domain, tokens) = match count {
            7 => (None, &tokens[..7]),
            9.. => (Some(tokens[0]).filter(|domain| *domain != "_"), &tokens[2..]),
            _ => return None,
        };
        let number = |index: usize| -> Option<u64> { tokens.get(index)?.parse().ok() };
        Some(Self {
            domain,
            stream: tokens.first()?,
            consumer: tokens.get(1)?,
            delivered: number(2)?,
            stream_sequence: number(3)?,
            consumer_sequence: number(4)?,
            stored_nanos: number(5)?,
            pending: number(6)?,
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
