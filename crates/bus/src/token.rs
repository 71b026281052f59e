//! Tokens: the identifiers that become one part of a subject.

use std::fmt;
use std::str::FromStr;

use crate::error::{BusError, ErrorKind};

/// Longest token in bytes.
pub const TOKEN_MAX: usize = 128;

/// One validated part of a subject: 1 to 128 visible ASCII characters without `.`, `*` and `>`.
///
/// An identifier with anything else in it either routes nowhere or widens somebody's subscription. It is refused, never
/// altered.
///
/// ```
/// use windjet_bus::Token;
///
/// let job: Token = "job-7".parse()?;
/// assert_eq!(windjet_bus::subjects::task_status_subject(&job), "task.status.job-7");
/// assert!("job.7".parse::<Token>().is_err());
/// # Ok::<(), windjet_bus::BusError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(Box<str>);

impl Token {
    /// Checks an identifier.
    ///
    /// # Errors
    /// [`ErrorKind::BadToken`] when it is empty, longer than [`TOKEN_MAX`], or has a character that no token may have.
    pub fn new(id: &str) -> Result<Self, BusError> {
        let reason = if id.is_empty() {
            Some("it is empty")
        } else if id.len() > TOKEN_MAX {
            Some("it is longer than 128 bytes")
        } else if !id.bytes().all(is_allowed) {
            Some("it may have only visible ASCII characters other than '.', '*' and '>'")
        } else {
            None
        };
        match reason {
            None => Ok(Self(id.into())),
            Some(reason) => Err(BusError::new(
                ErrorKind::BadToken,
                format!("cannot use {id:?} in a subject: {reason}"),
            )),
        }
    }

    /// Checks the identifier of a queue, which may not begin with the reserved `_`.
    ///
    /// # Errors
    /// As [`Token::new`]; also for a leading underscore.
    pub fn queue(id: &str) -> Result<Self, BusError> {
        if id.starts_with('_') {
            return Err(BusError::new(
                ErrorKind::BadToken,
                format!("cannot use {id:?} as a queue: names that begin with '_' belong to the bus"),
            ));
        }
        Self::new(id)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_allowed(byte: u8) -> bool {
    (b'!'..=b'~').contains(&byte) && !matches!(byte, b'.' | b'*' | b'>')
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Token {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = BusError;

    fn from_str(id: &str) -> Result<Self, BusError> {
        Self::new(id)
    }
}

impl TryFrom<&str> for Token {
    type Error = BusError;

    fn try_from(id: &str) -> Result<Self, BusError> {
        Self::new(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// S-5: whatever is made of allowed characters is a token, unchanged.
        #[test]
        fn s5_allowed_characters_make_a_token(id in "[!-)+-\\-/-=?-~]{1,128}") {
            let token = Token::new(&id).unwrap();
            prop_assert_eq!(token.as_str(), id);
        }

        /// S-5: one character outside the class anywhere makes it none.
        #[test]
        fn s5_one_wrong_character_is_refused(
            before in "[a-z0-9-]{0,9}",
            wrong in prop_oneof![
                Just('.'), Just('*'), Just('>'), Just(' '), Just('\t'), Just('\r'), Just('\n'), Just('\u{7f}'),
                prop::char::range('\0', '\u{1f}'), prop::char::range('\u{80}', '\u{10ffff}'),
            ],
            after in "[a-z0-9-]{0,9}",
        ) {
            let id = format!("{before}{wrong}{after}");
            let error = Token::new(&id).unwrap_err();
            prop_assert_eq!(error.kind(), &ErrorKind::BadToken);
        }
    }

    #[test]
    fn s5_empty_and_overlong_identifiers_are_refused() {
        assert!(Token::new("").is_err());
        assert!(Token::new(&"x".repeat(TOKEN_MAX)).is_ok());
        assert!(Token::new(&"x".repeat(TOKEN_MAX + 1)).is_err());
    }

    #[test]
    fn a_queue_may_not_take_a_reserved_name() {
        assert!(Token::queue("_any").is_err());
        assert!(Token::queue("q_any").is_ok());
        assert!(Token::new("_any").is_ok());
    }
}
