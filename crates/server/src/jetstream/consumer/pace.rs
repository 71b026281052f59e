//! Pace: rate limit, and replay with the pauses of the original.

use windjet_protocol::jetstream::ReplayPolicy;

use super::{Consumer, Now};

/// Pauses up to this many nanoseconds are not kept.
const SHORTEST_PAUSE: i64 = 1_000_000;

/// What a consumer with a pace has beside the rest.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Messages up to here are replayed with pauses.
    replay_up_to: u64,
    /// Stored time of the last message, and when it was sent.
    last: Option<(i64, u64)>,
    /// When the bucket of the rate limit is full.
    full_at: u64,
    /// When the next message may go, if one was held back.
    pub(super) resume_at: Option<u64>,
}

/// Gives a consumer this state if it needs it.
pub(super) fn refit(consumer: &mut Consumer) {
    let replays = consumer.config.replay_policy == ReplayPolicy::Original;
    if !replays && consumer.config.rate_limit_bps == 0 {
        consumer.pace = None;
    } else if consumer.pace.is_none() {
        let replay_up_to = if replays {
            consumer.home.reader.state().last_seq
        } else {
            0
        };
        consumer.pace = Some(Box::new(Pace {
            replay_up_to,
            ..Pace::default()
        }));
    }
}

/// How long so many bytes take.
fn nanos(bytes: u64, bits_per_second: u64) -> u64 {
    let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(bits_per_second.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

impl Consumer {
    /// When a message of so many bytes may go; now at the latest for most. `new` when it was not delivered before.
    pub(super) fn may_go_at(&self, seq: u64, time: i64, bytes: u64, new: bool) -> u64 {
        let Some(pace) = &self.pace else {
            return 0;
        };
        let mut at = 0;
        if new
            && seq <= pace.replay_up_to
            && let Some((before, sent)) = pace.last
        {
            let pause = time.saturating_sub(before);
            if pause > SHORTEST_PAUSE {
                at = sent.saturating_add(pause.unsigned_abs());
            }
        }
        let rate = self.config.rate_limit_bps;
        if rate > 0 {
            // A message larger than the bucket goes when the bucket is full.
            let burst = self.home.burst;
            let rest = nanos(burst.saturating_sub(bytes), rate);
            at = at.max(pace.full_at.saturating_sub(rest));
        }
        at
    }

    /// A message went.
    pub(super) fn paced(&mut self, time: i64, bytes: u64, new: bool, now: Now) {
        let rate = self.config.rate_limit_bps;
        if let Some(pace) = &mut self.pace {
            if new {
                pace.last = Some((time, now.mono));
            }
            if rate > 0 {
                pace.full_at = pace.full_at.max(now.mono).saturating_add(nanos(bytes, rate));
            }
        }
    }

    /// How long a held-back message still waits.
    pub(super) fn held_back(&self, now: Now) -> Option<u64> {
        let resume_at = self.pace.as_ref()?.resume_at?;
        (resume_at > now.mono).then(|| resume_at - now.mono)
    }
}
