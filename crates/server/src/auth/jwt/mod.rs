//! Operator mode: identities as signed claims.
//!
//! A JWT of NATS is `header.claims.signature`, each in URL-safe base64 without padding, signed with an nkey. An
//! operator signs accounts, an account (or one of its signing keys) signs users, an exporting account signs
//! activations for importers. Two versions are in use:
//!
//! | | 2 | 1 |
//! |---|---|---|
//! | header `alg` | `ed25519-nkey` | `ed25519` |
//! | type and tags | inside `nats` | at the top |
//! | signed text | `header.claims` | `claims` |
//! | user limits that are absent | 0 | no limit |
//!
//! [`decode`] takes any text, never panics, and answers only claims whose signature is right and whose issuer has the
//! right kind of key. Whether that issuer is to be trusted, and whether the claims still hold, is decided by the trust
//! compiled from [`JwtOptions`](crate::options::JwtOptions), which [`Authenticator`](super::Authenticator) owns.
//!
//! | file | holds |
//! |---|---|
//! | `claims` | the claims as data |
//! | `checks` | what makes claims invalid as a whole |
//! | `account` | account claims as [`AccountOptions`](crate::options::AccountOptions) |
//! | `exchange` | exports and imports between claimed accounts, activations |
//! | `template` | permissions of scoped signing keys |
//! | `times` | daily connect times |
//! | `trust` | the chain from operator to user |

mod account;
mod checks;
pub mod claims;
mod exchange;
mod template;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
mod times;
mod trust;

pub use account::ClaimedAccount;
pub(super) use trust::Trust;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::{KeyPair, KeyPairType};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use claims::{AccountClaims, ActivationClaims, Common, OperatorClaims, UserClaims};

/// Longest JWT that is looked at, in bytes.
pub const JWT_BYTES_MAX: usize = 1 << 20;

/// Why a text is not a JWT that could be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// Longer than [`JWT_BYTES_MAX`].
    #[error("token size {0} exceeds maximum of {JWT_BYTES_MAX} bytes")]
    TooLarge(usize),
    /// Not three parts separated by dots.
    #[error("expected 3 chunks")]
    Parts,
    /// A part is not URL-safe base64 without padding.
    #[error("{0} is not base64")]
    Base64(&'static str),
    /// A part is not the JSON it should be.
    #[error("{part} is not valid: {problem}")]
    Json {
        /// The part.
        part: &'static str,
        /// What the JSON reader found.
        problem: String,
    },
    /// The header does not say `JWT` and one of the two algorithms.
    #[error("not supported type {typ:?} or algorithm {alg:?}")]
    Header {
        /// `typ`.
        typ: String,
        /// `alg`.
        alg: String,
    },
    /// A version that is not known.
    #[error("version {0} of the claims is not supported")]
    Version(i64),
    /// Claims of another kind than the one wanted.
    #[error("not {wanted} claim but {found:?}")]
    Kind {
        /// What was wanted.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// The issuer is not a key of a kind that may sign such claims.
    #[error("the issuer may not sign such claims")]
    Issuer,
    /// The signature is not the issuer's.
    #[error("claim failed signature verification")]
    Signature,
}

/// Claims of one of the kinds that a server reads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Claims {
    /// An operator's.
    Operator(OperatorClaims),
    /// An account's.
    Account(Box<AccountClaims>),
    /// A user's.
    User(Box<UserClaims>),
    /// An exporter's permission for an importer.
    Activation(ActivationClaims),
}

impl Claims {
    fn kind(&self) -> &'static str {
        match self {
            Self::Operator(_) => "operator",
            Self::Account(_) => "account",
            Self::User(_) => "user",
            Self::Activation(_) => "activation",
        }
    }

    fn instead_of(&self, wanted: &'static str) -> JwtError {
        JwtError::Kind {
            wanted,
            found: self.kind().to_owned(),
        }
    }
}

/// Reads a JWT and checks its signature.
///
/// # Errors
///
/// See [`JwtError`].
pub fn decode(token: &str) -> Result<Claims, JwtError> {
    if token.len() > JWT_BYTES_MAX {
        return Err(JwtError::TooLarge(token.len()));
    }
    let mut parts = token.split('.');
    let (Some(header), Some(body), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(JwtError::Parts);
    };
    check_header(&from_base64("header", header)?)?;
    let mut top: Value = from_json("claims", &from_base64("claims", body)?)?;
    drop_nulls(&mut top);
    let shape: Shape = from_value("claims", &top)?;
    let common = Common::from(&shape);
    let signed = match common.version {
        1 => body,
        _ => &token[..header.len() + 1 + body.len()],
    };
    let signature = from_base64("signature", signature)?;
    let issuer = KeyPair::from_public_key(&common.issuer).map_err(|_| JwtError::Issuer)?;
    issuer
        .verify(signed.as_bytes(), &signature)
        .map_err(|_| JwtError::Signature)?;
    read_claims(&shape, common, &issuer.key_pair_type())
}

/// Reads a JWT that must be a user's.
///
/// # Errors
///
/// See [`JwtError`].
pub fn decode_user(token: &str) -> Result<UserClaims, JwtError> {
    match decode(token)? {
        Claims::User(claims) => Ok(*claims),
        other => Err(other.instead_of("user")),
    }
}

/// Reads a JWT that must be an account's.
///
/// # Errors
///
/// See [`JwtError`].
pub fn decode_account(token: &str) -> Result<AccountClaims, JwtError> {
    match decode(token)? {
        Claims::Account(claims) => Ok(*claims),
        other => Err(other.instead_of("account")),
    }
}

