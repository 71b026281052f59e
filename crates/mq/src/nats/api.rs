//! Requests to JetStream, and what their answers mean here.
//!
//! Bodies are those of `windjet-protocol`. Nothing here creates, changes or deletes a stream or a durable: the calls are
//! the ones that the service's permissions allow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windjet_client::async_nats::{Client, Request, RequestErrorKind};
use windjet_protocol::jetstream::consumer::requests::{
    ConsumerCreateRequest, ConsumerListRequest, ConsumerNamesResponse, ConsumerUnpinRequest,
};
use windjet_protocol::jetstream::stream::requests::{
    StreamInfoRequest, StreamInfoResponse, StreamListRequest, StreamNamesResponse,
};
use windjet_protocol::jetstream::{ApiError, ConsumerConfig, ConsumerInfo, ErrorCode, StreamInfo};

use crate::{Error, ErrorKind};

/// How long one request may take unless told otherwise.
pub(crate) const REQUEST_WAIT: Duration = Duration::from_secs(5);

/// Why a request brought no answer that can be used.
#[derive(Debug, Clone)]
pub(crate) enum ApiFailure {
    /// Nobody answered in time.
    NoAnswer(String),
    /// Nobody serves the subject now.
    NoResponders(String),
    /// The server says no.
    Refused(ApiError),
    /// What came is no answer, or the request could not be sent.
    Broken(String),
}

impl ApiFailure {
    pub(crate) fn is(&self, code: ErrorCode) -> bool {
        matches!(self, Self::Refused(error) if error.is(code))
    }

    /// Whether nobody answered at all.
    pub(crate) fn unanswered(&self) -> bool {
        matches!(self, Self::NoAnswer(_) | Self::NoResponders(_))
    }

    /// Whether the consumer or its stream does not exist.
    pub(crate) fn is_gone(&self) -> bool {
        self.is(ErrorCode::ConsumerNotFound) || self.is(ErrorCode::StreamNotFound)
    }
}

impl fmt::Display for ApiFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(subject) => write!(f, "no answer from {subject}"),
            Self::NoResponders(subject) => write!(f, "nobody serves {subject}"),
            Self::Refused(error) => write!(f, "{} (error {})", error.description, error.err_code),
            Self::Broken(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ApiFailure {}

impl ApiFailure {
    /// The failure as an error of the boundary: without an answer it is
    /// [`Unavailable`](crate::ErrorKind::Unavailable).
    pub(crate) fn into_error(self, what: impl fmt::Display) -> Error {
        let kind = if self.unanswered() {
            ErrorKind::Unavailable
        } else {
            ErrorKind::Other
        };
        Error::wrap(kind, what.to_string(), self)
    }
}

/// The JetStream API as seen by one connection.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    client: Client,
    prefix: Arc<str>,
    wait: Duration,
}

impl Api {
    pub(crate) fn new(client: Client, domain: Option<&str>) -> Self {
        let prefix = domain.map_or_else(|| "$JS.API.".to_owned(), |domain| format!("$JS.{domain}.API."));
        Self {
            client,
            prefix: prefix.into(),
            wait: REQUEST_WAIT,
        }
    }

    /// The same with another bound on each request.
    pub(crate) fn wait(&self, wait: Duration) -> Self {
        Self { wait, ..self.clone() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What every API subject begins with, up to and including the last dot.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Sends a request to any subject and waits for one reply.
    pub(crate) async fn raw(&self, subject: String, request: Request) -> Result<RawReply, ApiFailure> {
        let request = request.timeout(Some(self.wait));
        match self.client.send_request(subject.clone(), request).await {
            Ok(message) => Ok(message),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::TimedOut => ApiFailure::NoAnswer(subject),
                RequestErrorKind::NoResponders => ApiFailure::NoResponders(subject),
                _ => ApiFailure::Broken(format!("request to {subject}: {error}")),
            }),
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        call: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ApiFailure> {
        let subject = format!("{}{call}", self.prefix);
        let payload = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| ApiFailure::Broken(error.to_string()))?,
            None => Vec::new(),
        };
        let reply = self
            .raw(subject.clone(), Request::new().payload(Bytes::from(payload)))
            .await?;
        read(&subject, &reply.payload)
    }

    /// The streams that hold a subject, or anything that it matches.
    pub(crate) async fn stream_names(&self, subject: &str) -> Result<Vec<String>, ApiFailure> {
        let mut names = Vec::new();
        loop {
            let body = StreamListRequest {
                offset: names.len() as i64,
                subject: subject.to_owned(),
            };
            let page: StreamNamesResponse = self.call("STREAM.NAMES", Some(&body)).await?;
            let come = page.streams.len();
            names.extend(page.streams);
            if come == 0 || names.len() as u64 >= page.page.total {
                return Ok(names);
            }
        }
    }

