//! The columns of a sealed span: its subjects as a dictionary, numbers into it as small as they can be, and sizes.

use hashbrown::HashMap;

use super::span::{GONE, NARROW_MAX, SPAN, WORDS, bit};

/// The subjects of a span in order: neighbours, as when all of a few thousand are in use, or a list.
#[derive(Debug)]
pub(super) enum Dict {
    Neighbours { first: u32, len: usize },
    Listed(Box<[u32]>),
}

impl Dict {
    pub(super) fn new(ids: &[u32]) -> Self {
        match (ids.first(), ids.last()) {
            (Some(first), Some(last)) if (last - first) as usize + 1 == ids.len() => Self::Neighbours {
                first: *first,
                len: ids.len(),
            },
            _ => Self::Listed(ids.into()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Neighbours { len, .. } => *len,
            Self::Listed(ids) => ids.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        match self {
            Self::Neighbours { first, .. } => first + at as u32,
            Self::Listed(ids) => ids[at],
        }
    }

    pub(super) fn find(&self, id: u32) -> Option<usize> {
        match self {
            Self::Neighbours { first, len } => {
                let at = id.checked_sub(*first)? as usize;
                (at < *len).then_some(at)
            }
            Self::Listed(ids) => ids.binary_search(&id).ok(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Neighbours { .. } => 0,
            Self::Listed(ids) => ids.len() * 4,
        }
    }
}

#[derive(Debug)]
pub(super) enum Column {
    Same,
    Narrow(Box<[u8]>),
    Packed(Packed),
}

/// Numbers of `bits` bits each, end to end.
#[derive(Debug)]
pub(super) struct Packed {
    bits: usize,
    pub(super) len: usize,
    words: Box<[u64]>,
}

impl Packed {
    pub(super) fn memory(&self) -> usize {
        self.words.len() * 8
    }

    pub(super) fn new(bits: usize, values: impl ExactSizeIterator<Item = u16>) -> Self {
        let len = values.len();
        let mut words = Vec::with_capacity((len * bits).div_ceil(64) + 1);
        let (mut word, mut filled) = (0u64, 0);
        for v in values {
            word |= u64::from(v) << filled;
            filled += bits;
            if filled >= 64 {
                words.push(word);
                filled -= 64;
                // What of `v` did not fit; nothing when it ended with the word.
                word = u64::from(v) >> (bits - filled);
            }
        }
        words.push(word);
        words.resize((len * bits).div_ceil(64) + 1, 0);
        let words = words.into_boxed_slice();
        Self { bits, len, words }
    }

    pub(super) fn get(&self, i: usize) -> u16 {
        let (word, shift) = (i * self.bits / 64, i * self.bits % 64);
        let mut v = self.words[word] >> shift;
        if shift + self.bits > 64 {
            v |= self.words[word + 1] << (64 - shift);
        }
        (v & ((1 << self.bits) - 1)) as u16
    }
}

#[derive(Debug)]
pub(super) enum Sizes {
    Same(u32),
    Narrow(u32, Box<[u8]>),
    Wide(u32, Box<[u16]>),
    Plain(Box<[u32]>),
}

impl Column {
    /// Of positions in a dictionary of `subjects`.
    pub(super) fn new(subjects: usize, numbers: impl ExactSizeIterator<Item = u16>) -> Self {
        match subjects {
            0 | 1 => Self::Same,
            n if n <= NARROW_MAX => Self::Narrow(numbers.map(|n| n as u8).collect()),
            n => Self::Packed(Packed::new((n - 1).ilog2() as usize + 1, numbers)),
        }
    }

    pub(super) fn get(&self, off: usize) -> usize {
        match self {
            Self::Same => 0,
            Self::Narrow(c) => usize::from(c[off]),
            Self::Packed(c) => usize::from(c.get(off)),
        }
    }
}

impl Sizes {
    pub(super) fn new(sizes: &[u32], live: &[u64; WORDS]) -> Self {
        let wider = |(min, max): (u32, u32), s: u32| (min.min(s), max.max(s));
        let (min, max) = if live.iter().all(|w| *w == u64::MAX) {
            sizes.iter().copied().fold((u32::MAX, 0), wider)
        } else {
            let of_live = sizes.iter().enumerate().filter(|(i, _)| bit(live, *i));
            of_live.map(|(_, s)| *s).fold((u32::MAX, 0), wider)
        };
        let min = min.min(max);
        match max - min {
            0 => Self::Same(min),
            d if d <= u32::from(u8::MAX) => {
                Self::Narrow(min, sizes.iter().map(|s| s.saturating_sub(min) as u8).collect())
            }
            d if d <= u32::from(u16::MAX) => {
                Self::Wide(min, sizes.iter().map(|s| s.saturating_sub(min) as u16).collect())
            }
            _ => Self::Plain(sizes.into()),
        }
    }

    pub(super) fn get(&self, off: usize) -> u32 {
        match self {
            Self::Same(s) => *s,
            Self::Narrow(min, d) => min + u32::from(d[off]),
            Self::Wide(min, d) => min + u32::from(d[off]),
            Self::Plain(s) => s[off],
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Same(_) => 0,
            Self::Narrow(_, d) => d.len(),
            Self::Wide(_, d) => d.len() * 2,
            Self::Plain(d) => d.len() * 4,
        }
    }
}

/// The subjects of a column in order, how many messages each has, and the column as numbers in that order.
pub(super) fn dictionary(column: &[u32]) -> (Dict, Box<[u16]>, Vec<u16>) {
    let live = || column.iter().copied().filter(|id| *id != GONE);
    let (min, max) = live().fold((GONE, 0), |(min, max), id| (min.min(id), max.max(id)));
    let width = (max.saturating_sub(min) as usize).saturating_add(1);
    let mut dict = Vec::new();
    let mut counts = Vec::new();
    if width <= SPAN * 8 {
        let mut of = vec![0u16; width];
        live().for_each(|id| of[(id - min) as usize] += 1);
        for (i, n) in of.iter_mut().enumerate().filter(|(_, n)| **n > 0) {
            counts.push(*n);
            *n = dict.len() as u16;
            dict.push(min + i as u32);
        }
        let number = |id: &u32| if *id == GONE { 0 } else { of[(*id - min) as usize] };
        let numbers = column.iter().map(number).collect();
        return (Dict::new(&dict), counts.into(), numbers);
    }
    let mut of: HashMap<u32, u16, foldhash::fast::FixedState> = HashMap::default();
    live().for_each(|id| *of.entry(id).or_default() += 1);
    dict.extend(of.keys().copied());
    dict.sort_unstable();
    counts.extend(dict.iter().map(|id| of[id]));
    for (i, id) in dict.iter().enumerate() {
        of.insert(*id, i as u16);
    }
    let numbers = column.iter().map(|id| of.get(id).copied().unwrap_or(0)).collect();
    (Dict::new(&dict), counts.into(), numbers)
}
