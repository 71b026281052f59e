//! Management calls on the stream.
//!
//! A call sees everything that was answered before it was sent, and its own answer waits for everything staged before it:
//! it is put behind the newest staged operation and made from committed state.

use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::jetstream::advisory::{StreamAction, StreamActionKind};
use windjet_protocol::jetstream::consumer::requests::{
    CONSUMER_LIST_LIMIT, CONSUMER_NAMES_LIMIT, ConsumerCreateResponse, ConsumerDeleteResponse,
    ConsumerInfoResponse, ConsumerListResponse, ConsumerNamesResponse, ConsumerResetResponse,
    ConsumerUnpinResponse,
};
use windjet_protocol::jetstream::level::OWN_PREFIX;
use windjet_protocol::jetstream::stream::requests::{
    MessageDeleteRequest, MessageDeleteResponse, PurgeRequest, PurgeResponse, STREAM_SUBJECTS_LIMIT,
    StreamConfigRequest, StreamCreateResponse, StreamDeleteResponse, StreamInfoRequest, StreamInfoResponse,
    StreamUpdateResponse,
};
use windjet_protocol::jetstream::{
    ApiError, ClusterInfo, ConsumerInfo, DeletedSequences, ErrorCode, LostMessages, Page, PersistMode,
    StreamInfo, StreamState, Timestamp,
};
use windjet_store::{Durability, Found, Matcher, Op, Purge, SeqRange, StageError};

use super::Stream;
use super::call::{Answer, Call};
use super::task::{Feed, Task};
use crate::jetstream::api::{shown, stream_options};
use crate::jetstream::consumer::{Now, Stop};
use crate::jetstream::fault::{Fault, planted};
use crate::jetstream::open::StoredStream;
use crate::jetstream::read;

impl Stream {
    /// Counts and bounds as the API shows them.
    pub(crate) fn state(&self) -> StreamState {
        let state = self.reader.state();
        let config = self.config();
        let ts = |time: i64| {
            if time == 0 {
                Timestamp::ZERO
            } else {
                Timestamp::from_unix_nanos(time)
            }
        };
        let first_ts = if state.messages == 0 {
            Timestamp::ZERO
        } else {
            ts(state
                .first_time
                .unwrap_or_else(|| self.first_time(state.first_seq)))
        };
        let never = state.last_seq == 0 || state.last_seq < config.first_seq;
        StreamState {
            messages: state.messages,
            bytes: state.bytes,
            first_seq: if never { config.first_seq } else { state.first_seq },
            first_ts,
            last_seq: state.last_seq,
            last_ts: if never {
                Timestamp::ZERO
            } else {
                ts(state.last_time)
            },
            num_subjects: state.subjects,
            num_deleted: state.deleted,
            lost: (state.lost > 0).then(|| LostMessages {
                msgs: Vec::new(),
                bytes: 0,
            }),
            consumer_count: self.consumers() as u64,
            ..StreamState::default()
        }
    }

    /// Stored time of the first message, where the index does not have it.
    fn first_time(&self, seq: u64) -> i64 {
        match self.reader.read(seq) {
            Found::InMemory(message) => message.time(),
            Found::NeedsDisk(ticket) => ticket.read().ok().flatten().map_or(0, |message| message.time()),
            Found::Absent => 0,
        }
    }
}

fn store_error(error: StageError) -> String {
    error.to_string()
}

