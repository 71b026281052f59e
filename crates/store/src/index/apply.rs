//! How records change the index.
//!
//! Applying is total: any record that passed its checksum is taken, in any state, and a record that was applied before
//! changes nothing. Messages that are in the index or below what it has seen are not added twice.

use super::{Erasing, Id, Item, SPAN, Span, StreamIndex, locate};
use crate::consumer::{ConsumerChange, ConsumerState};
use crate::options::{Storage, StreamOptions};
use crate::record::{Effect, Kind, Record, SeqRange, effects};

/// What applying a record did, for the caller's bookkeeping.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Sequences that should have come before this one and did not.
    pub(crate) missing: Option<SeqRange>,
}

/// The size of a message by the wire's formula, which differs between file and memory storage.
pub(crate) fn wire_size(storage: Storage, subject: usize, headers: usize, payload: usize) -> u32 {
    let size = match storage {
        Storage::File if headers > 0 => 34 + subject + headers + payload,
        Storage::File => 30 + subject + payload,
        Storage::Memory => 16 + subject + headers + payload,
    };
    u32::try_from(size).unwrap_or(u32::MAX)
}

impl StreamIndex {
    /// Applies one record of this stream. `ids_max` bounds the remembered dedup ids.
    pub(crate) fn apply(&mut self, r: &Record<'_>, ids_max: usize) -> Applied {
        let mut applied = Applied::default();
        match r.kind {
            Kind::Message | Kind::Skip => applied = self.apply_message(r, ids_max),
            Kind::Create | Kind::Update => {
                self.created = true;
                if let Some(options) = StreamOptions::decode(&mut crate::codec::Cursor::new(r.payload())) {
                    let (storage, first_seq) = (self.options.storage, self.options.first_seq);
                    self.options = StreamOptions {
                        storage,
                        first_seq,
                        ..options
                    };
                }
                (self.dirty.stream, self.dirty.settings) = (true, true);
            }
            Kind::Delete => {
                self.deleted = true;
                self.dirty.stream = true;
            }
            Kind::ConsumerPut => {
                if let Ok(name) = std::str::from_utf8(r.subject()) {
                    let consumer = self.consumers.entry(name.to_owned()).or_default();
                    if r.seq() == 1 {
                        // A new consumer: whatever the name's former bearer left is not its own.
                        consumer.state = ConsumerState::default();
                    }
                    consumer.config = bytes::Bytes::copy_from_slice(r.payload());
                    self.dirty.consumers.insert(name.to_owned());
                }
            }
            Kind::ConsumerDelete => {
                if let Ok(name) = std::str::from_utf8(r.subject()) {
                    self.consumers.remove(name);
                    self.dirty.consumers.insert(name.to_owned());
                }
            }
            Kind::ConsumerChange => {
                if let Ok(name) = std::str::from_utf8(r.subject())
                    && let Some(consumer) = self.consumers.get_mut(name)
                    && let Some(change) = ConsumerChange::decode(r.payload())
                {
                    consumer.state.apply(&change);
                    self.dirty.consumers.insert(name.to_owned());
                }
                self.apply_effects(r.effects());
            }
            Kind::Ceiling => {
                self.ceiling = self.ceiling.max(r.seq());
                (self.dirty.stream, self.dirty.settings) = (true, true);
            }
            Kind::Effects | Kind::Erased => self.apply_effects(r.effects()),
            Kind::Lost => {
                for effect in effects(r.effects()) {
                    if let Effect::Remove(range) = effect {
                        self.lose(range);
                    }
                }
            }
            Kind::Fragment => {}
        }
        applied
    }

    fn apply_message(&mut self, r: &Record<'_>, ids_max: usize) -> Applied {
        let seq = r.seq();
        let mut applied = Applied::default();
        if seq > self.last_seq {
            if seq > self.last_seq + 1 {
                // A record that continues higher on purpose says so.
                let gap = SeqRange {
                    first: self.last_seq + 1,
                    last: seq - 1,
                };
                let meant = effects(r.effects())
                    .any(|e| matches!(e, Effect::Remove(r) if r.first <= gap.first && r.last >= gap.last));
                applied.missing = (!meant).then_some(gap);
            }
            self.last_seq = seq;
            self.last_time = self.last_time.max(r.time());
            if r.kind == Kind::Message {
                let size = wire_size(
                    self.options.storage,
                    r.subject().len(),
                    r.headers().len(),
                    r.payload().len(),
                );
                self.push(seq, r.subject(), size);
            } else if self.messages == 0 {
                self.first_seq = seq + 1;
            }
            self.dirty.stream = true;
        }
        for effect in effects(r.effects()) {
            if let Effect::Dedup(hash) = effect {
                self.ids.insert(
                    Id {
                        hash,
                        seq,
                        time: r.time(),
                    },
                    ids_max,
                );
            }
        }
        self.apply_effects(r.effects());
        applied
    }

