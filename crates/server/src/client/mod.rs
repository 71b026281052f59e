//! The in-process client: publish, subscribe and request without a socket and without encoding.
//!
//! A [`Client`] is a connection like any other to the rest of the server: it belongs to an account, has permissions, is
//! shown by monitoring and is closed with the server. What it publishes is routed before the call returns; what it
//! receives waits in a bounded mailbox per subscription. Payloads are [`Bytes`] and are not copied on
//! their way between in-process clients.
//!
//! Order: messages of one client to one subscription arrive in the order in which they were published.

mod error;
mod mailbox;
mod message;
mod requests;
mod subscription;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use windjet_protocol::header::HeaderMap;
use windjet_protocol::subject;
use windjet_protocol::wire::Connect;

pub use error::{ConnectError, PublishError, RequestError, SubscribeError};
pub use message::Message;
pub use subscription::Subscription;

pub(crate) use mailbox::Mailbox;

use crate::auth::{Attempt, Credentials, Identity};
use crate::connection::{Carrier, CloseReason, Connection, NewConnection, Profile, Published, Publisher};
use crate::options::ConnectionType;
use crate::router::{self, Service, Sink, Turn};
use crate::server::{Bound, Server, Shared};
use crate::trace;
use requests::Requests;

/// Pause for one crowded receiver, and the most for one message: the numbers that connections over a socket have too.
const STALL_STEP: Duration = Duration::from_millis(2);
const STALL_MAX: Duration = Duration::from_millis(10);
/// Time for an answer unless the caller chooses another one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A client inside the server's process. Cheap to clone; clones share one connection, which closes with the last of them.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connection: Arc<Connection>,
    publisher: Mutex<Publisher>,
    requests: Mutex<Option<Arc<Requests>>>,
    next_sid: AtomicU64,
    max_payload: i64,
    max_subscriptions: Option<u64>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.connection.close(CloseReason::ClientClosed);
    }
}

impl Server {
    /// A client of the global account that may do everything. It counts as one connection of the server.
    ///
    /// On a server that is stopping the client is born closed: every call answers so.
    #[must_use]
    pub fn client(&self) -> Client {
        let global = self.shared().accounts.global();
        Client::bind(self.shared(), Profile::trusted(global), None)
            .unwrap_or_else(|_| unlimited(self.shared()))
    }

    /// A client of the named account that may do everything there.
    ///
    /// # Errors
    ///
    /// When there is no such account, it is full, or the server is stopping.
    pub fn client_of(&self, account: &str) -> Result<Client, ConnectError> {
        let account = self
            .shared()
            .accounts
            .get(account)
            .ok_or_else(|| ConnectError::NoSuchAccount(account.to_owned()))?;
        Client::bind(self.shared(), Profile::trusted(account), None)
    }

    /// A client that authenticates like one over a socket, with the account and permissions of the user it names.
    ///
    /// # Errors
    ///
    /// When the credentials are refused, the account is full, or the server is stopping.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, no client is made.
    pub async fn connect(&self, connect: Connect) -> Result<Client, ConnectError> {
        let shared = self.shared().clone();
        if !shared.auth_required(ConnectionType::InProcess) {
            let profile = Profile::of(shared.accounts.global(), None, &connect);
            return Client::bind(&shared, profile, None);
        }
        let identity = {
            let authenticator = shared.authenticator();
            let credentials = Credentials::from(&connect);
            let check = move || {
                authenticator.authenticate(&Attempt {
                    credentials: &credentials,
                    nonce: None,
                    connection_type: ConnectionType::InProcess,
                    remote: None,
                    certificate: None,
                    now: SystemTime::now(),
                })
            };
            // A password hash takes long by design.
            tokio::task::spawn_blocking(check)
                .await
                .ok()
                .and_then(Result::ok)
                .ok_or(ConnectError::Unauthorized)?
        };
        let account = shared
            .account_of(Some(&identity))
            .ok_or_else(|| ConnectError::NoSuchAccount(identity.account.to_string()))?;
        let limits = Some(&identity).map(|identity| (identity.max_payload, identity.max_subscriptions));
        let profile = Profile::of(account, Some(identity.clone()), &connect);
        Client::bind(&shared, profile, limits)
    }
}

