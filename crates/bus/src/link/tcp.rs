//! The connection of code in another process, over the official client.
//!
//! It reconnects by itself for ever, with a growing pause. Only refused credentials end it: trying them again cannot help.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::RwLock;
use tokio::sync::watch;
use windjet_client::async_nats::{
    self, ClientError, ConnectErrorKind, ConnectOptions, Event, PublishErrorKind, Request, RequestErrorKind,
    ServerError,
};
use windjet_protocol::HeaderMap;

use super::{Feed, Incoming, Link, LinkState, closed, no_responders, timed_out};
use crate::client::Backoff;
use crate::error::{BusError, ErrorKind};

pub(crate) struct TcpLink {
    client: RwLock<Option<async_nats::Client>>,
    shared: Arc<Shared>,
}

/// The pause before a try that must not happen.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

struct Shared {
    state: watch::Sender<LinkState>,
    /// How many connections were lost: a state that comes back at once would not be noticed.
    losses: watch::Sender<u64>,
    refused: AtomicBool,
}

impl Shared {
    fn event(&self, event: &Event) {
        match event {
            Event::Connected => {
                self.state.send_modify(|state| {
                    *state = match *state {
                        LinkState::Connected(count) => LinkState::Connected(count + 1),
                        _ => LinkState::Connected(self.next()),
                    };
                });
                tracing::info!("connected to the broker");
            }
            Event::Disconnected => {
                self.state.send_if_modified(|state| {
                    let change = matches!(state, LinkState::Connected(_));
                    if change {
                        *state = LinkState::Disconnected;
                    }
                    change
                });
                self.losses.send_modify(|lost| *lost += 1);
                tracing::warn!("the connection to the broker is lost; trying again");
            }
            Event::ServerError(error) => {
                tracing::warn!(%error, "the broker reports an error");
                let text = error.to_string();
                if *error == ServerError::AuthorizationViolation
                    || text.contains("User Authentication Revoked")
                {
                    self.refused.store(true, Ordering::SeqCst);
                }
            }
            Event::ClientError(ClientError::Other(text))
                if text.contains("authorization violation") || text.contains("failed signing nonce") =>
            {
                self.reject();
            }
            Event::Closed => self.ended(),
            other => tracing::debug!(event = %other, "connection event"),
        }
    }

    fn next(&self) -> u64 {
        // A fresh number; the watch itself forgets it while disconnected.
        CONNECTS.fetch_add(1, Ordering::Relaxed)
    }

    /// The broker refused the credentials of a reconnect. The official client would try for ever; its pause grows so long
    /// that it does not, and everybody else is told.
    fn reject(&self) {
        self.refused.store(true, Ordering::SeqCst);
        self.state.send_if_modified(|state| {
            let change = !matches!(state, LinkState::Closed | LinkState::Rejected);
            if change {
                tracing::error!("the broker refuses these credentials; enrol the worker again");
                *state = LinkState::Rejected;
            }
            change
        });
    }

    fn ended(&self) {
        let refused = self.refused.load(Ordering::SeqCst);
        self.state.send_if_modified(|state| {
            if matches!(state, LinkState::Closed | LinkState::Rejected) {
                return false;
            }
            *state = if refused {
                LinkState::Rejected
            } else {
                LinkState::Closed
            };
            true
        });
    }
}

static CONNECTS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(2);

impl TcpLink {
    /// Connects once. Later it reconnects for ever, with pauses of `backoff`.
    pub(crate) async fn connect(
        url: &str,
        options: ConnectOptions,
        backoff: Backoff,
    ) -> Result<Self, BusError> {
        let (state, _) = watch::channel(LinkState::Connected(1));
        let shared = Arc::new(Shared {
            state,
            losses: watch::Sender::new(0),
            refused: AtomicBool::new(false),
        });
        let pauses = shared.clone();
        let options = options
            .max_reconnects(None)
            .reconnect_delay_callback(move |attempt| {
                if pauses.refused.load(Ordering::SeqCst) {
                    return NEVER;
                }
                // The first try of a connection, and the first after each loss, comes at once.
                match attempt {
                    0 | 1 => Duration::ZERO,
                    later => backoff.delay(u32::try_from(later - 2).unwrap_or(u32::MAX)),
                }
            });
        let events = shared.clone();
        let options = options.event_callback(move |event| {
            let events = events.clone();
            async move { events.event(&event) }
        });
        let client = options.connect(url).await.map_err(|error| {
            let (kind, remedy) = match error.kind() {
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => (
                    ErrorKind::AuthRejected,
                    "; the broker refuses these credentials, enrol the worker again",
                ),
                ConnectErrorKind::ServerParse => (ErrorKind::BadAddr, ""),
                _ => (ErrorKind::Connect, ""),
            };
            BusError::new(kind, format!("connect to {url}{remedy}")).with(error)
        })?;
        Ok(Self {
            client: RwLock::new(Some(client)),
            shared,
        })
    }

