//! The headers of a publish that mean something to a stream.
//!
//! [`PublishHeaders::read`] finds all of them in one pass over the block and allocates nothing; a publish without headers
//! costs nothing. The rules are those of [`windjet_protocol::header`]: names are compared byte for byte, the first field of
//! a name counts, leading spaces of a value do not. A field without a value is as good as absent, except where a member
//! says otherwise.
//!
//! [`cleaned`] is the block as it is stored; [`with_field`], [`without`] and [`replaced`] make changed copies of a block.

use std::borrow::Cow;

use windjet_protocol::header::{VERSION, block, names};

/// A number in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    /// Its value.
    Is(u64),
    /// There is a text, and it is no number: equal to nothing.
    Unparsable,
}

impl Number {
    /// Whether this is `seq`.
    pub(crate) fn is(self, seq: u64) -> bool {
        self == Self::Is(seq)
    }
}

/// See the module's page. All texts are slices of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PublishHeaders<'b> {
    /// `Nats-Msg-Id`.
    pub(crate) msg_id: Option<&'b [u8]>,
    /// `Nats-Expected-Stream`.
    pub(crate) expected_stream: Option<&'b [u8]>,
    /// `Nats-Expected-Last-Sequence`.
    pub(crate) expected_last_seq: Option<Number>,
    /// `Nats-Expected-Last-Subject-Sequence`.
    pub(crate) expected_last_subject_seq: Option<Number>,
    /// `Nats-Expected-Last-Subject-Sequence-Subject`.
    pub(crate) expected_subject: Option<&'b [u8]>,
    /// `Nats-Expected-Last-Msg-Id`.
    pub(crate) expected_last_msg_id: Option<&'b [u8]>,
    /// `Nats-Rollup`.
    pub(crate) rollup: Option<&'b [u8]>,
    /// `Nats-TTL`.
    pub(crate) ttl: Option<&'b [u8]>,
    /// `Nats-Incr`.
    pub(crate) increment: Option<&'b [u8]>,
    /// `Nats-Batch-Id`.
    pub(crate) batch_id: Option<&'b [u8]>,
    /// `Nats-Batch-Sequence`.
    pub(crate) batch_seq: Option<Number>,
    /// `Nats-Batch-Commit`.
    pub(crate) batch_commit: Option<&'b [u8]>,
    /// `Nats-Required-Api-Level`.
    pub(crate) required_level: Option<&'b [u8]>,
    /// `Nats-Schedule`.
    pub(crate) schedule: Option<&'b [u8]>,
    /// `Nats-Schedule-Target`.
    pub(crate) schedule_target: Option<&'b [u8]>,
    /// `Nats-Schedule-Source`.
    pub(crate) schedule_source: Option<&'b [u8]>,
    /// `Nats-Schedule-TTL`.
    pub(crate) schedule_ttl: Option<&'b [u8]>,
    /// `Nats-Schedule-Rollup`.
    pub(crate) schedule_rollup: Option<&'b [u8]>,
    /// `Nats-Schedule-Time-Zone`; here an empty value is kept, because it is wrong.
    pub(crate) schedule_time_zone: Option<&'b [u8]>,
    /// `Nats-Scheduler`.
    pub(crate) scheduler: Option<&'b [u8]>,
    /// `Nats-Schedule-Next`.
    pub(crate) schedule_next: Option<&'b [u8]>,
    /// `Nats-Counter-Sources`.
    pub(crate) counter_sources: Option<&'b [u8]>,
    /// `Nats-Stream-Source`.
    pub(crate) stream_source: Option<&'b [u8]>,
    /// `Nats-Marker-Reason`.
    pub(crate) marker_reason: Option<&'b [u8]>,
    /// `KV-Operation`.
    pub(crate) kv_operation: Option<&'b [u8]>,
    /// Whether the block is not stored as it is; see [`cleaned`].
    unclean: bool,
    /// Whether any of the members above is set.
    any: bool,
}

impl<'b> PublishHeaders<'b> {
    /// Reads a header block; an empty one is a message without headers.
    #[inline]
    pub(crate) fn read(block: &'b [u8]) -> Self {
        if block.is_empty() {
            Self::default()
        } else {
            Self::scan(block)
        }
    }

