//! Parity: the same script against the real nats-server and against ours, with equal answers.
//!
//! A *script* starts a server, opens connections, sends bytes and records what comes back. [`run`] makes such a
//! transcript, normalised so that two runs can be compared; [`suite`] runs many scripts on two servers and compares.
//! A script may differ only when it names a row of `docs/parity.md` and carries what our server says instead.
//!
//! The scripts lie in `crates/testkit/parity`; `docs/parity-scripts.md` describes their language, and
//! `docs/parity-coverage.md`, made by [`coverage`], lists which sections of the specification they cover.

pub mod coverage;
pub mod diff;
pub mod suite;

mod act;
mod escape;
mod normal;
mod peer;
mod program;
mod run;
mod script;
mod show;
mod step;
mod vars;

pub use run::{Outcome, run};
pub use script::{Difference, Script, load};
