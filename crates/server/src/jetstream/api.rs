//! The calls of the API: reading them, answering what needs no stream, handing the rest to the stream.
//!
//! Runs in the turn of whoever published the request. Calls that create a stream go one at a time per account.

use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::header::block;
use windjet_protocol::jetstream::account::{AccountInfo, ApiStats};
use windjet_protocol::jetstream::advisory::ClientInfo;
use windjet_protocol::jetstream::api::{ApiCall, ConsumerVerb, StreamVerb};
use windjet_protocol::jetstream::consumer::requests::{
    ConsumerCreateRequest, ConsumerDeleteResponse, ConsumerInfoResponse, ConsumerListRequest,
    ConsumerPauseRequest, ConsumerPauseResponse, ConsumerResetRequest, ConsumerUnpinRequest,
};
use windjet_protocol::jetstream::level::{self, REQUIRED_API_LEVEL};
use windjet_protocol::jetstream::request::{decode, expect_empty};
use windjet_protocol::jetstream::stream::get::MessageGetRequest;
use windjet_protocol::jetstream::stream::requests::{
    MessageDeleteRequest, PurgeRequest, RestoreRequest, STREAM_LIST_LIMIT, STREAM_NAMES_LIMIT,
    SnapshotRequest, StreamConfigRequest, StreamCreateResponse, StreamDeleteResponse, StreamInfoRequest,
    StreamListRequest, StreamListResponse, StreamNamesResponse,
};
use windjet_protocol::jetstream::{
    API_LEVEL, ApiError, ErrorCode, Metadata, Page, Status, StreamConfig, StreamInfo, Timestamp,
};
use windjet_protocol::subject;

use super::JetStream;
use super::account::{AUDIT, JsAccount};
use super::backup;
use super::open::{StoredStream, durability, store_name};
use super::service::Context;
use super::stream::call::{Answer, Asker, Call, CreateConsumer};
use super::stream::{Stream, task};
use crate::connection::Connection;
use crate::router::{Message, Turn};
use crate::server::{PROTOCOL_VERSION, Shared};

/// One call on its way.
struct Serving<'c> {
    context: &'c Context,
    server: &'c Arc<Shared>,
    js: &'c Arc<JetStream>,
    asker: Asker,
    strict: bool,
}

/// Serves a call.
pub(super) fn serve(
    context: &Context,
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    call: ApiCall<'_>,
    message: &Message<'_>,
    turn: &Turn<'_>,
) {
    let audited = context.account.listens(AUDIT);
    let asker = Asker {
        account: context.account.clone(),
        reply: Bytes::copy_from_slice(message.reply.unwrap_or_default()),
        subject: Bytes::copy_from_slice(message.subject),
        body: Bytes::copy_from_slice(message.payload),
        client: (audited || call_needs_client(&call)).then(|| {
            Box::new(client_info(
                server,
                &context.account,
                turn.origin.map(AsRef::as_ref),
            ))
        }),
    };
    if let Some(text) = call.cluster_required() {
        asker.send(server, text, true, true);
        return;
    }
    if let Some(error) = level_refused(message.headers) {
        if let Some(text) = call.failure(&error) {
            asker.send(server, text, true, true);
        }
        return;
    }
    let serving = Serving {
        context,
        server,
        js,
        asker,
        strict: js.options().strict,
    };
    match call {
        ApiCall::AccountInfo => serving.account_info(),
        ApiCall::AccountPurge { .. } => {}
        ApiCall::StreamNames => serving.stream_names(),
        ApiCall::StreamList => serving.stream_list(),
        ApiCall::Stream { verb, stream } => serving.stream(verb, stream),
        ApiCall::ConsumerNames { stream } => serving.consumer_names(stream),
        ApiCall::ConsumerList { stream } => serving.consumer_list(stream),
        ApiCall::ConsumerCreate {
            stream,
            consumer,
            filter,
        } => serving.consumer_create(stream, consumer, filter, false),
        ApiCall::Consumer {
            verb,
            stream,
            consumer,
        } => serving.consumer(verb, stream, consumer),
        _ => {}
    }
}

fn call_needs_client(call: &ApiCall<'_>) -> bool {
    matches!(
        call,
        ApiCall::Stream {
            verb: StreamVerb::Snapshot | StreamVerb::Restore,
            ..
        }
    )
}

