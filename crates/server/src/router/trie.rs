//! The subject trie of one account: which subscriptions match a subject.
//!
//! A node stands for one token; `*` and `>` have places of their own beside the literal children. Inserting,
//! removing and matching cost one hash look-up a token; matching a subject never touches subscriptions that
//! do not match it.
//!
//! The trie is plain data behind the account's lock ([`crate::account`]). Its generation number changes with every
//! insertion and removal, so that callers may keep a [`Matches`] for as long as the generation stands.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use windjet_protocol::subject;

use super::Subscription;

/// All subscriptions that match one subject.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    /// Subscriptions without a queue group: each gets a copy.
    pub(crate) plain: Vec<Arc<Subscription>>,
    /// Queue groups, merged by name over all matching patterns: one member of each gets a copy.
    pub(crate) groups: Groups,
}

impl Matches {
    /// Whether nothing matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.list.is_empty()
    }

    /// Number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        let grouped: usize = self.groups.list.iter().map(|group| group.members.len()).sum();
        self.plain.len() + grouped
    }

    fn add_node(&mut self, entries: &Entries) {
        self.plain.extend(entries.plain.iter().cloned());
        for group in &entries.groups.list {
            self.groups
                .get_or_add(&group.name)
                .members
                .extend(group.members.iter().cloned());
        }
    }
}

/// Members of one queue group.
#[derive(Debug, Clone)]
pub(crate) struct QueueGroup {
    /// Name of the group.
    pub(crate) name: Bytes,
    /// Its members, in no particular order.
    pub(crate) members: Vec<Arc<Subscription>>,
}

/// Up to this many groups are searched one by one, which is faster than hashing and needs no index.
const UNINDEXED_MAX: usize = 16;

/// Queue groups in the order of their coming. Many of them on one subject have an index by name, so that finding one does
/// not take longer for it.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// The groups.
    pub(crate) list: Vec<QueueGroup>,
    #[expect(
        clippy::box_collection,
        reason = "every node has one of these, hardly any an index"
    )]
    index: Option<Box<HashMap<Bytes, usize, RandomState>>>,
}

impl Groups {
    fn position(&self, name: &Bytes) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(name).copied(),
            None => self.list.iter().position(|group| group.name == *name),
        }
    }

    fn get_or_add(&mut self, name: &Bytes) -> &mut QueueGroup {
        let at = self.position(name).unwrap_or_else(|| {
            let at = self.list.len();
            self.list.push(QueueGroup {
                name: name.clone(),
                members: Vec::new(),
            });
            if let Some(index) = &mut self.index {
                index.insert(name.clone(), at);
            } else if at == UNINDEXED_MAX {
                let names = self.list.iter().map(|group| group.name.clone());
                self.index = Some(Box::new(names.zip(0..).collect()));
            }
            at
        });
        &mut self.list[at]
    }

    fn remove(&mut self, at: usize) {
        let gone = self.list.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&gone.name);
            if let Some(moved) = self.list.get(at) {
                index.insert(moved.name.clone(), at);
            }
            if self.list.is_empty() {
                self.index = None;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Entries {
    plain: Vec<Arc<Subscription>>,
    groups: Groups,
}

impl Entries {
    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.list.is_empty()
    }

    fn insert(&mut self, subscription: Arc<Subscription>) {
        match &subscription.queue {
            None => put(&mut self.plain, subscription),
            Some(queue) => put(&mut self.groups.get_or_add(queue).members, subscription.clone()),
        }
    }

    fn remove(&mut self, subscription: &Arc<Subscription>) -> bool {
        let Some(queue) = &subscription.queue else {
            return take(&mut self.plain, subscription);
        };
        let Some(at) = self.groups.position(queue) else {
            return false;
        };
        let members = &mut self.groups.list[at].members;
        let removed = take(members, subscription);
        if members.is_empty() {
            self.groups.remove(at);
        }
        removed
    }
}

/// Adds a subscription to a list and notes where it stands.
fn put(into: &mut Vec<Arc<Subscription>>, subscription: Arc<Subscription>) {
    subscription.place.store(into.len(), Ordering::Relaxed);
    into.push(subscription);
}

/// Takes a subscription out of a list, at once however long the list is: a client with many subscriptions to one subject
/// must not hold the account's lock for the square of their number when it leaves.
fn take(from: &mut Vec<Arc<Subscription>>, subscription: &Arc<Subscription>) -> bool {
    let at = subscription.place.load(Ordering::Relaxed);
    if !from.get(at).is_some_and(|known| Arc::ptr_eq(known, subscription)) {
        return false;
    }
    from.swap_remove(at);
    if let Some(moved) = from.get(at) {
        moved.place.store(at, Ordering::Relaxed);
    }
    true
}

