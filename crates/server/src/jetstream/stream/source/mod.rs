//! Mirrors and sources: a stream that takes messages of others in the same process.
//!
//! The stream that takes does the work, in its own task: told that its origin has something ([`follow`]), it reads committed
//! messages from a cursor and stores them like publishes, with a few differences. A mirror keeps sequence and time, and what
//! its origin has lost becomes a gap; a source gives new sequences and writes down where each message came from
//! ([`header`]). Which messages, and under which subjects, is said by [`route`]. A full stream that refuses holds its
//! sources up; a message that can never be stored is left out with a word in the log.
//!
//! # What holds
//!
//! * Only committed messages are copied, each once, in the origin's order, also across restarts ([`resume`]).
//! * An origin may come later, go, and come back: a mirror waits until it passes the mirror's last sequence, a source begins
//!   anew, because it knows that this is another stream.
//! * An origin whose messages go when nobody needs them loses one when the copy is durable ([`claim`]).
//!
//! # What it does not do
//!
//! Origins in other accounts, domains or servers are not reached, nor does a consumer of somebody else's serve for copying:
//! such a source reports an error and copies nothing.

pub(crate) mod claim;
mod copy;
pub(crate) mod follow;
mod header;
pub(crate) mod progress;
mod resume;
mod route;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use windjet_protocol::jetstream::StreamConfig;

use self::copy::{Copy, Step};
use self::follow::News;
use self::resume::{Search, load, search};
use super::task::Task;
use crate::jetstream::consumer::Now;
use crate::jetstream::medium::off_thread;

pub(super) use resume::is_position;

/// When a source that was held up tries again, if nothing happens before.
const RETRY: u64 = 100_000_000;
/// Own messages after which positions are written down again, so that little has to be searched after a crash.
const REFRESH: u64 = 10_000;

/// Mirror and sources of a stream.
#[derive(Debug)]
pub(super) struct Copies {
    list: BTreeMap<u32, Copy>,
    next: u32,
    news: Arc<News>,
    ready: VecDeque<u32>,
    /// Those whose position could not be stored when it had to be.
    unsaved: BTreeSet<u32>,
    /// Positions are being looked for; nothing is copied before.
    search: Option<Search>,
    retry_at: Option<u64>,
    /// The stream's last sequence when a position was written down last.
    saved_at: u64,
}

