//! JetStream as a whole in numbers, for monitoring. Counts come from what is committed, without asking a stream's task; only
//! where consumers stand is asked of their streams ([`ask_consumers`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use tokio::sync::oneshot;
use windjet_protocol::jetstream::consumer::requests::ConsumerListResponse;
use windjet_protocol::jetstream::{ApiError, ConsumerInfo};

use super::JetStream;
use super::account::JsAccount;
use super::stream::Stream;
use super::stream::call::{Answer, Call};

/// Sums over streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes in memory streams.
    pub(crate) memory: u64,
    /// Bytes in file streams.
    pub(crate) storage: u64,
    /// Bytes that memory streams may take by their own limits.
    pub(crate) reserved_memory: u64,
    /// Bytes that file streams may take by their own limits.
    pub(crate) reserved_storage: u64,
    /// Calls of the API.
    pub(crate) calls: u64,
    /// Those that failed.
    pub(crate) failed_calls: u64,
    /// Streams.
    pub(crate) streams: u64,
    /// Consumers.
    pub(crate) consumers: u64,
    /// Messages.
    pub(crate) messages: u64,
}

impl Totals {
    /// Of one account.
    pub(crate) fn of(account: &JsAccount) -> Self {
        let usage = account.usage();
        let (calls, failed_calls) = account.calls();
        Self {
            memory: usage.memory,
            storage: usage.storage,
            reserved_memory: usage.reserved_memory,
            reserved_storage: usage.reserved_storage,
            calls,
            failed_calls,
            streams: usage.streams,
            consumers: usage.consumers,
            messages: account
                .streams()
                .iter()
                .map(|stream| stream.reader.state().messages)
                .sum(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.memory += other.memory;
        self.storage += other.storage;
        self.reserved_memory += other.reserved_memory;
        self.reserved_storage += other.reserved_storage;
        self.calls += other.calls;
        self.failed_calls += other.failed_calls;
        self.streams += other.streams;
        self.consumers += other.consumers;
        self.messages += other.messages;
    }
}

impl JetStream {
    /// Of all accounts.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for account in self.accounts() {
            totals.add(&Totals::of(&account));
        }
        totals
    }
}

/// A question to a stream about its consumers that is under way.
#[derive(Debug)]
pub(crate) struct Asked {
    stream: Arc<Stream>,
    answer: Option<oneshot::Receiver<Result<ConsumerListResponse, ApiError>>>,
}

/// Asks a stream where its consumers stand. The answer comes page by page, so that a stream with many of them goes on with
/// its work in between.
pub(crate) fn ask_consumers(stream: Arc<Stream>) -> Asked {
    let answer = page(&stream, 0);
    Asked { stream, answer }
}

fn page(stream: &Stream, offset: i64) -> Option<oneshot::Receiver<Result<ConsumerListResponse, ApiError>>> {
    let (sender, receiver) = oneshot::channel();
    let call = Call::ConsumerList(offset, Answer::Local(sender));
    stream.inbox.call(call).ok().map(|()| receiver)
}

impl Asked {
    /// The consumers by name; `None` when the stream is gone or has not answered in time. Blocks the thread.
    pub(crate) fn wait(mut self, until: Instant) -> Option<Vec<ConsumerInfo>> {
        let mut all = Vec::new();
        loop {
            let listed = wait(self.answer.take()?, until)?.ok()?;
            let last = listed.consumers.is_empty();
            all.extend(listed.consumers);
            if last || all.len() as u64 >= listed.page.total {
                return Some(all);
            }
            self.answer = page(&self.stream, i64::try_from(all.len()).unwrap_or(i64::MAX));
        }
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread, which is none of the runtime's workers.
fn wait<T>(mut answer: oneshot::Receiver<T>, until: Instant) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut answer).poll(&mut context) {
            return answer.ok();
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_answer_with_its_loss_or_by_its_time() {
        let soon = || Instant::now() + Duration::from_secs(30);
        let (sender, receiver) = oneshot::channel();
        let thread = std::thread::spawn(move || sender.send(7));
        assert_eq!(wait(receiver, soon()), Some(7));
        assert_eq!(thread.join().unwrap(), Ok(()));
        let (sender, receiver) = oneshot::channel::<u8>();
        drop(sender);
        assert_eq!(wait(receiver, soon()), None);
        let (_sender, receiver) = oneshot::channel::<u8>();
        assert_eq!(wait(receiver, Instant::now() + Duration::from_millis(1)), None);
    }
}
