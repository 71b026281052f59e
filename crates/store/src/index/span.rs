//! A span: which of 16,384 neighbouring sequences are live, their subjects and their sizes.
//!
//! Spans are the whole in-memory index of a stream's messages: by sequence, by subject, what is deleted. A span that is
//! still appended to keeps plain columns; when the next one begins it is *sealed*: a dictionary of its subjects with live
//! counts, one byte per message for the subject (or as many bits as its number needs, or none), and the size as a small difference (none when all are
//! equal). Deletes cost one bit. When few messages are left the span becomes a short list, when none is, it goes.
//!
//! Offsets are sequences relative to the span's start.

use hashbrown::HashMap;

use super::columns::{Column, Dict, Sizes, dictionary};
use super::matcher::Matching;

/// Sequences per span.
pub(crate) const SPAN: usize = if cfg!(test) { 64 } else { 16_384 };
pub(super) const WORDS: usize = SPAN / 64;
const SPARSE_MAX: u32 = SPAN as u32 / 32;
pub(super) const GONE: u32 = u32::MAX;
/// Subjects in a span from which on the column is packed by bits.
pub(super) const NARROW_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// One message as the index knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) subject: u32,
    /// By the wire's formula; inside a span without the subject's length.
    pub(crate) size: u32,
}

#[derive(Debug)]
pub(crate) struct Span {
    columns: Columns,
    live: u32,
    /// Tells it from other spans of the same number, and how often something was removed.
    birth: u32,
    removals: u32,
    /// Whether it is among those of which the manifest has to hear.
    marked: bool,
    bytes: u64,
}

#[derive(Debug)]
enum Columns {
    Open { subjects: Vec<u32>, sizes: Vec<u32> },
    Sealed(Box<Sealed>),
    Sparse(Vec<(u16, Item)>),
}

#[derive(Debug)]
struct Sealed {
    dict: Dict,
    counts: Box<[u16]>,
    column: Column,
    sizes: Sizes,
    live: Box<[u64; WORDS]>,
}

pub(super) fn bit(words: &[u64; WORDS], off: usize) -> bool {
    words[off / 64] & (1 << (off % 64)) != 0
}

impl Span {
    pub(crate) fn new(birth: u32) -> Self {
        Self {
            birth,
            columns: Columns::Open {
                subjects: Vec::new(),
                sizes: Vec::new(),
            },
            live: 0,
            removals: 0,
            marked: false,
            bytes: 0,
        }
    }

    /// Whether a span with so many live messages is packed, and not a short list.
    pub(crate) fn packs(live: u32) -> bool {
        live >= SPARSE_MAX
    }

