//! [`Connect`]: the options of a `CONNECT` line.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// The options of a `CONNECT` line, with the defaults that hold when a key is absent.
///
/// Unknown keys are ignored, `null` counts as absent, a value of the wrong type is an error. [`Default`] is what a
/// connection has before its `CONNECT`: verbose and pedantic. When serialised, empty texts are left out.
///
/// `Debug` shows which secrets are present, not what they are.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connect {
    /// Answer `+OK` to everything that is accepted. Default true.
    #[serde(deserialize_with = "true_if_null")]
    pub verbose: bool,
    /// Report publishing to invalid subjects. Default true.
    #[serde(deserialize_with = "true_if_null")]
    pub pedantic: bool,
    /// Deliver the connection's own messages to its own subscriptions. Default true.
    #[serde(deserialize_with = "true_if_null")]
    pub echo: bool,
    /// The client can send and read headers. Default false.
    #[serde(deserialize_with = "default_if_null")]
    pub headers: bool,
    /// Answer requests that nobody receives; needs `headers`. Default false.
    #[serde(deserialize_with = "default_if_null")]
    pub no_responders: bool,
    /// 1 when the client takes `INFO` at any time. Default 0.
    #[serde(deserialize_with = "default_if_null")]
    pub protocol: i64,
    /// The client demands TLS; servers ignore it. Default false.
    #[serde(deserialize_with = "default_if_null")]
    pub tls_required: bool,
    /// The client library's language.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub lang: String,
    /// The client library's version.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub version: String,
    /// The connection's name, chosen by the application.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub name: String,
    /// User name.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub user: String,
    /// Password.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub pass: String,
    /// Token.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub auth_token: String,
    /// Public key of the user, 56 characters.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub nkey: String,
    /// Signature of the server's nonce, base64.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub sig: String,
    /// The user's token in operator mode.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub jwt: String,
    /// Account to join; refused by every current server.
    #[serde(
        deserialize_with = "default_if_null",
        skip_serializing_if = "String::is_empty"
    )]
    pub account: String,
    /// Whether `account` is to be created. Default false.
    #[serde(deserialize_with = "default_if_null", skip_serializing_if = "is_false")]
    pub new_account: bool,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            verbose: true,
            pedantic: true,
            echo: true,
            headers: false,
            no_responders: false,
            protocol: 0,
            tls_required: false,
            lang: String::new(),
            version: String::new(),
            name: String::new(),
            user: String::new(),
            pass: String::new(),
            auth_token: String::new(),
            nkey: String::new(),
            sig: String::new(),
            jwt: String::new(),
            account: String::new(),
            new_account: false,
        }
    }
}

impl Connect {
    /// Reads the argument of a `CONNECT` line.
    ///
    /// # Errors
    ///
    /// When the text is not one JSON object or a value has the wrong type. A server closes the connection silently.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hide = |secret: &str| if secret.is_empty() { "" } else { "[redacted]" };
        f.debug_struct("Connect")
            .field("verbose", &self.verbose)
            .field("pedantic", &self.pedantic)
            .field("echo", &self.echo)
            .field("headers", &self.headers)
            .field("no_responders", &self.no_responders)
            .field("protocol", &self.protocol)
            .field("tls_required", &self.tls_required)
            .field("lang", &self.lang)
            .field("version", &self.version)
            .field("name", &self.name)
            .field("user", &self.user)
            .field("pass", &hide(&self.pass))
            .field("auth_token", &hide(&self.auth_token))
            .field("nkey", &self.nkey)
            .field("sig", &hide(&self.sig))
            .field("jwt", &hide(&self.jwt))
            .field("account", &self.account)
            .field("new_account", &self.new_account)
            .finish()
    }
}

fn default_if_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn true_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(true))
}

fn is_false(flag: &bool) -> bool {
    !flag
}
