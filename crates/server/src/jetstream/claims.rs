//! What the running streams of an account have for themselves: subjects, and bytes that they reserve.
//!
//! Creating or changing a stream asks whether its subjects collide with another's, and what all others reserve. Both are
//! answered without a look at every stream: subjects stand in a trie by their tokens, reserved bytes in a sum for each kind of
//! storage. A question with wildcards goes through the branches that its wildcards match, a literal one through three a
//! token at most. Subjects are no deeper than those of subscriptions: the check of a configuration bounds them.
//!
//! Not in here: streams that are being restored and those that are offline. They are few, and their owners go through them.

use std::collections::HashMap;
use std::sync::Arc;

use windjet_protocol::jetstream::{StorageType, StreamConfig};
use windjet_protocol::subject::tokens;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claims: HashMap<Arc<str>, Claim>,
    subjects: Node,
    /// Sums of what streams may give as they like, each up to `i64::MAX`.
    memory: u128,
    storage: u128,
}

/// Of one stream.
#[derive(Debug)]
struct Claim {
    subjects: Box<[Box<str>]>,
    memory: bool,
    bytes: u64,
}

/// What continues the tokens so far.
#[derive(Debug, Default)]
struct Node {
    tokens: HashMap<Box<[u8]>, Node>,
    /// `*`.
    any: Option<Box<Node>>,
    /// Whose subjects end here.
    here: Vec<Arc<str>>,
    /// Whose subjects go on with `>`.
    rest: Vec<Arc<str>>,
}

impl Claims {
    /// A stream has this configuration now.
    pub(super) fn set(&mut self, name: &Arc<str>, config: &StreamConfig) {
        self.clear(name);
        let claim = Claim {
            subjects: config.subjects.iter().map(|s| s.as_str().into()).collect(),
            memory: is_memory(config.storage),
            bytes: reserved_by(config),
        };
        for subject in &claim.subjects {
            self.subjects.insert(&mut tokens(subject.as_bytes()), name);
        }
        *self.sum(claim.memory) += u128::from(claim.bytes);
        self.claims.insert(name.clone(), claim);
    }

    /// A stream is gone.
    pub(super) fn clear(&mut self, name: &str) {
        let Some(claim) = self.claims.remove(name) else {
            return;
        };
        for subject in &claim.subjects {
            self.subjects.remove(&mut tokens(subject.as_bytes()), name);
        }
        *self.sum(claim.memory) -= u128::from(claim.bytes);
    }

    /// Whether subjects of `config` collide with those of a stream of another name.
    pub(super) fn overlap(&self, config: &StreamConfig) -> bool {
        let mut subjects = config.subjects.iter();
        subjects.any(|subject| {
            let pattern: Vec<&[u8]> = tokens(subject.as_bytes()).collect();
            self.subjects.meets(&pattern, &config.name)
        })
    }

    /// Bytes that all streams but `except` reserve in a kind of storage.
    pub(super) fn reserved(&self, storage: StorageType, except: Option<&str>) -> u64 {
        let memory = is_memory(storage);
        let own = except
            .and_then(|name| self.claims.get(name))
            .filter(|claim| claim.memory == memory)
            .map_or(0, |claim| claim.bytes);
        let sum = if memory { self.memory } else { self.storage };
        u64::try_from(sum - u128::from(own)).unwrap_or(u64::MAX)
    }

    fn sum(&mut self, memory: bool) -> &mut u128 {
        if memory {
            &mut self.memory
        } else {
            &mut self.storage
        }
    }
}

fn is_memory(storage: StorageType) -> bool {
    storage == StorageType::Memory
}

/// The bytes that a stream with a configuration reserves.
pub(super) fn reserved_by(config: &StreamConfig) -> u64 {
    u64::try_from(config.max_bytes).unwrap_or(0)
}

