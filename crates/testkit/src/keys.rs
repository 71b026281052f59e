//! Keys and JSON Web Tokens for tests.
//!
//! A key is made from its name, so that a script has the same keys on both servers and in every run; such keys
//! protect nothing. [`jwt`] signs claims in the form that NATS servers read.

use anyhow::{Context as _, Result};
use data_encoding::{BASE64, BASE64URL_NOPAD};
use nkeys::{KeyPair, KeyPairType};

use crate::json::Json;

/// Makes the key of this name and kind (`operator`, `account` or `user`).
///
/// # Errors
/// For another kind.
pub fn key(name: &str, kind: &str) -> Result<KeyPair> {
    let kind = match kind {
        "operator" => KeyPairType::Operator,
        "account" => KeyPairType::Account,
        "user" => KeyPairType::User,
        other => anyhow::bail!("no kind of key is called {other}"),
    };
    let mut raw = [0; 32];
    for (index, byte) in name.bytes().enumerate() {
        raw[index % 32] ^= byte.rotate_left(u32::try_from(index / 32)?);
    }
    raw[31] ^= 0x5a;
    KeyPair::new_from_raw(kind, raw).context("making a key")
}

/// Signs `text` and encodes the signature: URL-safe without padding, or the standard way when `standard`.
///
/// # Errors
/// When the key cannot sign.
pub fn signature(key: &KeyPair, text: &str, standard: bool) -> Result<String> {
    let signature = key.sign(text.as_bytes()).context("signing")?;
    Ok(if standard {
        BASE64.encode(&signature)
    } else {
        BASE64URL_NOPAD.encode(&signature)
    })
}

/// Makes a token of `claims` signed by `issuer`. `iss` and `jti` are filled in; claims with a top-level `type` make
/// a token of version 1, all others one of version 2.
///
/// # Errors
/// When `claims` is not a JSON object or the key cannot sign.
pub fn jwt(issuer: &KeyPair, claims: &str) -> Result<String> {
    let mut claims = Json::parse(claims).with_context(|| format!("claims {claims}"))?;
    let old = claims.field("type").is_some();
    claims.set("iss", Json::string(&issuer.public_key()));
    claims.set("jti", Json::string("TESTTOKEN"));
    let header = if old {
        r#"{"typ":"jwt","alg":"ed25519"}"#
    } else {
        r#"{"typ":"JWT","alg":"ed25519-nkey"}"#
    };
    let header = BASE64URL_NOPAD.encode(header.as_bytes());
    let body = BASE64URL_NOPAD.encode(claims.compact().as_bytes());
    let signed = if old {
        body.clone()
    } else {
        format!("{header}.{body}")
    };
    Ok(format!("{header}.{body}.{}", signature(issuer, &signed, false)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_name() {
        let key = |name| key(name, "user").unwrap().public_key();
        assert_eq!(key("alice"), key("alice"));
        assert_ne!(key("alice"), key("bob"));
        assert!(key("alice").starts_with('U'));
    }

    #[test]
    fn a_token_carries_claims_issuer_and_a_signature_that_holds() {
        let issuer = key("issuer", "account").unwrap();
        let token = jwt(&issuer, r#"{"sub":"x","nats":{"type":"user","version":2}}"#).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        issuer.verify(signed.as_bytes(), &signature).unwrap();
        let body = BASE64URL_NOPAD
            .decode(signed.split_once('.').unwrap().1.as_bytes())
            .unwrap();
        assert!(String::from_utf8(body).unwrap().contains(&issuer.public_key()));
    }
}
