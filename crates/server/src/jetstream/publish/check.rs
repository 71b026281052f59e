//! The checks of a publish, in the order in which nats-server makes them, and what follows when they pass.
//!
//! [`check`] changes nothing. Its [`Plan`] names all effects of the message, which belong into one store operation.

use std::borrow::Cow;

use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::{ApiError, ErrorCode};
use windjet_protocol::subject;
use windjet_store::{Duplicate, Purge, Subject};

use super::counter::{Known, Total, integer};
use super::evict::{self, Removals};
use super::headers::{Number, PublishHeaders, changed, cleaned, replaced, with_field};
use super::rules::Rules;
use super::schedule::{self, Part};
use super::ttl::Ttl;
use super::view::{NotYet, View};

/// Longest record, by the formula of file storage.
const RECORD_MAX: usize = 32 << 20;
/// Longest header block.
const BLOCK_MAX: usize = 65_535;
/// Messages of a subject that a rollup removes one by one; more are purged, which holds up the stream until it is committed.
const ROLLUP_LISTED: u64 = 128;

/// Where a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client.
    Client,
    /// Another stream, of which this one is fed. Such a message is stored even where a client's would be refused for a
    /// feature that is off.
    Source,
    /// The stream itself: a delete marker, or what a schedule produces.
    Engine,
}

/// Whether a message stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It does.
    Alone,
    /// It is committed with others in an atomic batch.
    Batch {
        /// Whether it is the batch's first.
        first: bool,
    },
}

/// A message that wants to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'m> {
    /// The subject under which it is stored: [`Rules::stored_subject`].
    pub(crate) subject: &'m [u8],
    /// Its header block, empty for none.
    pub(crate) block: &'m [u8],
    /// What is in it.
    pub(crate) headers: PublishHeaders<'m>,
    /// Its payload.
    pub(crate) payload: &'m [u8],
    /// Who publishes it.
    pub(crate) origin: Origin,
    /// The time to store, where it has one already: in a mirror.
    pub(crate) time: Option<i64>,
}

impl<'m> Incoming<'m> {
    /// A message of a client.
    pub(crate) fn new(subject: &'m [u8], block: &'m [u8], payload: &'m [u8]) -> Self {
        Self {
            subject,
            block,
            headers: PublishHeaders::read(block),
            payload,
            origin: Origin::Client,
            time: None,
        }
    }
}

/// What a message replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rollup {
    /// Everything older on its subject.
    Subject,
    /// Everything older.
    All,
}

/// Everything that storing a message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan<'m> {
    /// The header block to store.
    pub(crate) block: Cow<'m, [u8]>,
    /// The payload to store.
    pub(crate) payload: Cow<'m, [u8]>,
    /// What it counts against limits.
    pub(crate) size: u64,
    /// The id to remember. It becomes the last message's id, also when there is none.
    pub(crate) id: Option<&'m [u8]>,
    /// Messages that go with it, its own sequence perhaps among them.
    pub(crate) remove: Removals,
    /// What is purged below it; what a rollup removes is in `remove` where that is little.
    pub(crate) purge: Option<Rollup>,
    /// What the rollup is, however it is carried out.
    pub(crate) rollup: Option<Rollup>,
    /// Its life time, where that counts.
    pub(crate) ttl: Option<Ttl>,
    /// The counter's new number.
    pub(crate) counter: Option<Total>,
    /// What it has to do with schedules; the schedule that it cancels is in `remove`.
    pub(crate) schedule: Part,
    /// The newest sequence on its subject before it, 0 for none.
    pub(crate) before: u64,
}

impl Plan<'_> {
    /// The purge for the store, for a message that gets the sequence `seq`.
    pub(crate) fn purge<'s>(&self, subject: &'s [u8], seq: u64) -> Option<Purge<'s>> {
        self.purge.map(|rollup| Purge {
            filter: match rollup {
                Rollup::Subject => subject,
                Rollup::All => b"",
            },
            below: seq,
        })
    }
}

/// Why a message is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop<'m> {
    /// It is refused; nothing changes.
    Refuse(ApiError),
    /// It is there already.
    Duplicate(Duplicate),
    /// Nobody wants it: it uses up a sequence, its id is remembered, and it is acknowledged.
    Skip {
        /// The id to remember. It becomes the last message's id, also when there is none.
        id: Option<&'m [u8]>,
    },
    /// Ask again when everything that is staged now is committed.
    Wait,
    /// Read the message with this sequence, enter it with [`super::counter::Totals::put`], and ask again.
    Read(u64),
}

impl From<ErrorCode> for Stop<'_> {
    fn from(code: ErrorCode) -> Self {
        Self::Refuse(code.error())
    }
}

