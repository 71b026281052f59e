//! Nkeys: nonces, signatures over them, and the keys that name servers.
//!
//! An nkey is an Ed25519 key in base32 with a prefix that tells what it is for. Clients sign the nonce of INFO as
//! it stands there (its ASCII text) and send the signature in base64: URL-safe without padding, or, from some
//! clients, standard with padding.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nkeys::{KeyPair, KeyPairType};

/// Random bytes in a nonce.
const NONCE_BYTES: usize = 11;

/// Whether this is a well-formed public key of the given type.
pub(super) fn is_public_key(text: &str, of: &KeyPairType) -> bool {
    KeyPair::from_public_key(text).is_ok_and(|key| key.key_pair_type() == *of)
}

/// A new nonce: 15 ASCII characters, never the same twice.
pub fn new_nonce() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; NONCE_BYTES]>())
}

/// A new server id: a public server key (`N…`, 56 characters).
///
/// Its private key is thrown away: nothing is ever signed with it.
pub fn new_server_id() -> String {
    KeyPair::new_server().public_key()
}

/// Whether `signature` (base64) is one of `message` by the key whose public part is `public_key`.
pub fn verify(public_key: &str, message: &[u8], signature: &str) -> bool {
    let Ok(key) = KeyPair::from_public_key(public_key) else {
        return false;
    };
    decode_signature(signature).is_some_and(|signature| key.verify(message, &signature).is_ok())
}

fn decode_signature(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD
        .decode(text)
        .or_else(|_| STANDARD.decode(text))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_read_in_both_kinds_of_base64() {
        let user = KeyPair::new_user();
        // Enough nonces that some signatures hold characters which differ between the two alphabets.
        for _ in 0..20 {
            let nonce = new_nonce();
            let signature = user.sign(nonce.as_bytes()).unwrap();
            for text in [URL_SAFE_NO_PAD.encode(&signature), STANDARD.encode(&signature)] {
                assert!(verify(&user.public_key(), nonce.as_bytes(), &text), "{text}");
            }
        }
    }

    #[test]
    fn anything_but_the_right_signature_is_refused() {
        let user = KeyPair::new_user();
        let signature = URL_SAFE_NO_PAD.encode(user.sign(b"nonce").unwrap());
        let key = user.public_key();
        assert!(verify(&key, b"nonce", &signature));
        assert!(!verify(&key, b"other", &signature));
        assert!(!verify(&KeyPair::new_user().public_key(), b"nonce", &signature));
        assert!(!verify(&key, b"nonce", &signature[..40]));
        assert!(!verify(&key, b"nonce", "not base64!"));
        assert!(!verify(&key, b"nonce", ""));
        assert!(!verify("", b"nonce", &signature));
        assert!(!verify(&key[..55], b"nonce", &signature));
        assert!(!verify(&key.replace('U', "Ü"), b"nonce", &signature));
    }

    #[test]
    fn nonces_are_fifteen_characters_and_new_each_time() {
        let (a, b) = (new_nonce(), new_nonce());
        assert_eq!((a.len(), b.len()), (15, 15));
        assert_ne!(a, b);
    }

    #[test]
    fn a_server_id_is_a_public_server_key() {
        let id = new_server_id();
        assert_eq!(id.len(), 56);
        assert!(id.starts_with('N'));
        assert!(is_public_key(&id, &KeyPairType::Server));
        assert!(!is_public_key(&id, &KeyPairType::User));
    }
}
