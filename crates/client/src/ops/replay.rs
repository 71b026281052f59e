//! Replay: a consumer set back, a side-car that reads again, and ranges of stored messages.
//!
//! JetStream has no end of a replay: the bounds are written into the consumer's metadata, for workers and tools to read
//! ([`META_UNTIL_SEQ`], [`META_LIMIT`]); those of an earlier replay are removed.
//!
//! [`Replay::run`] keeps to them itself, from making the side-car to deleting it.
//!
//! A consumer is set back by deleting and creating it. When it cannot be created, the old one is, where it stood. A
//! side-car is a pull consumer whatever its source is: a copy of a push consumer would deliver the past to the live
//! workers.

use std::sync::Arc;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::stream::RetentionPolicy;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub use super::replay_run::Replayed;
use super::replay_run::{Bounded, Course, LEFT_ALONE, LOOK};
use crate::admin::{ConsumerManager, StoredMessage, StreamManager};
use crate::client::Inner;
use crate::consumer::{Consumers, ProcessOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::Handler;
use crate::names::{validate_durable_name, validate_stream_name, validate_subjects};

/// The consumer's metadata key of the last sequence to replay.
pub const META_UNTIL_SEQ: &str = "replay_until_seq";
/// The consumer's metadata key of how many messages to replay.
pub const META_LIMIT: &str = "replay_limit";
/// Messages that a range brings at most when nothing else is said.
pub const RANGE_MAX: usize = 1000;

const NAME_MAX: usize = 255;

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Beginning,
    New,
    Seq(u64),
    Time(OffsetDateTime),
}

/// What to replay. Later calls override earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ReplayOptions {
    from: Option<From>,
    until_seq: Option<u64>,
    until_time: Option<OffsetDateTime>,
    limit: Option<u64>,
    policy: Option<ReplayPolicy>,
    filters: Option<Vec<String>>,
    durable: Option<String>,
    /// The side-car is worked off by the kit, which settles every message.
    explicit: bool,
}

impl ReplayOptions {
    /// Begins where the consumer began.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins at a sequence.
    pub fn from_seq(mut self, sequence: u64) -> Self {
        self.from = Some(From::Seq(sequence));
        self
    }

    /// Begins at a time.
    pub fn from_time(mut self, time: OffsetDateTime) -> Self {
        self.from = Some(From::Time(time));
        self
    }

    /// Begins at the first message there is.
    pub fn from_beginning(mut self) -> Self {
        self.from = Some(From::Beginning);
        self
    }

    /// Only what comes from now on. Not together with bounds.
    pub fn from_new(mut self) -> Self {
        self.from = Some(From::New);
        self
    }

    /// Ends with this sequence.
    pub fn until_seq(mut self, sequence: u64) -> Self {
        self.until_seq = Some(sequence);
        self
    }

    /// Ends with the last message of this time or before.
    pub fn until_time(mut self, time: OffsetDateTime) -> Self {
        self.until_time = Some(time);
        self
    }

    /// Ends after so many messages.
    pub fn limit(mut self, messages: u64) -> Self {
        self.limit = Some(messages);
        self
    }

    /// Replays one message.
    pub fn one_message(self, sequence: u64) -> Self {
        self.from_seq(sequence).until_seq(sequence).limit(1)
    }