impl Task {
    /// Does a call, or holds it until a purge that is under way is committed.
    pub(super) fn call(&mut self, call: Call, now: Now) {
        if !self.held.is_empty()
            || matches!(
                self.writer.check_space(),
                Err(StageError::Barrier | StageError::Busy)
            )
        {
            self.held.push_back(call);
            return;
        }
        match call {
            Call::Created(answer) => self.created(answer),
            Call::Info(request, answer) => {
                self.consumers.store_now(now);
                self.store_consumers(now);
                self.then(move |task| {
                    let result = task.info(&request);
                    answer.send(&task.server, Ok(result));
                });
            }
            Call::Update(request, answer) => self.update(*request, answer),
            Call::Delete(answer) => self.delete(answer, now),
            Call::Purge(request, answer) => self.purge(&request, answer),
            Call::MessageGet(request, answer) => self.then(move |task| {
                read::serve_get(&task.server, &task.js, &task.stream, *request, answer);
            }),
            Call::MessageDelete(request, answer) => self.delete_message(request, answer),
            Call::Snapshot(request, asker) => self.snapshot(*request, asker),
            Call::Restored(restored) => self.finish_restore(*restored),
            Call::ConsumerCreate(create, answer) => self.create_consumer(*create, answer, now),
            Call::ConsumerInfo(name, answer) => {
                self.consumers.store_now(now);
                self.store_consumers(now);
                self.then(move |task| {
                    let now = task.now();
                    let result = task
                        .consumer_info(&name, now)
                        .map(|info| ConsumerInfoResponse { info });
                    answer.send(&task.server, result);
                });
            }
            Call::ConsumerList(offset, answer) => self.then(move |task| {
                let now = task.now();
                let names: Vec<_> = task.consumers.by_name.keys().cloned().collect();
                let page = Page::new(names.len(), offset, CONSUMER_LIST_LIMIT);
                let mut consumers = Vec::new();
                for name in &names[page.range()] {
                    consumers.extend(task.plain_consumer_info(name, now));
                }
                answer.send(&task.server, Ok(ConsumerListResponse { page, consumers }));
            }),
            Call::ConsumerNames(offset, answer) => self.then(move |task| {
                let names: Vec<String> = task.consumers.by_name.keys().map(ToString::to_string).collect();
                let page = Page::new(names.len(), offset, CONSUMER_NAMES_LIMIT);
                let consumers = names[page.range()].to_vec();
                answer.send(&task.server, Ok(ConsumerNamesResponse { page, consumers }));
            }),
            Call::ConsumerDelete(name, answer) => match self.consumers.find(&name) {
                Some(number) => {
                    self.delete_consumer(number, now);
                    self.then(move |task| {
                        task.reply(answer, Ok(ConsumerDeleteResponse { success: true }));
                    });
                }
                // That it is gone may be staged only.
                None => self.then(move |task| {
                    task.reply(answer, Err(ErrorCode::ConsumerNotFound.error()));
                }),
            },
            Call::ConsumerPause(name, until, answer) => match self.consumers.find(&name) {
                Some(number) => {
                    let paused = self.with_consumer(number, now, |c, port| c.pause(port, until, now));
                    let stored = self.put_consumer(number);
                    let result =
                        stored.and_then(|()| paused.ok_or_else(|| ErrorCode::ConsumerNotFound.error()));
                    self.then(move |task| task.reply(answer, result));
                }
                // That it is gone may be staged only.
                None => self.then(move |task| {
                    task.reply(answer, Err(ErrorCode::ConsumerNotFound.error()));
                }),
            },
            Call::ConsumerUnpin(name, group, answer) => {
                let result = match self.consumers.find(&name) {
                    Some(number) => self
                        .with_consumer(number, now, |c, port| c.unpin(port, &group, now))
                        .unwrap_or(Ok(())),
                    None => Err(ErrorCode::ConsumerNotFound.error()),
                };
                answer.send(&self.server, result.map(|()| ConsumerUnpinResponse {}));
            }
            Call::ConsumerReset(name, seq, answer) => self.reset_consumer(&name, seq, answer, now),
            Call::ConsumerExplain(name, answer) => {
                let number = self.consumers.find(&name);
                let why = number.and_then(|n| self.with_consumer(n, now, |c, port| c.explain(port, now)));
                // Whoever asked may have gone.
                drop(answer.send(why));
            }
            Call::ConsumerUnsettled(name, answer) => {
                let number = self.consumers.find(&name);
                let open = number.and_then(|n| self.with_consumer(n, now, |c, _| c.unsettled()));
                // As above.
                drop(answer.send(open));
            }
            Call::Interest => {
                self.each_consumer(now, |consumer, port| consumer.interest_changed(port, now));
            }
            Call::Gone(holder) => {
                self.each_consumer(now, |consumer, port| consumer.holder_gone(port, holder, now));
            }
            Call::Claim(claim) => self.claim(claim, now),
            Call::Taken { consumer, seq } => self.taken(&consumer, seq, now),
            Call::Unclaim(consumer) => self.unclaim(&consumer, now),
            #[cfg(test)]
            Call::Panic => panic!("a test wants it"),
            Call::Shutdown(done) => {
                self.each_consumer(now, |consumer, port| consumer.stop(port, Stop::Shutdown, now));
                self.consumers.store_now(now);
                self.store_consumers(now);
                self.writer.submit();
                self.end_told.push(done);
                self.then(|task| task.ended = true);
            }
        }
    }

