//! The durable store of Windjet: no sockets, no async runtime.
//!
//! A [`Store`] keeps streams of messages over one journal with group commit. Each stream has one owner, the
//! [`StreamWriter`], which stages operations and commits what became durable, and any number of [`StreamReader`]s, which
//! see committed state only. The store is mechanism: an operation lists its effects (what it evicts, which dedup id it
//! carries), and no limit, filter or clock is evaluated after a crash. Policy is the caller's.
//!
//! ```
//! use std::sync::Arc;
//! use windjet_store::{Append, Found, Op, RealDisk, Store, StoreOptions, StreamOptions, SystemClock};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = std::env::temp_dir().join(format!("windjet-store-doc-{}", std::process::id()));
//! let options = StoreOptions { ballast: false, ..StoreOptions::default() };
//! let disk = Arc::new(RealDisk::new(&dir)?);
//! let (store, report) = Store::open(options, disk, Arc::new(SystemClock::new()))?;
//! assert!(report.is_intact());
//! let mut orders = store.create_stream(StreamOptions { name: "ORDERS".into(), ..Default::default() })?;
//! let ticket = orders.stage(Op::Append(Append { subject: b"orders.eu", payload: b"42", ..Default::default() }))?;
//! orders.submit();
//! // Without threads (`Store::start`) the user makes the steps.
//! store.write_step()?;
//! store.sync_step()?;
//! assert!(orders.commit()? >= ticket.op);
//! match orders.reader().read(ticket.seq) {
//!     Found::InMemory(message) => assert_eq!(&message.payload()[..], b"42"),
//!     other => panic!("{other:?}"),
//! }
//! store.close()?;
//! # std::fs::remove_dir_all(dir)?;
//! # Ok(())
//! # }
//! ```
//!
//! What is on disk byte by byte, what is synced when, and why an acknowledgement cannot be lost: `docs/store.md`.

mod clock;
mod codec;
mod consumer;
mod disk;
mod error;
mod fault;
mod index;
mod journal;
mod manifest;
mod options;
mod record;
mod report;
mod segment;
#[cfg(feature = "test-util")]
pub mod sim;
mod store;
mod stream;

#[cfg(feature = "test-util")]
pub use clock::SimClock;
pub use clock::{Clock, SystemClock};
pub use consumer::{ConsumerChange, ConsumerState, Pending, Position};
pub use disk::{BudgetDisk, Disk, DiskFile, DiskLock, LockError, RealDisk};
#[cfg(feature = "test-util")]
pub use disk::{DiskEvent, DiskOp, SimDisk, Survival};
pub use error::{CommitError, CreateError, OpenError, ReadError, StageError};
#[cfg(feature = "planted-faults")]
#[doc(hidden)]
pub use fault::Fault;
pub use index::{ConsumerRecord, Matcher, StreamState, SubjectRow};
pub use options::{Compression, Durability, Storage, StoreOptions, StreamOptions};
pub use record::SeqRange;
pub use report::{Finding, RecoveryReport, Why};
pub use store::{Health, Metrics, Probe, ProbeError, Step, Store, verify};
pub use stream::message::Message;
pub use stream::op::{Append, Op, Purge, Ticket};
pub use stream::reader::{Found, FoundSeq, ReadTicket, StreamReader, TimeTicket};
pub use stream::writer::{Duplicate, StreamWriter, Subject};