    /// As fast as possible, or in the original rhythm.
    pub fn replay_policy(mut self, policy: ReplayPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Only these subjects.
    pub fn filter_subjects<S: Into<String>>(mut self, subjects: impl IntoIterator<Item = S>) -> Self {
        self.filters = Some(subjects.into_iter().map(Into::into).collect());
        self
    }

    /// The name of a side-car; one is made up otherwise.
    pub fn durable(mut self, name: impl Into<String>) -> Self {
        self.durable = Some(name.into());
        self
    }

    fn check(&self) -> Result<()> {
        let bad = |why: &str| Err(Error::new(ErrorKind::InvalidReplayBound, why));
        if self.limit == Some(0) {
            return bad("a limit of 0");
        }
        let bounded = self.limit.is_some() || self.until_seq.is_some() || self.until_time.is_some();
        match self.from {
            Some(From::New) if bounded => return bad("only new messages, and a bound"),
            Some(From::Seq(start)) if self.until_seq.is_some_and(|until| until < start) => {
                return bad("the last sequence is before the first");
            }
            Some(From::Time(start)) if self.until_time.is_some_and(|until| until < start) => {
                return bad("the last time is before the first");
            }
            _ => {}
        }
        validate_subjects(self.filters.as_deref().unwrap_or_default())
    }

    /// The consumer's settings, changed as these options say.
    fn over(&self, mut config: Config, until: Option<u64>) -> Config {
        if let Some(from) = self.from {
            config.deliver_policy = match from {
                From::Beginning => DeliverPolicy::All,
                From::New => DeliverPolicy::New,
                From::Seq(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
                From::Time(start_time) => DeliverPolicy::ByStartTime { start_time },
            };
        }
        if let Some(policy) = self.policy {
            config.replay_policy = policy;
        }
        if let Some(filters) = &self.filters {
            config.filter_subject.clear();
            config.filter_subjects.clone_from(filters);
        }
        if self.explicit {
            config.ack_policy = AckPolicy::Explicit;
            config.inactive_threshold = LEFT_ALONE;
        }
        config.metadata.remove(META_UNTIL_SEQ);
        config.metadata.remove(META_LIMIT);
        // The server's own notes about a consumer are not settings.
        config.metadata.retain(|key, _| !key.starts_with("_nats."));
        if let Some(until) = until {
            config
                .metadata
                .insert(META_UNTIL_SEQ.to_owned(), until.to_string());
        }
        if let Some(limit) = self.limit {
            config.metadata.insert(META_LIMIT.to_owned(), limit.to_string());
        }
        config
    }
}

/// A consumer that was set up for a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayConsumer {
    /// Its name.
    pub durable: String,
    /// Where it begins, when that is a sequence.
    pub start_seq: Option<u64>,
    /// Where it should end.
    pub until_seq: Option<u64>,
    /// After how many messages it should end.
    pub limit: Option<u64>,
    /// Where it begins, when that is a time.
    pub start_time: Option<OffsetDateTime>,
    /// The time it should end at.
    pub until_time: Option<OffsetDateTime>,
}

/// Replays and ranges of messages.
#[derive(Debug, Clone)]
pub struct Replay {
    streams: StreamManager,
    consumers: ConsumerManager,
    inner: Arc<Inner>,
}

impl Replay {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self {
            streams: StreamManager::new(Arc::clone(&inner)),
            consumers: ConsumerManager::new(Arc::clone(&inner)),
            inner,
        }
    }

    /// Sets a durable back, keeping everything else about it. One that is missing is created.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReplayBound`]; when the consumer cannot be created, and then the old one is there again.
    ///
    /// # Cancel safety
    /// Dropped early, the consumer may be missing.
    pub async fn reset_consumer(
        &self,
        stream: &str,
        durable: &str,
        options: ReplayOptions,
    ) -> Result<ReplayConsumer> {
        validate_stream_name(stream)?;
        validate_durable_name(durable)?;
        options.check()?;
        let until = self.until(stream, &options).await?;
        let existing = match self.consumers.info(stream, durable).await {
            Ok(info) => Some(info),
            Err(error) if error.kind() == ErrorKind::ConsumerNotFound => None,
            Err(error) => return Err(error),
        };
        let old = existing
            .as_ref()
            .map(|info| info.config.clone())
            .unwrap_or_else(|| Config {
                durable_name: Some(durable.to_owned()),
                name: Some(durable.to_owned()),
                ..Config::default()
            });
        let config = options.over(old.clone(), until);
        if existing.is_some() {
            self.consumers.delete(stream, durable).await?;
        }
        if let Err(error) = self.consumers.put(stream, durable, &config, "create").await {
            let Some(info) = existing else { return Err(error) };
            let restored = self
                .restore(stream, durable, old, info.ack_floor.stream_sequence)
                .await;
            return Err(match restored {
                Ok(()) => error,
                Err(second) => {
                    let text = format!("{error}; and the old consumer could not be created again: {second}");
                    Error::new(error.kind(), text).because(second)
                }
            });
        }
        Ok(result(durable, &options, until))
    }

