//! Requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{HEADER_SERVICE_ERROR, HEADER_SERVICE_ERROR_CODE};
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::message::headers::first;
use crate::message::{Message, MessageType, Path, codec, compression};
use crate::names::validate_publish_subject;
use crate::observe::{Carried, carried, failed};

/// Sends requests and waits for replies.
#[derive(Debug, Clone)]
pub struct Requester {
    inner: Arc<Inner>,
}

impl Requester {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Sends a request and waits for its reply, as long as configured.
    ///
    /// # Errors
    /// [`ErrorKind::NoResponders`] when nobody serves the subject, [`ErrorKind::TimedOut`] when no reply came in time,
    /// [`ErrorKind::Handler`] when the reply is an error of the service.
    ///
    /// # Cancel safety
    /// Dropped early, the request may have been served; a late reply is thrown away.
    pub async fn request(&self, subject: &str, message: Message) -> Result<async_nats::Message> {
        self.request_within(subject, message, self.inner.config.requester.timeout)
            .await
    }

    /// As [`Requester::request`], with a time limit of its own.
    ///
    /// # Errors
    /// As [`Requester::request`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_within(
        &self,
        subject: &str,
        message: Message,
        limit: Duration,
    ) -> Result<async_nats::Message> {
        let what = || format!("requesting {subject}");
        let deadline = Instant::now() + limit;
        if self.inner.is_closed() {
            return Err(Error::new(ErrorKind::Closed, what()));
        }
        if !self.inner.is_connected() {
            return Err(Error::new(ErrorKind::NotConnected, what()));
        }
        if !self.inner.config.requester.skip_subject_validation {
            validate_publish_subject(subject)?;
        }
        let (meters, spans) = &self.inner.observed.requester;
        let span = spans.request(subject);
        let measured = meters
            .as_ref()
            .map(|meters| (meters.requesting(subject), Instant::now()));
        let mut bytes = 0;
        let asking = self.ask(subject, &message, deadline, carried(&span), &mut bytes);
        let result = asking.instrument(span.clone()).await;
        if let Err(error) = &result {
            failed(&span, error);
        }
        if let Some((meters, begun)) = measured {
            meters.note(&result, bytes, Some(begun.elapsed()));
        }
        result
    }

    /// Sends the request and reads the reply; `bytes` becomes what was sent.
    async fn ask(
        &self,
        subject: &str,
        message: &Message,
        deadline: Instant,
        carried: Carried,
        bytes: &mut usize,
    ) -> Result<async_nats::Message> {
        let what = || format!("requesting {subject}");
        let config = &self.inner.config.requester;
        let (payload, headers) = message.wire(config.compression, Path::Request, carried)?;
        *bytes = payload.len();
        let (reply, mut ticket) = self.inner.replies.ticket();
        let nats = &self.inner.nats;
        let to = async_nats::Subject::from(subject);
        let sent = match headers {
            None => nats.publish_with_reply(to, reply, payload).await,
            Some(headers) => {
                nats.publish_with_reply_and_headers(to, reply, headers, payload)
                    .await
            }
        };
        sent.map_err(|error| {
            let kind = match error.kind() {
                async_nats::PublishErrorKind::MaxPayloadExceeded => ErrorKind::PayloadTooLarge,
                async_nats::PublishErrorKind::InvalidSubject => ErrorKind::InvalidSubject,
                async_nats::PublishErrorKind::Send => ErrorKind::Closed,
            };
            Error::new(kind, what()).because(error)
        })?;
        let mut answer = match ticket.answer(deadline).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(Error::new(ErrorKind::TimedOut, what())),
            Err(error) => return Err(Error::new(ErrorKind::Closed, what()).because(error)),
        };
        if answer.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
            return Err(Error::new(ErrorKind::NoResponders, what()));
        }
        if let Some(headers) = &answer.headers
            && let Some(text) = first(headers, HEADER_SERVICE_ERROR)
        {
            let code = first(headers, HEADER_SERVICE_ERROR_CODE).unwrap_or_default();
            return Err(Error::new(ErrorKind::Handler, what()).because(format!("{code} {text}")));
        }
        if config.decompression {
            compression::expand(&mut answer)?;
        }
        Ok(answer)
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// As [`Requester::request`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_bytes(
        &self,
        subject: &str,
        payload: impl Into<Bytes>,
    ) -> Result<async_nats::Message> {
        self.request(subject, Message::raw(payload)).await
    }

    /// Sends a value as JSON.
    ///
    /// # Errors
    /// As [`Requester::request`], and [`ErrorKind::Encode`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_json<T: Serialize + ?Sized>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<async_nats::Message> {
        self.request(subject, Message::json(value)?).await
    }

    /// Sends a value as JSON and decodes the reply as JSON, whatever its headers say.
    ///
    /// # Errors
    /// As [`Requester::request_json`], and [`ErrorKind::Decode`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_json_into<T: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<R> {
        self.request_into_json(subject, Message::json(value)?).await
    }

    /// The message is made already, and the value need not live on.
    pub(crate) async fn request_into_json<R: DeserializeOwned>(
        &self,
        subject: &str,
        message: Message,
    ) -> Result<R> {
        let reply = self.request(subject, message).await?;
        codec::decode(&reply.payload, MessageType::Json).map_err(|error| explained(error, &reply))
    }

    /// Sends a value as MessagePack.
    ///
    /// # Errors
    /// As [`Requester::request`], and [`ErrorKind::Encode`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_msgpack<T: Serialize + ?Sized>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<async_nats::Message> {
        self.request(subject, Message::msgpack(value)?).await
    }

    /// Sends a value as MessagePack and decodes the reply as MessagePack, whatever its headers say.
    ///
    /// # Errors
    /// As [`Requester::request_msgpack`], and [`ErrorKind::Decode`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_msgpack_into<T: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<R> {
        let reply = self.request_msgpack(subject, value).await?;
        codec::decode(&reply.payload, MessageType::MessagePack).map_err(|error| explained(error, &reply))
    }

    /// Sends a Protobuf message.
    ///
    /// # Errors
    /// As [`Requester::request`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_proto<T: prost::Message>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<async_nats::Message> {
        self.request(subject, Message::proto(value)).await
    }

    /// Sends a Protobuf message and decodes the reply as one.
    ///
    /// # Errors
    /// As [`Requester::request`], and [`ErrorKind::Decode`].
    ///
    /// # Cancel safety
    /// As [`Requester::request`].
    pub async fn request_proto_into<T: prost::Message, R: prost::Message + Default>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<R> {
        let reply = self.request_proto(subject, value).await?;
        codec::decode_proto(&reply.payload).map_err(|error| explained(error, &reply))
    }
}

/// A reply that cannot be decoded may be a stream's acknowledgement: the request was stored and nobody served it.
fn explained(error: Error, reply: &async_nats::Message) -> Error {
    let ack: Option<serde_json::Value> = serde_json::from_slice(&reply.payload).ok();
    let is_ack = ack.is_some_and(|value| {
        value.get("stream").is_some_and(serde_json::Value::is_string) && value.get("seq").is_some()
    });
    if is_ack {
        let text = "the reply is the acknowledgement of a stream: a stream stores this subject, request on one that none does";
        return Error::new(error.kind(), text).because(error);
    }
    error
}
