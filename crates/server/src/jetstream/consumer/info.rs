//! Where a consumer stands, and why it does not deliver.

use windjet_protocol::jetstream::{
    ConsumerInfo, Nanos, PriorityGroupState, PriorityPolicy, SequenceInfo, Timestamp,
};
use windjet_store::Position;

use super::{Consumer, Explanation, Now, Port};

/// Sequences that an explanation names.
const SHOWN: usize = 16;

fn sequences(position: Position, at: Option<i64>) -> SequenceInfo {
    SequenceInfo {
        consumer_seq: position.consumer_seq,
        stream_seq: position.stream_seq,
        last_active: at.map(Timestamp::from_unix_nanos),
    }
}

impl Consumer {
    /// Where it stands. Metadata for answers is the caller's to add.
    pub(crate) fn info(&mut self, port: &mut dyn Port, now: Now) -> ConsumerInfo {
        self.sweep(port, now);
        let num_redelivered = match self.config.max_deliver {
            1 => 0,
            _ => self.tracked.redelivered() as u64,
        };
        let group = self
            .config
            .priority_groups
            .first()
            .filter(|_| self.config.priority_policy != PriorityPolicy::None);
        let groups = group.map(|group| PriorityGroupState {
            group: group.clone(),
            pinned_client_id: self.pin.as_ref().map(|pin| pin.id.clone()),
            pinned_ts: self.pin.as_ref().map_or(Timestamp::ZERO, |pin| pin.since),
        });
        let remaining = self.pause_remaining(now);
        ConsumerInfo {
            stream_name: self.home.stream.clone(),
            name: self.name.to_string(),
            created: self.created,
            config: (*self.config).clone(),
            delivered: sequences(self.delivered, self.delivered_at),
            ack_floor: sequences(self.floor, self.acked_at),
            num_ack_pending: self.tracked.len() as u64,
            num_redelivered,
            num_waiting: self.waiting.len() as u64,
            num_pending: self.num_pending(),
            cluster: None,
            push_bound: self.push.as_ref().is_some_and(|push| push.bound),
            paused: remaining > 0,
            pause_remaining: Nanos(i64::try_from(remaining).unwrap_or(i64::MAX)),
            ts: now.timestamp(),
            priority_groups: groups.into_iter().collect(),
        }
    }

    /// Why it does not deliver at this moment.
    pub(crate) fn explain(&mut self, port: &mut dyn Port, now: Now) -> Explanation {
        if let Some(until) = self.config.pause_until.filter(|_| self.paused(now)) {
            return Explanation::Paused { until };
        }
        if let Some(push) = &self.push {
            if !push.bound {
                return Explanation::NotBound;
            }
        } else if self.waiting.is_empty() {
            return Explanation::NoRequest;
        } else if !self.has_listener(port, now) {
            return Explanation::NoListener;
        }
        if self.tracked.queued() == 0 {
            if self.num_pending() == 0 {
                return self.explain_silence(now);
            }
            if !self.has_room() {
                return Explanation::MaxAckPending {
                    pending: self.tracked.len() as u64,
                    max: self.config.max_ack_pending.max(0).unsigned_abs(),
                    sequences: self.in_hand(),
                    until: self.first_over(now),
                };
            }
        }
        if let Some((outstanding, window)) = self.stalled() {
            return Explanation::FlowControl { outstanding, window };
        }
        if let Some(wait) = self.held_back(now) {
            return Explanation::Paced { wait };
        }
        self.explain_priority()
    }

    /// Why there is nothing to deliver.
    fn explain_silence(&mut self, now: Now) -> Explanation {
        if self.tracked.len() > 0 {
            return Explanation::AwaitingAcks {
                pending: self.tracked.len() as u64,
                sequences: self.in_hand(),
                until: self.first_over(now),
            };
        }
        let filters: Vec<String> = self.config.filters().map(str::to_owned).collect();
        let reader = &self.home.reader;
        if !filters.is_empty()
            && reader.state().messages > 0
            && reader.next_match(&mut self.matcher, 0).is_none()
        {
            return Explanation::NoMatch { filters };
        }
        Explanation::NoMessages
    }

    /// Sequences that await their acknowledgement, the lowest of them.
    fn in_hand(&self) -> Vec<u64> {
        let mut sequences = self.tracked.seqs(0, u64::MAX);
        sequences.truncate(SHOWN);
        sequences
    }

    /// When the first wait is over, by the wall clock.
    fn first_over(&mut self, now: Now) -> Option<Timestamp> {
        let wait = self.tracked.next_due()?.saturating_sub(now.nanos());
        Some(Timestamp::from_unix_nanos(now.wall.saturating_add(wait)))
    }

    fn explain_priority(&mut self) -> Explanation {
        let to_come = self.num_pending();
        match (self.config.priority_policy, &self.pin) {
            (PriorityPolicy::PinnedClient, Some(pin))
                if self.waiting.iter().all(|(_, request)| request.pin() != pin.id) =>
            {
                Explanation::Pinned { id: pin.id.clone() }
            }
            (PriorityPolicy::Overflow, _)
                if self
                    .waiting
                    .iter()
                    .all(|(_, request)| !self.meets_thresholds(request, to_come)) =>
            {
                Explanation::Overflow
            }
            _ => Explanation::Delivering,
        }
    }

    #[cfg(test)]
    /// Bytes of memory that it takes, about.
    pub(crate) fn memory(&self) -> usize {
        let config = size_of_val(&*self.config) + self.stored_config().len();
        size_of::<Self>()
            + config
            + self.tracked.room()
            + self.tracked.memory()
            + self.waiting.room()
            + self.waiting.memory()
            + self.ahead.capacity() * 8
            + self
                .initial
                .as_ref()
                .map_or(0, |initial| initial.set.capacity() * 8)
            + self.holders.as_ref().map_or(0, |holders| holders.len() * 30)
    }
}
