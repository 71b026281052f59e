//! The entries of the manifest and their bytes.
//!
//! Each entry sets or clears one key, so that a log of them folds into an [`Image`] and an image dumps into a log.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::codec::{Cursor, Put};
use crate::index::{SPAN, locate};
use crate::options::StreamOptions;

/// What the manifest says about a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamEntry {
    pub(crate) options: StreamOptions,
    /// Newest sequence that is in segments or gone, and its time.
    pub(crate) settled_seq: u64,
    pub(crate) settled_time: i64,
    /// Nothing below is live.
    pub(crate) floor: u64,
    /// Newest committed sequence when this was written.
    pub(crate) last_seq: u64,
    pub(crate) last_time: i64,
    pub(crate) ceiling: u64,
    /// First and last of each range of sequences lost to damage.
    pub(crate) lost: Vec<(u64, u64)>,
}

/// What changes of a stream when messages come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PositionEntry {
    pub(crate) settled_seq: u64,
    pub(crate) settled_time: i64,
    pub(crate) floor: u64,
    pub(crate) last_seq: u64,
    pub(crate) last_time: i64,
}

/// What the manifest says about a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub(crate) len: u64,
    /// In order of rank, then of number, segments have ascending sequences of every stream.
    pub(crate) rank: u64,
    /// Incarnation, first and last sequence of each part.
    pub(crate) parts: Vec<(u64, u64, u64)>,
    /// Records of each part; none in entries of older versions.
    pub(crate) counts: Vec<u64>,
}

/// Which settled messages of one span are live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveEntry {
    /// What is said holds for sequences up to here.
    pub(crate) upto: u64,
    pub(crate) live: Live,
}

/// The live offsets in a span, in the shorter of two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Live {
    /// First and last of each run.
    Runs(Vec<(u16, u16)>),
    /// One bit for each offset, lowest first.
    Bits(Box<[u64]>),
}

impl LiveEntry {
    /// Whether a sequence of the span is live, as far as this says.
    pub(crate) fn is_live(&self, seq: u64) -> bool {
        let (_, off) = locate(seq);
        if seq > self.upto {
            return true;
        }
        match &self.live {
            Live::Runs(runs) => {
                let run = runs.partition_point(|(_, last)| usize::from(*last) < off);
                runs.get(run).is_some_and(|(first, _)| usize::from(*first) <= off)
            }
            Live::Bits(bits) => bits.get(off / 64).is_some_and(|w| w & (1 << (off % 64)) != 0),
        }
    }

    /// From one bit for each offset.
    pub(crate) fn new(upto: u64, bits: &[u64]) -> Self {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        let mut off = 0;
        while let Some(first) = next_bit(bits, off, true) {
            // Four bytes a run against a bit a sequence.
            if runs.len() * 32 >= SPAN {
                let live = Live::Bits(bits.into());
                return Self { upto, live };
            }
            off = next_bit(bits, first, false).unwrap_or(bits.len() * 64);
            runs.push((first as u16, (off - 1) as u16));
        }
        let live = Live::Runs(runs);
        Self { upto, live }
    }
}

/// The first offset at or after `from` whose bit is set, or not.
fn next_bit(bits: &[u64], from: usize, set: bool) -> Option<usize> {
    let flip = if set { 0 } else { u64::MAX };
    let mut word = from / 64;
    let mut left = (bits.get(word)? ^ flip) & (u64::MAX << (from % 64));
    while left == 0 {
        word += 1;
        left = bits.get(word)? ^ flip;
    }
    Some(word * 64 + left.trailing_zeros() as usize)
}

/// A consumer as of some operation that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerEntry {
    pub(crate) config: Bytes,
    /// Encoded `ConsumerChange` from nothing.
    pub(crate) state: Bytes,
}

/// A file of dedup ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdsEntry {
    /// Incarnation and newest time in it, per stream.
    pub(crate) newest: Vec<(u64, i64)>,
    /// How much of the file counts, `None` for all of it, and which times it takes: from the first up to the second.
    pub(crate) bucket: Option<Bucket>,
}

