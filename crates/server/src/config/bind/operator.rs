//! Operator mode: `operator`, `resolver`, `resolver_preload`, `trusted_keys` and their neighbours.
//!
//! A JWT is checked here for what it is and for its signature, so that the error carries a place in the file.
//! Whether all of them fit together is found out when the server starts, by [`crate::auth`].

use super::{Context, KeyKind, is_public_key};
use crate::auth::jwt::{decode_account, decode_operator};
use crate::config::text::{open_error, quote};
use crate::config::value::{Node, Value};
use crate::options::{JwtOptions, ResolverOptions};

/// Beginning of every JWT: an opening brace and a quote in base64.
const JWT_PREFIX: &str = "eyJ";

/// What the file says about operator mode.
#[derive(Debug, Default)]
pub(super) struct Trust {
    options: JwtOptions,
    resolver: bool,
    operators_at: Option<Node>,
}

impl Trust {
    /// One option; false when it is not about operator mode.
    pub(super) fn option(&mut self, cx: &mut Context<'_>, name: &str, node: &Node) -> bool {
        match name {
            "operator" | "operators" | "roots" | "root" | "root_operators" | "root_operator" => {
                self.operators(cx, node);
            }
            "resolver" | "account_resolver" | "accounts_resolver" => self.resolver(cx, node),
            "resolver_preload" => self.preload(cx, node),
            "resolver_tls" => {
                if cx.map(node).is_some() {
                    cx.ignored(name, node);
                }
            }
            "resolver_pinned_accounts" => {
                if cx.strings("resolver_pinned_accounts", node).is_some() {
                    cx.ignored(name, node);
                }
            }
            "trusted" | "trusted_keys" => self.trusted_keys(cx, node),
            "default_sentinel" => {
                self.options.default_sentinel = cx.string(node).filter(|jwt| !jwt.is_empty());
            }
            _ => return false,
        }
        true
    }

    /// The options; `None` outside of operator mode. Checks what only the file can tell.
    pub(super) fn finish(self, cx: &mut Context<'_>) -> Option<JwtOptions> {
        if let Some(node) = &self.operators_at
            && !self.resolver
            && !self.options.operators.is_empty()
        {
            cx.error(
                &node.position,
                "operators require an account resolver to be configured",
            );
        }
        let configured = !self.options.operators.is_empty()
            || !self.options.trusted_keys.is_empty()
            || self.options.default_sentinel.is_some();
        configured.then_some(self.options)
    }

    fn operators(&mut self, cx: &mut Context<'_>, node: &Node) {
        self.operators_at = Some(node.clone());
        let items = match &node.value {
            Value::Array(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        for item in items {
            let Value::String(text) = &item.value else {
                let message = format!(
                    "error parsing operators: unsupported type {}",
                    item.value.type_name()
                );
                cx.error(&item.position, message);
                continue;
            };
            match operator_jwt(cx, text) {
                Ok(jwt) => self.options.operators.push(jwt),
                Err(reason) => {
                    cx.error(&item.position, format!("error parsing operator JWT: {reason}"));
                }
            }
        }
    }

    fn resolver(&mut self, cx: &mut Context<'_>, node: &Node) {
        self.resolver = true;
        let kind = match &node.value {
            Value::String(text) => text.to_ascii_uppercase(),
            Value::Map(map) => match map.get("type") {
                Some(kind) => cx.str(kind).unwrap_or_default().to_ascii_uppercase(),
                None => String::new(),
            },
            other => {
                let message = format!(
                    "error parsing operator resolver, wrong type {}",
                    other.type_name()
                );
                cx.error(&node.position, message);
                return;
            }
        };
        if kind.contains("MEM") {
            self.options.resolver = ResolverOptions::Memory;
        } else if kind.contains("URL") || matches!(kind.as_str(), "FULL" | "CACHE") {
            cx.error(
                &node.position,
                "account resolvers other than MEMORY are not available in this server; \
                 list the accounts in resolver_preload",
            );
        } else {
            // The two blanks are nats-server's.
            cx.error(
                &node.position,
                "error parsing account resolver, should be MEM or  URL(\"url\") or a map containing \
                 dir and type state=[FULL|CACHE])",
            );
        }
    }

    fn preload(&mut self, cx: &mut Context<'_>, node: &Node) {
        let Value::Map(map) = &node.value else {
            cx.error(
                &node.position,
                "preload should be a map of account_public_key:account_jwt",
            );
            return;
        };
        for (account, node) in map.iter() {
            let Value::String(jwt) = &node.value else {
                cx.error(&node.position, "preload map value should be a string JWT");
                continue;
            };
            if decode_account(jwt).is_ok() {
                self.options.preload.insert(account.to_owned(), jwt.clone());
            } else {
                cx.error(&node.position, "invalid account JWT");
            }
        }
    }

    fn trusted_keys(&mut self, cx: &mut Context<'_>, node: &Node) {
        for key in cx.strings("trusted", node).unwrap_or_default() {
            if is_public_key(&key, KeyKind::Operator) {
                self.options.trusted_keys.push(key);
            } else {
                let message = format!(
                    "trust key {} required to be a valid public operator nkey",
                    quote(&key)
                );
                cx.error(&node.position, message);
            }
        }
    }
}

/// The text of an operator JWT: inline, or that of the file with this name, marker lines included.
fn operator_jwt(cx: &Context<'_>, text: &str) -> Result<String, String> {
    let content = if text.starts_with(JWT_PREFIX) {
        text.to_owned()
    } else {
        match cx.environment.read(text.as_ref()) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => return Err(open_error(text, &error)),
        }
    };
    match decode_operator(&content) {
        Ok(_) => Ok(content),
        Err(error) => Err(error.to_string()),
    }
}
