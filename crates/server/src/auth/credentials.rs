//! What a client presents, and the moment and place it does so.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use subtle::ConstantTimeEq;
use windjet_protocol::wire::{Connect, errors};

use super::certificate::PeerCertificate;
use crate::options::ConnectionType;

/// A password or token that never shows in a log.
#[derive(Clone, Default)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl PartialEq for Secret {
    /// Takes the same time for any two texts of one length.
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "[REDACTED]" })
    }
}

/// The fields of CONNECT that say who the client is; empty when absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// `user`.
    pub user: String,
    /// `pass`.
    pub password: Secret,
    /// `auth_token`.
    pub token: Secret,
    /// `nkey`: a public user key.
    pub nkey: String,
    /// `sig`: the nonce signed by the key of `nkey` or `jwt`, in base64.
    pub signature: String,
    /// `jwt`: a user JWT.
    pub jwt: Secret,
    /// `account`: a wish that is always refused.
    pub account: String,
}

impl From<&Connect> for Credentials {
    fn from(connect: &Connect) -> Self {
        Self {
            user: connect.user.clone(),
            password: connect.pass.as_str().into(),
            token: connect.auth_token.as_str().into(),
            nkey: connect.nkey.clone(),
            signature: connect.sig.clone(),
            jwt: connect.jwt.as_str().into(),
            account: connect.account.clone(),
        }
    }
}

impl Credentials {
    /// The name under which the client appears in logs, `connz` and `$SYS.REQ.USER.INFO` before it is known.
    pub fn shown_user(&self) -> &str {
        if !self.nkey.is_empty() {
            &self.nkey
        } else if !self.user.is_empty() {
            &self.user
        } else if !self.token.is_empty() {
            super::identity::REDACTED
        } else {
            ""
        }
    }

    /// What the log says of a client that was not admitted: kind and name, secrets blotted out.
    pub(crate) fn log_name(&self) -> String {
        let name = |kind: &str, name: &str| format!("{kind} {}", errors::quote(name.as_bytes()));
        if !self.nkey.is_empty() {
            name("Nkey", &self.nkey)
        } else if !self.user.is_empty() {
            name("User", &self.user)
        } else if !self.jwt.is_empty() {
            name("JWT User", super::identity::REDACTED)
        } else if !self.token.is_empty() {
            name("Token", super::identity::REDACTED)
        } else {
            name("User", "N/A")
        }
    }

    /// Whether user, password and token are all absent. Keys and JWTs count where they can be used at all.
    pub(super) fn names_nobody(&self) -> bool {
        self.user.is_empty() && self.password.is_empty() && self.token.is_empty()
    }
}

/// One attempt of a client to authenticate.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// What the client presented.
    pub credentials: &'a Credentials,
    /// The nonce of the INFO that was sent to it, if any.
    pub nonce: Option<&'a [u8]>,
    /// How it is connected.
    pub connection_type: ConnectionType,
    /// Its address; absent for a client inside the process.
    pub remote: Option<IpAddr>,
    /// Its TLS certificate.
    pub certificate: Option<&'a Arc<PeerCertificate>>,
    /// The present.
    pub now: SystemTime,
}

/// An [`Attempt`] kept for the life of a connection, so that it can be judged again under new options.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    pub(super) credentials: Credentials,
    pub(super) nonce: Option<Box<[u8]>>,
    pub(super) connection_type: ConnectionType,
    pub(super) remote: Option<IpAddr>,
    pub(super) certificate: Option<Arc<PeerCertificate>>,
    /// The configured password or token that the client's was found equal to. While it stays the same it need not be
    /// compared again, which is slow for bcrypt.
    pub(super) verified: Option<Secret>,
}

impl Evidence {
    pub(super) fn of(attempt: &Attempt<'_>) -> Self {
        Self {
            credentials: attempt.credentials.clone(),
            nonce: attempt.nonce.map(Into::into),
            connection_type: attempt.connection_type,
            remote: attempt.remote,
            certificate: attempt.certificate.cloned(),
            verified: None,
        }
    }

    pub(super) fn at(&self, now: SystemTime) -> Attempt<'_> {
        Attempt {
            credentials: &self.credentials,
            nonce: self.nonce.as_deref(),
            connection_type: self.connection_type,
            remote: self.remote,
            certificate: self.certificate.as_ref(),
            now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_taken_from_connect_and_stay_out_of_debug_output() {
        let json = br#"{"user":"u","pass":"p4ss","auth_token":"t0ken","nkey":"N","sig":"S","jwt":"eyJ","account":"A"}"#;
        let connect: Connect = serde_json::from_slice(json).unwrap();
        let credentials = Credentials::from(&connect);
        let expected = Credentials {
            user: "u".to_owned(),
            password: "p4ss".into(),
            token: "t0ken".into(),
            nkey: "N".to_owned(),
            signature: "S".to_owned(),
            jwt: "eyJ".into(),
            account: "A".to_owned(),
        };
        assert_eq!(credentials, expected);
        let shown = format!("{credentials:?}");
        assert!(
            !["p4ss", "t0ken", "eyJ"]
                .iter()
                .any(|secret| shown.contains(secret)),
            "{shown}"
        );
    }

    #[test]
    fn the_most_telling_credential_names_the_client() {
        let mut credentials = Credentials::default();
        assert_eq!(credentials.shown_user(), "");
        credentials.token = "t".into();
        assert_eq!(credentials.shown_user(), "[REDACTED]");
        credentials.user = "u".to_owned();
        assert_eq!(credentials.shown_user(), "u");
        credentials.nkey = "U1".to_owned();
        assert_eq!(credentials.shown_user(), "U1");
    }

    #[test]
    fn the_log_names_a_client_by_what_it_presented_and_no_secret() {
        let named = |connect: Connect| Credentials::from(&connect).log_name();
        let user = Connect {
            user: "a\"b".into(),
            pass: "p".into(),
            ..Connect::default()
        };
        assert_eq!(named(user), "User \"a\\\"b\"");
        let token = Connect {
            auth_token: "secret".into(),
            ..Connect::default()
        };
        assert_eq!(named(token), "Token \"[REDACTED]\"");
        let nkey = Connect {
            nkey: "UABC".into(),
            sig: "s".into(),
            ..Connect::default()
        };
        assert_eq!(named(nkey), "Nkey \"UABC\"");
        assert_eq!(named(Connect::default()), "User \"N/A\"");
    }
}
