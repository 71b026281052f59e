//! A stream with the messages of an atomic batch laid over it, for the checks of those that follow.

use std::collections::{HashMap, HashSet};

use windjet_protocol::jetstream::ApiError;
use windjet_store::{Duplicate, Subject};

use super::check::{Plan, Rollup};
use super::counter::{Known, Total};
use super::schedule::Part;
use super::view::{NotYet, View};

#[derive(Debug)]
struct Added<'m> {
    subject: &'m [u8],
    size: u64,
    live: bool,
}

/// The batch's messages on one subject.
#[derive(Debug, Default)]
struct OfSubject {
    seqs: Vec<u64>,
    live: u64,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Overlay<'m, 'v, V> {
    base: &'v V,
    /// Sequence of the batch's first message.
    first: u64,
    added: Vec<Added<'m>>,
    by_subject: HashMap<&'m [u8], OfSubject>,
    /// Whether everything below is gone.
    cleared: bool,
    removed: HashSet<u64>,
    /// How many of `removed` each subject had.
    removed_of: HashMap<u128, u64>,
    messages: u64,
    bytes: u64,
    /// Bytes of the batch.
    staged: u64,
    ids: HashMap<&'m [u8], u64>,
    last_id: Vec<u8>,
    totals: HashMap<&'m [u8], Total>,
    schedules: HashMap<&'m [u8], u64>,
}

impl<'m, 'v, V: View> Overlay<'m, 'v, V> {
    pub(super) fn new(base: &'v V) -> Self {
        Self {
            base,
            first: base.last_seq() + 1,
            added: Vec::new(),
            by_subject: HashMap::new(),
            cleared: false,
            removed: HashSet::new(),
            removed_of: HashMap::new(),
            messages: base.messages(),
            bytes: base.bytes(),
            staged: 0,
            ids: HashMap::new(),
            last_id: base.last_msg_id().to_vec(),
            totals: HashMap::new(),
            schedules: HashMap::new(),
        }
    }

    /// Lays one more message over the rest.
    pub(super) fn add(&mut self, subject: &'m [u8], plan: &Plan<'m>) {
        let seq = self.last_seq() + 1;
        self.added.push(Added {
            subject,
            size: plan.size,
            live: true,
        });
        let of_subject = self.by_subject.entry(subject).or_default();
        of_subject.seqs.push(seq);
        of_subject.live += 1;
        self.messages += 1;
        self.bytes += plan.size;
        self.staged += plan.size;
        self.last_id = plan.id.unwrap_or_default().to_vec();
        if let Some(id) = plan.id {
            self.ids.insert(id, seq);
        }
        if let Some(total) = &plan.counter {
            self.totals.insert(subject, total.clone());
        }
        match plan.schedule {
            Part::Schedule(_) => drop(self.schedules.insert(subject, seq)),
            _ => drop(self.schedules.remove(subject)),
        }
        match plan.purge {
            None => {}
            // Of a pattern's messages only those on the subject of its very text are seen to be gone by the rest of the batch.
            Some(Rollup::Subject) => {
                while let Some(older) = self.subject_next(subject, 0).filter(|older| *older < seq) {
                    self.remove(older);
                }
            }
            Some(Rollup::All) => {
                self.cleared = true;
                self.messages = 1;
                self.bytes = plan.size;
            }
        }
        for range in plan.remove.ranges() {
            let mut from = range.first;
            while let Some(gone) = self.next_live(from).filter(|gone| *gone <= range.last) {
                self.remove(gone);
                from = gone + 1;
            }
        }
    }

    /// Takes away a live message.
    fn remove(&mut self, seq: u64) {
        let size = self.size_of(seq).map_or(0, u64::from);
        if seq >= self.first {
            if let Some(added) = self.added_at_mut(seq) {
                added.live = false;
                let subject = added.subject;
                self.by_subject.entry(subject).or_default().live -= 1;
            }
        } else {
            if let Some(key) = self.base.subject_key_of(seq) {
                *self.removed_of.entry(key).or_default() += 1;
            }
            self.removed.insert(seq);
        }
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
    }

    fn added_at(&self, seq: u64) -> Option<&Added<'m>> {
        self.added
            .get(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    fn added_at_mut(&mut self, seq: u64) -> Option<&mut Added<'m>> {
        let at = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.added.get_mut(at)
    }

    fn is_gone(&self, seq: u64) -> bool {
        self.cleared || self.removed.contains(&seq)
    }

