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
    pub(crate) groups: Vec<QueueGroup>,
}

impl Matches {
    /// Whether nothing matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.is_empty()
    }

    /// Number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        let grouped: usize = self.groups.iter().map(|group| group.members.len()).sum();
        self.plain.len() + grouped
    }

    fn add_node(&mut self, entries: &Entries) {
        self.plain.extend(entries.plain.iter().cloned());
        for group in &entries.groups {
            match self.groups.iter_mut().find(|known| known.name == group.name) {
                Some(known) => known.members.extend(group.members.iter().cloned()),
                None => self.groups.push(group.clone()),
            }
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

#[derive(Debug, Default)]
struct Entries {
    plain: Vec<Arc<Subscription>>,
    groups: Vec<QueueGroup>,
}

impl Entries {
    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.groups.is_empty()
    }

    fn insert(&mut self, subscription: Arc<Subscription>) {
        let Some(queue) = subscription.queue.clone() else {
            self.plain.push(subscription);
            return;
        };
        match self.groups.iter_mut().find(|group| group.name == queue) {
            Some(group) => group.members.push(subscription),
            None => self.groups.push(QueueGroup {
                name: queue,
                members: vec![subscription],
            }),
        }
    }

    fn remove(&mut self, subscription: &Arc<Subscription>) -> bool {
        let Some(queue) = &subscription.queue else {
            return take(&mut self.plain, subscription);
        };
        let Some(at) = self.groups.iter().position(|group| group.name == *queue) else {
            return false;
        };
        let removed = take(&mut self.groups[at].members, subscription);
        if self.groups[at].members.is_empty() {
            self.groups.swap_remove(at);
        }
        removed
    }
}

fn take(from: &mut Vec<Arc<Subscription>>, subscription: &Arc<Subscription>) -> bool {
    match from.iter().position(|known| Arc::ptr_eq(known, subscription)) {
        Some(at) => {
            from.swap_remove(at);
            true
        }
        None => false,
    }
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
            .iter()
            .map(|g| (g.name.clone(), g.members.len()))
            .collect();
        sizes.sort();
        assert_eq!(sizes, [(Bytes::from("other"), 1), (Bytes::from("q"), 2)]);
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
