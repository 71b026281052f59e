//! A store: streams over one journal, one materialiser, one manifest.
//!
//! [`Store`] opens, creates streams, and either runs its own threads ([`Store::start`]) or is stepped by its user, which is
//! how the simulation drives it: `write_step`, `sync_step`, `materialise_step` are the only calls that touch the disk
//! after opening, besides reads. `pump` writes and syncs the journal, `keeper` moves records from the journal to segments
//! and keeps the manifest, `recover` opens, `threads` are the loops.
//!
//! Lock order: keeper, pump, registry, a stream's purge, a stream's index, a stream's queue, list. No lock but pump's and keeper's own is
//! held across I/O.

mod compact;
mod ids;
mod keeper;
mod memory;
pub(crate) mod meters;
mod probe;
mod pump;
mod recover;
mod replay;
mod threads;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

use keeper::Keeper;
pub use probe::{Probe, ProbeError};
use pump::Pump;
pub use pump::Step;
pub use verify::verify;

use crate::clock::Clock;
use crate::disk::{Disk, DiskLock};
use crate::error::{CreateError, OpenError, StageError};
use crate::index::StreamIndex;
use crate::journal::Contents;
use crate::manifest::Identity;
use crate::options::{Storage, StoreOptions, StreamOptions};
use crate::record::{Kind, Parts};
use crate::report::RecoveryReport;
use crate::segment::Segments;
use crate::stream::reader::StreamReader;
use crate::stream::shared::{AppliedChunks, Chunk, DoneChunk, Queue, StreamShared};
use crate::stream::writer::StreamWriter;

/// How long a sync may take before the store's health says so.
const STALLED_NS: u64 = 10_000_000_000;

/// Everything the parts of an open store share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: StoreOptions,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: Identity,
    pub(crate) segments: Arc<Segments>,
    pub(crate) list: Mutex<Listed>,
    pub(crate) wakeup: Condvar,
    /// Rings when probes are answered, or never will be.
    pub(crate) probed: Condvar,
    pub(crate) pump: Mutex<Pump>,
    pub(crate) keeper: Mutex<Keeper>,
    pub(crate) registry: Mutex<Registry>,
    /// Bytes submitted and not through the journal.
    pub(crate) staged: AtomicU64,
    /// Bytes in the tails of file streams.
    pub(crate) tail: AtomicU64,
    pub(crate) journal_used: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) meters: meters::Meters,
    failed: AtomicBool,
    pub(crate) disk_full: AtomicBool,
    /// Whether some stream has bytes to overwrite that the keeper has not seen.
    pub(crate) erasing: AtomicBool,
    /// Who makes the keeper's steps, when a thread does.
    pub(crate) keeper_thread: Mutex<Option<std::thread::Thread>>,
    waiting: Mutex<Vec<Arc<StreamShared>>>,
    _lock: Box<dyn DiskLock>,
}

/// What was done since the opening.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) syncs: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) segment_bytes: AtomicU64,
    /// The longest journal sync, in nanoseconds.
    pub(crate) sync_max_ns: AtomicU64,
    /// When the sync in hand began, and the materialiser's step; the monotonic time in nanoseconds plus one, 0 for none.
    sync_begun: AtomicU64,
    step_begun: AtomicU64,
    pub(crate) materialising: AtomicBool,
}

/// Streams with something submitted that the pump has not seen.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) streams: Vec<Arc<StreamShared>>,
    pub(crate) sleeping: bool,
    pub(crate) stop: bool,
    pub(crate) probes: probe::Probes,
}

/// All streams.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) by_name: HashMap<String, Arc<StreamShared>>,
    /// Living and deleted ones, the latter until the manifest says so.
    pub(crate) all: BTreeMap<u64, Arc<StreamShared>>,
    pub(crate) next_incarnation: u64,
}

/// Health of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Everything works.
    Good,
    /// The disk is full: appends are refused, what frees space goes on. Ends by itself.
    DiskFull,
    /// A sync of the journal, or a step of the materialiser, has run for 10 seconds. Ends when it returns.
    Stalled,
    /// The journal failed: nothing is written until the store is opened anew. Reads go on.
    Failed,
}

/// An open store. Dropping it stops its threads; what was not synced is lost. Close it with [`Store::close`].
#[derive(Debug)]
pub struct Store {
    core: Arc<Core>,
    threads: Option<threads::Threads>,
}

