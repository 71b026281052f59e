//! Headers of a message, and the options of a publish.

use std::collections::BTreeMap;

/// The header that carries the idempotency key on the wire.
pub const MESSAGE_ID_HEADER: &str = "Nats-Msg-Id";

/// A message with this header has no event: it is there so that a queue remembers its idempotency key. Brokers acknowledge it
/// and show it to nobody.
#[cfg(feature = "external")]
pub(crate) const KEY_ONLY_HEADER: &str = "Windjet-Key-Only";

/// Message headers: exact, case-sensitive names, each with its values in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(BTreeMap<String, Vec<String>>);

impl Headers {
    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a value to those of the name.
    pub fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.entry(name.into()).or_default().push(value.into());
    }

    /// Replaces the values of the name by one.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), vec![value.into()]);
    }

    /// The first value of the name, or the empty text.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.values(name).first().map_or("", String::as_str)
    }

    /// All values of the name.
    #[must_use]
    pub fn values(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Every name with its values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0
            .iter()
            .map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes they take on the wire, about.
    #[cfg(feature = "memory")]
    pub(crate) fn wire_len(&self) -> usize {
        let line = |(name, values): (&str, &[String])| {
            values
                .iter()
                .map(|value| name.len() + value.len() + 4)
                .sum::<usize>()
        };
        self.iter().map(line).sum()
    }
}

/// Options of [`publish`](crate::Publisher::publish) and [`dead_letter`](crate::DeadLetterer::dead_letter).
///
/// They act in the order given. Trace context is written behind them all.
///
/// ```
/// use windjet_mq::PublishOptions;
///
/// let options = PublishOptions::new()
///     .header("X-Source", "api")
///     .idempotency_key("acme/orders/4711");
/// assert_eq!(options.headers().get("Nats-Msg-Id"), "acme/orders/4711");
/// ```
#[derive(Debug, Clone, Default)]
pub struct PublishOptions {
    headers: Headers,
}

impl PublishOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header; repeated use keeps all values in order.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.add(name, value);
        self
    }

    /// Marks the publish: a second one with the same key inside the queue's duplicate window is dropped and reported
    /// as success, so that what had an unknown outcome can be repeated. Queues are shared by tables, and outside the
    /// process by tenants too: make keys that are unique across both. An empty key counts as none.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.headers.set(MESSAGE_ID_HEADER, key);
        self
    }

    /// The headers so far.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The headers, for a broker to send.
    #[must_use]
    pub fn into_headers(self) -> Headers {
        self.headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_and_values_keep_their_order() {
        let headers = PublishOptions::new()
            .header("X-One", "1")
            .header("X-One", "2")
            .header("x-one", "3")
            .into_headers();
        assert_eq!(headers.values("X-One"), ["1", "2"]);
        assert_eq!((headers.get("x-one"), headers.get("X-ONE")), ("3", ""));
    }

    #[test]
    fn the_last_idempotency_key_counts() {
        let options = PublishOptions::new().idempotency_key("a").idempotency_key("b");
        assert_eq!(options.headers().values(MESSAGE_ID_HEADER), ["b"]);
    }
}
