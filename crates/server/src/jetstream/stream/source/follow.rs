//! How a stream hears of its origins.
//!
//! Everybody who follows a name stands in one list, whether a stream of that name exists or not. The origin's task tells the
//! list when something is committed, the account when a stream comes or goes; being told is putting a number into a list and
//! waking a task. Nobody polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, RwLock};

use crate::jetstream::stream::inbox::Inbox;

/// Who follows one name.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    list: RwLock<Vec<Arc<Follower>>>,
}

/// One source of one stream, or one reader of this process.
#[derive(Debug)]
pub(crate) struct Follower {
    told: AtomicBool,
    to: To,
}

#[derive(Debug)]
enum To {
    Source { number: u32, news: Arc<News> },
    Reader(AtomicWaker),
}

/// What the sources of one stream were told and it has not looked at.
#[derive(Debug)]
pub(super) struct News {
    numbers: Mutex<Vec<u32>>,
    inbox: Arc<Inbox>,
}

impl News {
    /// None, for the stream with this inbox.
    pub(super) fn new(inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self {
            numbers: Mutex::default(),
            inbox,
        })
    }

    /// Numbers of the sources that were told something.
    pub(super) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.numbers.lock())
    }
}

impl Follower {
    /// The source with a number.
    pub(super) fn new(number: u32, news: Arc<News>) -> Arc<Self> {
        Arc::new(Self {
            told: AtomicBool::new(false),
            to: To::Source { number, news },
        })
    }

    /// A reader of this process.
    pub(crate) fn reader() -> Arc<Self> {
        Arc::new(Self {
            told: AtomicBool::new(false),
            to: To::Reader(AtomicWaker::new()),
        })
    }

    /// A reader is about to look and is woken when something comes after that.
    pub(crate) fn wait(&self, waker: &Waker) {
        if let To::Reader(own) = &self.to {
            own.register(waker);
        }
        self.looks();
    }

    /// There is something to look at.
    pub(crate) fn tell(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            match &self.to {
                To::Source { number, news } => {
                    news.numbers.lock().push(*number);
                    news.inbox.wake();
                }
                To::Reader(waker) => waker.wake(),
            }
        }
    }

    /// It is about to look: what comes now is told again.
    pub(crate) fn looks(&self) {
        self.told.store(false, Ordering::Release);
    }
}

impl Followers {
    /// Tells all.
    pub(crate) fn tell(&self) {
        for follower in &*self.list.read() {
            follower.tell();
        }
    }

    /// Adds one.
    pub(crate) fn add(&self, follower: Arc<Follower>) {
        self.list.write().push(follower);
    }

    /// Takes one out; whether none is left.
    pub(crate) fn remove(&self, follower: &Arc<Follower>) -> bool {
        let mut list = self.list.write();
        list.retain(|other| !Arc::ptr_eq(other, follower));
        list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_twice_looks_once() {
        let news = News::new(Arc::default());
        let followers = Followers::default();
        let (one, two) = (Follower::new(1, news.clone()), Follower::new(2, news.clone()));
        followers.add(one.clone());
        followers.add(two.clone());
        followers.tell();
        followers.tell();
        assert_eq!(news.take(), [1, 2]);
        one.looks();
        followers.tell();
        assert_eq!(news.take(), [1]);
        assert!(!followers.remove(&one));
        assert!(followers.remove(&two));
    }
}
