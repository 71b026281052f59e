//! The address of events, and how it is written as a subject.

use crate::{Error, ErrorKind, TenantId};

/// The address of the events of one tenant's table, optionally narrowed to a scope within it.
///
/// Table and scope are raw names, never encoded by the caller: any text will do. Brokers derive their own naming
/// from the topic. A topic without a tenant is never published: it only comes back from
/// [`Message::topic`](crate::Message::topic) for a message whose subject is not one of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Topic {
    /// Whose table it is. Required for publishing; there is no fallback to a default tenant.
    pub tenant: Option<TenantId>,
    /// The table.
    pub table: String,
    /// The scope within the table; empty for none.
    pub scope: String,
}

impl Topic {
    /// A topic without a scope.
    pub fn new(tenant: TenantId, table: impl Into<String>) -> Self {
        Self {
            tenant: Some(tenant),
            table: table.into(),
            scope: String::new(),
        }
    }

    /// Narrows the topic to a scope.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
        self
    }

    /// The tail of the topic's subject: `tenant.table` or `tenant.table.scope`, table and scope encoded. Two topics
    /// have the same key only if they are equal.
    #[must_use]
    pub fn key(&self) -> String {
        let mut key = self.tenant.as_ref().map_or_else(String::new, ToString::to_string);
        key.push('.');
        push_token(&mut key, self.table.as_bytes());
        if !self.scope.is_empty() {
            key.push('.');
            push_token(&mut key, self.scope.as_bytes());
        }
        key
    }

    /// Reads a key as it was delivered, older encodings included.
    ///
    /// What is no key of ours is kept and never dropped: the topic then has no tenant, and its table is the whole text.
    #[must_use]
    pub fn parse_key(key: &str) -> Self {
        if key.is_empty() {
            return Self::default();
        }
        Self::decode(key).unwrap_or_else(|| Self {
            tenant: None,
            table: key.to_owned(),
            scope: String::new(),
        })
    }

    fn decode(key: &str) -> Option<Self> {
        let mut parts = key.split('.');
        let tenant = TenantId::parse(parts.next()?).ok()?;
        let table = decode_token(parts.next()?)?;
        let scope = parts.next().map_or(Some(String::new()), decode_token)?;
        parts.next().is_none().then_some(Self {
            tenant: Some(tenant),
            table,
            scope,
        })
    }

    /// The topic's tenant, or the refusal of a topic that cannot be published.
    pub(crate) fn checked(&self) -> Result<&TenantId, Error> {
        let tenant = self.tenant.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "topic tenant: none given, and there is no default",
            )
        })?;
        if self.table.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "topic table: empty"));
        }
        Ok(tenant)
    }
}

/// The tenant whose dead-letter queue a key belongs to, whatever follows the first token.
#[cfg(any(feature = "memory", feature = "embedded", test))]
pub(crate) fn key_tenant(key: &str) -> Option<TenantId> {
    TenantId::parse(key.split('.').next()?).ok()
}

/// Writes a raw name as one subject token: `A-Z a-z 0-9 _ -` stay, every other byte becomes `%XX`.
#[must_use]
pub fn encode_token(name: &[u8]) -> String {
    let mut token = String::with_capacity(name.len());
    push_token(&mut token, name);
    token
}

fn push_token(token: &mut String, name: &[u8]) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    for &byte in name {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            token.push(char::from(byte));
        } else {
            token.push('%');
            token.push(HEX[usize::from(byte >> 4)]);
            token.push(HEX[usize::from(byte & 15)]);
        }
    }
}