/// A file of dedup ids of a stretch of time, which grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) len: u64,
    pub(crate) from: i64,
    pub(crate) until: i64,
}

/// An opening of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) generation: u32,
    /// Its first frame.
    pub(crate) first_frame: u64,
}

/// One change of the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Next {
        incarnation: u64,
        file: u64,
    },
    Opening(Opening),
    Trim(u64),
    Boot {
        id: Option<u128>,
        clean: bool,
    },
    Stream(u64, StreamEntry),
    StreamGone(u64),
    Segment(u64, SegmentEntry),
    SegmentGone(u64),
    Live(u64, u64, LiveEntry),
    Consumer(u64, String, ConsumerEntry),
    ConsumerGone(u64, String),
    Ids(u64, IdsEntry),
    IdsGone(u64),
    /// Messages of a stream whose bytes are still to be overwritten, first and last of each range; none ends it.
    Erasing(u64, Vec<(u64, u64)>),
    /// The newest frame when the store was closed.
    End(u64),
    /// Of a stream that is known: where it is now.
    Position(u64, PositionEntry),
}

impl Entry {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Next { incarnation, file } => {
                out.put_u8(1);
                out.put_u64(*incarnation);
                out.put_u64(*file);
            }
            Self::Opening(o) => {
                out.put_u8(2);
                out.put_u32(o.generation);
                out.put_u64(o.first_frame);
            }
            Self::Trim(frame) => {
                out.put_u8(3);
                out.put_u64(*frame);
            }
            Self::Boot { id, clean } => {
                out.put_u8(4);
                out.put_u8(u8::from(id.is_some()));
                out.put_u128(id.unwrap_or(0));
                out.put_u8(u8::from(*clean));
            }
            Self::Stream(incarnation, s) => {
                out.put_u8(5);
                out.put_u64(*incarnation);
                s.options.encode(out);
                out.put_u64(s.settled_seq);
                out.put_i64(s.settled_time);
                out.put_u64(s.floor);
                out.put_u64(s.last_seq);
                out.put_i64(s.last_time);
                out.put_u64(s.ceiling);
                out.put_u32(s.lost.len() as u32);
                for (first, last) in &s.lost {
                    out.put_u64(*first);
                    out.put_u64(*last);
                }
            }
            Self::StreamGone(incarnation) => {
                out.put_u8(6);
                out.put_u64(*incarnation);
            }
            Self::Segment(id, s) => {
                let counted = !s.counts.is_empty();
                out.put_u8(if counted { 18 } else { 7 });
                out.put_u64(*id);
                out.put_u64(s.len);
                out.put_u64(s.rank);
                out.put_u32(s.parts.len() as u32);
                for (i, (incarnation, first, last)) in s.parts.iter().enumerate() {
                    out.put_u64(*incarnation);
                    out.put_u64(*first);
                    out.put_u64(*last);
                    if counted {
                        out.put_u64(s.counts.get(i).copied().unwrap_or(0));
                    }
                }
            }
            Self::SegmentGone(id) => {
                out.put_u8(8);
                out.put_u64(*id);
            }
            Self::Live(incarnation, span, entry) => {
                out.put_u8(if matches!(entry.live, Live::Runs(_)) {
                    9
                } else {
                    16
                });
                out.put_u64(*incarnation);
                out.put_u64(*span);
                out.put_u64(entry.upto);
                match &entry.live {
                    Live::Runs(runs) => {
                        out.put_u32(runs.len() as u32);
                        for (first, last) in runs {
                            out.put_u16(*first);
                            out.put_u16(*last);
                        }
                    }
                    Live::Bits(bits) => {
                        out.put_u32(bits.len() as u32);
                        bits.iter().for_each(|word| out.put_u64(*word));
                    }
                }
            }
            Self::Consumer(incarnation, name, c) => {
                out.put_u8(10);
                out.put_u64(*incarnation);
                out.put_bytes(name.as_bytes());
                out.put_bytes(&c.config);
                out.put_bytes(&c.state);
            }
            Self::ConsumerGone(incarnation, name) => {
                out.put_u8(11);
                out.put_u64(*incarnation);
                out.put_bytes(name.as_bytes());
            }
            Self::Ids(id, ids) => {
                out.put_u8(if ids.bucket.is_none() { 12 } else { 17 });
                out.put_u64(*id);
                if let Some(bucket) = ids.bucket {
                    out.put_u64(bucket.len);
                    out.put_i64(bucket.from);
                    out.put_i64(bucket.until);
                }
                out.put_u32(ids.newest.len() as u32);
                for (incarnation, time) in &ids.newest {
                    out.put_u64(*incarnation);
                    out.put_i64(*time);
                }
            }
            Self::IdsGone(id) => {
                out.put_u8(13);
                out.put_u64(*id);
            }
            Self::Erasing(incarnation, ranges) => {
                out.put_u8(14);
                out.put_u64(*incarnation);
                out.put_u32(ranges.len() as u32);
                for (first, last) in ranges {
                    out.put_u64(*first);
                    out.put_u64(*last);
                }
            }
            Self::End(frame) => {
                out.put_u8(15);
                out.put_u64(*frame);
            }
            Self::Position(incarnation, p) => {
                out.put_u8(19);
                out.put_u64(*incarnation);
                out.put_u64(p.settled_seq);
                out.put_i64(p.settled_time);
                out.put_u64(p.floor);
                out.put_u64(p.last_seq);
                out.put_i64(p.last_time);
            }
        }
    }

    pub(crate) fn decode(c: &mut Cursor<'_>) -> Option<Self> {
        Some(match c.u8()? {
            1 => Self::Next {
                incarnation: c.u64()?,
                file: c.u64()?,
            },
            2 => Self::Opening(Opening {
                generation: c.u32()?,
                first_frame: c.u64()?,
            }),
            3 => Self::Trim(c.u64()?),
            4 => {
                let (some, id, clean) = (c.u8()? != 0, c.u128()?, c.u8()? != 0);
                Self::Boot {
                    id: some.then_some(id),
                    clean,
                }
            }
            5 => {
                let incarnation = c.u64()?;
                let options = StreamOptions::decode(c)?;
                let entry = StreamEntry {
                    options,
                    settled_seq: c.u64()?,
                    settled_time: c.i64()?,
                    floor: c.u64()?,
                    last_seq: c.u64()?,
                    last_time: c.i64()?,
                    ceiling: c.u64()?,
                    lost: {
                        let n = c.u32()?;
                        (0..n)
                            .map(|_| Some((c.u64()?, c.u64()?)))
                            .collect::<Option<Vec<_>>>()?
                    },
                };
                Self::Stream(incarnation, entry)
            }
            6 => Self::StreamGone(c.u64()?),
            kind @ (7 | 18) => {
                let (id, len, rank, n) = (c.u64()?, c.u64()?, c.u64()?, c.u32()?);
                let (mut parts, mut counts) = (Vec::new(), Vec::new());
                for _ in 0..n {
                    parts.push((c.u64()?, c.u64()?, c.u64()?));
                    if kind == 18 {
                        counts.push(c.u64()?);
                    }
                }
                let entry = SegmentEntry {
                    len,
                    rank,
                    parts,
                    counts,
                };
                Self::Segment(id, entry)
            }
            8 => Self::SegmentGone(c.u64()?),
            kind @ (9 | 16) => {
                let (incarnation, span, upto, n) = (c.u64()?, c.u64()?, c.u64()?, c.u32()?);
                let live = if kind == 9 {
                    let runs = (0..n).map(|_| Some((c.u16()?, c.u16()?)));
                    Live::Runs(runs.collect::<Option<Vec<_>>>()?)
                } else {
                    let bits = (0..n).map(|_| c.u64());
                    Live::Bits(bits.collect::<Option<Vec<_>>>()?.into())
                };
                Self::Live(incarnation, span, LiveEntry { upto, live })
            }
            10 => {
                let incarnation = c.u64()?;
                let name = String::from_utf8(c.bytes()?.to_vec()).ok()?;
                let config = Bytes::copy_from_slice(c.bytes()?);
                let state = Bytes::copy_from_slice(c.bytes()?);
                Self::Consumer(incarnation, name, ConsumerEntry { config, state })
            }
            11 => Self::ConsumerGone(c.u64()?, String::from_utf8(c.bytes()?.to_vec()).ok()?),
            kind @ (12 | 17) => {
                let id = c.u64()?;
                let bucket = if kind == 17 {
                    let (len, from, until) = (c.u64()?, c.i64()?, c.i64()?);
                    Some(Bucket { len, from, until })
                } else {
                    None
                };
                let n = c.u32()?;
                let newest = (0..n)
                    .map(|_| Some((c.u64()?, c.i64()?)))
                    .collect::<Option<Vec<_>>>()?;
                Self::Ids(id, IdsEntry { newest, bucket })
            }
            13 => Self::IdsGone(c.u64()?),
            14 => {
                let (incarnation, n) = (c.u64()?, c.u32()?);
                let ranges = (0..n)
                    .map(|_| Some((c.u64()?, c.u64()?)))
                    .collect::<Option<Vec<_>>>()?;
                Self::Erasing(incarnation, ranges)
            }
            15 => Self::End(c.u64()?),
            19 => Self::Position(
                c.u64()?,
                PositionEntry {
                    settled_seq: c.u64()?,
                    settled_time: c.i64()?,
                    floor: c.u64()?,
                    last_seq: c.u64()?,
                    last_time: c.i64()?,
                },
            ),
            _ => return None,
        })
    }
}

