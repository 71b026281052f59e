//! What the messages of all streams take, against the bounds of their account and of the server.
//!
//! Each stream's task holds a [`Quota`]: it keeps the sums of account and server up to date with every commit, and answers
//! with the stream's own bytes as they are staged. Streams that store at the same time may pass a bound together by what
//! one turn of each holds. With its quota a stream leaves the sums.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::JetStream;
use super::account::JsAccount;

/// Bytes of messages, by the kind of storage.
#[derive(Debug, Default)]
pub(crate) struct Used {
    memory: AtomicU64,
    storage: AtomicU64,
}

impl Used {
    fn of(&self, memory: bool) -> &AtomicU64 {
        if memory { &self.memory } else { &self.storage }
    }

    fn change(&self, memory: bool, before: u64, now: u64) {
        let used = self.of(memory);
        if now >= before {
            used.fetch_add(now - before, Ordering::Relaxed);
        } else {
            used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Quota {
    js: Arc<JetStream>,
    account: Arc<JsAccount>,
    memory: bool,
    /// What the sums hold of this stream.
    counted: u64,
}

impl Quota {
    /// Of a stream that takes so much already.
    pub(super) fn new(js: Arc<JetStream>, account: Arc<JsAccount>, memory: bool, bytes: u64) -> Self {
        let mut quota = Self {
            js,
            account,
            memory,
            counted: 0,
        };
        quota.count(bytes);
        quota
    }

    /// The stream takes this much now.
    pub(super) fn count(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.counted, bytes);
        if before != bytes {
            self.js.used.change(self.memory, before, bytes);
            self.account.used.change(self.memory, before, bytes);
        }
    }

    /// The sum, with the stream's part as it is.
    fn sum(&self, used: &Used, own: u64) -> u64 {
        let sum = used.of(self.memory).load(Ordering::Relaxed);
        sum.saturating_sub(self.counted).saturating_add(own)
    }

    /// Whether the server has used up its storage of this kind.
    pub(super) fn server_full(&self, own: u64) -> bool {
        let size = self.js.size();
        let max = if self.memory { size.memory } else { size.storage };
        self.sum(&self.js.used, own) > max
    }

    /// Whether `size` more bytes are over the account's limit.
    pub(super) fn account_full(&self, own: u64, size: u64) -> bool {
        let max = self.account.bytes_max(self.memory);
        max.is_some_and(|max| self.sum(&self.account.used, own).saturating_add(size) > max)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.count(0);
    }
}
