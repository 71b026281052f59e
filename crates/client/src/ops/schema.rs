//! Schema headers: a message says which contract it follows, and a consumer which one it expects.

use std::sync::Arc;

use async_nats::HeaderMap;

use crate::delivery::Delivery;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, HandlerError, Layer, Outcome};
use crate::message::headers::first;
use crate::message::{Message, MessageType};

/// The name of the schema.
pub const HEADER_SCHEMA: &str = "X-NATS-Schema";
/// Its version.
pub const HEADER_SCHEMA_VERSION: &str = "X-NATS-Schema-Version";
/// How the payload is encoded.
pub const HEADER_CONTRACT_ENCODING: &str = "X-NATS-Contract-Encoding";

/// Sets the schema headers of a message; empty arguments set nothing.
pub fn apply_schema_headers(mut message: Message, name: &str, version: &str, encoding: &str) -> Message {
    for (header, value) in [
        (HEADER_SCHEMA, name),
        (HEADER_SCHEMA_VERSION, version),
        (HEADER_CONTRACT_ENCODING, encoding),
    ] {
        if !value.is_empty() {
            message = message.with_header(header, value);
        }
    }
    message
}

/// Name, version and encoding that headers tell; empty when absent.
#[must_use]
pub fn schema_from_headers(headers: Option<&HeaderMap>) -> (&str, &str, &str) {
    let read = |name| {
        headers
            .and_then(|headers| first(headers, name))
            .unwrap_or_default()
    };
    (
        read(HEADER_SCHEMA),
        read(HEADER_SCHEMA_VERSION),
        read(HEADER_CONTRACT_ENCODING),
    )
}

/// What a consumer expects. Empty fields are not compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SchemaExpectation {
    /// The name of the schema.
    pub name: String,
    /// Its version, compared as text.
    pub version: String,
    /// How the payload is encoded; a message without the header is judged by its content type.
    pub encoding: String,
    /// Refuse messages without any schema header.
    pub required: bool,
}

/// Compares the headers of a message with what is expected.
///
/// # Errors
/// [`ErrorKind::SchemaMismatch`] with field, expected and actual value in [`Error::details`].
pub fn check_schema(message: &async_nats::Message, expected: &SchemaExpectation) -> Result<()> {
    let headers = message.headers.as_ref();
    let (name, version, encoding) = schema_from_headers(headers);
    if name.is_empty() && version.is_empty() && encoding.is_empty() {
        if expected.required {
            return Err(mismatch("schema", &expected.name, ""));
        }
        return Ok(());
    }
    for (field, expected, actual) in [
        ("schema", expected.name.as_str(), name),
        ("version", expected.version.as_str(), version),
    ] {
        if !expected.is_empty() && expected != actual {
            return Err(mismatch(field, expected, actual));
        }
    }
    let content = headers.and_then(MessageType::named_in);
    let contract = MessageType::from_content_type(encoding);
    if !expected.encoding.is_empty() {
        let wanted = MessageType::from_content_type(&expected.encoding);
        let (same, actual) = if encoding.is_empty() {
            (
                content.is_some() && content == wanted,
                content.and_then(MessageType::token).unwrap_or_default(),
            )
        } else {
            let by_name = encoding.trim().eq_ignore_ascii_case(expected.encoding.trim());
            (by_name || (contract.is_some() && contract == wanted), encoding)
        };
        if !same {
            return Err(mismatch("encoding", &expected.encoding, actual));
        }
    } else if let (Some(contract), Some(content)) = (contract, content)
        && contract != content
    {
        return Err(mismatch(
            "encoding",
            contract.token().unwrap_or_default(),
            content.token().unwrap_or_default(),
        ));
    }
    Ok(())
}

/// Checks the schema, then decodes as [`decode_msg`](crate::message::codec::decode_msg) does.
///
/// # Errors
/// As both.
pub fn decode_msg_with_schema<T: serde::de::DeserializeOwned>(
    message: &async_nats::Message,
    message_type: Option<MessageType>,
    expected: &SchemaExpectation,
) -> Result<T> {
    check_schema(message, expected)?;
    crate::message::codec::decode_msg(message, message_type)
}

fn mismatch(field: &str, expected: &str, actual: &str) -> Error {
    let details = vec![
        field.to_owned(),
        format!("expected {expected:?}"),
        format!("got {actual:?}"),
    ];
    Error::new(ErrorKind::SchemaMismatch, "checking the schema of a message").with_details(details)
}

