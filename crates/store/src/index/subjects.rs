//! The subjects of one stream: how many messages each has, its first and its last.
//!
//! Keys lie end to end in one arena, entries are 32 bytes, a hash table of `u32` finds them: no heap object per subject. For
//! wildcards the ids are also kept in sorted runs of doubling size (a new subject costs O(log n) amortised), and a filter
//! is answered by *skipping*: behind a key that does not match, the smallest key that could is computed and sought, so
//! that `orders.*.eu` touches one key per second token and not every subject.
//!
//! A subject whose last message went keeps its entry until the dead are the majority; then [`SubjectTable::compact`]
//! renumbers, and the epoch tells cached matches apart. `first` and `last` may be out of date after removals from the
//! middle (flagged); the index above resolves them from its spans.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use windjet_protocol::subject;

const FIRST_STALE: u8 = 1;
const LAST_STALE: u8 = 2;
const FRESH_MAX: usize = 64;

/// Counts and bounds of one subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    key_at: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) count: u32,
    key_len: u16,
    stale: u8,
}

impl Entry {
    /// Whether `first` is only a lower bound.
    pub(crate) fn first_stale(&self) -> bool {
        self.stale & FIRST_STALE != 0
    }

    /// Whether `last` is only an upper bound.
    pub(crate) fn last_stale(&self) -> bool {
        self.stale & LAST_STALE != 0
    }
}

/// All subjects of one stream.
#[derive(Debug, Default)]
pub(crate) struct SubjectTable {
    entries: Vec<Entry>,
    keys: Vec<u8>,
    table: HashTable<u32>,
    hasher: RandomState,
    runs: Vec<Vec<u32>>,
    fresh: Vec<u32>,
    live: usize,
    epoch: u64,
}

