//! One mirror or source: its cursor, and what becomes of a message.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use windjet_protocol::jetstream::{ApiError, ErrorCode, RetentionPolicy, StreamSource};
use windjet_store::{Found, FoundSeq, Matcher, Message, Op, ReadTicket, StageError};

use super::claim::Claim;
use super::follow::{Follower, News};
use super::header;
use super::progress::{Progress, Status};
use super::resume::{self, Known};
use super::route::Route;
use crate::jetstream::account::JsAccount;
use crate::jetstream::consumer::Now;
use crate::jetstream::local::Outcome;
use crate::jetstream::medium::off_thread;
use crate::jetstream::publish::check::{Incoming, Origin};
use crate::jetstream::stream::Stream;
use crate::jetstream::stream::call::Call;
use crate::jetstream::stream::task::Task;

/// Messages of one turn.
const MESSAGES: usize = 256;
/// Bytes after which a turn ends.
const BYTES: usize = 1 << 20;
/// Messages that are fetched from the disk at once.
const FETCHED: usize = 512;
/// Bytes after which such a fetch ends.
const FETCHED_BYTES: usize = 4 << 20;

/// How a turn of one source ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is told when there is something to do.
    Idle,
    /// There is more to copy at once.
    More,
    /// The stream cannot take the next message now.
    HeldUp,
}

/// What became of one message.
enum Took {
    /// It is staged, or need not be.
    Done,
    /// It must be offered again.
    Later(Option<ApiError>),
}

/// Messages from the disk, by sequence; `None` where one could not be read or is gone.
type Fetched = Vec<(u64, Option<Message>)>;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Copy {
    progress: Arc<Progress>,
    route: Route,
    matcher: Matcher,
    key: String,
    /// Where the origin is; `None` where it cannot be reached.
    home: Option<Arc<JsAccount>>,
    pub(super) follower: Arc<Follower>,
    pub(super) queued: bool,
    origin: Option<Arc<Stream>>,
    identity: String,
    claim: Option<Arc<Claim>>,
    /// The last sequence of the origin that was looked at.
    cursor: u64,
    /// Whether the cursor stands where it must; not before a claim is granted.
    placed: bool,
    known: Option<Known>,
    unsaved: bool,
    renewed: bool,
    fetching: Option<Arc<Mutex<Option<Fetched>>>>,
    fetched: BTreeMap<u64, Option<Message>>,
}

