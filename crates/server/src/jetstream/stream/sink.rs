//! The stream's subscriptions: what is published to its subjects goes into its inbox.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use windjet_protocol::jetstream::ErrorCode;
use windjet_protocol::jetstream::publish::encode_pub_error;

use super::Stream;
use super::inbox::Push;
use crate::account::Account;
use crate::router::{Message, Service, Sink, Subscription, Turn, route};

/// How much a crowded inbox slows its publisher, in crowded receivers.
const CROWDED: u32 = 4;

#[derive(Debug)]
struct Capture {
    stream: Weak<Stream>,
    account: Weak<Account>,
}

impl Service for Capture {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let Some(stream) = self.stream.upgrade() else {
            return false;
        };
        let origin = turn.origin.map_or(0, |connection| connection.id);
        match stream.inbox.publish(message, origin) {
            Push::Queued => true,
            Push::Crowded => {
                turn.crowded += CROWDED;
                true
            }
            Push::Full => {
                turn.crowded += CROWDED * 4;
                if let (Some(reply), Some(account)) = (message.reply, self.account.upgrade())
                    && !stream.config().no_ack
                {
                    refuse(&stream, &account, reply, turn);
                }
                true
            }
            Push::Closed => false,
        }
    }
}

fn refuse(stream: &Stream, account: &Account, reply: &[u8], turn: &mut Turn<'_>) {
    let mut body = Vec::new();
    encode_pub_error(&stream.name, &ErrorCode::TooManyRequests.error(), &mut body);
    let (_, matches) = account.matches(reply);
    let body = Bytes::from(body);
    let headers = b"NATS/1.0 429 Too Many Requests\r\n\r\n";
    route(&matches, &Message::with_shared(reply, None, headers, &body), turn);
}

/// The subscriptions of a stream; they end when this is dropped or replaced.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    account: Weak<Account>,
    entries: Vec<Arc<Subscription>>,
}

impl Subscriptions {
    /// Subscribes to the stream's subjects in place of what there was. What stays is not interrupted.
    pub(super) fn replace(&mut self, account: &Arc<Account>, stream: &Arc<Stream>, subjects: &[String]) {
        self.account = Arc::downgrade(account);
        let keep = |entry: &Arc<Subscription>| subjects.iter().any(|s| entry.subject == s.as_bytes());
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.entries).into_iter().partition(keep);
        self.entries = kept;
        for subject in subjects {
            if self
                .entries
                .iter()
                .any(|entry| entry.subject == subject.as_bytes())
            {
                continue;
            }
            let service: Arc<dyn Service> = Arc::new(Capture {
                stream: Arc::downgrade(stream),
                account: Arc::downgrade(account),
            });
            let entry = Arc::new(Subscription::new(
                Bytes::copy_from_slice(subject.as_bytes()),
                None,
                Bytes::from_static(b"0"),
                0,
                account,
                Sink::Service(service),
            ));
            account.subscribe(entry.clone());
            self.entries.push(entry);
        }
        for entry in gone {
            entry.close();
            account.unsubscribe(&entry);
        }
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        if let Some(account) = self.account.upgrade() {
            for entry in self.entries.drain(..) {
                entry.close();
                account.unsubscribe(&entry);
            }
        }
    }
}