impl From<ApiError> for Stop<'_> {
    fn from(error: ApiError) -> Self {
        Self::Refuse(error)
    }
}

impl From<NotYet> for Stop<'_> {
    fn from(_: NotYet) -> Self {
        Self::Wait
    }
}

/// Decides on a message. See the module's page.
pub(crate) fn check<'m>(
    rules: &Rules,
    view: &impl View,
    message: &Incoming<'m>,
    place: Place,
) -> Result<Plan<'m>, Stop<'m>> {
    let headers = &message.headers;
    check_size(rules, message)?;
    let client = message.origin == Origin::Client;
    let plain = headers.is_plain();
    let mut part = Part::None;
    if client && !plain {
        check_increment(rules, message)?;
        check_expected(rules, view, message, place)?;
        part = schedule::examine(rules, view, message)?;
        if headers.stream_source.is_some() {
            return Err(ErrorCode::StreamSourceHeaderNotAllowed.into());
        }
    }
    if message.origin == Origin::Engine && headers.schedule_next == Some(b"purge") {
        part = Part::Cancel(headers.scheduler.and_then(|subject| view.schedule(subject)));
    }
    if let Some(id) = headers.msg_id {
        check_duplicate(view, id, place)?;
    }
    if client && let Some(expected) = headers.expected_last_msg_id {
        check_last_msg_id(view, expected, place)?;
    }
    let mut rollup = rollup(rules, view, message, place)?;
    let mut block = cleaned(message.block, headers);
    if rollup.is_none() && matches!(part, Part::Schedule(_)) {
        // A subject has one schedule.
        block = with_field(block, names::ROLLUP, b"sub");
        rollup = Some(Rollup::Subject);
    }
    let mut plan = Plan {
        size: 0,
        payload: Cow::Borrowed(message.payload),
        block,
        id: headers.msg_id,
        remove: Removals::new(),
        purge: None,
        rollup,
        ttl: None,
        counter: None,
        schedule: part,
        before: 0,
    };
    if rules.counters {
        count(rules, view, message, &mut plan)?;
    }
    if view.server_full() {
        return Err(ErrorCode::InsufficientResources.into());
    }
    if rules.interest && !view.interested(message.subject) {
        return Err(Stop::Skip { id: headers.msg_id });
    }
    if view.account_full(rules.size(message.subject.len(), plan.block.len(), plan.payload.len())) {
        return Err(ErrorCode::AccountResourcesExceeded.into());
    }
    if let Some(text) = headers.ttl {
        set_ttl(rules, text, message.origin, &mut plan)?;
    }
    plan.size = rules.size(message.subject.len(), plan.block.len(), plan.payload.len());
    let known = view.subject(message.subject);
    plan.before = known.last.unwrap_or(0);
    if rules.discard_new {
        check_room(rules, view, message, known, plan.size, place)?;
    }
    if let Part::Cancel(Some(seq)) = plan.schedule {
        plan.remove.add(seq);
    }
    evict::evict(rules, view, message.subject, known, plan.size, &mut plan.remove);
    roll_up(view, message.subject, known, &mut plan);
    Ok(plan)
}

/// What can be said about a message without knowing anything but the configuration: also made for each message of an atomic
/// batch as it comes in.
pub(crate) fn check_size<'m>(rules: &Rules, message: &Incoming<'_>) -> Result<(), Stop<'m>> {
    if rules.sealed {
        return Err(ErrorCode::StreamSealed.into());
    }
    let length = message.block.len() + message.payload.len();
    if rules.max_msg_size.is_some_and(|max| length > max) {
        return Err(ErrorCode::MessageTooLarge.into());
    }
    if message.block.len() > BLOCK_MAX {
        return Err(ErrorCode::HeadersTooLarge.into());
    }
    if 34 + message.subject.len() + length > RECORD_MAX {
        return Err(ErrorCode::StoreFailed.with("message too large").into());
    }
    Ok(())
}

fn check_increment<'m>(rules: &Rules, message: &Incoming<'_>) -> Result<(), Stop<'m>> {
    let headers = &message.headers;
    let Some(text) = headers.increment else {
        return Ok(());
    };
    if integer(text).is_none() {
        return Err(ErrorCode::CounterIncrementInvalid.into());
    }
    if !rules.counters {
        return Err(ErrorCode::CounterDisabled.into());
    }
    if !message.payload.is_empty() {
        return Err(ErrorCode::CounterPayload.into());
    }
    let expects = headers.expected_stream.is_some()
        || headers.expected_last_seq.is_some()
        || headers.expected_last_subject_seq.is_some()
        || headers.expected_subject.is_some()
        || headers.expected_last_msg_id.is_some();
    if expects || headers.rollup.is_some() {
        return Err(ErrorCode::CounterIncrementInvalid.into());
    }
    Ok(())
}

