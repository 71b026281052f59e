//! Ids in a Bloom filter: constant memory, and sometimes wrong.
//!
//! A filter that says "seen" may be mistaken. With a backend every such answer is confirmed there; without one the message
//! would be acknowledged unhandled, which has to be asked for by name. Two generations rotate, so that the filter never
//! fills up: ids of at least the last `ids_per_generation` marks are remembered, of at most twice as many.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::{DedupStore, StoreFuture};

const BITS: usize = 1_048_576;
const HASHES: u32 = 7;
/// At this many ids the default filter is wrong in about one of 150 cases.
const IDS: usize = 100_000;

/// Ids in a Bloom filter.
pub struct BloomStore {
    generations: RwLock<[Arc<Filter>; 2]>,
    marked: AtomicUsize,
    ids_per_generation: usize,
    bits: usize,
    hashes: u32,
    backend: Option<Arc<dyn DedupStore>>,
}

struct Filter(Vec<AtomicU64>);

impl BloomStore {
    /// Confirms with `backend` what the filter believes to have seen.
    pub fn with_backend(backend: impl DedupStore + 'static) -> Self {
        Self::new(Some(Arc::new(backend)), BITS, HASHES, IDS)
    }

    /// Without a backend: **some messages that were never handled are acknowledged.**
    #[must_use]
    pub fn dropping_false_positives() -> Self {
        Self::new(None, BITS, HASHES, IDS)
    }

    /// Another size: bits are rounded up to a multiple of 64; zeros mean the defaults of 1 048 576 bits, 7 hashes and
    /// 100 000 ids.
    #[must_use]
    pub fn sized(self, bits: usize, hashes: u32, ids_per_generation: usize) -> Self {
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        let hashes = if hashes == 0 { HASHES } else { hashes };
        Self::new(self.backend, or(bits, BITS), hashes, or(ids_per_generation, IDS))
    }

    fn new(
        backend: Option<Arc<dyn DedupStore>>,
        bits: usize,
        hashes: u32,
        ids_per_generation: usize,
    ) -> Self {
        let bits = bits.next_multiple_of(64);
        Self {
            generations: RwLock::new([Arc::new(Filter::new(bits)), Arc::new(Filter::new(bits))]),
            marked: AtomicUsize::new(0),
            ids_per_generation,
            bits,
            hashes,
            backend,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, [Arc<Filter>; 2]> {
        self.generations.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn contains(&self, id: &str) -> bool {
        let generations = self.read();
        generations
            .iter()
            .any(|filter| positions(id, self.hashes, self.bits).all(|bit| filter.has(bit)))
    }

    fn insert(&self, id: &str) {
        {
            let generations = self.read();
            for bit in positions(id, self.hashes, self.bits) {
                generations[0].set(bit);
            }
        }
        if self.marked.fetch_add(1, Ordering::AcqRel) + 1 == self.ids_per_generation {
            let mut generations = self.generations.write().unwrap_or_else(PoisonError::into_inner);
            let [young, old] = &mut *generations;
            std::mem::swap(young, old);
            *young = Arc::new(Filter::new(self.bits));
            self.marked.store(0, Ordering::Release);
        }
    }
}

impl Filter {
    fn new(bits: usize) -> Self {
        Self((0..bits / 64).map(|_| AtomicU64::new(0)).collect())
    }

    fn has(&self, bit: usize) -> bool {
        self.0[bit / 64].load(Ordering::Acquire) & (1 << (bit % 64)) != 0
    }

    fn set(&self, bit: usize) {
        self.0[bit / 64].fetch_or(1 << (bit % 64), Ordering::AcqRel);
    }
}

/// FNV-1a with 64 bits over the id, then over the number of the hash, two bytes.
fn hash(id: &str, salt: u32) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let [low, high, ..] = salt.to_le_bytes();
    step(step(hash, low), high)
}

/// The bits of an id. All low bits of an FNV hash follow from the low bits of the one before, so that taken modulo a
/// power of two, seven hashes would be no better than one; they are mixed first.
fn positions(id: &str, hashes: u32, bits: usize) -> impl Iterator<Item = usize> {
    (0..hashes).map(move |salt| usize::try_from(mixed(hash(id, salt)) % bits as u64).unwrap_or(0))
}

/// Lets every bit of the result depend on every bit of the argument (the finalizer of SplitMix64).
fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

impl DedupStore for BloomStore {
    fn seen<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            if !self.contains(id) {
                return Ok(false);
            }
            match &self.backend {
                Some(backend) => backend.seen(id).await,
                None => Ok(true),
            }
        })
    }

    fn mark<'a>(&'a self, id: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            if let Some(backend) = &self.backend {
                backend.mark(id).await?;
            }
            self.insert(id);
            Ok(())
        })
    }
}

impl std::fmt::Debug for BloomStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BloomStore")
            .field("bits", &self.bits)
            .field("hashes", &self.hashes)
            .field("backend", &self.backend.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemoryStore;
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_hashes_are_those_of_the_contract() {
        assert_eq!(hash("a", 0), 0xe5d2_f719_0427_066c);
        assert_eq!(hash("a", 1), 0xe5d6_5d19_0429_e995);
        assert_eq!(hash("a", 2), 0xe5d9_c319_042c_ccbe);
    }

    #[tokio::test]
    async fn what_was_marked_is_seen() {
        let store = BloomStore::dropping_false_positives();
        assert!(!store.seen("a").await.unwrap());
        store.mark("a").await.unwrap();
        assert!(store.seen("a").await.unwrap());
        assert!(!store.seen("b").await.unwrap());
    }

    /// The original never asked its backend: a false positive acknowledged a message that nobody had handled.
    #[tokio::test]
    async fn a_false_positive_is_found_out_by_the_backend() {
        // 64 bits: after a few ids the filter believes to have seen everything.
        let store =
            BloomStore::with_backend(MemoryStore::new(1000, Duration::from_secs(1))).sized(1, 7, 1000);
        for number in 0..200 {
            store.mark(&number.to_string()).await.unwrap();
        }
        assert!(store.contains("never marked"));
        assert!(!store.seen("never marked").await.unwrap());
        assert!(store.seen("199").await.unwrap());
    }

    /// The original's rate is near 9 %, though its seven hashes promise 0.65.
    #[tokio::test]
    async fn the_filter_is_as_good_as_its_hashes_and_does_not_fill_up() {
        let store = BloomStore::dropping_false_positives();
        for number in 0..150_000 {
            store.mark(&format!("id-{number}")).await.unwrap();
        }
        for number in 50_000..150_000 {
            assert!(store.contains(&format!("id-{number}")), "{number}");
        }
        let wrong = (0..100_000)
            .filter(|number| store.contains(&format!("other-{number}")))
            .count();
        assert!(wrong < 1500, "{wrong} of 100000");
    }
}