    fn scan(block: &'b [u8]) -> Self {
        let mut headers = Self {
            unclean: !block.starts_with(VERSION)
                || block.get(VERSION.len()..VERSION.len() + 2) != Some(b"\r\n"),
            ..Self::default()
        };
        let mut seen = Seen(0);
        for (name, value) in block::fields(block) {
            if name.starts_with(b"Nats-") || name == names::KV_OPERATION.as_bytes() {
                headers.take(&mut seen, name, value);
            }
        }
        headers.any = seen.0 != 0;
        headers
    }

    fn take(&mut self, seen: &mut Seen, name: &[u8], value: &'b [u8]) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let (bit, slot): (u32, &mut Option<&'b [u8]>) = match name {
            names::MSG_ID => (0, &mut self.msg_id),
            names::EXPECTED_STREAM => (1, &mut self.expected_stream),
            names::EXPECTED_LAST_SEQUENCE => {
                return take_number(seen, 2, &mut self.expected_last_seq, value);
            }
            names::EXPECTED_LAST_SUBJECT_SEQUENCE => {
                return take_number(seen, 3, &mut self.expected_last_subject_seq, value);
            }
            names::EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT => (4, &mut self.expected_subject),
            names::EXPECTED_LAST_MSG_ID => (5, &mut self.expected_last_msg_id),
            names::ROLLUP => (6, &mut self.rollup),
            names::TTL => (7, &mut self.ttl),
            names::INCREMENT => (8, &mut self.increment),
            names::BATCH_ID => (9, &mut self.batch_id),
            names::BATCH_SEQUENCE => return take_number(seen, 10, &mut self.batch_seq, value),
            names::BATCH_COMMIT => (11, &mut self.batch_commit),
            names::REQUIRED_API_LEVEL => (12, &mut self.required_level),
            names::SCHEDULE => (13, &mut self.schedule),
            names::SCHEDULE_TARGET => (14, &mut self.schedule_target),
            names::SCHEDULE_SOURCE => (15, &mut self.schedule_source),
            names::SCHEDULE_TTL => (16, &mut self.schedule_ttl),
            names::SCHEDULE_ROLLUP => (17, &mut self.schedule_rollup),
            names::SCHEDULE_TIME_ZONE => {
                if seen.first(18) {
                    self.schedule_time_zone = Some(value);
                }
                return;
            }
            names::SCHEDULER => (19, &mut self.scheduler),
            names::SCHEDULE_NEXT => (20, &mut self.schedule_next),
            names::COUNTER_SOURCES => (21, &mut self.counter_sources),
            names::STREAM_SOURCE => (22, &mut self.stream_source),
            names::MARKER_REASON => (23, &mut self.marker_reason),
            names::KV_OPERATION => (24, &mut self.kv_operation),
            names::REQUEST_INFO => {
                self.unclean = true;
                return;
            }
            _ => return,
        };
        if seen.first(bit) && !value.is_empty() {
            *slot = Some(value);
        }
    }

    /// Whether the message belongs to an atomic batch.
    pub(crate) fn is_batched(&self) -> bool {
        self.batch_id.is_some()
    }

    /// Whether none of the headers that a stream knows is there, empty ones included.
    pub(crate) fn is_plain(&self) -> bool {
        !self.any
    }
}

/// Which names were seen, one bit a name.
struct Seen(u32);

impl Seen {
    /// Whether this is the first field of a name.
    fn first(&mut self, bit: u32) -> bool {
        let first = self.0 & (1 << bit) == 0;
        self.0 |= 1 << bit;
        first
    }
}

fn take_number(seen: &mut Seen, bit: u32, slot: &mut Option<Number>, value: &[u8]) {
    if seen.first(bit) && !value.is_empty() {
        *slot = Some(number(value).map_or(Number::Unparsable, Number::Is));
    }
}

/// A whole number in decimal digits and nothing else.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| match byte {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// The block as it is stored: without a status on its first line and without `Nats-Request-Info`. Empty when nothing is left.
/// `headers` must have been read from this block. Almost every block is clean already and is not copied.
pub(crate) fn cleaned<'b>(block: &'b [u8], headers: &PublishHeaders<'_>) -> Cow<'b, [u8]> {
    if !headers.unclean {
        return Cow::Borrowed(block);
    }
    let mut owned = block.to_vec();
    block::remove(&mut owned, names::REQUEST_INFO);
    block::strip_status(&mut owned);
    Cow::Owned(owned)
}

/// Appends a field at the end of a block.
pub(crate) fn with_field<'b>(block: Cow<'b, [u8]>, name: &str, value: &[u8]) -> Cow<'b, [u8]> {
    let mut owned = block.into_owned();
    block::append(&mut owned, name, value);
    Cow::Owned(owned)
}

