//! Scheduled publish: a message now, its delivery later.
//!
//! Two ways. By subject: the message goes to a subject that names its delay, `orders.created.delay.5000`, and a forwarder
//! that operations own delivers it; the header `X-NATS-Scheduled-For` tells the time. By the server, from version 2.12 on, in
//! a stream that allows it: the message waits in the stream and the server publishes it to its target, which must belong
//! to the same stream.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::names::validate_publish_subject;
use crate::publisher::{Ack, PublishError, Publisher};

/// When the message is due, in RFC 3339.
pub const HEADER_SCHEDULED_FOR: &str = "X-NATS-Scheduled-For";

/// The subject convention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// `%s` stands for the subject and `%d` for the delay in milliseconds, each once. `%s.delay.%d`.
    pub subject_template: String,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            subject_template: "%s.delay.%d".to_owned(),
        }
    }
}

impl ScheduleConfig {
    /// The subject for a delay, which is rounded up to a millisecond.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the template does not have both places once, [`ErrorKind::InvalidSubject`] when
    /// what comes out cannot be published to.
    pub fn subject(&self, subject: &str, delay: Duration) -> Result<String> {
        validate_publish_subject(subject)?;
        let once = |place: &str| self.subject_template.matches(place).count() == 1;
        if !once("%s") || !once("%d") {
            let what = format!(
                "the template {:?} must have %s and %d once each",
                self.subject_template
            );
            return Err(Error::new(ErrorKind::InvalidConfig, what));
        }
        let milliseconds = delay.as_nanos().div_ceil(1_000_000).max(1);
        let made = self
            .subject_template
            .replace("%d", &milliseconds.to_string())
            .replace("%s", subject);
        validate_publish_subject(&made)?;
        Ok(made)
    }
}

impl Publisher {
    /// Publishes a message to be delivered after `delay`, by the subject convention; without delay, at once.
    ///
    /// # Errors
    /// As [`Publisher::publish`] and [`ScheduleConfig::subject`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_scheduled(
        &self,
        subject: &str,
        message: Message,
        delay: Duration,
        config: &ScheduleConfig,
    ) -> std::result::Result<Ack, PublishError> {
        if delay.is_zero() {
            return self.publish(subject, message).await;
        }
        let (to, due) = match (config.subject(subject, delay), due(delay)) {
            (Ok(to), Ok(due)) => (to, due),
            (Err(error), _) | (_, Err(error)) => return Err(PublishError::not_stored(error, message)),
        };
        self.publish(&to, message.with_header(HEADER_SCHEDULED_FOR, &due))
            .await
    }

    /// Publishes a message to `subject`, which the server publishes to `target` after `delay`. Both must belong to one
    /// stream that allows schedules; there is one schedule for each subject.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_server_scheduled(
        &self,
        subject: &str,
        target: &str,
        message: Message,
        delay: Duration,
    ) -> std::result::Result<Ack, PublishError> {
        let due = match validate_publish_subject(target).and_then(|()| due(delay)) {
            Ok(due) => due,
            Err(error) => return Err(PublishError::not_stored(error, message)),
        };
        let message = message
            .with_header("Nats-Schedule", &format!("@at {due}"))
            .with_header("Nats-Schedule-Target", target);
        self.publish(subject, message).await
    }
}

fn due(delay: Duration) -> Result<String> {
    let far = || Error::new(ErrorKind::InvalidConfig, "scheduling a message so far away");
    let due = SystemTime::now().checked_add(delay).ok_or_else(far)?;
    OffsetDateTime::from(due)
        .format(&Rfc3339)
        .map_err(|error| far().because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> ScheduleConfig {
        ScheduleConfig {
            subject_template: text.to_owned(),
        }
    }

    #[test]
    fn the_subject_names_the_delay() {
        let delay = Duration::from_secs(5);
        assert_eq!(
            ScheduleConfig::default().subject("a.b", delay).unwrap(),
            "a.b.delay.5000"
        );
        assert_eq!(
            template("later.%d.%s").subject("a", delay).unwrap(),
            "later.5000.a"
        );
        let tiny = Duration::from_nanos(1);
        assert_eq!(ScheduleConfig::default().subject("a", tiny).unwrap(), "a.delay.1");
        assert_eq!(
            ScheduleConfig::default()
                .subject("a", Duration::from_nanos(1_000_001))
                .unwrap(),
            "a.delay.2"
        );
    }

    #[test]
    fn templates_and_subjects_that_cannot_work_are_refused() {
        let delay = Duration::from_secs(1);
        for bad in ["%s", "%d", "", "%s.%s.%d", "%s.%d.%d"] {
            assert_eq!(
                template(bad).subject("a", delay).unwrap_err().kind(),
                ErrorKind::InvalidConfig,
                "{bad}"
            );
        }
        assert_eq!(
            template("%s..%d").subject("a", delay).unwrap_err().kind(),
            ErrorKind::InvalidSubject
        );
        assert_eq!(
            ScheduleConfig::default()
                .subject("a.*", delay)
                .unwrap_err()
                .kind(),
            ErrorKind::InvalidSubject
        );
    }
}