    /// Creates the consumer again behind what it had acknowledged.
    async fn restore(&self, stream: &str, durable: &str, old: Config, floor: u64) -> Result<()> {
        if floor > 0 {
            let back = Config {
                deliver_policy: DeliverPolicy::ByStartSequence {
                    start_sequence: floor + 1,
                },
                ..old.clone()
            };
            // A work queue has only consumers that begin at the beginning; what was acknowledged is not there any more.
            if self.consumers.put(stream, durable, &back, "create").await.is_ok() {
                return Ok(());
            }
        }
        self.consumers
            .put(stream, durable, &old, "create")
            .await
            .map(|_| ())
    }

    /// Creates a side-car of `source` that reads again; `source` itself is not touched. A side-car of the same name is
    /// replaced.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReplayBound`]; [`ErrorKind::InvalidDurableName`] when the name is the source's;
    /// [`ErrorKind::InvalidConfig`] on a stream with work-queue retention, which has one consumer for each message.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn create_replay_consumer(
        &self,
        stream: &str,
        source: &str,
        options: ReplayOptions,
    ) -> Result<ReplayConsumer> {
        validate_stream_name(stream)?;
        validate_durable_name(source)?;
        options.check()?;
        let name = options.durable.clone().unwrap_or_else(|| sidecar(source));
        validate_durable_name(&name)?;
        let what = || format!("creating a side-car of {stream}/{source}");
        if name == source {
            return Err(Error::new(ErrorKind::InvalidDurableName, what()));
        }
        let until = self.until(stream, &options).await?;
        let info = self.consumers.info(stream, source).await?;
        if self.streams.info(stream).await?.config.retention == RetentionPolicy::WorkQueue {
            let why = format!("{}: a work queue has one consumer for each message", what());
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let mut config = options.over(info.config, until);
        config.name = Some(name.clone());
        config.durable_name = Some(name.clone());
        config.deliver_subject = None;
        config.deliver_group = None;
        config.idle_heartbeat = std::time::Duration::ZERO;
        config.flow_control = false;
        config.rate_limit = 0;
        match self.consumers.delete(stream, &name).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::ConsumerNotFound => {}
            Err(error) => return Err(error),
        }
        self.consumers.put(stream, &name, &config, "create").await?;
        Ok(result(&name, &options, until))
    }

    /// Replays what a side-car of `source` gets, up to its bounds or to the end that the stream has now, one message at a
    /// time, and deletes the side-car.
    ///
    /// A message that fails comes again; see [`ProcessOptions::retry_delay`] for when.
    ///
    /// # Errors
    /// As [`Replay::create_replay_consumer`]; [`ErrorKind::InvalidReplayBound`] for only new messages, which have no end;
    /// when the side-car goes before its end.
    ///
    /// # Cancel safety
    /// Dropped early, the messages in hand are handed back, and the side-car goes by itself after a minute without a worker.
    pub async fn run(
        &self,
        stream: &str,
        source: &str,
        mut options: ReplayOptions,
        handler: impl Handler,
    ) -> Result<Replayed> {
        if options.from == Some(From::New) {
            let why = "only new messages, which have no end";
            return Err(Error::new(ErrorKind::InvalidReplayBound, why));
        }
        options.explicit = true;
        let last = self.streams.info(stream).await?.state.last_sequence;
        let made = self.create_replay_consumer(stream, source, options).await?;
        let course = Course::new(made.until_seq.unwrap_or(last).min(last), made.limit);
        let ran = self.work_off(stream, &made.durable, handler, &course).await;
        let deleted = self.consumers.delete(stream, &made.durable).await;
        ran?;
        deleted?;
        Ok(course.counts())
    }

    async fn work_off(
        &self,
        stream: &str,
        durable: &str,
        handler: impl Handler,
        course: &Arc<Course>,
    ) -> Result<()> {
        let consumer = Consumers::new(Arc::clone(&self.inner))
            .pull(stream, durable)
            .await?;
        let over = async {
            loop {
                let known = match consumer.info().await {
                    Ok(info) => course.is_over_by(&info),
                    Err(error) if error.is_retryable() => false,
                    Err(error) => return Err(error),
                };
                if known || course.is_over() {
                    return Ok(());
                }
                // Whichever is first; most of what moves is not the end, which only the server knows.
                let _ = tokio::time::timeout(LOOK, async {
                    while !course.is_over() {
                        course.moved.notified().await;
                    }
                })
                .await;
            }
        };
        let work = consumer.process(Bounded::new(handler, course), ProcessOptions::default());
        tokio::pin!(work);
        let over: Result<()> = tokio::select! {
            ended = &mut work => return ended,
            over = over => over,
        };
        // What is in hand is finished.
        let (worked, ()) = tokio::join!(work, consumer.close());
        over.and(worked)
    }

    /// The messages from `start` to `end`, at most `max` of them, and whether there are more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReplayBound`] when one is 0, or they are in the wrong order.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get_range(
        &self,
        stream: &str,
        start: u64,
        end: u64,
        max: usize,
    ) -> Result<(Vec<StoredMessage>, bool)> {
        if start == 0 || end < start {
            let why = format!("reading {stream} from {start} to {end}");
            return Err(Error::new(ErrorKind::InvalidReplayBound, why));
        }
        let mut found = Vec::new();
        let mut from = start;
        while let Some(message) = self
            .next(stream, from)
            .await?
            .filter(|message| message.sequence <= end)
        {
            if found.len() == max {
                return Ok((found, true));
            }
            from = message.sequence.saturating_add(1);
            found.push(message);
        }
        Ok((found, false))
    }

    /// The messages stored from one time to another, at most `max` of them, and whether there are more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReplayBound`] when the times are in the wrong order.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get_range_by_time(
        &self,
        stream: &str,
        start: OffsetDateTime,
        end: OffsetDateTime,
        max: usize,
    ) -> Result<(Vec<StoredMessage>, bool)> {
        if end < start {
            let why = format!("reading {stream} from {start} to {end}");
            return Err(Error::new(ErrorKind::InvalidReplayBound, why));
        }
        let (Some(first), Some(last)) = (
            self.first_at(stream, start).await?,
            self.last_at(stream, end).await?,
        ) else {
            return Ok((Vec::new(), false));
        };
        if last < first {
            return Ok((Vec::new(), false));
        }
        self.get_range(stream, first, last, max).await
    }

    /// The first sequence stored at this time or later.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn find_first_seq_at_or_after(&self, stream: &str, time: OffsetDateTime) -> Result<u64> {
        let found = self.first_at(stream, time).await?;
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("looking in {stream} for a message after {time}"),
            )
        })
    }

    /// The last sequence stored at this time or before.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn find_last_seq_at_or_before(&self, stream: &str, time: OffsetDateTime) -> Result<u64> {
        let found = self.last_at(stream, time).await?;
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("looking in {stream} for a message before {time}"),
            )
        })
    }

    async fn next(&self, stream: &str, from: u64) -> Result<Option<StoredMessage>> {
        self.streams
            .find(stream, &json!({"seq": from, "next_by_subj": ">"}))
            .await
    }

    async fn first_at(&self, stream: &str, time: OffsetDateTime) -> Result<Option<u64>> {
        let text = time
            .format(&Rfc3339)
            .map_err(|error| Error::new(ErrorKind::Encode, "writing a time").because(error))?;
        let found = self
            .streams
            .find(stream, &json!({"start_time": text, "next_by_subj": ">"}))
            .await?;
        Ok(found.map(|message| message.sequence))
    }

    /// By halving: of "is there a message from here on that is not after the time?" the last yes is looked for. However
    /// many messages are missing, one call answers that.
    async fn last_at(&self, stream: &str, time: OffsetDateTime) -> Result<Option<u64>> {
        let state = self.streams.info(stream).await?.state;
        if state.messages == 0 {
            return Ok(None);
        }
        let (mut low, mut high) = (state.first_sequence, state.last_sequence);
        let mut last = None;
        while low <= high {
            let middle = low + (high - low) / 2;
            match self
                .next(stream, middle)
                .await?
                .filter(|message| message.time <= time)
            {
                Some(message) => {
                    last = Some(message.sequence);
                    low = message.sequence.saturating_add(1);
                }
                // Never "the message found, less one": it may lie far beyond the middle.
                None if middle == 0 => break,
                None => high = middle - 1,
            }
        }
        Ok(last)
    }

    async fn until(&self, stream: &str, options: &ReplayOptions) -> Result<Option<u64>> {
        if options.until_seq.is_some() {
            return Ok(options.until_seq);
        }
        if let Some(time) = options.until_time {
            let found = self.last_at(stream, time).await?;
            let why = || format!("no message of {stream} is at or before {time}");
            return found
                .map(Some)
                .ok_or_else(|| Error::new(ErrorKind::InvalidReplayBound, why()));
        }
        Ok(match (options.limit, options.from) {
            (Some(1), Some(From::Seq(start))) if start > 0 => Some(start),
            _ => None,
        })
    }
}

