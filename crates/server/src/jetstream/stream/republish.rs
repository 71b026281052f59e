//! Republishing: what was stored goes out again on a core subject, with where it stands.

use bytes::Bytes;
use windjet_store::Found;

use super::post::Post;
use super::task::Task;
use crate::jetstream::publish::republish::Stored;

impl Task {
    /// Publishes stored messages again, given as sequences with the one before on the same subject.
    pub(super) fn republish(&mut self, messages: &[(u64, u64)]) {
        let Some(republisher) = &self.ingest.republish else {
            return;
        };
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        let (mut to, mut headers) = (Vec::new(), Vec::new());
        for (seq, before) in messages {
            // Just committed, so it is in memory, unless it is gone again.
            let Found::InMemory(message) = self.stream.reader.read(*seq) else {
                continue;
            };
            let payload = message.payload();
            let stored = Stored {
                stream: &self.stream.name,
                subject: &message.subject(),
                block: &message.headers(),
                payload: &payload,
                seq: *seq,
                time: message.time(),
                before: *before,
            };
            if republisher.write(&stored, &mut to, &mut headers) {
                let body = if republisher.headers_only() {
                    Bytes::new()
                } else {
                    payload
                };
                post.send(&to, None, &headers, &body);
            }
        }
        post.finish();
    }
}
