//! Streams that exist and do not run.
//!
//! A stream is offline when what the store has of it cannot be run (its configuration does not parse, or needs a newer
//! server), or when its task has failed. It keeps its name, its data and, as far as they are known, its subjects; it is listed
//! with the reason, and every call on it is answered with that. A restart tries again.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use windjet_protocol::jetstream::{ApiError, ErrorCode, StreamConfig};
use windjet_protocol::subject;

use super::account::JsAccount;
use super::local::Outcome;
use super::mailbox;
use super::stream::Stream;
use super::stream::inbox::LocalSignal;
use crate::server::Shared;

/// Why one does not run.
#[derive(Debug)]
struct Entry {
    reason: String,
    subjects: Vec<String>,
}

/// The offline streams of an account.
#[derive(Debug, Default)]
pub(crate) struct Offline(RwLock<BTreeMap<Arc<str>, Entry>>);

impl Offline {
    /// A stream does not run; its configuration, where it is known.
    pub(crate) fn insert(&self, name: &str, config: Option<&StreamConfig>, reason: String) {
        tracing::error!(stream = %name, "stream is offline: {reason}");
        let subjects = config.map(|config| config.subjects.clone()).unwrap_or_default();
        self.0.write().insert(name.into(), Entry { reason, subjects });
    }

    /// What is answered about a stream that does not run here; for one that is not there at all, that.
    pub(crate) fn error(&self, name: &str) -> ApiError {
        self.find(name)
            .unwrap_or_else(|| ErrorCode::StreamNotFound.error())
    }

    /// What is answered about an offline stream.
    pub(crate) fn find(&self, name: &str) -> Option<ApiError> {
        let all = self.0.read();
        all.get(name)
            .map(|entry| ErrorCode::StreamOfflineReason.with(&entry.reason))
    }

    /// Those whose subjects collide with `filter`, all for an empty one, with why they do not run.
    pub(crate) fn filtered(&self, filter: &str) -> BTreeMap<String, String> {
        let all = self.0.read();
        all.iter()
            .filter(|(_, entry)| filter.is_empty() || entry.collides([filter]))
            .map(|(name, entry)| (name.to_string(), entry.reason.clone()))
            .collect()
    }

    /// Whether the subjects of one collide with others.
    pub(crate) fn overlaps(&self, subjects: &[String]) -> bool {
        let all = self.0.read();
        all.values()
            .any(|entry| entry.collides(subjects.iter().map(String::as_str)))
    }
}

impl Entry {
    fn collides<'s>(&self, subjects: impl IntoIterator<Item = &'s str>) -> bool {
        subjects.into_iter().any(|theirs| {
            let mut own = self.subjects.iter();
            own.any(|own| subject::overlaps(own.as_bytes(), theirs.as_bytes()))
        })
    }
}

/// The task of a stream has panicked: it takes nothing more, and whoever waits is told.
pub(crate) fn task_failed(server: &Shared, account: &Arc<JsAccount>, stream: &Arc<Stream>) {
    let reason = "its task failed, which is a defect of the server; a restart tries again";
    account
        .offline
        .insert(&stream.name, Some(&*stream.config()), reason.to_owned());
    account.remove(stream);
    let left = stream.inbox.close();
    let error = account.offline.error(&stream.name);
    for call in left.calls {
        call.refuse(server, &error);
    }
    for (_, signal) in left.locals {
        match signal {
            LocalSignal::Pull { mailbox, .. } => mailbox.end(),
            LocalSignal::Settle {
                confirm: Some(confirm),
                ..
            } => drop(confirm.send(Err(mailbox::Unconfirmed::Unknown))),
            LocalSignal::Settle { .. } | LocalSignal::Closed { .. } => {}
        }
    }
    for item in left.publishes {
        if let Some(source) = item.source() {
            source.settle(Outcome::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Server;
    use crate::jetstream::stream::call::Call;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stream_whose_task_fails_is_offline_until_the_restart_and_keeps_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let start = async || Server::builder().jetstream(folder.path()).start().await.unwrap();
        let config = |name: &str, subject: &str| StreamConfig {
            name: name.into(),
            subjects: vec![subject.into()],
            ..StreamConfig::default()
        };
        let server = start().await;
        let js = server.jetstream().unwrap();
        js.create_stream(config("S", "s")).await.unwrap();
        js.publish("S", "s", "x").unwrap().await.unwrap();
        let account = server
            .shared()
            .jetstream()
            .unwrap()
            .account(crate::options::GLOBAL_ACCOUNT)
            .unwrap();
        account.stream("S").unwrap().inbox.call(Call::Panic).unwrap();
        let end = tokio::time::Instant::now() + PATIENCE;
        while account.offline.find("S").is_none() || account.stream("S").is_some() {
            assert!(tokio::time::Instant::now() < end, "the stream is not offline");
            tokio::task::yield_now().await;
        }
        let offline = |error: ApiError| {
            assert!(error.is(ErrorCode::StreamOfflineReason), "{error}");
            assert!(error.description.contains("its task failed"), "{error}");
        };
        offline(js.stream_info("S").await.unwrap_err());
        offline(js.create_stream(config("S", "s")).await.unwrap_err());
        // Its subject is still its own.
        let other = js.create_stream(config("T", "s")).await.unwrap_err();
        assert!(other.is(ErrorCode::SubjectOverlap), "{other}");
        assert!(js.publish("S", "s", "y").is_err());
        js.create_stream(config("T", "t")).await.unwrap();
        assert!(server.shutdown(PATIENCE).await.complete);

        let server = start().await;
        let js = server.jetstream().unwrap();
        assert_eq!(js.stream_info("S").await.unwrap().state.messages, 1);
        assert!(server.shutdown(PATIENCE).await.complete);
    }
}
