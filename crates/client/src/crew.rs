//! A few tasks that work off jobs, one job each at a time.
//!
//! A task is kept for the next job: to begin one allocates nothing, which a task of its own for each message would. A job that
//! panics ends its task alone, and the next job gets a new one. Dropping the crew aborts what runs.
//!
//! How many may run is the caller's to say: it looks at [`Crew::busy`] before it begins another.
//!
//! Called by: the dispatcher of consumers, the responder.

use std::future::Future;

use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use crate::error::Result;

/// What a task of a crew does.
pub(crate) trait Job: Send + 'static {
    /// Does it.
    fn run(self) -> impl Future<Output = Result<()>> + Send;
}

/// The end of a job: who had it, and how it went.
type Ended = (usize, Result<()>);

/// The tasks.
pub(crate) struct Crew<J> {
    /// Where each takes its jobs; one at a time, and only when it is idle.
    members: Vec<Sender<J>>,
    idle: Vec<usize>,
    busy: usize,
    ended: UnboundedReceiver<Ended>,
    end: UnboundedSender<Ended>,
    tasks: JoinSet<()>,
}

impl<J: Job> Crew<J> {
    pub(crate) fn new() -> Self {
        let (end, ended) = mpsc::unbounded_channel();
        Self {
            members: Vec::new(),
            idle: Vec::new(),
            busy: 0,
            ended,
            end,
            tasks: JoinSet::new(),
        }
    }

    /// Jobs that run, or have ended and were not taken in.
    pub(crate) fn busy(&self) -> usize {
        self.busy
    }

    /// Begins a job.
    pub(crate) fn begin(&mut self, job: J) {
        self.busy += 1;
        let Some(member) = self.idle.pop() else {
            let sender = self.hire(self.members.len(), job);
            self.members.push(sender);
            return;
        };
        // It is idle, so there is room, unless its last job was the end of it.
        if let Err(refused) = self.members[member].try_send(job) {
            self.members[member] = self.hire(member, refused.into_inner());
        }
    }

    /// Takes in a job that has ended, if one has.
    pub(crate) fn try_next(&mut self) -> Option<Result<()>> {
        self.ended.try_recv().ok().map(|ended| self.take_in(ended))
    }

    /// Waits until a job has ended; for ever when none runs.
    ///
    /// Cancel-safe: nothing is taken in by a call that was dropped.
    pub(crate) async fn next(&mut self) -> Result<()> {
        if self.busy > 0
            && let Some(ended) = self.ended.recv().await
        {
            return self.take_in(ended);
        }
        std::future::pending().await
    }

    /// Waits until no job runs.
    pub(crate) async fn finish(&mut self) {
        while self.busy > 0 {
            // How they went is nobody's business any more.
            let _ = self.next().await;
        }
    }

    fn take_in(&mut self, (member, result): Ended) -> Result<()> {
        self.busy -= 1;
        self.idle.push(member);
        result
    }

    /// A task with its first job.
    fn hire(&mut self, member: usize, job: J) -> Sender<J> {
        let (sender, jobs) = mpsc::channel(1);
        self.tasks.spawn(work(member, job, jobs, self.end.clone()));
        // Those that ended by a panic are forgotten.
        while self.tasks.try_join_next().is_some() {}
        sender
    }
}

async fn work<J: Job>(member: usize, first: J, mut jobs: Receiver<J>, end: UnboundedSender<Ended>) {
    let mut next = Some(first);
    while let Some(job) = next {
        let mut report = Report {
            member,
            result: Ok(()),
            end: &end,
        };
        report.result = job.run().await;
        drop(report);
        next = jobs.recv().await;
    }
}

/// Tells the end of a job, also of one that panicked.
struct Report<'a> {
    member: usize,
    result: Result<()>,
    end: &'a UnboundedSender<Ended>,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        // The crew itself may be gone.
        let _ = self.end.send((self.member, result));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Barrier, Notify};

    use super::*;
    use crate::error::{Error, ErrorKind};

    enum Task {
        Meet(Arc<Barrier>),
        Count(Arc<AtomicUsize>),
        Fail,
        Panic,
        /// Counts when it is dropped.
        Hang(Arc<AtomicUsize>, Arc<Notify>),
    }

    struct Counts(Arc<AtomicUsize>);

    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    impl Job for Task {
        async fn run(self) -> Result<()> {
            match self {
                Self::Meet(barrier) => {
                    barrier.wait().await;
                }
                Self::Count(count) => {
                    count.fetch_add(1, Ordering::AcqRel);
                }
                Self::Fail => return Err(Error::new(ErrorKind::PoolStopped, "on purpose")),
                Self::Panic => panic!("on purpose"),
                Self::Hang(count, begun) => {
                    let _counts = Counts(count);
                    begun.notify_one();
                    std::future::pending::<()>().await;
                }
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn jobs_run_side_by_side_and_their_tasks_are_kept() {
        let mut crew = Crew::new();
        for _ in 0..3 {
            let barrier = Arc::new(Barrier::new(4));
            for _ in 0..4 {
                crew.begin(Task::Meet(Arc::clone(&barrier)));
            }
            assert_eq!(crew.busy(), 4);
            crew.finish().await;
            assert_eq!((crew.busy(), crew.members.len()), (0, 4));
        }
    }

    #[tokio::test]
    async fn a_failure_is_told_and_a_panic_ends_one_task() {
        let (mut crew, count) = (Crew::new(), Arc::new(AtomicUsize::new(0)));
        crew.begin(Task::Fail);
        assert_eq!(crew.next().await.unwrap_err().kind(), ErrorKind::PoolStopped);
        for round in 1..=3 {
            crew.begin(Task::Panic);
            crew.next().await.unwrap();
            crew.begin(Task::Count(Arc::clone(&count)));
            crew.next().await.unwrap();
            assert_eq!(count.load(Ordering::Acquire), round);
        }
        assert!(crew.try_next().is_none());
        assert_eq!(crew.members.len(), 1);
    }

    #[tokio::test]
    async fn a_crew_that_goes_aborts_what_runs() {
        let (mut crew, count, begun) = (
            Crew::new(),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(Notify::new()),
        );
        crew.begin(Task::Hang(Arc::clone(&count), Arc::clone(&begun)));
        begun.notified().await;
        drop(crew);
        while count.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
    }
}