#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<[u8]>, Node, RandomState>,
    /// Child for the token `*`.
    any: Option<Box<Node>>,
    /// Subscriptions whose last token is `>` and whose other tokens lead here.
    rest: Entries,
    /// Subscriptions whose last token leads here.
    here: Entries,
}

impl Node {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any.is_none() && self.rest.is_empty() && self.here.is_empty()
    }

    fn remove(&mut self, tokens: &[&[u8]], subscription: &Arc<Subscription>) -> bool {
        match tokens {
            [] => self.here.remove(subscription),
            [b">"] => self.rest.remove(subscription),
            [b"*", tail @ ..] => {
                let Some(any) = &mut self.any else { return false };
                let removed = any.remove(tail, subscription);
                if any.is_empty() {
                    self.any = None;
                }
                removed
            }
            [token, tail @ ..] => {
                let Some(child) = self.children.get_mut(*token) else {
                    return false;
                };
                let removed = child.remove(tail, subscription);
                if child.is_empty() {
                    self.children.remove(*token);
                }
                removed
            }
        }
    }

    fn collect(&self, tokens: &[&[u8]], out: &mut Matches) {
        let Some((token, tail)) = tokens.split_first() else {
            out.add_node(&self.here);
            return;
        };
        out.add_node(&self.rest);
        if let Some(child) = self.children.get(*token) {
            child.collect(tail, out);
        }
        if let Some(any) = &self.any {
            any.collect(tail, out);
        }
    }

    fn visit(&self, each: &mut dyn FnMut(&Arc<Subscription>)) {
        for entries in [&self.here, &self.rest] {
            entries.plain.iter().for_each(&mut *each);
            entries
                .groups
                .list
                .iter()
                .flat_map(|group| &group.members)
                .for_each(&mut *each);
        }
        if let Some(any) = &self.any {
            any.visit(each);
        }
        for child in self.children.values() {
            child.visit(each);
        }
    }
}

/// The subscriptions of one account by subject pattern.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    root: Node,
    len: usize,
    removed: u64,
}

/// Most tokens of a subscription. Nodes are walked by recursion, whose depth this bounds; a published subject may have any
/// number of tokens, since it is followed only as deep as there are subscriptions. With the default control line no client can
/// come near it.
pub(crate) const TOKENS_MAX: usize = 2_048;

/// Subjects deeper than this are matched all the same, with one allocation.
const INLINE_TOKENS: usize = 16;

impl Trie {
    /// Number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of subscriptions ever added.
    pub(crate) fn inserted(&self) -> u64 {
        self.len as u64 + self.removed
    }

    /// Adds a subscription. Its subject must be a valid pattern.
    pub(crate) fn insert(&mut self, subscription: Arc<Subscription>) {
        let subject = subscription.subject.clone();
        let mut node = &mut self.root;
        for token in subject::tokens(&subject) {
            match token {
                b">" => {
                    node.rest.insert(subscription);
                    self.len += 1;
                    return;
                }
                b"*" => node = node.any.get_or_insert_default(),
                literal => {
                    if !node.children.contains_key(literal) {
                        node.children.insert(literal.into(), Node::default());
                    }
                    let Some(child) = node.children.get_mut(literal) else {
                        return;
                    };
                    node = child;
                }
            }
        }
        node.here.insert(subscription);
        self.len += 1;
    }

    /// Removes a subscription; false when it is not there.
    pub(crate) fn remove(&mut self, subscription: &Arc<Subscription>) -> bool {
        let tokens: SmallVec<[&[u8]; INLINE_TOKENS]> = subject::tokens(&subscription.subject).collect();
        let removed = self.root.remove(&tokens, subscription);
        if removed {
            self.len -= 1;
            self.removed += 1;
        }
        removed
    }

    /// All subscriptions that match a published subject. A subject with an empty token matches nothing; a `*` or
    /// `>` in it is an ordinary token.
    pub(crate) fn matches(&self, published: &[u8]) -> Matches {
        let mut out = Matches::default();
        if self.len == 0 || published.is_empty() {
            return out;
        }
        let tokens: SmallVec<[&[u8]; INLINE_TOKENS]> = subject::tokens(published).collect();
        if tokens.iter().any(|token| token.is_empty()) {
            return out;
        }
        self.root.collect(&tokens, &mut out);
        out
    }

    /// Calls `each` for every subscription, in no particular order.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(&Arc<Subscription>)) {
        self.root.visit(each);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subscription(subject: &str, queue: Option<&str>) -> Arc<Subscription> {
        Arc::new(Subscription::for_test(subject, queue))
    }