impl Store {
    /// Opens the store in `disk`, making one if the directory has none, and reports what recovery found. Nothing runs by
    /// itself yet; see [`Store::start`].
    ///
    /// # Errors
    /// See [`OpenError`]; when the lock or the format is the reason, nothing was changed.
    pub fn open(
        options: StoreOptions,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let begun = clock.monotonic();
        let (core, report) = recover::open(options, disk, clock)?;
        meters::Meters::opened(core.clock.monotonic().saturating_sub(begun), &report);
        Ok((
            Self {
                core: Arc::new(core),
                threads: None,
            },
            report,
        ))
    }

    /// Starts the two threads `windjet-journal` and `windjet-materialise`.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(&mut self) -> io::Result<()> {
        if self.threads.is_none() {
            self.threads = Some(threads::Threads::start(&self.core)?);
        }
        Ok(())
    }

    /// Creates a stream. It exists after a crash when the writer's operation 1 is committed, which for a memory stream
    /// it is at once.
    ///
    /// # Errors
    /// When the name is taken or the creation cannot be staged.
    pub fn create_stream(&self, options: StreamOptions) -> Result<StreamWriter, CreateError> {
        self.core.create(options)
    }

    /// Names and incarnations of living streams.
    pub fn streams(&self) -> Vec<(String, u64)> {
        let registry = self.core.registry.lock();
        registry
            .by_name
            .iter()
            .map(|(name, s)| (name.clone(), s.incarnation))
            .collect()
    }

    /// The writer of an existing stream, `None` when there is no such stream or it has a writer.
    pub fn writer(&self, name: &str) -> Option<StreamWriter> {
        let shared = self.core.registry.lock().by_name.get(name)?.clone();
        if shared.queue.lock().owned {
            return None;
        }
        Some(StreamWriter::new(shared, self.core.clone()))
    }

    /// A view of an existing stream's committed state.
    pub fn reader(&self, name: &str) -> Option<StreamReader> {
        let stream = self.core.registry.lock().by_name.get(name)?.clone();
        Some(StreamReader {
            stream,
            segments: self.core.segments.clone(),
        })
    }

    /// Writes one frame of what is submitted. For users without threads.
    ///
    /// # Errors
    /// When the journal failed; the store then stops writing.
    pub fn write_step(&self) -> io::Result<Step> {
        self.core.write_step()
    }

    /// Syncs what was written. For users without threads.
    ///
    /// # Errors
    /// When the journal failed; the store then stops writing.
    pub fn sync_step(&self) -> io::Result<Step> {
        self.core.sync_step()
    }

    /// Writes an empty frame if the last synced one is not covered yet. For users without threads, when idle.
    ///
    /// # Errors
    /// When the journal failed; the store then stops writing.
    pub fn idle_step(&self) -> io::Result<Step> {
        self.core.idle_step()
    }

    /// Does one bounded piece of background work: a step of emptying the oldest journal file, of removing dead files, of
    /// compaction. With `force` the current journal file is ended so that it can be emptied too.
    ///
    /// # Errors
    /// What the medium reports; nothing acknowledged is lost by it and the step can be tried again.
    pub fn materialise_step(&self, force: bool) -> io::Result<Step> {
        self.core.materialise_step(force)
    }

    /// Whether the store writes, and if not, why.
    pub fn health(&self) -> Health {
        if self.core.has_failed() {
            Health::Failed
        } else if self.core.is_stalled() {
            Health::Stalled
        } else if self.core.disk_full.load(Ordering::Relaxed) {
            Health::DiskFull
        } else {
            Health::Good
        }
    }

    /// Sizes and fill levels at this moment.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            staged_bytes: self.core.staged.load(Ordering::Relaxed),
            tail_bytes: self.core.tail.load(Ordering::Relaxed),
            cache_bytes: self.core.segments.cached_bytes(),
            journal_used_bytes: self.core.journal_used.load(Ordering::Relaxed),
            syncs: self.core.counters.syncs.load(Ordering::Relaxed),
            journal_written_bytes: self.core.counters.journal_bytes.load(Ordering::Relaxed),
            segment_written_bytes: self.core.counters.segment_bytes.load(Ordering::Relaxed),
            sync_max: Duration::from_nanos(self.core.counters.sync_max_ns.load(Ordering::Relaxed)),
            materialising: self.core.counters.materialising.load(Ordering::Relaxed),
        }
    }

    /// Writes and syncs everything submitted, notes the clean end in the manifest, and lets go of the directory. Owners
    /// should have submitted what they staged.
    ///
    /// # Errors
    /// What the medium reports; the store then recovers at the next opening.
    pub fn close(mut self) -> io::Result<()> {
        drop(self.threads.take());
        self.core.close()
    }
}