    pub(super) fn stream_info(&self) -> StreamInfo {
        let mut config = (*self.config).clone();
        config.metadata = shown(config.metadata);
        self.show_own(&mut config);
        let (mirror, sources) = self.stream.copying(self.now());
        StreamInfo {
            mirror,
            sources,
            config,
            created: self.stream.created,
            state: self.stream.state(),
            ts: Timestamp::from_unix_nanos(self.now().wall),
            ..StreamInfo::default()
        }
    }

    /// What nats-server does not show, where it is not as everybody expects: weaker durability that the configuration itself
    /// does not say, and messages lost to damage.
    fn show_own(&self, config: &mut windjet_protocol::jetstream::StreamConfig) {
        let mut show = |key: &str, value: String| config.metadata.insert(format!("{OWN_PREFIX}{key}"), value);
        let lost = self.stream.reader.state().lost;
        if lost > 0 {
            show("lost", lost.to_string());
        }
        let own = self.config.persist_mode != PersistMode::Async
            && !self.config.metadata.contains_key("windjet.durability");
        match self.writer.options().durability {
            Durability::Os if own => drop(show("durability", "os".to_owned())),
            Durability::Interval(every) if own => drop(show("durability", format!("interval:{every:?}"))),
            _ => {}
        }
    }

    fn answer_created(&mut self, answer: Answer<StreamCreateResponse>) {
        let info = self.stream_info();
        self.reply(
            answer,
            Ok(StreamCreateResponse {
                info,
                did_create: true,
            }),
        );
    }

    fn created(&mut self, answer: Answer<StreamCreateResponse>) {
        let new = !std::mem::replace(&mut self.announced, true);
        self.then(move |task| {
            if new {
                task.advise(StreamActionKind::Create);
            }
            task.answer_created(answer);
        });
    }

    pub(super) fn advise(&self, action: StreamActionKind) {
        if self.failed {
            return;
        }
        let body = StreamAction {
            stream: self.stream.name.to_string(),
            action,
            domain: self.account.domain().map(str::to_owned),
        };
        let subject = windjet_protocol::jetstream::advisory::EventBody::subject(&body);
        self.account.advise(&self.server, move || body, &subject);
    }

