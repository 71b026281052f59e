//! Watching keys.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::{Entry, KeyValue, KeyValueError};
use crate::jetstream::context::ordered::Ordered;

/// Entries of the keys that are watched, as they come: a [`Stream`]. It ends with an error when the bucket goes or the server
/// shuts down.
#[derive(Debug)]
#[must_use = "nothing is read until it is polled"]
pub struct Watch {
    bucket: KeyValue,
    messages: Ordered,
}

impl Watch {
    pub(super) fn new(bucket: KeyValue, messages: Ordered) -> Self {
        Self { bucket, messages }
    }

    /// The next entry.
    ///
    /// # Cancel safety
    /// A dropped call takes no entry.
    pub async fn next(&mut self) -> Option<Result<Entry, KeyValueError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Entries to come of those that are there now; 0 when what was there is complete.
    #[must_use]
    pub fn pending(&mut self) -> u64 {
        self.messages.pending()
    }
}

impl Stream for Watch {
    type Item = Result<Entry, KeyValueError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let next = Pin::new(&mut this.messages).poll_next(cx);
        next.map(|next| {
            let read = next?;
            Some(read.map(|m| this.bucket.entry(&m)).map_err(KeyValueError::Get))
        })
    }
}
