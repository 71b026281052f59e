//! What the entries of the manifest mean together.

use std::collections::BTreeMap;

use super::entry::{ConsumerEntry, Entry, IdsEntry, LiveEntry, Opening, SegmentEntry, StreamEntry};
use crate::index::locate;

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
    use bytes::Bytes;

    use super::*;
    use crate::codec::Cursor;
    use crate::index::SPAN;
    use crate::manifest::entry::{Bucket, Live, PositionEntry};
    use crate::options::StreamOptions;

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