    fn info(&self, request: &StreamInfoRequest) -> StreamInfoResponse {
        let mut info = self.stream_info();
        info.domain = self.account.domain().map(str::to_owned);
        info.cluster = Some(ClusterInfo {
            leader: self.server.name.clone(),
            ..ClusterInfo::default()
        });
        if request.deleted_details {
            let mut deleted = DeletedSequences::default();
            self.stream.reader.deleted(|range| {
                deleted.push(range.first..=range.last);
                true
            });
            info.state.deleted = deleted;
        }
        let mut page = Page::default();
        if !request.subjects_filter.is_empty() {
            let mut matcher = Matcher::new([request.subjects_filter.as_bytes()]);
            let mut rows = Vec::new();
            self.stream.reader.subjects(&mut matcher, |row| {
                rows.push((String::from_utf8_lossy(row.subject).into_owned(), row.messages));
                true
            });
            if !rows.is_empty() {
                page = Page::new(rows.len(), request.offset, STREAM_SUBJECTS_LIMIT);
                if rows.len() > STREAM_SUBJECTS_LIMIT || page.offset > 0 {
                    rows.sort_unstable();
                    rows = rows[page.range()].to_vec();
                }
                info.state.subjects = rows.into_iter().collect();
                // Unlike in other lists, an offset beyond the end is shown as it was asked for.
                page.offset = u64::try_from(request.offset).unwrap_or(0);
            }
        }
        StreamInfoResponse {
            page,
            info: Some(info),
        }
    }

    fn update(&mut self, request: StreamConfigRequest, answer: Answer<StreamUpdateResponse>) {
        let account = self.account.clone();
        let _admin = account.admin.lock();
        let config = {
            let neighbours = self.js.neighbours(&account);
            crate::jetstream::config::stream::update(&self.config, request, &neighbours.rules())
        };
        let result = config
            .and_then(|config| self.check_update(&config).map(|()| config))
            .and_then(|config| {
                let stored = StoredStream {
                    created: self.stream.created.unix_nanos(),
                    config,
                    unfinished: false,
                };
                let options = stream_options(&self.js, &account, &stored);
                let staged = self.writer.stage(Op::Update(&options));
                staged.map_err(|error| ErrorCode::StreamUpdateFailed.with(store_error(error)))?;
                Ok(stored.config)
            });
        let config = match result {
            Ok(config) => config,
            Err(error) => return answer.send(&self.server, Err(error)),
        };
        self.apply_config(config);
        self.then(move |task| {
            task.advise(StreamActionKind::Modify);
            let mut info = task.stream_info();
            info.domain = task.account.domain().map(str::to_owned);
            task.reply(answer, Ok(StreamUpdateResponse { info }));
        });
    }

    /// What an update must respect besides the configuration itself.
    fn check_update(&self, config: &windjet_protocol::jetstream::StreamConfig) -> Result<(), ApiError> {
        if self.account.overlaps(config) {
            return Err(ErrorCode::SubjectOverlap.error());
        }
        let limits = &config.consumer_limits;
        let (pending, inactive) = (limits.max_ack_pending, limits.inactive_threshold);
        let violating: Vec<&str> = self
            .consumers
            .slots
            .values()
            .filter(|slot| {
                let theirs = slot.consumer.config();
                (pending > 0 && theirs.max_ack_pending > pending)
                    || (inactive.is_positive() && theirs.inactive_threshold > inactive)
            })
            .map(|slot| slot.consumer.name())
            .collect();
        if violating.is_empty() {
            return Ok(());
        }
        let text = format!("change to limits violates consumers: {}", violating.join(", "));
        Err(ErrorCode::StreamUpdateFailed.with(text))
    }

    /// The configuration is staged: everything that follows goes by it.
    fn apply_config(&mut self, config: windjet_protocol::jetstream::StreamConfig) {
        let interest = config.retention != self.config.retention;
        self.config = Arc::new(config);
        self.stream.set_config(self.config.clone());
        self.account.changed(&self.stream);
        let (account, subjects) = (self.account.account.clone(), self.config.subjects.clone());
        self.subscriptions.replace(&account, &self.stream, &subjects);
        self.ingest.configure(&self.config, &self.js);
        self.batches.configure(&self.ingest.rules);
        self.set_copies();
        let home = self.home();
        for slot in self.consumers.slots.values_mut() {
            slot.consumer.set_home(home.clone());
        }
        self.enforce_limits();
        self.begin_upkeep(self.now());
        if interest {
            self.then(Self::remove_unneeded);
        }
    }

