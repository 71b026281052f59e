//! Messages that cause later messages.
//!
//! A *schedule* is a stored message with `Nats-Schedule`, the newest on its subject. [`examine`] checks a publish that is one,
//! or that cancels one; [`When`] says when it is due; [`Schedules`] knows the live schedules of a stream and which is due
//! next; [`produced_block`] makes the headers of what it produces.
//!
//! Where a schedule stands is not stored by itself: what it produced last says in `Nats-Schedule-Next` when it is due again,
//! and [`next_in`] reads that after a restart.

use std::collections::{BTreeSet, HashMap};

use jiff::tz::TimeZone;
use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::{ApiError, ErrorCode, Nanos, Timestamp};
use windjet_protocol::subject;

use super::check::Incoming;
use super::cron::Cron;
use super::rules::Rules;
use super::ttl::Ttl;
use super::view::View;

const SECOND: i64 = 1_000_000_000;

/// When a schedule is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum When {
    /// Once, at this time.
    At(i64),
    /// Again and again, with this between.
    Every(Nanos),
    /// Whenever an expression matches.
    Cron(Cron, TimeZone),
}

impl When {
    /// Reads the values of `Nats-Schedule` and `Nats-Schedule-Time-Zone`.
    ///
    /// # Errors
    /// The refusal of the publish.
    pub(crate) fn parse(text: &[u8], zone: Option<&[u8]>) -> Result<Self, ErrorCode> {
        let zone = zone.map(read_zone).transpose()?;
        Self::read(text, zone).ok_or(ErrorCode::SchedulePatternInvalid)
    }

    fn read(text: &[u8], zone: Option<TimeZone>) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let when = if let Some(time) = text.strip_prefix("@at ") {
            // RFC 3339 allows lower case; the real server does not.
            let upper = !time.contains(|c: char| c.is_ascii_lowercase() || c == ' ');
            let time: Timestamp = upper.then(|| time.parse().ok()).flatten()?;
            Self::At(time.unix_nanos())
        } else if let Some(interval) = text.strip_prefix("@every ") {
            let interval: Nanos = interval.parse().ok()?;
            (interval.0 >= SECOND).then_some(Self::Every(interval))?
        } else {
            let cron = Cron::parse(text)?;
            return Some(Self::Cron(cron, zone.unwrap_or(TimeZone::UTC)));
        };
        zone.is_none().then_some(when)
    }

    /// The first time, for a schedule stored at `stored`; `None` for never.
    pub(crate) fn first(&self, stored: i64) -> Option<i64> {
        match self {
            Self::At(time) => Some(*time),
            Self::Every(interval) => to_second(stored)?.checked_add(interval.0),
            Self::Cron(cron, zone) => cron_after(cron, zone, stored),
        }
    }

    /// The time after `due`, which came at `now`: what was missed meanwhile does not come. `None` for never again.
    pub(crate) fn after(&self, due: i64, now: i64) -> Option<i64> {
        match self {
            Self::At(_) => None,
            Self::Every(interval) => match due.checked_add(interval.0)? {
                next if next > now => Some(next),
                _ => to_second(now)?.checked_add(interval.0),
            },
            Self::Cron(cron, zone) => cron_after(cron, zone, now.max(due)),
        }
    }

    /// A time as `Nats-Schedule-Next` tells it: RFC 3339 with the offset of the schedule's zone.
    pub(crate) fn shown(&self, time: i64) -> String {
        if let Self::Cron(_, zone) = self
            && *zone != TimeZone::UTC
            && let Ok(at) = jiff::Timestamp::from_second(time.div_euclid(SECOND))
        {
            let offset = zone.to_offset(at);
            if !offset.is_zero() {
                return at.display_with_offset(offset).to_string();
            }
        }
        Timestamp::from_unix_nanos(time).to_string()
    }
}

fn to_second(time: i64) -> Option<i64> {
    time.checked_add(SECOND / 2)?
        .div_euclid(SECOND)
        .checked_mul(SECOND)
}

fn cron_after(cron: &Cron, zone: &TimeZone, time: i64) -> Option<i64> {
    cron.next(time.div_euclid(SECOND), zone)?.checked_mul(SECOND)
}

fn read_zone(name: &[u8]) -> Result<TimeZone, ErrorCode> {
    let invalid = ErrorCode::ScheduleTimeZoneInvalid;
    let name = std::str::from_utf8(name).map_err(|_| invalid)?;
    match name {
        "UTC" => Ok(TimeZone::UTC),
        "Local" => Ok(TimeZone::system()),
        // Names are looked up whatever their case; only their own spelling is taken.
        _ => match TimeZone::get(name) {
            Ok(zone) if zone.iana_name() == Some(name) => Ok(zone),
            _ => Err(invalid),
        },
    }
}

