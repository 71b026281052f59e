//! Pull requests: which are taken, how they wait, and how they end.

use windjet_protocol::header;
use windjet_protocol::jetstream::level::{REQUIRED_API_LEVEL, check_required_level};
use windjet_protocol::jetstream::{PriorityPolicy, PullRequest, Status};

use super::waiting::{NEVER, Request, RequestId};
use super::{Consumer, Now, Port, Pull};
use crate::jetstream::mailbox;

/// Waiting requests up to which a full queue is swept for every request, and time between sweeps beyond it.
const SWEEP_AT_ONCE: usize = 1024;
const SWEEP_EVERY: u64 = 1_000_000_000;

/// Sends a status.
pub(super) fn send(port: &mut dyn Port, to: &[u8], status: &Status) {
    port.status(to, None, &status.block());
}

impl Consumer {
    /// A request for messages.
    pub(crate) fn pull(&mut self, port: &mut dyn Port, pull: Pull<'_>, now: Now) {
        let read = self.read(&pull);
        self.take_request(port, pull.reply, pull.holder, read, now);
    }

    /// A request that needs no reading.
    pub(crate) fn pull_by(
        &mut self,
        port: &mut dyn Port,
        reply: &[u8],
        holder: u64,
        request: PullRequest,
        now: Now,
    ) {
        self.take_request(port, reply, holder, Ok(request), now);
    }

    fn read(&self, pull: &Pull<'_>) -> Result<PullRequest, Refusal> {
        if self.config.is_push() {
            return Err(Status::PushBased.into());
        }
        if let Some(level) = header::block::find(pull.headers, REQUIRED_API_LEVEL) {
            let fits = std::str::from_utf8(level).is_ok_and(|level| check_required_level(level).is_ok());
            if !fits {
                return Err(Status::RequiredApiLevel.into());
            }
        }
        Ok(PullRequest::parse(pull.payload)?)
    }

    fn take_request(
        &mut self,
        port: &mut dyn Port,
        reply: &[u8],
        holder: u64,
        request: Result<PullRequest, Refusal>,
        now: Now,
    ) {
        let admitted = request.and_then(|request| self.admit(port, reply, holder, &request, now));
        match admitted {
            Ok(()) => {}
            Err(Refusal::Status(status)) => send(port, reply, &status),
            Err(Refusal::Silent) => {}
        }
    }

    fn admit(
        &mut self,
        port: &mut dyn Port,
        reply: &[u8],
        holder: u64,
        request: &PullRequest,
        now: Now,
    ) -> Result<(), Refusal> {
        if self.config.is_push() {
            return Err(Status::PushBased.into());
        }
        self.check_bounds(request)?;
        self.check_priority(request, now)?;
        let max = usize::try_from(self.config.max_waiting).unwrap_or(usize::MAX);
        if self.waiting.len() >= max
            && (self.waiting.len() <= SWEEP_AT_ONCE || now.mono.saturating_sub(self.swept) >= SWEEP_EVERY)
        {
            self.sweep(port, now);
        }
        if request.no_wait {
            // The timers of this moment come after its requests.
            self.expire_waits(port, now);
            self.check_no_wait(request, now)?;
        }
        if self.waiting.len() >= max {
            return Err(if request.idle_heartbeat.is_positive() {
                Refusal::Silent
            } else {
                Status::MaxWaiting.into()
            });
        }
        self.used(now);
        let by_urgency = self.config.priority_policy == PriorityPolicy::Prioritized;
        let waiting = Request::new(request, reply, holder, by_urgency, now.mono);
        let id = self.waiting.add(waiting);
        if request.expires.is_negative() {
            self.end(port, id, &Status::RequestTimeout, true);
        }
        Ok(())
    }

    fn check_bounds(&self, request: &PullRequest) -> Result<(), Status> {
        let config = &self.config;
        let heartbeat = request.idle_heartbeat.0;
        if heartbeat > 0 && heartbeat.saturating_mul(2) > request.expires.0 {
            return Err(Status::HEARTBEAT_TOO_LARGE);
        }
        if config.max_batch > 0 && request.batch > config.max_batch {
            return Err(Status::MaxRequestBatch(config.max_batch));
        }
        if config.max_expires.is_positive() && request.expires > config.max_expires {
            return Err(Status::MaxRequestExpires(config.max_expires));
        }
        if config.max_bytes > 0 && request.max_bytes > config.max_bytes {
            return Err(Status::MaxRequestMaxBytes(config.max_bytes));
        }
        Ok(())
    }