    /// A packed span: the subjects in order, how many live messages each has, for each offset the position of its subject
    /// and the size (anything where no message is live), the sizes of the live together, and which those are.
    pub(crate) fn packed(
        dict: &[u32],
        counts: Vec<u16>,
        numbers: impl ExactSizeIterator<Item = u16>,
        sizes: &[u32],
        bytes: u64,
        live: Box<[u64; WORDS]>,
    ) -> Self {
        Self {
            bytes,
            live: live.iter().map(|w| w.count_ones()).sum(),
            birth: 0,
            removals: 0,
            marked: false,
            columns: Columns::Sealed(Box::new(Sealed {
                column: Column::new(dict.len(), numbers),
                dict: Dict::new(dict),
                counts: counts.into(),
                sizes: Sizes::new(sizes, &live),
                live,
            })),
        }
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Notes that the manifest has to hear of a removal; false when that was noted already.
    pub(crate) fn mark(&mut self) -> bool {
        !std::mem::replace(&mut self.marked, true)
    }

    /// The manifest is being told.
    pub(crate) fn unmark(&mut self) {
        self.marked = false;
    }

    /// The sizes of all live messages together.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Calls `f` with subjects and how many live messages they have; a subject may come more than once.
    pub(crate) fn totals(&self, mut f: impl FnMut(u32, u32)) {
        match &self.columns {
            Columns::Sealed(s) => {
                s.dict
                    .iter()
                    .zip(&s.counts)
                    .filter(|(_, n)| **n > 0)
                    .for_each(|(id, n)| f(id, u32::from(*n)));
            }
            _ => {
                self.each(0, |_, item| {
                    f(item.subject, 1);
                    true
                });
            }
        }
    }

    /// Adds a message behind all others. A span that was sealed is opened again, which only recovery asks for.
    pub(crate) fn push(&mut self, off: usize, item: Item) {
        if !matches!(self.columns, Columns::Open { .. }) {
            self.reopen();
        }
        if let Columns::Open { subjects, sizes } = &mut self.columns {
            debug_assert!(off >= subjects.len() && off < SPAN);
            subjects.resize(off, GONE);
            sizes.resize(off, 0);
            subjects.push(item.subject);
            sizes.push(item.size);
            self.live += 1;
            self.bytes += u64::from(item.size);
        }
    }

    fn reopen(&mut self) {
        let (mut subjects, mut sizes) = (Vec::new(), Vec::new());
        self.each(0, |off, item| {
            subjects.resize(off, GONE);
            sizes.resize(off, 0);
            subjects.push(item.subject);
            sizes.push(item.size);
            true
        });
        self.columns = Columns::Open { subjects, sizes };
    }

    /// Packs the columns; called when no more messages will come.
    pub(crate) fn seal(&mut self) {
        if let Columns::Open { subjects, sizes } = &self.columns {
            if self.live < SPARSE_MAX {
                self.make_sparse();
                return;
            }
            let mut live = Box::new([0u64; WORDS]);
            for (off, _) in subjects.iter().enumerate().filter(|(_, id)| **id != GONE) {
                live[off / 64] |= 1 << (off % 64);
            }
            let (dict, counts, numbers) = dictionary(subjects);
            let column = Column::new(dict.len(), numbers.iter().copied());
            let sizes = Sizes::new(sizes, &live);
            self.columns = Columns::Sealed(Box::new(Sealed {
                dict,
                counts,
                column,
                sizes,
                live,
            }));
        }
    }

    fn make_sparse(&mut self) {
        let mut list = Vec::with_capacity(self.live as usize);
        self.each(0, |off, item| {
            list.push((off as u16, item));
            true
        });
        self.columns = Columns::Sparse(list);
    }

    pub(crate) fn get(&self, off: usize) -> Option<Item> {
        match &self.columns {
            Columns::Open { subjects, sizes } => {
                let subject = *subjects.get(off)?;
                (subject != GONE).then(|| Item {
                    subject,
                    size: sizes[off],
                })
            }
            Columns::Sealed(s) => bit(&s.live, off).then(|| s.item(off)),
            Columns::Sparse(list) => {
                let i = list.binary_search_by_key(&(off as u16), |(o, _)| *o).ok()?;
                Some(list[i].1)
            }
        }
    }

    pub(crate) fn remove(&mut self, off: usize) -> Option<Item> {
        let item = self.get(off)?;
        self.removals = self.removals.wrapping_add(1);
        self.live -= 1;
        self.bytes -= u64::from(item.size);
        match &mut self.columns {
            Columns::Open { subjects, .. } => subjects[off] = GONE,
            Columns::Sealed(s) => {
                s.live[off / 64] &= !(1 << (off % 64));
                s.counts[s.column.get(off)] -= 1;
                if self.live < SPARSE_MAX / 2 {
                    self.make_sparse();
                }
            }
            Columns::Sparse(list) => list.retain(|(o, _)| usize::from(*o) != off),
        }
        Some(item)
    }

    /// What a removal of the matches below the offset `end` would take; `None` when nothing.
    pub(crate) fn doom(&self, set: &Matching, end: usize) -> Option<Doomed> {
        if !self.may_match(set) {
            return None;
        }
        let mut doomed = Doomed {
            words: Box::new([0; WORDS]),
            as_of: (self.birth, self.removals),
            taken: 0,
            bytes: 0,
            of: Vec::new(),
        };
        let mut take = |off: usize, size: u32| {
            doomed.words[off / 64] |= 1 << (off % 64);
            doomed.taken += 1;
            doomed.bytes += u64::from(size);
        };
        if let Columns::Sealed(s) = &self.columns {
            // By the position of the subject: whether it matches, and how many go.
            let mut counts: Vec<(bool, u32)> = s.dict.iter().map(|id| (set.contains(id), 0)).collect();
            for off in s.offsets(0).take_while(|off| *off < end) {
                if let (true, n) = &mut counts[s.column.get(off)] {
                    *n += 1;
                    take(off, s.sizes.get(off));
                }
            }
            let of = counts.iter().enumerate().filter(|(_, (_, n))| *n > 0);
            doomed.of = of
                .map(|(i, (_, n))| (s.dict.get(i), Some(i as u16), *n))
                .collect();
        } else {
            let mut of: HashMap<u32, u32, foldhash::fast::FixedState> = HashMap::default();
            self.each(0, |off, item| {
                if off < end && set.contains(item.subject) {
                    take(off, item.size);
                    *of.entry(item.subject).or_default() += 1;
                }
                off < end
            });
            doomed.of = of.into_iter().map(|(id, n)| (id, None, n)).collect();
        }
        (doomed.taken > 0).then_some(doomed)
    }

    /// Removes what [`Span::doom`] listed. False, and nothing is removed, when some of it may be gone or the span was
    /// packed since.
    pub(crate) fn strike(&mut self, doomed: &Doomed) -> bool {
        let sealed = matches!(self.columns, Columns::Sealed(_));
        let same = (self.birth, self.removals) == doomed.as_of;
        if !same || doomed.of.iter().any(|(_, at, _)| at.is_some() != sealed) {
            return false;
        }
        self.removals = self.removals.wrapping_add(1);
        self.live -= doomed.taken;
        self.bytes -= doomed.bytes;
        match &mut self.columns {
            Columns::Open { subjects, .. } => doomed.offsets().for_each(|off| subjects[off] = GONE),
            Columns::Sparse(list) => list.retain(|(off, _)| !bit(&doomed.words, usize::from(*off))),
            Columns::Sealed(s) => {
                s.live
                    .iter_mut()
                    .zip(doomed.words.iter())
                    .for_each(|(live, w)| *live &= !w);
                for (_, at, n) in &doomed.of {
                    if let Some(at) = at {
                        s.counts[usize::from(*at)] -= *n as u16;
                    }
                }
                if self.live < SPARSE_MAX / 2 {
                    self.make_sparse();
                }
            }
        }
        true
    }

    /// Calls `f` for live messages from `from` on, in order, until it answers false. Answers whether it never did.
    pub(crate) fn each(&self, from: usize, mut f: impl FnMut(usize, Item) -> bool) -> bool {
        match &self.columns {
            Columns::Open { subjects, sizes } => (from..subjects.len())
                .filter(|off| subjects[*off] != GONE)
                .all(|off| {
                    f(
                        off,
                        Item {
                            subject: subjects[off],
                            size: sizes[off],
                        },
                    )
                }),
            Columns::Sealed(s) => s.offsets(from).all(|off| f(off, s.item(off))),
            Columns::Sparse(list) => {
                let start = list.partition_point(|(o, _)| usize::from(*o) < from);
                list[start..].iter().all(|(o, item)| f(usize::from(*o), *item))
            }
        }
    }

    /// A bit for each offset that is live.
    pub(crate) fn live_bits(&self) -> [u64; WORDS] {
        if let Columns::Sealed(s) = &self.columns {
            return *s.live;
        }
        let mut bits = [0; WORDS];
        self.each(0, |off, _| {
            bits[off / 64] |= 1 << (off % 64);
            true
        });
        bits
    }

    /// Whether a live message can match; false only when none does.
    fn may_match(&self, set: &Matching) -> bool {
        match (&self.columns, set) {
            (_, Matching::None) => false,
            (Columns::Sealed(s), Matching::One(id)) => s.dict.find(*id).is_some_and(|i| s.counts[i] > 0),
            (Columns::Sealed(s), Matching::Many { .. }) => s
                .dict
                .iter()
                .zip(&s.counts)
                .any(|(id, n)| *n > 0 && set.contains(id)),
            _ => self.live > 0,
        }
    }

    /// Like [`Span::each`], for those messages whose subject is in `set`.
    pub(crate) fn each_match(
        &self,
        set: &Matching,
        from: usize,
        mut f: impl FnMut(usize, Item) -> bool,
    ) -> bool {
        if !self.may_match(set) {
            return true;
        }
        if let (Columns::Sealed(s), Matching::One(id)) = (&self.columns, set) {
            let Some(index) = s.dict.find(*id) else {
                return true;
            };
            return s.each_of(index, from, &mut f);
        }
        self.each(from, |off, item| !set.contains(item.subject) || f(off, item))
    }

    /// The last match at or before `to`.
    pub(crate) fn prev_match(&self, set: &Matching, to: usize) -> Option<usize> {
        if !self.may_match(set) {
            return None;
        }
        let fits = |item: Option<Item>| item.is_some_and(|i| set.contains(i.subject));
        match &self.columns {
            Columns::Sparse(list) => {
                let end = list.partition_point(|(o, _)| usize::from(*o) <= to);
                list[..end]
                    .iter()
                    .rev()
                    .find(|(_, i)| set.contains(i.subject))
                    .map(|(o, _)| usize::from(*o))
            }
            _ => (0..=to.min(SPAN - 1)).rev().find(|off| fits(self.get(*off))),
        }
    }

    /// How many matches there are from `from` on.
    pub(crate) fn count(&self, set: &Matching, from: usize) -> u64 {
        if from == 0 {
            match (&self.columns, set) {
                (_, Matching::All) => return u64::from(self.live),
                (Columns::Sealed(s), Matching::One(id)) => {
                    return s.dict.find(*id).map_or(0, |i| u64::from(s.counts[i]));
                }
                (Columns::Sealed(s), Matching::Many { .. }) => {
                    let matching = s.dict.iter().zip(&s.counts).filter(|(id, _)| set.contains(*id));
                    return matching.map(|(_, n)| u64::from(*n)).sum();
                }
                _ => {}
            }
        }
        if let (Columns::Sealed(s), Matching::All) = (&self.columns, set) {
            let first = s.live.get(from / 64).map_or(0, |w| w & (u64::MAX << (from % 64)));
            let rest = s.live.iter().skip(from / 64 + 1);
            let n = first.count_ones() + rest.map(|w| w.count_ones()).sum::<u32>();
            return u64::from(n);
        }
        let mut n = 0;
        self.each_match(set, from, |_, _| {
            n += 1;
            true
        });
        n
    }

    /// Renumbers subjects.
    pub(crate) fn remap(&mut self, map: &[u32]) {
        let new = |id: u32| map.get(id as usize).copied().unwrap_or(GONE);
        match &mut self.columns {
            Columns::Open { subjects, .. } => {
                subjects
                    .iter_mut()
                    .filter(|id| **id != GONE)
                    .for_each(|id| *id = new(*id));
            }
            Columns::Sparse(list) => list.iter_mut().for_each(|(_, i)| i.subject = new(i.subject)),
            Columns::Sealed(_) => {
                self.reopen();
                self.remap(map);
                self.seal();
            }
        }
    }

    /// Bytes of memory this span takes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + match &self.columns {
                Columns::Open { subjects, sizes } => (subjects.capacity() + sizes.capacity()) * 4,
                Columns::Sparse(list) => list.capacity() * size_of::<(u16, Item)>(),
                Columns::Sealed(s) => {
                    let column = match &s.column {
                        Column::Same => 0,
                        Column::Narrow(c) => c.len(),
                        Column::Packed(c) => c.memory(),
                    };
                    size_of::<Sealed>()
                        + s.dict.memory()
                        + s.counts.len() * 2
                        + column
                        + s.sizes.memory()
                        + WORDS * 8
                }
            }
    }
}