    /// Live messages of the batch on a subject.
    fn live_of(&self, subject: &[u8]) -> impl DoubleEndedIterator<Item = u64> {
        let all = self.by_subject.get(subject).map_or(&[][..], |of| &of.seqs);
        let live = |seq: &u64| self.added_at(*seq).is_some_and(|added| added.live);
        all.iter().copied().filter(live)
    }
}

impl<V: View> View for Overlay<'_, '_, V> {
    fn last_seq(&self) -> u64 {
        self.first - 1 + self.added.len() as u64
    }

    fn messages(&self) -> u64 {
        self.messages
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn subject(&self, subject: &[u8]) -> Subject {
        let mut known = if self.cleared {
            Subject::default()
        } else {
            self.base.subject(subject)
        };
        if !self.removed.is_empty() {
            let removed = self.removed_of.get(&self.base.subject_key(subject));
            known.messages = known.messages.saturating_sub(removed.copied().unwrap_or(0));
            // Older messages go before newer ones, so with the newest all are gone.
            known.last = known.last.filter(|last| !self.removed.contains(last));
        }
        known.messages += self.by_subject.get(subject).map_or(0, |of| of.live);
        known.last = self.live_of(subject).next_back().or(known.last);
        known
    }

    fn subject_next(&self, subject: &[u8], from: u64) -> Option<u64> {
        let mut at = from;
        while !self.cleared
            && let Some(seq) = self.base.subject_next(subject, at)
        {
            if !self.removed.contains(&seq) {
                return Some(seq);
            }
            at = seq + 1;
        }
        self.live_of(subject).find(|seq| *seq >= from)
    }

    fn subject_key(&self, subject: &[u8]) -> u128 {
        self.base.subject_key(subject)
    }

    fn subject_key_of(&self, seq: u64) -> Option<u128> {
        match self.added_at(seq) {
            Some(added) => Some(self.base.subject_key(added.subject)),
            None => self.base.subject_key_of(seq),
        }
    }

    /// What an expectation with wildcards is about is the stream before the batch.
    fn last_match(&self, pattern: &[u8]) -> Result<Option<u64>, NotYet> {
        self.base.last_match(pattern)
    }

    fn next_live(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while !self.cleared
            && let Some(seq) = self.base.next_live(at)
        {
            if !self.removed.contains(&seq) {
                return Some(seq);
            }
            at = seq + 1;
        }
        (from.max(self.first)..=self.last_seq())
            .find(|seq| self.added_at(*seq).is_some_and(|added| added.live))
    }

    fn size_of(&self, seq: u64) -> Option<u32> {
        match self.added_at(seq) {
            Some(added) => added.live.then(|| u32::try_from(added.size).unwrap_or(u32::MAX)),
            None if self.is_gone(seq) => None,
            None => self.base.size_of(seq),
        }
    }

    fn duplicate(&self, id: &[u8]) -> Option<Duplicate> {
        match self.ids.get(id) {
            Some(seq) => Some(Duplicate { seq: *seq, op: 0 }),
            None => self.base.duplicate(id),
        }
    }

    fn last_msg_id(&self) -> &[u8] {
        &self.last_id
    }

    fn interested(&self, subject: &[u8]) -> bool {
        self.base.interested(subject)
    }

    fn server_full(&self) -> bool {
        self.base.server_full()
    }

    fn account_full(&self, size: u64) -> bool {
        self.base.account_full(self.staged + size)
    }

    fn counter(&self, subject: &[u8]) -> Result<Known, ApiError> {
        match self.subject(subject).last {
            None => Ok(Known::Is(Total::default())),
            Some(last) if last < self.first => self.base.counter(subject),
            Some(last) => Ok(match self.totals.get(subject) {
                Some(total) => Known::Is(total.clone()),
                None => Known::In(last),
            }),
        }
    }

    fn schedule(&self, subject: &[u8]) -> Option<u64> {
        if self.by_subject.contains_key(subject) {
            return self.schedules.get(subject).copied();
        }
        self.base.schedule(subject).filter(|seq| !self.is_gone(*seq))
    }

    fn gross(&self) -> (u64, u64) {
        let (messages, bytes) = self.base.gross();
        (messages + self.added.len() as u64, bytes + self.staged)
    }

    fn written(&self, subject: &[u8]) -> bool {
        self.by_subject.contains_key(subject)
    }
}