    fn delete(&mut self, answer: Answer<StreamDeleteResponse>, now: Now) {
        let account = self.account.clone();
        let _admin = account.admin.lock();
        if let Err(error) = self.writer.stage(Op::Delete) {
            let error = ErrorCode::StreamDeleteFailed.with(store_error(error));
            return answer.send(&self.server, Err(error));
        }
        self.account.remove(&self.stream);
        self.end_copies();
        self.subscriptions.replace(&account.account, &self.stream, &[]);
        self.each_consumer(now, |consumer, port| consumer.stop(port, Stop::Deleted, now));
        self.stream.clear_consumers();
        self.then(move |task| {
            task.advise(StreamActionKind::Delete);
            task.ended = true;
            // It takes nothing any more, before that is answered.
            task.quota.count(0);
            task.reply(answer, Ok(StreamDeleteResponse { success: true }));
        });
    }

    fn purge(&mut self, request: &PurgeRequest, answer: Answer<PurgeResponse>) {
        if self.config.sealed {
            return answer.send(&self.server, Err(ErrorCode::StreamSealed.error()));
        }
        if self.config.deny_purge {
            let error = ErrorCode::PurgeFailed.with("stream purge not permitted");
            return answer.send(&self.server, Err(error));
        }
        // What is staged must be in the index, which says what is kept.
        if self.writer.staged_op() > self.writer.committed_op()
            && (request.keep > 0 || !request.filter.is_empty())
        {
            let request = request.clone();
            self.then(move |task| task.purge(&request, answer));
            return;
        }
        let (filter, last) = (request.filter.as_bytes(), self.writer.last_seq());
        let all = filter.is_empty() || filter == b">" || planted(Fault::PurgeTakesAll);
        let filter: &[u8] = if all { b"" } else { filter };
        let mut below = if request.seq > 0 { request.seq } else { u64::MAX };
        if request.keep > 0 {
            below = self.keeps_from(filter, request.keep).unwrap_or_default();
        }
        let before = self.writer.messages();
        if below > 0 {
            let staged = self.writer.stage(Op::Purge(Purge { filter, below }));
            match staged {
                Ok(ticket) => {
                    let filter = Bytes::copy_from_slice(filter);
                    self.feed.push_back((ticket.op, Feed::Purged { filter }));
                    // The next message gets the sequence that was asked for, where that is beyond the end.
                    if all && request.seq > last + 1 {
                        self.skip_to = Some(request.seq - 1);
                    }
                }
                Err(error) => {
                    let error = ErrorCode::StreamGeneralFailure.with(store_error(error));
                    return answer.send(&self.server, Err(error));
                }
            }
        }
        self.then(move |task| {
            if let Some(seq) = task.skip_to.take()
                && seq > task.writer.last_seq()
                && let Err(error) = task.writer.stage(Op::SkipTo { seq })
            {
                tracing::warn!(stream = %task.stream.name, "the stream does not skip to {seq}: {error}");
            }
            let purged = before.saturating_sub(task.stream.reader.state().messages);
            task.then(move |task| {
                task.reply(
                    answer,
                    Ok(PurgeResponse {
                        success: true,
                        purged,
                    }),
                );
            });
        });
    }

    /// The sequence of the oldest of the newest `keep` matches; `None` when there are no more than that.
    fn keeps_from(&self, filter: &[u8], keep: u64) -> Option<u64> {
        let reader = &self.stream.reader;
        let mut matcher = Matcher::new(if filter.is_empty() { None } else { Some(filter) });
        let count = reader.count(&mut matcher, 0);
        let skip = usize::try_from(count.checked_sub(keep)?).ok()?;
        if skip == 0 {
            return None;
        }
        let (mut from, mut left) = (0, skip + 1);
        loop {
            let mut seqs = Vec::new();
            reader.next_matches(&mut matcher, from, left.min(4096), &mut seqs);
            let last = *seqs.last()?;
            if seqs.len() >= left {
                return Some(last);
            }
            left -= seqs.len();
            from = last + 1;
        }
    }

