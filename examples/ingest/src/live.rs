//! Accepted rows as they come, for those who listen.
//!
//! One subscription serves the process. A listener too slow for its channel misses rows there and is told so; it fills the
//! gap from a replay.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use windjet_mq::{Broker, Ctx, Error, Listener, Message};

/// Rows that a listener may be behind.
const BEHIND_MAX: usize = 256;

/// Who listens to which topic.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<HashMap<String, broadcast::Sender<Bytes>>>);

impl Live {
    /// Subscribes; rows published from now on reach those who listen, until `ctx` ends.
    pub(crate) async fn start(broker: &dyn Broker, ctx: &Ctx) -> Result<Arc<Self>, Error> {
        let live = Arc::new(Self::default());
        let told = Arc::clone(&live);
        let listener = Listener::new(move |message: Message| {
            told.tell(message.topic_key(), message.data());
            // What was not told because the process died is filled from a replay, so nothing hangs on this ack.
            async move { Ok(message.ack().await?) }
        });
        broker.subscribe(ctx, "ingest-live", listener).await?;
        Ok(live)
    }

    /// Listens to a topic from now on.
    pub(crate) fn listen(&self, topic_key: &str) -> broadcast::Receiver<Bytes> {
        let mut topics = self.0.lock();
        let new = || broadcast::channel(BEHIND_MAX).0;
        topics.entry(topic_key.to_owned()).or_insert_with(new).subscribe()
    }

    fn tell(&self, topic_key: &str, data: &Bytes) {
        let mut topics = self.0.lock();
        if let Some(listeners) = topics.get(topic_key)
            && listeners.send(data.clone()).is_err()
        {
            // The last listener is gone.
            topics.remove(topic_key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_hear_their_topic_and_are_forgotten_when_they_go() {
        let live = Live::default();
        let (mut first, mut second) = (live.listen("a.t"), live.listen("a.t"));
        live.tell("a.t", &"1".into());
        live.tell("b.t", &"2".into());
        assert_eq!(first.try_recv().unwrap(), "1");
        assert_eq!(second.try_recv().unwrap(), "1");
        assert!(first.try_recv().is_err());
        drop((first, second));
        live.tell("a.t", &"3".into());
        assert!(live.0.lock().is_empty());
    }
}