    fn client(&self, operation: &str, subject: &str) -> Result<async_nats::Client, BusError> {
        match *self.shared.state.borrow() {
            LinkState::Rejected => Err(BusError::new(
                ErrorKind::AuthRejected,
                format!(
                    "{operation} {subject:?}: the broker refuses these credentials, enrol the worker again"
                ),
            )),
            LinkState::Closed => Err(closed(operation, subject)),
            _ => self
                .client
                .read()
                .clone()
                .ok_or_else(|| closed(operation, subject)),
        }
    }

    /// Sends a request and waits for its answer, no longer than its connection lives. One that is sent while there is no
    /// connection goes with the next.
    async fn answered(
        &self,
        client: &async_nats::Client,
        subject: &str,
        request: Request,
        limit: Duration,
    ) -> Result<Incoming, BusError> {
        let mut losses = self.shared.losses.subscribe();
        let connected = matches!(*self.shared.state.borrow(), LinkState::Connected(_));
        let lost = async {
            if !connected || losses.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        // The client's own limit starts when the request was queued, which a lost connection can delay.
        let answer = tokio::time::timeout(limit, client.send_request(subject.to_owned(), request));
        let answer = tokio::select! {
            // An answer that came before the loss counts.
            biased;
            answer = answer => answer,
            () = lost => {
                let text = format!("request {subject:?}: the connection was lost before the answer came");
                return Err(BusError::new(ErrorKind::Unknown, text));
            }
        };
        match answer {
            Ok(Ok(message)) => Ok(incoming(message)),
            Err(_) => Err(timed_out("request", subject, limit)),
            Ok(Err(error)) => Err(match error.kind() {
                RequestErrorKind::NoResponders => no_responders(subject),
                RequestErrorKind::TimedOut => timed_out("request", subject, limit),
                RequestErrorKind::InvalidSubject => {
                    BusError::new(ErrorKind::BadToken, format!("request {subject:?}")).with(error)
                }
                _ => BusError::new(ErrorKind::Closed, format!("request {subject:?}")).with(error),
            }),
        }
    }

    fn check_size(
        client: &async_nats::Client,
        subject: &str,
        headers: Option<&HeaderMap>,
        payload: &Bytes,
    ) -> Result<(), BusError> {
        let actual = payload.len() + headers.map_or(0, HeaderMap::encoded_len);
        let limit = client.max_payload();
        if limit > 0 && actual > limit {
            return Err(BusError::new(
                ErrorKind::TooLarge { limit, actual },
                format!("publish {subject:?}: {actual} bytes are over the limit of {limit}"),
            ));
        }
        Ok(())
    }
}

fn outgoing(headers: &HeaderMap) -> Result<async_nats::HeaderMap, BusError> {
    let mut map = async_nats::HeaderMap::new();
    for (name, value) in headers.iter() {
        let parsed = std::str::from_utf8(name)
            .ok()
            .zip(std::str::from_utf8(value).ok());
        let pair = parsed.and_then(|(name, value)| {
            let name: async_nats::HeaderName = name.parse().ok()?;
            let value: async_nats::HeaderValue = value.parse().ok()?;
            Some((name, value))
        });
        let (name, value) =
            pair.ok_or_else(|| BusError::new(ErrorKind::Config, "a header that cannot be sent"))?;
        map.append(name, value);
    }
    Ok(map)
}

fn incoming(message: async_nats::Message) -> Incoming {
    let mut headers = HeaderMap::default();
    if let Some(map) = &message.headers {
        for (name, values) in map.iter() {
            let name: &str = name.as_ref();
            for value in values {
                let value: &str = value.as_ref();
                // What came over the wire is a header; one that is none is left out.
                let _ = headers.append(name, value.as_bytes().to_vec());
            }
        }
    }
    Incoming {
        subject: message.subject.to_string(),
        reply: message.reply.map(|reply| reply.to_string()),
        headers,
        status: message.status.map_or(0, |status| status.as_u16()),
        payload: message.payload,
    }
}

#[async_trait]
impl Link for TcpLink {
    async fn publish(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), BusError> {
        let client = self.client("publish", subject)?;
        Self::check_size(&client, subject, headers, &payload)?;
        let headers = headers.map(outgoing).transpose()?;
        let subject = subject.to_owned();
        let text = subject.clone();
        let published = match (reply, headers) {
            (None, None) => client.publish(subject, payload).await,
            (None, Some(headers)) => client.publish_with_headers(subject, headers, payload).await,
            (Some(reply), None) => {
                client
                    .publish_with_reply(subject, reply.to_owned(), payload)
                    .await
            }
            (Some(reply), Some(headers)) => {
                client
                    .publish_with_reply_and_headers(subject, reply.to_owned(), headers, payload)
                    .await
            }
        };
        published.map_err(|error| {
            let kind = match error.kind() {
                PublishErrorKind::InvalidSubject => ErrorKind::BadToken,
                _ => ErrorKind::Closed,
            };
            BusError::new(kind, format!("publish {text:?}")).with(error)
        })
    }

