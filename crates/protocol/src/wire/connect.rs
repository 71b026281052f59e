//! [`Connect`]: the options of a `CONNECT` line.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The options of a `CONNECT` line, with the defaults that hold when a key is absent.
///
/// Keys are read in any case, of a doubled key the last value holds, unknown keys are ignored, `null` counts as absent,
/// and a value of the wrong type is an error. [`Default`] is what a connection has before its `CONNECT`: verbose and
/// pedantic. When serialised, empty texts are left out.
///
/// `Debug` shows which secrets are present, not what they are.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Connect {
    /// Answer `+OK` to everything that is accepted. Default true.
    pub verbose: bool,
    /// Report publishing to invalid subjects. Default true.
    pub pedantic: bool,
    /// Deliver the connection's own messages to its own subscriptions. Default true.
    pub echo: bool,
    /// The client can send and read headers. Default false.
    pub headers: bool,
    /// Answer requests that nobody receives; needs `headers`. Default false.
    pub no_responders: bool,
    /// 1 when the client takes `INFO` at any time. Default 0.
    pub protocol: i64,
    /// The client demands TLS; servers ignore it. Default false.
    pub tls_required: bool,
    /// The client library's language.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lang: String,
    /// The client library's version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The connection's name, chosen by the application.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// User name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Password.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pass: String,
    /// Token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub auth_token: String,
    /// Public key of the user, 56 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nkey: String,
    /// Signature of the server's nonce, base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sig: String,
    /// The user's token in operator mode.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jwt: String,
    /// Account to join; refused by every current server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    /// Whether `account` is to be created. Default false.
    #[serde(skip_serializing_if = "is_false")]
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
    /// Reads the argument of a `CONNECT` line as leniently as the reference server: keys in any case, the last of
    /// repeated keys wins, bytes that are not UTF-8 become replacement characters, and `null` is an empty object.
    ///
    /// # Errors
    ///
    /// When the text is not one JSON object or a value has the wrong type. A server closes the connection silently.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let text = String::from_utf8_lossy(json);
        serde_json::from_str(&text).map(Option::unwrap_or_default)
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

impl<'de> Deserialize<'de> for Connect {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Options)
    }
}

/// Reads the options one key at a time, as the order of doubled keys matters.
struct Options;

impl<'de> Visitor<'de> for Options {
    type Value = Connect;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of options")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Connect, A::Error> {
        let mut options = Connect::default();
        while let Some(mut key) = map.next_key::<String>()? {
            key.make_ascii_lowercase();
            match key.as_str() {
                "verbose" => set(&mut options.verbose, &mut map)?,
                "pedantic" => set(&mut options.pedantic, &mut map)?,
                "echo" => set(&mut options.echo, &mut map)?,
                "headers" => set(&mut options.headers, &mut map)?,
                "no_responders" => set(&mut options.no_responders, &mut map)?,
                "protocol" => set(&mut options.protocol, &mut map)?,
                "tls_required" => set(&mut options.tls_required, &mut map)?,
                "lang" => set(&mut options.lang, &mut map)?,
                "version" => set(&mut options.version, &mut map)?,
                "name" => set(&mut options.name, &mut map)?,
                "user" => set(&mut options.user, &mut map)?,
                "pass" => set(&mut options.pass, &mut map)?,
                "auth_token" => set(&mut options.auth_token, &mut map)?,
                "nkey" => set(&mut options.nkey, &mut map)?,
                "sig" => set(&mut options.sig, &mut map)?,
                "jwt" => set(&mut options.jwt, &mut map)?,
                "account" => set(&mut options.account, &mut map)?,
                "new_account" => set(&mut options.new_account, &mut map)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(options)
    }
}

/// Puts the next value of `map` into `field` unless it is `null`.
fn set<'de, A: MapAccess<'de>, T: Deserialize<'de>>(field: &mut T, map: &mut A) -> Result<(), A::Error> {
    if let Some(value) = map.next_value()? {
        *field = value;
    }
    Ok(())
}

fn is_false(flag: &bool) -> bool {
    !flag
}