/// What a publish has to do with schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing.
    None,
    /// It is a schedule.
    Schedule(When),
    /// It cancels the schedule with this sequence, or one that is gone already.
    Cancel(Option<u64>),
}

/// Checks the headers of a client's publish that are about schedules.
///
/// # Errors
/// The refusal.
pub(crate) fn examine(rules: &Rules, view: &impl View, message: &Incoming<'_>) -> Result<Part, ApiError> {
    let headers = &message.headers;
    let mut part = Part::None;
    if let Some(text) = headers.schedule {
        part = Part::Schedule(examine_schedule(rules, message, text)?);
    }
    if headers.scheduler.is_some() || headers.schedule_next.is_some() {
        let cancelled = examine_cancel(rules, view, message)?;
        if part == Part::None {
            part = Part::Cancel(cancelled);
        }
    }
    Ok(part)
}

fn examine_schedule(rules: &Rules, message: &Incoming<'_>, text: &[u8]) -> Result<When, ErrorCode> {
    let headers = &message.headers;
    if !rules.schedules {
        return Err(ErrorCode::SchedulesDisabled);
    }
    let when = When::parse(text, headers.schedule_time_zone)?;
    if let Some(ttl) = headers.schedule_ttl {
        Ttl::parse(ttl).map_err(|_| ErrorCode::ScheduleTtlInvalid)?;
        if !rules.ttls {
            return Err(ErrorCode::MessageTtlDisabled);
        }
    }
    if headers.schedule_rollup.is_some_and(|rollup| rollup != b"sub") {
        return Err(ErrorCode::ScheduleRollupInvalid);
    }
    let literal = |text: &[u8]| subject::is_valid_publish(text) && subject::is_literal(text);
    let target = headers.schedule_target.unwrap_or_default();
    if let Some(source) = headers.schedule_source
        && (!literal(source) || source == target || source == message.subject || !rules.takes(source))
    {
        return Err(ErrorCode::ScheduleSourceInvalid);
    }
    if !literal(target) || target == message.subject || !rules.takes(target) {
        return Err(ErrorCode::ScheduleTargetInvalid);
    }
    if headers
        .rollup
        .is_some_and(|rollup| !rollup.eq_ignore_ascii_case(b"sub"))
    {
        return Err(ErrorCode::ScheduleRollupInvalid);
    }
    Ok(when)
}

fn examine_cancel(rules: &Rules, view: &impl View, message: &Incoming<'_>) -> Result<Option<u64>, ErrorCode> {
    let (Some(scheduler), Some(b"purge")) = (message.headers.scheduler, message.headers.schedule_next) else {
        return Err(ErrorCode::SchedulerInvalid);
    };
    let literal = subject::is_valid_publish(scheduler) && subject::is_literal(scheduler);
    if !literal || scheduler == message.subject {
        return Err(ErrorCode::SchedulerInvalid);
    }
    if !rules.schedules {
        return Err(ErrorCode::SchedulesDisabled);
    }
    match view.subject(scheduler).last {
        None => Ok(None),
        newest if newest == view.schedule(scheduler) => Ok(newest),
        _ => Err(ErrorCode::SchedulerInvalid),
    }
}

/// The headers of a message that a schedule produces: those of `original`, which is the schedule itself or the newest
/// message of its source, without what was meant for that one alone. `next` is when the schedule is due again.
pub(crate) fn produced_block(
    schedule_subject: &[u8],
    schedule: &[u8],
    original: &[u8],
    next: Option<&str>,
) -> Vec<u8> {
    let mut out = original.to_vec();
    block::strip_status(&mut out);
    let dropped: Vec<String> = block::fields(original)
        .filter_map(|(name, _)| std::str::from_utf8(name).ok())
        .filter(|name| {
            name.starts_with(names::SCHEDULE)
                || name.starts_with("Nats-Expected-")
                || matches!(*name, names::MSG_ID | names::TTL | names::ROLLUP)
        })
        .map(str::to_owned)
        .collect();
    for name in &dropped {
        block::remove(&mut out, name);
    }
    block::append(&mut out, names::SCHEDULER, schedule_subject);
    block::append(&mut out, names::SCHEDULE_NEXT, next.unwrap_or("purge").as_bytes());
    let asked = |name| block::find(schedule, name).filter(|value| !value.is_empty());
    if let Some(ttl) = asked(names::SCHEDULE_TTL) {
        block::append(&mut out, names::TTL, ttl);
    }
    if let Some(rollup) = asked(names::SCHEDULE_ROLLUP) {
        block::append(&mut out, names::ROLLUP, rollup);
    }
    out
}