/// Messages of a span that are about to be removed together.
#[derive(Debug)]
pub(crate) struct Doomed {
    words: Box<[u64; WORDS]>,
    /// The span's birth and removals when this was listed.
    as_of: (u32, u32),
    taken: u32,
    bytes: u64,
    /// Subject, its place in the span's dictionary if the span is packed, and how many of its messages go.
    of: Vec<(u32, Option<u16>, u32)>,
}

impl Doomed {
    pub(crate) fn len(&self) -> u32 {
        self.taken
    }

    /// Their sizes together, without subjects.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn totals(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.of.iter().map(|(id, _, n)| (*id, *n))
    }

    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(i, w)| {
            (0..64)
                .filter(move |b| w & (1 << b) != 0)
                .map(move |b| i * 64 + b)
        })
    }
}

impl Sealed {
    fn item(&self, off: usize) -> Item {
        Item {
            subject: self.dict.get(self.column.get(off)),
            size: self.sizes.get(off),
        }
    }

    /// Live offsets from `from` on.
    fn offsets(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        let mut word = from / 64;
        let mut bits = self.live.get(word).map_or(0, |w| w & (u64::MAX << (from % 64)));
        std::iter::from_fn(move || {
            while bits == 0 {
                word += 1;
                bits = *self.live.get(word)?;
            }
            let off = word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            Some(off)
        })
    }