/// Reads a token back. `None` when a `%` is not followed by two hex digits, or the bytes are not UTF-8: such a token is
/// not one of ours, and its key is kept as it is.
#[must_use]
pub fn decode_token(token: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let (high, low) = (hex(*tail.first()?)?, hex(*tail.get(1)?)?);
            bytes.push(high << 4 | low);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use windjet_testkit::page;

    use super::*;

    fn topic(tenant: &str, table: &str, scope: &str) -> Topic {
        Topic::new(TenantId::parse(tenant).unwrap(), table).scope(scope)
    }

    const KEYS: [(&str, &str, &str, &str); 10] = [
        ("0", "events", "", "0.events"),
        (
            "acme-co",
            "default.clicks",
            "org_1",
            "acme-co.default%2Eclicks.org_1",
        ),
        ("a", "a.*.>", "*", "a.a%2E%2A%2E%3E.%2A"),
        ("a", "my table", "tab\there", "a.my%20table.tab%09here"),
        ("a", "table-with-dashes", "org-1", "a.table-with-dashes.org-1"),
        ("a", "100%", "a/b", "a.100%25.a%2Fb"),
        ("a", "{acme}:x", "", "a.%7Bacme%7D%3Ax"),
        ("a", "café", "日", "a.caf%C3%A9.%E6%97%A5"),
        ("a", "", "", "a."),
        (
            "acme",
            "a.b*c> d%e",
            "s.1 *>%",
            "acme.a%2Eb%2Ac%3E%20d%25e.s%2E1%20%2A%3E%25",
        ),
    ];

    #[test]
    fn keys_are_the_golden_ones_and_read_back() {
        for (tenant, table, scope, key) in KEYS {
            let topic = topic(tenant, table, scope);
            assert_eq!(topic.key(), key);
            assert_eq!(Topic::parse_key(key), topic, "{key}");
        }
        assert_eq!(encode_token(b"nul\0"), "nul%00");
        assert_eq!(encode_token(b"\xff"), "%FF");
    }

    const OLD: [(&str, &str, &str, &str); 2] = [
        ("a.b~c.d%2ee", "a", "b~c", "d.e"),
        (
            "a.table%2Dwith%2Ddashes.org%2D1",
            "a",
            "table-with-dashes",
            "org-1",
        ),
    ];

    const FOREIGN: [&str; 8] = [
        "a.b.c.d",
        "0.bad%2Gtoken",
        "a%2Eb.events",
        "a%2Db.events",
        ".events",
        "events",
        "bad%2G",
        "a.%FF",
    ];

    #[test]
    fn older_encodings_are_read() {
        for (key, tenant, table, scope) in OLD {
            assert_eq!(Topic::parse_key(key), topic(tenant, table, scope), "{key}");
        }
    }

    #[test]
    fn the_page_has_the_golden_keys() {
        let page = page::read("mq-topology.md").unwrap();
        let text = |text: &str| format!("`{}`", serde_json::Value::from(text));
        let code = |code: &str| {
            if code.is_empty() {
                String::new()
            } else {
                format!("`{code}`")
            }
        };
        let golden =
            KEYS.map(|(tenant, table, scope, key)| [code(tenant), text(table), text(scope), code(key)]);
        assert_eq!(page::rows(&page, "Keys").unwrap()[1..], golden);
        let old = OLD.map(|(key, tenant, table, scope)| [code(key), code(tenant), text(table), text(scope)]);
        let foreign = FOREIGN.map(|key| [code(key), String::new(), text(key), text("")]);
        let golden = [old.as_slice(), &foreign].concat();
        assert_eq!(page::rows(&page, "Keys read back").unwrap()[1..], golden);
    }

    #[test]
    fn a_foreign_tail_is_kept_whole_without_a_tenant() {
        for tail in FOREIGN {
            let topic = Topic::parse_key(tail);
            assert_eq!(
                (topic.tenant, topic.table.as_str(), topic.scope.as_str()),
                (None, tail, "")
            );
        }
        assert_eq!(Topic::parse_key(""), Topic::default());
    }

    #[test]
    fn a_parked_key_belongs_to_the_tenant_of_its_first_token() {
        for (key, tenant) in [
            ("acme.t", Some("acme")),
            ("a.b.c.d", Some("a")),
            ("0.bad%2G", Some("0")),
            ("", None),
            (".events", None),
            ("a%2Eb.events", None),
        ] {
            assert_eq!(key_tenant(key).as_ref().map(TenantId::as_str), tenant, "{key}");
        }
    }

    #[test]
    fn pitfall_1_a_topic_without_a_tenant_lands_nowhere() {
        let error = Topic {
            table: "t".into(),
            ..Topic::default()
        }
        .checked()
        .unwrap_err();
        assert!(error.is(ErrorKind::Invalid) && !error.is(ErrorKind::QueueFull));
        assert!(error.to_string().starts_with("topic tenant:"));
        assert!(topic("a", "", "").checked().unwrap_err().is(ErrorKind::Invalid));
    }
}
