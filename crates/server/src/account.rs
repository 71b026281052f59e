//! Accounts: separate subject spaces with their own limits and counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::RwLock;
use windjet_protocol::transform::{Mapped, MappingTable};

use crate::imports::{DEPTH_MAX, Responses};
use crate::jetstream::stream::call::Call;
use crate::jetstream::stream::inbox::Inbox;
use crate::options::AccountLimits;
use crate::router::{Beyond, Matches, Subscription, Trie};
use crate::server::Shared;

/// Inboxes of streams by the subject that they watch.
type Watchers = HashMap<Box<[u8]>, Vec<Weak<Inbox>>>;

/// One account. Lives as long as the server knows it.
#[derive(Debug)]
pub(crate) struct Account {
    /// Name of the account; its public key in operator mode.
    pub(crate) name: Arc<str>,
    /// The name people gave it, where that differs.
    pub(crate) display_name: Arc<str>,
    trie: RwLock<Trie>,
    generation: AtomicU64,
    limits: ArcSwap<AccountLimits>,
    mappings: ArcSwapOption<MappingTable>,
    /// Whether there are mappings: asked for every message, which a plain load bears better than the table's own.
    mapped: AtomicBool,
    /// Streams that must hear when somebody begins or ceases to listen to a subject.
    watchers: RwLock<Watchers>,
    watched: AtomicBool,
    /// Where traces go that only the header `traceparent` asks for, and how many of a hundred.
    msg_trace: ArcSwapOption<(String, u8)>,
    responses: OnceLock<Arc<Responses>>,
    /// Live connections.
    pub(crate) connections: AtomicU64,
    /// Connections since the start.
    pub(crate) total_connections: AtomicU64,
    /// Messages and bytes that clients of the account published.
    pub(crate) received: Counter,
    /// Messages and bytes that were delivered to clients of the account.
    pub(crate) sent: Counter,
    /// Clients of the account that were closed as slow consumers.
    pub(crate) slow_consumers: AtomicU64,
}