/// Limits of an identity: payload and subscriptions.
type IdentityLimits = (Option<u64>, Option<u64>);

fn unlimited(shared: &Arc<Shared>) -> Client {
    let profile = Profile::trusted(shared.accounts.global());
    Client::make(shared, profile, None)
}

impl Client {
    fn bind(
        shared: &Arc<Shared>,
        profile: Profile,
        limits: Option<IdentityLimits>,
    ) -> Result<Self, ConnectError> {
        if shared.stop.is_cancelled() {
            return Err(ConnectError::Stopping);
        }
        if !profile.account.has_room() {
            return Err(ConnectError::TooManyConnections);
        }
        Ok(Self::make(shared, profile, limits))
    }

    fn make(shared: &Arc<Shared>, profile: Profile, limits: Option<IdentityLimits>) -> Self {
        let connection = Arc::new(Connection::new(NewConnection {
            id: shared.registry.next_id(),
            kind: ConnectionType::InProcess,
            server: shared.clone(),
            remote: None,
            shown_ip: String::new(),
            carrier: Carrier::None,
            tls: None,
        }));
        connection.negotiate(true, true);
        let account = profile.account.clone();
        let publisher = Publisher::new(
            account.clone(),
            profile.permissions.clone(),
            shared.is_system(&account),
        );
        let account_limits = account.limits();
        let (own_payload, own_subscriptions) = limits.unwrap_or_default();
        let server_limits = shared.limits();
        let max_payload = server_limits.payload_of(own_payload, account_limits.max_payload);
        let max_subscriptions =
            server_limits.subscriptions_of(own_subscriptions, account_limits.max_subscriptions);
        shared.admit(&connection);
        if shared.bind(&connection, profile) != Bound::Done {
            connection.close(CloseReason::MaxAccountConnectionsExceeded);
        }
        shared.client_connected(&connection);
        shared.tasks.spawn(connection.clone().keep());
        Self {
            inner: Arc::new(Inner {
                connection,
                publisher: Mutex::new(publisher),
                requests: Mutex::new(None),
                next_sid: AtomicU64::new(0),
                max_payload,
                max_subscriptions,
            }),
        }
    }

    /// Publishes a message. When this returns, it stands in the buffers of all its receivers.
    ///
    /// The future waits, at most a few milliseconds, when receivers are nearly full.
    ///
    /// # Errors
    ///
    /// When the subject is invalid or not permitted, the message too large, or the client closed. Nothing was delivered then.
    ///
    /// # Cancel safety
    ///
    /// The message is published when the future is first polled; dropping it later only ends the wait.
    pub async fn publish(
        &self,
        subject: impl AsRef<[u8]>,
        payload: impl Into<Bytes>,
    ) -> Result<(), PublishError> {
        self.send(subject.as_ref(), None, None, &payload.into())
            .await
            .map(drop)
    }

    /// Publishes a message that asks for replies to `reply`. Otherwise like [`Client::publish`].
    ///
    /// # Errors
    ///
    /// As [`Client::publish`]; also when `reply` is reserved for the server.
    ///
    /// # Cancel safety
    ///
    /// As [`Client::publish`].
    pub async fn publish_with_reply(
        &self,
        subject: impl AsRef<[u8]>,
        reply: impl AsRef<[u8]>,
        payload: impl Into<Bytes>,
    ) -> Result<(), PublishError> {
        self.send(subject.as_ref(), Some(reply.as_ref()), None, &payload.into())
            .await
            .map(drop)
    }

