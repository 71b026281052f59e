//! What the server refused to let this connection publish.
//!
//! A refusal comes as an error beside the protocol. Those of API subjects are kept, each with the number of its latest
//! refusal; acknowledgements' subjects would be without bound, so they only count.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The refusals of one connection.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    /// By subject, the number of the latest refusal. As many as there are API subjects that we publish to.
    subjects: HashMap<String, u64>,
}

/// What an error of the server was about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) subject: String,
    /// Whether it is an API call about a consumer.
    pub(crate) consumer_call: bool,
    /// Whether it is the first refusal of this API subject.
    pub(crate) first: bool,
}

impl Refusals {
    /// Takes in an error text of the server. `None` when it is no refusal of a publish.
    pub(crate) fn note(&self, error: &str) -> Option<Refused> {
        let subject = refused_subject(error)?;
        let call = api_call(subject);
        let mut first = false;
        if call.is_some() {
            let mut state = self.state.lock();
            state.count += 1;
            let number = state.count;
            first = state.subjects.insert(subject.to_owned(), number).is_none();
        }
        self.changed.notify_waiters();
        Some(Refused {
            subject: subject.to_owned(),
            consumer_call: call.is_some_and(|call| call.starts_with("CONSUMER.")),
            first,
        })
    }

    /// How many there have been of API subjects.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// The refused API subjects, sorted.
    pub(crate) fn subjects(&self) -> Vec<String> {
        let mut subjects: Vec<_> = self.state.lock().subjects.keys().cloned().collect();
        subjects.sort();
        subjects
    }

    /// Waits for a refusal of the subject after the first `before` ones.
    pub(crate) async fn since(&self, subject: &str, before: u64) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let latest = self.state.lock().subjects.get(subject).copied();
            if latest.is_some_and(|number| number > before) {
                return;
            }
            changed.await;
        }
    }
}

fn refused_subject(error: &str) -> Option<&str> {
    const MARK: &str = "permissions violation for publish to \"";
    let lower = error.to_ascii_lowercase();
    let begin = lower.find(MARK)? + MARK.len();
    let subject = error.get(begin..)?;
    subject.split_once('"').map(|(subject, _)| subject)
}

/// The call of an API subject, of the plain form or with a domain.
fn api_call(subject: &str) -> Option<&str> {
    let rest = subject.strip_prefix("$JS.")?;
    if let Some(call) = rest.strip_prefix("API.") {
        return Some(call);
    }
    let (_domain, call) = rest.split_once('.')?;
    call.strip_prefix("API.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(subject: &str) -> String {
        format!("Permissions Violation for Publish to \"{subject}\"")
    }

    #[tokio::test]
    async fn only_api_subjects_are_kept_and_each_with_its_latest_number() {
        let refusals = Refusals::default();
        assert_eq!(refusals.note("authorization violation"), None);
        let ack = refusals.note(&violation("$JS.ACK.S.c.1.2.3.4.5")).unwrap();
        assert!(!ack.consumer_call && !ack.first);
        assert_eq!(refusals.count(), 0);
        let call = "$JS.API.CONSUMER.MSG.NEXT.S.wh-ingest-0";
        let refused = refusals.note(&violation(call)).unwrap();
        assert!(refused.consumer_call && refused.first && refused.subject == call);
        assert!(!refusals.note(&violation(call)).unwrap().first);
        refusals.note(&violation("$JS.hub.API.STREAM.INFO.S"));
        assert_eq!(refusals.subjects(), [call, "$JS.hub.API.STREAM.INFO.S"]);
        refusals.since(call, 1).await;
        let later = tokio::time::timeout(std::time::Duration::ZERO, refusals.since(call, 2)).await;
        assert!(later.is_err(), "the second was the latest");
    }

    #[test]
    fn both_forms_of_api_subjects_are_known() {
        assert_eq!(api_call("$JS.API.INFO"), Some("INFO"));
        assert_eq!(api_call("$JS.hub.API.INFO"), Some("INFO"));
        assert_eq!(api_call("$JS.ACK.STREAM.c.1"), None);
        assert_eq!(api_call("wh.ingest.0.1.a.b"), None);
    }
}
