//! Permissions of one user, compiled for the checks that every publish and subscription passes.
//!
//! | question | answered by |
//! |---|---|
//! | may this subject be published to? | [`Permissions::can_publish`], then [`super::ReplyGrants`] when it says no |
//! | may this subscription be made? | [`Permissions::can_subscribe`] |
//! | which deliveries to it must be left out? | [`Permissions::deny_filter_for`], once per subscription |
//!
//! The rules: an empty allow list allows everything; deny entries win over allow entries; `allow_responses` without
//! an allow list denies every publish but granted replies. An entry of a subscribe list may be `subject queue`.
//! Entries with a queue whose subject covers the subscription decide about queue subscriptions; a plain
//! subscription needs an entry without a queue. A deny entry without a queue stands for queue subscriptions too.
//!
//! A subscription that is wider than a deny entry (`foo.*` against `foo.bar`) is accepted, and the denied messages
//! are left out on delivery. The [`DenyFilter`] of a subscription holds only the entries that can concern it.
//!
//! **Narrower than nats-server in one place.** nats-server takes the wildcards of a subscription for ordinary
//! tokens, so its allow entry `foo.*` lets `SUB foo.>` pass and delivers `foo.a.b`. Here a subscription must be
//! a subset of an allow entry.
//!
//! A compiled value never changes: a reload makes a new one. Nothing here allocates but compiling and
//! `deny_filter_for`. Connections keep the value in an `Arc`; the owner is [`super::Identity`].

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use windjet_protocol::subject::{has_wildcards, is_subset, is_valid_subscription, matches, overlaps};

use crate::options::{PermissionsOptions, ResponsePermission};

/// Which list of a permissions block is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum List {
    /// `publish.allow`.
    PublishAllow,
    /// `publish.deny`.
    PublishDeny,
    /// `subscribe.allow`.
    SubscribeAllow,
    /// `subscribe.deny`.
    SubscribeDeny,
}

impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PublishAllow => "publish allow",
            Self::PublishDeny => "publish deny",
            Self::SubscribeAllow => "subscribe allow",
            Self::SubscribeDeny => "subscribe deny",
        })
    }
}

/// An entry that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PermissionsError {
    /// The subject is not one that can be subscribed to, or a publish entry names a queue.
    #[error("{list}: subject {subject:?} is not a valid subject")]
    Subject {
        /// Where the entry stands.
        list: List,
        /// The subject, or the whole entry when it cannot be split.
        subject: String,
    },
    /// The queue part of a subscribe entry is not valid.
    #[error("{list}: queue {queue:?} is not a valid queue")]
    Queue {
        /// Where the entry stands.
        list: List,
        /// The queue part.
        queue: String,
    },
}

/// What a user may do. See the module's page.
#[derive(Debug)]
pub struct Permissions {
    publish_allow: Option<SubjectSet>,
    publish_deny: SubjectSet,
    subscribe_allow: Option<EntrySet>,
    subscribe_deny: EntrySet,
    responses: Option<ResponsePermission>,
    options: PermissionsOptions,
}

impl Permissions {
    /// Compiles a permissions block.
    ///
    /// # Errors
    ///
    /// The first entry that is not a valid subject, or not a valid `subject queue` in a subscribe list.
    pub fn compile(options: &PermissionsOptions) -> Result<Self, PermissionsError> {
        let publish_allow = plain_entries(List::PublishAllow, &options.publish.allow)?;
        let subscribe_allow = queue_entries(List::SubscribeAllow, &options.subscribe.allow)?;
        let closed = !options.publish.allow.is_empty() || options.allow_responses.is_some();
        Ok(Self {
            publish_allow: closed.then_some(publish_allow),
            publish_deny: plain_entries(List::PublishDeny, &options.publish.deny)?,
            subscribe_allow: (!options.subscribe.allow.is_empty()).then_some(subscribe_allow),
            subscribe_deny: queue_entries(List::SubscribeDeny, &options.subscribe.deny)?,
            responses: options.allow_responses,
            options: options.clone(),
        })
    }

    /// The block that was compiled, as `$SYS.REQ.USER.INFO` shows it.
    pub fn options(&self) -> &PermissionsOptions {
        &self.options
    }

    /// `allow_responses`: what each delivered message with a reply grants, kept by [`super::ReplyGrants`].
    pub fn responses(&self) -> Option<ResponsePermission> {
        self.responses
    }

    /// Whether `subject`, taken literally, may be published to. A `false` can still be overruled by a granted reply.
    #[must_use]
    pub fn can_publish(&self, subject: &[u8]) -> bool {
        self.publish_allow
            .as_ref()
            .is_none_or(|allow| allow.matches(subject))
            && !self.publish_deny.matches(subject)
    }

    /// Whether a subscription to `subject`, in the group `queue` if one is given, may be made.
    ///
    /// The subject must be a valid subscription; the caller has refused others before. An empty queue is no queue.
    #[must_use]
    pub fn can_subscribe(&self, subject: &[u8], queue: Option<&[u8]>) -> bool {
        let queue = queue.filter(|queue| !queue.is_empty());
        self.subscribe_allow
            .as_ref()
            .is_none_or(|allow| allow.allows(subject, queue))
            && !self.subscribe_deny.denies(subject, queue)
    }