    /// Publishes a message with headers. Otherwise like [`Client::publish`].
    ///
    /// # Errors
    ///
    /// As [`Client::publish`].
    ///
    /// # Cancel safety
    ///
    /// As [`Client::publish`].
    pub async fn publish_with_headers(
        &self,
        subject: impl AsRef<[u8]>,
        headers: &HeaderMap,
        payload: impl Into<Bytes>,
    ) -> Result<(), PublishError> {
        self.send(subject.as_ref(), None, Some(headers), &payload.into())
            .await
            .map(drop)
    }

    /// Publishes a request and waits for one answer, at most 10 s.
    ///
    /// # Errors
    ///
    /// When nobody serves the subject (at once), no answer came in time, or the request could not be published.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, the request stays published and its answer is thrown away; nothing is left behind.
    pub async fn request(
        &self,
        subject: impl AsRef<[u8]>,
        payload: impl Into<Bytes>,
    ) -> Result<Message, RequestError> {
        self.request_within(subject, None, payload, REQUEST_TIMEOUT).await
    }

    /// Publishes a request, optionally with headers, and waits for one answer at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`Client::request`].
    ///
    /// # Cancel safety
    ///
    /// As [`Client::request`].
    pub async fn request_within(
        &self,
        subject: impl AsRef<[u8]>,
        headers: Option<&HeaderMap>,
        payload: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Message, RequestError> {
        let subject = subject.as_ref();
        let nobody = || RequestError::NoResponders(text(subject));
        let mut waiting = self.requests()?.open();
        let reply = waiting.reply.clone();
        let answered = tokio::time::timeout(limit, async {
            if self
                .send(subject, Some(reply.as_bytes()), headers, &payload.into())
                .await?
                == 0
            {
                return Err(nobody());
            }
            waiting
                .answer()
                .await
                .ok_or(RequestError::Publish(PublishError::Closed))
        });
        let answer = answered.await.unwrap_or(Err(RequestError::TimedOut(limit)))?;
        if answer.payload.is_empty() && answer.header_block.starts_with(b"NATS/1.0 503") {
            return Err(nobody());
        }
        Ok(answer)
    }

    /// Subscribes to a subject, wildcards allowed.
    ///
    /// # Errors
    ///
    /// When the subject is invalid or not permitted, or the client has as many subscriptions as it may have.
    ///
    /// # Cancel safety
    ///
    /// Completes when first polled.
    #[expect(clippy::unused_async, reason = "the same signature as a client over a socket")]
    pub async fn subscribe(&self, subject: impl AsRef<[u8]>) -> Result<Subscription, SubscribeError> {
        self.open(
            subject.as_ref(),
            None,
            mailbox::CAPACITY_MSGS,
            mailbox::CAPACITY_BYTES,
        )
    }

    /// Subscribes as a member of a queue group: each message goes to one member.
    ///
    /// # Errors
    ///
    /// As [`Client::subscribe`].
    ///
    /// # Cancel safety
    ///
    /// Completes when first polled.
    #[expect(clippy::unused_async, reason = "the same signature as a client over a socket")]
    pub async fn queue_subscribe(
        &self,
        subject: impl AsRef<[u8]>,
        queue: impl AsRef<[u8]>,
    ) -> Result<Subscription, SubscribeError> {
        let (subject, queue) = (subject.as_ref(), queue.as_ref());
        self.open(
            subject,
            Some(queue),
            mailbox::CAPACITY_MSGS,
            mailbox::CAPACITY_BYTES,
        )
    }

    /// Subscribes with a mailbox of its own size: at most `messages` and `bytes` wait; what comes on top is dropped and
    /// counted by [`Subscription::dropped`]. Default for the other calls: 65,536 messages, 64 MiB.
    ///
    /// # Errors
    ///
    /// As [`Client::subscribe`].
    ///
    /// # Cancel safety
    ///
    /// Completes when first polled.
    #[expect(clippy::unused_async, reason = "the same signature as a client over a socket")]
    pub async fn subscribe_bounded(
        &self,
        subject: impl AsRef<[u8]>,
        queue: Option<&[u8]>,
        messages: usize,
        bytes: usize,
    ) -> Result<Subscription, SubscribeError> {
        self.open(subject.as_ref(), queue, messages, bytes)
    }

    /// Waits until everything published so far is routed, which it is: publishing routes before it returns.
    ///
    /// # Errors
    ///
    /// When the client is closed.
    #[expect(clippy::unused_async, reason = "the same signature as a client over a socket")]
    pub async fn flush(&self) -> Result<(), PublishError> {
        if self.is_closed() {
            Err(PublishError::Closed)
        } else {
            Ok(())
        }
    }

    /// Ends all subscriptions, which may still be read to their end, and closes the client.
    ///
    /// # Cancel safety
    ///
    /// Completes when first polled.
    #[expect(clippy::unused_async, reason = "the same signature as a client over a socket")]
    pub async fn drain(&self) {
        self.inner.connection.forget_all();
        self.inner.connection.close(CloseReason::ClientClosed);
    }

    /// Whether anybody is subscribed to a subject at this moment, in this client's account.
    #[must_use]
    pub fn has_listener(&self, subject: impl AsRef<[u8]>) -> bool {
        let publisher = self.inner.publisher.lock();
        let (_, matches) = publisher.account.matches(subject.as_ref());
        !matches.is_empty()
    }

    /// Whether the client can be used no more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.connection.closing.reason().is_some()
    }

