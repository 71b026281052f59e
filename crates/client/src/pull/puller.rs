//! The puller: requests out, messages and statuses in.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Message, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use super::error::{PullError, PullErrorKind};
use super::ledger::{Ledger, Silence};
use super::request::Request;
use super::status::{self, Over, Status};
use super::target::Target;
use crate::delivery::{Delivery, Dropped, OnDrop, Settler};
use crate::observe::{Fetching, Meters};

/// How long a request may stay without an answer beyond its own time.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait for the answer to a request that does not wait.
const NO_WAIT_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look whether the connection was made anew, which the client tells nobody but its owner.
const RECONNECT_LOOK: Duration = Duration::from_millis(250);

/// How a [`Puller`] treats what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// What becomes of deliveries that are dropped unsettled. The default hands them back at once.
    pub on_drop: OnDrop,
}

impl Options {
    /// Sets what becomes of deliveries that are dropped unsettled.
    #[must_use]
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.on_drop = on_drop;
        self
    }
}

/// What one request brought.
#[derive(Debug)]
pub struct Batch {
    /// The messages, in the order they came.
    pub deliveries: Vec<Delivery>,
    /// Why there are no more.
    pub end: End,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// It brought all it asked for.
    Full,
    /// Its time was up.
    TimedOut,
    /// Nothing more is there now; only for requests that do not wait.
    NoMessages,
    /// The next message does not fit into [`Request::max_bytes`].
    Bytes,
    /// It broke after some messages; the next call begins with the error.
    Interrupted,
}

/// What [`Puller::close`] did with the messages it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CloseReport {
    /// Messages that had not been handed out and were handed back to the server.
    pub returned: usize,
    /// Messages that could not be handed back; they come again after the ack wait.
    pub abandoned: usize,
    /// Deliveries in the hands of the application that are not settled.
    pub open: usize,
}

/// Pulls messages from one consumer.
pub struct Puller {
    client: Client,
    target: Arc<Target>,
    settler: Arc<Settler>,
    next_subject: async_nats::Subject,
    /// The inbox, up to and including its last dot.
    inbox: String,
    subscription: Subscriber,
    buffer: VecDeque<Delivery>,
    ledger: Ledger,
    token: u64,
    /// The request whose end the running fetch waits for, and that end.
    current: Option<u64>,
    current_end: Option<End>,
    /// An error to report before the next request.
    trouble: Option<PullError>,
    pin: Option<String>,
    /// How often the connection had been made when the requests under way were sent.
    connects: u64,
    /// What is measured, if anything is.
    meters: Option<Fetching>,
}

impl Puller {
    /// A puller for `target`, with a subscription to an inbox of its own. Asks nothing yet.
    ///
    /// # Errors
    /// [`PullErrorKind::Closed`] when the client's connection is closed for good.
    ///
    /// # Cancel safety
    /// Dropped before it returned, nothing stays behind.
    pub async fn new(client: Client, target: Target, options: Options) -> Result<Self, PullError> {
        let target = Arc::new(target);
        let (inbox, subscription) = subscribe(&client, &target).await?;
        Ok(Self {
            settler: Arc::new(Settler::new(client.clone(), options.on_drop)),
            next_subject: target.next_subject().into(),
            client,
            target,
            inbox,
            subscription,
            buffer: VecDeque::new(),
            ledger: Ledger::default(),
            token: 0,
            current: None,
            current_end: None,
            trouble: None,
            pin: None,
            connects: 0,
            meters: None,
        })
    }

    /// Measures requests from now on.
    pub(crate) fn measure(&mut self, meters: Option<&Arc<Meters>>) {
        self.meters = meters.map(|meters| Fetching::new(Arc::clone(meters)));
    }

