//! A stored message, as readers get it.

use bytes::Bytes;

use crate::record::{HEADER_LEN, Record};

/// A message: a slice of a buffer shared with the store, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    record: Bytes,
    seq: u64,
    time: i64,
    subject_end: usize,
    headers_at: usize,
    payload_at: usize,
}

impl Message {
    pub(crate) fn new(record: Bytes) -> Option<Self> {
        let r = Record::parse(&record)?;
        let (headers_at, payload_at) = r.body_offsets();
        let (seq, time, subject_end) = (r.seq(), r.time(), HEADER_LEN + r.subject().len());
        Some(Self {
            seq,
            time,
            subject_end,
            headers_at,
            payload_at,
            record,
        })
    }

    /// Its sequence.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Its stored time, nanoseconds since the Unix epoch.
    pub fn time(&self) -> i64 {
        self.time
    }

    /// Its subject.
    pub fn subject(&self) -> Bytes {
        self.record.slice(HEADER_LEN..self.subject_end)
    }

    /// Its headers as they were given, empty for none.
    pub fn headers(&self) -> Bytes {
        self.record.slice(self.headers_at..self.payload_at)
    }

    /// Its payload.
    pub fn payload(&self) -> Bytes {
        self.record.slice(self.payload_at..)
    }
}
