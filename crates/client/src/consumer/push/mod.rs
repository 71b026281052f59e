//! Push consumers: the server sends, the kit keeps up.
//!
//! For services that have push consumers; new ones pull. A [`Subscription`] owns a core subscription on the consumer's
//! deliver subject and everything on it: heartbeats, flow control, what waits for a handler, and its end.
//!
//! # Binding
//!
//! A bound subscription takes a durable as it is. Settings that differ from the client's own (ack wait, heartbeats, flow
//! control) are told in the log and obeyed. What cannot work is an error: another filter, a pull consumer, another queue
//! group, a durable without a group that somebody is bound to. Whether a missing durable is made is [`Bind`]'s to say.
//! The kit never deletes a durable.
//!
//! # Being valid
//!
//! A subscription is valid until messages can no longer be expected from it: heartbeats stayed away twice in a row while
//! the connection stood, the consumer or its stream is gone, the server said that it ends it, or it was stopped. Consumers
//! without heartbeats, all queue groups among them, are looked up at the server every [`PushOptions::probe_every`]. An
//! invalid subscription has ended; [`Supervisor::subscribe`](crate::ops::supervise::Supervisor::subscribe) makes a new one.
//!
//! # Ending
//!
//! [`Subscription::unsubscribe`] finishes what handlers have in hand and hands back the rest; [`Subscription::drain`]
//! handles what has arrived as well. Both tell the server first that nobody listens, so that what is handed back goes to
//! another worker.

mod binding;
mod run;
mod setup;
mod subscription;

use std::time::Duration;

pub use setup::WorkerSetup;
pub(super) use setup::set_up;
pub use subscription::{EndReason, Subscription, SubscriptionKind};

use super::ProcessOptions;
use crate::admin::DurableConfig;
pub(super) use subscription::{subscribe, subscribe_bound};

/// What to do when a durable to bind to does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Bind {
    /// That is an error: operations make consumers.
    #[default]
    MustExist,
    /// Make it, in one call. Name, filter, deliver subject and queue group are the subscription's; what is not set is
    /// the client's setting.
    CreateIfMissing(Box<DurableConfig>),
}

/// How to subscribe.
#[derive(Debug, Clone)]
#[must_use]
pub struct PushOptions {
    pub(super) handling: ProcessOptions,
    pub(super) bind: Bind,
    pub(super) probe: Duration,
    pub(super) pending: Limits,
}

/// How much may wait for a handler; zeros are no limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Limits {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            handling: ProcessOptions::default(),
            bind: Bind::default(),
            probe: Duration::from_secs(5),
            pending: Limits::default(),
        }
    }
}

impl PushOptions {
    /// How messages are handled and settled. What these options say about fetching has no meaning here.
    pub fn handling(mut self, options: ProcessOptions) -> Self {
        self.handling = options;
        self
    }

    /// What to do when the durable does not exist. That is an error.
    pub fn bind(mut self, bind: Bind) -> Self {
        self.bind = bind;
        self
    }

    /// How often to ask the server for a consumer without heartbeats. 5 s.
    pub fn probe_every(mut self, interval: Duration) -> Self {
        self.probe = interval.max(Duration::from_millis(10));
        self
    }

    /// At most so many messages and bytes wait for a handler here; zero is no limit. What is over is handed back, to come
    /// again after the retry delay. By default, the consumer's own bound on unsettled messages is the limit.
    pub fn pending_limits(mut self, messages: usize, bytes: usize) -> Self {
        self.pending = Limits { messages, bytes };
        self
    }
}
