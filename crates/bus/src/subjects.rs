//! Every subject of the bus: constants, helpers for the plain layout, and [`Subjects`], which builds and parses both layouts.
//!
//! The *plain* layout is the contract's: `task.status.<job>`. In the *identity* layout the worker stands after the class,
//! `task.status.<worker>.<job>`, so that permissions can confine a worker to its own subjects and the server takes the
//! worker from the subject instead of believing the payload.

use crate::token::Token;

/// Prefix of task-status subjects; the job follows.
pub const TASK_STATUS_PREFIX: &str = "task.status";
/// Prefix of task-log subjects; the task follows.
pub const TASK_LOGS_PREFIX: &str = "task.logs";
/// Prefix of cancel subjects; the task follows.
pub const TASK_CANCEL_PREFIX: &str = "task.cancel";
/// Prefix of lease requests; the queue follows.
pub const WORK_LEASE_PREFIX: &str = "work.lease";
/// Prefix of diagnostics; the worker follows.
pub const WORKER_DIAG_PREFIX: &str = "worker.diag";
/// Where workers register. A prefix in the identity layout.
pub const WORKER_REGISTER: &str = "worker.register";
/// Where workers say that they live. A prefix in the identity layout.
pub const WORKER_HEARTBEAT: &str = "worker.heartbeat";
/// Where workers take their leave. A prefix in the identity layout.
pub const WORKER_DEREGISTER: &str = "worker.deregister";
/// The queue of a worker that serves any queue. It cannot be the name of a real one.
pub const WILDCARD_QUEUE: &str = "_any";
/// Where dead letters go; the stream and the original subject follow.
pub const DEAD_PREFIX: &str = "dead";

/// `task.status.<job>`.
#[must_use]
pub fn task_status_subject(job: &Token) -> String {
    format!("{TASK_STATUS_PREFIX}.{job}")
}

/// `task.logs.<task>`.
#[must_use]
pub fn task_logs_subject(task: &Token) -> String {
    format!("{TASK_LOGS_PREFIX}.{task}")
}

/// `task.cancel.<task>`.
#[must_use]
pub fn task_cancel_subject(task: &Token) -> String {
    format!("{TASK_CANCEL_PREFIX}.{task}")
}

/// `work.lease.<queue>`.
#[must_use]
pub fn work_lease_subject(queue: &Token) -> String {
    format!("{WORK_LEASE_PREFIX}.{queue}")
}

/// `worker.diag.<worker>`.
#[must_use]
pub fn worker_diag_subject(worker: &Token) -> String {
    format!("{WORKER_DIAG_PREFIX}.{worker}")
}

/// The queue tokens a worker asks on: its queues in their order, or `_any` alone when it has none.
///
/// # Errors
/// A queue that cannot be a token, or has a reserved name.
pub fn queue_tokens<S: AsRef<str>>(queues: &[S]) -> crate::Result<Vec<Token>> {
    if queues.is_empty() {
        return Ok(vec![Token::new(WILDCARD_QUEUE)?]);
    }
    queues.iter().map(|queue| Token::queue(queue.as_ref())).collect()
}

/// Which subjects workers publish on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// The contract's subjects, wire version `"2"`.
    #[default]
    Plain,
    /// The worker's id in every subject it publishes on, wire version `"3"`.
    Identity,
}

impl Layout {
    /// The wire version that goes with it.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::Plain => "2",
            Self::Identity => "3",
        }
    }
}

/// Kinds of messages from workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// A task changed its state; the leaf is the job.
    TaskStatus,
    /// Output of a task; the leaf is the task.
    TaskLogs,
    /// A worker asks for work; the leaf is the queue.
    WorkLease,
    /// A worker tells what it is.
    Register,
    /// A worker lives.
    Heartbeat,
    /// A worker leaves.
    Deregister,
}

impl Class {
    const ALL: [Self; 6] = [
        Self::TaskStatus,
        Self::TaskLogs,
        Self::WorkLease,
        Self::Register,
        Self::Heartbeat,
        Self::Deregister,
    ];