/// Reads a JWT that must be an operator's. The text may be a file in which the JWT stands between two marker lines.
///
/// # Errors
///
/// See [`JwtError`].
pub fn decode_operator(text: &str) -> Result<OperatorClaims, JwtError> {
    let token = text
        .split_whitespace()
        .find(|word| word.starts_with("eyJ"))
        .unwrap_or_else(|| text.trim());
    match decode(token)? {
        Claims::Operator(claims) => Ok(claims),
        other => Err(other.instead_of("operator")),
    }
}

fn decode_activation(token: &str) -> Result<ActivationClaims, JwtError> {
    match decode(token)? {
        Claims::Activation(claims) => Ok(claims),
        other => Err(other.instead_of("activation")),
    }
}

/// The top level of both versions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Shape {
    jti: String,
    name: String,
    sub: String,
    iss: String,
    iat: i64,
    exp: i64,
    nbf: i64,
    #[serde(rename = "type")]
    kind: String,
    tags: Vec<String>,
    issuer_account: String,
    nats: Value,
}

impl Shape {
    /// The kind; version 1 has it at the top.
    fn kind(&self) -> &str {
        if self.kind.is_empty() {
            self.nats.get("type").and_then(Value::as_str).unwrap_or_default()
        } else {
            &self.kind
        }
    }

    fn version(&self) -> i64 {
        if self.kind.is_empty() {
            self.nats
                .get("version")
                .and_then(Value::as_i64)
                .unwrap_or_default()
        } else {
            1
        }
    }
}

impl From<&Shape> for Common {
    fn from(shape: &Shape) -> Self {
        let inner_tags = || {
            let tags = shape.nats.get("tags").and_then(Value::as_array);
            let texts = tags.into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        let version = shape.version();
        Self {
            id: shape.jti.clone(),
            name: shape.name.clone(),
            subject: shape.sub.clone(),
            issuer: shape.iss.clone(),
            issued_at: shape.iat,
            expires: shape.exp,
            not_before: shape.nbf,
            tags: if version == 1 {
                shape.tags.clone()
            } else {
                inner_tags()
            },
            version,
        }
    }
}

fn read_claims(shape: &Shape, common: Common, issuer: &KeyPairType) -> Result<Claims, JwtError> {
    use KeyPairType::{Account, Operator};
    if !matches!(common.version, 1 | 2) {
        return Err(JwtError::Version(common.version));
    }
    let issued_by = |kinds: &[KeyPairType]| {
        if kinds.contains(issuer) {
            Ok(())
        } else {
            Err(JwtError::Issuer)
        }
    };
    let nats = match &shape.nats {
        Value::Null => &Value::Object(serde_json::Map::new()),
        present => present,
    };
    match shape.kind() {
        "operator" => {
            issued_by(&[Operator])?;
            let body = from_value("nats", nats)?;
            Ok(Claims::Operator(OperatorClaims { common, body }))
        }
        "account" => {
            issued_by(&[Account, Operator])?;
            let body = from_value("nats", nats)?;
            Ok(Claims::Account(Box::new(AccountClaims { common, body })))
        }
        "user" => {
            issued_by(&[Account])?;
            let access = from_value("nats", nats)?;
            let issuer_account = match (common.version, nats.get("issuer_account")) {
                (1, _) => shape.issuer_account.clone(),
                (_, Some(Value::String(account))) => account.clone(),
                _ => String::new(),
            };
            Ok(Claims::User(Box::new(UserClaims {
                common,
                issuer_account,
                access,
            })))
        }
        "activation" => {
            issued_by(&[Account, Operator])?;
            let mut nats = nats.clone();
            if common.version == 1 {
                nats["kind"] = nats["type"].take();
                nats["issuer_account"] = Value::String(shape.issuer_account.clone());
            }
            drop_nulls(&mut nats);
            let body = from_value("nats", &nats)?;
            Ok(Claims::Activation(ActivationClaims { common, body }))
        }
        other => Err(JwtError::Kind {
            wanted: "an operator, account, user or activation",
            found: other.to_owned(),
        }),
    }
}

fn check_header(json: &[u8]) -> Result<(), JwtError> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Header {
        typ: String,
        alg: String,
    }
    let Header { typ, alg } = from_json("header", json)?;
    let known = ["ed25519", "ed25519-nkey"]
        .iter()
        .any(|known| alg.eq_ignore_ascii_case(known));
    if typ.eq_ignore_ascii_case("JWT") && known {
        Ok(())
    } else {
        Err(JwtError::Header { typ, alg })
    }
}

fn from_base64(part: &'static str, text: &str) -> Result<Vec<u8>, JwtError> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| JwtError::Base64(part))
}

fn from_json<T: DeserializeOwned>(part: &'static str, json: &[u8]) -> Result<T, JwtError> {
    serde_json::from_slice(json).map_err(|error| unreadable(part, &error))
}

fn from_value<T: DeserializeOwned>(part: &'static str, value: &Value) -> Result<T, JwtError> {
    T::deserialize(value).map_err(|error| unreadable(part, &error))
}

fn unreadable(part: &'static str, error: &serde_json::Error) -> JwtError {
    JwtError::Json {
        part,
        problem: error.to_string(),
    }
}

/// A `null` member means an absent one. The depth is bounded by the JSON reader's.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
