//! The server in the process, as the broker uses it: streams, durables, publishes and reads by name.
//!
//! Both brokers of the module stand on it. It knows nothing of tenants. Every method answers in the boundary's errors;
//! what is missing is an `Option`, so that nobody has to look into an error to find that out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use windjet_protocol::HeaderMap;
use windjet_server::jetstream::{
    ApiError, ConsumerInfo, ErrorCode, JetStreamContext, PublishError, PurgeRequest, StreamConfig,
    StreamInfo, Timestamp,
};
use windjet_server::{Client, Server};

use super::gate::{Outlasting, Pass};
use super::names::Wanted;
use crate::{Ctx, Error, ErrorKind, Headers};

/// How long a close waits for the server's tasks.
const SHUTDOWN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Engine {
    server: Server,
    js: JetStreamContext,
    /// For requests that have no typed call.
    client: Client,
    /// Where an engine that is dropped is shut down.
    runtime: Handle,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

/// What became of a publish.
#[derive(Debug)]
pub(super) enum Published {
    /// It is stored durably, now or by an earlier publish with its key.
    Stored,
    /// The stream is at its limit of bytes.
    Full,
    /// There is no such stream, or it does not take the subject.
    NoStream,
}

/// An error of the engine.
pub(super) fn failed(what: impl Display, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::wrap(ErrorKind::Other, what.to_string(), cause)
}

pub(super) fn is_missing(error: &ApiError) -> bool {
    error.is(ErrorCode::StreamNotFound) || error.is(ErrorCode::ConsumerNotFound)
}

fn found<T>(what: impl Display, answer: Result<T, ApiError>) -> Result<Option<T>, Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(failed(what, error)),
    }
}

/// The instant on the wire.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    let nanos = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    };
    Timestamp::from_unix_nanos(nanos)
}

/// Headers in wire form; empty for none.
pub(super) fn block(headers: &Headers) -> Result<Bytes, Error> {
    if headers.is_empty() {
        return Ok(Bytes::new());
    }
    let mut map = HeaderMap::new();
    for (name, values) in headers.iter() {
        for value in values {
            map.append(name, value.clone().into_bytes()).map_err(|error| {
                Error::wrap(
                    ErrorKind::Invalid,
                    format!("header {name:?} cannot be sent"),
                    error,
                )
            })?;
        }
    }
    Ok(map.to_bytes())
}