fn level_refused(headers: &[u8]) -> Option<ApiError> {
    if headers.is_empty() {
        return None;
    }
    let level = block::find(headers, REQUIRED_API_LEVEL).filter(|level| !level.is_empty())?;
    level::check_required_level(std::str::from_utf8(level).unwrap_or_default()).err()
}

/// Why a direct get is refused for the API level that it asks for.
pub(super) fn direct_refused(headers: &[u8]) -> Option<Status> {
    level_refused(headers).map(|_| Status::RequiredApiLevel)
}

fn client_info(server: &Shared, account: &JsAccount, client: Option<&Connection>) -> ClientInfo {
    let Some(client) = client else {
        return ClientInfo {
            acc: account.name().to_owned(),
            server: server.name.clone(),
            kind: "Client".into(),
            client_type: "nats".into(),
            ..ClientInfo::default()
        };
    };
    client.advisory_info(server)
}

impl Serving<'_> {
    fn refuse(self, call: ApiCall<'_>, error: &ApiError) {
        if let Some(text) = call.failure(error) {
            self.asker.send(self.server, text, true, true);
        }
    }

    fn answer<T: windjet_protocol::jetstream::ApiResponse>(self, result: Result<T, ApiError>) {
        Answer::Wire(self.asker).send(self.server, result);
    }

    fn account_info(self) {
        let account = &self.context.account;
        let (total, errors) = account.calls();
        let info = AccountInfo {
            usage: account.usage(),
            domain: account.domain().map(str::to_owned),
            api: ApiStats {
                level: API_LEVEL,
                total,
                errors,
                inflight: 0,
            },
            ..AccountInfo::default()
        };
        self.answer(Ok(info));
    }

    /// Streams whose subjects collide with `filter`, all for an empty one.
    fn filtered(&self, filter: &str) -> Vec<Arc<Stream>> {
        let mut streams = self.context.account.streams();
        if !filter.is_empty() {
            streams.retain(|stream| {
                let config = stream.config();
                config
                    .subjects
                    .iter()
                    .any(|s| subject::overlaps(s.as_bytes(), filter.as_bytes()))
            });
        }
        streams
    }

    fn stream_names(self) {
        let result = decode::<StreamListRequest>(&self.asker.body, self.strict).map(|request| {
            let streams = self.filtered(&request.subject);
            let mut names: Vec<String> = streams.iter().map(|s| s.name.to_string()).collect();
            names.extend(
                self.context
                    .account
                    .offline
                    .filtered(&request.subject)
                    .into_keys(),
            );
            names.sort_unstable();
            let page = Page::new(names.len(), request.offset, STREAM_NAMES_LIMIT);
            StreamNamesResponse {
                page,
                streams: names[page.range()].to_vec(),
            }
        });
        self.answer(result);
    }

    fn stream_list(self) {
        let result = decode::<StreamListRequest>(&self.asker.body, self.strict).map(|request| {
            let streams = self.filtered(&request.subject);
            let page = Page::new(streams.len(), request.offset, STREAM_LIST_LIMIT);
            let now = self.js.now();
            let infos = streams[page.range()].iter().map(|stream| {
                let (mirror, sources) = stream.copying(now);
                StreamInfo {
                    mirror,
                    sources,
                    config: (*stream.config()).clone(),
                    created: stream.created,
                    state: stream.state(),
                    domain: self.context.account.domain().map(str::to_owned),
                    ts: Timestamp::from_unix_nanos(now.wall),
                    ..StreamInfo::default()
                }
            });
            let offline = self.context.account.offline.filtered(&request.subject);
            StreamListResponse {
                page,
                streams: infos.collect(),
                missing: offline.keys().cloned().collect(),
                offline,
            }
        });
        self.answer(result);
    }

    /// Hands a call to the stream.
    fn hand(self, stream: &str, make: impl FnOnce(Asker) -> Call) {
        let call = make(self.asker);
        match self.context.account.stream(stream) {
            Some(stream) => {
                if let Err(untaken) = stream.inbox.call(call) {
                    untaken.refuse(self.server);
                }
            }
            None => call.refuse(self.server, &self.context.account.offline.error(stream)),
        }
    }

    fn stream(self, verb: StreamVerb, stream: &str) {
        let call = ApiCall::Stream { verb, stream };
        macro_rules! body {
            ($kind:ty) => {
                match decode::<$kind>(&self.asker.body, self.strict) {
                    Ok(request) => request,
                    Err(error) => return self.refuse(call, &error),
                }
            };
        }
        match verb {
            StreamVerb::Create => {
                let request = body!(StreamConfigRequest);
                let result = check_names(&request, stream)
                    .and_then(|()| create(&self.context.account, self.server, self.js, request));
                match result {
                    Ok(stream) => {
                        let call = Call::Created(Answer::Wire(self.asker));
                        if let Err(untaken) = stream.inbox.call(call) {
                            untaken.refuse(self.server);
                        }
                    }
                    Err(error) => self.answer::<StreamCreateResponse>(Err(error)),
                }
            }
            StreamVerb::Update => {
                let request = Box::new(body!(StreamConfigRequest));
                let account = &self.context.account;
                let checked =
                    super::config::stream::check_request(&request, &self.js.neighbours(account).rules());
                if let Err(error) = checked.and_then(|()| check_names(&request, stream)) {
                    return self.refuse(call, &error);
                }
                self.hand(stream, |asker| Call::Update(request, Answer::Wire(asker)));
            }
            StreamVerb::Info => {
                let request = body!(StreamInfoRequest);
                self.hand(stream, |asker| Call::Info(request, Answer::Wire(asker)));
            }
            StreamVerb::Delete => {
                if let Err(error) = expect_empty(&self.asker.body) {
                    return self.answer::<StreamDeleteResponse>(Err(error));
                }
                self.hand(stream, |asker| Call::Delete(Answer::Wire(asker)));
            }
            StreamVerb::Purge => {
                let request = body!(PurgeRequest);
                if let Err(error) = request.check() {
                    return self.refuse(call, &error);
                }
                self.hand(stream, |asker| Call::Purge(request, Answer::Wire(asker)));
            }
            StreamVerb::MessageGet => {
                let request = Box::new(body!(MessageGetRequest));
                self.hand(stream, |asker| Call::MessageGet(request, Answer::Wire(asker)));
            }
            StreamVerb::MessageDelete => {
                let request = body!(MessageDeleteRequest);
                self.hand(stream, |asker| Call::MessageDelete(request, Answer::Wire(asker)));
            }
            StreamVerb::Snapshot => {
                let request = Box::new(body!(SnapshotRequest));
                self.hand(stream, |asker| Call::Snapshot(request, asker));
            }
            StreamVerb::Restore => {
                let request = body!(RestoreRequest);
                match self.restorable(request.config, stream) {
                    Ok(config) => backup::begin_restore(self.server, self.js, config, self.asker),
                    Err(error) => self.refuse(call, &error),
                }
            }
            _ => {}
        }
    }

    /// The configuration of a stream that may be restored under a name.
    fn restorable(&self, mut config: StreamConfig, name: &str) -> Result<StreamConfig, ApiError> {
        if config.name.is_empty() {
            name.clone_into(&mut config.name);
        }
        let mut request = StreamConfigRequest {
            config,
            pedantic: false,
        };
        check_names(&request, name)?;
        let account = &self.context.account;
        let offline = account.offline.find(name).is_some();
        if offline || account.stream(name).is_some() || account.reserves(name) {
            return Err(ErrorCode::RestoreNameInUse.error());
        }
        // None is made sealed, but one that was sealed later may come back.
        let sealed = std::mem::take(&mut request.config.sealed);
        let config = super::config::stream::create(request, &self.js.neighbours(account).rules())?;
        Ok(StreamConfig { sealed, ..config })
    }

    fn consumer_names(self, stream: &str) {
        match decode::<ConsumerListRequest>(&self.asker.body, self.strict) {
            Ok(request) => self.hand(stream, |asker| {
                Call::ConsumerNames(request.offset, Answer::Wire(asker))
            }),
            Err(error) => self.refuse(ApiCall::ConsumerNames { stream }, &error),
        }
    }

    fn consumer_list(self, stream: &str) {
        match decode::<ConsumerListRequest>(&self.asker.body, self.strict) {
            Ok(request) => self.hand(stream, |asker| {
                Call::ConsumerList(request.offset, Answer::Wire(asker))
            }),
            Err(error) => self.refuse(ApiCall::ConsumerList { stream }, &error),
        }
    }

    /// A create or update; names and filter of the subject are checked against the body. Section 1.2 of the consumers.
    fn consumer_create(self, stream: &str, consumer: Option<&str>, filter: Option<&str>, durable_form: bool) {
        let call = ApiCall::ConsumerCreate {
            stream,
            consumer,
            filter,
        };
        let request = match decode::<ConsumerCreateRequest>(&self.asker.body, self.strict) {
            Ok(request) => request,
            Err(error) => return self.refuse(call, &error),
        };
        if let Err(error) = check_consumer_names(&request, stream, consumer, filter, durable_form) {
            return self.refuse(call, &error);
        }
        let create = Box::new(CreateConsumer {
            request,
            name: consumer.map(str::to_owned),
        });
        self.hand(stream, |asker| Call::ConsumerCreate(create, Answer::Wire(asker)));
    }

    fn consumer(self, verb: ConsumerVerb, stream: &str, consumer: &str) {
        let call = ApiCall::Consumer {
            verb,
            stream,
            consumer,
        };
        let name = consumer.to_owned();
        match verb {
            ConsumerVerb::DurableCreate => self.consumer_create(stream, Some(consumer), None, true),
            ConsumerVerb::Info => match expect_empty(&self.asker.body) {
                Ok(()) => self.hand(stream, |asker| Call::ConsumerInfo(name, Answer::Wire(asker))),
                Err(error) => self.answer::<ConsumerInfoResponse>(Err(error)),
            },
            ConsumerVerb::Delete => match expect_empty(&self.asker.body) {
                Ok(()) => self.hand(stream, |asker| Call::ConsumerDelete(name, Answer::Wire(asker))),
                Err(error) => self.answer::<ConsumerDeleteResponse>(Err(error)),
            },
            ConsumerVerb::Pause => match decode::<ConsumerPauseRequest>(&self.asker.body, self.strict) {
                Ok(request) => self.hand(stream, |asker| {
                    Call::ConsumerPause(name, request.pause_until, Answer::Wire(asker))
                }),
                Err(error) => self.answer::<ConsumerPauseResponse>(Err(error)),
            },
            ConsumerVerb::Unpin => {
                let request = decode::<ConsumerUnpinRequest>(&self.asker.body, self.strict)
                    .and_then(|request| request.check().map(|()| request));
                match request {
                    Ok(request) => self.hand(stream, |asker| {
                        Call::ConsumerUnpin(name, request.group, Answer::Wire(asker))
                    }),
                    Err(error) => self.refuse(call, &error),
                }
            }
            ConsumerVerb::Reset => {
                // A consumer that is not there has nobody who answers for it.
                let known = self.context.account.stream(stream);
                if known.is_none_or(|stream| stream.consumer(consumer).is_none())
                    || self.asker.reply.is_empty()
                {
                    return;
                }
                match decode::<ConsumerResetRequest>(&self.asker.body, self.strict) {
                    Ok(request) => self.hand(stream, |asker| {
                        Call::ConsumerReset(name, request.seq, Answer::Wire(asker))
                    }),
                    Err(error) => self.refuse(call, &error),
                }
            }
            _ => {}
        }
    }
}