impl Copy {
    pub(super) fn new(
        source: &StreamSource,
        mirror: bool,
        number: u32,
        news: Arc<News>,
        account: &Arc<JsAccount>,
        known: Option<Known>,
    ) -> Self {
        let follower = Follower::new(number, news);
        let route = Route::new(source);
        let own = |api: &str| {
            account
                .domain()
                .is_some_and(|domain| api == format!("$JS.{domain}.API"))
        };
        let here =
            source.consumer.is_none() && source.external.as_ref().is_none_or(|external| own(&external.api));
        let copy = Self {
            progress: Arc::new(Progress {
                config: source.clone(),
                mirror,
                status: Mutex::new(Status {
                    taken: known.as_ref().map_or(0, |known| known.seq),
                    ..Status::default()
                }),
            }),
            matcher: route.matcher(),
            route,
            key: header::key(source),
            home: here.then(|| account.clone()),
            follower,
            queued: false,
            origin: None,
            identity: String::new(),
            claim: None,
            cursor: 0,
            placed: false,
            known,
            unsaved: false,
            renewed: false,
            fetching: None,
            fetched: BTreeMap::new(),
        };
        if let Some(home) = &copy.home {
            home.follow(&source.name, copy.follower.clone());
        }
        copy.follower.tell();
        copy
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn is_mirror(&self) -> bool {
        self.progress.mirror
    }

    pub(super) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// What the stream's own messages say of the position.
    pub(super) fn found(&mut self, found: Option<Known>) {
        let stored = self.known.as_ref().map_or(0, |known| known.at);
        if let Some(found) = found.filter(|found| found.at > stored) {
            self.progress.status.lock().taken = found.seq;
            self.renewed = true;
            self.known = Some(found);
        }
    }

    /// Whether its position must be stored before anything else is.
    pub(super) fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Stores the position.
    pub(super) fn save(&mut self, task: &mut Task) -> Result<(), StageError> {
        let known = self.known.get_or_insert_default();
        known.at = task.writer.last_seq();
        resume::save(&mut task.writer, &self.key, known, self.renewed)?;
        self.unsaved = false;
        self.renewed = false;
        Ok(())
    }

    /// Lets go of what is held back for it at the origin.
    pub(super) fn unclaim(&self) {
        if let (Some(origin), Some(claim)) = (&self.origin, &self.claim) {
            // An origin that is gone holds nothing back.
            drop(origin.inbox.call(Call::Unclaim(claim.name.clone())));
        }
    }

    /// Copies a turn's worth.
    pub(super) fn step(&mut self, task: &mut Task, now: Now) -> Step {
        let found = self
            .home
            .as_ref()
            .and_then(|home| home.stream(&self.progress.config.name));
        let same = match (&self.origin, &found) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.detach();
        }
        let Some(origin) = found else {
            self.report(Some(self.missing()));
            return Step::Idle;
        };
        if !same {
            self.attach(origin.clone(), task, now);
        }
        if !self.place(&origin, task) {
            return Step::Idle;
        }
        if let Some(fetching) = &self.fetching {
            let Some(messages) = fetching.lock().take() else {
                return Step::Idle;
            };
            self.fetched.extend(messages);
            self.fetching = None;
        }
        self.run(&origin, task, now)
    }

    fn missing(&self) -> ApiError {
        let config = &self.progress.config;
        let setup = if self.progress.mirror {
            ErrorCode::MirrorConsumerSetup
        } else {
            ErrorCode::SourceConsumerSetup
        };
        if config.consumer.is_some() {
            return setup.with("copying through a consumer made by somebody else is not supported");
        }
        if self.home.is_none() {
            return setup.with("copying from another account, domain or server is not supported");
        }
        ErrorCode::StreamNotFound.error()
    }

    fn detach(&mut self) {
        self.origin = None;
        self.claim = None;
        self.fetching = None;
        self.fetched.clear();
        self.progress.status.lock().origin = None;
    }

    fn attach(&mut self, origin: Arc<Stream>, task: &Task, now: Now) {
        self.identity = header::identity(origin.created);
        self.matcher = self.route.matcher();
        self.placed = false;
        self.cursor = self.start(&origin, task);
        let mut status = self.progress.status.lock();
        status.origin = Some(origin.clone());
        status.heard = Some(now.mono);
        status.cursor = self.cursor;
        status.error = None;
        drop(status);
        if origin.config().retention != RetentionPolicy::Limits {
            let claim = Claim::new(
                &self.progress.config,
                self.progress.mirror,
                &task.account,
                &task.stream.name,
                &self.key,
                self.cursor,
                self.follower.clone(),
            );
            self.claim = Some(claim.clone());
            // An origin that goes meanwhile is noticed at the next look.
            drop(origin.inbox.call(Call::Claim(claim)));
        }
        self.origin = Some(origin);
    }

    /// The sequence after which copying begins.
    fn start(&self, origin: &Stream, task: &Task) -> u64 {
        if self.progress.mirror {
            let last = task.writer.last_seq();
            return if last > 0 {
                last
            } else {
                self.configured_start(origin)
            };
        }
        match &self.known {
            // Nothing was taken yet, from any origin of the name.
            Some(known) if known.seq == 0 => self.configured_start(origin),
            Some(known) if known.identity.is_empty() || known.identity == self.identity => known.seq,
            // The origin is a new one.
            Some(_) => 0,
            None => self.configured_start(origin),
        }
    }

