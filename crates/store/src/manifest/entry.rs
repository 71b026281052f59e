//! The entries of the manifest and their bytes.
//!
//! Each entry sets or clears one key, so that a log of them folds into an [`Image`](super::image::Image) and an image dumps into a log.

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
    /// The newest frame when the store was closed, or had been quiet.
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