    /// The first two tokens of its subjects.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::TaskStatus => TASK_STATUS_PREFIX,
            Self::TaskLogs => TASK_LOGS_PREFIX,
            Self::WorkLease => WORK_LEASE_PREFIX,
            Self::Register => WORKER_REGISTER,
            Self::Heartbeat => WORKER_HEARTBEAT,
            Self::Deregister => WORKER_DEREGISTER,
        }
    }

    /// Whether its subjects end in a job, task or queue.
    #[must_use]
    pub fn has_leaf(self) -> bool {
        matches!(self, Self::TaskStatus | Self::TaskLogs | Self::WorkLease)
    }
}

/// A worker's subject, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// Its class.
    pub class: Class,
    /// Who published, in the identity layout.
    pub worker: Option<Token>,
    /// The job, task or queue, for classes that have one.
    pub leaf: Option<Token>,
}

/// Builds and parses the subjects of one layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Subjects {
    layout: Layout,
}

impl Subjects {
    /// The subjects of a layout.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { layout }
    }

    /// The layout.
    #[must_use]
    pub fn layout(self) -> Layout {
        self.layout
    }

    /// Where a message of `class` goes. `worker` is left out in the plain layout, `leaf` for classes without one; a class
    /// with a leaf and none given has no subject.
    #[must_use]
    pub fn build(self, class: Class, worker: Option<&Token>, leaf: Option<&Token>) -> Option<String> {
        let mut subject = class.prefix().to_owned();
        if self.layout == Layout::Identity {
            subject.push('.');
            subject.push_str(worker?.as_str());
        }
        if class.has_leaf() {
            subject.push('.');
            subject.push_str(leaf?.as_str());
        }
        Some(subject)
    }

    /// Takes a worker's subject apart; `None` when it is none of this layout.
    #[must_use]
    pub fn parse(self, subject: &str) -> Option<Parsed> {
        let class = Class::ALL.into_iter().find(|class| {
            subject
                .strip_prefix(class.prefix())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })?;
        let rest = &subject[class.prefix().len()..];
        let mut tokens = match rest.strip_prefix('.') {
            Some(rest) => rest
                .split('.')
                .map(Token::new)
                .collect::<Result<Vec<_>, _>>()
                .ok()?,
            None => Vec::new(),
        };
        let leaf = if class.has_leaf() {
            Some(tokens.pop()?)
        } else {
            None
        };
        let worker = match self.layout {
            Layout::Identity => Some(tokens.pop()?),
            Layout::Plain => None,
        };
        tokens.is_empty().then_some(Parsed { class, worker, leaf })
    }

    /// What a lease server subscribes to.
    #[must_use]
    pub fn all_leases(self) -> &'static str {
        "work.lease.>"
    }
}

