//! Replaying the journal over what the manifest and the segments tell.
//!
//! Frames are taken by number from the trim on. Up to the highest `durable_before` found, or the newest frame that the manifest notes, whatever is bad is damage: it is
//! reported and the next record is looked for. Above it the first frame that is not whole ends the journal: it is torn, was
//! never acknowledged as synced, and is dropped whole, since sectors of an older frame may stand where its own should. A group counts when its last record is there; a record cut into fragments when all are.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::fault::Fault;
use crate::index::{StreamIndex, TailChunk};
use crate::journal::frame::{HEAD, Head, scan};
use crate::manifest::Image;
use crate::options::{Durability, StoreOptions, StreamOptions};
use crate::record::{Kind, Record, SeqRange, find_next};
use crate::report::{Finding, RecoveryReport, Why};

/// A journal file as it was read.
#[derive(Debug)]
pub(crate) struct JournalImage {
    pub(crate) name: String,
    pub(crate) slot: u32,
    /// Length of the file.
    pub(crate) len: u64,
    /// Its bytes; none when nothing in it counts.
    pub(crate) bytes: Bytes,
}

/// Where the journal ended.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The newest frame that counts.
    pub(crate) last_frame: u64,
    /// The records of a torn frame.
    pub(crate) torn: Vec<u8>,
    /// Newest frame and end of frames of each file, by slot; only for files with frames that count.
    pub(crate) files: BTreeMap<u32, FileEnd>,
}

/// What of a file counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileEnd {
    pub(crate) first_frame: u64,
    pub(crate) last_frame: u64,
    pub(crate) at: u64,
}

#[derive(Debug)]
struct Stream {
    index: StreamIndex,
    group: Vec<Piece>,
    fragments: Vec<u8>,
    /// The frame of the first fragment.
    fragments_from: u64,
    run: Option<Run>,
    tail: u64,
}

/// A record waiting for the rest of its group.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    place: Place,
    remaining: u32,
}

/// What a fragment completed.
enum Fragments {
    /// Nothing yet.
    More,
    /// The record.
    Whole(Bytes),
    /// The end of a record whose beginning is missing.
    Headless,
}

/// Where a record stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    at: usize,
    frame: u64,
    /// Whether the bytes are the file's own; a record put together from fragments has its own.
    whole: bool,
}

/// Neighbouring records of one stream in one frame.
#[derive(Debug)]
struct Run {
    file: usize,
    frame: u64,
    start: usize,
    end: usize,
    next_seq: u64,
}