fn has_separator(name: &str) -> bool {
    name.contains(['/', '\\'])
}

fn check_names(request: &StreamConfigRequest, token: &str) -> Result<(), ApiError> {
    if request.config.name != token {
        return Err(ErrorCode::StreamNameMismatch.error());
    }
    if has_separator(token) {
        return Err(ErrorCode::StreamNamePathSeparator.error());
    }
    Ok(())
}

fn check_consumer_names(
    request: &ConsumerCreateRequest,
    stream: &str,
    consumer: Option<&str>,
    filter: Option<&str>,
    durable_form: bool,
) -> Result<(), ApiError> {
    let config = &request.config;
    let durable = config.durable_name.as_deref().filter(|name| !name.is_empty());
    if request.stream_name != stream {
        return Err(ErrorCode::StreamNameMismatch.error());
    }
    if consumer.is_some_and(has_separator) {
        return Err(ErrorCode::ConsumerNamePathSeparator.error());
    }
    match (consumer, durable) {
        (Some(_), None) if durable_form => return Err(ErrorCode::DurableNameNotSet.error()),
        (Some(token), Some(durable)) if token != durable => {
            return Err(ErrorCode::DurableNameMismatch.error());
        }
        (None, Some(_)) => return Err(ErrorCode::EphemeralWithDurableName.error()),
        _ => {}
    }
    if let Some(filter) = filter {
        if !config.filter_subjects.is_empty() {
            return Err(ErrorCode::MultipleFiltersInSubject.error());
        }
        if config.filter_subject.as_deref() != Some(filter) {
            return Err(ErrorCode::CreateFilterSubjectMismatch.error());
        }
    }
    Ok(())
}

