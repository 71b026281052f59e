//! One queue's rows: an append log with a byte cap and a memory of idempotency keys.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::{Headers, MESSAGE_ID_HEADER};

/// What a row takes beside key, headers and data.
const FRAME: usize = 30;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) key: Arc<str>,
    pub(super) data: Bytes,
    pub(super) headers: Headers,
    pub(super) stored: SystemTime,
}

impl Row {
    fn len(&self) -> u64 {
        (FRAME + self.key.len() + self.headers.wire_len() + self.data.len()) as u64
    }
}

/// What a log does with a row for which it has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenFull {
    Refuse,
    DropOldest,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Append {
    Stored,
    Duplicate,
    Full,
}

#[derive(Debug)]
pub(super) struct Log {
    rows: VecDeque<Row>,
    /// The sequence of the first row, or of the next one when there is none.
    first: u64,
    bytes: u64,
    cap: u64,
    when_full: WhenFull,
    window: Duration,
    seen: HashMap<String, SystemTime>,
    order: VecDeque<(SystemTime, String)>,
}

impl Log {
    pub(super) fn new(cap: u64, when_full: WhenFull, window: Duration) -> Self {
        Self {
            rows: VecDeque::new(),
            first: 1,
            bytes: 0,
            cap,
            when_full,
            window,
            seen: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    pub(super) fn append(&mut self, row: Row) -> Append {
        let now = row.stored;
        while let Some((at, key)) = self.order.front() {
            if now.duration_since(*at).unwrap_or_default() < self.window {
                break;
            }
            self.seen.remove(key);
            self.order.pop_front();
        }
        let id = row.headers.get(MESSAGE_ID_HEADER).to_owned();
        if !id.is_empty() && self.seen.contains_key(&id) {
            return Append::Duplicate;
        }
        let len = row.len();
        if self.bytes + len > self.cap {
            if self.when_full == WhenFull::Refuse || len > self.cap {
                return Append::Full;
            }
            while self.bytes + len > self.cap {
                self.drop_first();
            }
        }
        if !id.is_empty() {
            self.seen.insert(id.clone(), now);
            self.order.push_back((now, id));
        }
        self.bytes += len;
        self.rows.push_back(row);
        Append::Stored
    }

    /// Changes the cap. A log that drops its oldest rows drops them now.
    pub(super) fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
        if self.when_full == WhenFull::DropOldest {
            while self.bytes > self.cap {
                self.drop_first();
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The sequence that the next row gets.
    pub(super) fn next(&self) -> u64 {
        self.first + self.len()
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Row> {
        let index = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.rows.get(index)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// The first sequence that was stored at or after `time`; the next one when every row is older.
    pub(super) fn first_since(&self, time: SystemTime) -> u64 {
        self.first + self.rows.partition_point(|row| row.stored < time) as u64
    }

    /// Removes every row below `sequence`; whether there was one.
    pub(super) fn purge_below(&mut self, sequence: u64) -> bool {
        let before = self.first;
        while self.first < sequence && !self.rows.is_empty() {
            self.drop_first();
        }
        self.first > before
    }

    fn drop_first(&mut self) {
        if let Some(row) = self.rows.pop_front() {
            self.first += 1;
            self.bytes -= row.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(second: u64, id: &str) -> Row {
        let mut headers = Headers::new();
        if !id.is_empty() {
            headers.set(MESSAGE_ID_HEADER, id);
        }
        Row {
            key: "a.t".into(),
            data: Bytes::from_static(b"0123456789"),
            headers,
            stored: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
        }
    }

    const WINDOW: Duration = Duration::from_secs(120);

    #[test]
    fn a_key_is_remembered_for_the_window_and_no_longer() {
        let mut log = Log::new(10_000, WhenFull::Refuse, WINDOW);
        assert_eq!(log.append(row(0, "k")), Append::Stored);
        assert_eq!(log.append(row(119, "k")), Append::Duplicate);
        assert_eq!(log.append(row(120, "k")), Append::Stored);
        assert_eq!(log.append(row(120, "")), Append::Stored);
        assert_eq!(log.len(), 3);
    }

    #[test]
    fn a_full_log_refuses_or_drops_its_oldest() {
        let len = row(0, "").len();
        let mut refuses = Log::new(2 * len, WhenFull::Refuse, WINDOW);
        let mut drops = Log::new(2 * len, WhenFull::DropOldest, WINDOW);
        for second in 0..2 {
            assert_eq!(refuses.append(row(second, "")), Append::Stored);
            assert_eq!(drops.append(row(second, "")), Append::Stored);
        }
        assert_eq!(refuses.append(row(2, "refused")), Append::Full);
        assert_eq!(drops.append(row(2, "")), Append::Stored);
        assert_eq!((refuses.first(), refuses.next()), (1, 3));
        assert_eq!((drops.first(), drops.next()), (2, 4));
        refuses.set_cap(len);
        assert_eq!(refuses.len(), 2, "shrinking drops nothing");
        refuses.set_cap(4 * len);
        assert_eq!(
            refuses.append(row(3, "refused")),
            Append::Stored,
            "a refused key is not remembered"
        );
        drops.set_cap(len);
        assert_eq!((drops.first(), drops.len()), (3, 1));
    }

    #[test]
    fn rows_are_found_by_time_and_purged_below() {
        let mut log = Log::new(10_000, WhenFull::Refuse, WINDOW);
        for second in [1, 2, 2, 5] {
            log.append(row(second, ""));
        }
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        assert_eq!(
            [0, 2, 3, 9].map(|second| log.first_since(at(second))),
            [1, 2, 4, 5]
        );
        assert!(log.purge_below(3) && !log.purge_below(3));
        assert_eq!((log.first(), log.next(), log.get(2).is_none()), (3, 5, true));
    }
}
