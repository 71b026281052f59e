//! Chunks of a restore between whoever sends them and the task that reads them.
//!
//! A chunk is answered when it was read, so that a sender who waits for answers is as fast as the store. One who does not
//! is cut off at [`BYTES_MAX`].

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::router::{Message, Service, Turn};

/// Bytes that may wait.
const BYTES_MAX: usize = 16 << 20;

/// One message of the sender.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Where the answer goes; none ends the restore.
    pub(super) reply: Option<Bytes>,
    /// Its bytes; none end the upload.
    pub(super) payload: Bytes,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// More came than may wait.
    flooded: bool,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Upload {
    queue: Mutex<Queue>,
    came: Notify,
}

impl Service for Upload {
    fn receive(&self, message: &Message<'_>, _turn: &mut Turn<'_>) -> bool {
        let mut queue = self.queue.lock();
        if queue.flooded {
            return false;
        }
        // A message without bytes takes room as well.
        queue.bytes += message.payload.len() + 256;
        if queue.bytes > BYTES_MAX {
            queue.flooded = true;
            queue.chunks = VecDeque::new();
        } else {
            queue.chunks.push_back(Chunk {
                reply: message.reply.map(Bytes::copy_from_slice),
                payload: message.shared_payload(),
            });
        }
        drop(queue);
        self.came.notify_one();
        true
    }
}

impl Upload {
    /// The next chunk; `None` when more came than may wait.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&self) -> Option<Chunk> {
        loop {
            {
                let mut queue = self.queue.lock();
                if queue.flooded {
                    return None;
                }
                if let Some(chunk) = queue.chunks.pop_front() {
                    queue.bytes -= chunk.payload.len() + 256;
                    return Some(chunk);
                }
            }
            self.came.notified().await;
        }
    }
}