fn check_expected<'m>(
    rules: &Rules,
    view: &impl View,
    message: &Incoming<'_>,
    place: Place,
) -> Result<(), Stop<'m>> {
    let headers = &message.headers;
    if headers
        .expected_stream
        .is_some_and(|name| name != rules.name.as_bytes())
    {
        return Err(ErrorCode::ExpectedStreamMismatch.into());
    }
    if !rules.ttls
        && headers
            .ttl
            .is_some_and(|ttl| !matches!(Ttl::parse(ttl), Err(_) | Ok(Ttl::Seconds(0))))
    {
        return Err(ErrorCode::MessageTtlDisabled.into());
    }
    match (headers.expected_last_subject_seq, headers.expected_subject) {
        (Some(expected), subject) => {
            let subject = subject.unwrap_or(message.subject);
            check_subject_seq(view, expected, subject)?;
        }
        (None, Some(_)) => return Err(ErrorCode::ExpectedSubjectWithoutSequence.into()),
        (None, None) => {}
    }
    if let Some(expected) = headers.expected_last_seq {
        let last = view.last_seq();
        if !expected.is(last) {
            return Err(ErrorCode::WrongLastSequence.with(last).into());
        }
        // Only the first message of a batch may say what it follows.
        if place == (Place::Batch { first: false }) {
            return Err(ErrorCode::WrongLastSequenceUnknown.into());
        }
    }
    Ok(())
}

fn check_subject_seq<'m>(view: &impl View, expected: Number, pattern: &[u8]) -> Result<(), Stop<'m>> {
    if view.written(pattern) {
        return Err(ErrorCode::WrongLastSequenceUnknown.into());
    }
    let last = if subject::has_wildcards(pattern) {
        view.last_match(pattern)?
    } else {
        view.subject(pattern).last
    };
    let last = last.unwrap_or(0);
    if expected.is(last) {
        Ok(())
    } else {
        Err(ErrorCode::WrongLastSequence.with(last).into())
    }
}

fn check_duplicate<'m>(view: &impl View, id: &[u8], place: Place) -> Result<(), Stop<'m>> {
    match (view.duplicate(id), place) {
        (None, _) => Ok(()),
        (Some(duplicate), Place::Alone) => Err(Stop::Duplicate(duplicate)),
        (Some(_), Place::Batch { .. }) => Err(ErrorCode::AtomicPublishDuplicateMsgId.into()),
    }
}

fn check_last_msg_id<'m>(view: &impl View, expected: &[u8], place: Place) -> Result<(), Stop<'m>> {
    if place != Place::Alone {
        let error = ErrorCode::AtomicPublishUnsupportedHeader.with(names::EXPECTED_LAST_MSG_ID);
        return Err(error.into());
    }
    let last = view.last_msg_id();
    if last == expected {
        return Ok(());
    }
    let last = String::from_utf8_lossy(last);
    Err(ErrorCode::WrongLastMsgId.with(last).into())
}

fn rollup<'m>(
    rules: &Rules,
    view: &impl View,
    message: &Incoming<'_>,
    place: Place,
) -> Result<Option<Rollup>, Stop<'m>> {
    let Some(text) = message.headers.rollup else {
        return Ok(None);
    };
    let failed = |why: &dyn std::fmt::Display| Err(ErrorCode::RollupFailed.with(why).into());
    if !rules.rollups {
        return match message.origin {
            Origin::Source => Ok(None),
            _ => failed(&"rollup not permitted"),
        };
    }
    if text.eq_ignore_ascii_case(b"sub") {
        if view.written(message.subject) {
            return failed(&"batch rollup sub invalid");
        }
        Ok(Some(Rollup::Subject))
    } else if text.eq_ignore_ascii_case(b"all") {
        if place == (Place::Batch { first: false }) {
            return failed(&"batch rollup all invalid");
        }
        Ok(Some(Rollup::All))
    } else {
        let text = String::from_utf8_lossy(text).to_lowercase();
        failed(&format_args!("rollup value invalid: {text:?}"))
    }
}

/// Adds to the counter; its payload and headers become those of the message.
fn count<'m>(
    rules: &Rules,
    view: &impl View,
    message: &Incoming<'m>,
    plan: &mut Plan<'m>,
) -> Result<(), Stop<'m>> {
    let increment = message
        .headers
        .increment
        .and_then(integer)
        .ok_or_else(|| ErrorCode::CounterIncrementMissing.error())?;
    let previous = match view.counter(message.subject)? {
        Known::Is(total) => total,
        Known::In(seq) => return Err(Stop::Read(seq)),
    };
    let total = match message.origin {
        Origin::Source => merge(message, &previous, plan)?,
        _ => previous.plus(&increment),
    };
    if let Some(sources) = &total.sources
        && block::find(&plan.block, names::COUNTER_SOURCES) != Some(sources)
    {
        plan.block = replaced(std::mem::take(&mut plan.block), names::COUNTER_SOURCES, sources);
    }
    let body = total.body();
    if body.len() > rules.max_payload {
        return Err(ErrorCode::MessageTooLarge.into());
    }
    plan.payload = Cow::Owned(body);
    plan.counter = Some(total);
    Ok(())
}