/// The manifest's meaning: all entries folded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) next_incarnation: u64,
    pub(crate) next_file: u64,
    pub(crate) openings: Vec<Opening>,
    pub(crate) trim: u64,
    pub(crate) boot: Option<u128>,
    pub(crate) clean: bool,
    pub(crate) streams: BTreeMap<u64, StreamEntry>,
    pub(crate) segments: BTreeMap<u64, SegmentEntry>,
    pub(crate) live: BTreeMap<(u64, u64), LiveEntry>,
    pub(crate) consumers: BTreeMap<(u64, String), ConsumerEntry>,
    pub(crate) ids: BTreeMap<u64, IdsEntry>,
    pub(crate) erasing: BTreeMap<u64, Vec<(u64, u64)>>,
    /// The newest frame at the last clean end.
    pub(crate) end: Option<u64>,
}

impl Image {
    pub(crate) fn fold(&mut self, entry: Entry) {
        match entry {
            Entry::Next { incarnation, file } => {
                self.next_incarnation = self.next_incarnation.max(incarnation);
                self.next_file = self.next_file.max(file);
            }
            Entry::Opening(o) => {
                // Openings all of whose frames are trimmed tell nothing any more.
                while self
                    .openings
                    .get(1)
                    .is_some_and(|next| next.first_frame <= self.trim + 1)
                {
                    self.openings.remove(0);
                }
                self.openings.push(o);
            }
            Entry::Trim(frame) => self.trim = self.trim.max(frame),
            Entry::Boot { id, clean } => {
                self.boot = id;
                self.clean = clean;
            }
            Entry::Stream(incarnation, s) => {
                self.forget_below(incarnation, s.floor);
                self.streams.insert(incarnation, s);
            }
            Entry::StreamGone(incarnation) => {
                self.streams.remove(&incarnation);
                self.live.retain(|k, _| k.0 != incarnation);
                self.consumers.retain(|k, _| k.0 != incarnation);
                self.erasing.remove(&incarnation);
            }
            Entry::Segment(id, s) => {
                self.segments.insert(id, s);
            }
            Entry::SegmentGone(id) => {
                self.segments.remove(&id);
            }
            Entry::Live(incarnation, span, live) => {
                self.live.insert((incarnation, span), live);
            }
            Entry::Consumer(incarnation, name, c) => {
                self.consumers.insert((incarnation, name), c);
            }
            Entry::ConsumerGone(incarnation, name) => {
                self.consumers.remove(&(incarnation, name));
            }
            Entry::Ids(id, ids) => {
                self.ids.insert(id, ids);
            }
            Entry::IdsGone(id) => {
                self.ids.remove(&id);
            }
            Entry::End(frame) => self.end = Some(frame),
            Entry::Position(incarnation, p) => {
                self.forget_below(incarnation, p.floor);
                if let Some(s) = self.streams.get_mut(&incarnation) {
                    s.settled_seq = p.settled_seq;
                    s.settled_time = p.settled_time;
                    s.floor = p.floor;
                    s.last_seq = p.last_seq;
                    s.last_time = p.last_time;
                }
            }
            Entry::Erasing(incarnation, ranges) if ranges.is_empty() => {
                self.erasing.remove(&incarnation);
            }
            Entry::Erasing(incarnation, ranges) => {
                self.erasing.insert(incarnation, ranges);
            }
        }
    }

