//! Whose data it is.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind};

/// The longest id in bytes.
pub const TENANT_ID_MAX: usize = 64;

/// Names that are kept for folders of the broker itself, in any letter case.
const RESERVED: [&str; 2] = ["nats", "pebble"];

/// A validated tenant id: 1 to 64 of `A-Z a-z 0-9 _ -`.
///
/// Such an id is one subject token, a folder name and the end of a stream name without any escaping. There is no way
/// around the check, so what takes a `TenantId` need not look again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(Box<str>);

impl TenantId {
    /// The id of the tenant of a service that has only one: `0`. No call falls back to it by itself.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self("0".into())
    }

    /// Checks an id.
    ///
    /// # Errors
    /// When it is empty, too long, holds a byte outside the alphabet, or is reserved; the text says which. The kind is
    /// [`ErrorKind::Invalid`].
    pub fn parse(id: &str) -> Result<Self, Error> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if id.is_empty() {
            return refuse("tenant id is empty".to_owned());
        }
        if id.len() > TENANT_ID_MAX {
            return refuse(format!(
                "tenant id of {} bytes is over the limit of {TENANT_ID_MAX}",
                id.len()
            ));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if let Some((index, byte)) = id.bytes().enumerate().find(|&(_, byte)| !allowed(byte)) {
            return refuse(format!(
                "tenant id has byte 0x{byte:02x} at index {index}; allowed are A-Z a-z 0-9 _ -"
            ));
        }
        if RESERVED.iter().any(|name| name.eq_ignore_ascii_case(id)) {
            return refuse(format!("tenant id {id:?} is reserved"));
        }
        Ok(Self(id.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TenantId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        Self::parse(id)
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for TenantId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_one_subject_token_that_is_also_a_folder_name() {
        for id in ["0", "acme-co", "Acme_42", "DLQ", "INGEST_acme", &"a".repeat(64)] {
            assert_eq!(TenantId::parse(id).unwrap().as_str(), id);
        }
        for id in [
            "a.b", "*", ">", "a b", "a%2Eb", "é", "a/b", "nats", "Pebble", "NATS",
        ] {
            assert!(TenantId::parse(id).unwrap_err().is(ErrorKind::Invalid), "{id}");
        }
        assert_eq!(TenantId::default_tenant(), TenantId::parse("0").unwrap());
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        let text = |id: &str| TenantId::parse(id).unwrap_err().to_string();
        assert_eq!(text(""), "tenant id is empty");
        assert_eq!(
            text(&"a".repeat(65)),
            "tenant id of 65 bytes is over the limit of 64"
        );
        assert!(text("ab.c").contains("0x2e at index 2"));
        assert!(text("nats").contains("reserved"));
    }
}
