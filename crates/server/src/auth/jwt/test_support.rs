//! Keys and signed claims for tests: an operator, an account and a user, every claim of which can be changed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// Signs claims as version 2.
pub(crate) fn sign(issuer: &KeyPair, claims: &Value) -> String {
    sign_with(
        issuer,
        &json!({"typ": "JWT", "alg": "ed25519-nkey"}),
        claims,
        false,
    )
}

/// Signs claims as version 1: the signature is over the claims alone.
pub(crate) fn sign_v1(issuer: &KeyPair, claims: &Value) -> String {
    sign_with(issuer, &json!({"typ": "jwt", "alg": "ed25519"}), claims, true)
}

pub(crate) fn sign_with(issuer: &KeyPair, header: &Value, claims: &Value, body_only: bool) -> String {
    let header = URL_SAFE_NO_PAD.encode(header.to_string());
    let body = URL_SAFE_NO_PAD.encode(claims.to_string());
    let text = format!("{header}.{body}");
    let signed = if body_only { &body } else { &text };
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

/// Claims of version 2 with the given `nats` object; `extra` is merged into the top level.
pub(crate) fn claims(issuer: &KeyPair, subject: &KeyPair, kind: &str, nats: Value, extra: Value) -> Value {
    let mut nats = nats;
    nats["type"] = kind.into();
    nats["version"] = 2.into();
    let mut claims = json!({
        "jti": "ID",
        "iat": 1_000,
        "iss": issuer.public_key(),
        "name": format!("the {kind}"),
        "sub": subject.public_key(),
        "nats": nats,
    });
    if let (Some(claims), Value::Object(extra)) = (claims.as_object_mut(), extra) {
        claims.extend(extra);
    }
    claims
}

/// An account object without limits.
pub(crate) fn open_account() -> Value {
    json!({"limits": {
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    }})
}

/// A user object without limits.
pub(crate) fn open_user() -> Value {
    json!({"subs": -1, "data": -1, "payload": -1})
}

/// Merges `change` into `base`, object by object.
pub(crate) fn with(mut base: Value, change: Value) -> Value {
    match (&mut base, change) {
        (Value::Object(members), Value::Object(changes)) => {
            for (name, value) in changes {
                let old = members.remove(&name).unwrap_or(Value::Null);
                members.insert(name, with(old, value));
            }
            base
        }
        (_, change) => change,
    }
}
