//! What the log says about a client: the name it goes by there, and the trace of its protocol.
//!
//! Traces are events of the target [`PROTOCOL`] at level `TRACE`. While nobody listens to those, an operation costs one
//! relaxed load ([`tracing`]'s own), and nothing is formatted. Secrets of CONNECT are blotted out.

use std::fmt::{self, Display, Write as _};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use windjet_protocol::wire::{ClientOp, errors};

use super::Connection;
use crate::auth::Identity;
use crate::router::Message;

/// Target of protocol traces.
pub(crate) const PROTOCOL: &str = "windjet_server::protocol";
/// Fields of CONNECT that nobody may read in a log.
const SECRETS: [&str; 4] = ["pass", "auth_token", "jwt", "sig"];

/// Whether anybody listens to protocol traces.
#[inline]
pub(crate) fn tracing_protocol() -> bool {
    tracing::enabled!(target: PROTOCOL, tracing::Level::TRACE)
}

/// The name of a client in the log: `127.0.0.1:5000 - cid:7 - "v1.0:rust:worker" - "$G/user:app"`. What is not known
/// yet is left out.
pub(crate) struct LogName<'a>(&'a Connection);

impl Display for LogName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connection = self.0;
        match connection.remote {
            Some(remote) if connection.shown_ip == remote.ip().to_string() => write!(f, "{remote}")?,
            Some(remote) => write!(f, "{}/{remote}", connection.shown_ip)?,
            None => f.write_str("in-process")?,
        }
        write!(f, " - cid:{}", connection.id)?;
        let Some(profile) = connection.profile() else {
            return Ok(());
        };
        if !profile.version.is_empty() || !profile.lang.is_empty() {
            write!(f, " - \"v{}:{}", profile.version, profile.lang)?;
            if !profile.name.is_empty() {
                write!(f, ":{}", profile.name)?;
            }
            f.write_char('"')?;
        }
        if let Some(Identity {
            user, account_name, ..
        }) = &profile.identity
            && !user.is_empty()
        {
            write!(f, " - \"{account_name}/user:{user}\"")?;
        }
        Ok(())
    }
}

impl Connection {
    /// The client's name in the log.
    pub(crate) fn log_name(&self) -> LogName<'_> {
        LogName(self)
    }

    /// Traces an operation of the client.
    #[cold]
    pub(super) fn trace_in(&self, op: &ClientOp<'_>) {
        let line = match op {
            ClientOp::Connect(json) => format!("CONNECT {}", without_secrets(json)),
            ClientOp::Pub {
                subject,
                reply,
                payload,
            } => {
                format!("PUB {}{} {}", text(subject), argument(*reply), payload.len())
            }
            ClientOp::HPub {
                subject,
                reply,
                header_len,
                message,
            } => {
                let size = message.len();
                format!("HPUB {}{} {header_len} {size}", text(subject), argument(*reply))
            }
            ClientOp::Sub { subject, queue, sid } => {
                format!("SUB {}{} {}", text(subject), argument(*queue), text(sid))
            }
            ClientOp::Unsub { sid, max } => match max {
                Some(max) => format!("UNSUB {} {max}", text(sid)),
                None => format!("UNSUB {}", text(sid)),
            },
            ClientOp::Ping => "PING".to_owned(),
            ClientOp::Pong => "PONG".to_owned(),
            ClientOp::Ok => "+OK".to_owned(),
            ClientOp::Info(json) => format!("INFO {}", text(json)),
            ClientOp::Err(reason) => format!("-ERR {}", text(reason)),
        };
        self.trace(&format!("<<- [{line}]"));
        match op {
            ClientOp::Pub { payload, .. } => self.trace_payload("<<-", &[], payload),
            ClientOp::HPub {
                header_len, message, ..
            } => {
                let (headers, payload) = message.split_at(*header_len);
                self.trace_payload("<<-", headers, payload);
            }
            _ => {}
        }
    }

    /// Traces protocol lines for the client.
    #[cold]
    pub(super) fn trace_out(&self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty() {
                self.trace(&format!("->> [{}]", text(line)));
            }
        }
    }

    /// Traces a message for the client.
    #[cold]
    pub(super) fn trace_delivery(&self, sid: &[u8], headers: &[u8], message: &Message<'_>) {
        let size = headers.len() + message.payload.len();
        let (subject, sid, reply) = (text(message.subject), text(sid), argument(message.reply));
        self.trace(&if headers.is_empty() {
            format!("->> [MSG {subject} {sid}{reply} {size}]")
        } else {
            format!("->> [HMSG {subject} {sid}{reply} {} {size}]", headers.len())
        });
        self.trace_payload("->>", headers, message.payload);
    }

    fn trace_payload(&self, way: &str, headers: &[u8], payload: &[u8]) {
        let options = self.server.options();
        let mut shown = headers.to_vec();
        if !options.log.trace_headers {
            shown.extend_from_slice(payload);
        } else if shown.ends_with(b"\r\n\r\n") {
            shown.truncate(shown.len() - 4);
        }
        let max = options.max_traced_msg_len;
        let cut = max > 0 && shown.len() > max;
        if cut {
            shown.truncate(max);
            shown.extend_from_slice(b"...");
        }
        self.trace(&format!("{way} MSG_PAYLOAD: [{}]", errors::quote(&shown)));
    }

    fn trace(&self, line: &str) {
        tracing::trace!(target: PROTOCOL, client = %self.log_name(), "{line}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An optional argument with its space.
fn argument(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(" {}", text(bytes)))
}

/// The document of a CONNECT in the client's own order, its secrets blotted out. One that cannot be read is not shown at
/// all.
fn without_secrets(json: &[u8]) -> String {
    let Ok(Fields(fields)) = serde_json::from_slice(json) else {
        return "(unreadable)".to_owned();
    };
    let shown = fields.iter().map(|(name, value)| {
        // Names are matched as the server reads them, in any case.
        let secret = SECRETS.iter().any(|secret| name.eq_ignore_ascii_case(secret));
        let value = if secret && value.get() != "null" {
            "\"[REDACTED]\""
        } else {
            value.get()
        };
        format!("{}:{value}", serde_json::Value::from(name.as_str()))
    });
    format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
}

/// The fields of an object, in order, with their values as written.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(field) = map.next_entry()? {
            self.0.push(field);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_of_a_connect_is_shown() {
        let shown = without_secrets(
            br#"{"user":"u","pass":"p1","Auth_Token":"p2","jwt":"p3","sig":"p4","lang":"x"}"#,
        );
        assert!(
            !["p1", "p2", "p3", "p4"]
                .iter()
                .any(|secret| shown.contains(secret)),
            "{shown}"
        );
        assert!(
            shown.contains(r#""user":"u""#) && shown.contains(r#""lang":"x""#),
            "{shown}"
        );
        assert!(!without_secrets(br#"{"pass":"p1""#).contains("p1"));
    }

    #[test]
    fn a_connect_is_shown_in_its_own_order() {
        let json = r#"{"verbose":false,"lang":"x","echo":1.0,"pass":null}"#;
        assert_eq!(without_secrets(json.as_bytes()), json);
    }
}
