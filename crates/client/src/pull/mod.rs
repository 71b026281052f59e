//! The pull engine: asks one JetStream consumer for messages.
//!
//! [`Puller`] speaks the pull protocol itself over the core client: it publishes its own requests, subscribes to its own
//! inbox, and reads heartbeats and status messages. The official client's pull streams are not used, because they
//! discard what they hold when dropped and stall in some of their modes.
//!
//! # What it guarantees
//!
//! * **Bounded.** At most [`Request::batch`] messages are asked for and not yet handed out, however many calls were
//!   made or dropped. Nothing grows behind the caller's back.
//! * **Cancel safe.** Every future may be dropped at any point. Messages that had arrived stay in the puller and are
//!   handed out by the next call; a request that is under way is taken over by it.
//! * **No task, no thread.** The puller works only while one of its futures is polled.
//! * **Nothing silent.** A call ends with messages, with the reason why there are none, or with an error that says
//!   whether trying again helps. A reconnect, a missed heartbeat and a request that nobody answered are noticed within
//!   bounded time.
//! * **Hands back what it holds.** [`Puller::close`] returns every message that was not handed out, so that another
//!   worker has it at once instead of after the ack wait. Dropping the puller does the same as far as it can without
//!   waiting.
//! * **Messages are known by their subject**, as the protocol has it: what arrives on the inbox subject itself is a
//!   status, everything else is a message. Headers that imitate a status are not believed.
//!
//! # What it does not do
//!
//! It creates, changes and looks up no consumer: a missing one shows as [`PullErrorKind::NoResponders`]. It does not
//! retry: [`PullError::is_retryable`] tells the caller what to do, with its own back-off. It does not settle anything
//! that it handed out. With two requests under way a message cannot be told to belong to one of them; their sum is
//! exact, because the end of each request names what it still owed.
//!
//! # Two ways to use it
//!
//! [`Puller::fetch`] makes one request and returns when it is over; [`Puller::next`] keeps requests under way, so that
//! the next message is usually there already. Both take the same [`Request`] and may be mixed.
//!
//! # Priority groups
//!
//! With [`Request::group`] the request names its group. For a consumer that pins a client, the puller learns its pin
//! from the messages, sends it with every later request, and forgets it when the server says that it is not ours any
//! more ([`PullErrorKind::PinLost`]); the next request then stands in line like any other.
//!
//! Callers: the consumers of this crate, and whoever brings JetStream into a boundary of its own.

mod error;
mod ledger;
mod puller;
mod request;
mod status;
mod target;

pub use error::{PullError, PullErrorKind};
pub use puller::{Batch, CloseReport, End, Options, Puller};
pub use request::Request;
pub use target::Target;
