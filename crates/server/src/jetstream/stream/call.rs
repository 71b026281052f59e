//! Management calls as the stream's task gets them, and where their answers go.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use windjet_protocol::jetstream::advisory::ClientInfo;
use windjet_protocol::jetstream::consumer::requests::{
    ConsumerCreateRequest, ConsumerCreateResponse, ConsumerDeleteResponse, ConsumerInfoResponse,
    ConsumerListResponse, ConsumerNamesResponse, ConsumerPauseResponse, ConsumerResetResponse,
    ConsumerUnpinResponse,
};
use windjet_protocol::jetstream::stream::get::{MessageGetRequest, MessageGetResponse};
use windjet_protocol::jetstream::stream::requests::{
    MessageDeleteRequest, MessageDeleteResponse, PurgeRequest, PurgeResponse, SnapshotRequest,
    SnapshotResponse, StreamConfigRequest, StreamCreateResponse, StreamDeleteResponse, StreamInfoRequest,
    StreamInfoResponse, StreamUpdateResponse,
};
use windjet_protocol::jetstream::{ApiError, ApiResponse, Response, Timestamp};

use super::source::claim::Claim;
use crate::jetstream::account::JsAccount;
use crate::jetstream::backup::Restored;
use crate::jetstream::consumer::{Explanation, Unsettled};
use crate::server::Shared;

/// Where the answer to a call goes.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// Over the wire.
    Wire(Asker),
    /// To code in this process.
    Local(oneshot::Sender<Result<T, ApiError>>),
}

/// Who asked over the wire.
#[derive(Debug)]
pub(crate) struct Asker {
    /// The account.
    pub(crate) account: Arc<JsAccount>,
    /// Where the answer goes; empty for nowhere.
    pub(crate) reply: Bytes,
    /// Subject of the request, for the audit.
    pub(crate) subject: Bytes,
    /// Body of the request, for the audit.
    pub(crate) body: Bytes,
    /// The client, for the audit; only where somebody listens.
    pub(crate) client: Option<Box<ClientInfo>>,
}

impl<T: ApiResponse> Answer<T> {
    /// Sends the answer and counts it.
    pub(crate) fn send(self, server: &Shared, result: Result<T, ApiError>) {
        match self {
            Self::Wire(asker) => {
                let failed = result.is_err();
                asker.send(server, Response(result).to_vec(), failed, true);
            }
            // Whoever asked may have gone; the call is done all the same.
            Self::Local(sender) => drop(sender.send(result)),
        }
    }

    /// The same for a call whose successes are neither counted nor audited.
    pub(crate) fn send_quietly(self, server: &Shared, result: Result<T, ApiError>) {
        match self {
            Self::Wire(asker) => {
                let failed = result.is_err();
                asker.send(server, Response(result).to_vec(), failed, failed);
            }
            Self::Local(sender) => drop(sender.send(result)),
        }
    }
}

/// A consumer's creation or update, with the names in the subject.
#[derive(Debug)]
pub(crate) struct CreateConsumer {
    /// The body.
    pub(crate) request: ConsumerCreateRequest,
    /// The name in the subject.
    pub(crate) name: Option<String>,
}

