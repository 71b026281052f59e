//! JetStream on a disk that fails and a clock that stands. The server, the stream's task and the consumers are the real ones; the
//! store has no threads, its steps are made here.

mod failing;
mod full;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, UNIX_EPOCH};

use windjet_store::{SimDisk, Store};

use super::medium::INLINE;
use super::{JetStreamContext, TestClock};
use crate::Server;
use crate::server::Builder;

/// A server on a simulated disk.
struct World {
    server: Server,
    js: JetStreamContext,
}

impl World {
    async fn start(disk: &SimDisk, clock: &TestClock) -> Self {
        Self::start_with(Server::builder(), disk, clock).await
    }

    async fn start_with(builder: Builder, disk: &SimDisk, clock: &TestClock) -> Self {
        let builder = builder.disk(Arc::new(disk.clone())).clock(clock.clone());
        let server = builder.by_hand().start().await.unwrap();
        let js = server.jetstream().unwrap();
        Self { server, js }
    }

    /// Lets the tasks run, and the journal make a step.
    async fn step(&self) {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        if let Some(js) = self.server.shared().jetstream() {
            // A dead disk is what the run is about.
            let _ = js.with_store(Store::write_step);
            let _ = js.with_store(Store::sync_step);
        }
    }

    /// Something that must come to an end by itself soon; `None` when it does not.
    async fn drive<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        for _ in 0..60 {
            let polled = std::future::poll_fn(|cx| Poll::Ready(what.as_mut().poll(cx))).await;
            if let Poll::Ready(done) = polled {
                return Some(done);
            }
            self.step().await;
        }
        None
    }

    /// Time has passed: whoever waits for it looks.
    async fn pass(&self, clock: &TestClock, by: Duration) {
        clock.advance(by);
        self.step().await;
    }

    /// The end as an operator makes it.
    async fn shutdown(self) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        let mut shutdown = Box::pin(self.server.shutdown(Duration::from_secs(10)));
        loop {
            let polled = std::future::poll_fn(|cx| Poll::Ready(shutdown.as_mut().poll(cx))).await;
            if let Poll::Ready(report) = polled {
                return report.complete;
            }
            assert!(Instant::now() < end, "the server does not end");
            self.step().await;
        }
    }
}

fn clock() -> TestClock {
    TestClock::new(UNIX_EPOCH + Duration::from_secs(1_700_000_000))
}

fn runtime() -> tokio::runtime::Runtime {
    INLINE.set(true);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