    /// A subject that nobody else uses, for replies.
    #[must_use]
    pub fn new_inbox(&self) -> String {
        format!("_INBOX.{}", unique_id())
    }

    async fn send(
        &self,
        subject: &[u8],
        reply: Option<&[u8]>,
        headers: Option<&HeaderMap>,
        payload: &Bytes,
    ) -> Result<usize, PublishError> {
        let (taken, crowded) = self.route(subject, reply, headers, payload)?;
        if crowded > 0 {
            tokio::time::sleep(STALL_STEP.saturating_mul(crowded).min(STALL_MAX)).await;
        }
        Ok(taken)
    }

    /// Routes one message: how many took it, and how many of them were crowded.
    fn route(
        &self,
        subject: &[u8],
        reply: Option<&[u8]>,
        headers: Option<&HeaderMap>,
        payload: &Bytes,
    ) -> Result<(usize, u32), PublishError> {
        let inner = &*self.inner;
        if self.is_closed() {
            return Err(PublishError::Closed);
        }
        if !subject::is_literal(subject) {
            return Err(PublishError::InvalidSubject(text(subject)));
        }
        if let Some(reply) = reply
            && !subject::is_valid_publish(reply)
        {
            return Err(PublishError::InvalidSubject(text(reply)));
        }
        let block = headers.map(HeaderMap::to_bytes).unwrap_or_default();
        let size = block.len() + payload.len();
        if let Ok(limit) = usize::try_from(inner.max_payload)
            && size > limit
        {
            return Err(PublishError::TooLarge { size, limit });
        }
        let connection = &inner.connection;
        let message = router::Message::with_shared(subject, reply, &block, payload);
        let mut turn = Turn::new(&connection.server, Some(connection));
        let published = {
            let mut publisher = inner.publisher.lock();
            let published = publisher.publish(connection, &message, &mut turn, |_| {});
            publisher.account.received.add(1, size as u64);
            publisher.account.sent.add(turn.out_msgs, turn.out_bytes);
            published
        };
        connection.received.add(1, size as u64);
        connection.server.stats.received(1, size as u64);
        let crowded = turn.crowded;
        trace::finish(&mut turn);
        turn.finish();
        match published {
            Published::Delivered(taken) => Ok((taken, crowded)),
            Published::UntakenAs(_) | Published::Withheld => Ok((0, crowded)),
            Published::Denied => Err(PublishError::Denied(text(subject))),
            Published::DeniedAs(subject) => Err(PublishError::Denied(text(&subject))),
            Published::ReplyDenied => Err(PublishError::ReplyDenied(text(reply.unwrap_or_default()))),
        }
    }

