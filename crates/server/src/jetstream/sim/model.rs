//! What the outside of a work queue was told, and what must therefore be so.
//!
//! * An acknowledged message is there until it is settled, purged, deleted or over a limit; what was confirmed to be settled
//!   or removed is gone and never delivered again, crashes or not. No sequence is given out twice, no message id stored twice.
//! * While somebody has a message, within its ack wait, nobody else gets it. In hand are never more than may be.
//! * What can be delivered is ([`Model::deliverable`]).
//!
//! What a server does that died is known only from what it leaves; until then the model takes both for possible.

use std::collections::BTreeMap;
use std::time::Duration;

/// What the stream and its consumers were made with.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pub(super) max_msgs: Option<usize>,
    /// A full stream refuses rather than to drop the oldest.
    pub(super) discard_new: bool,
    pub(super) max_age: Option<Duration>,
    pub(super) ack_wait: Duration,
    pub(super) max_ack_pending: usize,
    pub(super) max_deliver: Option<u64>,
}

/// Whether a message is in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    There,
    /// Perhaps settled or removed: nobody has said so.
    Perhaps,
    /// Settled or removed, and told so.
    Gone,
}

#[derive(Debug, Clone)]
struct Message {
    /// Whose it is; unknown where a publish was not acknowledged.
    consumer: Option<usize>,
    /// Not before the one, not after the other.
    stored: (Duration, Duration),
    fate: Fate,
    /// How often it was delivered at most.
    deliveries: u64,
    /// In this life, as far as somebody has it.
    hold: Option<Hold>,
}

/// A delivery of this life.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// Not before this anybody else may get it.
    due: Duration,
    /// From this on somebody else gets it for certain.
    by: Duration,
    deliveries: u64,
    settled: bool,
    naked: bool,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) rules: Rules,
    messages: BTreeMap<u64, Message>,
    ids: BTreeMap<u64, u64>,
    /// From when on nothing of an earlier life is in anybody's hand.
    calm: Duration,
    /// A life before this one.
    reborn: bool,
}

