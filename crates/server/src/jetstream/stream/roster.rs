//! Consumers come and go: creation, update, deletion, and their return after a restart.

use std::sync::Arc;

use windjet_protocol::jetstream::consumer::requests::{
    ConsumerAction, ConsumerCreateRequest, ConsumerCreateResponse,
};
use windjet_protocol::jetstream::{
    AckPolicy, ApiError, ConsumerConfig, DeliverPolicy, ErrorCode, RetentionPolicy,
};
use windjet_store::{FoundSeq, Op, SeqRange};

use super::Entry;
use super::call::{Answer, CreateConsumer};
use super::source::is_position;
use super::task::Task;
use crate::jetstream::config;
use crate::jetstream::consumer::{Consumer, Now, Stop};
use crate::jetstream::health::Lost;

/// Letters of names that the server gives.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn random_name() -> String {
    (0..8)
        .map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]))
        .collect()
}

impl Task {
    /// Takes up the consumers that the store has. `fresh` are those that were put there for this: they live on also where
    /// they are kept in memory.
    pub(super) fn restore_consumers(&mut self, fresh: bool, now: Now) {
        let reader = self.stream.reader.clone();
        let mut gone = Vec::new();
        for name in reader.consumers() {
            if is_position(&name) {
                continue;
            }
            let Some(record) = reader.consumer(&name) else {
                continue;
            };
            match Consumer::restore(self.home(), &name, &record, now) {
                Ok(consumer) if consumer.config().mem_storage && !fresh => gone.push(name),
                Ok(consumer) => {
                    if consumer.config().mem_storage {
                        gone.push(name);
                    }
                    let number = self.consumers.insert(consumer);
                    self.list_consumer(number);
                }
                Err(error) => {
                    tracing::error!(stream = %self.stream.name, consumer = %name, "consumer is offline: {error}");
                    self.js.health.lose(Lost {
                        account: self.account.name().to_owned(),
                        stream: self.stream.name.to_string(),
                        consumer: Some(name),
                    });
                }
            }
        }
        for name in gone {
            if let Err(error) = self.writer.stage(Op::ConsumerDelete { name: &name }) {
                tracing::debug!(consumer = %name, "a consumer kept in memory stays listed: {error}");
            }
        }
        self.each_consumer(now, |consumer, port| consumer.interest_changed(port, now));
        // A stream that never had a consumer has messages by a restore, which nobody has had a chance to want.
        if !self.consumers.slots.is_empty() {
            self.remove_unneeded();
        }
    }

    /// Makes a consumer known to those who hand it messages.
    fn list_consumer(&mut self, number: u32) {
        let Some(slot) = self.consumers.slots.get(&number) else {
            return;
        };
        let config = slot.consumer.config();
        let entry = Entry {
            number,
            acks: matches!(config.ack_policy, AckPolicy::Explicit | AckPolicy::All),
        };
        let name: Arc<str> = slot.consumer.name().into();
        if config
            .metadata
            .get("windjet.requeue_on_disconnect")
            .is_some_and(|v| v == "true")
        {
            self.stream.want_gone();
        }
        if let Some(subject) = &config.deliver_subject {
            self.account.account.watch(subject.as_bytes(), &self.stream.inbox);
        }
        self.stream.list_consumer(name, entry);
    }

    /// What `opt_start_time` of a configuration means here: `None` where it says nothing.
    pub(super) fn time_start(&self, config: &ConsumerConfig) -> Option<u64> {
        if config.deliver_policy != DeliverPolicy::ByStartTime {
            return None;
        }
        let time = config.opt_start_time?.unix_nanos();
        match self.stream.reader.first_at(time) {
            FoundSeq::Seq(seq) => Some(seq),
            FoundSeq::None => None,
            // One block of at most some KiB, and only for a management call.
            FoundSeq::NeedsDisk(ticket) => ticket.read().ok().flatten(),
        }
    }

    pub(super) fn start_by_time(&self, number: u32) -> Option<u64> {
        let slot = self.consumers.slots.get(&number)?;
        self.time_start(slot.consumer.config())
    }