    async fn request(
        &self,
        subject: &str,
        headers: Option<&HeaderMap>,
        payload: Bytes,
        limit: Duration,
    ) -> Result<Incoming, BusError> {
        let client = self.client("request", subject)?;
        Self::check_size(&client, subject, headers, &payload)?;
        let mut request = Request::new().payload(payload).timeout(Some(limit));
        if let Some(headers) = headers {
            request = request.headers(outgoing(headers)?);
        }
        self.answered(&client, subject, request, limit).await
    }

    async fn ask(&self, subject: &str, payload: Bytes, limit: Duration) -> Result<Incoming, BusError> {
        let client = self.client("request", subject)?;
        Self::check_size(&client, subject, None, &payload)?;
        // The official client's shared inbox stays when one of its askers goes; an inbox of its own does not.
        let request = Request::new()
            .payload(payload)
            .timeout(Some(limit))
            .inbox(client.new_inbox());
        self.answered(&client, subject, request, limit).await
    }

    async fn subscribe(&self, subject: &str, group: Option<&str>) -> Result<Box<dyn Feed>, BusError> {
        let client = self.client("subscribe", subject)?;
        let subscribed = match group {
            Some(group) => client.queue_subscribe(subject.to_owned(), group.to_owned()).await,
            None => client.subscribe(subject.to_owned()).await,
        };
        match subscribed {
            Ok(subscriber) => Ok(Box::new(TcpFeed(subscriber))),
            Err(error) => Err(BusError::new(ErrorKind::Closed, format!("subscribe {subject:?}")).with(error)),
        }
    }

    async fn settle(&self, limit: Duration) -> Result<(), BusError> {
        // The official client's flush only writes. The broker's word that nobody listens comes after what was sent before.
        match self.request(&self.new_inbox(), None, Bytes::new(), limit).await {
            Err(error) if *error.kind() == ErrorKind::NoResponders => Ok(()),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn flush(&self, limit: Duration) -> Result<(), BusError> {
        let client = self.client("flush", "")?;
        match tokio::time::timeout(limit, client.flush()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(closed("flush", "").with(error)),
            Err(_) => Err(timed_out("flush", "", limit)),
        }
    }

    fn new_inbox(&self) -> String {
        match self.client.read().as_ref() {
            Some(client) => client.new_inbox(),
            None => "_INBOX.closed".to_owned(),
        }
    }

    fn max_payload(&self) -> usize {
        self.client
            .read()
            .as_ref()
            .map_or(0, async_nats::Client::max_payload)
    }

    fn state(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    fn has_listener(&self, _subject: &str) -> Option<bool> {
        None
    }

    async fn close(&self) {
        let client = self.client.write().take();
        if let Some(client) = client {
            let mut state = self.shared.state.subscribe();
            let over = |state: &LinkState| matches!(state, LinkState::Closed | LinkState::Rejected);
            // A connected client says when it is closed; one that is not connected has nobody to tell.
            if matches!(*state.borrow(), LinkState::Connected(_)) && client.drain().await.is_ok() {
                drop(client);
                let _ = tokio::time::timeout(Duration::from_secs(2), state.wait_for(over)).await;
            }
        }
        self.shared.state.send_replace(LinkState::Closed);
    }
}

struct TcpFeed(async_nats::Subscriber);

#[async_trait]
impl Feed for TcpFeed {
    async fn next(&mut self) -> Option<Incoming> {
        self.0.next().await.map(incoming)
    }

    async fn finish(&mut self) {
        let _ = self.0.drain().await;
    }
}
