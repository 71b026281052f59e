//! A worker pool: so many tasks run at a time, so many more may wait.
//!
//! Tasks are started in the order they came. What waits is bounded; what finds no room is refused or waits at its
//! sender, as the sender likes. [`WorkerPool::stop`] refuses what comes later and lets everything accepted finish.
//!
//! A task that panics ends alone. The pool has no thread of its own; work that keeps the processor busy belongs into
//! `spawn_blocking`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, ErrorKind, Result};

/// Where a pool stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// It takes tasks.
    Running = 1,
    /// It takes no more, and some still run.
    Draining = 2,
    /// Nothing runs any more.
    Stopped = 3,
}

/// Figures of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Tasks that wait, here or at their senders.
    pub depth: usize,
    /// Tasks that may run at a time.
    pub workers: usize,
    /// Where it stands.
    pub state: State,
}

/// A worker pool. Clones share it.
#[derive(Debug, Clone)]
pub struct WorkerPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Room to run.
    slots: Arc<Semaphore>,
    /// Room to wait.
    queue: Arc<Semaphore>,
    workers: usize,
    buffer: usize,
    /// Senders that wait for room.
    senders: AtomicUsize,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Counts a sender while it waits.
struct Sender<'a>(&'a AtomicUsize);

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl WorkerPool {
    /// A pool that runs `workers` tasks at a time, at least one, and lets `buffer` more wait.
    #[must_use]
    pub fn new(workers: usize, buffer: usize) -> Self {
        if workers == 0 {
            tracing::warn!("a worker pool of size 0 has one worker");
        }
        let workers = workers.clamp(1, Semaphore::MAX_PERMITS);
        let buffer = buffer.min(Semaphore::MAX_PERMITS);
        Self {
            shared: Arc::new(Shared {
                slots: Arc::new(Semaphore::new(workers)),
                queue: Arc::new(Semaphore::new(buffer)),
                workers,
                buffer,
                senders: AtomicUsize::new(0),
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
            }),
        }
    }

    /// Gives the pool a task, waiting for room if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::PoolStopped`]; the task never runs.
    ///
    /// # Cancel safety
    /// Dropped before it returned, the task never runs.
    pub async fn submit(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let shared = &self.shared;
        shared.senders.fetch_add(1, Ordering::AcqRel);
        let waiting = Sender(&shared.senders);
        let room = async {
            tokio::select! {
                biased;
                slot = Arc::clone(&shared.slots).acquire_owned() => slot.map(|slot| (Some(slot), None)),
                place = Arc::clone(&shared.queue).acquire_owned() => place.map(|place| (None, Some(place))),
            }
        };
        let room = tokio::select! {
            biased;
            () = shared.stop.cancelled() => Err(stopped()),
            room = room => room.map_err(|_| stopped()),
        };
        drop(waiting);
        let (slot, place) = room?;
        self.start(slot, place, task);
        Ok(())
    }

    /// Gives the pool a task if there is room now; gives it back if not.
    ///
    /// # Errors
    /// The task, with [`ErrorKind::PoolFull`] or [`ErrorKind::PoolStopped`].
    pub fn try_submit<T: Future<Output = ()> + Send + 'static>(
        &self,
        task: T,
    ) -> std::result::Result<(), (T, Error)> {
        let shared = &self.shared;
        if shared.stop.is_cancelled() {
            return Err((task, stopped()));
        }
        if let Ok(slot) = Arc::clone(&shared.slots).try_acquire_owned() {
            self.start(Some(slot), None, task);
            return Ok(());
        }
        match Arc::clone(&shared.queue).try_acquire_owned() {
            Ok(place) => {
                self.start(None, Some(place), task);
                Ok(())
            }
            Err(_) => Err((
                task,
                Error::new(ErrorKind::PoolFull, "giving a task to the worker pool"),
            )),
        }
    }

    /// Tasks that wait, here or at their senders; not those that run.
    #[must_use]
    pub fn depth(&self) -> usize {
        let shared = &self.shared;
        shared.buffer - shared.queue.available_permits().min(shared.buffer)
            + shared.senders.load(Ordering::Acquire)
    }

    /// Most tasks that may wait.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.buffer
    }

    /// Its figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let state = match (shared.stop.is_cancelled(), shared.tasks.is_empty()) {
            (false, _) => State::Running,
            (true, false) => State::Draining,
            (true, true) => State::Stopped,
        };
        Stats {
            depth: self.depth(),
            workers: shared.workers,
            state,
        }
    }

    /// Refuses further tasks and waits for those that were accepted. May be called any number of times.
    ///
    /// # Cancel safety
    /// Dropped early, the pool is stopped all the same, and the tasks go on.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    fn start(
        &self,
        slot: Option<OwnedSemaphorePermit>,
        place: Option<OwnedSemaphorePermit>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let slots = Arc::clone(&self.shared.slots);
        self.shared.tasks.spawn(async move {
            let slot = match slot {
                Some(slot) => Some(slot),
                // The semaphore is never closed.
                None => slots.acquire_owned().await.ok(),
            };
            drop(place);
            task.await;
            drop(slot);
        });
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::PoolStopped, "giving a task to the worker pool")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::Notify;

    /// A pool with `running` tasks that wait for the gate.
    async fn busy(workers: usize, buffer: usize) -> (WorkerPool, Arc<Notify>, Arc<AtomicUsize>) {
        let pool = WorkerPool::new(workers, buffer);
        let (gate, done) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        for _ in 0..workers {
            pool.submit(waiting(&gate, &done)).await.unwrap();
        }
        (pool, gate, done)
    }

    fn waiting(gate: &Arc<Notify>, done: &Arc<AtomicUsize>) -> impl Future<Output = ()> + Send + 'static {
        let (gate, done) = (Arc::clone(gate), Arc::clone(done));
        async move {
            gate.notified().await;
            done.fetch_add(1, Ordering::AcqRel);
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_counted() {
        let (pool, gate, done) = busy(2, 1).await;
        assert_eq!(pool.depth(), 0);
        pool.try_submit(waiting(&gate, &done)).ok().unwrap();
        assert_eq!(pool.depth(), 1);
        let (_, error) = pool.try_submit(waiting(&gate, &done)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PoolFull);
        let sender = tokio::spawn({
            let (pool, task) = (pool.clone(), waiting(&gate, &done));
            async move { pool.submit(task).await }
        });
        while pool.depth() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            pool.stats(),
            Stats {
                depth: 2,
                workers: 2,
                state: State::Running
            }
        );
        for _ in 0..4 {
            while done.load(Ordering::Acquire) < 4 {
                gate.notify_one();
                tokio::task::yield_now().await;
            }
        }
        sender.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn without_a_queue_a_task_runs_at_once_or_is_refused() {
        let (pool, gate, done) = busy(1, 0).await;
        assert!(pool.try_submit(async {}).is_err());
        gate.notify_one();
        while done.load(Ordering::Acquire) == 0 || pool.try_submit(async {}).is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_sender_that_gives_up_leaves_nothing() {
        let (pool, _gate, done) = busy(1, 0).await;
        let count = Arc::clone(&done);
        let task = async move {
            count.fetch_add(100, Ordering::AcqRel);
        };
        let given_up = tokio::time::timeout(Duration::from_millis(10), pool.submit(task)).await;
        assert!(given_up.is_err());
        assert_eq!((pool.depth(), done.load(Ordering::Acquire)), (0, 0));
    }

    #[tokio::test]
    async fn a_stop_lets_what_was_accepted_finish_and_refuses_the_rest() {
        let (pool, gate, done) = busy(1, 2).await;
        pool.try_submit(waiting(&gate, &done)).ok().unwrap();
        pool.try_submit(waiting(&gate, &done)).ok().unwrap();
        let blocked = tokio::spawn({
            let pool = pool.clone();
            async move { pool.submit(async {}).await }
        });
        while pool.depth() < 3 {
            tokio::task::yield_now().await;
        }
        let stops: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                tokio::spawn(async move { pool.stop().await })
            })
            .collect();
        assert_eq!(blocked.await.unwrap().unwrap_err().kind(), ErrorKind::PoolStopped);
        assert_eq!(pool.stats().state, State::Draining);
        assert_eq!(
            pool.submit(async {}).await.unwrap_err().kind(),
            ErrorKind::PoolStopped
        );
        while done.load(Ordering::Acquire) < 3 {
            gate.notify_one();
            tokio::task::yield_now().await;
        }
        for stop in stops {
            stop.await.unwrap();
        }
        assert_eq!(pool.stats().state, State::Stopped);
    }

    #[tokio::test]
    async fn a_panic_ends_its_task_alone() {
        let pool = WorkerPool::new(0, 1);
        assert_eq!(pool.stats().workers, 1);
        pool.submit(async { panic!("on purpose") }).await.unwrap();
        let done = Arc::new(Notify::new());
        let tell = Arc::clone(&done);
        pool.submit(async move { tell.notify_one() }).await.unwrap();
        done.notified().await;
        pool.stop().await;
    }
}