    /// Stores a consumer's configuration.
    pub(super) fn put_consumer(&mut self, number: u32) -> Result<(), ApiError> {
        let Some(slot) = self.consumers.slots.get(&number) else {
            return Ok(());
        };
        let (name, config) = (slot.consumer.name().to_owned(), slot.consumer.stored_config());
        if slot.consumer.config().mem_storage {
            return Ok(());
        }
        let put = Op::ConsumerPut {
            name: &name,
            config: &config,
        };
        match self.writer.stage(put) {
            Ok(_) => Ok(()),
            Err(error) => Err(ErrorCode::ConsumerStoreFailed.with(error)),
        }
    }

    /// A create or update request.
    pub(super) fn create_consumer(
        &mut self,
        create: CreateConsumer,
        answer: Answer<ConsumerCreateResponse>,
        now: Now,
    ) {
        match self.try_create(create, now) {
            Ok(Created::New(number)) => {
                // The answer shows the consumer as it is before its first delivery.
                let info = self.with_consumer(number, now, |consumer, port| {
                    consumer.announce(port, now);
                    consumer.interest_changed(port, now);
                    consumer.info(port, now)
                });
                let Some(mut info) = info else {
                    return;
                };
                info.config.metadata = crate::jetstream::api::shown(info.config.metadata);
                self.list_consumer(number);
                self.then(move |task| task.reply(answer, Ok(ConsumerCreateResponse { info })));
            }
            Ok(Created::Known(name)) => self.then(move |task| task.answer_consumer(&name, answer)),
            Err(error) => {
                // It may rest on what is staged, a consumer that was just made for one.
                self.then(move |task| task.reply(answer, Err(error)));
            }
        }
    }

    fn try_create(&mut self, create: CreateConsumer, now: Now) -> Result<Created, ApiError> {
        let CreateConsumer { request, name } = create;
        let action = request.action;
        let name = name
            .or_else(|| request.config.name.clone())
            .or_else(|| request.config.durable_name.clone())
            .filter(|name| !name.is_empty());
        let rules = self.js.consumer_rules(&self.account, &self.config);
        let config = config::consumer::check(request, name.as_deref(), &rules)?;
        let known = name.as_deref().and_then(|name| self.consumers.find(name));
        if let Some(number) = known {
            return self.update_consumer(number, config, action, now);
        }
        if action == ConsumerAction::Update {
            return Err(ErrorCode::ConsumerDoesNotExist.error());
        }
        let max = [Some(self.config.max_consumers), self.account.consumers_max()];
        let max = max.into_iter().flatten().filter(|max| *max >= 0).min();
        if max.is_some_and(|max| self.consumers.slots.len() as i64 >= max) {
            return Err(ErrorCode::MaximumConsumers.error());
        }
        self.check_work_queue(&config, None)?;
        let name = match name {
            Some(name) => name,
            None => loop {
                let name = random_name();
                if self.consumers.find(&name).is_none() {
                    break name;
                }
            },
        };
        self.insert_consumer(&name, config, now).map(Created::New)
    }

    /// Makes the consumer that holds messages back for a stream that copies from this one.
    pub(super) fn create_internal(
        &mut self,
        request: ConsumerCreateRequest,
        name: &str,
        now: Now,
    ) -> Result<(), ApiError> {
        let rules = self.js.consumer_rules(&self.account, &self.config);
        let config = config::consumer::check(request, Some(name), &rules)?;
        // Beside the others of a work queue it is one that takes all of its messages.
        let plain = ConsumerConfig {
            ack_policy: AckPolicy::Explicit,
            deliver_policy: DeliverPolicy::All,
            ..config.clone()
        };
        self.check_work_queue(&plain, None)?;
        let number = self.insert_consumer(name, config, now)?;
        self.with_consumer(number, now, |consumer, port| {
            consumer.announce(port, now);
            consumer.interest_changed(port, now);
        });
        self.list_consumer(number);
        Ok(())
    }

    fn insert_consumer(&mut self, name: &str, mut config: ConsumerConfig, now: Now) -> Result<u32, ApiError> {
        config::consumer::stamp(&mut config);
        // Only what is committed is counted by the consumer; what is staged it is told.
        let by_time = self.time_start(&config);
        let consumer = Consumer::create(self.home(), name, config, by_time, now);
        let number = self.consumers.insert(consumer);
        if let Err(error) = self.put_consumer(number) {
            self.consumers.remove(number);
            return Err(error);
        }
        self.consumers.touch(number, now);
        self.consumers.store_now(now);
        self.store_consumers(now);
        Ok(number)
    }