    /// Below the floor nothing is live, whatever was said about it.
    fn forget_below(&mut self, incarnation: u64, floor: u64) {
        let below = (incarnation, 0)..(incarnation, locate(floor).0);
        let dead: Vec<_> = self.live.range(below).map(|(key, _)| *key).collect();
        for key in dead {
            self.live.remove(&key);
        }
    }

    /// The entries that fold into this image.
    pub(crate) fn dump(&self) -> Vec<Entry> {
        let mut out = vec![
            Entry::Next {
                incarnation: self.next_incarnation,
                file: self.next_file,
            },
            Entry::Trim(self.trim),
            Entry::Boot {
                id: self.boot,
                clean: self.clean,
            },
        ];
        out.extend(self.end.map(Entry::End));
        out.extend(self.openings.iter().map(|o| Entry::Opening(*o)));
        out.extend(self.streams.iter().map(|(k, v)| Entry::Stream(*k, v.clone())));
        out.extend(self.segments.iter().map(|(k, v)| Entry::Segment(*k, v.clone())));
        out.extend(self.live.iter().map(|(k, v)| Entry::Live(k.0, k.1, v.clone())));
        out.extend(
            self.consumers
                .iter()
                .map(|(k, v)| Entry::Consumer(k.0, k.1.clone(), v.clone())),
        );
        out.extend(self.ids.iter().map(|(k, v)| Entry::Ids(*k, v.clone())));
        out.extend(self.erasing.iter().map(|(k, v)| Entry::Erasing(*k, v.clone())));
        out
    }