/// The worker and the leaf of a subject of the identity layout, lifecycle classes with no leaf; `None` for every other subject.
#[must_use]
pub fn parse_worker_subject(subject: &str) -> Option<(Token, Option<Token>)> {
    let parsed = Subjects::new(Layout::Identity).parse(subject)?;
    Some((parsed.worker?, parsed.leaf))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: &str) -> Token {
        Token::new(id).unwrap()
    }

    #[test]
    fn s1_helpers_give_the_subjects_of_the_table() {
        assert_eq!(work_lease_subject(&token("q-123")), "work.lease.q-123");
        assert_eq!(work_lease_subject(&token(WILDCARD_QUEUE)), "work.lease._any");
        assert_eq!(task_status_subject(&token("job-abc")), "task.status.job-abc");
        assert_eq!(task_logs_subject(&token("task-xyz")), "task.logs.task-xyz");
        assert_eq!(task_cancel_subject(&token("task-xyz")), "task.cancel.task-xyz");
        assert_eq!(worker_diag_subject(&token("w1")), "worker.diag.w1");
    }

    #[test]
    fn s1_the_identity_layout_puts_the_worker_after_the_class() {
        let subjects = Subjects::new(Layout::Identity);
        let built = |class, leaf: Option<&str>| {
            let leaf = leaf.map(token);
            subjects.build(class, Some(&token("w1")), leaf.as_ref()).unwrap()
        };
        assert_eq!(built(Class::WorkLease, Some("q1")), "work.lease.w1.q1");
        assert_eq!(built(Class::TaskStatus, Some("j1")), "task.status.w1.j1");
        assert_eq!(built(Class::TaskLogs, Some("t1")), "task.logs.w1.t1");
        assert_eq!(built(Class::Register, None), "worker.register.w1");
        assert_eq!(built(Class::Heartbeat, None), "worker.heartbeat.w1");
        assert_eq!(built(Class::Deregister, None), "worker.deregister.w1");
        assert_eq!(subjects.build(Class::Register, None, None), None);
    }

    #[test]
    fn s2_every_subject_begins_with_its_prefix_and_a_dot() {
        let leaf = token("leaf");
        for (prefix, subject) in [
            (TASK_STATUS_PREFIX, task_status_subject(&leaf)),
            (TASK_LOGS_PREFIX, task_logs_subject(&leaf)),
            (TASK_CANCEL_PREFIX, task_cancel_subject(&leaf)),
            (WORK_LEASE_PREFIX, work_lease_subject(&leaf)),
            (WORKER_DIAG_PREFIX, worker_diag_subject(&leaf)),
        ] {
            assert_eq!(subject.strip_prefix(prefix), Some(".leaf"));
        }
    }

    #[test]
    fn s3_the_parse_table() {
        let parsed = |subject: &str| {
            parse_worker_subject(subject).map(|(worker, leaf)| {
                (
                    worker.to_string(),
                    leaf.map(|leaf| leaf.to_string()).unwrap_or_default(),
                )
            })
        };
        let pair = |worker: &str, leaf: &str| Some((worker.to_owned(), leaf.to_owned()));
        assert_eq!(parsed("task.status.w1.j1"), pair("w1", "j1"));
        assert_eq!(parsed("task.logs.w1.t1"), pair("w1", "t1"));
        assert_eq!(parsed("work.lease.w1.q1"), pair("w1", "q1"));
        assert_eq!(parsed("work.lease.w1._any"), pair("w1", "_any"));
        for class in ["register", "heartbeat", "deregister"] {
            assert_eq!(parsed(&format!("worker.{class}.w1")), pair("w1", ""));
        }
        for wrong in [
            "task.status.j1",
            "worker.register",
            "task.cancel.t1",
            "worker.diag.w1",
            "task.status.w1.j1.more",
            "worker.register.w1.more",
            "task.status..j1",
            "task.status.w1.",
            "worker.registered.w1",
            "worker.register.",
            "",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_plain_layout_parses_what_it_builds_and_nothing_of_the_other() {
        let plain = Subjects::default();
        let parsed = plain.parse("task.status.j1").unwrap();
        assert_eq!(
            (parsed.class, parsed.worker, parsed.leaf),
            (Class::TaskStatus, None, Some(token("j1")))
        );
        assert!(plain.parse("worker.heartbeat").is_some());
        assert!(plain.parse("task.status.w1.j1").is_none());
        assert!(plain.parse("worker.heartbeat.w1").is_none());
        assert!(plain.parse("task.status").is_none());
    }

    #[test]
    fn s4_a_worker_without_queues_asks_on_any_and_others_on_theirs_in_order() {
        let none: [&str; 0] = [];
        assert_eq!(queue_tokens(&none).unwrap(), vec![token("_any")]);
        assert_eq!(
            queue_tokens(&["q2", "q1"]).unwrap(),
            vec![token("q2"), token("q1")]
        );
        assert!(queue_tokens(&[""]).is_err());
        assert!(queue_tokens(&["_any"]).is_err());
    }
}