impl Model {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// The highest sequence that is known to have been given out.
    pub(super) fn last(&self) -> u64 {
        self.messages.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    /// Whether a message is in the stream for certain.
    pub(super) fn is_there(&self, seq: u64) -> bool {
        self.messages.get(&seq).is_some_and(|m| m.fate == Fate::There)
    }

    /// A publish is acknowledged.
    pub(super) fn stored(
        &mut self,
        seq: u64,
        consumer: usize,
        id: Option<u64>,
        now: Duration,
    ) -> Result<(), String> {
        if seq <= self.last() {
            return Err(format!("sequence {seq} was given out after {}", self.last()));
        }
        self.age(now);
        if let Some(id) = id
            && let Some(before) = self.ids.insert(id, seq)
        {
            return Err(format!("id {id} of {before} is stored again as {seq}"));
        }
        let certain = self.messages.values().filter(|m| m.fate == Fate::There);
        if let Some(max) = self.rules.max_msgs
            && self.rules.discard_new
            && certain.count() >= max
        {
            return Err(format!("{seq} is stored in a full stream"));
        }
        self.insert(seq, Some(consumer), (now, now), Fate::There);
        self.limit(now);
        Ok(())
    }

    /// A publish came to a message that was there before.
    pub(super) fn duplicate(&mut self, seq: u64, id: u64) -> Result<(), String> {
        match self.ids.get(&id) {
            Some(known) if *known == seq => Ok(()),
            Some(known) => Err(format!("id {id} is that of {known}, not of {seq}")),
            // The first attempt had no answer.
            None if seq <= self.last() => {
                self.ids.insert(id, seq);
                Ok(())
            }
            None => Err(format!("id {id} is said to be that of {seq}, which is not there")),
        }
    }

    /// A publish is refused because the stream is full.
    pub(super) fn refused(&self) -> Result<(), String> {
        let possible = self.messages.values().filter(|m| m.fate != Fate::Gone).count();
        match self.rules.max_msgs {
            Some(max) if self.rules.discard_new && possible >= max => Ok(()),
            _ => Err(format!("a publish is refused with {possible} messages at most")),
        }
    }

    fn insert(&mut self, seq: u64, consumer: Option<usize>, stored: (Duration, Duration), fate: Fate) {
        let message = Message {
            consumer,
            stored,
            fate,
            deliveries: 0,
            hold: None,
        };
        self.messages.insert(seq, message);
    }

    /// What limits may have removed.
    fn limit(&mut self, now: Duration) {
        if let Some(max) = self.rules.max_msgs
            && !self.rules.discard_new
        {
            let mut newer = 0;
            for message in self.messages.values_mut().rev() {
                if newer >= max && message.fate == Fate::There {
                    message.fate = Fate::Perhaps;
                }
                newer += usize::from(message.fate != Fate::Gone);
            }
        }
        self.age(now);
    }

    /// What is old enough to be removed.
    pub(super) fn age(&mut self, now: Duration) {
        let Some(age) = self.rules.max_age else { return };
        for message in self.messages.values_mut() {
            if message.fate == Fate::There && now >= message.stored.0 + age {
                message.fate = Fate::Perhaps;
            }
        }
    }

    /// A server found the stream like this: sequences up to `last` were given out, perhaps to publishes without an answer.
    pub(super) fn reborn(
        &mut self,
        last: u64,
        calm: Duration,
        now: Duration,
        find: impl Fn(u64) -> Option<usize>,
    ) -> Result<(), String> {
        if last < self.last() {
            return Err(format!("sequences end at {last} after {}", self.last()));
        }
        for seq in self.last() + 1..=last {
            self.insert(seq, None, (Duration::ZERO, now), Fate::Perhaps);
        }
        self.limit(now);
        for (seq, message) in &mut self.messages {
            message.hold = None;
            // What was written when the server died is known now.
            match (message.fate, find(*seq)) {
                (Fate::Perhaps, None) => message.fate = Fate::Gone,
                (Fate::Perhaps, Some(consumer)) => {
                    message.fate = Fate::There;
                    message.consumer = Some(consumer);
                }
                (Fate::There, None) => {
                    return Err(format!("{seq} was acknowledged and is lost: {message:?}"));
                }
                (Fate::There, Some(_)) | (Fate::Gone, _) => {}
            }
        }
        self.age(now);
        self.calm = calm;
        self.reborn = true;
        Ok(())
    }

    /// A message is settled or removed, and that was confirmed.
    pub(super) fn gone(&mut self, seq: u64) {
        if let Some(message) = self.messages.get_mut(&seq) {
            message.fate = Fate::Gone;
            message.hold = None;
        }
    }

    /// A message is perhaps settled or removed.
    pub(super) fn perhaps(&mut self, seq: u64) {
        if let Some(message) = self.messages.get_mut(&seq)
            && message.fate == Fate::There
        {
            message.fate = Fate::Perhaps;
        }
    }

    /// A purge of one consumer's messages or of all, up to the newest `keep`; confirmed or not.
    pub(super) fn purged(&mut self, consumer: Option<usize>, keep: usize, confirmed: bool) {
        let (mut certain, mut possible) = (0, 0);
        for message in self.messages.values_mut().rev() {
            let matches = consumer.is_none() || message.consumer == consumer;
            if message.fate == Fate::Gone || (!matches && message.consumer.is_some()) {
                continue;
            }
            let was = message.fate;
            if certain >= keep && confirmed && matches {
                message.fate = Fate::Gone;
                message.hold = None;
            } else if possible >= keep {
                message.fate = Fate::Perhaps;
            }
            certain += usize::from(was == Fate::There && matches);
            possible += 1;
        }
    }

    /// A consumer was deleted, perhaps; another of its name knows nothing of what it had delivered.
    pub(super) fn consumer_deleted(&mut self, consumer: usize) {
        for message in self.messages.values_mut() {
            if message.consumer == Some(consumer) {
                message.hold = None;
            }
        }
    }

    /// A request had no answer: what it was given nobody saw.
    pub(super) fn perhaps_delivered(&mut self, consumer: usize) {
        for message in self.messages.values_mut() {
            if message.consumer.is_none_or(|whose| whose == consumer) {
                message.deliveries += 1;
            }
        }
    }

    /// A message is delivered.
    pub(super) fn delivered(&mut self, consumer: usize, seq: u64, now: Duration) -> Result<(), String> {
        self.age(now);
        let rules = &self.rules;
        let Some(message) = self.messages.get_mut(&seq) else {
            return Err(format!("{seq} is delivered, which nobody stored"));
        };
        if message.fate == Fate::Gone {
            return Err(format!("{seq} is delivered although it is settled for good"));
        }
        if message.consumer.is_some_and(|whose| whose != consumer) {
            return Err(format!("{seq} is delivered to consumer {consumer}: {message:?}"));
        }
        message.consumer = Some(consumer);
        message.deliveries += 1;
        let mut deliveries = 1;
        if let Some(hold) = message.hold {
            deliveries = hold.deliveries + 1;
            if hold.settled {
                return Err(format!("{seq} is delivered although its ack was sent before"));
            }
            if now < hold.due {
                return Err(format!(
                    "{seq} is delivered at {now:?}, while somebody has it until {:?}",
                    hold.due
                ));
            }
        }
        if rules.max_deliver.is_some_and(|max| deliveries > max) {
            return Err(format!("{seq} is delivered {deliveries} times"));
        }
        message.hold = Some(Hold {
            due: now + rules.ack_wait,
            by: now + rules.ack_wait,
            deliveries,
            settled: false,
            naked: false,
        });
        let held = self.held(consumer).filter(|(message, hold)| {
            // What was delivered often enough leaves the window when its wait is over.
            message.fate == Fate::There
                && (self.rules.max_deliver.is_none() || (hold.due > now && !hold.naked))
        });
        let held = held.count();
        if held > self.rules.max_ack_pending {
            return Err(format!("{held} messages are in hand, more than may be"));
        }
        Ok(())
    }

    fn held(&self, consumer: usize) -> impl Iterator<Item = (&Message, Hold)> {
        self.messages.values().filter_map(move |message| {
            let hold = message.hold.filter(|hold| !hold.settled)?;
            (message.consumer == Some(consumer)).then_some((message, hold))
        })
    }

    /// An ack or a term is sent and not confirmed.
    pub(super) fn settled(&mut self, seq: u64) {
        if let Some(message) = self.messages.get_mut(&seq) {
            if let Some(hold) = &mut message.hold {
                hold.settled = true;
            }
            if message.fate == Fate::There {
                message.fate = Fate::Perhaps;
            }
        }
    }

    /// A message is not wanted now, or its work goes on: it is due at another time.
    pub(super) fn postponed(&mut self, seq: u64, now: Duration, due: Duration, naked: bool) {
        if let Some(message) = self.messages.get_mut(&seq)
            && let Some(hold) = &mut message.hold
        {
            // One that was delivered often enough may have been given up.
            hold.by = due;
            if self.rules.max_deliver.is_none() || hold.due > now {
                hold.due = due;
            }
            hold.naked |= naked;
        }
    }

    /// A message that a consumer must deliver to whoever asks, if there is one for certain.
    pub(super) fn deliverable(&self, consumer: usize, now: Duration) -> Option<u64> {
        if self.reborn && now < self.calm {
            return None;
        }
        let room = self.held(consumer).count() < self.rules.max_ack_pending;
        let wanted = |message: &Message| {
            if message.fate != Fate::There || message.consumer != Some(consumer) {
                return false;
            }
            match message.hold {
                Some(hold) => {
                    let more = self
                        .rules
                        .max_deliver
                        .is_none_or(|max| message.deliveries < max && !self.reborn);
                    !hold.settled && hold.by <= now && more
                }
                None => room && (message.deliveries == 0 || self.rules.max_deliver.is_none()),
            }
        };
        let found = self.messages.iter().find(|(_, message)| wanted(message));
        found.map(|(seq, _)| *seq)
    }

    /// Whether a message may be left when everything was worked off: it was delivered often enough.
    pub(super) fn may_be_left(&self, seq: u64) -> bool {
        let deliveries = self.messages.get(&seq).map_or(0, |message| message.deliveries);
        self.rules.max_deliver.is_some_and(|max| deliveries >= max)
    }

    /// Compares with the stream, which says of each sequence whether it is there. The time has come to rest.
    pub(super) fn check(&mut self, now: Duration, live: impl Fn(u64) -> bool) -> Result<(), String> {
        let mut count = 0;
        for (seq, message) in &mut self.messages {
            let there = live(*seq);
            count += usize::from(there);
            if there && message.fate == Fate::Gone {
                return Err(format!("{seq} is there although it was settled or removed"));
            }
            if !there && message.fate == Fate::There {
                return Err(format!("{seq} was acknowledged and is lost: {message:?}"));
            }
            if !there {
                message.fate = Fate::Gone;
                message.hold = None;
            }
            if let Some(age) = self.rules.max_age
                && there
                && now > message.stored.1 + age
            {
                return Err(format!("{seq} is there although it is old: {message:?}"));
            }
        }
        if self.rules.max_msgs.is_some_and(|max| count > max) {
            return Err(format!("{count} messages are there, more than may be"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(1);

    fn model() -> Model {
        let mut model = Model::new(Rules {
            ack_wait: WAIT,
            max_ack_pending: 2,
            ..Rules::default()
        });
        for seq in 1..=3 {
            model.stored(seq, 0, None, Duration::ZERO).unwrap();
        }
        model
    }

    #[test]
    fn what_is_lost_or_comes_back_is_found() {
        let mut model = model();
        assert!(model.stored(3, 0, None, WAIT).is_err());
        assert!(model.check(WAIT, |_| true).is_ok());
        assert!(model.check(WAIT, |seq| seq != 2).is_err());
        model.perhaps(2);
        assert!(model.check(WAIT, |seq| seq != 2).is_ok());
        model.gone(1);
        assert!(model.check(WAIT, |_| true).is_err());
        assert!(model.delivered(0, 1, WAIT).is_err());
        assert!(model.reborn(2, WAIT, WAIT, |_| None).is_err());
    }

    #[test]
    fn what_is_in_two_hands_or_too_many_is_found() {
        let mut model = model();
        model.delivered(0, 1, Duration::ZERO).unwrap();
        assert!(model.delivered(0, 1, WAIT / 2).is_err());
        assert!(model.delivered(1, 2, WAIT / 2).is_err());
        model.delivered(0, 1, WAIT).unwrap();
        model.delivered(0, 2, WAIT).unwrap();
        assert_eq!(model.deliverable(0, WAIT), None);
        assert!(model.delivered(0, 3, WAIT).is_err());
        model.settled(1);
        assert!(model.delivered(0, 1, 3 * WAIT).is_err());
    }

    #[test]
    fn what_must_be_delivered_is_known() {
        let mut model = model();
        assert_eq!(model.deliverable(0, WAIT), Some(1));
        assert_eq!(model.deliverable(1, WAIT), None);
        model.delivered(0, 1, WAIT).unwrap();
        assert_eq!(model.deliverable(0, WAIT), Some(2));
        model.delivered(0, 2, WAIT).unwrap();
        assert_eq!(model.deliverable(0, WAIT), None);
        model.postponed(2, WAIT, WAIT, true);
        assert_eq!(model.deliverable(0, WAIT), Some(2));
        model.purged(Some(0), 1, true);
        assert!(model.is_there(3) && !model.is_there(2));
        assert_eq!(model.deliverable(0, WAIT), Some(3));
    }

    #[test]
    fn limits_and_ids_are_known() {
        let mut model = model();
        model.rules.max_msgs = Some(3);
        model.stored(4, 0, Some(7), WAIT).unwrap();
        assert!(model.check(WAIT, |seq| seq > 1).is_ok());
        assert!(model.check(WAIT, |seq| seq > 2).is_err());
        assert!(model.check(WAIT, |_| true).is_err());
        assert!(model.refused().is_err());
        model.duplicate(4, 7).unwrap();
        assert!(model.duplicate(3, 7).is_err());
        assert!(model.stored(5, 0, Some(7), WAIT).is_err());
    }
}
