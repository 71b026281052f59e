//! The queues of all tenants, and the consumers that hold them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;

use super::deliver::{Mode, Registration};
use super::durable::Durable;
use super::log::{Log, WhenFull};
use super::{DEAD_LETTER_SHARE, DEAD_LETTER_WINDOW};
use crate::{ConsumerConfig, Ctx, EMBEDDED_DUPLICATE_WINDOW, Error, ErrorKind, TenantId};

/// Deliveries to start: of consumers that have just come to hold a tenant's queue.
pub(super) type Joined = Vec<(Arc<Registration>, TenantId, Mode)>;

#[derive(Debug, Default)]
pub(super) struct State {
    tenants: BTreeMap<TenantId, Tenant>,
    registrations: BTreeMap<u64, Arc<Registration>>,
    registered: u64,
    refused: BTreeSet<TenantId>,
    pub(super) in_msgs: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    /// The budget last asked for; 0 when none was.
    asked: u64,
    queue: Option<Queue>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) ingest: Log,
    pub(super) dead: Log,
    pub(super) durables: HashMap<String, Durable>,
    pub(super) budget: u64,
    /// Wakes the queue's deliveries after any change.
    pub(super) wake: Arc<Notify>,
}

impl State {
    pub(super) fn queue(&self, tenant: &TenantId) -> Option<&Queue> {
        self.tenants.get(tenant)?.queue.as_ref()
    }

    pub(super) fn queue_mut(&mut self, tenant: &TenantId) -> Result<&mut Queue, Error> {
        self.tenants
            .get_mut(tenant)
            .and_then(|entry| entry.queue.as_mut())
            .ok_or_else(|| not_open(tenant))
    }

    pub(super) fn queues_mut(&mut self) -> impl Iterator<Item = (&TenantId, &mut Queue)> {
        let queues = self.tenants.iter_mut();
        queues.filter_map(|(tenant, entry)| Some((tenant, entry.queue.as_mut()?)))
    }

    pub(super) fn refuse(&mut self, tenant: &TenantId, refuse: bool) {
        if refuse {
            self.refused.insert(tenant.clone());
        } else {
            self.refused.remove(tenant);
        }
    }

    /// Applies a budget, opening the tenant's queue if it has none.
    pub(super) fn set_budget(&mut self, tenant: &TenantId, bytes: u64) -> Result<Joined, Error> {
        let entry = self.tenants.entry(tenant.clone()).or_default();
        entry.asked = bytes;
        if self.refused.contains(tenant) {
            return Err(Error::new(
                ErrorKind::Other,
                format!("tenant {tenant}: its queue cannot be opened"),
            ));
        }
        let dead = bytes / DEAD_LETTER_SHARE;
        if let Some(queue) = &mut entry.queue {
            queue.ingest.set_cap(bytes);
            // Parked rows are never dropped to fit a smaller budget.
            queue.dead.set_cap(dead.max(queue.dead.bytes()));
            queue.budget = bytes;
            return Ok(Joined::new());
        }
        let mut queue = Queue {
            ingest: Log::new(bytes, WhenFull::Refuse, EMBEDDED_DUPLICATE_WINDOW),
            dead: Log::new(dead, WhenFull::DropOldest, DEAD_LETTER_WINDOW),
            durables: HashMap::new(),
            budget: bytes,
            wake: Arc::default(),
        };
        let mut joined = Joined::new();
        for registration in self.registrations.values() {
            queue.join(registration);
            // One that does not deliver yet begins with every queue that it holds then.
            if let Some(mode) = registration.mode() {
                joined.push((Arc::clone(registration), tenant.clone(), mode));
            }
        }
        entry.queue = Some(queue);
        Ok(joined)
    }

    /// Opens a tenant's queue at the budget last asked for, if it has none.
    pub(super) fn reopen(&mut self, tenant: &TenantId) -> Result<Joined, Error> {
        match self.tenants.get(tenant) {
            Some(Tenant { queue: Some(_), .. }) => Ok(Joined::new()),
            Some(&Tenant { asked, queue: None }) if asked > 0 => {
                self.set_budget(tenant, asked).map_err(|error| {
                    Error::wrap(
                        ErrorKind::QueueFull,
                        format!("tenant {tenant}: ingest queue is full"),
                        error,
                    )
                })
            }
            _ => Err(not_open(tenant)),
        }
    }

    /// Enters a consumer, and its durable on every queue.
    pub(super) fn register(&mut self, ctx: &Ctx, config: &ConsumerConfig) -> Arc<Registration> {
        self.registered += 1;
        let registration = Arc::new(Registration::new(self.registered, ctx, config));
        for (_, queue) in self.queues_mut() {
            queue.join(&registration);
        }
        self.registrations
            .insert(registration.id, Arc::clone(&registration));
        registration
    }

    pub(super) fn unregister(&mut self, id: u64) {
        self.registrations.remove(&id);
    }

    pub(super) fn delete_durable(&mut self, durable: &str) {
        for (_, queue) in self.queues_mut() {
            queue.durables.remove(durable);
            queue.wake.notify_waiters();
        }
    }

    /// Has a consumer deliver from every queue that there is, and from those opened later. `None` when it does already.
    pub(super) fn begin(&mut self, registration: &Arc<Registration>, mode: &Mode) -> Option<Joined> {
        if !registration.set_mode(mode.clone()) {
            return None;
        }
        let queues = self.queues_mut();
        Some(
            queues
                .map(|(tenant, _)| (Arc::clone(registration), tenant.clone(), mode.clone()))
                .collect(),
        )
    }
}

impl Queue {
    /// Creates or updates a consumer's durable.
    fn join(&mut self, registration: &Registration) {
        let first = self.ingest.first();
        let durable = self
            .durables
            .entry(registration.durable.clone())
            .or_insert_with(|| Durable::new(first));
        if let Some(wait) = registration.ack_wait {
            durable.ack_wait = wait;
        }
        if let Some(messages) = registration.max_ack_pending {
            durable.max_ack_pending = messages;
        }
    }
}

fn not_open(tenant: &TenantId) -> Error {
    Error::new(
        ErrorKind::QueueFull,
        format!("tenant {tenant}: no queue is open for it yet; give it a budget"),
    )
}