    fn open(
        &self,
        pattern: &[u8],
        queue: Option<&[u8]>,
        messages: usize,
        bytes: usize,
    ) -> Result<Subscription, SubscribeError> {
        let connection = self.inner.connection.clone();
        let mailbox = Arc::new(Mailbox::new(connection.clone(), messages, bytes));
        let entry = self.attach(pattern, queue, Sink::Mailbox(mailbox.clone()))?;
        Ok(Subscription {
            connection,
            entry,
            mailbox,
        })
    }

    fn attach(
        &self,
        pattern: &[u8],
        queue: Option<&[u8]>,
        sink: Sink,
    ) -> Result<Arc<router::Subscription>, SubscribeError> {
        let inner = &*self.inner;
        let invalid_queue =
            queue.is_some_and(|queue| queue.is_empty() || queue.iter().any(u8::is_ascii_whitespace));
        let too_deep = subject::token_count(pattern) > router::TOKENS_MAX;
        if !subject::is_valid_subscription(pattern) || invalid_queue || too_deep {
            return Err(SubscribeError::InvalidSubject(text(pattern)));
        }
        let connection = &inner.connection;
        let profile = connection.profile().ok_or(SubscribeError::Closed)?;
        if profile
            .permissions
            .as_ref()
            .is_some_and(|permissions| !permissions.can_subscribe(pattern, queue))
        {
            return Err(SubscribeError::Denied(text(pattern)));
        }
        let deny = profile
            .permissions
            .as_ref()
            .and_then(|permissions| permissions.deny_filter_for(pattern, queue));
        let sid = Bytes::from((inner.next_sid.fetch_add(1, Ordering::Relaxed) + 1).to_string());
        let entry = Arc::new(
            router::Subscription::new(
                Bytes::copy_from_slice(pattern),
                queue.map(Bytes::copy_from_slice),
                sid.clone(),
                connection.id,
                &profile.account,
                sink,
            )
            .with_deny(deny),
        );
        {
            let mut subscriptions = connection.subscriptions.lock();
            if inner
                .max_subscriptions
                .is_some_and(|max| subscriptions.len() as u64 >= max)
            {
                return Err(SubscribeError::TooMany);
            }
            subscriptions.insert(sid, entry.clone());
        }
        profile.account.subscribe(entry.clone());
        // Asked last: a close that began meanwhile has swept the subscriptions before or sees this one.
        if self.is_closed() {
            connection.forget(&entry);
            return Err(SubscribeError::Closed);
        }
        Ok(entry)
    }

    fn requests(&self) -> Result<Arc<Requests>, SubscribeError> {
        let mut slot = self.inner.requests.lock();
        if let Some(requests) = &*slot {
            return Ok(requests.clone());
        }
        let requests = Arc::new(Requests::new(self.new_inbox()));
        let sink: Arc<dyn Service> = requests.clone();
        self.attach(&requests.pattern(), None, Sink::Service(sink))?;
        *slot = Some(requests.clone());
        Ok(requests)
    }
}

impl Profile {
    /// The profile of a client that may do everything.
    fn trusted(account: Arc<crate::account::Account>) -> Self {
        Self::of(account, None, &Connect::default())
    }

    /// The profile of a client with what it told of itself.
    pub(crate) fn of(
        account: Arc<crate::account::Account>,
        identity: Option<Identity>,
        connect: &Connect,
    ) -> Self {
        Self {
            account,
            permissions: identity
                .as_ref()
                .and_then(|identity| identity.permissions.clone()),
            identity,
            name: connect.name.clone(),
            lang: connect.lang.clone(),
            version: connect.version.clone(),
        }
    }
}

/// 22 random characters.
fn unique_id() -> String {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    (0..22)
        .map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]))
        .collect()
}

/// Bytes for an error text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
