//! Which consumer to pull from, and where its API is.

use std::fmt;

/// A consumer, by names and API prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    stream: String,
    consumer: String,
    prefix: String,
}

/// A name that cannot be part of an API subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a name of a {what}: it must not be empty nor contain blanks, '.', '*', '>', '/' or '\\'"
)]
pub struct InvalidName {
    what: &'static str,
    name: String,
}

impl Target {
    /// The consumer `consumer` of the stream `stream`, under the usual API prefix `$JS.API`.
    ///
    /// # Errors
    /// When one of the names is not valid.
    pub fn new(stream: impl Into<String>, consumer: impl Into<String>) -> Result<Self, InvalidName> {
        let (stream, consumer) = (stream.into(), consumer.into());
        for (what, name) in [("stream", &stream), ("consumer", &consumer)] {
            if !is_name(name) {
                let name = name.clone();
                return Err(InvalidName { what, name });
            }
        }
        Ok(Self {
            stream,
            consumer,
            prefix: "$JS.API".to_owned(),
        })
    }

    /// The same consumer in a JetStream domain.
    #[must_use]
    pub fn domain(self, domain: &str) -> Self {
        if domain.is_empty() {
            return self;
        }
        let prefix = format!("$JS.{domain}.API");
        Self { prefix, ..self }
    }

    /// The same consumer under another API prefix, as accounts import it. A dot at the end is not needed.
    #[must_use]
    pub fn api_prefix(self, prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('.').to_owned();
        Self { prefix, ..self }
    }

    /// The name of the stream.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The name of the consumer.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// The subject of pull requests.
    pub(super) fn next_subject(&self) -> String {
        format!(
            "{}.CONSUMER.MSG.NEXT.{}.{}",
            self.prefix, self.stream, self.consumer
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.consumer)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name
            .chars()
            .any(|c| c.is_control() || matches!(c, ' ' | '.' | '*' | '>' | '/' | '\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_follows_prefix_and_domain() {
        let target = Target::new("ORDERS", "worker").unwrap();
        assert_eq!(target.next_subject(), "$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker");
        assert_eq!(
            target.clone().domain("hub").next_subject(),
            "$JS.hub.API.CONSUMER.MSG.NEXT.ORDERS.worker"
        );
        assert_eq!(
            target.api_prefix("from.ops.").next_subject(),
            "from.ops.CONSUMER.MSG.NEXT.ORDERS.worker"
        );
    }

    #[test]
    fn names_that_would_break_the_subject_are_refused() {
        for bad in ["", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "a\tb", "a\u{7f}"] {
            assert!(Target::new("S", bad).is_err(), "{bad:?}");
            assert!(Target::new(bad, "C").is_err(), "{bad:?}");
        }
        assert!(Target::new("a".repeat(255), "C").is_ok());
        assert!(Target::new("a".repeat(256), "C").is_err());
    }
}