/// When the schedule on `schedule_subject` is due again, as a message says that it produced.
pub(crate) fn next_in(produced: &[u8], schedule_subject: &[u8]) -> Option<i64> {
    if block::find(produced, names::SCHEDULER)? != schedule_subject {
        return None;
    }
    let next = block::find(produced, names::SCHEDULE_NEXT)?;
    let next: Timestamp = std::str::from_utf8(next).ok()?.parse().ok()?;
    Some(next.unix_nanos())
}

#[derive(Debug)]
struct Entry {
    seq: u64,
    due: Option<i64>,
    when: When,
}

/// The live schedules of a stream. See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    by_subject: HashMap<Box<[u8]>, Entry>,
    subjects: HashMap<u64, Box<[u8]>>,
    due: BTreeSet<(i64, u64)>,
}

/// A schedule that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due<'s> {
    /// Sequence of the schedule.
    pub(crate) seq: u64,
    /// Its subject.
    pub(crate) subject: &'s [u8],
    /// When it was due.
    pub(crate) due: i64,
    /// When it is due at all.
    pub(crate) when: &'s When,
}

impl Schedules {
    /// A message was stored on a subject: a schedule, when `when` is given, in place of any schedule before it.
    pub(crate) fn stored(&mut self, subject: &[u8], seq: u64, time: i64, when: Option<When>) {
        if !self.by_subject.is_empty() {
            self.forget(subject);
        }
        if let Some(when) = when {
            let due = when.first(time);
            self.enter(subject, seq, due, when);
        }
    }

    /// Enters a schedule found in the stream when it is opened; `next` is what [`next_in`] found.
    pub(crate) fn restore(&mut self, subject: &[u8], seq: u64, time: i64, when: When, next: Option<i64>) {
        self.forget(subject);
        let due = next.or_else(|| when.first(time));
        self.enter(subject, seq, due, when);
    }

    fn enter(&mut self, subject: &[u8], seq: u64, due: Option<i64>, when: When) {
        if let Some(due) = due {
            self.due.insert((due, seq));
        }
        self.subjects.insert(seq, subject.into());
        self.by_subject.insert(subject.into(), Entry { seq, due, when });
    }

    fn forget(&mut self, subject: &[u8]) {
        if let Some(entry) = self.by_subject.remove(subject) {
            self.subjects.remove(&entry.seq);
            if let Some(due) = entry.due {
                self.due.remove(&(due, entry.seq));
            }
        }
    }

    /// A message is gone.
    pub(crate) fn removed(&mut self, seq: u64) {
        if let Some(subject) = self.subjects.get(&seq).cloned() {
            self.forget(&subject);
        }
    }

    /// Messages are gone: those whose subject and sequence `gone` says yes to.
    pub(crate) fn removed_where(&mut self, mut gone: impl FnMut(&[u8], u64) -> bool) {
        let subjects: Vec<_> = self
            .by_subject
            .iter()
            .filter(|(subject, entry)| gone(subject, entry.seq))
            .map(|(subject, _)| subject.clone())
            .collect();
        for subject in subjects {
            self.forget(&subject);
        }
    }

    /// The sequence of the schedule on a subject.
    pub(crate) fn get(&self, subject: &[u8]) -> Option<u64> {
        self.by_subject.get(subject).map(|entry| entry.seq)
    }

    /// Live schedules.
    pub(crate) fn len(&self) -> usize {
        self.by_subject.len()
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The first one that is due at `now`. It stays so until [`Schedules::fired`] or until it is gone.
    pub(crate) fn due(&self, now: i64) -> Option<Due<'_>> {
        let (due, seq) = *self.due.first()?;
        let subject = self.subjects.get(&seq)?;
        let entry = self.by_subject.get(subject)?;
        (due <= now).then_some(Due {
            seq,
            subject,
            due,
            when: &entry.when,
        })
    }

    /// A schedule was carried out, or could not be: `next` is when it is due again. Without, it stays silent.
    pub(crate) fn fired(&mut self, seq: u64, next: Option<i64>) {
        let Some(entry) = self
            .subjects
            .get(&seq)
            .and_then(|subject| self.by_subject.get_mut(subject))
        else {
            return;
        };
        if let Some(due) = entry.due.take() {
            self.due.remove(&(due, seq));
        }
        entry.due = next;
        if let Some(next) = next {
            self.due.insert((next, seq));
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