/// The layer that refuses messages of another schema, as [`HandlerError::Undecodable`].
#[derive(Debug, Clone, Default)]
pub struct SchemaCheck {
    expected: SchemaExpectation,
    accept_retries: bool,
}

impl SchemaCheck {
    /// Expects this.
    #[must_use]
    pub fn new(expected: SchemaExpectation) -> Self {
        Self {
            expected,
            accept_retries: false,
        }
    }

    /// Also lets messages pass that the console has taken out of a dead-letter queue: it keeps no schema headers.
    #[must_use]
    pub fn accept_console_retries(mut self) -> Self {
        self.accept_retries = true;
        self
    }
}

/// A handler behind a [`SchemaCheck`].
#[derive(Debug, Clone)]
pub struct SchemaChecked<H> {
    check: SchemaCheck,
    inner: H,
}

impl<H: Handler> Layer<H> for SchemaCheck {
    type Handler = SchemaChecked<H>;

    fn layer(self, inner: H) -> SchemaChecked<H> {
        SchemaChecked { check: self, inner }
    }
}

impl<H: Handler> Handler for SchemaChecked<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let retried = || {
            let id = delivery
                .headers
                .as_ref()
                .and_then(|headers| first(headers, crate::message::headers::MSG_ID));
            id.is_some_and(|id| id.starts_with("nats-consol-dlq-retry:"))
        };
        if let Err(error) = check_schema(delivery.message(), &self.check.expected)
            && !(self.check.accept_retries && retried())
        {
            return Err(HandlerError::Undecodable(error));
        }
        self.inner.handle(delivery).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(schema: (&str, &str, &str), content_type: &str) -> async_nats::Message {
        let made = apply_schema_headers(Message::raw("{}"), schema.0, schema.1, schema.2);
        let made = if content_type.is_empty() {
            made
        } else {
            made.with_header("Nats-Content-Type", content_type)
        };
        async_nats::Message {
            subject: "s".into(),
            reply: None,
            payload: made.payload().clone(),
            headers: Some(made.headers().clone()),
            status: None,
            description: None,
            length: 0,
        }
    }

    fn expect(name: &str, version: &str, encoding: &str, required: bool) -> SchemaExpectation {
        SchemaExpectation {
            name: name.into(),
            version: version.into(),
            encoding: encoding.into(),
            required,
        }
    }

    #[test]
    fn headers_are_set_and_read() {
        let set = message(("order", "2", "json"), "");
        assert_eq!(schema_from_headers(set.headers.as_ref()), ("order", "2", "json"));
        let none = message(("", "", ""), "");
        assert!(none.headers.as_ref().unwrap().is_empty());
        assert_eq!(schema_from_headers(None), ("", "", ""));
    }

    #[test]
    fn each_field_must_match_and_absence_passes_unless_required() {
        let ok = |m: &async_nats::Message, e: SchemaExpectation| check_schema(m, &e).is_ok();
        let absent = message(("", "", ""), "json");
        assert!(ok(&absent, expect("order", "1", "json", false)));
        assert!(!ok(&absent, expect("order", "1", "json", true)));
        let present = message(("order", "1", "json"), "");
        assert!(ok(&present, expect("order", "1", "application/json", true)));
        assert!(ok(&present, expect("", "", "", true)));
        assert!(!ok(&present, expect("bill", "1", "", false)));
        assert!(!ok(&present, expect("order", "2", "", false)));
        assert!(!ok(&present, expect("order", "1", "msgpack", false)));
        let partial = message(("order", "", ""), "");
        assert!(!ok(&partial, expect("order", "1", "", false)));
    }

    #[test]
    fn without_its_header_the_encoding_is_the_content_type() {
        let by_type = message(("order", "1", ""), "application/x-msgpack");
        assert!(check_schema(&by_type, &expect("order", "1", "msgpack", true)).is_ok());
        assert!(check_schema(&by_type, &expect("order", "1", "json", true)).is_err());
        let contradiction = message(("order", "1", "json"), "msgpack");
        let error = check_schema(&contradiction, &expect("order", "1", "", true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert_eq!(
            error.details(),
            ["encoding", "expected \"json\"", "got \"msgpack\""]
        );
    }

    #[test]
    fn decoding_comes_after_the_check() {
        let good = message(("order", "1", "json"), "");
        let value: serde_json::Value =
            decode_msg_with_schema(&good, None, &expect("order", "", "", true)).unwrap();
        assert_eq!(value, serde_json::json!({}));
        let error = decode_msg_with_schema::<serde_json::Value>(&good, None, &expect("bill", "", "", true))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    }
}