/// Fill levels of a store, and what it did since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Submitted and not through the journal.
    pub staged_bytes: u64,
    /// Committed and not in segments.
    pub tail_bytes: u64,
    /// Blocks of segments kept for reading.
    pub cache_bytes: u64,
    /// Occupied by frames that cannot be overwritten yet.
    pub journal_used_bytes: u64,
    /// Syncs of the journal.
    pub syncs: u64,
    /// Written to the journal, frames with their padding.
    pub journal_written_bytes: u64,
    /// Written to segments, compaction included.
    pub segment_written_bytes: u64,
    /// The longest sync of the journal.
    pub sync_max: Duration,
    /// Whether a journal file is being emptied, or segments are being written anew.
    pub materialising: bool,
}

impl Core {
    /// The keyed hash of a subject or a dedup id.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.identity.key.0, self.identity.key.1);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Most bytes of records in one group.
    pub(crate) fn group_max(&self) -> usize {
        usize::try_from(self.options.journal_max / 4).unwrap_or(usize::MAX)
    }

    /// So many bytes of tails are let go.
    pub(crate) fn tail_shrank(&self, bytes: u64) {
        let tail = self
            .tail
            .fetch_sub(bytes, Ordering::Relaxed)
            .saturating_sub(bytes);
        self.meters.tail.set(tail as f64);
    }

    pub(crate) fn count_segment(&self, len: u64) {
        self.counters.segment_bytes.fetch_add(len, Ordering::Relaxed);
        self.meters.segments.increment(len);
    }

    /// Whether a bounded disk has less room left than twice the journal's size.
    pub(crate) fn is_room_scarce(&self) -> bool {
        let enough = self.options.journal_max.saturating_mul(2);
        self.disk.room().is_some_and(|room| room < enough)
    }

    /// Whether an operation may be staged.
    pub(crate) fn admit(
        &self,
        stream: &Arc<StreamShared>,
        frees: bool,
        open: usize,
        len: usize,
    ) -> Result<(), StageError> {
        let admitted = self.has_room(stream, frees, open, len);
        if let Err(why) = admitted {
            self.meters.refused(why);
        }
        admitted
    }

    fn has_room(
        &self,
        stream: &Arc<StreamShared>,
        frees: bool,
        open: usize,
        len: usize,
    ) -> Result<(), StageError> {
        if stream.storage == Storage::Memory {
            return Ok(());
        }
        if self.has_failed() {
            return Err(StageError::Failed);
        }
        let staged = self.staged.load(Ordering::Relaxed) + open as u64;
        let used = self.journal_used.load(Ordering::Relaxed) + staged + len as u64;
        if frees {
            return if used > self.options.journal_max {
                self.busy(stream)
            } else {
                Ok(())
            };
        }
        if self.disk_full.load(Ordering::Relaxed) {
            return Err(StageError::DiskFull);
        }
        let own = stream.staged.load(Ordering::Relaxed) + open as u64;
        let kept = staged + self.tail.load(Ordering::Relaxed);
        let len = len as u64;
        let full = (own > 0 && own + len > self.options.stream_staged_max)
            || (kept > 0 && kept + len > self.options.tail_max)
            || used > self.options.journal_max / 8 * 7;
        if full { self.busy(stream) } else { Ok(()) }
    }

