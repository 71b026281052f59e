//! The conformance suite: what every broker does, stated once.
//!
//! A broker's author writes an [`Instance`], one fresh broker with what the suite needs to disturb it, and has
//! [`mq_conformance!`](crate::mq_conformance) make one test of each [case](cases):
//!
//! ```
//! use std::sync::Arc;
//! use windjet_mq::mqtest::MemoryInstance;
//!
//! windjet_mq::mq_conformance! {
//!     #[tokio::test(start_paused = true)]
//!     async fn instance() -> MemoryInstance {
//!         MemoryInstance::start().await
//!     }
//! }
//! ```
//!
//! Time is the instance's: the suite waits by [`Instance::pass`] and looks by [`Instance::now`], so that a broker on a
//! paused clock passes in milliseconds. What must happen has [`SOON`] of that time, what must not is watched for
//! [`WATCH`].
//!
//! Cases panic when the broker is wrong, as tests do. They set the process's text-map propagator to W3C trace context.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a suite fails by panicking"
)]

mod consuming;
mod delivery;
mod memory;
mod publishing;
mod reading;
mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

pub use self::memory::MemoryInstance;
use crate::{BoxFuture, Broker, TenantId};

/// How long what must happen may take.
pub const SOON: Duration = Duration::from_secs(5);
/// How long the suite watches for what must not happen.
pub const WATCH: Duration = Duration::from_millis(300);
/// The durable of the suite's consumers.
pub const DURABLE: &str = "buffer-consumer";
/// The budget that [`Instance`]s give both tenants.
pub const BUDGET: u64 = 64 << 20;

/// What differs between brokers by contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Each tenant has a byte budget of its own.
    pub per_tenant_budget: bool,
    /// [`Purger`](crate::Purger) removes what is acknowledged.
    pub purges_acked: bool,
    /// A tenant without a budget has no dead-letter queue, rather than an empty one.
    pub unbudgeted_not_found: bool,
    /// A consumer's configuration is applied to its durable, rather than checked.
    pub configures_durables: bool,
    /// [`Subscriber`](crate::Subscriber) redelivers what its listener refused.
    pub subscription_redelivers: bool,
    /// The queue's order is per tenant, not per table.
    pub orders_tenants: bool,
}

/// One fresh broker, with nothing in it but open queues for the tenants `acme` and `globex`, [`BUDGET`] each.
#[async_trait]
pub trait Instance: Send + Sync {
    /// The broker.
    fn broker(&self) -> Arc<dyn Broker>;

    /// What it does by contract.
    fn capabilities(&self) -> Capabilities;

    /// The time by which the broker stamps what it stores.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Lets time pass for the broker.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Ends delivery under running consumers of [`DURABLE`], as an operator who deletes it does.
    async fn end_delivery(&self);

    /// Makes the tenant's next publish fail for want of room. `false`: it cannot, and the case is left out.
    async fn fill(&self, _tenant: &TenantId) -> bool {
        false
    }

    /// From now on the tenant's queue cannot be opened, or can be again. `false`: it cannot be arranged.
    async fn refuse_opening(&self, _tenant: &TenantId, _refuse: bool) -> bool {
        false
    }

    /// Ends the broker and starts one over the same storage. `None`: nothing outlives it.
    async fn restart(&self) -> Option<Arc<dyn Broker>> {
        None
    }
}

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, a sentence.
    pub name: &'static str,
    /// Runs it on a fresh instance.
    ///
    /// # Panics
    /// When the broker is wrong.
    pub run: for<'a> fn(&'a dyn Instance) -> BoxFuture<'a, ()>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! suite {
    ($d:tt $($module:ident: $($name:ident,)+;)+) => {
        /// Every case, in a fixed order.
        #[must_use]
        pub fn cases() -> &'static [Case] {
            &[$($(Case { name: stringify!($name), run: |instance| Box::pin($module::$name(instance)) },)+)+]
        }

        /// Makes one test of each case of the suite, on an instance of its own. See [`mqtest`](crate::mqtest).
        #[macro_export]
        macro_rules! mq_conformance {
            ($d(#[$d attribute:meta])+ async fn $d make:ident() -> $d instance:ty $d body:block) => {
                async fn $d make() -> $d instance $d body

                $($(
                    $d(#[$d attribute])+
                    async fn $name() {
                        let instance = $d make().await;
                        $crate::mqtest::run(stringify!($name), &instance).await;
                    }
                )+)+
            };
        }
    };
}

suite! { $
    publishing:
        an_event_comes_back_as_it_was_published,
        a_topic_without_a_tenant_is_refused,
        a_repeated_idempotency_key_is_stored_once,
        a_full_queue_refuses_and_another_tenant_publishes,
        the_budget_is_reported_once_applied,
        a_canceled_publish_is_refused,
        stats_count_a_connection,
        a_queue_that_cannot_be_opened_costs_its_tenant_alone,
        a_closed_broker_refuses,
    ;
    delivery:
        each_tenant_is_in_order,
        a_refused_event_comes_back,
        a_delayed_refusal_comes_back_no_sooner,
        an_unsettled_event_comes_back_after_the_ack_wait,
        settling_lets_go_once,
        a_subscription_carries_the_trace_context,
        a_subscription_sees_every_tenant,
        a_subscription_redelivers_what_its_listener_refused,
        a_panicking_handler_costs_one_delivery,
    ;
    consuming:
        a_blocked_handler_holds_back_its_own_tenant,
        delivery_that_ends_by_itself_is_reported_once,
        nothing_is_reported_after_a_stop,
        nothing_is_reported_for_a_close,
        units_are_refused_by_a_broker_without_any,
        a_durable_goes_on_where_it_stopped,
        a_queue_opened_later_is_joined,
        a_restart_loses_nothing,
    ;
    reading:
        a_parked_event_keeps_its_topic_and_is_not_acked,
        dead_letters_are_counted_by_table,
        a_replay_sends_its_topic_since_a_time,
        a_replay_ends_with_its_context,
        a_replay_ends_when_the_sink_has_enough,
        a_replay_that_loses_its_broker_fails,
        a_purge_removes_what_is_acked_and_old,
        a_purge_of_an_unknown_consumer_fails,
    ;
}

/// Runs one case.
///
/// # Panics
/// When there is no such case, when the broker is wrong, or when the case takes over a minute of the runtime's time.
pub async fn run(name: &str, instance: &dyn Instance) {
    support::set_propagator();
    let case = cases()
        .iter()
        .find(|case| case.name == name)
        .expect("a case of this name");
    tokio::time::timeout(Duration::from_secs(60), (case.run)(instance))
        .await
        .unwrap_or_else(|_| panic!("{name}: not over after a minute"));
}
