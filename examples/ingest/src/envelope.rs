//! A row as it travels: with its key, and the time at which it was accepted.
//!
//! The boundary hands a consumer the payload alone, so whatever must survive until the row is written is in it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// The longest key.
const KEY_MAX: usize = 128;

/// A row on its way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The row's key: the client's idempotency key, or one made for it.
    pub id: String,
    /// When it was accepted, in microseconds since 1970 by the clock of the process that did.
    pub at: u64,
    /// The entry of the dead letters that it was sent again from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<i64>,
    /// The row, byte for byte as it came.
    pub row: Box<RawValue>,
}

impl Envelope {
    /// A row accepted now.
    pub(crate) fn new(id: String, row: Box<RawValue>, parked: Option<i64>) -> Self {
        Self {
            id,
            at: micros(SystemTime::now()),
            parked,
            row,
        }
    }

    pub(crate) fn decode(data: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(data)
    }

    pub(crate) fn encode(&self) -> Result<Bytes, serde_json::Error> {
        serde_json::to_vec(self).map(Bytes::from)
    }

    /// What the queue remembers it by. It has the row in it, so that another row under the same key is not dropped as a
    /// repeat: it reaches the writer, which parks it.
    pub(crate) fn queue_key(&self, topic_key: &str, attempt: i64) -> String {
        let digest = digest(self.row.get());
        match self.parked {
            Some(number) => format!("{topic_key}/{digest}/{number}-{attempt}/{}", self.id),
            None => format!("{topic_key}/{digest}/{}", self.id),
        }
    }
}

/// A short fingerprint of a text.
pub(crate) fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Checks a key that a client chose.
pub(crate) fn check_key(key: &str) -> Result<(), String> {
    let printable = key.bytes().all(|byte| byte.is_ascii_graphic());
    if key.is_empty() || key.len() > KEY_MAX || !printable {
        return Err(format!(
            "Idempotency-Key must be 1 to {KEY_MAX} printable ASCII characters without spaces"
        ));
    }
    Ok(())
}

pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn from_micros(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(row: &str, parked: Option<i64>) -> Envelope {
        Envelope::new(
            "k".to_owned(),
            RawValue::from_string(row.to_owned()).unwrap(),
            parked,
        )
    }

    #[test]
    fn a_row_keeps_its_bytes() {
        let sent = envelope("{ \"n\" : 1.50 }", None);
        let got = Envelope::decode(&sent.encode().unwrap()).unwrap();
        assert_eq!(
            (got.row.get(), got.at, got.id.as_str()),
            ("{ \"n\" : 1.50 }", sent.at, "k")
        );
        assert_eq!(micros(from_micros(sent.at)), sent.at);
    }

    #[test]
    fn another_row_or_another_attempt_is_no_repeat_to_the_queue() {
        let first = envelope("1", None).queue_key("acme.orders", 0);
        assert_eq!(first, envelope("1", None).queue_key("acme.orders", 0));
        assert_ne!(first, envelope("2", None).queue_key("acme.orders", 0));
        assert_ne!(first, envelope("1", Some(7)).queue_key("acme.orders", 0));
        let again = |attempt| envelope("1", Some(7)).queue_key("acme.orders", attempt);
        assert_ne!(again(1), again(2));
    }

    #[test]
    fn a_key_fits_a_header_and_an_event_id() {
        for bad in ["", "a b", "a\nb", "ä", &"x".repeat(129)] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
        check_key("order/4711:1").unwrap();
    }
}