/// Takes a counter of another stream, whose name and subject there stand in `Nats-Stream-Source`.
fn merge<'m>(message: &Incoming<'m>, previous: &Total, plan: &mut Plan<'m>) -> Result<Total, Stop<'m>> {
    let broken = || Stop::from(ErrorCode::CounterBroken);
    let source = message.headers.stream_source.ok_or_else(broken)?;
    let source = String::from_utf8_lossy(source);
    let mut fields = source.split(' ');
    let stream = fields.next().unwrap_or_default();
    let subject = fields.nth(3).map_or_else(
        || String::from_utf8_lossy(message.subject),
        |subject| Cow::Owned(subject.to_owned()),
    );
    let incoming = Total::read(b"", message.payload)?;
    let (total, growth) = previous.merge(stream, &subject, &incoming.value)?;
    let growth = growth.to_string();
    plan.block = changed(
        std::mem::take(&mut plan.block),
        names::INCREMENT,
        growth.as_bytes(),
    );
    Ok(total)
}

fn set_ttl<'m>(rules: &Rules, text: &[u8], origin: Origin, plan: &mut Plan<'m>) -> Result<(), Stop<'m>> {
    let ttl = match Ttl::parse(text) {
        Ok(ttl) => ttl,
        // What another stream took is not refused here; without a life time it stays.
        Err(_) if origin == Origin::Source => return Ok(()),
        Err(_) => return Err(ErrorCode::MessageTtlInvalid.into()),
    };
    if !rules.ttls || ttl == Ttl::Seconds(0) {
        return Ok(());
    }
    plan.ttl = Some(ttl);
    if rules.marker_ttl.is_positive()
        && rules.max_per_subject != Some(1)
        && let Some(Ttl::Seconds(seconds)) = ttl.raised(rules.marker_ttl)
    {
        plan.ttl = Some(Ttl::Seconds(seconds));
        let mut digits = itoa::Buffer::new();
        let seconds = digits.format(seconds).as_bytes();
        plan.block = replaced(std::mem::take(&mut plan.block), names::TTL, seconds);
    }
    Ok(())
}

/// A stream that refuses new messages when it is full.
fn check_room<'m>(
    rules: &Rules,
    view: &impl View,
    message: &Incoming<'_>,
    known: Subject,
    size: u64,
    place: Place,
) -> Result<(), Stop<'m>> {
    let refuse = |why: &str| Err(ErrorCode::StoreFailed.with(why).into());
    let subject_full = rules.max_per_subject.is_some_and(|max| known.messages >= max);
    if rules.discard_new_per_subject && subject_full && message.headers.rollup.is_none() {
        return refuse("maximum messages per subject exceeded");
    }
    // What makes room for itself is let in when it stands alone, not in a batch.
    let replaces = subject_full && place == Place::Alone;
    let (messages, bytes) = view.gross();
    if rules.max_msgs.is_some_and(|max| messages >= max) && !replaces {
        return refuse("maximum messages exceeded");
    }
    if rules.max_bytes.is_some_and(|max| bytes + size > max) {
        let freed = if replaces {
            view.subject_next(message.subject, 0)
                .and_then(|seq| view.size_of(seq))
                .map_or(0, u64::from)
        } else {
            0
        };
        if freed < size {
            return refuse("maximum bytes exceeded");
        }
    }
    Ok(())
}

/// Enters what a rollup removes: message by message where there are few, as a purge otherwise.
fn roll_up(view: &impl View, subject: &[u8], known: Subject, plan: &mut Plan<'_>) {
    let few = ..=ROLLUP_LISTED;
    match plan.rollup {
        None => {}
        // A subject with wildcards is an ordinary one, but rolled up it means all that it matches.
        Some(Rollup::Subject) if subject::has_wildcards(subject) => plan.purge = plan.rollup,
        Some(Rollup::Subject) if few.contains(&known.messages) => {
            let mut next = view.subject_next(subject, 0);
            while let Some(seq) = next {
                plan.remove.add(seq);
                next = view.subject_next(subject, seq + 1);
            }
        }
        Some(Rollup::All) if few.contains(&view.messages()) => {
            let mut next = view.next_live(0);
            while let Some(seq) = next {
                plan.remove.add(seq);
                next = view.next_live(seq + 1);
            }
        }
        rollup => plan.purge = rollup,
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