impl Node {
    fn insert<'t>(&mut self, pattern: &mut impl Iterator<Item = &'t [u8]>, name: &Arc<str>) {
        let mut node = self;
        for token in pattern {
            node = match token {
                b">" => return node.rest.push(name.clone()),
                b"*" => node.any.get_or_insert_default(),
                token => node.tokens.entry(token.into()).or_default(),
            };
        }
        node.here.push(name.clone());
    }

    /// Takes one subject of a stream out, with the nodes that nothing else needs.
    fn remove<'t>(&mut self, pattern: &mut impl Iterator<Item = &'t [u8]>, name: &str) {
        let take = |names: &mut Vec<Arc<str>>| {
            if let Some(at) = names.iter().position(|known| &**known == name) {
                names.swap_remove(at);
            }
        };
        match pattern.next() {
            None => take(&mut self.here),
            Some(b">") => take(&mut self.rest),
            Some(b"*") => {
                if let Some(node) = &mut self.any {
                    node.remove(pattern, name);
                    if node.is_empty() {
                        self.any = None;
                    }
                }
            }
            Some(token) => {
                if let Some(node) = self.tokens.get_mut(token) {
                    node.remove(pattern, name);
                    if node.is_empty() {
                        self.tokens.remove(token);
                    }
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.any.is_none() && self.here.is_empty() && self.rest.is_empty()
    }

    /// Whether the pattern shares a subject with that of a stream other than `name`.
    fn meets(&self, pattern: &[&[u8]], name: &str) -> bool {
        let foreign = |names: &[Arc<str>]| names.iter().any(|known| &**known != name);
        let Some((token, left)) = pattern.split_first() else {
            return foreign(&self.here);
        };
        if foreign(&self.rest) {
            return true;
        }
        let mut children = self.tokens.values().chain(self.any.as_deref());
        match *token {
            b">" => children.any(|node| node.holds_foreign(name)),
            b"*" => children.any(|node| node.meets(left, name)),
            token => {
                let same = self.tokens.get(token);
                let mut nodes = same.into_iter().chain(self.any.as_deref());
                nodes.any(|node| node.meets(left, name))
            }
        }
    }

    /// Whether anything of another stream than `name` is here or below.
    fn holds_foreign(&self, name: &str) -> bool {
        let mut names = self.here.iter().chain(&self.rest);
        names.any(|known| &**known != name)
            || self
                .tokens
                .values()
                .chain(self.any.as_deref())
                .any(|node| node.holds_foreign(name))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};
    use windjet_protocol::subject;

    use super::*;

    fn config(name: &str, subjects: &[String], storage: StorageType, max_bytes: i64) -> StreamConfig {
        StreamConfig {
            name: name.into(),
            subjects: subjects.to_vec(),
            storage,
            max_bytes,
            ..StreamConfig::default()
        }
    }

    fn pattern(random: &mut SmallRng) -> String {
        let count = random.random_range(1..=4);
        let mut words: Vec<&str> = (0..count)
            .map(|_| ["a", "b", "c", "*"][random.random_range(0..4)])
            .collect();
        if random.random_range(0..5) == 0 {
            words.push(">");
        }
        words.join(".")
    }

    #[test]
    fn it_answers_as_a_look_at_every_stream_does() {
        let mut random = SmallRng::seed_from_u64(7);
        let (mut claims, mut plain) = (Claims::default(), HashMap::<String, StreamConfig>::new());
        let (mut collisions, mut rounds) = (0, 0);
        while rounds < 20_000 {
            rounds += 1;
            let name = format!("S{}", random.random_range(0..12));
            if random.random_range(0..3) == 0 {
                claims.clear(&name);
                plain.remove(&name);
                continue;
            }
            let subjects: Vec<String> = (0..random.random_range(1..=2))
                .map(|_| pattern(&mut random))
                .collect();
            let storage = if random.random() {
                StorageType::File
            } else {
                StorageType::Memory
            };
            let asked = config(&name, &subjects, storage, random.random_range(-1..50));
            let others = || plain.values().filter(|other| other.name != name);
            let collides = |theirs: &String| {
                subjects
                    .iter()
                    .any(|s| subject::overlaps(s.as_bytes(), theirs.as_bytes()))
            };
            let expected = others().any(|other| other.subjects.iter().any(collides));
            assert_eq!(claims.overlap(&asked), expected, "{asked:?} beside {plain:?}");
            let reserved: u64 = others()
                .filter(|other| other.storage == storage)
                .map(reserved_by)
                .sum();
            assert_eq!(claims.reserved(storage, Some(&name)), reserved);
            collisions += usize::from(expected);
            // Now and then one that collides gets in, as from a store that another version wrote.
            if !expected || random.random_range(0..20) == 0 {
                claims.set(&name.as_str().into(), &asked);
                plain.insert(name, asked);
            }
        }
        assert!((1_000..19_000).contains(&collisions), "{collisions}");
        for name in plain.keys() {
            claims.clear(name);
        }
        assert!(claims.subjects.is_empty() && claims.claims.is_empty());
        assert_eq!((claims.memory, claims.storage), (0, 0));
    }
}