    /// The opening that wrote a frame, `None` when no known one did.
    pub(crate) fn opening_of(&self, frame: u64) -> Option<&Opening> {
        self.openings.iter().rev().find(|o| o.first_frame <= frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(live: impl Fn(usize) -> bool) -> Vec<u64> {
        let mut out = vec![0; SPAN / 64];
        (0..SPAN)
            .filter(|off| live(*off))
            .for_each(|off| out[off / 64] |= 1 << (off % 64));
        out
    }

    pub(crate) fn sample() -> Image {
        let mut image = Image {
            next_incarnation: 4,
            next_file: 9,
            trim: 5,
            ..Image::default()
        };
        let stream = StreamEntry {
            options: StreamOptions {
                name: "S".into(),
                config: Bytes::from_static(b"{}"),
                ..StreamOptions::default()
            },
            settled_seq: 7,
            settled_time: -1,
            floor: 2,
            last_seq: 8,
            last_time: 3,
            ceiling: 4,
            lost: vec![(3, 3)],
        };
        for entry in [
            Entry::Boot {
                id: Some(3),
                clean: true,
            },
            Entry::Opening(Opening {
                generation: 1,
                first_frame: 1,
            }),
            Entry::Stream(2, stream),
            Entry::Segment(
                3,
                SegmentEntry {
                    len: 100,
                    rank: 6,
                    parts: vec![(2, 1, 5)],
                    counts: Vec::new(),
                },
            ),
            Entry::Segment(
                4,
                SegmentEntry {
                    len: 200,
                    rank: 7,
                    parts: vec![(2, 6, 9), (3, 1, 1)],
                    counts: vec![2, 1],
                },
            ),
            Entry::Live(2, 0, LiveEntry::new(5, &bits(|off| [1, 2, 4, 5].contains(&off)))),
            Entry::Live(2, 3, LiveEntry::new(250, &bits(|off| off % 2 == 0))),
            Entry::Consumer(
                2,
                "C".into(),
                ConsumerEntry {
                    config: Bytes::new(),
                    state: Bytes::from_static(b"x"),
                },
            ),
            Entry::Ids(
                4,
                IdsEntry {
                    newest: vec![(2, 77)],
                    bucket: None,
                },
            ),
            Entry::Ids(
                5,
                IdsEntry {
                    newest: vec![(2, 99)],
                    bucket: Some(Bucket {
                        len: 88,
                        from: -5,
                        until: 100,
                    }),
                },
            ),
            Entry::Erasing(2, vec![(1, 1), (4, 6)]),
            Entry::End(12),
        ] {
            image.fold(entry);
        }
        image
    }

    #[test]
    fn an_image_survives_its_own_dump() {
        let image = sample();
        let mut bytes = Vec::new();
        image.dump().iter().for_each(|e| e.encode(&mut bytes));
        let mut back = Image::default();
        let mut c = Cursor::new(&bytes);
        while !c.is_empty() {
            back.fold(Entry::decode(&mut c).unwrap());
        }
        assert_eq!(back, image);
    }

    #[test]
    fn what_is_live_is_said_in_runs_or_bits_whichever_is_shorter_and_forgotten_below_the_floor() {
        let few = LiveEntry::new(SPAN as u64 - 1, &bits(|off| [3, 4, 9].contains(&off)));
        let many = LiveEntry::new(SPAN as u64 - 1, &bits(|off| off % 3 == 0));
        let all = LiveEntry::new(0, &bits(|_| true));
        assert_eq!(all.live, Live::Runs(vec![(0, SPAN as u16 - 1)]));
        assert!(matches!(few.live, Live::Runs(_)) && matches!(many.live, Live::Bits(_)));
        for seq in 0..SPAN as u64 {
            assert_eq!(few.is_live(seq), [3, 4, 9].contains(&seq), "{seq}");
            assert_eq!(many.is_live(seq), seq % 3 == 0, "{seq}");
        }
        let mut image = sample();
        let mut stream = image.streams[&2].clone();
        stream.floor = SPAN as u64;
        image.fold(Entry::Stream(2, stream));
        assert_eq!(image.live.keys().collect::<Vec<_>>(), [&(2, 3)]);
        let position = PositionEntry {
            settled_seq: 500,
            settled_time: 1,
            floor: 4 * SPAN as u64,
            last_seq: 600,
            last_time: 2,
        };
        let mut bytes = Vec::new();
        Entry::Position(2, position).encode(&mut bytes);
        image.fold(Entry::decode(&mut Cursor::new(&bytes)).unwrap());
        let stream = &image.streams[&2];
        assert_eq!(
            (stream.settled_seq, stream.last_seq, stream.last_time),
            (500, 600, 2)
        );
        assert_eq!((stream.floor, stream.ceiling), (4 * SPAN as u64, 4));
        assert!(image.live.is_empty());
    }

    #[test]
    fn openings_before_the_trim_are_forgotten() {
        let mut image = Image::default();
        for (generation, first_frame) in [(1, 1), (2, 10), (3, 20)] {
            image.fold(Entry::Opening(Opening {
                generation,
                first_frame,
            }));
        }
        image.fold(Entry::Trim(25));
        image.fold(Entry::Opening(Opening {
            generation: 4,
            first_frame: 30,
        }));
        assert_eq!(
            image.openings.iter().map(|o| o.generation).collect::<Vec<_>>(),
            [3, 4]
        );
        assert_eq!(image.opening_of(29).map(|o| o.generation), Some(3));
    }
}
