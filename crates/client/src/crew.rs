//! A few tasks that work off jobs, one job each at a time.
//!
//! A task is kept for the next job: to begin one allocates nothing, which a task of its own for each message would. A job that
//! panics ends its task alone, and the next job gets a new one. Dropping the crew aborts what runs.
//!
//! A crew for one job at a time has no task at all: the job runs in its owner's, whenever the owner waits for it, which spares
//! a message two ways through the scheduler. So whoever waits for something else while [`Crew::busy`] waits by
//! [`Crew::during`].
//!
//! How many may run is the caller's to say: it looks at [`Crew::busy`] before it begins another.
//!
//! Called by: the dispatcher of consumers, the responder.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio_util::sync::ReusableBoxFuture;

use crate::error::Result;

/// What a task of a crew does.
pub(crate) trait Job: Send + 'static {
    /// Does it.
    fn run(self) -> impl Future<Output = Result<()>> + Send;
}

/// The end of a job: who had it, and how it went.
type Ended = (usize, Result<()>);

/// Jobs, and who does them.
pub(crate) enum Crew<J> {
    /// The owner, one at a time.
    Owner(Owner),
    /// Tasks of their own.
    Tasks(Tasks<J>),
}

impl<J: Job> Crew<J> {
    /// A crew for so many jobs at a time.
    pub(crate) fn new(width: usize) -> Self {
        if width > 1 {
            Self::Tasks(Tasks::new())
        } else {
            Self::Owner(Owner::new())
        }
    }

    /// Jobs that run, or have ended and were not taken in.
    pub(crate) fn busy(&self) -> usize {
        match self {
            Self::Owner(owner) => usize::from(!matches!(owner.state, State::Idle)),
            Self::Tasks(tasks) => tasks.busy,
        }
    }

    /// Begins a job. When none may run beside another, none does.
    pub(crate) fn begin(&mut self, job: J) {
        match self {
            Self::Owner(owner) => owner.begin(job),
            Self::Tasks(tasks) => tasks.begin(job),
        }
    }

    /// Takes in a job that has ended, if one has.
    pub(crate) fn try_next(&mut self) -> Option<Result<()>> {
        match self {
            Self::Owner(owner) => owner.take_in(),
            Self::Tasks(tasks) => tasks.ended.try_recv().ok().map(|ended| tasks.take_in(ended)),
        }
    }

    /// Waits until a job has ended; for ever when none runs.
    ///
    /// Cancel-safe: nothing is taken in by a call that was dropped.
    pub(crate) async fn next(&mut self) -> Result<()> {
        match self {
            Self::Owner(owner) => std::future::poll_fn(|cx| owner.poll_next(cx)).await,
            Self::Tasks(tasks) => tasks.next().await,
        }
    }

    /// Waits for something else; what runs here runs on meanwhile.
    pub(crate) async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        let Self::Owner(owner) = self else {
            return other.await;
        };
        let mut other = std::pin::pin!(other);
        std::future::poll_fn(|cx| {
            owner.work_on(cx);
            other.as_mut().poll(cx)
        })
        .await
    }

    /// Waits until no job runs.
    pub(crate) async fn finish(&mut self) {
        while self.busy() > 0 {
            // How they went is nobody's business any more.
            let _ = self.next().await;
        }
    }
}

/// A job in the task of the crew's owner.
pub(crate) struct Owner {
    job: ReusableBoxFuture<'static, Result<()>>,
    state: State,
}

#[derive(Debug)]
enum State {
    Idle,
    Running,
    Ended(Result<()>),
}

impl Owner {
    fn new() -> Self {
        Self {
            job: ReusableBoxFuture::new(std::future::pending()),
            state: State::Idle,
        }
    }

    fn begin<J: Job>(&mut self, job: J) {
        debug_assert!(matches!(self.state, State::Idle), "one job at a time");
        // A panic that nothing else has caught ends the job alone, as it would end a task.
        let job = async move { AssertUnwindSafe(job.run()).catch_unwind().await.unwrap_or(Ok(())) };
        self.job.set(job);
        self.state = State::Running;
    }