    fn subjects(found: &Matches) -> Vec<String> {
        let mut all: Vec<String> = found
            .plain
            .iter()
            .map(|s| String::from_utf8_lossy(&s.subject).into_owned())
            .collect();
        all.sort();
        all
    }

    #[test]
    fn literal_star_and_rest_match_by_token() {
        let mut trie = Trie::default();
        for pattern in ["a.b", "a.*", "a.>", ">", "*.*", "a", "b.>"] {
            trie.insert(subscription(pattern, None));
        }
        assert_eq!(subjects(&trie.matches(b"a.b")), ["*.*", ">", "a.*", "a.>", "a.b"]);
        assert_eq!(subjects(&trie.matches(b"a")), [">", "a"]);
        assert_eq!(subjects(&trie.matches(b"b.c.d")), [">", "b.>"]);
    }

    #[test]
    fn published_wildcards_are_ordinary_tokens() {
        let mut trie = Trie::default();
        for pattern in ["a.*", "a.>", ">", "*.*", "a.b"] {
            trie.insert(subscription(pattern, None));
        }
        assert_eq!(subjects(&trie.matches(b"a.*")), ["*.*", ">", "a.*", "a.>"]);
    }

    #[test]
    fn an_empty_token_matches_nothing() {
        let mut trie = Trie::default();
        trie.insert(subscription(">", None));
        for subject in [&b"a..b"[..], b".a", b"a.", b"", b"."] {
            assert!(trie.matches(subject).is_empty(), "{subject:?}");
        }
    }

    #[test]
    fn queue_groups_are_merged_by_name_over_patterns() {
        let mut trie = Trie::default();
        trie.insert(subscription("t.>", Some("q")));
        trie.insert(subscription("t.x", Some("q")));
        trie.insert(subscription("t.x", Some("other")));
        let found = trie.matches(b"t.x");
        let mut sizes: Vec<_> = found
            .groups
            .list
            .iter()
            .map(|g| (g.name.clone(), g.members.len()))
            .collect();
        sizes.sort();
        assert_eq!(sizes, [(Bytes::from("other"), 1), (Bytes::from("q"), 2)]);
    }

    /// One subject with very many groups, or very many subscriptions, made every insertion, removal and look-up take as
    /// long as there were; a client could keep the account's lock for minutes with a few megabytes.
    #[test]
    fn a_crowd_on_one_subject_comes_matches_and_goes_in_linear_time() {
        const CROWD: usize = 50_000;
        let mut trie = Trie::default();
        let mut all: Vec<_> = (0..CROWD).map(|_| subscription("t.x", None)).collect();
        for pattern in ["t.x", "t.*"] {
            all.extend((0..CROWD).map(|n| subscription(pattern, Some(&format!("q{n}")))));
        }
        let begin = std::time::Instant::now();
        all.iter().for_each(|one| trie.insert(one.clone()));
        let found = trie.matches(b"t.x");
        assert_eq!(found.plain.len(), CROWD);
        assert_eq!(found.groups.list.len(), CROWD);
        assert!(found.groups.list.iter().all(|group| group.members.len() == 2));
        for one in all
            .iter()
            .rev()
            .step_by(2)
            .chain(all.iter().rev().skip(1).step_by(2))
        {
            assert!(trie.remove(one));
        }
        assert!(trie.root.is_empty());
        // The square of the crowd takes minutes without optimisation.
        assert!(begin.elapsed() < std::time::Duration::from_secs(10));
    }

    proptest! {
        #[test]
        fn agrees_with_matching_one_by_one(
            patterns in prop::collection::vec("(a|b|\\*)(\\.(a|b|c|\\*)){0,3}(\\.>)?", 1..20),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
            published in "(a|b|c)(\\.(a|b|c)){0,4}",
        ) {
            let mut trie = Trie::default();
            let mut live: Vec<_> = patterns.iter().map(|p| subscription(p, None)).collect();
            for s in &live {
                trie.insert(s.clone());
            }
            for index in removed {
                if live.is_empty() { break; }
                let s = live.swap_remove(index.index(live.len()));
                prop_assert!(trie.remove(&s));
                prop_assert!(!trie.remove(&s));
            }
            let mut expected: Vec<String> = live.iter()
                .filter(|s| windjet_protocol::subject::matches(&s.subject, published.as_bytes()))
                .map(|s| String::from_utf8_lossy(&s.subject).into_owned()).collect();
            expected.sort();
            prop_assert_eq!(subjects(&trie.matches(published.as_bytes())), expected);
            prop_assert_eq!(trie.len(), live.len());
            for s in &live { trie.remove(s); }
            prop_assert!(trie.root.is_empty());
        }
    }
}
