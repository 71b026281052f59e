//! A restore: the request, the chunks, the answer at the end.
//!
//! An error does not end the upload: its sender reads answers to chunks without looking into them, so it is told at the end,
//! as by nats-server, and what comes until then is answered and thrown away. The stream is given up at once. What ends a
//! restore early, without an answer, is a chunk that wants none, silence, and the end of the account's JetStream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use windjet_protocol::jetstream::advisory::{ClientInfo, EventBody, RestoreComplete, RestoreCreate};
use windjet_protocol::jetstream::stream::requests::{RestoreResponse, StreamCreateResponse};
use windjet_protocol::jetstream::{ApiError, ErrorCode, Response, StreamConfig, Timestamp};

use super::build::Builder;
use super::upload::Upload;
use crate::jetstream::JetStream;
use crate::jetstream::account::{JsAccount, event_id};
use crate::jetstream::stream::call::{Answer, Asker};
use crate::router::{Sink, Subscription};
use crate::server::Shared;

/// How long a sender may be silent.
const SILENCE: Duration = Duration::from_secs(5);

/// A restore whose stream is durable: the stream's task answers it.
#[derive(Debug)]
pub(crate) struct Restored {
    /// Where the answer goes.
    pub(crate) reply: Bytes,
    /// Told when the answer was sent; its end is not set.
    pub(crate) complete: RestoreComplete,
}

struct Restore {
    server: Arc<Shared>,
    js: Arc<JetStream>,
    account: Arc<JsAccount>,
    name: String,
    client: ClientInfo,
    upload: Arc<Upload>,
    subscription: Arc<Subscription>,
    closing: CancellationToken,
    _running: TaskTrackerToken,
    _permit: OwnedSemaphorePermit,
}

/// Answers a request whose configuration is valid and whose name is free, and waits for chunks.
pub(in crate::jetstream) fn begin(
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    config: StreamConfig,
    asker: Asker,
) {
    let Ok(permit) = js.backups.clone().try_acquire_owned() else {
        let error = ErrorCode::InsufficientResources.error();
        return Answer::<RestoreResponse>::Wire(asker).send(server, Err(error));
    };
    let account = asker.account.clone();
    let upload = Arc::new(Upload::default());
    let subject = format!("$JS.SNAPSHOT.RESTORE.{}.{}", config.name, event_id());
    let subscription = Arc::new(Subscription::new(
        Bytes::from(subject.clone()),
        None,
        Bytes::from_static(b"0"),
        0,
        &account.account,
        Sink::Service(upload.clone()),
    ));
    account.account.subscribe(subscription.clone());
    let (closing, running) = account.restoring();
    let restore = Restore {
        server: server.clone(),
        js: js.clone(),
        account,
        name: config.name.clone(),
        client: asker.client.as_deref().cloned().unwrap_or_default(),
        upload,
        subscription,
        closing,
        _running: running,
        _permit: permit,
    };
    let created = RestoreCreate {
        stream: restore.name.clone(),
        client: restore.client.clone(),
        domain: restore.account.domain().map(str::to_owned),
    };
    let advisory = created.subject();
    restore.account.advise(server, move || created, &advisory);
    let response = RestoreResponse {
        deliver_subject: subject,
    };
    asker.send(server, Response(Ok(response)).to_vec(), false, true);
    server.tasks.clone().spawn(restore.run(config));
}

impl Restore {
    async fn run(self, config: StreamConfig) {
        let start = self.js.now().wall;
        let builder = Builder::new(&self.server, &self.js, &self.account, config);
        let end = self.receive(builder, start).await;
        self.account.account.unsubscribe(&self.subscription);
        if let Err(why) = end {
            tracing::warn!(stream = %self.name, "a restore ended early: {why}");
        }
    }

    /// Reads chunks to the end. An error is why there is no end.
    async fn receive(&self, builder: Builder, start: i64) -> Result<(), &'static str> {
        let mut builder = Some(builder);
        let mut failed: Option<ApiError> = None;
        let mut bytes = 0;
        let last = loop {
            let chunk = tokio::select! {
                chunk = self.upload.next() => chunk.ok_or("more came than was answered"),
                () = tokio::time::sleep(SILENCE) => Err("nothing came for too long"),
                () = self.server.stop.cancelled() => Err("the server shuts down"),
                () = self.closing.cancelled() => Err("its account has JetStream no longer"),
            };
            let chunk = chunk.and_then(|chunk| {
                let reply = chunk.reply.ok_or("a chunk wanted no answer")?;
                Ok((reply, chunk.payload))
            });
            let (reply, payload) = match chunk {
                Ok(chunk) => chunk,
                Err(why) => {
                    if let Some(builder) = builder {
                        builder.give_up().await;
                    }
                    return Err(why);
                }
            };
            if payload.is_empty() {
                break reply;
            }
            bytes += payload.len() as u64;
            if let Some(mut building) = builder.take() {
                match building.feed(&payload).await {
                    Ok(()) => builder = Some(building),
                    Err(error) => {
                        building.give_up().await;
                        failed = Some(ErrorCode::RestoreFailed.with(error));
                    }
                }
            }
            self.publish(&reply, &Bytes::new());
        };
        let complete = RestoreComplete {
            stream: self.name.clone(),
            start: Timestamp::from_unix_nanos(start),
            end: Timestamp::ZERO,
            bytes,
            client: self.client.clone(),
            domain: self.account.domain().map(str::to_owned),
        };
        let error = match builder {
            Some(builder) => {
                let restored = Restored {
                    reply: last.clone(),
                    complete: complete.clone(),
                };
                match builder.finish(restored).await {
                    Ok(()) => return Ok(()),
                    Err(error) => ErrorCode::RestoreFailed.with(error),
                }
            }
            None => failed.unwrap_or_else(|| ErrorCode::RestoreFailed.with("unknown")),
        };
        tracing::warn!(stream = %self.name, "{error}");
        let response: Response<StreamCreateResponse> = Response(Err(error));
        self.account.count_call(true);
        self.publish(&last, &Bytes::from(response.to_vec()));
        tell(complete, &self.server, &self.js, &self.account);
        Ok(())
    }

    fn publish(&self, to: &[u8], payload: &Bytes) {
        self.server.publish(&self.account.account, to, None, b"", payload);
    }
}

/// Tells that a restore is over, now.
pub(crate) fn tell(mut complete: RestoreComplete, server: &Shared, js: &JetStream, account: &JsAccount) {
    complete.end = Timestamp::from_unix_nanos(js.now().wall);
    let subject = complete.subject();
    account.advise(server, move || complete, &subject);
}
