//! Exports and imports: how messages cross from one account into another.
//!
//! Both kinds are subscriptions of the server itself, so that the router needs to know nothing of accounts:
//!
//! * A **stream import** is a subscription in the *exporting* account. What it receives is renamed and routed in the
//!   importing account, reply subject unchanged ([`stream`]).
//! * A **service import** is a subscription in the *importing* account. A request it receives is renamed and routed in the
//!   exporting account, with a reply subject of the server's own ([`service`]); the answer finds its way back through the
//!   table of open requests ([`responses`]).
//!
//! [`link`] makes these subscriptions from the options and says what is wrong with them. A message crosses at most
//! [`DEPTH_MAX`] borders.

mod link;
mod responses;
mod service;
mod stream;

pub(crate) use link::{Link, link, unlink};
pub(crate) use responses::Responses;

/// Borders that one message may cross.
pub(crate) const DEPTH_MAX: u8 = 8;
