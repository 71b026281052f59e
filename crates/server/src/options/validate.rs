//! Checks across options, all problems reported at once.

use super::Options;

/// What is wrong with a set of options: one line a problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.join("; "))]
pub struct OptionsError {
    /// The problems, in the words of nats-server where it has the same check.
    pub problems: Vec<String>,
}

impl Options {
    /// Checks the options against each other.
    ///
    /// # Errors
    ///
    /// All problems at once, in the words of nats-server where it has the same check.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let mut problems = Vec::new();
        if self.max_payload > i64::try_from(self.max_pending).unwrap_or(i64::MAX) {
            problems.push(format!(
                "max_payload ({}) cannot be higher than max_pending ({})",
                self.max_payload, self.max_pending
            ));
        }
        if self.server_name.as_deref().is_some_and(|name| name.contains(' ')) {
            problems.push("server name cannot contain spaces".to_owned());
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(OptionsError { problems })
        }
    }
}