    /// The deny entries that some message for this subscription could match; `None`, which is the common case,
    /// when no delivery to it needs a check.
    #[must_use]
    pub fn deny_filter_for(&self, subject: &[u8], queue: Option<&[u8]>) -> Option<Arc<DenyFilter>> {
        // What a literal subscription receives was decided when it was made.
        if !has_wildcards(subject) {
            return None;
        }
        let queue = queue.filter(|queue| !queue.is_empty());
        let denied = self.subscribe_deny.overlapping(subject, queue);
        (!denied.is_empty()).then(|| Arc::new(DenyFilter { denied }))
    }
}

/// The deny entries that concern one subscription.
#[derive(Debug)]
pub struct DenyFilter {
    denied: SubjectSet,
}

impl DenyFilter {
    /// Whether a message with this subject must not reach the subscription.
    #[must_use]
    pub fn denies(&self, literal: &[u8]) -> bool {
        self.denied.matches(literal)
    }
}

/// Patterns without queues. Literals are looked up, only real patterns are tried one by one.
#[derive(Debug, Default)]
struct SubjectSet {
    literals: HashSet<Box<[u8]>, foldhash::fast::RandomState>,
    patterns: Vec<Box<[u8]>>,
}

impl SubjectSet {
    fn insert(&mut self, subject: &[u8]) {
        if has_wildcards(subject) {
            self.patterns.push(subject.into());
        } else {
            self.literals.insert(subject.into());
        }
    }

    fn is_empty(&self) -> bool {
        self.literals.is_empty() && self.patterns.is_empty()
    }

    /// Whether some entry matches the literal.
    fn matches(&self, literal: &[u8]) -> bool {
        (!self.literals.is_empty() && self.literals.contains(literal))
            || self.patterns.iter().any(|pattern| matches(pattern, literal))
    }

    /// Whether some entry matches everything that the subscription can receive.
    fn covers(&self, subscription: &[u8]) -> bool {
        (!self.literals.is_empty() && self.literals.contains(subscription))
            || self
                .patterns
                .iter()
                .any(|pattern| is_subset(subscription, pattern))
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.literals.iter().chain(&self.patterns).map(|entry| &**entry)
    }
}

/// An entry of the form `subject queue`.
#[derive(Debug)]
struct QueueEntry {
    subject: Box<[u8]>,
    queue: Box<[u8]>,
}

impl QueueEntry {
    fn names(&self, queue: &[u8]) -> bool {
        *self.queue == *queue || is_subset(queue, &self.queue)
    }
}

/// The entries of a subscribe list.
#[derive(Debug, Default)]
struct EntrySet {
    plain: SubjectSet,
    queued: Vec<QueueEntry>,
}

impl EntrySet {
    fn allows(&self, subject: &[u8], queue: Option<&[u8]>) -> bool {
        if let Some(queue) = queue {
            let mut deciding = self
                .queued
                .iter()
                .filter(|entry| is_subset(subject, &entry.subject))
                .peekable();
            if deciding.peek().is_some() {
                return deciding.any(|entry| entry.names(queue));
            }
        }
        self.plain.covers(subject)
    }

    /// The subscription's own wildcards count as ordinary tokens here, as in nats-server: `SUB foo.>` is refused
    /// under the deny entry `foo.*`. What is denied only in part is left to the filter.
    fn denies(&self, subject: &[u8], queue: Option<&[u8]>) -> bool {
        self.plain.matches(subject)
            || queue.is_some_and(|queue| {
                self.queued
                    .iter()
                    .any(|entry| matches(&entry.subject, subject) && entry.names(queue))
            })
    }

    fn overlapping(&self, subject: &[u8], queue: Option<&[u8]>) -> SubjectSet {
        let mut found = SubjectSet::default();
        for entry in self.plain.iter().filter(|entry| overlaps(entry, subject)) {
            found.insert(entry);
        }
        if let Some(queue) = queue {
            for entry in &self.queued {
                if entry.names(queue) && overlaps(&entry.subject, subject) {
                    found.insert(&entry.subject);
                }
            }
        }
        found
    }
}

fn plain_entries(list: List, entries: &[String]) -> Result<SubjectSet, PermissionsError> {
    let mut set = SubjectSet::default();
    for entry in entries {
        set.insert(valid_subject(list, entry)?);
    }
    Ok(set)
}

fn queue_entries(list: List, entries: &[String]) -> Result<EntrySet, PermissionsError> {
    let mut set = EntrySet::default();
    for entry in entries {
        let words: Vec<&str> = entry.split_whitespace().collect();
        match words[..] {
            [subject] => set.plain.insert(valid_subject(list, subject)?),
            [subject, queue] => {
                let subject = valid_subject(list, subject)?;
                if !is_valid_subscription(queue.as_bytes()) {
                    let queue = queue.to_owned();
                    return Err(PermissionsError::Queue { list, queue });
                }
                set.queued.push(QueueEntry {
                    subject: subject.into(),
                    queue: queue.as_bytes().into(),
                });
            }
            _ => {
                let subject = entry.clone();
                return Err(PermissionsError::Subject { list, subject });
            }
        }
    }
    Ok(set)
}

fn valid_subject(list: List, subject: &str) -> Result<&[u8], PermissionsError> {
    if is_valid_subscription(subject.as_bytes()) {
        Ok(subject.as_bytes())
    } else {
        Err(PermissionsError::Subject {
            list,
            subject: subject.to_owned(),
        })
    }
}
