//! Comparing what a client sent with a configured password or token.
//!
//! A configured value of the form `$2a$10$…` is a bcrypt hash; anything else is the password itself and is compared
//! byte by byte in constant time. Bcrypt takes tens of milliseconds and more by design: who calls
//! [`Authenticator::authenticate`](super::Authenticator::authenticate) from an async task asks
//! [`Authenticator::needs_blocking`](super::Authenticator::needs_blocking) first.

use super::credentials::Secret;

/// Whether a configured value is a bcrypt hash: `$2`, one of `abxy`, `$`, two digits, `$`.
pub(super) fn is_bcrypt(configured: &str) -> bool {
    matches!(
        configured.as_bytes(),
        [
            b'$',
            b'2',
            b'a' | b'b' | b'x' | b'y',
            b'$',
            b'0'..=b'9',
            b'0'..=b'9',
            b'$',
            ..
        ]
    )
}

/// Whether the client's password or token is the configured one. May take long, see the module's page.
pub(super) fn agrees(configured: &Secret, given: &Secret) -> bool {
    if is_bcrypt(configured.reveal()) {
        // An unreadable hash admits nobody.
        bcrypt::verify(given.reveal(), configured.reveal()).unwrap_or(false)
    } else {
        configured == given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the password `s3cr3t`, at the lowest cost, under each of the prefixes in use.
    fn hashes() -> Vec<String> {
        let hash = bcrypt::hash("s3cr3t", 4).unwrap();
        let rest = hash.split_at(4).1.to_owned();
        ["$2a$", "$2b$", "$2x$", "$2y$"]
            .iter()
            .map(|prefix| format!("{prefix}{}", rest.trim_start_matches('$')))
            .collect()
    }

    #[test]
    fn bcrypt_is_told_by_its_prefix() {
        for hash in hashes() {
            assert!(is_bcrypt(&hash), "{hash}");
        }
        for plain in [
            "",
            "$",
            "$2a",
            "$2c$10$x",
            "$2a$1$x",
            "$2a$10",
            "x$2a$10$x",
            "$2a$ab$x",
        ] {
            assert!(!is_bcrypt(plain), "{plain}");
        }
        assert!(is_bcrypt("$2a$10$"));
    }

    #[test]
    fn a_hash_admits_its_password_only() {
        for hash in hashes() {
            let configured = Secret::from(hash.as_str());
            assert!(agrees(&configured, &"s3cr3t".into()), "{hash}");
            assert!(!agrees(&configured, &"S3cr3t".into()));
            assert!(
                !agrees(&configured, &hash.as_str().into()),
                "the hash is not the password"
            );
        }
        assert!(!agrees(&"$2a$10$nonsense".into(), &"$2a$10$nonsense".into()));
    }

    #[test]
    fn plain_text_is_compared_bytewise() {
        assert!(agrees(&"pässword".into(), &"pässword".into()));
        assert!(!agrees(&"pässword".into(), &"passwörd".into()));
        assert!(agrees(&"".into(), &"".into()));
        assert!(!agrees(&"a".into(), &"".into()));
    }
}
