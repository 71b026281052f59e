//! Addresses of listeners: `host:port`, a port alone, or `host` and `port` apart.

use super::Context;
use crate::config::text::quote;
use crate::config::value::{Node, Value};
use crate::options::ListenAddress;

/// Host and port as they were written, before defaults.
#[derive(Debug, Default)]
pub(super) struct Address {
    /// The host; empty when none was given.
    pub(super) host: String,
    /// The port: -1 for any free one, 0 when none was given.
    pub(super) port: i64,
}

impl Address {
    /// The address with `host` when none was given; `None` when no port was given.
    pub(super) fn listen(&self, cx: &mut Context<'_>, node: &Node, host: &str) -> Option<ListenAddress> {
        let port = self.checked_port(cx, node)?;
        let host = if self.host.is_empty() { host } else { &self.host };
        Some(ListenAddress {
            host: host.to_owned(),
            port,
        })
    }

    fn checked_port(&self, cx: &mut Context<'_>, node: &Node) -> Option<Option<u16>> {
        match self.port {
            0 => None,
            -1 => Some(None),
            port => match u16::try_from(port) {
                Ok(port) => Some(Some(port)),
                Err(_) => {
                    let message = format!("listen tcp: address {port}: invalid port");
                    cx.error(&node.position, message);
                    None
                }
            },
        }
    }
}

/// `listen` and its relatives.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<Address> {
    match parse(&node.value) {
        Ok(address) => Some(address),
        Err(message) => {
            cx.error(&node.position, message);
            None
        }
    }
}

fn parse(value: &Value) -> Result<Address, String> {
    match value {
        Value::Integer(port) => Ok(Address {
            host: String::new(),
            port: *port,
        }),
        Value::String(text) => {
            let (host, port) =
                split(text).ok_or_else(|| format!("could not parse address string {}", quote(text)))?;
            let port = port
                .parse()
                .map_err(|_| format!("could not parse port {}", quote(port)))?;
            Ok(Address {
                host: host.to_owned(),
                port,
            })
        }
        other => Err(format!("expected port or host:port, got {}", other.type_name())),
    }
}

/// Splits at the colon before the port; an IPv6 address stands in brackets, which are taken off.
fn split(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.contains(['[', ']']) && !port.contains(['[', ']'])).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, i64), String> {
        parse(&Value::String(text.to_owned())).map(|address| (address.host, address.port))
    }

    #[test]
    fn addresses_split_at_the_port() {
        for (text, host, port) in [
            ("127.0.0.1:4222", "127.0.0.1", 4222),
            (":4222", "", 4222),
            ("localhost:-1", "localhost", -1),
            ("[::1]:4222", "::1", 4222),
        ] {
            assert_eq!(parsed(text), Ok((host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn bad_addresses_are_quoted() {
        for (text, error) in [
            ("localhost", r#"could not parse address string "localhost""#),
            ("::1:4222", r#"could not parse address string "::1:4222""#),
            ("[::1:4222", r#"could not parse address string "[::1:4222""#),
            ("a:b", r#"could not parse port "b""#),
        ] {
            assert_eq!(parsed(text), Err(error.to_owned()));
        }
        assert_eq!(
            parse(&Value::Bool(true)).unwrap_err(),
            "expected port or host:port, got bool"
        );
    }
}