pub(crate) struct Replay<'a> {
    options: &'a StoreOptions,
    image: &'a Image,
    files: &'a [JournalImage],
    streams: BTreeMap<u64, Stream>,
    report: &'a mut RecoveryReport,
    /// Whether something durable was bad.
    seen_damage: bool,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(
        options: &'a StoreOptions,
        image: &'a Image,
        files: &'a [JournalImage],
        indexes: BTreeMap<u64, StreamIndex>,
        report: &'a mut RecoveryReport,
    ) -> Self {
        let streams = indexes
            .into_iter()
            .map(|(k, index)| (k, Stream::new(index)))
            .collect();
        Self {
            options,
            image,
            files,
            streams,
            report,
            seen_damage: false,
        }
    }

    /// Replays everything; answers the streams, the bytes in their tails, and where the journal ended.
    pub(crate) fn run(mut self, store_id: u64) -> (BTreeMap<u64, StreamIndex>, u64, End) {
        let trim = self.image.trim;
        let mut frames: BTreeMap<u64, (Head, usize)> = BTreeMap::new();
        let mut durable = self
            .image
            .openings
            .last()
            .map_or(0, |o| o.first_frame.saturating_sub(1))
            .max(self.image.end.unwrap_or(0));
        for (i, file) in self.files.iter().enumerate() {
            let mut size = 0;
            for head in scan(store_id, file.slot, &file.bytes) {
                size = size.max(head.file_size);
                let generation = self.image.opening_of(head.number).map(|o| o.generation);
                let any = self.options.fault(Fault::NoGeneration);
                if head.number > trim && (generation == Some(head.generation) || any) {
                    durable = durable.max(head.durable_before);
                    frames.insert(head.number, (head, i));
                }
            }
            if size > file.len {
                self.find(None, None, &file.name, Why::TruncatedFile);
            }
        }
        let mut end = End {
            last_frame: trim,
            ..End::default()
        };
        let mut number = trim + 1;
        loop {
            if self.image.openings.iter().any(|o| o.first_frame == number) {
                self.drop_unfinished();
            }
            match frames.get(&number) {
                Some((head, file)) if number > durable && !self.whole(head, *file) => {
                    let name = self.files[*file].name.clone();
                    self.find(None, None, &name, Why::TornTail);
                    end.torn = self.body(head, *file).to_vec();
                    break;
                }
                Some((head, file)) => {
                    end.last_frame = number;
                    let place = end.files.entry(head.slot).or_default();
                    if place.first_frame == 0 {
                        place.first_frame = number;
                    }
                    place.last_frame = number;
                    place.at = place.at.max(head.at + head.padded() as u64);
                    self.report.frames += 1;
                    self.frame(head, *file);
                }
                None if number <= durable => {
                    end.last_frame = number;
                    self.seen_damage = true;
                    let what = format!("frame {number}");
                    self.find(None, None, &what, Why::MissingFrame);
                }
                None => break,
            }
            number += 1;
        }
        self.drop_unfinished();
        let mut tail = 0;
        let mut indexes = BTreeMap::new();
        let files = self.files;
        for (incarnation, mut s) in std::mem::take(&mut self.streams) {
            s.flush(files);
            tail += s.tail;
            indexes.insert(incarnation, s.index);
        }
        (indexes, tail, end)
    }

    fn find(&mut self, stream: Option<String>, seqs: Option<SeqRange>, file: &str, why: Why) {
        self.report.findings.push(Finding {
            stream,
            seqs,
            file: file.to_owned(),
            why,
        });
    }

    fn body(&self, head: &Head, file: usize) -> &'a [u8] {
        let bytes = &self.files[file].bytes;
        let start = (head.at as usize + HEAD).min(bytes.len());
        &bytes[start..(start + head.len as usize).min(bytes.len())]
    }

    fn whole(&self, head: &Head, file: usize) -> bool {
        let body = self.body(head, file);
        body.len() == head.len as usize && crc32c::crc32c(body) == head.body_crc
    }

    fn frame(&mut self, head: &Head, file: usize) {
        let body = self.body(head, file);
        let image = &self.files[file];
        let start = head.at as usize + HEAD;
        let mut at = 0;
        while at < head.len as usize {
            let rest = body.get(at..).unwrap_or_default();
            if let Some(r) = Record::parse_checked(rest) {
                let place = Place {
                    file,
                    at: start + at,
                    frame: head.number,
                    whole: true,
                };
                self.record(&r, image.bytes.slice(start + at..start + at + r.len()), place);
                at += r.len();
                continue;
            }
            self.damaged(rest, &image.name);
            at = match next_record(body, at) {
                Some(next) => next,
                None => return,
            };
        }
    }

    /// Reports a damaged record, as far as its header can be trusted.
    fn damaged(&mut self, bytes: &[u8], file: &str) {
        self.seen_damage = true;
        let known = Record::parse(bytes).and_then(|r| Some((r.seq(), self.streams.get(&r.incarnation())?)));
        let (stream, seqs) = match known {
            Some((seq, s)) if seq == s.index.last_seq + 1 => {
                (Some(s.index.options.name.clone()), Some(SeqRange::one(seq)))
            }
            _ => (None, None),
        };
        if let (Some(range), Some(incarnation)) = (seqs, Record::parse(bytes).map(|r| r.incarnation())) {
            // Kept as used up, so that the sequence is never given out again.
            if let Some(s) = self.streams.get_mut(&incarnation) {
                s.index.last_seq = range.last;
                if s.index.messages == 0 {
                    s.index.first_seq = range.last + 1;
                }
                s.index.lose(range);
            }
        }
        self.find(stream, seqs, file, Why::DamagedRecord);
    }

    fn record(&mut self, r: &Record<'_>, bytes: Bytes, place: Place) {
        self.report.records += 1;
        let incarnation = r.incarnation();
        let known = self.streams.contains_key(&incarnation);
        if !known && r.kind == Kind::Create {
            if let Some(options) = StreamOptions::decode(&mut crate::codec::Cursor::new(r.payload())) {
                self.streams
                    .insert(incarnation, Stream::new(StreamIndex::new(incarnation, options)));
            }
        } else if !known && incarnation >= self.image.next_incarnation {
            let file = self.files[place.file].name.clone();
            self.find(None, None, &file, Why::UnknownStream);
        }
        let Some(s) = self.streams.get_mut(&incarnation) else {
            return;
        };
        if r.kind == Kind::Fragment {
            match s.fragment(r, place.frame) {
                Fragments::More => {}
                Fragments::Whole(whole) => {
                    // It leaves the journal with the file that holds its beginning.
                    let place = Place {
                        whole: false,
                        frame: s.fragments_from,
                        ..place
                    };
                    match Record::parse_checked(&whole) {
                        Some(r) => self.record(&r, whole.clone(), place),
                        None => self.damaged(&[], &self.files[place.file].name.clone()),
                    }
                }
                // The first ones were trimmed, and with them the record: it is settled.
                Fragments::Headless if !self.seen_damage => {}
                Fragments::Headless => self.damaged(&[], &self.files[place.file].name.clone()),
            }
            return;
        }
        let remaining = r.remaining();
        let goes_on = s.group.last().is_some_and(|g| remaining < g.remaining);
        if !goes_on && !s.group.is_empty() {
            // The group's last record is missing although what follows it is here: it was damaged, not torn.
            self.finish_group(incarnation);
        }
        let Some(s) = self.streams.get_mut(&incarnation) else {
            return;
        };
        if remaining > 0 || !s.group.is_empty() {
            s.group.push(Piece {
                bytes,
                place,
                remaining,
            });
            if remaining == 0 {
                self.finish_group(incarnation);
            }
        } else {
            self.apply(incarnation, &bytes, place);
        }
    }

    fn finish_group(&mut self, incarnation: u64) {
        let Some(s) = self.streams.get_mut(&incarnation) else {
            return;
        };
        for piece in std::mem::take(&mut s.group) {
            self.apply(incarnation, &piece.bytes, piece.place);
        }
    }

    /// Forgets groups and fragments that an opening or the end of the journal left unfinished.
    fn drop_unfinished(&mut self) {
        let early = self.options.fault(Fault::GroupWithoutLast);
        let keys: Vec<u64> = self.streams.keys().copied().collect();
        for incarnation in keys {
            if early {
                self.finish_group(incarnation);
            }
            if let Some(s) = self.streams.get_mut(&incarnation) {
                s.group.clear();
                s.fragments.clear();
            }
        }
    }

    fn apply(&mut self, incarnation: u64, bytes: &Bytes, place: Place) {
        let files = self.files;
        let Some(s) = self.streams.get_mut(&incarnation) else {
            return;
        };
        let Some(r) = Record::parse(bytes) else { return };
        let known = s.index.last_seq;
        let applied = s.index.apply(&r, self.options.dedup_max);
        if matches!(r.kind, Kind::Message | Kind::Skip) && r.seq() > known {
            s.keep(&r, bytes, place, files);
        }
        let strict = s.index.options.durability == Durability::Sync;
        if let Some(range) = applied.missing.filter(|_| strict) {
            s.index.lose(range);
            let name = s.index.options.name.clone();
            let file = files[place.file].name.clone();
            self.find(Some(name), Some(range), &file, Why::LostSequences);
        }
    }
}