    /// Live messages of one dictionary entry.
    fn each_of(&self, index: usize, from: usize, f: &mut impl FnMut(usize, Item) -> bool) -> bool {
        match &self.column {
            Column::Same => self.offsets(from).all(|off| f(off, self.item(off))),
            Column::Narrow(c) => self.scan(c, index as u8, from, f),
            Column::Packed(c) => {
                let want = index as u16;
                (from..c.len)
                    .filter(|off| c.get(*off) == want && bit(&self.live, *off))
                    .all(|off| f(off, self.item(off)))
            }
        }
    }

    fn scan<T: Copy + PartialEq>(
        &self,
        column: &[T],
        want: T,
        from: usize,
        f: &mut impl FnMut(usize, Item) -> bool,
    ) -> bool {
        let from = from.min(column.len());
        column[from..]
            .iter()
            .enumerate()
            .filter(|(i, v)| **v == want && bit(&self.live, from + i))
            .all(|(i, _)| f(from + i, self.item(from + i)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_span_answers_like_a_list_whatever_its_form(
            pushes in proptest::collection::vec((0u32..6, 0u32..100_000, 0usize..3), 1..SPAN / 2),
            removals in proptest::collection::vec(0usize..SPAN, 0..SPAN),
            seal_after in 0usize..SPAN,
            from in 0usize..SPAN,
        ) {
            let mut span = Span::new(0);
            let mut model: Vec<(usize, Item)> = Vec::new();
            let mut off = 0;
            for (subject, size, gap) in pushes {
                off += gap;
                if off >= SPAN { break; }
                let item = Item { subject, size };
                span.push(off, item);
                model.push((off, item));
                off += 1;
            }
            for (i, r) in removals.into_iter().enumerate() {
                if i == seal_after { span.seal(); }
                let want = model.iter().position(|(o, _)| *o == r).map(|i| model.remove(i).1);
                prop_assert_eq!(span.remove(r), want);
            }
            prop_assert_eq!(span.live() as usize, model.len());
            for set in [Matching::All, Matching::None, Matching::One(2), Matching::many([1, 4])] {
                let want: Vec<_> = model.iter().copied()
                    .filter(|(o, i)| *o >= from && set.contains(i.subject)).collect();
                let mut got = Vec::new();
                span.each_match(&set, from, |o, i| { got.push((o, i)); true });
                prop_assert_eq!(&got, &want);
                prop_assert_eq!(span.count(&set, from), want.len() as u64);
                let all = model.iter().filter(|(_, i)| set.contains(i.subject)).count();
                prop_assert_eq!(span.count(&set, 0), all as u64);
                let prev = model.iter().rev().find(|(o, i)| *o <= from && set.contains(i.subject));
                prop_assert_eq!(span.prev_match(&set, from), prev.map(|p| p.0));
            }
            for o in 0..SPAN {
                let want = model.iter().find(|(m, _)| *m == o).map(|m| m.1);
                prop_assert_eq!(span.get(o), want);
            }
        }
    }
}