    /// Requests sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.token
    }

    /// The consumer this pulls from.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Messages that have arrived and were not handed out.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Deliveries, handed out or not, that are neither settled nor dropped.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.settler.open()
    }

    /// What became of deliveries that were dropped unsettled.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.settler.dropped()
    }

    /// The pin that the consumer gave this puller, if it has one.
    #[must_use]
    pub fn pin(&self) -> Option<&str> {
        self.pin.as_deref()
    }

    /// Forgets the pin: the next request stands in line like any other.
    pub fn forget_pin(&mut self) {
        self.pin = None;
    }

    /// Makes one request and returns when it is over, with what it brought.
    ///
    /// What an earlier, dropped call left behind counts: messages that had arrived come first, and what is still under
    /// way is not asked for again.
    ///
    /// # Errors
    /// With a [`PullError`], no message is in hand. When a request breaks after some messages these are returned, with
    /// [`End::Interrupted`], and the error comes with the next call.
    ///
    /// # Cancel safety
    /// Nothing is lost. Messages that had arrived are returned by the next call.
    pub async fn fetch(&mut self, request: &Request) -> Result<Batch, PullError> {
        self.check(request)?;
        let fetched = self.fetch_batch(request).await;
        if let Some(meters) = &mut self.meters {
            meters.finish();
        }
        fetched
    }

    async fn fetch_batch(&mut self, request: &Request) -> Result<Batch, PullError> {
        self.current = None;
        self.current_end = None;
        self.absorb();
        if self.buffer.is_empty()
            && let Some(trouble) = self.trouble.take()
        {
            return Err(trouble);
        }
        let under_way = self.buffer.len() + self.ledger.owed();
        if under_way < request.batch {
            self.send(request, request.batch - under_way).await?;
            self.current = Some(self.token);
        }
        let patience = if request.no_wait {
            Duration::ZERO
        } else {
            request.expires
        };
        let own_end = Instant::now() + patience;
        loop {
            self.absorb();
            if self.buffer.len() >= request.batch {
                return Ok(self.take(request.batch, End::Full));
            }
            if let Some(end) = self.current_end {
                return self.ended(request.batch, end);
            }
            if let Some(trouble) = self.look(Instant::now()) {
                if request.no_wait && trouble.kind() == PullErrorKind::NoAnswer {
                    return self.linger(request.batch).await;
                }
                self.trouble = Some(trouble);
                return self.ended(request.batch, End::Interrupted);
            }
            if self.current.is_none() && (self.ledger.owed() == 0 || Instant::now() >= own_end) {
                let end = if request.no_wait {
                    End::NoMessages
                } else {
                    End::TimedOut
                };
                return Ok(self.take(request.batch, end));
            }
            let until = self.current.is_none().then_some(own_end);
            if !self.receive(until).await {
                self.trouble = Some(self.error(PullErrorKind::Closed));
                return self.ended(request.batch, End::Interrupted);
            }
        }
    }

    /// The next message. Keeps requests under way so that at most [`Request::batch`] messages are asked for and not
    /// yet handed out, and asks anew when half of them are used up or a request's time is up.
    ///
    /// Waits until a message is there; put a timeout around it to wait less.
    ///
    /// # Errors
    /// When a request broke and no message is left to hand out. [`PullError::is_retryable`] says whether to call again,
    /// after a pause. A request with [`Request::no_wait`] is refused.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self, request: &Request) -> Result<Delivery, PullError> {
        self.check(request)?;
        if request.no_wait {
            return Err(self.invalid("next() waits; use fetch() with no_wait()"));
        }
        self.current = None;
        loop {
            self.absorb();
            if let Some(delivery) = self.buffer.pop_front() {
                // The refill goes out before the message is handled. When it cannot, the message goes first.
                if let Err(error) = self.refill(request).await {
                    self.trouble = Some(error);
                }
                return Ok(delivery);
            }
            if let Some(trouble) = self.trouble.take() {
                return Err(trouble);
            }
            self.refill(request).await?;
            if let Some(trouble) = self.look(Instant::now()) {
                return Err(trouble);
            }
            if !self.receive(None).await {
                return Err(self.error(PullErrorKind::Closed));
            }
        }
    }

    /// The next message, as [`Puller::next`], for a caller that says with each call how much room it has: at most
    /// [`Request::batch`] messages are asked for and not yet handed out, this one included. Once the room is used up, nothing
    /// is under way.
    ///
    /// # Errors
    /// As [`Puller::next`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next_within(&mut self, request: &Request) -> Result<Delivery, PullError> {
        self.check(request)?;
        if request.no_wait {
            return Err(self.invalid("next_within() waits; use fetch() with no_wait()"));
        }
        self.current = None;
        loop {
            self.absorb();
            let refilled = match self.trouble.take() {
                Some(trouble) => Err(trouble),
                None => self.refill(request).await,
            };
            if let Some(delivery) = self.buffer.pop_front() {
                // What has arrived goes first.
                self.trouble = refilled.err();
                return Ok(delivery);
            }
            refilled?;
            if let Some(trouble) = self.look(Instant::now()) {
                return Err(trouble);
            }
            if !self.receive(None).await {
                return Err(self.error(PullErrorKind::Closed));
            }
        }
    }

    /// The next message of the requests that are under way, without asking for more; `None` once nothing is under way.
    ///
    /// With it a flow of [`Puller::next`] ends in order: every message that the server has sent, or still sends for a
    /// request, is handed out, and none is handed back.
    ///
    /// # Errors
    /// When a request broke; call again for what is left of the others.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn rest(&mut self) -> Result<Option<Delivery>, PullError> {
        self.current = None;
        loop {
            self.absorb();
            if let Some(delivery) = self.buffer.pop_front() {
                return Ok(Some(delivery));
            }
            if let Some(trouble) = self.trouble.take().or_else(|| self.look(Instant::now())) {
                return Err(trouble);
            }
            if self.ledger.owed() == 0 {
                return Ok(None);
            }
            if !self.receive(None).await {
                return Err(self.error(PullErrorKind::Closed));
            }
        }
    }

    /// Stops pulling and hands back what was not handed out, so that other workers have it at once.
    ///
    /// The server is told that nobody listens any more, and what it had sent until then is received and handed back.
    /// Deliveries in the hands of the application are not touched.
    ///
    /// # Cancel safety
    /// Dropped early, the rest is handed back as far as that is possible without waiting.
    pub async fn close(mut self, wait: Duration) -> CloseReport {
        let deadline = Instant::now() + wait;
        let mut report = CloseReport::default();
        let drained = self.client.connection_state() == State::Connected
            && timeout_at(deadline, self.subscription.drain())
                .await
                .is_ok_and(|drain| drain.is_ok());
        loop {
            self.absorb();
            while let Some(delivery) = self.buffer.pop_front() {
                let back = async {
                    match self.settler.on_drop() {
                        OnDrop::Return | OnDrop::Settled => delivery.nak().await,
                        OnDrop::ReturnAfter(delay) => delivery.nak_after(delay).await,
                        OnDrop::Leave => Ok(()),
                    }
                };
                if self.settler.on_drop() == OnDrop::Settled {
                    continue;
                }
                match timeout_at(deadline, back).await {
                    Ok(Ok(())) if self.settler.on_drop() != OnDrop::Leave => report.returned += 1,
                    _ => report.abandoned += 1,
                }
            }
            if !drained {
                break;
            }
            match timeout_at(deadline, self.subscription.next()).await {
                Ok(Some(message)) => self.accept(message),
                Ok(None) | Err(_) => break,
            }
        }
        // The hand-backs are on their way when this returns, not still in the client's buffer.
        let _ = timeout_at(deadline, self.client.flush()).await;
        report.open = self.settler.open();
        report
    }

    fn check(&self, request: &Request) -> Result<(), PullError> {
        request.fault().map_or(Ok(()), |fault| Err(self.invalid(&fault)))
    }

    /// Asks for more when half of the batch is used up.
    async fn refill(&mut self, request: &Request) -> Result<(), PullError> {
        let under_way = self.buffer.len() + self.ledger.owed();
        if under_way <= request.batch / 2 {
            self.send(request, request.batch - under_way).await?;
        }
        Ok(())
    }

    async fn send(&mut self, request: &Request, batch: usize) -> Result<(), PullError> {
        if let Some(trouble) = self.reconnected() {
            return Err(trouble);
        }
        if self.client.connection_state() != State::Connected {
            return Err(self.error(PullErrorKind::Disconnected));
        }
        let body = request
            .encode(batch, self.pin.as_deref())
            .map_err(|error| self.invalid(&error.to_string()))?;
        let token = self.token + 1;
        let connects = self.connects_now();
        let reply = format!("{}{token}", self.inbox);
        self.client
            .publish_with_reply(self.next_subject.clone(), reply, body.into())
            .await
            .map_err(|error| PullError::new(PullErrorKind::Closed, &self.target, Some(error.to_string())))?;
        // No await from here: a request that was sent is in the ledger.
        self.token = token;
        self.connects = connects;
        if let Some(meters) = &mut self.meters {
            meters.request();
        }
        let patience = if request.no_wait {
            NO_WAIT_PATIENCE
        } else {
            request.expires + GRACE
        };
        self.ledger.open(
            token,
            batch,
            Instant::now(),
            patience,
            request.effective_heartbeat(),
        );
        Ok(())
    }

    /// Takes in whatever has arrived, without waiting.
    fn absorb(&mut self) {
        // At most what one budget of the runtime gives: the caller's loop comes back.
        while let Some(Some(message)) = self.subscription.next().now_or_never() {
            self.accept(message);
        }
    }

    /// Waits for something to arrive or for the time to look again. `false` when the subscription has ended.
    async fn receive(&mut self, until: Option<Instant>) -> bool {
        let mut wake = Instant::now() + RECONNECT_LOOK;
        for time in [until, self.ledger.next_look()].into_iter().flatten() {
            wake = wake.min(time);
        }
        let begun = self.meters.as_ref().map(|_| Instant::now());
        let received = timeout_at(wake, self.subscription.next()).await;
        if let (Some(meters), Some(begun)) = (&mut self.meters, begun) {
            meters.waited(begun.elapsed());
        }
        match received {
            Ok(Some(message)) => self.accept(message),
            Ok(None) => return false,
            Err(_) => {}
        }
        true
    }

    fn accept(&mut self, message: Message) {
        let now = Instant::now();
        let Some(token) = message.subject.strip_prefix(self.inbox.as_str()) else {
            self.ledger.message(now);
            if let Some(meters) = &mut self.meters {
                meters.message();
            }
            let delivery = Delivery::new(message, Arc::clone(&self.settler));
            if let Some(pin) = delivery.pin_id()
                && self.pin.as_deref() != Some(pin)
            {
                self.pin = Some(pin.to_owned());
            }
            self.buffer.push_back(delivery);
            return;
        };
        let Ok(token) = token.parse::<u64>() else {
            return;
        };
        let status = status::read(&message);
        if status == Status::Heartbeat {
            self.ledger.heard(now);
            return;
        }
        if !self
            .ledger
            .end(token, status::still_wanted(message.headers.as_ref()), now)
        {
            return;
        }
        let current = self.current == Some(token);
        let end = match status {
            Status::Heartbeat => return,
            Status::Over(Over::Time) => End::TimedOut,
            Status::Over(Over::Nothing) => End::NoMessages,
            Status::Over(Over::Bytes | Over::Filled) => End::Bytes,
            Status::Failed(kind) => {
                if kind == PullErrorKind::PinLost {
                    self.pin = None;
                }
                // In a fetch, only its own request counts; in a flow, each.
                if current || self.current.is_none() {
                    self.trouble = Some(PullError::new(kind, &self.target, message.description));
                }
                End::Interrupted
            }
        };
        if current {
            self.current_end = Some(end);
        }
    }

    /// Looks for silence and for a connection made anew.
    fn look(&mut self, now: Instant) -> Option<PullError> {
        if let Some(trouble) = self.reconnected() {
            return Some(trouble);
        }
        let kind = match self.ledger.silence(now)? {
            Silence::Heartbeat => {
                if let Some(meters) = &self.meters {
                    meters.heartbeat_missed();
                }
                PullErrorKind::HeartbeatMissed
            }
            Silence::Deadline => PullErrorKind::NoAnswer,
        };
        Some(self.error(kind))
    }

    /// A server forgets the requests of a connection that is gone.
    fn reconnected(&mut self) -> Option<PullError> {
        if self.ledger.owed() == 0 || self.connects_now() == self.connects {
            return None;
        }
        self.ledger.clear();
        Some(self.error(PullErrorKind::Disconnected))
    }

    fn connects_now(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    fn ended(&mut self, batch: usize, end: End) -> Result<Batch, PullError> {
        if self.buffer.is_empty()
            && let Some(trouble) = self.trouble.take()
        {
            return Err(trouble);
        }
        Ok(self.take(batch, end))
    }

    fn take(&mut self, batch: usize, end: End) -> Batch {
        let deliveries = self.buffer.drain(..batch.min(self.buffer.len())).collect();
        Batch { deliveries, end }
    }

    /// A request that does not wait stays at the server all the same while the consumer has its fill of unacknowledged
    /// messages, and has no time to end at. A new inbox makes the server forget it.
    async fn linger(&mut self, batch: usize) -> Result<Batch, PullError> {
        let (inbox, subscription) = subscribe(&self.client, &self.target).await?;
        self.absorb();
        self.inbox = inbox;
        self.subscription = subscription;
        Ok(self.take(batch, End::NoMessages))
    }

    fn error(&self, kind: PullErrorKind) -> PullError {
        PullError::new(kind, &self.target, None)
    }

    fn invalid(&self, fault: &str) -> PullError {
        PullError::new(
            PullErrorKind::InvalidRequest,
            &self.target,
            Some(fault.to_owned()),
        )
    }
}

impl fmt::Debug for Puller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Puller")
            .field("target", &self.target)
            .field("buffered", &self.buffer.len())
            .field("owed", &self.ledger.owed())
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}

impl Drop for Puller {
    fn drop(&mut self) {
        // What has arrived becomes deliveries, and these hand themselves back when the buffer goes.
        self.absorb();
    }
}

async fn subscribe(client: &Client, target: &Arc<Target>) -> Result<(String, Subscriber), PullError> {
    let inbox = client.new_inbox();
    let subscription = client
        .subscribe(format!("{inbox}.*"))
        .await
        .map_err(|error| PullError::new(PullErrorKind::Closed, target, Some(error.to_string())))?;
    Ok((format!("{inbox}."), subscription))
}