    fn busy(&self, stream: &Arc<StreamShared>) -> Result<(), StageError> {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|s| Arc::ptr_eq(s, stream)) {
            waiting.push(stream.clone());
        }
        Err(StageError::Busy)
    }

    /// Wakes streams that were refused for lack of room.
    pub(crate) fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.iter().for_each(|s| s.wake());
    }

    pub(crate) fn submit(&self, stream: &Arc<StreamShared>, chunk: Chunk) {
        if stream.storage == Storage::Memory {
            let done = DoneChunk {
                chunk,
                first_frame: u64::MAX,
                tokens: Vec::new(),
            };
            stream.queue.lock().done.push_back(done);
            stream.wake();
            return;
        }
        let len = chunk.bytes.len() as u64;
        self.staged.fetch_add(len, Ordering::Relaxed);
        stream.staged.fetch_add(len, Ordering::Relaxed);
        let list = {
            let mut queue = stream.queue.lock();
            queue.submitted.push_back(chunk);
            !std::mem::replace(&mut queue.listed, true)
        };
        if list {
            let mut listed = self.list.lock();
            listed.streams.push(stream.clone());
            if listed.sleeping {
                self.wakeup.notify_one();
            }
        }
    }

    /// Applies what is through the journal.
    pub(crate) fn apply(&self, stream: &Arc<StreamShared>) -> AppliedChunks {
        let options = &self.options;
        let applied = stream.apply_done(options.dedup_max, options.turn, self.clock.wall_ns());
        if applied.more {
            // The owner goes on with it, after what else waits for a turn.
            stream.wake();
        }
        if stream.storage == Storage::File {
            let tail = self.tail.fetch_add(applied.bytes, Ordering::Relaxed) + applied.bytes;
            self.meters.tail.set(tail as f64);
            if applied.erases {
                self.erasing.store(true, Ordering::Release);
                if let Some(thread) = &*self.keeper_thread.lock() {
                    thread.unpark();
                }
            }
        } else if applied.bytes > 0 {
            memory::reclaim_memory(stream);
        }
        applied
    }

    fn create(self: &Arc<Self>, options: StreamOptions) -> Result<StreamWriter, CreateError> {
        if self.has_failed() && options.storage == Storage::File {
            return Err(StageError::Failed.into());
        }
        let mut payload = Vec::new();
        options.encode(&mut payload);
        let mut registry = self.registry.lock();
        if registry.by_name.contains_key(&options.name) {
            return Err(CreateError::Exists);
        }
        let incarnation = registry.next_incarnation;
        registry.next_incarnation += 1;
        let (name, storage) = (options.name.clone(), options.storage);
        let index = StreamIndex::new(incarnation, options);
        let shared = Arc::new(StreamShared {
            incarnation,
            name,
            storage,
            meters: meters::StreamMeters::new(&index),
            index: RwLock::new(index),
            queue: Mutex::new(Queue::default()),
            purging: Mutex::new(None),
            staged: AtomicU64::new(0),
        });
        registry.by_name.insert(shared.name.clone(), shared.clone());
        registry.all.insert(incarnation, shared.clone());
        drop(registry);
        let mut record = Vec::new();
        Parts {
            kind: Kind::Create,
            remaining: 0,
            incarnation,
            seq: 0,
            time: self.clock.wall_ns(),
            subject: shared.name.as_bytes(),
            effects: b"",
            headers: b"",
            payload: &payload,
        }
        .encode(&mut record);
        let chunk = Chunk {
            bytes: record.into(),
            last_op: 1,
            first_seq: 0,
            offsets: Vec::new(),
            last_time: 0,
            strict: !self.options.fault(crate::fault::Fault::AckBeforeSync),
            purges: false,
        };
        let mut writer = StreamWriter::new(shared.clone(), self.clone());
        self.submit(&shared, chunk);
        writer.created();
        Ok(writer)
    }

    /// Frees the name of a stream whose deletion is staged.
    pub(crate) fn unlist(&self, stream: &Arc<StreamShared>) {
        let mut registry = self.registry.lock();
        if registry
            .by_name
            .get(&stream.name)
            .is_some_and(|s| Arc::ptr_eq(s, stream))
        {
            registry.by_name.remove(&stream.name);
        }
        if stream.storage == Storage::Memory {
            // No manifest has to hear of its end first.
            registry.all.remove(&stream.incarnation);
        }
    }

    pub(crate) fn write_step(&self) -> io::Result<Step> {
        if self.has_failed() {
            return Ok(Step::Idle);
        }
        let mut pump = self.pump.lock();
        let result = pump.write_step(self);
        self.checked(&mut pump, result)
    }

    pub(crate) fn sync_step(&self) -> io::Result<Step> {
        if self.has_failed() {
            return Ok(Step::Idle);
        }
        let mut pump = self.pump.lock();
        let result = self.timed(&self.counters.sync_begun, || pump.sync_step(self));
        self.checked(&mut pump, result)
    }

    pub(crate) fn idle_step(&self) -> io::Result<Step> {
        if self.has_failed() {
            return Ok(Step::Idle);
        }
        let mut pump = self.pump.lock();
        let result = pump.idle_step(self);
        self.checked(&mut pump, result)
    }

    /// Writes an empty frame, if nothing else waits for a sync, and syncs.
    fn probe_step(&self) -> io::Result<Step> {
        if self.has_failed() {
            return Ok(Step::Idle);
        }
        let mut pump = self.pump.lock();
        let written = pump.probe_step(self);
        if self.checked(&mut pump, written)? == Step::Blocked {
            return Ok(Step::Blocked);
        }
        let result = self.timed(&self.counters.sync_begun, || pump.sync_step(self));
        self.checked(&mut pump, result)
    }

    /// Overwrites a step of the journal's old bytes and syncs it; see [`crate::journal::Journal::wipe`]. False when there
    /// is nothing left to overwrite.
    pub(crate) fn wipe_step(&self, hit: impl Fn(&Contents) -> bool) -> io::Result<bool> {
        let written = {
            let mut pump = self.pump.lock();
            let written = pump.journal.wipe(hit, self.options.step);
            self.checked(&mut pump, written)?
        };
        let Some(file) = written else { return Ok(false) };
        // Not under the lock: what is synced here is only what no frame needs. Should it fail, the kernel may have
        // dropped frames as well and told it to this call alone.
        let synced = file.sync();
        self.checked(&mut self.pump.lock(), synced)?;
        Ok(true)
    }

    /// After a failure of the journal: nothing more is written, everyone who waits is told.
    fn checked<T>(&self, pump: &mut Pump, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
            let mut streams = pump.fail();
            streams.extend(std::mem::take(&mut self.list.lock().streams));
            streams.iter().for_each(|s| s.wake());
            self.wake_waiting();
        }
        result
    }

    pub(crate) fn materialise_step(&self, force: bool) -> io::Result<Step> {
        let mut keeper = self.keeper.lock();
        self.timed(&self.counters.step_begun, || keeper.step(self, force))
    }

    /// Does `work` and meanwhile says in `begun` when it began.
    fn timed<T>(&self, begun: &AtomicU64, work: impl FnOnce() -> T) -> T {
        begun.store(self.now_ns() + 1, Ordering::Relaxed);
        let result = work();
        begun.store(0, Ordering::Relaxed);
        result
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_nanos()).unwrap_or(u64::MAX - 1)
    }

    fn is_stalled(&self) -> bool {
        let now = self.now_ns();
        [&self.counters.sync_begun, &self.counters.step_begun]
            .iter()
            .any(|begun| {
                let begun = begun.load(Ordering::Relaxed);
                begun > 0 && now + 1 - begun.min(now + 1) >= STALLED_NS
            })
    }

    /// Whether the materialiser has time: it is in the middle of its own work, and tail and journal are far from full.
    fn is_at_ease(&self) -> bool {
        let (tail, used) = (&self.tail, &self.journal_used);
        self.counters.materialising.load(Ordering::Relaxed)
            && tail.load(Ordering::Relaxed) < self.options.tail_max / 2
            && used.load(Ordering::Relaxed) < self.options.journal_max / 4
    }

    fn apply_all(&self) {
        let streams: Vec<_> = self.registry.lock().all.values().cloned().collect();
        for stream in streams {
            while self.apply(&stream).more {}
        }
    }

    fn close(&self) -> io::Result<()> {
        let mut stuck = 0;
        loop {
            match self.write_step()? {
                Step::Worked => stuck = 0,
                Step::Idle => break,
                // The journal is full: what is in it must be applied and materialised first.
                Step::Blocked => {
                    self.sync_step()?;
                    self.apply_all();
                    stuck = if self.materialise_step(true)? == Step::Worked {
                        0
                    } else {
                        stuck + 1
                    };
                    if stuck > 3 {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                }
            }
        }
        self.sync_step()?;
        if self.has_failed() {
            return Err(io::Error::other("the journal failed"));
        }
        self.apply_all();
        self.idle_step()?;
        self.sync_step()?;
        self.keeper.lock().close(self)
    }
}