fn sidecar(source: &str) -> String {
    let unique = format!("-replay-{:016x}", rand::random::<u64>());
    let mut end = source.len().min(NAME_MAX - unique.len());
    while !source.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{unique}", &source[..end])
}

fn result(durable: &str, options: &ReplayOptions, until_seq: Option<u64>) -> ReplayConsumer {
    ReplayConsumer {
        durable: durable.to_owned(),
        start_seq: match options.from {
            Some(From::Seq(start)) => Some(start),
            _ => None,
        },
        until_seq,
        limit: options.limit,
        start_time: match options.from {
            Some(From::Time(start)) => Some(start),
            _ => None,
        },
        until_time: options.until_time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &ReplayOptions) -> bool {
        options
            .check()
            .is_err_and(|error| error.kind() == ErrorKind::InvalidReplayBound)
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        let new = ReplayOptions::new;
        let time = OffsetDateTime::UNIX_EPOCH;
        assert!(refused(&new().limit(0)));
        assert!(refused(&new().from_new().limit(1)));
        assert!(refused(&new().from_new().until_seq(1)));
        assert!(refused(&new().from_new().until_time(time)));
        assert!(refused(&new().from_seq(5).until_seq(4)));
        assert!(refused(
            &new().from_time(time).until_time(time - time::Duration::SECOND)
        ));
        assert!(new().from_seq(5).until_seq(5).check().is_ok());
        assert!(new().from_new().from_beginning().limit(3).check().is_ok());
        assert_eq!(
            new().filter_subjects(["a..b"]).check().unwrap_err().kind(),
            ErrorKind::InvalidSubject
        );
        assert_eq!(new().one_message(7), new().from_seq(7).until_seq(7).limit(1));
    }

    #[test]
    fn bounds_of_an_earlier_replay_are_removed() {
        let mut old = Config::default();
        old.metadata.insert("mine".into(), "kept".into());
        let bounded = ReplayOptions::new().from_seq(3).limit(9).over(old, Some(12));
        assert_eq!(bounded.metadata[META_UNTIL_SEQ], "12");
        assert_eq!(bounded.metadata[META_LIMIT], "9");
        assert_eq!(
            bounded.deliver_policy,
            DeliverPolicy::ByStartSequence { start_sequence: 3 }
        );
        let open = ReplayOptions::new().over(bounded, None);
        assert_eq!(open.metadata.len(), 1);
        assert_eq!(open.metadata["mine"], "kept");
        assert_eq!(
            open.deliver_policy,
            DeliverPolicy::ByStartSequence { start_sequence: 3 }
        );
    }

    #[test]
    fn a_made_up_name_is_not_too_long() {
        assert!(validate_durable_name(&sidecar(&"a".repeat(255))).is_ok());
        assert!(sidecar("orders").starts_with("orders-replay-"));
        assert!(validate_durable_name(&sidecar(&"ü".repeat(127))).is_ok());
    }
}