/// A pair of message and byte counts.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    msgs: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    /// Adds to both counts.
    pub(crate) fn add(&self, msgs: u64, bytes: u64) {
        self.msgs.fetch_add(msgs, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Messages and bytes.
    pub(crate) fn get(&self) -> (u64, u64) {
        (
            self.msgs.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }
}

impl Account {
    /// An account without subscriptions, limits and mappings.
    pub(crate) fn new(name: &str, display_name: &str) -> Self {
        Self {
            name: name.into(),
            display_name: display_name.into(),
            trie: RwLock::default(),
            generation: AtomicU64::new(0),
            limits: ArcSwap::default(),
            mappings: ArcSwapOption::empty(),
            mapped: AtomicBool::new(false),
            watchers: RwLock::default(),
            watched: AtomicBool::new(false),
            msg_trace: ArcSwapOption::empty(),
            responses: OnceLock::new(),
            connections: AtomicU64::new(0),
            total_connections: AtomicU64::new(0),
            received: Counter::default(),
            sent: Counter::default(),
            slow_consumers: AtomicU64::new(0),
        }
    }

    /// Counts one more connection, unless the account has as many as it may have.
    pub(crate) fn admit(&self) -> bool {
        let max = self.limits.load().max_connections.unwrap_or(u64::MAX);
        let admitted = self
            .connections
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now < max).then_some(now + 1)
            })
            .is_ok();
        if admitted {
            self.total_connections.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// Whether another connection would be admitted now.
    pub(crate) fn has_room(&self) -> bool {
        self.connections.load(Ordering::Acquire) < self.limits.load().max_connections.unwrap_or(u64::MAX)
    }

    /// Counts one connection less.
    pub(crate) fn release(&self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }

    /// A number that changes with every change of subscriptions or mappings.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Adds a subscription. A message published after this returns sees it.
    pub(crate) fn subscribe(&self, subscription: Arc<Subscription>) {
        let subject = subscription.subject.clone();
        {
            let mut trie = self.trie.write();
            trie.insert(subscription);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        self.tell_watchers(&subject);
    }

    /// Tells `inbox` from now on when a subscription on exactly `subject` comes or goes, here or where imports carry its messages.
    pub(crate) fn watch(&self, subject: &[u8], inbox: &Arc<Inbox>) {
        self.watch_here(subject, inbox);
        self.each_beyond(subject, DEPTH_MAX, &mut |account, subject| {
            account.watch_here(subject, inbox);
        });
    }

    fn watch_here(&self, subject: &[u8], inbox: &Arc<Inbox>) {
        let mut watchers = self.watchers.write();
        let known = watchers.entry(subject.into()).or_default();
        known.retain(|other| other.strong_count() > 0);
        if !known
            .iter()
            .any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(inbox)))
        {
            known.push(Arc::downgrade(inbox));
        }
        self.watched.store(true, Ordering::Release);
    }

    /// Ends what [`Account::watch`] began.
    pub(crate) fn unwatch(&self, subject: &[u8], inbox: &Arc<Inbox>) {
        self.unwatch_here(subject, inbox);
        self.each_beyond(subject, DEPTH_MAX, &mut |account, subject| {
            account.unwatch_here(subject, inbox);
        });
    }

    fn unwatch_here(&self, subject: &[u8], inbox: &Arc<Inbox>) {
        let mut watchers = self.watchers.write();
        if let Some(known) = watchers.get_mut(subject) {
            known.retain(|other| {
                other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(inbox))
            });
            if known.is_empty() {
                watchers.remove(subject);
            }
        }
    }

    fn tell_watchers(&self, subject: &[u8]) {
        if !self.watched.load(Ordering::Acquire) {
            return;
        }
        let watchers: Vec<Weak<Inbox>> = self.watchers.read().get(subject).cloned().unwrap_or_default();
        for inbox in watchers.iter().filter_map(Weak::upgrade) {
            // A stream that is gone has nobody to tell.
            drop(inbox.call(Call::Interest));
        }
    }

    /// Removes a subscription; false when it was not there.
    pub(crate) fn unsubscribe(&self, subscription: &Arc<Subscription>) -> bool {
        let removed = {
            let mut trie = self.trie.write();
            let removed = trie.remove(subscription);
            if removed {
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
            removed
        };
        if removed {
            self.tell_watchers(&subscription.subject);
        }
        removed
    }

    /// Subscriptions that match a published subject, with the generation they are good for.
    pub(crate) fn matches(&self, subject: &[u8]) -> (u64, Matches) {
        let trie = self.trie.read();
        (self.generation(), trie.matches(subject))
    }

    /// Visits the accounts and subjects to which imports carry messages on `subject`.
    fn each_beyond(&self, subject: &[u8], borders: u8, each: &mut dyn FnMut(&Account, &[u8])) {
        if borders == 0 {
            return;
        }
        for subscription in self.matches(subject).1.plain {
            if let Beyond::Into(account, subject) = subscription.beyond(subject) {
                each(&account, &subject);
                account.each_beyond(&subject, borders - 1, each);
            }
        }
    }

    /// Whether anybody would take a message on `subject`, be it in an account that imports it.
    pub(crate) fn is_wanted(&self, subject: &[u8]) -> bool {
        self.is_wanted_across(subject, DEPTH_MAX)
    }

    fn is_wanted_across(&self, subject: &[u8], borders: u8) -> bool {
        let (_, matches) = self.matches(subject);
        let mut plain = matches.plain.iter();
        !matches.groups.list.is_empty()
            || plain.any(|s| match s.beyond(subject) {
                Beyond::Here => true,
                Beyond::Nowhere => false,
                Beyond::Into(account, subject) => {
                    borders > 0 && account.is_wanted_across(&subject, borders - 1)
                }
            })
    }

    /// Whether there is a subscription on exactly `subject`, plain or in exactly this queue group, be it in an account that
    /// imports it.
    pub(crate) fn is_bound(&self, subject: &[u8], group: Option<&[u8]>) -> bool {
        let mut bound = self.is_bound_here(subject, group);
        if !bound {
            self.each_beyond(subject, DEPTH_MAX, &mut |account, subject| {
                bound |= account.is_bound_here(subject, group);
            });
        }
        bound
    }

    fn is_bound_here(&self, subject: &[u8], group: Option<&[u8]>) -> bool {
        let (_, matches) = self.matches(subject);
        match group {
            None => matches
                .plain
                .iter()
                .any(|s| !s.is_closed() && s.subject == subject),
            Some(group) => matches
                .groups
                .list
                .iter()
                .flat_map(|g| &g.members)
                .any(|s| !s.is_closed() && s.subject == subject && s.queue.as_deref() == Some(group)),
        }
    }

    /// Number of subscriptions.
    pub(crate) fn subscriptions(&self) -> usize {
        self.trie.read().len()
    }

    /// Subscriptions now, and how many were ever added.
    pub(crate) fn subscription_counts(&self) -> (usize, u64) {
        let trie = self.trie.read();
        (trie.len(), trie.inserted())
    }

    /// Calls `each` for every subscription, under the account's lock.
    pub(crate) fn for_each_subscription(&self, each: &mut dyn FnMut(&Arc<Subscription>)) {
        self.trie.read().for_each(each);
    }

    /// Limits over all connections of the account.
    pub(crate) fn limits(&self) -> Arc<AccountLimits> {
        self.limits.load_full()
    }

    /// Replaces limits, mappings and the destination of traces.
    pub(crate) fn configure(
        &self,
        limits: AccountLimits,
        mappings: Option<MappingTable>,
        msg_trace: Option<(String, u8)>,
    ) {
        self.limits.store(Arc::new(limits));
        self.mapped.store(mappings.is_some(), Ordering::Release);
        self.mappings.store(mappings.map(Arc::new));
        self.msg_trace.store(msg_trace.map(Arc::new));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Where traces go that only the header `traceparent` asks for, and how many of a hundred.
    pub(crate) fn msg_trace(&self) -> Option<(String, u8)> {
        self.msg_trace.load().as_deref().cloned()
    }

    /// Whether published subjects are mapped at all.
    pub(crate) fn has_mappings(&self) -> bool {
        self.mapped.load(Ordering::Acquire)
    }

    /// Maps a published subject; a new one is appended to `out`.
    pub(crate) fn map(&self, subject: &[u8], out: &mut Vec<u8>) -> Mapped {
        self.mappings
            .load()
            .as_ref()
            .map_or(Mapped::Unchanged, |mappings| mappings.apply(subject, out))
    }

    /// The requests that came in through service imports; made when first asked for.
    pub(crate) fn responses(self: &Arc<Self>, server: &Shared) -> &Arc<Responses> {
        self.responses
            .get_or_init(|| Responses::attach(self, &server.next_short_name()))
    }
}
