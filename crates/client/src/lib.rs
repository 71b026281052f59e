//! JetStream consumers that stay healthy, over the official client.
//!
//! The kit wraps [`async_nats`] and never hides it. Its core is one pull engine, [`pull`], and a [`Delivery`] that is
//! settled exactly once; what stands around them is added layer by layer.
//!
//! * [`pull`]: asks a consumer for messages, bounded, cancel safe, without a task of its own.
//! * [`delivery`]: one message in the hands of the application, and the ways to settle it.

pub mod delivery;
pub mod pull;

pub use async_nats;
pub use delivery::{Delivery, Dropped, Metadata, OnDrop, SettleError, SettleErrorKind};
pub use pull::{Puller, Target};