/// Takes all fields of a name out of a block; a block without them is not copied.
pub(crate) fn without<'b>(block: Cow<'b, [u8]>, name: &str) -> Cow<'b, [u8]> {
    if !block::contains(&block, name) {
        return block;
    }
    let mut owned = block.into_owned();
    block::remove(&mut owned, name);
    Cow::Owned(owned)
}

/// Takes all fields of a name out of a block and appends one with the new value.
pub(crate) fn replaced<'b>(block: Cow<'b, [u8]>, name: &str, value: &[u8]) -> Cow<'b, [u8]> {
    let mut owned = block.into_owned();
    block::set(&mut owned, name, value);
    Cow::Owned(owned)
}

/// Gives the first field of a name another value, where it stands; without one, the field is appended.
pub(crate) fn changed<'b>(block: Cow<'b, [u8]>, name: &str, value: &[u8]) -> Cow<'b, [u8]> {
    let place = match block::find(&block, name) {
        Some(old) if old == value => return block,
        // The value is a part of the block.
        Some(old) => {
            let start = old.as_ptr().addr().saturating_sub(block.as_ptr().addr());
            start..start + old.len()
        }
        None => return with_field(block, name, value),
    };
    let mut owned = block.into_owned();
    owned.splice(place, value.iter().copied());
    Cow::Owned(owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block_of(lines: &[&str]) -> Vec<u8> {
        let mut text = String::from("NATS/1.0\r\n");
        for line in lines {
            text.push_str(line);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    #[test]
    fn every_header_is_found() {
        let block = block_of(&[
            "Nats-Msg-Id: a",
            "Nats-Expected-Stream: b",
            "Nats-Expected-Last-Sequence: 1",
            "Nats-Expected-Last-Subject-Sequence: 2",
            "Nats-Expected-Last-Subject-Sequence-Subject: c.*",
            "Nats-Expected-Last-Msg-Id: d",
            "Nats-Rollup: sub",
            "Nats-TTL: 5",
            "Nats-Incr: +1",
            "Nats-Batch-Id: e",
            "Nats-Batch-Sequence: 3",
            "Nats-Batch-Commit: eob",
            "Nats-Required-Api-Level: 2",
            "Nats-Schedule: @hourly",
            "Nats-Schedule-Target: f",
            "Nats-Schedule-Source: g",
            "Nats-Schedule-TTL: 6",
            "Nats-Schedule-Rollup: sub",
            "Nats-Schedule-Time-Zone: UTC",
            "Nats-Scheduler: h",
            "Nats-Schedule-Next: purge",
            "Nats-Counter-Sources: {}",
            "Nats-Stream-Source: i",
            "Nats-Marker-Reason: MaxAge",
            "KV-Operation: PURGE",
        ]);
        let headers = PublishHeaders::read(&block);
        assert_eq!(
            headers,
            PublishHeaders {
                msg_id: Some(b"a"),
                expected_stream: Some(b"b"),
                expected_last_seq: Some(Number::Is(1)),
                expected_last_subject_seq: Some(Number::Is(2)),
                expected_subject: Some(b"c.*"),
                expected_last_msg_id: Some(b"d"),
                rollup: Some(b"sub"),
                ttl: Some(b"5"),
                increment: Some(b"+1"),
                batch_id: Some(b"e"),
                batch_seq: Some(Number::Is(3)),
                batch_commit: Some(b"eob"),
                required_level: Some(b"2"),
                schedule: Some(b"@hourly"),
                schedule_target: Some(b"f"),
                schedule_source: Some(b"g"),
                schedule_ttl: Some(b"6"),
                schedule_rollup: Some(b"sub"),
                schedule_time_zone: Some(b"UTC"),
                scheduler: Some(b"h"),
                schedule_next: Some(b"purge"),
                counter_sources: Some(b"{}"),
                stream_source: Some(b"i"),
                marker_reason: Some(b"MaxAge"),
                kv_operation: Some(b"PURGE"),
                unclean: false,
                any: true,
            }
        );
        assert!(headers.is_batched() && !headers.is_plain());
        assert!(matches!(cleaned(&block, &headers), Cow::Borrowed(_)));
    }

    #[test]
    fn a_message_of_the_user_is_plain() {
        for block in [
            block_of(&["A: b", "nats-msg-id: x", "Orig-Nats-Msg-Id: y", "Nats-Msg-Idx: z"]),
            Vec::new(),
            b"NATS/1.0\r\n\r\n".to_vec(),
        ] {
            let headers = PublishHeaders::read(&block);
            assert!(headers.is_plain());
            assert!(!headers.is_batched());
            assert_eq!(headers, PublishHeaders::default());
        }
    }

    #[test]
    fn the_first_field_counts_even_when_it_is_empty() {
        let block = block_of(&["Nats-Msg-Id:   a ", "Nats-Msg-Id: b", "Nats-TTL:", "Nats-TTL: 5"]);
        let headers = PublishHeaders::read(&block);
        assert_eq!((headers.msg_id, headers.ttl), (Some(&b"a "[..]), None));
        assert!(!headers.is_plain());
    }

    #[test]
    fn numbers_are_digits_only() {
        for (text, expected) in [
            ("0", Some(Number::Is(0))),
            ("007", Some(Number::Is(7))),
            ("18446744073709551615", Some(Number::Is(u64::MAX))),
            ("18446744073709551616", Some(Number::Unparsable)),
            ("-1", Some(Number::Unparsable)),
            ("+1", Some(Number::Unparsable)),
            ("1 ", Some(Number::Unparsable)),
            ("x", Some(Number::Unparsable)),
            ("", None),
        ] {
            let block = block_of(&[&format!("Nats-Expected-Last-Sequence: {text}")]);
            let headers = PublishHeaders::read(&block);
            assert_eq!(headers.expected_last_seq, expected, "{text:?}");
        }
        assert!(Number::Is(3).is(3) && !Number::Is(3).is(4) && !Number::Unparsable.is(0));
    }

    #[test]
    fn an_empty_time_zone_is_told_from_none() {
        let block = block_of(&["Nats-Schedule-Time-Zone: "]);
        assert_eq!(PublishHeaders::read(&block).schedule_time_zone, Some(&b""[..]));
        let block = block_of(&["A: b"]);
        assert_eq!(PublishHeaders::read(&block).schedule_time_zone, None);
    }

    #[test]
    fn status_and_request_info_are_not_stored() {
        for (before, after) in [
            ("NATS/1.0\r\nA: b\r\n\r\n", "NATS/1.0\r\nA: b\r\n\r\n"),
            ("NATS/1.0 503 foo\r\nA: b\r\n\r\n", "NATS/1.0\r\nA: b\r\n\r\n"),
            ("NATS/1.0 503\r\n\r\n", ""),
            ("NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n", ""),
            (
                "NATS/1.0 100\r\nNats-Request-Info: {}\r\nA: b\r\nNats-Request-Info: x\r\n\r\n",
                "NATS/1.0\r\nA: b\r\n\r\n",
            ),
        ] {
            let headers = PublishHeaders::read(before.as_bytes());
            assert_eq!(
                cleaned(before.as_bytes(), &headers),
                after.as_bytes(),
                "{before:?}"
            );
        }
    }

    #[test]
    fn copies_are_made_when_something_changes() {
        let block = block_of(&["A: b", "Nats-TTL: 1"]);
        let same = without(Cow::Borrowed(&block), "Nats-Rollup");
        assert!(matches!(same, Cow::Borrowed(_)));
        assert_eq!(without(same, "Nats-TTL"), block_of(&["A: b"]));
        assert_eq!(
            replaced(Cow::Borrowed(&block), "Nats-TTL", b"2"),
            block_of(&["A: b", "Nats-TTL: 2"])
        );
        assert_eq!(
            with_field(Cow::Borrowed(b""), "Nats-Rollup", b"sub"),
            block_of(&["Nats-Rollup: sub"])
        );
    }

    #[test]
    fn a_changed_value_stays_where_it_is() {
        let block = block_of(&["Nats-Incr: 6", "A: b"]);
        let same = changed(Cow::Borrowed(&block), "Nats-Incr", b"6");
        assert!(matches!(same, Cow::Borrowed(_)));
        assert_eq!(
            changed(same, "Nats-Incr", b"-11"),
            block_of(&["Nats-Incr: -11", "A: b"])
        );
        let added = changed(Cow::Borrowed(&block), "C", b"d");
        assert_eq!(added, block_of(&["Nats-Incr: 6", "A: b", "C: d"]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let headers = PublishHeaders::read(&bytes);
            let _ = cleaned(&bytes, &headers);
        }
    }
}
