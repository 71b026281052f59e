//! Private servers for tests.
//!
//! Each call gives a server of its own on a free port of the loopback interface: nothing is shared, no port is fixed, and
//! hundreds may live in one test process. A server ends when its last handle is dropped.
//!
//! * [`server`] has no JetStream.
//! * [`in_memory`] has JetStream on a [`Disk`] in memory, [`in_folder`] in a temporary folder that goes with the server.
//! * [`on`] has JetStream on a disk and by a clock that the test holds: the disk fails and forgets on demand, and what the
//!   clock's moving makes due happens at once.
//!
//! Each has a `builder` form where anything can be changed before the start.

use std::io;
use std::sync::Arc;

use tempfile::TempDir;
use windjet_server::{Builder, Server, StartError};
use windjet_store::{DiskFile, DiskLock, LockError, RealDisk};

/// JetStream's clock, which stands still until the test moves it.
pub use windjet_server::jetstream::TestClock as Clock;
/// A disk in memory that loses what was not synced when its power is cut, and fails on demand.
pub use windjet_store::SimDisk as Disk;
/// What a power cut leaves of what was not synced.
pub use windjet_store::Survival;

/// A running server that nobody else uses, without JetStream, with a listener on a free loopback port.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windjet::StartError> {
/// let server = windjet::test::server().await?;
/// let url = server.client_url(); // for clients over a socket
/// let client = server.client(); // or without one
/// # assert!(url.is_some_and(|url| url.starts_with("nats://127.0.0.1:")));
/// # drop(client);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When the system has no port left, or there is no tokio runtime.
///
/// # Cancel safety
///
/// Dropped early, nothing keeps running.
pub async fn server() -> Result<Server, StartError> {
    builder().start().await
}

/// The same, to be changed before it is started.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windjet::StartError> {
/// let server = windjet::test::builder().name("orders").start().await?;
/// assert_eq!(server.name(), "orders");
/// # Ok(())
/// # }
/// ```
pub fn builder() -> Builder {
    Server::builder().listen_loopback()
}

/// A running server with JetStream whose data is in memory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = windjet::test::in_memory().await?;
/// let orders = serde_json::from_str(r#"{"name":"ORDERS","subjects":["orders.>"]}"#)?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// js.create_stream(orders).await?;
/// assert_eq!(js.publish("ORDERS", "orders.new", "42")?.await?.seq, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`server`].
///
/// # Cancel safety
///
/// Dropped early, nothing keeps running.
pub async fn in_memory() -> Result<Server, StartError> {
    builder_in_memory().start().await
}

/// The same, to be changed before it is started. Each start of a clone uses the same memory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let builder = windjet::test::builder_in_memory();
/// let server = builder.clone().start().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// js.create_stream(serde_json::from_str(r#"{"name":"ORDERS","subjects":["orders.>"]}"#)?).await?;
/// js.publish("ORDERS", "orders.new", "42")?.await?;
/// server.shutdown(Duration::from_secs(5)).await;
///
/// // What is restarted has what was stored.
/// let again = builder.start().await?;
/// let js = again.jetstream().ok_or("no JetStream")?;
/// assert_eq!(js.publish("ORDERS", "orders.new", "43")?.await?.seq, 2);
/// # Ok(())
/// # }
/// ```
pub fn builder_in_memory() -> Builder {
    builder().disk(Arc::new(Disk::new(0)))
}

/// A running server with JetStream whose data is in a temporary folder. The folder goes when the server has ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let server = windjet::test::in_folder().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// js.create_stream(serde_json::from_str(r#"{"name":"ORDERS","subjects":["orders.>"]}"#)?).await?;
/// assert_eq!(js.publish("ORDERS", "orders.new", "42")?.await?.seq, 1); // synced to the disk
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`server`], and when the folder cannot be made.
///
/// # Cancel safety
///
/// Dropped early, nothing keeps running.
pub async fn in_folder() -> Result<Server, Box<dyn std::error::Error + Send + Sync>> {
    Ok(builder_in_folder()?.start().await?)
}

/// The same, to be changed before it is started. The folder goes with the last clone and the server.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let server = windjet::test::builder_in_folder()?.storage_budget(64 << 20).start().await?;
/// assert_eq!(server.storage().ok_or("no JetStream")?.budget, Some(64 << 20));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When the folder cannot be made.
pub fn builder_in_folder() -> io::Result<Builder> {
    Ok(builder().disk(Arc::new(FolderDisk::new(tempfile::tempdir()?)?)))
}

/// A server with JetStream on this disk, by this clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::{Duration, SystemTime};
/// use windjet::test::{Clock, Disk, Survival};
///
/// let (disk, clock) = (Disk::new(7), Clock::new(SystemTime::now()));
/// let server = windjet::test::on(&disk, &clock).start().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// js.create_stream(serde_json::from_str(r#"{"name":"S","subjects":["s"],"duplicate_window":60000000000}"#)?).await?;
/// let publish = || js.publish_with("S", "s", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", "x");
/// assert!(!publish()?.await?.duplicate);
/// assert!(publish()?.await?.duplicate);
/// clock.advance(Duration::from_secs(61)); // the window is over
/// assert_eq!(publish()?.await?.seq, 2);
///
/// disk.power_cut(Survival::Nothing); // what was acknowledged is there nevertheless
/// drop((server, js));
/// let server = windjet::test::on(&disk, &clock).start().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// assert_eq!(js.stream_info("S").await?.state.messages, 2);
/// # Ok(())
/// # }
/// ```
pub fn on(disk: &Disk, clock: &Clock) -> Builder {
    builder().disk(Arc::new(disk.clone())).clock(clock.clone())
}

/// A folder that is removed when the last user of the disk has gone.
#[derive(Debug)]
struct FolderDisk {
    disk: RealDisk,
    _folder: TempDir,
}

impl FolderDisk {
    fn new(folder: TempDir) -> io::Result<Self> {
        Ok(Self {
            disk: RealDisk::new(folder.path().join("jetstream"))?,
            _folder: folder,
        })
    }
}

impl windjet_store::Disk for FolderDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }

    fn lock(&self, holder: &str) -> Result<Box<dyn DiskLock>, LockError> {
        self.disk.lock(holder)
    }

    fn boot_id(&self) -> Option<u128> {
        self.disk.boot_id()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{FolderDisk, builder};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_folder_goes_with_the_server() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().to_owned();
        let disk = FolderDisk::new(temporary).unwrap();
        let server = builder().disk(Arc::new(disk)).start().await.unwrap();
        assert!(std::fs::read_dir(folder.join("jetstream")).unwrap().count() > 0);
        assert!(server.shutdown(PATIENCE).await.complete);
        drop(server);
        let end = std::time::Instant::now() + PATIENCE;
        while folder.exists() {
            assert!(std::time::Instant::now() < end, "the folder stays");
            tokio::task::yield_now().await;
        }
    }
}