impl SubjectTable {
    /// Subjects that have at least one message.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Ids given out so far; ids are `0..len`.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Changes when ids were renumbered.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn key(&self, id: u32) -> &[u8] {
        key_of(&self.keys, &self.entries[id as usize])
    }

    pub(crate) fn entry(&self, id: u32) -> &Entry {
        &self.entries[id as usize]
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |id| self.key(*id) == key).copied()
    }

    pub(crate) fn intern(&mut self, key: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(key);
        let (entries, keys) = (&self.entries, &self.keys);
        if let Some(id) = self
            .table
            .find(hash, |id| key_of(keys, &entries[*id as usize]) == key)
        {
            return *id;
        }
        let id = self.entries.len() as u32;
        let key_at = self.keys.len() as u64;
        // By an eighth at a time: doubling would leave up to half of it unused.
        if self.keys.capacity() - self.keys.len() < key.len() {
            self.keys.reserve_exact(key.len() + self.keys.len() / 8 + 256);
        }
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.entries.len() / 8 + 16);
        }
        self.keys.extend_from_slice(key);
        self.entries.push(Entry {
            key_at,
            first: 0,
            last: 0,
            count: 0,
            key_len: key.len() as u16,
            stale: 0,
        });
        let (entries, keys, hasher) = (&self.entries, &self.keys, &self.hasher);
        self.table.insert_unique(hash, id, |id| {
            hasher.hash_one(key_of(keys, &entries[*id as usize]))
        });
        self.fresh.push(id);
        if self.fresh.len() >= FRESH_MAX {
            self.sort_fresh();
        }
        id
    }

    /// Counts a new message of the subject, newer than all others.
    pub(crate) fn added(&mut self, id: u32, seq: u64) {
        let e = &mut self.entries[id as usize];
        if e.count == 0 {
            self.live += 1;
            e.first = seq;
            e.stale = 0;
        }
        e.count += 1;
        e.last = seq;
        e.stale &= !LAST_STALE;
    }

    /// Counts `n` messages of the subject, newer than all others, of which the first and the last are given.
    pub(crate) fn added_many(&mut self, id: u32, n: u32, first: u64, last: u64) {
        if n > 0 {
            self.added(id, first);
            let e = &mut self.entries[id as usize];
            e.count += n - 1;
            e.last = last;
        }
    }

    /// Counts a message of the subject as gone.
    pub(crate) fn removed(&mut self, id: u32, seq: u64) {
        let e = &mut self.entries[id as usize];
        e.count = e.count.saturating_sub(1);
        if e.count == 0 {
            self.live -= 1;
            return;
        }
        if seq == e.first {
            e.stale |= FIRST_STALE;
        }
        if seq == e.last {
            e.stale |= LAST_STALE;
        }
        if e.count == 1 {
            if e.stale & LAST_STALE == 0 {
                e.first = e.last;
                e.stale = 0;
            } else if e.stale & FIRST_STALE == 0 {
                e.last = e.first;
                e.stale = 0;
            }
        }
    }

    /// Counts `n` messages of the subject as gone, all of them below `below` and among its oldest.
    pub(crate) fn removed_below(&mut self, id: u32, n: u32, below: u64) {
        let e = &mut self.entries[id as usize];
        e.count = e.count.saturating_sub(n);
        if e.count == 0 {
            self.live -= 1;
        } else if e.first < below {
            e.first = below;
            e.stale |= FIRST_STALE;
        }
    }

    /// Writes back bounds that were looked up.
    pub(crate) fn resolve(&mut self, id: u32, first: Option<u64>, last: Option<u64>) {
        let e = &mut self.entries[id as usize];
        if let Some(first) = first {
            e.first = first;
            e.stale &= !FIRST_STALE;
        }
        if let Some(last) = last {
            e.last = last;
            e.stale &= !LAST_STALE;
        }
    }

    /// Calls `found` once for each subject, dead ones included, that matches `filter`.
    pub(crate) fn matching(&self, filter: &[u8], mut found: impl FnMut(u32)) {
        if subject::is_literal(filter) {
            if let Some(id) = self.find(filter) {
                found(id);
            }
            return;
        }
        for id in &self.fresh {
            if subject::matches(filter, self.key(*id)) {
                found(*id);
            }
        }
        for run in &self.runs {
            let mut at = 0;
            while let Some(id) = run.get(at) {
                match step(filter, self.key(*id)) {
                    Step::Match => {
                        found(*id);
                        at += 1;
                    }
                    Step::Next => at += 1,
                    Step::Done => break,
                    Step::Seek(target) => {
                        at += 1 + run[at + 1..].partition_point(|id| self.key(*id) < target.as_slice());
                    }
                }
            }
        }
    }

    /// Whether so many subjects are dead that renumbering pays.
    pub(crate) fn wants_compaction(&self) -> bool {
        let dead = self.entries.len() - self.live;
        dead > 1024 && dead > self.live
    }

    /// Drops dead subjects. Returns the new id of each old one, `u32::MAX` for the dead.
    pub(crate) fn compact(&mut self) -> Vec<u32> {
        let old = std::mem::take(self);
        self.hasher = old.hasher;
        self.epoch = old.epoch + 1;
        let mut map = vec![u32::MAX; old.entries.len()];
        for (i, e) in old.entries.iter().enumerate() {
            if e.count > 0 {
                let id = self.intern(key_of(&old.keys, e));
                let new = &mut self.entries[id as usize];
                *new = Entry {
                    key_at: new.key_at,
                    ..*e
                };
                self.live += 1;
                map[i] = id;
            }
        }
        map
    }

    /// Bytes of memory this table takes.
    pub(crate) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.keys.capacity()
            + self.table.capacity() * 8 / 7 * 5
            + self.runs.iter().map(|r| r.capacity() * 4).sum::<usize>()
    }

    fn sort_fresh(&mut self) {
        let mut run = std::mem::take(&mut self.fresh);
        run.sort_unstable_by(|a, b| self.key(*a).cmp(self.key(*b)));
        while let Some(last) = self.runs.pop_if(|r| r.len() <= run.len() * 2) {
            run = self.merge(&last, &run);
        }
        self.runs.push(run);
    }

    fn merge(&self, a: &[u32], b: &[u32]) -> Vec<u32> {
        let mut out = Vec::with_capacity(a.len() + b.len());
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            if self.key(a[i]) < self.key(b[j]) {
                out.push(a[i]);
                i += 1;
            } else {
                out.push(b[j]);
                j += 1;
            }
        }
        out.extend_from_slice(&a[i..]);
        out.extend_from_slice(&b[j..]);
        out
    }
}

fn key_of<'a>(keys: &'a [u8], e: &Entry) -> &'a [u8] {
    let at = e.key_at as usize;
    &keys[at..at + usize::from(e.key_len)]
}

