//! Storing on the operator's streams, with retries under one message id.

use bytes::Bytes;
use windjet_client::async_nats::{HeaderMap, Request};
use windjet_protocol::jetstream::{ErrorCode, PubAck};

use super::Shared;
use crate::headers::KEY_ONLY_HEADER;
use crate::nats::api::{self, ApiFailure};
use crate::nats::topology::{PUBLISH_ATTEMPTS, PUBLISH_PAUSE};
use crate::{Ctx, Error, ErrorKind, Headers, MESSAGE_ID_HEADER};

const EXPECTED_STREAM_HEADER: &str = "Nats-Expected-Stream";

/// Where a message goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) subject: &'a str,
    /// The stream that must store it.
    pub(super) stream: &'a str,
    /// Whether the server is told which stream is expected. Never on ingest: republishing copies headers, and the history
    /// would refuse a copy that expects a partition.
    pub(super) tell_stream: bool,
}

/// What became of a message that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    /// Whether a message with its id was there already.
    pub(super) duplicate: bool,
    /// Whether that may be an earlier attempt of the same call.
    #[cfg_attr(not(feature = "embedded"), allow(dead_code, reason = "only a move asks"))]
    pub(super) repeated: bool,
}

impl Shared {
    /// Stores a message. Every attempt carries the same id, so that it is stored once.
    pub(super) async fn store(
        &self,
        ctx: &Ctx,
        to: Destination<'_>,
        mut headers: Headers,
        data: Bytes,
    ) -> Result<Stored, Error> {
        if headers.get(MESSAGE_ID_HEADER).is_empty() {
            headers.set(MESSAGE_ID_HEADER, self.unique());
        }
        if to.tell_stream {
            headers.set(EXPECTED_STREAM_HEADER, to.stream);
        }
        let headers = wire(&headers)?;
        let mut last = ApiFailure::NoAnswer(to.subject.to_owned());
        for attempt in 0..PUBLISH_ATTEMPTS {
            let pause = if attempt == 0 {
                std::time::Duration::ZERO
            } else {
                PUBLISH_PAUSE
            };
            let outcome = tokio::select! {
                biased;
                () = ctx.canceled() => return Err(Error::canceled("publish")),
                () = self.closed.cancelled() => return Err(closed()),
                outcome = async {
                    tokio::time::sleep(pause).await;
                    self.attempt(to.subject, headers.clone(), data.clone()).await
                } => outcome,
            };
            match outcome {
                Ok(reply) => {
                    let duplicate = self.stored(to, &reply)?;
                    let repeated = attempt > 0;
                    return Ok(Stored { duplicate, repeated });
                }
                Err(failure) if failure.unanswered() => last = failure,
                Err(failure) => return Err(Error::wrap(ErrorKind::Other, "publish failed", failure)),
            }
        }
        if matches!(last, ApiFailure::NoResponders(_))
            && self.link.connected()
            && matches!(self.api.stream(to.stream).await, Ok(None))
        {
            self.link.topology_lost();
            let text = format!("publish: stream {} does not exist", to.stream);
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Err(last.into_error(format!("publish to {}", to.stream)))
    }

    /// One attempt. Without a connection it waits for one, so that nothing is sent behind the caller's back later.
    async fn attempt(&self, subject: &str, headers: HeaderMap, data: Bytes) -> Result<Bytes, ApiFailure> {
        let wait = self.topology.publish_timeout;
        let attempt = async {
            self.link.wait_connected().await;
            let request = Request::new().headers(headers).payload(data);
            let reply = self.api.wait(wait).raw(subject.to_owned(), request).await?;
            Ok(reply.payload)
        };
        let out_of_time = |_| Err(ApiFailure::NoAnswer(subject.to_owned()));
        tokio::time::timeout(wait, attempt)
            .await
            .unwrap_or_else(out_of_time)
    }

    /// What the answer to a publish means: whether the message was there already.
    fn stored(&self, to: Destination<'_>, reply: &[u8]) -> Result<bool, Error> {
        let failure = match api::read::<serde_json::Value>(to.subject, reply) {
            Ok(_) => {
                let ack: PubAck<'_> = serde_json::from_slice(reply).map_err(|error| {
                    Error::wrap(
                        ErrorKind::Other,
                        "publish: the answer is no acknowledgement",
                        error,
                    )
                })?;
                if ack.stream == to.stream {
                    return Ok(ack.duplicate);
                }
                self.link.topology_lost();
                let text = format!(
                    "publish: stored by stream {} and not by {}",
                    ack.stream, to.stream
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Err(failure) => failure,
        };
        if failure.is(ErrorCode::ExpectedStreamMismatch) {
            self.link.topology_lost();
            let text = format!("publish: another stream than {} holds {}", to.stream, to.subject);
            return Err(Error::wrap(ErrorKind::Unavailable, text, failure));
        }
        let text = failure.to_string();
        let full = ["maximum bytes exceeded", "maximum messages per subject exceeded"];
        if full.iter().any(|mark| text.contains(mark)) {
            return Err(Error::wrap(
                ErrorKind::QueueFull,
                format!("stream {}: ingest queue is full", to.stream),
                failure,
            ));
        }
        Err(Error::wrap(ErrorKind::Other, "publish failed", failure))
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the broker is closed")
}

/// Headers as the client sends them.
fn wire(headers: &Headers) -> Result<HeaderMap, Error> {
    let mut map = HeaderMap::new();
    for (name, values) in headers.iter() {
        for value in values {
            let bad = || {
                Error::new(
                    ErrorKind::Invalid,
                    format!("header {name:?} or its value cannot be sent"),
                )
            };
            let name: windjet_client::async_nats::HeaderName = name.parse().map_err(|_| bad())?;
            let value: windjet_client::async_nats::HeaderValue = value.parse().map_err(|_| bad())?;
            map.append(name, value);
        }
    }
    Ok(map)
}

/// Whether a message only stands for an idempotency key.
pub(super) fn is_key_only(headers: Option<&HeaderMap>) -> bool {
    headers.is_some_and(|headers| headers.get(KEY_ONLY_HEADER).is_some())
}

/// Headers as they were delivered.
pub(super) fn from_wire(map: Option<&HeaderMap>) -> Headers {
    let mut headers = Headers::new();
    for (name, values) in map.into_iter().flat_map(HeaderMap::iter) {
        for value in values {
            headers.add(name.to_string(), value.as_str());
        }
    }
    headers
}
