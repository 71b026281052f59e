//! The broker in the process, over a folder of its own for each test.

mod suite;

use parking_lot::Mutex;
use tempfile::TempDir;
use windjet_mq::{EmbeddedNats, Publisher as _};
use windjet_server::jetstream::JetStreamContext;

/// A store and the broker over it.
struct Store {
    folder: TempDir,
    broker: Mutex<EmbeddedNats>,
}

impl Store {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let broker = EmbeddedNats::open(folder.path()).await.unwrap();
        Self {
            folder,
            broker: Mutex::new(broker),
        }
    }

    fn broker(&self) -> EmbeddedNats {
        self.broker.lock().clone()
    }

    /// Ends the broker and starts one over the same folder.
    async fn restart(&self) -> EmbeddedNats {
        self.broker().close().await.unwrap();
        let broker = EmbeddedNats::open(self.folder.path()).await.unwrap();
        *self.broker.lock() = broker.clone();
        broker
    }

    /// What the broker stands on, as an operator's tool reaches it.
    fn js(&self) -> JetStreamContext {
        self.broker().server().jetstream().unwrap()
    }
}