/// What to do after looking at one key of a sorted run.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Match,
    Next,
    Seek(Vec<u8>),
    Done,
}

fn step(filter: &[u8], key: &[u8]) -> Step {
    let mut at = 0;
    let mut tokens = filter.split(|b| *b == b'.').peekable();
    while let Some(want) = tokens.next() {
        let last_token = tokens.peek().is_none();
        if at > key.len() {
            return Step::Next;
        }
        if want == b">" && last_token {
            return Step::Match;
        }
        let end = key[at..]
            .iter()
            .position(|b| *b == b'.')
            .map_or(key.len(), |p| at + p);
        if want != b"*" && want != &key[at..end] {
            return mismatch(&key[..at], want, key);
        }
        if last_token {
            if end == key.len() {
                return Step::Match;
            }
            let mut target = key[..end].to_vec();
            target.push(b'.' + 1);
            return Step::Seek(target);
        }
        at = end + 1;
    }
    Step::Next
}

/// The smallest key behind `key` that could match, when the token behind `prefix` should have been `want`.
fn mismatch(prefix: &[u8], want: &[u8], key: &[u8]) -> Step {
    let mut target = [prefix, want].concat();
    if target.as_slice() > key {
        return Step::Seek(target);
    }
    target.push(b'.');
    if target.as_slice() > key {
        return Step::Seek(target);
    }
    let mut target = prefix.to_vec();
    match target.last_mut() {
        None => Step::Done,
        Some(dot) => {
            *dot = b'.' + 1;
            Step::Seek(target)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(keys: &[Vec<u8>]) -> SubjectTable {
        let mut t = SubjectTable::default();
        for (i, k) in keys.iter().enumerate() {
            let id = t.intern(k);
            t.added(id, i as u64 + 1);
        }
        t
    }

    fn subject_strategy() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(
            proptest::sample::select(vec!["a", "b", "a-", "ab", "z", "!", "*"]),
            1..4,
        )
        .prop_map(|t| t.join(".").into_bytes())
    }

    fn filter_strategy() -> impl Strategy<Value = Vec<u8>> {
        let tokens = proptest::collection::vec(
            proptest::sample::select(vec!["a", "b", "a-", "ab", "z", "*"]),
            0..4,
        );
        (tokens, any::<bool>()).prop_filter_map("empty", |(mut t, full)| {
            if full {
                t.push(">");
            }
            (!t.is_empty()).then(|| t.join(".").into_bytes())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn skipping_finds_exactly_what_matches(
            keys in proptest::collection::vec(subject_strategy(), 0..200),
            filter in filter_strategy(),
        ) {
            let mut t = table(&keys);
            t.sort_fresh();
            let mut got = Vec::new();
            t.matching(&filter, |id| got.push(t.key(id).to_vec()));
            got.sort();
            let mut want: Vec<Vec<u8>> = keys.into_iter().filter(|k| {
                if subject::is_literal(&filter) { *k == filter } else { subject::matches(&filter, k) }
            }).collect();
            want.sort();
            want.dedup();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn a_wildcard_in_the_middle_touches_few_keys() {
        assert_eq!(step(b"a.*.x", b"a.b.c"), Step::Seek(b"a.b.x".to_vec()));
        assert_eq!(step(b"a.*.x", b"a.b.x.y"), Step::Seek(b"a.b.x/".to_vec()));
        assert_eq!(step(b"a.*.x", b"a.b.y"), Step::Seek(b"a.b/".to_vec()));
        assert_eq!(step(b"a.*", b"b"), Step::Done);
    }

    #[test]
    fn compaction_keeps_the_living_and_their_counts() {
        let keys: Vec<Vec<u8>> = (0..3000).map(|i| format!("k.{i}").into_bytes()).collect();
        let mut t = table(&keys);
        for i in 0..2900u64 {
            t.removed(i as u32, i + 1);
        }
        assert!(t.wants_compaction());
        let map = t.compact();
        assert_eq!((t.live(), t.len(), t.epoch()), (100, 100, 1));
        assert_eq!(map[0], u32::MAX);
        assert_eq!(t.key(map[2950]), b"k.2950");
        assert_eq!(t.entry(map[2950]).last, 2951);
        let mut n = 0;
        t.matching(b"k.*", |_| n += 1);
        assert_eq!(n, 100);
    }
}