    fn configured_start(&self, origin: &Stream) -> u64 {
        let config = &self.progress.config;
        if config.opt_start_seq > 0 {
            return config.opt_start_seq - 1;
        }
        let Some(time) = config.opt_start_time else {
            return 0;
        };
        let first = match origin.reader.first_at(time.unix_nanos()) {
            FoundSeq::Seq(seq) => Some(seq),
            FoundSeq::None => None,
            // One block, once in the life of a source.
            FoundSeq::NeedsDisk(ticket) => ticket.read().ok().flatten(),
        };
        first.map_or_else(|| origin.reader.state().last_seq, |first| first - 1)
    }

    /// Whether copying may begin: where messages are held back for it, not before that is granted.
    fn place(&mut self, origin: &Stream, task: &mut Task) -> bool {
        if self.placed {
            return true;
        }
        if let Some(claim) = &self.claim {
            match claim.granted() {
                None => return false,
                Some(Err(error)) => {
                    self.report(Some(error));
                    return false;
                }
                Some(Ok(())) => {}
            }
            if self.progress.status.lock().taken > 0 || task.writer.last_seq() > 0 {
                // What was stored before, and not reported.
                self.release(origin, task);
            }
        }
        self.placed = true;
        true
    }

    /// The origin may drop what is copied, once that is durable.
    fn release(&self, origin: &Stream, task: &mut Task) {
        if let Some(claim) = &self.claim {
            let (name, seq, inbox) = (claim.name.clone(), self.cursor, origin.inbox.clone());
            // An origin that is gone has nothing to drop.
            task.then(move |_| drop(inbox.call(Call::Taken { consumer: name, seq })));
        }
    }

    fn report(&self, error: Option<ApiError>) {
        self.progress.status.lock().error = error;
    }

    fn run(&mut self, origin: &Stream, task: &mut Task, now: Now) -> Step {
        let last = origin.reader.state().last_seq;
        let mut seqs = Vec::new();
        origin
            .reader
            .next_matches(&mut self.matcher, self.cursor + 1, MESSAGES, &mut seqs);
        let before = self.cursor;
        let (mut bytes, mut took) = (0, false);
        let mut step = if seqs.len() == MESSAGES {
            Step::More
        } else {
            Step::Idle
        };
        let mut error = None;
        for seq in &seqs {
            if bytes > BYTES {
                step = Step::More;
                break;
            }
            let message = match self.fetched.remove(seq) {
                Some(message) => message,
                None => match origin.reader.read(*seq) {
                    Found::InMemory(message) => Some(message),
                    Found::Absent => None,
                    Found::NeedsDisk(ticket) => {
                        self.fetch(origin, ticket, task);
                        step = Step::Idle;
                        break;
                    }
                },
            };
            if let Some(message) = message {
                bytes += message.payload().len() + 64;
                match self.take(task, &message) {
                    Took::Done => took = true,
                    Took::Later(why) => {
                        self.fetched.insert(*seq, Some(message));
                        error = why;
                        step = Step::HeldUp;
                        break;
                    }
                }
            }
            self.cursor = *seq;
        }
        if seqs.is_empty() {
            // Nothing that matches up to there.
            self.cursor = self.cursor.max(last);
        }
        if !self.fetched.is_empty() {
            // What the origin lost meanwhile is not asked for again.
            self.fetched = self.fetched.split_off(&(self.cursor + 1));
        }
        if took {
            let known = self.known.get_or_insert_default();
            self.renewed |= known.identity != self.identity;
            known.seq = self.cursor;
            known.identity.clone_from(&self.identity);
            self.unsaved = !self.progress.mirror;
        }
        let mut status = self.progress.status.lock();
        status.cursor = self.cursor;
        status.error = error;
        if took {
            status.taken = self.cursor;
            status.heard = Some(now.mono);
        }
        drop(status);
        if self.cursor > before {
            self.release(origin, task);
        }
        step
    }

