//! Filters resolved to sets of subject ids.
//!
//! A [`Matcher`] belongs to one user of one stream (a consumer, a request). It remembers which subjects matched and looks
//! only at subjects that are new since, so that asking again costs nothing; after a renumbering it starts anew.

use bytes::Bytes;
use windjet_protocol::subject;

use super::subjects::SubjectTable;

/// A set of subject ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Matching {
    #[default]
    None,
    All,
    One(u32),
    Many {
        bits: Vec<u64>,
        ids: Vec<u32>,
    },
}

impl Matching {
    #[cfg(test)]
    pub(crate) fn many(ids: impl IntoIterator<Item = u32>) -> Self {
        let mut set = Self::None;
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::One(one) => *one == id,
            Self::Many { bits, .. } => bits
                .get(id as usize / 64)
                .is_some_and(|w| w & (1 << (id % 64)) != 0),
        }
    }

    pub(crate) fn insert(&mut self, id: u32) {
        if self.contains(id) {
            return;
        }
        match self {
            Self::None => *self = Self::One(id),
            Self::All => {}
            Self::One(one) => {
                let one = *one;
                *self = Self::Many {
                    bits: Vec::new(),
                    ids: Vec::new(),
                };
                self.insert(one);
                self.insert(id);
            }
            Self::Many { bits, ids } => {
                let word = id as usize / 64;
                if bits.len() <= word {
                    bits.resize(word + 1, 0);
                }
                bits[word] |= 1 << (id % 64);
                ids.push(id);
            }
        }
    }

    /// The ids, of all sets but [`Matching::All`].
    pub(crate) fn ids(&self) -> &[u32] {
        match self {
            Self::None | Self::All => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::Many { ids, .. } => ids,
        }
    }
}

/// One or more subject filters, bound to a stream by use.
#[derive(Debug, Clone)]
pub struct Matcher {
    filters: Vec<Bytes>,
    set: Matching,
    seen: u32,
    epoch: u64,
    started: bool,
}

impl Matcher {
    /// A matcher for messages that match any of `filters`; none at all, or a `>` among them, means every message.
    pub fn new<I, F>(filters: I) -> Self
    where
        I: IntoIterator<Item = F>,
        F: AsRef<[u8]>,
    {
        let filters: Vec<Bytes> = filters
            .into_iter()
            .map(|f| Bytes::copy_from_slice(f.as_ref()))
            .collect();
        Self {
            filters,
            set: Matching::None,
            seen: 0,
            epoch: 0,
            started: false,
        }
    }

    /// Whether it matches every message.
    pub fn is_all(&self) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|f| &f[..] == b">")
    }

    /// Whether it matches messages of `subject`.
    pub fn matches(&self, subject: &[u8]) -> bool {
        self.is_all() || self.filters.iter().any(|f| filter_matches(f, subject))
    }

    pub(crate) fn resolve(&mut self, subjects: &SubjectTable) -> &Matching {
        if self.is_all() {
            self.set = Matching::All;
            return &self.set;
        }
        if !self.started || self.epoch != subjects.epoch() {
            let set = &mut self.set;
            *set = Matching::None;
            for filter in &self.filters {
                subjects.matching(filter, |id| set.insert(id));
            }
            self.started = true;
            self.epoch = subjects.epoch();
        } else {
            for id in self.seen..subjects.len() {
                if self.filters.iter().any(|f| filter_matches(f, subjects.key(id))) {
                    self.set.insert(id);
                }
            }
        }
        self.seen = subjects.len();
        &self.set
    }
}

/// Whether a filter, literal or with wildcards, covers a stored subject. A literal filter is compared byte by byte.
pub(crate) fn filter_matches(filter: &[u8], stored: &[u8]) -> bool {
    filter == stored || subject::matches(filter, stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matcher_learns_new_subjects_and_survives_renumbering() {
        let mut t = SubjectTable::default();
        for (i, k) in [&b"a.1"[..], b"b.1", b"a.2"].iter().enumerate() {
            let id = t.intern(k);
            t.added(id, i as u64 + 1);
        }
        let mut m = Matcher::new(["a.*"]);
        assert_eq!(m.resolve(&t), &Matching::many([0, 2]));
        let id = t.intern(b"a.3");
        t.added(id, 4);
        assert_eq!(m.resolve(&t), &Matching::many([0, 2, 3]));
        t.removed(0, 1);
        t.compact();
        let set = m.resolve(&t).clone();
        assert_eq!(set.ids().len(), 2);
        assert!(set.ids().iter().all(|id| t.key(*id).starts_with(b"a.")));
        assert_eq!(Matcher::new(Vec::<&str>::new()).resolve(&t), &Matching::All);
    }
}
