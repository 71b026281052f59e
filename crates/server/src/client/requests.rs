//! Requests that wait for their answer, all on one subscription of the client.
//!
//! A waiting request is one entry in a map. The entry goes when the answer comes, when the waiting future is dropped, and
//! when time is up, so a request that nobody answers leaves nothing behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Message;
use crate::router::{self, Service, Turn};

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Requests {
    prefix: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Message>, RandomState>>,
}

impl Requests {
    /// Requests whose answers go to subjects below `prefix`.
    pub(crate) fn new(prefix: String) -> Self {
        Self {
            prefix,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    /// The pattern of all answers.
    pub(crate) fn pattern(&self) -> Bytes {
        Bytes::from(format!("{}.*", self.prefix))
    }

    /// Opens an entry for one request.
    pub(crate) fn open(self: &Arc<Self>) -> Waiting {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert(token, sender);
        Waiting {
            requests: self.clone(),
            token,
            receiver,
            reply: format!("{}.{token}", self.prefix),
        }
    }
}

impl Service for Requests {
    fn receive(&self, message: &router::Message<'_>, _turn: &mut Turn<'_>) -> bool {
        let token = message
            .subject
            .get(self.prefix.len() + 1..)
            .and_then(|token| std::str::from_utf8(token).ok())
            .and_then(|token| token.parse().ok());
        let Some(waiting) = token.and_then(|token: u64| self.waiting.lock().remove(&token)) else {
            return false;
        };
        let answer = Message {
            subject: Bytes::copy_from_slice(message.subject),
            reply: message.reply.map(Bytes::copy_from_slice),
            header_block: Bytes::copy_from_slice(message.headers),
            payload: message.shared_payload(),
        };
        waiting.send(answer).is_ok()
    }
}

/// One request that waits. Dropping it removes its entry.
#[derive(Debug)]
pub(crate) struct Waiting {
    requests: Arc<Requests>,
    token: u64,
    receiver: oneshot::Receiver<Message>,
    /// Subject for the answer.
    pub(crate) reply: String,
}

impl Waiting {
    /// The answer; `None` when the client closed.
    pub(crate) async fn answer(&mut self) -> Option<Message> {
        (&mut self.receiver).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.requests.waiting.lock().remove(&self.token);
    }
}