/// Headers out of their wire form, as far as they are text.
pub(super) fn headers(block: &Bytes) -> Headers {
    let mut headers = Headers::new();
    if let Ok(map) = HeaderMap::parse(block.clone()) {
        for (name, value) in map.iter() {
            headers.add(String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        }
    }
    headers
}

impl Engine {
    /// Starts a server over a folder, which is made first.
    pub(super) async fn start(folder: &Path) -> Result<Self, Error> {
        let shown = folder.display().to_string();
        let made = folder.to_owned();
        tokio::task::spawn_blocking(move || make(&made))
            .await
            .map_err(|error| failed(format!("mq store {shown}"), error))?
            .map_err(|error| failed(format!("mq store {shown}: the folder cannot be made"), error))?;
        let server = Server::builder()
            .jetstream(folder)
            .configure(|options| {
                if let Some(js) = &mut options.jetstream {
                    // Budgets are per tenant, and checked neither against the disk nor against each other.
                    js.max_file_store = Some(i64::MAX as u64 / 2);
                    // Every acknowledgement is synced first.
                    js.sync_interval = None;
                }
            })
            .start()
            .await
            .map_err(|error| failed(format!("mq store {shown}: the broker did not start"), error))?;
        let js = server
            .jetstream()
            .ok_or_else(|| Error::new(ErrorKind::Other, format!("mq store {shown}: no JetStream")))?;
        let client = server.client();
        Ok(Self {
            server,
            js,
            client,
            runtime: Handle::current(),
        })
    }

    /// Begins to shut down, for handles that are dropped: the folder is given back soon after, without anybody waiting.
    pub(super) fn end(&self) {
        let server = self.server.clone();
        // Nothing runs where the runtime has ended; then the process is about to end too, or has ended the server's tasks.
        self.runtime.spawn(async move {
            if !server.shutdown(SHUTDOWN).await.complete {
                tracing::warn!(
                    component = "mq",
                    "the broker's tasks did not end within {SHUTDOWN:?}"
                );
            }
        });
    }

    /// Ends the server; it is down when this returns. May be called again.
    pub(super) async fn shutdown(&self) -> Result<(), Error> {
        let report = self.server.shutdown(SHUTDOWN).await;
        if report.complete {
            Ok(())
        } else {
            let text = format!("close: the broker's tasks did not end within {SHUTDOWN:?}");
            Err(Error::new(ErrorKind::Other, text))
        }
    }

    /// A handle to publish and consume with. One for each tenant: what a handle remembers of a publisher is searched in
    /// order.
    pub(super) fn handle(&self) -> JetStreamContext {
        self.server.jetstream().unwrap_or_else(|| self.js.clone())
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn connections(&self) -> u64 {
        self.server.connections() as u64
    }

    pub(super) fn in_msgs(&self) -> u64 {
        self.server.counts().in_msgs
    }

    pub(super) fn streams(&self) -> Vec<String> {
        self.js.stream_names()
    }

    pub(super) async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, Error> {
        found(format!("get stream {name}"), self.js.stream_info(name).await)
    }

    /// Creates a stream, or gives the one there is this configuration; whether it is new.
    pub(super) async fn put_stream(&self, config: StreamConfig) -> Result<bool, Error> {
        let what = format!("open stream {}", config.name);
        let new = self.stream(&config.name).await?.is_none();
        let put = if new {
            self.js.create_stream(config).await
        } else {
            self.js.update_stream(config).await
        };
        put.map(|_| new).map_err(|error| failed(what, error))
    }

    /// Changes one setting of a stream. `None` when it is gone.
    pub(super) async fn set_max_bytes(&self, name: &str, bytes: u64) -> Result<Option<()>, Error> {
        let Some(info) = self.stream(name).await? else {
            return Ok(None);
        };
        let mut config = info.config;
        config.max_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if config.discard == windjet_server::jetstream::DiscardPolicy::New {
            let window = i64::try_from(crate::EMBEDDED_DUPLICATE_WINDOW.as_nanos()).unwrap_or(i64::MAX);
            config.duplicate_window = windjet_server::jetstream::Nanos(window);
        }
        found(
            format!("resize stream {name}"),
            self.js.update_stream(config).await,
        )
        .map(|info| info.map(drop))
    }

    /// Ends a stream; fine when there is none.
    pub(super) async fn delete_stream(&self, name: &str) -> Result<(), Error> {
        found(format!("delete stream {name}"), self.js.delete_stream(name).await).map(drop)
    }

    /// Removes what is below a sequence; how much went.
    pub(super) async fn purge_below(&self, name: &str, seq: u64) -> Result<u64, Error> {
        let purge = PurgeRequest {
            seq,
            ..PurgeRequest::default()
        };
        let purged = self.js.purge_stream(name, purge).await;
        purged.map_err(|error| failed(format!("purge stream {name}"), error))
    }

    pub(super) async fn durable(&self, stream: &str, name: &str) -> Result<Option<ConsumerInfo>, Error> {
        found(
            format!("get consumer {name}"),
            self.js.consumer_info(stream, name).await,
        )
    }

    /// Ends a durable; fine when there is none.
    pub(super) async fn delete_durable(&self, stream: &str, name: &str) -> Result<(), Error> {
        found(
            format!("delete consumer {name}"),
            self.js.delete_consumer(stream, name).await,
        )
        .map(drop)
    }

    /// Makes a durable what it must be. One that is so already is only looked at.
    pub(super) async fn put_durable(&self, stream: &str, wanted: &Wanted) -> Result<(), Error> {
        let there = self.durable(stream, &wanted.durable).await?;
        let Some(config) = wanted.change(there.as_ref().map(|info| &info.config)) else {
            return Ok(());
        };
        let made = self.js.create_consumer(stream, config).await;
        made.map(drop)
            .map_err(|error| failed(format!("create consumer {}", wanted.durable), error))
    }

    /// Messages by subject, and all of them. `None` when there is no such stream.
    pub(super) async fn subjects(&self, stream: &str) -> Result<Option<(BTreeMap<String, u64>, u64)>, Error> {
        let (mut counts, mut total) = (BTreeMap::new(), 0);
        loop {
            let ask = json!({ "subjects_filter": ">", "offset": counts.len() });
            let Some(answer) = self.request(&format!("STREAM.INFO.{stream}"), &ask).await? else {
                return Ok(None);
            };
            let state = &answer["state"];
            total = state["messages"].as_u64().unwrap_or(total);
            let before = counts.len();
            for (subject, count) in state["subjects"].as_object().into_iter().flatten() {
                counts.insert(subject.clone(), count.as_u64().unwrap_or_default());
            }
            let distinct = state["num_subjects"].as_u64().unwrap_or_default();
            if counts.len() == before || counts.len() as u64 >= distinct {
                return Ok(Some((counts, total)));
            }
        }
    }

    /// When a message was stored; `None` when it is not there.
    pub(super) async fn stored_at(&self, stream: &str, seq: u64) -> Result<Option<Timestamp>, Error> {
        let ask = json!({ "seq": seq });
        let Some(answer) = self.request(&format!("STREAM.MSG.GET.{stream}"), &ask).await? else {
            return Ok(None);
        };
        let time = serde_json::from_value(answer["message"]["time"].clone());
        time.map(Some)
            .map_err(|error| failed(format!("read stream {stream}"), error))
    }

    /// An answer of the server's API; `None` when what it is about is missing.
    async fn request(&self, call: &str, ask: &Value) -> Result<Option<Value>, Error> {
        let answer = self
            .client
            .request(format!("$JS.API.{call}"), ask.to_string())
            .await;
        let answer = answer.map_err(|error| failed(format!("ask {call}"), error))?;
        let answer: Value =
            serde_json::from_slice(&answer.payload).map_err(|error| failed(format!("ask {call}"), error))?;
        let Some(error) = answer.get("error") else {
            return Ok(Some(answer));
        };
        let code = error["err_code"].as_u64().unwrap_or_default();
        let missing = [ErrorCode::StreamNotFound, ErrorCode::MessageNotFound];
        if missing
            .iter()
            .any(|kind| u64::from(kind.error().err_code) == code)
        {
            return Ok(None);
        }
        let text = error["description"].as_str().unwrap_or("no reason given");
        Err(Error::new(ErrorKind::Other, format!("ask {call}: {text}")))
    }
}

/// Between two tries of what the server had no room for.
pub(super) const AGAIN: Duration = Duration::from_millis(10);

/// Stores a message; it is durable when this gives [`Published::Stored`]. The pass lasts until its outcome is known.
pub(super) async fn publish(
    (js, pass): (&JetStreamContext, Option<&Pass>),
    ctx: &Ctx,
    (stream, subject): (&str, &str),
    headers: &[u8],
    data: Bytes,
) -> Result<Published, Error> {
    let store = async {
        loop {
            match js.publish_with(stream, subject, headers, data.clone()) {
                Ok(sent) => return Outlasting::new(sent, pass).await,
                // Nothing was taken: the publish waits for room, and with it whoever publishes.
                Err(PublishError::Full) => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(error),
            }
        }
    };
    let outcome = tokio::select! {
        outcome = store => outcome,
        () = ctx.canceled() => return Err(Error::canceled("publish")),
    };
    match outcome {
        Ok(_) => Ok(Published::Stored),
        Err(PublishError::NoStream(_) | PublishError::WrongSubject { .. }) => Ok(Published::NoStream),
        Err(PublishError::Refused(error))
            if error.is(ErrorCode::StoreFailed) && error.description.contains("maximum bytes") =>
        {
            Ok(Published::Full)
        }
        Err(error) if error.outcome_unknown() => Err(Error::wrap(
            ErrorKind::Unavailable,
            "publish: the store ended before the event was confirmed",
            error,
        )),
        Err(error) => Err(failed("publish", error)),
    }
}

#[cfg(unix)]
fn make(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    // A file of that name is no folder, and says so here.
    std::fs::read_dir(folder).map(drop)
}

#[cfg(not(unix))]
fn make(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::read_dir(folder).map(drop)
}
