//! What one pull asks for.

use std::time::Duration;

use serde::Serialize;

/// Most messages that one request may ask for.
pub(super) const BATCH_MAX: usize = 8192;
/// No heartbeats on requests shorter than this: they would only be noise.
const HEARTBEAT_EXPIRES_MIN: Duration = Duration::from_millis(300);

/// What to ask the consumer for. The default is one message within five seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Request {
    pub(super) batch: usize,
    pub(super) expires: Duration,
    pub(super) heartbeat: Option<Duration>,
    pub(super) no_wait: bool,
    pub(super) max_bytes: Option<usize>,
    pub(super) group: Option<String>,
    pub(super) priority: Option<u8>,
    pub(super) min_pending: Option<u64>,
    pub(super) min_ack_pending: Option<u64>,
}

impl Default for Request {
    fn default() -> Self {
        Self::batch(1)
    }
}

impl Request {
    /// A request for up to `messages` messages, 1 to 8192, within five seconds.
    pub fn batch(messages: usize) -> Self {
        Self {
            batch: messages,
            expires: Duration::from_secs(5),
            heartbeat: None,
            no_wait: false,
            max_bytes: None,
            group: None,
            priority: None,
            min_pending: None,
            min_ack_pending: None,
        }
    }

    /// How long the server keeps the request; at least one millisecond.
    pub fn expires(mut self, expires: Duration) -> Self {
        self.expires = expires;
        self
    }

    /// Asks the server for a sign of life at this interval while nothing comes. When two fail to come, the pull ends
    /// with [`HeartbeatMissed`](super::PullErrorKind::HeartbeatMissed).
    ///
    /// What is sent is at most a third of [`Request::expires`], and nothing at all when that is below 300 ms: the
    /// server refuses more.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = (!interval.is_zero()).then_some(interval);
        self
    }

    /// Takes what is there now and does not wait for more.
    pub fn no_wait(mut self) -> Self {
        self.no_wait = true;
        self
    }

    /// Stops before the messages exceed this many bytes, counted as the server does: subjects, headers and payload.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Names the priority group.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Rank among the pullers of a consumer with policy `prioritized`: 0 is served first, 9 last.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// For policy `overflow`: deliver only when at least this many messages are pending.
    pub fn min_pending(mut self, messages: u64) -> Self {
        self.min_pending = Some(messages);
        self
    }

    /// For policy `overflow`: deliver only when at least this many messages are waiting for their ack.
    pub fn min_ack_pending(mut self, messages: u64) -> Self {
        self.min_ack_pending = Some(messages);
        self
    }

    /// The heartbeat that is really asked for.
    #[must_use]
    pub fn effective_heartbeat(&self) -> Option<Duration> {
        if self.no_wait || self.expires < HEARTBEAT_EXPIRES_MIN {
            return None;
        }
        self.heartbeat.map(|wanted| wanted.min(self.expires / 3))
    }

    /// Why this request makes no sense, if it does not.
    pub(super) fn fault(&self) -> Option<String> {
        if self.batch == 0 || self.batch > BATCH_MAX {
            return Some(format!(
                "the batch is {}, it must be 1 to {BATCH_MAX}",
                self.batch
            ));
        }
        if !self.no_wait && self.expires < Duration::from_millis(1) {
            return Some("expires must be at least 1 ms; for no wait use no_wait()".to_owned());
        }
        if self.max_bytes == Some(0) {
            return Some("max_bytes must be at least 1".to_owned());
        }
        if self.priority.is_some_and(|priority| priority > 9) {
            return Some("priority must be 0 to 9".to_owned());
        }
        None
    }

    /// The body for `batch` messages, which may be fewer than the request's own.
    pub(super) fn encode(&self, batch: usize, pin: Option<&str>) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Wire {
            batch,
            expires: if self.no_wait { 0 } else { nanos(self.expires) },
            no_wait: self.no_wait,
            max_bytes: self.max_bytes,
            idle_heartbeat: self.effective_heartbeat().map_or(0, nanos),
            group: self.group.as_deref(),
            id: self.group.as_ref().and(pin),
            priority: self.priority,
            min_pending: self.min_pending,
            min_ack_pending: self.min_ack_pending,
        })
    }
}

#[derive(Serialize)]
struct Wire<'a> {
    batch: usize,
    #[serde(skip_serializing_if = "is_zero")]
    expires: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_wait: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bytes: Option<usize>,
    #[serde(skip_serializing_if = "is_zero")]
    idle_heartbeat: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_pending: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_ack_pending: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &Request, pin: Option<&str>) -> String {
        String::from_utf8(request.encode(request.batch, pin).unwrap()).unwrap()
    }

    #[test]
    fn the_heartbeat_is_at_most_a_third_of_the_expiry() {
        let request = |expires, heartbeat| {
            Request::batch(1)
                .expires(Duration::from_millis(expires))
                .heartbeat(Duration::from_millis(heartbeat))
                .effective_heartbeat()
        };
        assert_eq!(request(5000, 5000), Some(Duration::from_nanos(1_666_666_666)));
        assert_eq!(request(3000, 500), Some(Duration::from_millis(500)));
        assert_eq!(request(200, 50), None);
        assert_eq!(request(5000, 0), None);
    }

    #[test]
    fn only_what_was_asked_for_is_on_the_wire() {
        assert_eq!(
            text(&Request::batch(3), None),
            r#"{"batch":3,"expires":5000000000}"#
        );
        assert_eq!(
            text(&Request::batch(2).no_wait(), None),
            r#"{"batch":2,"no_wait":true}"#
        );
        let grouped = Request::batch(1)
            .expires(Duration::from_secs(1))
            .group("a\"b")
            .max_bytes(1);
        assert_eq!(
            text(&grouped, Some("pin")),
            r#"{"batch":1,"expires":1000000000,"max_bytes":1,"group":"a\"b","id":"pin"}"#
        );
        // A pin means nothing without a group.
        assert_eq!(
            text(
                &Request::batch(1).priority(2).min_pending(5).min_ack_pending(6),
                Some("pin")
            ),
            r#"{"batch":1,"expires":5000000000,"priority":2,"min_pending":5,"min_ack_pending":6}"#
        );
    }

    #[test]
    fn requests_without_sense_are_named() {
        assert!(Request::batch(0).fault().is_some());
        assert!(Request::batch(BATCH_MAX + 1).fault().is_some());
        assert!(Request::batch(1).expires(Duration::ZERO).fault().is_some());
        assert!(Request::batch(1).max_bytes(0).fault().is_some());
        assert!(Request::batch(1).priority(10).fault().is_some());
        assert!(Request::batch(BATCH_MAX).fault().is_none());
        assert!(
            Request::batch(1)
                .expires(Duration::ZERO)
                .no_wait()
                .fault()
                .is_none()
        );
    }
}