    fn delete_message(&mut self, request: MessageDeleteRequest, answer: Answer<MessageDeleteResponse>) {
        let refused = if self.config.sealed {
            Some(ErrorCode::StreamSealed.error())
        } else if self.config.deny_delete {
            Some(ErrorCode::MessageDeleteFailed.with("message delete not permitted"))
        } else if !self.writer.is_live(request.seq) {
            Some(self.no_message(request.seq))
        } else {
            None
        };
        if let Some(error) = refused {
            // It rests on what is staged: another deletion, say.
            self.then(move |task| task.reply(answer, Err(error)));
            return;
        }
        let range = SeqRange {
            first: request.seq,
            last: request.seq,
        };
        let ranges = [range];
        let op = if request.no_erase {
            Op::Remove(&ranges)
        } else {
            Op::Erase(&ranges)
        };
        match self.writer.stage(op) {
            Ok(ticket) => {
                self.upkeep.removed(&[range]);
                self.feed.push_back((ticket.op, Feed::Removed(range)));
                self.then(move |task| {
                    task.reply(answer, Ok(MessageDeleteResponse { success: true }));
                });
            }
            Err(error) => {
                let error = ErrorCode::MessageDeleteFailed.with(store_error(error));
                answer.send(&self.server, Err(error));
            }
        }
    }

    fn no_message(&self, seq: u64) -> ApiError {
        use windjet_protocol::jetstream::StorageType;
        let state = self.stream.reader.state();
        if self.config.storage == StorageType::File {
            if seq < state.first_seq {
                return ErrorCode::MessageDeleteFailed.with("no message found");
            }
            if seq > self.writer.last_seq() {
                return ErrorCode::MessageDeleteFailed.with("stream store EOF");
            }
        }
        ErrorCode::SequenceNotFound.with(seq)
    }

    /// Where a consumer stands, with what single answers show.
    pub(super) fn consumer_info(&mut self, name: &str, now: Now) -> Result<ConsumerInfo, ApiError> {
        let mut info = self
            .plain_consumer_info(name, now)
            .ok_or_else(|| ErrorCode::ConsumerNotFound.error())?;
        info.config.metadata = shown(info.config.metadata);
        Ok(info)
    }

    fn plain_consumer_info(&mut self, name: &str, now: Now) -> Option<ConsumerInfo> {
        let number = self.consumers.find(name)?;
        self.with_consumer(number, now, |consumer, port| consumer.info(port, now))
    }

    fn reset_consumer(&mut self, name: &str, seq: u64, answer: Answer<ConsumerResetResponse>, now: Now) {
        let Some(number) = self.consumers.find(name) else {
            return;
        };
        let by_time = self.start_by_time(number);
        let result = self
            .with_consumer(number, now, |consumer, port| {
                consumer.reset(port, seq, by_time, now)
            })
            .unwrap_or_else(|| Err(ErrorCode::ConsumerNotFound.error()));
        self.consumers.store_now(now);
        self.store_consumers(now);
        let name = name.to_owned();
        match result {
            Ok(reset_seq) => self.then(move |task| {
                let now = task.now();
                let result = task.consumer_info(&name, now).map(|info| ConsumerResetResponse {
                    info: Some(info),
                    reset_seq,
                });
                let result = if task.failed {
                    Err(ErrorCode::StoreFailed.with("the outcome is unknown"))
                } else {
                    result
                };
                answer.send_quietly(&task.server, result);
            }),
            Err(error) => answer.send_quietly(&self.server, Err(error)),
        }
    }

    /// Answers the creation or the update of a consumer from where it stands.
    pub(super) fn answer_consumer(&mut self, name: &str, answer: Answer<ConsumerCreateResponse>) {
        let now = self.now();
        let result = self
            .consumer_info(name, now)
            .map(|info| ConsumerCreateResponse { info });
        self.reply(answer, result);
    }
}
