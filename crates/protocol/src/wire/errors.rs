//! The texts of `-ERR` that clients compare, exactly as the reference server writes them.
//!
//! Constants for the fixed ones, functions for those that name a subject. What each one means for the connection is
//! said at its item: "closes" texts are followed by the end of the connection, the others are not.

/// Bytes outside the grammar. Closes.
pub const UNKNOWN_OPERATION: &str = "Unknown Protocol Operation";
/// Bad or missing credentials. Closes.
pub const AUTHORIZATION: &str = "Authorization Violation";
/// No successful `CONNECT` in time. Closes.
pub const AUTHENTICATION_TIMEOUT: &str = "Authentication Timeout";
/// The user's token reached its end. Closes.
pub const USER_EXPIRED: &str = "User Authentication Expired";
/// The account's token reached its end. Closes.
pub const ACCOUNT_EXPIRED: &str = "Account Authentication Expired";
/// The user's token was revoked. Closes.
pub const USER_REVOKED: &str = "User Authentication Revoked";
/// More connections than the server takes. Closes.
pub const MAX_CONNECTIONS: &str = "maximum connections exceeded";
/// More connections than the account takes. Closes.
pub const MAX_ACCOUNT_CONNECTIONS: &str = "maximum account active connections exceeded";
/// More subscriptions than allowed. Does not close, except when the connection is bound to its account.
pub const MAX_SUBSCRIPTIONS: &str = "maximum subscriptions exceeded";
/// A message over `max_payload`. Closes.
pub const MAX_PAYLOAD: &str = "Maximum Payload Violation";
/// A control line over `max_control_line`. Closes.
pub const MAX_CONTROL_LINE: &str = "maximum control line exceeded";
/// Unanswered pings. Closes.
pub const STALE_CONNECTION: &str = "Stale Connection";
/// `CONNECT` asked for a protocol version that does not exist. Closes.
pub const CLIENT_PROTOCOL: &str = "invalid client protocol";
/// `CONNECT` asked for no-responder answers without headers. Closes.
pub const NO_RESPONDERS: &str = "no responders requires headers support";
/// `SUB` with an invalid subject. Does not close.
pub const INVALID_SUBJECT: &str = "Invalid Subject";
/// Publishing to an invalid or wildcard subject in pedantic mode. Does not close.
pub const INVALID_PUBLISH_SUBJECT: &str = "Invalid Publish Subject";
/// The account could not be bound. Does not close.
pub const ACCOUNT_REGISTRATION: &str = "Failed Account Registration";
/// Too many TLS handshakes at once. Closes.
pub const THROTTLED: &str = "Connection throttling is active. Please try again later.";
/// No TLS handshake in time. Closes.
pub const TLS_REQUIRED: &str = "Secure Connection - TLS Required";

/// Publishing to `subject` was denied. Does not close.
#[must_use]
pub fn publish_denied(subject: &[u8]) -> String {
    format!("Permissions Violation for Publish to {}", quote(subject))
}

/// The reply subject is reserved. Does not close.
#[must_use]
pub fn publish_reply_denied(reply: &[u8]) -> String {
    format!("Permissions Violation for Publish with Reply of {}", quote(reply))
}

/// Subscribing to `subject` was denied. Does not close.
#[must_use]
pub fn subscribe_denied(subject: &[u8], queue: Option<&[u8]>) -> String {
    let mut text = format!("Permissions Violation for Subscription to {}", quote(subject));
    if let Some(queue) = queue {
        text.push_str(" using queue ");
        text.push_str(&quote(queue));
    }
    text
}

/// The subject has more tokens than the server takes. Does not close.
#[must_use]
pub fn subscribe_too_many_tokens(subject: &[u8]) -> String {
    format!(
        "Permissions Violation for Subscription to {}, too many tokens",
        quote(subject)
    )
}

/// An existing subscription lost its permission and was removed. Does not close.
#[must_use]
pub fn subscription_revoked(subject: &[u8], queue: Option<&[u8]>, sid: &[u8]) -> String {
    format!("{} (sid {})", subscribe_denied(subject, queue), quote(sid))
}

/// Double-quoted text in the notation of Go's `%q`: `"` and `\` escaped, what cannot be printed as `\n`, `\x..`, `\u....`.
#[must_use]
pub fn quote(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\u{7}' => text.push_str("\\a"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{b}' => text.push_str("\\v"),
                _ if is_printable(c) => text.push(c),
                '\0'..='\u{7f}' => text.push_str(&format!("\\x{:02x}", c as u32)),
                '\u{80}'..='\u{ffff}' => text.push_str(&format!("\\u{:04x}", c as u32)),
                _ => text.push_str(&format!("\\U{:08x}", c as u32)),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.push('"');
    text
}

/// Whether a character shows as itself. The standard library's own idea of it, which `{:?}` uses, save for quotes.
fn is_printable(c: char) -> bool {
    c == '\'' || c.escape_debug().len() == 1
}
