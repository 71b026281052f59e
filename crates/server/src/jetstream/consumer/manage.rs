//! Update, pause and reset.

use std::cmp::Ordering;

use windjet_protocol::jetstream::consumer::requests::ConsumerPauseResponse;
use windjet_protocol::jetstream::{
    ApiError, ConsumerConfig, DeliverPolicy, ErrorCode, Nanos, PriorityPolicy, Timestamp, level,
};
use windjet_store::Position;

use super::life::wait;
use super::{Consumer, Now, Port, Updated, position};

impl Consumer {
    /// Takes a new configuration, which is valid and allowed. `pause_until` stays as it is.
    ///
    /// # Errors
    /// `400/10013` when the deliver subject changes while somebody listens to the old one.
    pub(crate) fn update(
        &mut self,
        port: &mut dyn Port,
        mut config: ConsumerConfig,
        now: Now,
    ) -> Result<Updated, ApiError> {
        config.pause_until = self.config.pause_until;
        let moved = self.config.deliver_subject != config.deliver_subject;
        if moved && self.is_bound(port) {
            return Err(ErrorCode::ConsumerNameInUse.error());
        }
        let old = std::mem::replace(&mut *self.config, config);
        let filters = !old.filters().eq(self.config.filters());
        if filters {
            self.matcher = position::matcher(&self.config);
            self.find_initial();
        }
        if self.timed() && (old.ack_wait != self.config.ack_wait || old.backoff != self.config.backoff) {
            let new = &self.config;
            self.tracked
                .shift(|deliveries| wait(new, deliveries).saturating_sub(wait(&old, deliveries)));
        }
        if old.inactive_threshold != self.config.inactive_threshold && self.idle_from.is_some() {
            self.idle_from = Some(now.mono);
        }
        if old.priority_policy != self.config.priority_policy {
            self.change_policy();
        }
        self.refit(now);
        if let Some(pace) = &mut self.pace
            && old.rate_limit_bps != self.config.rate_limit_bps
        {
            pace.resume_at = None;
        }
        if moved {
            for seq in self.tracked.seqs(0, u64::MAX) {
                self.tracked.enqueue_due(seq, now.nanos(), &mut self.log);
            }
        }
        if moved || old.deliver_group != self.config.deliver_group {
            self.interest_changed(port, now);
        }
        self.tell_if_paused(port, now);
        Ok(Updated {
            changed: old != *self.config,
            filters,
        })
    }

    fn change_policy(&mut self) {
        if !self.pins() {
            self.pin = None;
        }
        let by_urgency = self.config.priority_policy == PriorityPolicy::Prioritized;
        self.waiting.reorder(by_urgency);
    }

    /// Pauses until a time, or resumes with one that is over. [`Consumer::stored_config`] must be put afterwards.
    pub(crate) fn pause(&mut self, port: &mut dyn Port, until: Timestamp, now: Now) -> ConsumerPauseResponse {
        let before = self.config.pause_until;
        self.config.pause_until = (!until.is_zero()).then_some(until);
        let level = self.config.required_level();
        level::stamp_stored(&mut self.config.metadata, level);
        self.arm_pause(now);
        let paused = self.paused(now);
        if self.config.pause_until != before {
            self.tell_pause(port, paused, now);
        }
        ConsumerPauseResponse {
            paused,
            pause_until: until,
            pause_remaining: Nanos(i64::try_from(self.pause_remaining(now)).unwrap_or(i64::MAX)),
        }
    }

    /// Begins again at a sequence, or behind the ack floor with 0; gives where. `by_time` is as in [`Consumer::create`].
    ///
    /// # Errors
    /// `400/10204` when the start policy does not allow the sequence.
    pub(crate) fn reset(
        &mut self,
        port: &mut dyn Port,
        seq: u64,
        by_time: Option<u64>,
        now: Now,
    ) -> Result<u64, ApiError> {
        let start = self.reset_start(seq, by_time)?;
        let old_floor = self.floor.stream_seq;
        let before = Position {
            stream_seq: start - 1,
            consumer_seq: 0,
        };
        self.delivered = before;
        self.floor = before;
        self.next = start;
        self.tracked.reset();
        self.log.reset();
        if let Some(holders) = &mut self.holders {
            holders.clear();
        }
        if let Some(push) = &mut self.push {
            push.restart();
        }
        (self.delivered_at, self.acked_at) = (None, None);
        self.find_initial();
        self.used(now);
        if before.stream_seq > old_floor {
            port.settled(old_floor + 1, before.stream_seq);
        }
        Ok(start)
    }

    fn reset_start(&self, seq: u64, by_time: Option<u64>) -> Result<u64, ApiError> {
        if seq == 0 {
            return Ok(self.floor.stream_seq + 1);
        }
        let refused = |why: &str| Err(ErrorCode::ResetInvalid.with(why));
        match self.config.deliver_policy {
            DeliverPolicy::All => Ok(seq),
            DeliverPolicy::ByStartSequence => match seq.cmp(&self.config.opt_start_seq) {
                Ordering::Less => refused("below start seq"),
                _ => Ok(seq),
            },
            DeliverPolicy::ByStartTime => {
                let first = by_time.unwrap_or_else(|| self.home.reader.state().last_seq + 1);
                if seq < first {
                    refused("below start time")
                } else {
                    Ok(seq)
                }
            }
            DeliverPolicy::Last | DeliverPolicy::New | DeliverPolicy::LastPerSubject => {
                refused("not allowed")
            }
        }
    }
}