    fn apply_effects(&mut self, bytes: &[u8]) {
        for effect in effects(bytes) {
            match effect {
                Effect::Dedup(_) => {}
                Effect::Remove(range) => self.remove_range(range),
                Effect::Purge { filter, below } => self.purge(filter, below),
                Effect::Erase(range) if self.options.storage == Storage::File => {
                    self.erasing.push(Erasing { range, op: 0 });
                    self.dirty.erasing = true;
                }
                Effect::Erase(_) => {}
            }
        }
    }

    /// Adds a live message above all others.
    pub(crate) fn push(&mut self, seq: u64, subject: &[u8], size: u32) {
        let id = self.subjects.intern(subject);
        self.subjects.added(id, seq);
        self.push_item(seq, Item { subject: id, size });
    }

    /// Adds live messages of one span above all others: offsets, and items whose sizes are without the subject. The subjects
    /// are the caller's to count.
    pub(crate) fn push_items(&mut self, number: u64, items: &[(usize, Item)], bytes: u64) {
        if let (0, Some((off, _))) = (self.messages, items.first()) {
            self.first_seq = number * SPAN as u64 + *off as u64;
        }
        self.messages += items.len() as u64;
        self.bytes += bytes;
        let span = self.span(number);
        items.iter().for_each(|(off, item)| span.push(*off, *item));
    }

    /// Adds a whole span above all others. The subjects are the caller's to count.
    pub(crate) fn push_span(&mut self, number: u64, span: Span, bytes: u64) {
        if self.messages == 0 {
            let start = number * SPAN as u64;
            span.each(0, |off, _| {
                self.first_seq = start + off as u64;
                false
            });
        }
        self.messages += u64::from(span.live());
        self.bytes += bytes;
        if let Some(mut last) = self.spans.last_entry() {
            last.get_mut().seal();
        }
        self.spans.insert(number, span);
    }

    /// The span of this number, which is or becomes the last one.
    fn span(&mut self, number: u64) -> &mut Span {
        if let Some(mut last) = self.spans.last_entry()
            && *last.key() != number
        {
            last.get_mut().seal();
        }
        let births = &mut self.births;
        self.spans.entry(number).or_insert_with(|| {
            *births = births.wrapping_add(1);
            Span::new(*births)
        })
    }

    fn push_item(&mut self, seq: u64, item: Item) {
        if self.messages == 0 {
            self.first_seq = seq;
        }
        self.messages += 1;
        self.bytes += u64::from(item.size);
        let (number, off) = locate(seq);
        // Spans keep sizes without the subject, which for messages of one length packs to nothing.
        let size = item
            .size
            .saturating_sub(self.subjects.key(item.subject).len() as u32);
        let item = Item { size, ..item };
        self.span(number).push(off, item);
    }

    /// Removes one message; answers what it was when it was live.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<Item> {
        let (number, off) = locate(seq);
        let span = self.spans.get_mut(&number)?;
        let mut item = span.remove(off)?;
        // What goes at the front the floor tells.
        let tell = seq != self.first_seq && seq <= self.settling && span.mark();
        item.size += self.subjects.key(item.subject).len() as u32;
        if span.live() == 0 {
            self.spans.remove(&number);
        }
        self.subjects.removed(item.subject, seq);
        self.messages -= 1;
        self.bytes -= u64::from(item.size);
        self.dirty.stream = true;
        if seq == self.first_seq {
            self.first_seq = self.next_live(seq).unwrap_or(self.last_seq + 1);
        } else if tell {
            self.dirty.spans.insert(number);
        }
        if self.subjects.wants_compaction() {
            self.compact_subjects();
        }
        Some(item)
    }

    fn remove_range(&mut self, range: SeqRange) {
        if range.first == range.last {
            self.remove(range.first);
            return;
        }
        let mut from = range.first;
        while let Some(seq) = self.next_live(from).filter(|s| *s <= range.last) {
            self.remove(seq);
            from = seq + 1;
        }
    }

    /// Counts sequences as lost, and removes those that are live.
    pub(crate) fn lose(&mut self, range: SeqRange) {
        if range.is_empty() {
            return;
        }
        self.remove_range(range);
        (self.dirty.stream, self.dirty.settings) = (true, true);
        // Grown over neighbours and overlaps, so that telling the same loss twice counts it once.
        let (mut first, mut last) = (range.first, range.last);
        while let Some((f, l)) = self
            .lost
            .range(..=last.saturating_add(1))
            .next_back()
            .map(|(f, l)| (*f, *l))
            && l.saturating_add(1) >= first
        {
            self.lost.remove(&f);
            first = first.min(f);
            last = last.max(l);
        }
        self.lost.insert(first, last);
    }

    pub(super) fn compact_subjects(&mut self) {
        let map = self.subjects.compact();
        for span in self.spans.values_mut() {
            span.remap(&map);
        }
    }
}