    fn update_consumer(
        &mut self,
        number: u32,
        mut config: ConsumerConfig,
        action: ConsumerAction,
        now: Now,
    ) -> Result<Created, ApiError> {
        let Some(slot) = self.consumers.slots.get(&number) else {
            return Err(ErrorCode::ConsumerNotFound.error());
        };
        let name = slot.consumer.name().to_owned();
        let old = slot.consumer.config().clone();
        config.pause_until = old.pause_until;
        let same = old.is_same_as(&config);
        if action == ConsumerAction::Create && !same {
            return Err(ErrorCode::ConsumerExists.error());
        }
        if !same {
            config::consumer::check_update(&old, &config)?;
            self.check_work_queue(&config, Some(number))?;
        }
        config::consumer::stamp(&mut config);
        let deliver = config.deliver_subject.clone();
        let updated = self
            .with_consumer(number, now, |consumer, port| consumer.update(port, config, now))
            .unwrap_or_else(|| Err(ErrorCode::ConsumerNotFound.error()))?;
        if updated.changed {
            self.put_consumer(number)?;
            self.list_consumer(number);
        }
        if deliver != old.deliver_subject {
            self.unwatch(old.deliver_subject.as_deref());
            self.with_consumer(number, now, |consumer, port| consumer.interest_changed(port, now));
        }
        if updated.filters {
            self.then(Self::remove_unneeded);
        }
        Ok(Created::Known(name))
    }

    /// Whether a consumer may stand beside the others of a work queue. Section 7.1 of the consumers.
    fn check_work_queue(&self, config: &ConsumerConfig, except: Option<u32>) -> Result<(), ApiError> {
        if self.config.retention != RetentionPolicy::WorkQueue {
            return Ok(());
        }
        let others = self
            .consumers
            .slots
            .iter()
            .filter(|(number, _)| Some(**number) != except)
            .map(|(_, slot)| slot.consumer.config());
        config::consumer::check_work_queue(config, others)
    }

    /// Ceases to hear of a deliver subject that no consumer has any more.
    fn unwatch(&self, subject: Option<&str>) {
        let Some(subject) = subject else { return };
        let mut others = self.consumers.slots.values();
        if !others.any(|slot| slot.consumer.config().deliver_subject.as_deref() == Some(subject)) {
            self.account
                .account
                .unwatch(subject.as_bytes(), &self.stream.inbox);
        }
    }

    /// Ends a consumer.
    pub(super) fn delete_consumer(&mut self, number: u32, now: Now) {
        self.with_consumer(number, now, |consumer, port| {
            consumer.stop(port, Stop::Deleted, now);
        });
        let Some(slot) = self.consumers.remove(number) else {
            return;
        };
        let name = slot.consumer.name().to_owned();
        self.stream.unlist_consumer(&name);
        self.unwatch(slot.consumer.config().deliver_subject.as_deref());
        if self.writer.has_consumer(&name)
            && let Err(error) = self.writer.stage(Op::ConsumerDelete { name: &name })
        {
            tracing::warn!(stream = %self.stream.name, consumer = %name, "the end of a consumer is not stored: {error}");
        }
        match self.config.retention {
            RetentionPolicy::Interest if self.consumers.slots.is_empty() => self.purge_unneeded(),
            RetentionPolicy::Interest => self.then(Self::remove_unneeded),
            RetentionPolicy::WorkQueue => self.remove_ranges(&slot.into_settled()),
            RetentionPolicy::Limits => {}
        }
    }

    fn purge_unneeded(&mut self) {
        let last = self.writer.last_seq();
        self.remove_ranges(&[SeqRange { first: 1, last }]);
    }

    /// Removes messages, and tells consumers once that is committed.
    pub(super) fn remove_ranges(&mut self, ranges: &[SeqRange]) {
        if ranges.is_empty() || ranges.iter().all(|range| range.last < range.first) {
            return;
        }
        match self.writer.stage(Op::Remove(ranges)) {
            Ok(ticket) => {
                self.upkeep.removed(ranges);
                for range in ranges {
                    self.feed
                        .push_back((ticket.op, super::task::Feed::Removed(*range)));
                }
            }
            Err(error) => self.upkeep.retry_unneeded(&error),
        }
    }
}

enum Created {
    New(u32),
    Known(String),
}
