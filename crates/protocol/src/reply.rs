//! What a consumer puts into the reply subject of a message, and what clients send there.
//!
//! * [`AckSubject`]: the subject that acknowledgements go to; it carries the delivery it is about.
//! * [`Ack`]: the payload of an acknowledgement.
//! * [`FlowControlSubject`]: the subject that answers a push consumer's flow-control request.
//!
//! Both subjects have two forms. The first is the one to emit; the second names the domain and the account and is
//! accepted:
//!
//! | form | tokens |
//! |---|---|
//! | plain, 9 tokens | `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>` |
//! | extended, 11 or more | `$JS.ACK.<domain or _>.<account hash>.` and the same, then anything |
//! | plain, 5 tokens | `$JS.FC.<stream>.<consumer>.<id>` |
//! | extended, 7 tokens | `$JS.FC.<domain or _>.<account hash>.<stream>.<consumer>.<id>` |
//!
//! This module reads and writes; whether a delivery is still pending, and what an acknowledgement then does, is the
//! consumer's. Names are bytes here: they are compared, never interpreted.

mod ack;
mod subject;

pub use ack::Ack;
pub use subject::{AckSubject, FlowControlSubject, Scope, account_hash};