/// Creates a stream, or finds the one there is with the same configuration. It is durable when the call that is put into
/// its inbox after this is answered.
pub(super) fn create(
    account: &Arc<JsAccount>,
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    request: StreamConfigRequest,
) -> Result<Arc<Stream>, ApiError> {
    let _admin = account.admin.lock();
    if account.is_retired() {
        return Err(ErrorCode::NotEnabledForAccount.error());
    }
    let config = super::config::stream::create(request, &js.neighbours(account).rules())?;
    if let Some(known) = account.stream(&config.name) {
        return if known.config().is_same_as(&config) {
            Ok(known)
        } else {
            Err(ErrorCode::StreamNameInUse.error())
        };
    }
    if let Some(offline) = account.offline.find(&config.name) {
        return Err(offline);
    }
    if account.reserves(&config.name) {
        return Err(ErrorCode::StreamNameInUse.error());
    }
    if account.overlaps(&config) {
        return Err(ErrorCode::SubjectOverlap.error());
    }
    let created = js.now().wall;
    let stored = StoredStream {
        created,
        config,
        unfinished: false,
    };
    let options = stream_options(js, account, &stored);
    let config = stored.config;
    let failed = |text: String| ErrorCode::StreamCreateFailed.with(text);
    let writer = js
        .with_store(|store| store.create_stream(options))
        .ok_or_else(|| failed("the server is shutting down".into()))?
        .map_err(|error| failed(error.to_string()))?;
    let created = Timestamp::from_unix_nanos(created);
    let stream = Arc::new(Stream::new(
        &config.name.clone(),
        created,
        config,
        writer.reader(),
    ));
    account.insert(&stream);
    let task = task::Task::new(
        server.clone(),
        js.clone(),
        account.clone(),
        stream.clone(),
        writer,
        task::Origin::Created,
    );
    task::spawn(task);
    Ok(stream)
}

