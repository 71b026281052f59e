//! Simulation of a stream with its consumers: random programs on a disk that forgets and a clock that stands, against a
//! model.
//!
//! A run is a function of its seed, but for what the server draws by itself, names and jitters, on which nothing here rests. The
//! server, the stream's task and the consumers are the real ones; the store has no
//! threads, its steps are made here, and lives end by power cuts, kills and shutdowns. What must hold is in [`model`].
//!
//! It proves itself: mistakes that are made on purpose, one of `Fault::ALL` after the other, are all found.
//!
//! Not simulated: segments (the store's own simulation has them), connections, push consumers.

mod failing;
mod full;
mod model;
mod run;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, UNIX_EPOCH};

use windjet_store::{SimDisk, Store};

use super::fault::{Fault, PLANTED};
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

    /// Why a consumer does not deliver.
    async fn explain(&self, consumer: usize) -> String {
        let why = self
            .drive(self.js.explain_consumer("Q", &format!("C{consumer}")))
            .await;
        format!("{why:?}")
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

/// Seeds until it is enough; the first that fails is named.
fn seeds(first: u64, enough: impl Fn(u64) -> bool) -> u64 {
    let mut seed = first;
    while !enough(seed) {
        if let Err(why) = run::run(seed) {
            panic!("{why}\nrepeat with WINDJET_SEED={seed}");
        }
        seed += 1;
    }
    seed - first
}

/// The first seed at which a mistake is found, and how.
fn found(fault: Fault) -> Option<(u64, String)> {
    PLANTED.set(Some(fault));
    let found = (1..=40).find_map(|seed| Some((seed, run::run(seed).err()?)));
    PLANTED.set(None);
    found
}

#[test]
fn every_planted_fault_is_found() {
    for fault in Fault::ALL {
        let (seed, why) = found(fault).unwrap_or_else(|| panic!("{fault:?} is not found"));
        println!("{fault:?} at seed {seed}: {why}");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Ten seconds of seeds, or as many as `WINDJET_SEEDS` says: `scripts/long` runs 10,000.
#[test]
fn a_work_queue_keeps_its_promises_through_crashes() {
    let (first, start) = (number("WINDJET_SEED").unwrap_or(1), Instant::now());
    match number("WINDJET_SEEDS") {
        Some(count) => drop(seeds(first, |seed| seed - first >= count)),
        None => {
            let run = seeds(first, |_| start.elapsed() > Duration::from_secs(10));
            assert!(run > 20, "too few runs to mean anything: {run}");
        }
    }
}
