//! Which subjects become labels: so many, and no more.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The label of everything that found no place.
const OVERFLOW: &str = "_overflow";
/// Labels of one process, unless it says otherwise.
const MOST: usize = 100;

type Mapper = Arc<dyn Fn(&str) -> Cow<'_, str> + Send + Sync>;

/// The subjects that may become labels of measurements. Each subject is admitted in the order it comes until there are
/// as many as allowed; the others share the label `_overflow`, so that subjects with ids in them never make series without
/// end. Clones share their places, and all defaults of a process are clones.
#[derive(Clone)]
pub struct Labels {
    shared: Arc<Shared>,
    mapper: Option<Mapper>,
}

struct Shared {
    most: usize,
    full: AtomicBool,
    known: Mutex<HashSet<Box<str>>>,
}

impl Default for Labels {
    /// A hundred for the whole process.
    fn default() -> Self {
        static PROCESS: LazyLock<Labels> = LazyLock::new(|| Labels::at_most(MOST));
        PROCESS.clone()
    }
}

impl Labels {
    /// Places of its own.
    #[must_use]
    pub fn at_most(most: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                most,
                full: AtomicBool::new(most == 0),
                known: Mutex::default(),
            }),
            mapper: None,
        }
    }

    /// Makes the label from a subject, for example without its last token. Called for each message.
    #[must_use]
    pub fn mapped(mut self, mapper: impl Fn(&str) -> Cow<'_, str> + Send + Sync + 'static) -> Self {
        self.mapper = Some(Arc::new(mapper));
        self
    }

    /// What to look the subject up by.
    pub(super) fn label<'a>(&self, subject: &'a str) -> Cow<'a, str> {
        self.mapper
            .as_ref()
            .map_or(Cow::Borrowed(subject), |mapper| mapper(subject))
    }

    /// The label under which to measure: itself if it has a place or gets one.
    pub(super) fn admit<'a>(&self, label: &'a str) -> &'a str {
        let mut known = self.shared.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(label) {
            return label;
        }
        if self.shared.full.load(Ordering::Relaxed) {
            return OVERFLOW;
        }
        known.insert(label.into());
        if known.len() >= self.shared.most {
            self.shared.full.store(true, Ordering::Relaxed);
        }
        label
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self
            .shared
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        f.debug_struct("Labels")
            .field("most", &self.shared.most)
            .field("known", &known)
            .field("mapped", &self.mapper.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_have_places_and_the_others_share_one() {
        let labels = Labels::at_most(2);
        assert_eq!(labels.admit("a"), "a");
        assert_eq!(labels.clone().admit("b"), "b");
        assert_eq!(labels.admit("c"), OVERFLOW);
        assert_eq!(labels.admit("a"), "a");
        assert_eq!(Labels::at_most(0).admit("a"), OVERFLOW);
    }

    #[test]
    fn a_process_has_a_hundred() {
        let labels = Labels::at_most(MOST);
        let admitted = (1..=101)
            .map(|n| n.to_string())
            .filter(|n| labels.admit(n) == n)
            .count();
        assert_eq!(admitted, 100);
        assert_eq!(Labels::default().shared.most, 100);
        assert!(Arc::ptr_eq(&Labels::default().shared, &Labels::default().shared));
    }

    #[test]
    fn a_mapper_makes_one_label_of_many_subjects() {
        let labels = Labels::at_most(2).mapped(|subject| match subject.rsplit_once('.') {
            Some((front, _)) => Cow::Borrowed(front),
            None => Cow::Borrowed(subject),
        });
        assert_eq!(labels.label("orders.1"), "orders");
        assert_eq!(labels.label("orders.2"), "orders");
    }
}
