//! What one worker may publish and subscribe to.

use windjet_server::options::{PermissionList, PermissionsOptions};

use crate::streams::STREAM_CANCEL;
use crate::token::Token;

/// The prefix of a worker's own reply subjects. With a shared prefix any worker could read the others' assignments.
#[must_use]
pub fn inbox_prefix(worker: &Token) -> String {
    format!("_INBOX_{worker}")
}

/// The permissions of a worker: its own subjects, its own inbox, cancels to listen to. Beyond the table of the contract it may
/// read the stored cancel of a task, which is how one that came while it was away still reaches it.
#[must_use]
pub fn permissions_of(worker: &Token) -> PermissionsOptions {
    let publish = [
        format!("task.status.{worker}.*"),
        format!("task.logs.{worker}.*"),
        format!("worker.register.{worker}"),
        format!("worker.heartbeat.{worker}"),
        format!("worker.deregister.{worker}"),
        format!("worker.diag.{worker}"),
        format!("work.lease.{worker}.*"),
        format!("$JS.API.DIRECT.GET.{STREAM_CANCEL}.task.cancel.*"),
    ];
    let subscribe = [format!("{}.>", inbox_prefix(worker)), "task.cancel.>".to_owned()];
    PermissionsOptions {
        publish: PermissionList {
            allow: publish.into(),
            deny: Vec::new(),
        },
        subscribe: PermissionList {
            allow: subscribe.into(),
            deny: Vec::new(),
        },
        allow_responses: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::{Class, Layout, Subjects};
    use windjet_protocol::subject::matches;

    #[test]
    fn b10_each_class_is_granted_on_the_workers_own_subject_and_on_nobody_elses() {
        let (own, other, leaf) = (
            Token::new("w1").unwrap(),
            Token::new("w2").unwrap(),
            Token::new("x").unwrap(),
        );
        let granted = permissions_of(&own).publish.allow;
        let may = |subject: &str| {
            granted
                .iter()
                .any(|allow| matches(allow.as_bytes(), subject.as_bytes()))
        };
        let subjects = Subjects::new(Layout::Identity);
        for class in [
            Class::TaskStatus,
            Class::TaskLogs,
            Class::WorkLease,
            Class::Register,
            Class::Heartbeat,
            Class::Deregister,
        ] {
            assert!(
                may(&subjects.build(class, Some(&own), Some(&leaf)).unwrap()),
                "{class:?}"
            );
            assert!(
                !may(&subjects.build(class, Some(&other), Some(&leaf)).unwrap()),
                "{class:?}"
            );
        }
        assert!(may("worker.diag.w1") && !may("worker.diag.w2"));
        assert!(!may("task.cancel.t1"));
    }
}