impl Stream {
    fn new(index: StreamIndex) -> Self {
        Self {
            index,
            group: Vec::new(),
            fragments: Vec::new(),
            fragments_from: 0,
            run: None,
            tail: 0,
        }
    }

    /// Takes a fragment.
    fn fragment(&mut self, r: &Record<'_>, frame: u64) -> Fragments {
        // A fragment's time field is its position in the record.
        if r.time() == 0 {
            self.fragments.clear();
            self.fragments_from = frame;
        } else if r.time() != self.fragments.len() as i64 {
            self.fragments.clear();
            return if r.remaining() == 0 {
                Fragments::Headless
            } else {
                Fragments::More
            };
        }
        self.fragments.extend_from_slice(r.payload());
        match r.remaining() {
            0 => Fragments::Whole(Bytes::from(std::mem::take(&mut self.fragments))),
            _ => Fragments::More,
        }
    }

    /// Keeps a record's bytes for the tail.
    fn keep(&mut self, r: &Record<'_>, bytes: &Bytes, place: Place, files: &[JournalImage]) {
        if let Some(run) = &mut self.run
            && place.whole
            && (run.file, run.frame, run.end, run.next_seq) == (place.file, place.frame, place.at, r.seq())
        {
            run.end += r.len();
            run.next_seq += 1;
            return;
        }
        self.flush(files);
        if place.whole {
            let (start, end) = (place.at, place.at + r.len());
            self.run = Some(Run {
                file: place.file,
                frame: place.frame,
                start,
                end,
                next_seq: r.seq() + 1,
            });
        } else {
            self.push(TailChunk::scan(bytes.clone(), place.frame));
        }
    }

    fn flush(&mut self, files: &[JournalImage]) {
        if let Some(run) = self.run.take() {
            let bytes = files[run.file].bytes.slice(run.start..run.end);
            self.push(TailChunk::scan(bytes, run.frame));
        }
    }

    fn push(&mut self, chunk: TailChunk) {
        self.tail += chunk.bytes.len() as u64;
        self.index.tail.push(std::sync::Arc::new(chunk));
    }
}

/// Where to go on behind a damaged record: where its length says, if a good record is there; else the next good record.
fn next_record(body: &[u8], at: usize) -> Option<usize> {
    let skip = at.saturating_add(crate::codec::u32_at(body, at) as usize);
    if skip > at && skip < body.len() && Record::parse_checked(&body[skip..]).is_some() {
        return Some(skip);
    }
    find_next(body, at + 1)
}