impl Copies {
    /// When something is due.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.retry_at
    }

    fn turn(&mut self, task: &mut Task, now: Now) -> bool {
        if !self.is_resumed() || task.failed || task.ended {
            return false;
        }
        for number in self.news.take() {
            if let Some(copy) = self.list.get_mut(&number) {
                copy.follower.looks();
                self.enqueue(number);
            }
        }
        self.retry_at = None;
        let mut more = false;
        if self.save(task).is_err() {
            self.retry_at = Some(now.mono + RETRY);
            return false;
        }
        for _ in 0..self.ready.len() {
            let Some(number) = self.ready.pop_front() else {
                break;
            };
            let Some(copy) = self.list.get_mut(&number) else {
                continue;
            };
            copy.queued = false;
            let step = copy.step(task, now);
            if copy.is_unsaved() {
                self.unsaved.insert(number);
                if self.save(task).is_err() {
                    // Its position must be stored before anything of another source is.
                    self.enqueue(number);
                    self.retry_at = Some(now.mono + RETRY);
                    return false;
                }
            }
            match step {
                Step::Idle => {}
                Step::More => {
                    self.enqueue(number);
                    more = true;
                }
                Step::HeldUp => {
                    self.enqueue(number);
                    self.retry_at = Some(now.mono + RETRY);
                }
            }
        }
        more
    }

    fn enqueue(&mut self, number: u32) {
        if let Some(copy) = self.list.get_mut(&number)
            && !std::mem::replace(&mut copy.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Writes down what must be; one position is also written anew when many own messages came since.
    fn save(&mut self, task: &mut Task) -> Result<(), ()> {
        let last = task.writer.last_seq();
        if last > self.saved_at + REFRESH
            && let Some(number) = self
                .list
                .iter()
                .find(|(_, copy)| !copy.is_mirror())
                .map(|(number, _)| *number)
        {
            self.unsaved.insert(number);
        }
        while let Some(number) = self.unsaved.first().copied() {
            if let Some(copy) = self.list.get_mut(&number) {
                copy.save(task).map_err(|_| ())?;
            }
            self.unsaved.remove(&number);
            self.saved_at = last;
        }
        Ok(())
    }

    /// Whether all positions are known.
    fn is_resumed(&mut self) -> bool {
        let Some(search) = &self.search else { return true };
        let Some(mut found) = search.lock().take() else {
            return false;
        };
        self.search = None;
        for (number, copy) in &mut self.list {
            copy.found(found.remove(copy.key()));
            // From now on a position that is not stored means that nothing was taken.
            if !copy.is_mirror() {
                self.unsaved.insert(*number);
            }
        }
        true
    }
}

impl Task {
    /// After a start, with what the store has.
    pub(super) fn begin_copies(&mut self) {
        self.set_copies();
        let reader = self.stream.reader.clone();
        let state = reader.state();
        let Some(copies) = &mut self.copies else { return };
        let known: Vec<_> = copies
            .list
            .values()
            .filter(|copy| !copy.is_mirror())
            .map(|copy| load(&reader, copy.key()))
            .collect();
        if known.is_empty() {
            return;
        }
        let newest = known.iter().flatten().map(|known| known.at).max().unwrap_or(0);
        copies.saved_at = newest;
        // Without a position the whole stream must be searched: it may come from elsewhere.
        let from = if known.iter().any(Option::is_none) {
            0
        } else {
            newest + 1
        };
        if state.messages == 0 || from > state.last_seq {
            return;
        }
        let search_for: Search = Arc::default();
        copies.search = Some(search_for.clone());
        let (reads, inbox) = (self.js.reads.clone(), self.stream.inbox.clone());
        let name = self.stream.name.clone();
        self.server.tasks.spawn(async move {
            let _permit = reads.acquire_owned().await;
            match off_thread(move || search(&reader, from)).await {
                Ok(found) => *search_for.lock() = Some(found),
                Err(_) => tracing::error!(stream = %name, "the search for the positions of sources ended early: nothing is copied until the next start"),
            }
            inbox.wake();
        });
    }

    /// Brings mirror and sources in line with the configuration.
    pub(super) fn set_copies(&mut self) {
        let config: Arc<StreamConfig> = self.config.clone();
        let mirror = config.mirror.iter().map(|mirror| (mirror, true));
        let wanted: Vec<_> = mirror
            .chain(config.sources.iter().map(|source| (source, false)))
            .collect();
        if wanted.is_empty() && self.copies.is_none() {
            return;
        }
        let news = News::new(self.stream.inbox.clone());
        let copies = self.copies.get_or_insert_with(|| {
            Box::new(Copies {
                list: BTreeMap::new(),
                next: 0,
                news,
                ready: VecDeque::new(),
                unsaved: BTreeSet::new(),
                search: None,
                retry_at: None,
                saved_at: 0,
            })
        });
        let mut old = std::mem::take(&mut copies.list);
        let mut shown = Vec::new();
        for (source, mirror) in wanted {
            let key = header::key(source);
            let known = old
                .iter()
                .find(|(_, copy)| copy.key() == key && copy.is_mirror() == mirror)
                .map(|(number, _)| *number);
            let number = known.unwrap_or_else(|| {
                copies.next += 1;
                copies.next
            });
            let copy = match old.remove(&number) {
                Some(copy) => copy,
                None => {
                    let known = load(&self.stream.reader, &key).filter(|_| !mirror);
                    Copy::new(source, mirror, number, copies.news.clone(), &self.account, known)
                }
            };
            shown.push(copy.progress());
            copies.list.insert(number, copy);
        }
        for copy in old.values() {
            copy.unclaim();
        }
        drop(old);
        let none = copies.list.is_empty();
        self.stream.progress.store((!none).then(|| Arc::new(shown)));
        if none {
            self.copies = None;
        }
    }

    /// Takes what origins have; whether there is more.
    pub(super) fn copy(&mut self, now: Now) -> bool {
        let Some(mut copies) = self.copies.take() else {
            return false;
        };
        let more = copies.turn(self, now);
        self.copies = Some(copies);
        more
    }

    /// The stream is deleted: nothing is held back for it any more.
    pub(super) fn end_copies(&mut self) {
        if let Some(copies) = self.copies.take() {
            for copy in copies.list.values() {
                copy.unclaim();
            }
        }
        self.stream.progress.store(None);
    }
}