    fn check_no_wait(&mut self, request: &PullRequest, now: Now) -> Result<(), Status> {
        let available = self.num_pending() + self.tracked.queued() as u64;
        let for_ever = request.expires.is_zero();
        if for_ever && (available == 0 || self.paused(now)) {
            self.used(now);
            return Err(Status::NoMessages);
        }
        if available > 0 && available < self.waiting.wanted() {
            self.used(now);
            return Err(Status::RequestsPending);
        }
        Ok(())
    }

    /// Drops requests that are over, and those whose replies nobody listens to.
    pub(crate) fn sweep(&mut self, port: &mut dyn Port, now: Now) {
        self.swept = now.mono;
        let over: Vec<(RequestId, bool)> = self
            .waiting
            .iter()
            .filter_map(|(id, request)| {
                let expired = request.expires <= now.mono;
                (expired || !port.wanted(&request.reply)).then_some((id, expired))
            })
            .collect();
        for (id, expired) in over {
            if expired {
                self.end(port, id, &Status::RequestTimeout, true);
            } else {
                self.waiting.remove(id);
            }
        }
    }

    /// Ends a request with a status, with or without what it did not get.
    pub(super) fn end(&mut self, port: &mut dyn Port, id: RequestId, status: &Status, with_pending: bool) {
        if let Some(request) = self.waiting.remove(id) {
            send_end(port, &request, status, with_pending);
        }
    }

    /// There are no messages: requests that do not wait end.
    pub(super) fn end_no_wait(&mut self, port: &mut dyn Port) {
        if !self.waiting.has_no_wait() {
            return;
        }
        let over: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, request)| request.ends_when_empty())
            .map(|(id, _)| id)
            .collect();
        for id in over {
            self.end(port, id, &Status::NoMessages, false);
        }
    }

    /// Nothing can be delivered now, whatever the reason: requests of this process that do not wait end. Over the wire a
    /// full window keeps such requests, as nats-server does.
    pub(crate) fn end_no_wait_here(&mut self, port: &mut dyn Port) {
        if !self.waiting.has_no_wait() {
            return;
        }
        let over: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, request)| request.ends_when_empty() && mailbox::parse(&request.reply).is_some())
            .map(|(id, _)| id)
            .collect();
        for id in over {
            self.end(port, id, &Status::NoMessages, false);
        }
    }

    /// Whether some request would end for lack of messages.
    pub(super) fn ends_for_lack(&self) -> bool {
        self.waiting.has_no_wait() && self.waiting.iter().any(|(_, request)| request.ends_when_empty())
    }

    /// Whether somebody listens for what a request wants.
    pub(super) fn has_listener(&self, port: &dyn Port, now: Now) -> bool {
        self.waiting
            .iter()
            .any(|(_, request)| request.expires > now.mono && port.wanted(&request.reply))
    }

    /// The consumer is in use.
    pub(super) fn used(&mut self, now: Now) {
        if !self.config.is_push() || self.idle_from.is_some() {
            self.idle_from = Some(now.mono);
        }
    }

    /// When it goes for lack of use, unless it is used; [`NEVER`] when it does not.
    pub(super) fn idle_due(&self) -> u64 {
        let threshold = self.config.inactive_threshold.0.max(0).unsigned_abs();
        match self.idle_from {
            Some(from) if threshold > 0 => {
                let jitter = if self.config.is_push() { 0 } else { self.jitter };
                from.saturating_add(threshold).saturating_add(jitter)
            }
            _ => NEVER,
        }
    }
}

/// Sends the status that ends a request.
pub(super) fn send_end(port: &mut dyn Port, request: &Request, status: &Status, with_pending: bool) {
    if !with_pending {
        return send(port, &request.reply, status);
    }
    let mut block = Vec::with_capacity(128);
    status.begin(&mut block);
    request.pending().write(&mut block);
    Status::end(&mut block);
    port.status(&request.reply, None, &block);
}

/// Why a request is not taken.
enum Refusal {
    Status(Status),
    /// Without a word, so that the client does not ask again at once.
    Silent,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}
