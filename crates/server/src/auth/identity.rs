//! Who a client was found to be, and why one was turned away.

use std::sync::Arc;
use std::time::SystemTime;

use super::Permissions;
use super::credentials::{Evidence, Secret};

/// Shown in place of a token.
pub(super) const REDACTED: &str = "[REDACTED]";

/// By what a client was recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentityKind {
    /// Nothing: the server asks for no credentials.
    Open,
    /// Nothing: it is taken for the `no_auth_user`.
    NoAuthUser,
    /// The single token.
    Token,
    /// The single user and its password.
    SingleUser,
    /// A configured user and its password.
    User,
    /// A configured user named by the TLS certificate.
    Certificate,
    /// A configured public key and a signature over the nonce.
    Nkey,
    /// A user JWT and a signature over the nonce.
    Jwt,
    /// A user JWT that is enough by itself.
    BearerJwt,
}

/// Who a client is and what follows from it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Identity {
    /// By what it was recognised.
    pub kind: IdentityKind,
    /// User name, nkey or JWT subject; `[REDACTED]` for a token; empty for nobody.
    pub user: String,
    /// Account id: the configured name, or the account's public key in operator mode.
    pub account: Arc<str>,
    /// Name of the account for people; equal to `account` unless the account's claims have a name.
    pub account_name: Arc<str>,
    /// What it may do; `None` means everything.
    pub permissions: Option<Arc<Permissions>>,
    /// Largest payload in bytes that its JWT allows, on top of the account's and the server's limits.
    pub max_payload: Option<u64>,
    /// Most subscriptions that its JWT allows, on top of the account's and the server's limits.
    pub max_subscriptions: Option<u64>,
    /// When it has to be turned out, and with which text.
    pub expiry: Option<Expiry>,
    /// When the user itself expires or has to leave; `expires` of `$SYS.REQ.USER.INFO`.
    pub user_expires_at: Option<SystemTime>,
    /// Key that issued the user: the signing key or account of a JWT, the account of a configured nkey.
    pub issuer_key: Option<String>,
    /// Name in the user's JWT.
    pub user_name: Option<String>,
    /// Tags in the user's JWT.
    pub tags: Vec<String>,
    /// The user's JWT.
    pub jwt: Option<Secret>,
    pub(super) evidence: Arc<Evidence>,
}

impl Identity {
    /// An identity that may do everything, for ever.
    pub(super) fn new(kind: IdentityKind, user: String, account: Arc<str>, evidence: Evidence) -> Self {
        Self {
            kind,
            user,
            account_name: account.clone(),
            account,
            permissions: None,
            max_payload: None,
            max_subscriptions: None,
            expiry: None,
            user_expires_at: None,
            issuer_key: None,
            user_name: None,
            tags: Vec::new(),
            jwt: None,
            evidence: Arc::new(evidence),
        }
    }
}

/// The end of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// The moment.
    pub at: SystemTime,
    /// What ends.
    pub of: Expires,
}

/// What makes an identity end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expires {
    /// The user's JWT, or the daily time it may be connected.
    User,
    /// The account's JWT.
    Account,
}

impl Expires {
    /// The text of the `-ERR` sent at that moment.
    pub fn error_text(self) -> &'static str {
        match self {
            Self::User => "User Authentication Expired",
            Self::Account => "Account Authentication Expired",
        }
    }
}

/// Why a client is not admitted. `Display` is for the server's log; the client reads [`AuthFailure::connect_text`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthFailure {
    /// No credentials of any kind the server knows.
    #[error("no credentials")]
    NoCredentials,
    /// No such user or key.
    #[error("unknown user")]
    UnknownUser,
    /// Wrong password or token.
    #[error("wrong password or token")]
    WrongSecret,
    /// The signature is missing.
    #[error("signature missing")]
    NoSignature,
    /// The signature is not one of the nonce by that key.
    #[error("signature not verified")]
    WrongSignature,
    /// The user may not use this kind of connection.
    #[error("connection type not allowed")]
    ConnectionType,
    /// A certificate has to name the user and there is none, or it names nobody known.
    #[error("no user for the client certificate")]
    NoCertificateUser,
    /// A user without a password is known by its certificate only.
    #[error("user requires a client certificate")]
    CertificateRequired,
    /// CONNECT asked for an account.
    #[error("choosing an account is not supported")]
    AccountChosen,
    /// The user's JWT cannot be read, is not signed by its issuer, or holds invalid claims.
    #[error("user jwt not valid: {0}")]
    InvalidJwt(String),
    /// The account of the user's JWT is not known, or its claims are not valid.
    #[error("account of the user jwt not usable: {0}")]
    Account(String),
    /// The user's JWT was not issued by its account or one of its signing keys.
    #[error("user jwt issuer is not known to its account")]
    Issuer,
    /// The account does not take bearer tokens.
    #[error("account does not allow bearer tokens")]
    BearerNotAllowed,
    /// The user may not connect from this address.
    #[error("source address not allowed")]
    SourceAddress,
    /// The user may not be connected at this time of day.
    #[error("outside of the allowed connect times")]
    TimeOfDay,
    /// The user's JWT has expired or is not valid yet.
    #[error("user jwt has expired or is not valid yet")]
    UserExpired,
    /// The account's JWT has expired or is not valid yet.
    #[error("account jwt has expired or is not valid yet")]
    AccountExpired,
    /// The account has revoked the user.
    #[error("user authentication revoked")]
    Revoked,
}

impl AuthFailure {
    /// The text of the `-ERR` that answers CONNECT. It tells an attacker nothing.
    pub fn connect_text(&self) -> &'static str {
        "Authorization Violation"
    }

    /// The text of the `-ERR` for a live client that is no longer admitted.
    pub fn live_text(&self) -> &'static str {
        match self {
            Self::Revoked => "User Authentication Revoked",
            Self::UserExpired | Self::TimeOfDay => Expires::User.error_text(),
            Self::AccountExpired => Expires::Account.error_text(),
            _ => self.connect_text(),
        }
    }
}

/// What becomes of a live client under new options.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Recheck {
    /// It stays, with this identity: permissions, limits and expiry may be other ones.
    Keep(Box<Identity>),
    /// It is still admitted, but into another account: the connection is closed without a text.
    AccountChanged,
    /// The user or key it named exists no more: the connection is closed without a text.
    UserGone,
    /// It is no longer admitted: [`AuthFailure::live_text`], then the connection is closed.
    Refused(AuthFailure),
}
