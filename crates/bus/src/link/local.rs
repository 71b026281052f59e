//! The connection of code in the broker's process: no socket, no encoding.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use windjet_protocol::HeaderMap;
use windjet_server::client::{Message, PublishError, RequestError, SubscribeError};
use windjet_server::{Client, client};

use super::{Feed, Incoming, Link, LinkState, closed, no_responders, timed_out};
use crate::error::{BusError, ErrorKind};

/// What the server of this process takes in one message.
const MAX_PAYLOAD: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct LocalLink {
    client: Client,
    state: watch::Sender<LinkState>,
}

impl LocalLink {
    pub(crate) fn new(client: Client) -> Self {
        let (state, _) = watch::channel(LinkState::Connected(1));
        Self { client, state }
    }

    fn publish_error(&self, subject: &str, error: PublishError) -> BusError {
        let kind = match &error {
            PublishError::InvalidSubject(_) => ErrorKind::BadToken,
            PublishError::TooLarge { size, limit } => ErrorKind::TooLarge {
                limit: *limit,
                actual: *size,
            },
            PublishError::Denied(_) | PublishError::ReplyDenied(_) => ErrorKind::PermissionDenied {
                subject: subject.to_owned(),
            },
            PublishError::Closed => {
                self.state.send_replace(LinkState::Closed);
                ErrorKind::Closed
            }
            _ => ErrorKind::Refused,
        };
        BusError::new(kind, format!("publish {subject:?}")).with(error)
    }
}

fn subscribe_error(subject: &str, error: SubscribeError) -> BusError {
    let kind = match &error {
        SubscribeError::InvalidSubject(_) => ErrorKind::BadToken,
        SubscribeError::Denied(_) => ErrorKind::PermissionDenied {
            subject: subject.to_owned(),
        },
        SubscribeError::Closed => ErrorKind::Closed,
        _ => ErrorKind::Refused,
    };
    BusError::new(kind, format!("subscribe {subject:?}")).with(error)
}

fn incoming(message: &Message) -> Incoming {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let headers = message.headers().ok().flatten().unwrap_or_default();
    Incoming {
        subject: text(&message.subject),
        reply: message.reply.as_ref().map(text),
        status: headers.status().map_or(0, |status| status.code),
        headers,
        payload: message.payload.clone(),
    }
}

#[async_trait]
impl Link for LocalLink {
    async fn publish(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), BusError> {
        let published = match (reply, headers) {
            (None, None) => self.client.publish(subject, payload).await,
            (None, Some(headers)) => self.client.publish_with_headers(subject, headers, payload).await,
            (Some(reply), None) => self.client.publish_with_reply(subject, reply, payload).await,
            (Some(_), Some(_)) => {
                let text = format!("publish {subject:?}: headers and a reply subject together");
                return Err(BusError::new(ErrorKind::Config, text));
            }
        };
        published.map_err(|error| self.publish_error(subject, error))
    }

    async fn request(
        &self,
        subject: &str,
        headers: Option<&HeaderMap>,
        payload: Bytes,
        limit: Duration,
    ) -> Result<Incoming, BusError> {
        match self.client.request_within(subject, headers, payload, limit).await {
            Ok(message) => Ok(incoming(&message)),
            Err(RequestError::NoResponders(_)) => Err(no_responders(subject)),
            Err(RequestError::TimedOut(limit)) => Err(timed_out("request", subject, limit)),
            Err(RequestError::Publish(error)) => Err(self.publish_error(subject, error)),
            Err(RequestError::Subscribe(error)) => Err(subscribe_error(subject, error)),
            Err(error) => Err(BusError::new(ErrorKind::Refused, format!("request {subject:?}")).with(error)),
        }
    }

    async fn subscribe(&self, subject: &str, group: Option<&str>) -> Result<Box<dyn Feed>, BusError> {
        let subscribed = match group {
            Some(group) => self.client.queue_subscribe(subject, group).await,
            None => self.client.subscribe(subject).await,
        };
        let subscription = subscribed.map_err(|error| subscribe_error(subject, error))?;
        Ok(Box::new(LocalFeed(subscription)))
    }

    async fn settle(&self, limit: Duration) -> Result<(), BusError> {
        self.flush(limit).await
    }

    async fn flush(&self, _limit: Duration) -> Result<(), BusError> {
        self.client.flush().await.map_err(|_| closed("flush", ""))
    }

    fn new_inbox(&self) -> String {
        self.client.new_inbox()
    }

    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn state(&self) -> watch::Receiver<LinkState> {
        if self.client.is_closed() {
            self.state.send_replace(LinkState::Closed);
        }
        self.state.subscribe()
    }

    fn has_listener(&self, subject: &str) -> Option<bool> {
        Some(self.client.has_listener(subject))
    }

    async fn close(&self) {
        self.state.send_replace(LinkState::Closed);
        self.client.drain().await;
    }
}

struct LocalFeed(client::Subscription);

#[async_trait]
impl Feed for LocalFeed {
    async fn next(&mut self) -> Option<Incoming> {
        self.0.next().await.map(|message| incoming(&message))
    }

    async fn finish(&mut self) {
        self.0.unsubscribe();
    }
}