/// What the store is told of a stream.
pub(super) fn stream_options(
    js: &JetStream,
    account: &JsAccount,
    stored: &StoredStream,
) -> windjet_store::StreamOptions {
    use windjet_protocol::jetstream::{Compression, StorageType};
    let config = &stored.config;
    windjet_store::StreamOptions {
        name: store_name(account.name(), &config.name),
        storage: match config.storage {
            StorageType::Memory => windjet_store::Storage::Memory,
            _ => windjet_store::Storage::File,
        },
        durability: durability(config, js.durability),
        dedup_window: config.duplicate_window.to_std(),
        first_seq: config.first_seq,
        config: stored.encode(),
        compression: match config.compression {
            Compression::S2 => windjet_store::Compression::Snappy,
            Compression::None => windjet_store::Compression::None,
        },
    }
}

/// A configuration as a single answer shows it: with what the server adds to its metadata.
pub(super) fn shown(mut metadata: Metadata) -> Metadata {
    level::stamp_shown(&mut metadata, PROTOCOL_VERSION);
    metadata
}

/// Answers a direct get; false where the stream does not serve them.
pub(super) fn direct_get(
    context: &Context,
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    stream: &str,
    subject: Option<&str>,
    message: &Message<'_>,
) -> bool {
    let Some(stream) = context.account.stream(stream) else {
        return false;
    };
    if !stream.config().allow_direct {
        return false;
    }
    let Some(reply) = message.reply else {
        return true;
    };
    super::read::serve_direct(context, server, js, &stream, subject, message, reply);
    true
}
