//! What holds for any text given as a JWT, and for any claims that are properly signed. Used by the fuzz target and by
//! the test that replays its corpus.
//!
//! Chance never makes a valid signature. So an input that is a JSON object is also taken as claims: it is signed with a
//! fixed key and put in its place in a chain of operator, account and user, so that all behind the signature is reached.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::{KeyPair, KeyPairType};
use serde_json::{Value, json};
use windjet_server::Options;
use windjet_server::auth::jwt::{self, JwtError};
use windjet_server::auth::{Attempt, Authenticator, Credentials};
use windjet_server::options::{ConnectionType, JwtOptions};

const NONCE: &[u8] = b"abcdefghijklmno";

/// How far an input came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reached {
    /// It is not a JWT and not claims.
    Nothing,
    /// It was read.
    Decoded,
    /// With it in its place, a user was admitted or an import served.
    Admitted,
}

/// Gives the bytes to everything that reads JWTs; panics only if something there does.
pub(crate) fn check(bytes: &[u8]) -> Reached {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Reached::Nothing;
    };
    let as_text = jwt::decode(text).is_ok() | jwt::decode_operator(text).is_ok();
    let as_claims = match serde_json::from_str(text) {
        Ok(claims @ Value::Object(_)) => Chain::new().check(claims),
        _ => Reached::Nothing,
    };
    as_claims.max(if as_text {
        Reached::Decoded
    } else {
        Reached::Nothing
    })
}

struct Chain {
    operator: KeyPair,
    account: KeyPair,
    importer: KeyPair,
    user: KeyPair,
}

impl Chain {
    fn new() -> Self {
        let key = |kind, byte| KeyPair::new_from_raw(kind, [byte; 32]).unwrap();
        Self {
            operator: key(KeyPairType::Operator, 1),
            account: key(KeyPairType::Account, 2),
            importer: key(KeyPairType::Account, 3),
            user: key(KeyPairType::User, 4),
        }
    }

    fn check(&self, claims: Value) -> Reached {
        let kind = claims["type"]
            .as_str()
            .or_else(|| claims["nats"]["type"].as_str());
        let (issuer, subject) = match kind {
            Some("operator") => (&self.operator, &self.operator),
            Some("account") => (&self.operator, &self.account),
            Some("user") => (&self.account, &self.user),
            Some("activation") => (&self.account, &self.importer),
            _ => return Reached::Nothing,
        };
        let kind = kind.unwrap_or_default().to_owned();
        let token = sign(issuer, subject, claims);
        match jwt::decode(&token) {
            Ok(_) => {}
            Err(JwtError::Signature | JwtError::Parts | JwtError::Base64(_)) => {
                panic!("signed but refused: {token}")
            }
            Err(_) => return Reached::Nothing,
        }
        let admitted = match kind.as_str() {
            "operator" => self.admits(token, self.open_account(json!({})), self.open_user()),
            "account" => self.admits(self.open_operator(), token, self.open_user()),
            "user" => self.admits(self.open_operator(), self.open_account(json!({})), token),
            _ => self.serves(&token),
        };
        if admitted {
            Reached::Admitted
        } else {
            Reached::Decoded
        }
    }

    fn open_operator(&self) -> String {
        let nats = json!({"type": "operator", "version": 2});
        sign(&self.operator, &self.operator, json!({ "nats": nats }))
    }

    fn open_account(&self, extra: Value) -> String {
        sign(&self.operator, &self.account, open_account(extra))
    }

    fn open_user(&self) -> String {
        let nats = json!({"type": "user", "version": 2, "subs": -1, "payload": -1});
        sign(&self.account, &self.user, json!({ "nats": nats }))
    }

    fn admits(&self, operator: String, account: String, user: String) -> bool {
        let Some(server) = server(operator, [(&self.account, account)]) else {
            return false;
        };
        let signature = self.user.sign(NONCE).unwrap();
        let credentials = Credentials {
            jwt: user.into(),
            signature: URL_SAFE_NO_PAD.encode(signature),
            ..Credentials::default()
        };
        let identity = server.authenticate(&Attempt {
            credentials: &credentials,
            nonce: Some(NONCE),
            connection_type: ConnectionType::Standard,
            remote: Some([127, 0, 0, 1].into()),
            certificate: None,
            now: now(),
        });
        let _ = server.claimed_accounts(now());
        identity.is_ok_and(|identity| {
            let _ = server.recheck(&identity, now() + Duration::from_secs(3600));
            true
        })
    }

    /// Whether an import with this activation is served by an export that requires one.
    fn serves(&self, activation: &str) -> bool {
        let exports = json!({"exports": [{"subject": "a.>", "type": "stream", "token_req": true}]});
        let exporter = self.account.public_key();
        let import = json!({"subject": "a.b", "type": "stream", "account": exporter, "token": activation});
        let importer = sign(
            &self.operator,
            &self.importer,
            open_account(json!({ "imports": [import] })),
        );
        let preload = [
            (&self.account, self.open_account(exports)),
            (&self.importer, importer),
        ];
        let Some(server) = server(self.open_operator(), preload) else {
            return false;
        };
        let (accounts, _) = server.claimed_accounts(now());
        accounts.iter().any(|account| !account.options.imports.is_empty())
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn open_account(extra: Value) -> Value {
    let limits = json!({
        "subs": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let mut nats = json!({"type": "account", "version": 2, "limits": limits});
    if let (Some(nats), Value::Object(extra)) = (nats.as_object_mut(), extra) {
        nats.extend(extra);
    }
    json!({ "nats": nats })
}

fn server<'a>(
    operator: String,
    preload: impl IntoIterator<Item = (&'a KeyPair, String)>,
) -> Option<Authenticator> {
    let mut options = Options::default();
    options.auth.jwt = Some(JwtOptions {
        operators: vec![operator],
        preload: preload
            .into_iter()
            .map(|(key, token)| (key.public_key(), token))
            .collect(),
        ..JwtOptions::default()
    });
    Authenticator::from_options(&options).ok()
}

fn sign(issuer: &KeyPair, subject: &KeyPair, mut claims: Value) -> String {
    claims["iss"] = issuer.public_key().into();
    claims["sub"] = subject.public_key().into();
    // A type at the top makes version 1, and so does saying so; its signature is over the claims alone.
    let old = claims["type"].as_str().is_some_and(|kind| !kind.is_empty()) || claims["nats"]["version"] == 1;
    let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let body = URL_SAFE_NO_PAD.encode(claims.to_string());
    let signed = if old {
        body.clone()
    } else {
        format!("{header}.{body}")
    };
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{header}.{body}.{}", URL_SAFE_NO_PAD.encode(signature))
}