    fn work_on(&mut self, cx: &mut Context<'_>) {
        if matches!(self.state, State::Running)
            && let Poll::Ready(result) = self.job.poll(cx)
        {
            self.state = State::Ended(result);
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.work_on(cx);
        self.take_in().map_or(Poll::Pending, Poll::Ready)
    }

    fn take_in(&mut self) -> Option<Result<()>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Ended(result) => Some(result),
            other => {
                self.state = other;
                None
            }
        }
    }
}

/// Tasks that are kept.
pub(crate) struct Tasks<J> {
    /// Where each takes its jobs; one at a time, and only when it is idle.
    members: Vec<Sender<J>>,
    idle: Vec<usize>,
    busy: usize,
    ended: UnboundedReceiver<Ended>,
    end: UnboundedSender<Ended>,
    tasks: JoinSet<()>,
}

impl<J: Job> Tasks<J> {
    fn new() -> Self {
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

    fn begin(&mut self, job: J) {
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

    async fn next(&mut self) -> Result<()> {
        if self.busy > 0
            && let Some(ended) = self.ended.recv().await
        {
            return self.take_in(ended);
        }
        std::future::pending().await
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

    fn tasks_of(crew: &Crew<Task>) -> usize {
        match crew {
            Crew::Owner(_) => 0,
            Crew::Tasks(tasks) => tasks.members.len(),
        }
    }

    #[tokio::test]
    async fn jobs_run_side_by_side_and_their_tasks_are_kept() {
        let mut crew = Crew::new(4);
        for _ in 0..3 {
            let barrier = Arc::new(Barrier::new(4));
            for _ in 0..4 {
                crew.begin(Task::Meet(Arc::clone(&barrier)));
            }
            assert_eq!(crew.busy(), 4);
            crew.finish().await;
            assert_eq!((crew.busy(), tasks_of(&crew)), (0, 4));
        }
    }

    #[tokio::test]
    async fn a_failure_is_told_and_a_panic_ends_one_job() {
        for (width, tasks) in [(1, 0), (2, 1)] {
            let (mut crew, count) = (Crew::new(width), Arc::new(AtomicUsize::new(0)));
            crew.begin(Task::Fail);
            assert_eq!(crew.next().await.unwrap_err().kind(), ErrorKind::PoolStopped);
            for round in 1..=3 {
                crew.begin(Task::Panic);
                crew.next().await.unwrap();
                crew.begin(Task::Count(Arc::clone(&count)));
                assert_eq!(crew.busy(), 1);
                crew.next().await.unwrap();
                assert_eq!(count.load(Ordering::Acquire), round);
            }
            assert!(crew.try_next().is_none());
            assert_eq!((crew.busy(), tasks_of(&crew)), (0, tasks));
        }
    }

    #[tokio::test]
    async fn a_crew_that_goes_aborts_what_runs() {
        for width in [1, 2] {
            let (mut crew, count, begun) = (
                Crew::new(width),
                Arc::new(AtomicUsize::new(0)),
                Arc::new(Notify::new()),
            );
            crew.begin(Task::Hang(Arc::clone(&count), Arc::clone(&begun)));
            crew.during(begun.notified()).await;
            drop(crew);
            while count.load(Ordering::Acquire) == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn what_runs_runs_on_while_its_owner_waits_for_something_else() {
        for width in [1, 2] {
            let (mut crew, met) = (Crew::new(width), Arc::new(Barrier::new(2)));
            crew.begin(Task::Meet(Arc::clone(&met)));
            crew.during(met.wait()).await;
            // It has ended meanwhile, and is taken in once.
            crew.next().await.unwrap();
            assert!(crew.try_next().is_none());
            assert_eq!(crew.busy(), 0);
        }
    }
}
