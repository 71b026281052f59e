//! Join tokens: how a worker proves that it may enrol its key. Only their hashes are kept.

use std::time::{Duration, Instant};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::error::{BusError, ErrorKind};

const PREFIX: &str = "sqiw_";
/// Characters that may be shown of a token.
const SHOWN: usize = 12;

/// A token as it is handed to an operator, once.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken(String);

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("JoinToken").field(&self.shown()).finish()
    }
}

impl JoinToken {
    /// A new random token.
    #[must_use]
    pub fn generate() -> Self {
        let random: [u8; 32] = rand::random();
        Self(format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&random)))
    }

    /// The text, which is the secret.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// The first characters, for lists and logs.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.0.get(..SHOWN).unwrap_or(&self.0)
    }
}

fn hash(token: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(token.as_bytes()))
}

/// The tokens that are good at this moment, in memory.
#[derive(Debug, Default)]
pub struct JoinTokens {
    known: Mutex<Vec<Known>>,
}

#[derive(Debug)]
struct Known {
    hash: String,
    shown: String,
    until: Instant,
    single_use: bool,
}

impl JoinTokens {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new token that is good for `life`, 1 minute to 24 hours.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for another life.
    pub fn issue(&self, life: Duration, single_use: bool) -> crate::Result<JoinToken> {
        if !(Duration::from_secs(60)..=Duration::from_secs(24 * 3600)).contains(&life) {
            return Err(BusError::new(
                ErrorKind::Config,
                format!("a join token lives 1 minute to 24 hours, not {life:?}"),
            ));
        }
        let token = JoinToken::generate();
        self.known.lock().push(Known {
            hash: hash(token.secret()),
            shown: token.shown().to_owned(),
            until: Instant::now() + life,
            single_use,
        });
        Ok(token)
    }

    /// Spends a token; the characters of it that may be shown.
    ///
    /// # Errors
    /// [`ErrorKind::AuthRejected`] when it is unknown, spent or too old.
    pub fn redeem(&self, token: &str) -> crate::Result<String> {
        let hash = hash(token.trim());
        let mut known = self.known.lock();
        let now = Instant::now();
        known.retain(|known| known.until > now);
        let Some(place) = known.iter().position(|known| known.hash == hash) else {
            return Err(BusError::new(
                ErrorKind::AuthRejected,
                "the join token is unknown, spent or too old; ask for a new one",
            ));
        };
        let shown = known[place].shown.clone();
        if known[place].single_use {
            known.swap_remove(place);
        }
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_use_token_is_good_once_and_no_other_text_is() {
        let tokens = JoinTokens::new();
        let token = tokens.issue(Duration::from_secs(3600), true).unwrap();
        assert!(token.secret().starts_with("sqiw_") && token.secret().len() == 5 + 43);
        assert!(tokens.redeem("sqiw_other").is_err());
        assert_eq!(tokens.redeem(token.secret()).unwrap(), token.shown());
        assert_eq!(
            tokens.redeem(token.secret()).unwrap_err().kind(),
            &ErrorKind::AuthRejected
        );
        let many = tokens.issue(Duration::from_secs(3600), false).unwrap();
        assert!(tokens.redeem(many.secret()).is_ok() && tokens.redeem(many.secret()).is_ok());
        assert!(tokens.issue(Duration::from_secs(5), true).is_err());
        assert!(!format!("{token:?}").contains(token.secret()));
    }
}
