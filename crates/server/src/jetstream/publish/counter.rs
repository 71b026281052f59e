//! Counters: messages that add to a number per subject.
//!
//! The number lies in the newest message of the subject, as `{"val":"<decimal>"}`, and has no bounds. What other streams
//! contributed lies beside it in the header `Nats-Counter-Sources`: the value last seen for each origin stream and subject.
//!
//! [`Totals`] keeps the numbers of subjects that were used lately, so that increments of one subject need not wait until the
//! message before them can be read. An entry says which sequence it belongs to and is worth nothing for another one, so
//! whatever else happens to the stream cannot make it wrong.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use num_bigint::BigInt;
use serde::{Deserialize, Serialize};
use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::{ApiError, ErrorCode};

/// Values last seen of origins: stream, then subject.
pub(crate) type Sources = BTreeMap<String, BTreeMap<String, String>>;

/// A subject's number, with what its message says of sources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Total {
    /// The number.
    pub(crate) value: BigInt,
    /// Value of `Nats-Counter-Sources`, as it stands in the message.
    pub(crate) sources: Option<Arc<[u8]>>,
}

#[derive(Serialize, Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    val: std::borrow::Cow<'a, str>,
}

impl Total {
    /// Reads a stored message.
    ///
    /// # Errors
    /// `CounterBroken` when it is no counter.
    pub(crate) fn read(block: &[u8], payload: &[u8]) -> Result<Self, ApiError> {
        let body: Body<'_> = serde_json::from_slice(payload).map_err(|_| ErrorCode::CounterBroken.error())?;
        let value = integer(body.val.as_bytes()).ok_or_else(|| ErrorCode::CounterBroken.error())?;
        let sources = block::find(block, names::COUNTER_SOURCES).filter(|text| !text.is_empty());
        Ok(Self {
            value,
            sources: sources.map(Arc::from),
        })
    }

    /// The body of the message that carries this number.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = b"{\"val\":\"".to_vec();
        out.extend_from_slice(self.value.to_string().as_bytes());
        out.extend_from_slice(b"\"}");
        out
    }

    /// What is left of `previous` after an increment.
    pub(crate) fn plus(&self, increment: &BigInt) -> Self {
        Self {
            value: &self.value + increment,
            sources: self.sources.clone(),
        }
    }

    /// Takes a message of another stream: what it adds is what its number has grown by since the last one. Answers the new
    /// total, whose `sources` are for the new message, and the growth, which becomes its `Nats-Incr`.
    ///
    /// # Errors
    /// `CounterBroken` when the sources that are known cannot be read.
    pub(crate) fn merge(
        &self,
        stream: &str,
        subject: &str,
        incoming: &BigInt,
    ) -> Result<(Self, BigInt), ApiError> {
        let broken = || ErrorCode::CounterBroken.error();
        let mut sources: Sources = match &self.sources {
            Some(text) => serde_json::from_slice(text).map_err(|_| broken())?,
            None => Sources::new(),
        };
        let seen = sources
            .entry(stream.to_owned())
            .or_default()
            .entry(subject.to_owned());
        let slot = seen.or_insert_with(|| "0".to_owned());
        let last = integer(slot.as_bytes()).ok_or_else(broken)?;
        let growth = incoming - last;
        *slot = incoming.to_string();
        // A map of strings always has a text.
        let text = serde_json::to_vec(&sources).map_err(|_| broken())?;
        let total = Self {
            value: &self.value + &growth,
            sources: Some(text.into()),
        };
        Ok((total, growth))
    }
}

/// A whole number: an optional sign and decimal digits.
pub(crate) fn integer(text: &[u8]) -> Option<BigInt> {
    let digits = match text {
        [b'+' | b'-', digits @ ..] => digits,
        digits => digits,
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = BigInt::parse_bytes(digits, 10)?;
    Some(if text.starts_with(b"-") {
        -magnitude
    } else {
        magnitude
    })
}

/// What is known about the number of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is this; the default when there is no message.
    Is(Total),
    /// The message with this sequence says it and must be read.
    In(u64),
}

/// What a message says: a number, or that it is no counter.
type Said = Result<Total, ApiError>;

/// Numbers of subjects that were used lately. See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    by_subject: HashMap<Box<[u8]>, (u64, Said)>,
    /// Subjects with their sequences in the order in which they were entered, for forgetting the oldest.
    order: VecDeque<(Box<[u8]>, u64)>,
}

/// Numbers that are kept although their messages are committed.
const KEPT: usize = 4096;

impl Totals {
    /// The number of a subject whose newest live message is `last`.
    ///
    /// # Errors
    /// `CounterBroken` when that message was read and is no counter.
    pub(crate) fn get(&self, subject: &[u8], last: Option<u64>) -> Result<Known, ApiError> {
        let Some(last) = last else {
            return Ok(Known::Is(Total::default()));
        };
        match self.by_subject.get(subject) {
            Some((seq, total)) if *seq == last => total.clone().map(Known::Is),
            _ => Ok(Known::In(last)),
        }
    }

    /// Remembers what the message `seq` says: just staged, or just read.
    pub(crate) fn put(&mut self, subject: &[u8], seq: u64, total: Said) {
        self.by_subject.insert(subject.into(), (seq, total));
        self.order.push_back((subject.into(), seq));
    }

    /// Forgets the oldest numbers whose messages are not above `committed_seq`, when there are many.
    pub(crate) fn trim(&mut self, committed_seq: u64) {
        while self.order.len() > KEPT {
            let Some((subject, seq)) = self.order.pop_front() else {
                return;
            };
            let current = self.by_subject.get(&subject).map(|(current, _)| *current);
            if current != Some(seq) {
                continue;
            }
            if seq > committed_seq {
                self.order.push_front((subject, seq));
                return;
            }
            self.by_subject.remove(&subject);
        }
    }