/// One management call on a stream.
#[derive(Debug)]
pub(crate) enum Call {
    /// The creation of the stream, answered when it is durable.
    Created(Answer<StreamCreateResponse>),
    /// What it is and holds.
    Info(StreamInfoRequest, Answer<StreamInfoResponse>),
    /// New configuration.
    Update(Box<StreamConfigRequest>, Answer<StreamUpdateResponse>),
    /// The end.
    Delete(Answer<StreamDeleteResponse>),
    /// Removing messages.
    Purge(PurgeRequest, Answer<PurgeResponse>),
    /// One message.
    MessageGet(Box<MessageGetRequest>, Answer<MessageGetResponse>),
    /// Removing one message.
    MessageDelete(MessageDeleteRequest, Answer<MessageDeleteResponse>),
    /// A snapshot.
    Snapshot(Box<SnapshotRequest>, Asker),
    /// The stream comes from a restore, which is to be answered.
    Restored(Box<Restored>),
    /// A consumer's creation or update.
    ConsumerCreate(Box<CreateConsumer>, Answer<ConsumerCreateResponse>),
    /// A consumer.
    ConsumerInfo(String, Answer<ConsumerInfoResponse>),
    /// Consumers from an offset.
    ConsumerList(i64, Answer<ConsumerListResponse>),
    /// Names of consumers from an offset.
    ConsumerNames(i64, Answer<ConsumerNamesResponse>),
    /// A consumer's end.
    ConsumerDelete(String, Answer<ConsumerDeleteResponse>),
    /// Pause or resume.
    ConsumerPause(String, Timestamp, Answer<ConsumerPauseResponse>),
    /// Unpin the client of a group.
    ConsumerUnpin(String, String, Answer<ConsumerUnpinResponse>),
    /// Start again.
    ConsumerReset(String, u64, Answer<ConsumerResetResponse>),
    /// Why a consumer does not deliver.
    ConsumerExplain(String, oneshot::Sender<Option<Explanation>>),
    /// What a consumer has not settled.
    ConsumerUnsettled(String, oneshot::Sender<Option<Unsettled>>),
    /// Subscriptions changed in the account: push consumers look again.
    Interest,
    /// A client is gone.
    Gone(u64),
    /// A stream that copies from this one wants messages held back.
    Claim(Arc<Claim>),
    /// A stream that copies from this one has stored everything up to a sequence.
    Taken {
        /// The consumer that holds back for it.
        consumer: String,
        /// The sequence.
        seq: u64,
    },
    /// A stream does not copy from this one any more; the consumer that holds back for it goes.
    Unclaim(String),
    /// A defect.
    #[cfg(test)]
    Panic,
    /// The server goes down: tell those who wait, store what is open, end.
    Shutdown(oneshot::Sender<()>),
}

impl Call {
    /// Whether somebody asked for it, so that there may be any number; the rest is what the server tells the stream.
    pub(crate) fn is_asked(&self) -> bool {
        !matches!(
            self,
            Self::Interest
                | Self::Restored(_)
                | Self::Gone(_)
                | Self::Claim(_)
                | Self::Taken { .. }
                | Self::Unclaim(_)
                | Self::Shutdown(_)
        )
    }

    /// Answers a call that nobody will look at.
    pub(crate) fn refuse(self, server: &Shared, error: &ApiError) {
        let gone = || error.clone();
        match self {
            Self::Created(answer) => answer.send(server, Err(gone())),
            Self::Info(_, answer) => answer.send(server, Err(gone())),
            Self::Update(_, answer) => answer.send(server, Err(gone())),
            Self::Delete(answer) => answer.send(server, Err(gone())),
            Self::Purge(_, answer) => answer.send(server, Err(gone())),
            Self::MessageGet(_, answer) => answer.send(server, Err(gone())),
            Self::MessageDelete(_, answer) => answer.send(server, Err(gone())),
            Self::Snapshot(_, asker) => Answer::<SnapshotResponse>::Wire(asker).send(server, Err(gone())),
            Self::ConsumerCreate(_, answer) => answer.send(server, Err(gone())),
            Self::ConsumerInfo(_, answer) => answer.send(server, Err(gone())),
            Self::ConsumerList(_, answer) => answer.send(server, Err(gone())),
            Self::ConsumerNames(_, answer) => answer.send(server, Err(gone())),
            Self::ConsumerDelete(_, answer) => answer.send(server, Err(gone())),
            Self::ConsumerPause(_, _, answer) => answer.send(server, Err(gone())),
            Self::ConsumerUnpin(_, _, answer) => answer.send(server, Err(gone())),
            Self::ConsumerReset(_, _, answer) => answer.send(server, Err(gone())),
            Self::ConsumerExplain(_, answer) => drop(answer.send(None)),
            Self::ConsumerUnsettled(_, answer) => drop(answer.send(None)),
            // Whoever restored it hears nothing, as from a server that died.
            Self::Restored(_) => {}
            Self::Interest | Self::Gone(_) | Self::Claim(_) | Self::Taken { .. } | Self::Unclaim(_) => {}
            #[cfg(test)]
            Self::Panic => {}
            Self::Shutdown(done) => drop(done.send(())),
        }
    }
}