    pub(crate) async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, ApiFailure> {
        self.stream_page(name, &StreamInfoRequest::default())
            .await
            .map(|page| page.and_then(|page| page.info))
    }

    /// A stream with the counts of the subjects that a filter matches, all pages of them.
    pub(crate) async fn stream_subjects(
        &self,
        name: &str,
        filter: &str,
    ) -> Result<Option<StreamInfo>, ApiFailure> {
        let mut whole: Option<StreamInfo> = None;
        let mut offset = 0;
        loop {
            let body = StreamInfoRequest {
                subjects_filter: filter.to_owned(),
                offset,
                ..StreamInfoRequest::default()
            };
            let Some(page) = self.stream_page(name, &body).await? else {
                return Ok(None);
            };
            let Some(info) = page.info else { return Ok(whole) };
            let (come, total) = (info.state.subjects.len(), page.page.total);
            match &mut whole {
                Some(whole) => whole.state.subjects.extend(info.state.subjects),
                None => whole = Some(info),
            }
            offset += come as i64;
            if come == 0 || offset as u64 >= total {
                return Ok(whole);
            }
        }
    }

    async fn stream_page(
        &self,
        name: &str,
        body: &StreamInfoRequest,
    ) -> Result<Option<StreamInfoResponse>, ApiFailure> {
        match self.call(&format!("STREAM.INFO.{name}"), Some(body)).await {
            Err(failure) if failure.is(ErrorCode::StreamNotFound) => Ok(None),
            other => other.map(Some),
        }
    }

    pub(crate) async fn consumer_names(&self, stream: &str) -> Result<Vec<String>, ApiFailure> {
        let mut names = Vec::new();
        loop {
            let body = ConsumerListRequest {
                offset: names.len() as i64,
            };
            let page: ConsumerNamesResponse = self
                .call(&format!("CONSUMER.NAMES.{stream}"), Some(&body))
                .await?;
            let come = page.consumers.len();
            names.extend(page.consumers);
            if come == 0 || names.len() as u64 >= page.page.total {
                return Ok(names);
            }
        }
    }

    /// A consumer; a missing one is a failure that [`ApiFailure::is_gone`].
    pub(crate) async fn consumer(&self, stream: &str, consumer: &str) -> Result<ConsumerInfo, ApiFailure> {
        self.call(&format!("CONSUMER.INFO.{stream}.{consumer}"), NO_BODY)
            .await
    }

    /// Creates a consumer of our own, under a name of our own, on one subject.
    pub(crate) async fn create_consumer(
        &self,
        stream: &str,
        config: ConsumerConfig,
    ) -> Result<ConsumerInfo, ApiFailure> {
        let name = config.name.clone().unwrap_or_default();
        let filter = config.filter_subject.clone().unwrap_or_default();
        let body = ConsumerCreateRequest {
            stream_name: stream.to_owned(),
            config,
            ..ConsumerCreateRequest::default()
        };
        self.call(&format!("CONSUMER.CREATE.{stream}.{name}.{filter}"), Some(&body))
            .await
    }

    pub(crate) async fn delete_consumer(&self, stream: &str, consumer: &str) -> Result<(), ApiFailure> {
        let _: serde_json::Value = self
            .call(&format!("CONSUMER.DELETE.{stream}.{consumer}"), NO_BODY)
            .await?;
        Ok(())
    }

    pub(crate) async fn unpin(&self, stream: &str, consumer: &str, group: &str) -> Result<(), ApiFailure> {
        let body = ConsumerUnpinRequest {
            group: group.to_owned(),
        };
        let call = format!("CONSUMER.UNPIN.{stream}.{consumer}");
        let _: serde_json::Value = self.call(&call, Some(&body)).await?;
        Ok(())
    }

    /// Has a consumer deliver again everything behind its acknowledgement floor.
    pub(crate) async fn reset(&self, stream: &str, consumer: &str) -> Result<(), ApiFailure> {
        let _: serde_json::Value = self
            .call(&format!("CONSUMER.RESET.{stream}.{consumer}"), NO_BODY)
            .await?;
        Ok(())
    }
}

const NO_BODY: Option<&()> = None;

type RawReply = windjet_client::async_nats::Message;

/// Reads an answer: its error, or its members.
pub(crate) fn read<T: DeserializeOwned>(subject: &str, payload: &[u8]) -> Result<T, ApiFailure> {
    #[derive(serde::Deserialize)]
    struct Refusal {
        error: Option<ApiError>,
    }
    let broken = |error: serde_json::Error| ApiFailure::Broken(format!("answer from {subject}: {error}"));
    let refusal: Refusal = serde_json::from_slice(payload).map_err(broken)?;
    if let Some(error) = refusal.error {
        return Err(ApiFailure::Refused(error));
    }
    serde_json::from_slice(payload).map_err(broken)
}