    /// Reads messages on a thread that may wait, from the one that is not in memory on.
    fn fetch(&mut self, origin: &Stream, first: ReadTicket, task: &Task) {
        let slot: Arc<Mutex<Option<Fetched>>> = Arc::default();
        self.fetching = Some(slot.clone());
        let (reader, follower) = (origin.reader.clone(), self.follower.clone());
        let (reads, mut matcher) = (task.js.reads.clone(), self.matcher.clone());
        task.server.tasks.spawn(async move {
            let _permit = reads.acquire_owned().await;
            let read = off_thread(move || {
                let mut seqs = Vec::new();
                let start = first.seq();
                reader.next_matches(&mut matcher, start + 1, FETCHED - 1, &mut seqs);
                let read = |ticket: ReadTicket| match ticket.read() {
                    Ok(message) => message,
                    Err(error) => {
                        tracing::error!(
                            stream = reader.name(),
                            "a message cannot be read, so it is not copied: {error}"
                        );
                        None
                    }
                };
                let mut out: Fetched = vec![(start, read(first))];
                let mut bytes = 0;
                for seq in seqs {
                    let message = match reader.read(seq) {
                        Found::InMemory(message) => Some(message),
                        Found::NeedsDisk(ticket) => read(ticket),
                        Found::Absent => None,
                    };
                    bytes += message.as_ref().map_or(0, |message| message.payload().len() + 64);
                    out.push((seq, message));
                    if bytes > FETCHED_BYTES {
                        break;
                    }
                }
                out
            });
            match read.await {
                Ok(messages) => *slot.lock() = Some(messages),
                // Nothing is taken for read that was not; the next look reads again.
                Err(_) => *slot.lock() = Some(Vec::new()),
            }
            follower.tell();
        });
    }

    /// Stores one message.
    fn take(&self, task: &mut Task, message: &Message) -> Took {
        let mirror = self.progress.mirror;
        let rules = task.ingest.rules.clone();
        let seq = message.seq();
        let original = message.subject();
        let subject = self.route.subject(&original);
        let (payload, block) = (message.payload(), message.headers());
        if mirror {
            let last = task.writer.last_seq();
            if seq <= last {
                return Took::Done;
            }
            // What the origin has lost, or is not wanted, is a gap.
            if seq > last + 1
                && let Err(error) = task.writer.stage(Op::SkipTo { seq: seq - 1 })
            {
                return Took::Later(failure(&error));
            }
        }
        let source = (!mirror).then(|| header::value(&self.key, seq, &original, &self.identity));
        let block = header::copied(&block, source.as_deref());
        let stored = if mirror {
            subject
        } else {
            rules.stored_subject(&subject).into_owned().into()
        };
        let mut incoming = Incoming::new(&stored, &block, &payload);
        incoming.origin = Origin::Source;
        incoming.time = mirror.then(|| message.time());
        match task.offer(&rules, &incoming) {
            None | Some(Outcome::Unknown | Outcome::Staged) => Took::Later(None),
            Some(Outcome::Stored { .. } | Outcome::Duplicate { .. }) => Took::Done,
            Some(Outcome::Refused(error)) if passes(&error) => Took::Later(Some(error)),
            Some(Outcome::Refused(error)) => {
                let (stream, origin) = (&task.stream.name, &self.progress.config.name);
                tracing::warn!(%stream, %origin, seq, "a message is left out, because it cannot be stored: {error}");
                Took::Done
            }
        }
    }
}

fn failure(error: &StageError) -> Option<ApiError> {
    match error {
        StageError::Busy | StageError::Barrier => None,
        error => Some(ErrorCode::StoreFailed.with(error)),
    }
}

/// Whether a message that was refused for this may be stored later.
fn passes(error: &ApiError) -> bool {
    match error.kind() {
        Some(ErrorCode::StoreFailed) => error.description != "message too large",
        Some(
            ErrorCode::AccountResourcesExceeded | ErrorCode::InsufficientResources | ErrorCode::StreamSealed,
        ) => true,
        _ => false,
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.unfollow(&self.progress.config.name, &self.follower);
        }
        // Streams that follow each other would keep each other.
        self.progress.status.lock().origin = None;
    }
}