    /// Forgets everything: the store has failed, or what was staged did not become part of the stream.
    pub(crate) fn clear(&mut self) {
        self.by_subject.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> BigInt {
        integer(text.as_bytes()).unwrap()
    }

    #[test]
    fn increments_have_a_sign_or_none_and_digits() {
        for (text, value) in [("1", 1), ("+1", 1), ("-1", -1), ("0", 0), ("-007", -7)] {
            assert_eq!(integer(text.as_bytes()), Some(BigInt::from(value)), "{text}");
        }
        for text in [
            "", "+", "-", "1.0", "1e3", " 1", "1 ", "0x1", "--1", "+-1", "1_000", "a",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
        let long = "123456789012345678901234567890";
        assert_eq!(number(long).to_string(), long);
    }

    #[test]
    fn a_total_is_written_and_read_back() {
        let total = Total::default().plus(&number("123456789012345678901234567890"));
        assert_eq!(total.body(), br#"{"val":"123456789012345678901234567890"}"#);
        assert_eq!(Total::read(b"", &total.body()), Ok(total.clone()));
        let total = total.plus(&number("-123456789012345678901234567891"));
        assert_eq!(total.body(), br#"{"val":"-1"}"#);
        let block = b"NATS/1.0\r\nNats-Counter-Sources: {\"A\":{\"a\":\"1\"}}\r\n\r\n";
        let read = Total::read(block, br#"{"val":"5"}"#).unwrap();
        assert_eq!(read.sources.as_deref(), Some(&br#"{"A":{"a":"1"}}"#[..]));
        assert_eq!(read.plus(&BigInt::from(1)).sources, read.sources);
    }

    #[test]
    fn what_is_no_counter_is_broken() {
        for body in [
            &b""[..],
            b"5",
            b"{}",
            br#"{"val":5}"#,
            br#"{"val":"x"}"#,
            br#"{"val":""}"#,
        ] {
            assert_eq!(Total::read(b"", body).unwrap_err(), ErrorCode::CounterBroken);
        }
    }

    #[test]
    fn a_source_adds_what_it_has_grown_by() {
        let own = Total::default().plus(&BigInt::from(10));
        let (total, growth) = own.merge("A", "a.b", &BigInt::from(3)).unwrap();
        assert_eq!((total.value.clone(), growth), (BigInt::from(13), BigInt::from(3)));
        assert_eq!(total.sources.as_deref(), Some(&br#"{"A":{"a.b":"3"}}"#[..]));
        let (total, growth) = total.merge("A", "a.b", &BigInt::from(1)).unwrap();
        assert_eq!(
            (total.value.clone(), growth),
            (BigInt::from(11), BigInt::from(-2))
        );
        // Two origins that end up on one subject are counted apart.
        let (total, growth) = total.merge("A", "a.c", &BigInt::from(4)).unwrap();
        assert_eq!((total.value.clone(), growth), (BigInt::from(15), BigInt::from(4)));
        let (total, _) = total.merge("B", "a.b", &BigInt::from(1)).unwrap();
        assert_eq!(
            total.sources.as_deref(),
            Some(&br#"{"A":{"a.b":"1","a.c":"4"},"B":{"a.b":"1"}}"#[..])
        );
    }

    #[test]
    fn sources_that_cannot_be_read_are_broken() {
        for text in [&b"x"[..], br#"{"A":1}"#, br#"{"A":{"a":"x"}}"#] {
            let own = Total {
                sources: Some(text.into()),
                ..Total::default()
            };
            let error = own.merge("A", "a", &BigInt::from(1)).unwrap_err();
            assert_eq!(error, ErrorCode::CounterBroken);
        }
    }

    #[test]
    fn a_remembered_total_is_good_for_its_sequence_only() {
        let mut totals = Totals::default();
        let five = Total::default().plus(&BigInt::from(5));
        assert_eq!(totals.get(b"a", None), Ok(Known::Is(Total::default())));
        assert_eq!(totals.get(b"a", Some(3)), Ok(Known::In(3)));
        totals.put(b"a", 3, Ok(five.clone()));
        assert_eq!(totals.get(b"a", Some(3)), Ok(Known::Is(five)));
        assert_eq!(totals.get(b"a", Some(4)), Ok(Known::In(4)));
        assert_eq!(totals.get(b"a", None), Ok(Known::Is(Total::default())));
        totals.put(b"a", 4, Err(ErrorCode::CounterBroken.error()));
        assert_eq!(totals.get(b"a", Some(4)).unwrap_err(), ErrorCode::CounterBroken);
        totals.clear();
        assert_eq!(totals.get(b"a", Some(4)), Ok(Known::In(4)));
    }

    #[test]
    fn committed_totals_are_bounded_and_staged_ones_are_kept() {
        let mut totals = Totals::default();
        for seq in 1..=(2 * KEPT as u64) {
            totals.put(format!("s.{seq}").as_bytes(), seq, Ok(Total::default()));
        }
        totals.trim(10);
        assert_eq!(totals.by_subject.len(), 2 * KEPT - 10);
        totals.trim(2 * KEPT as u64);
        assert_eq!(totals.by_subject.len(), KEPT);
        let mut one = Totals::default();
        for seq in 1..=(3 * KEPT as u64) {
            one.put(b"hot", seq, Ok(Total::default()));
        }
        one.trim(1);
        assert_eq!((one.by_subject.len(), one.order.len()), (1, KEPT));
        assert!(matches!(one.get(b"hot", Some(3 * KEPT as u64)), Ok(Known::Is(_))));
    }
}
