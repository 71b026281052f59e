//! Message gets and direct gets, from committed state.
//!
//! What is in memory is answered at once, in the asker's turn; the rest on a thread that may wait for the disk.

use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::stream::get::{
    BatchStart, DirectGet, DirectQuery, MessageGetRequest, MessageGetResponse, MessageSelector,
    StoredMessage, UpTo,
};
use windjet_protocol::jetstream::{ApiError, ErrorCode, Status, Timestamp, status};
use windjet_store::{Found, FoundSeq, Matcher, Message as Stored, ReadError, StreamReader};

use super::JetStream;
use super::service::Context;
use super::stream::Stream;
use super::stream::call::Answer;
use crate::account::Account;
use crate::jetstream::medium::off_thread;
use crate::router::Message;
use crate::server::Shared;

/// Subjects that one multi-last request may match.
const MULTI_MAX: usize = 1024;
/// Bytes of a batch where the request says nothing.
const BATCH_BYTES: u64 = 64 << 20;

/// A message with a sequence. May wait for the disk.
fn fetch(reader: &StreamReader, seq: u64) -> Result<Option<Stored>, ReadError> {
    match reader.read(seq) {
        Found::InMemory(message) => Ok(Some(message)),
        Found::NeedsDisk(ticket) => ticket.read(),
        Found::Absent => Ok(None),
    }
}

/// The first live sequence at or after a time. May wait for the disk.
fn at_time(reader: &StreamReader, time: Timestamp) -> Result<Option<u64>, ReadError> {
    match reader.first_at(time.unix_nanos()) {
        FoundSeq::Seq(seq) => Ok(Some(seq)),
        FoundSeq::None => Ok(None),
        FoundSeq::NeedsDisk(ticket) => ticket.read(),
    }
}

fn matcher(filter: Option<&str>) -> Matcher {
    Matcher::new(filter)
}

/// The sequence that a selector means.
fn select(reader: &StreamReader, selector: &MessageSelector<'_>) -> Result<Option<u64>, ReadError> {
    Ok(match selector {
        MessageSelector::Sequence(seq) => Some(*seq),
        MessageSelector::Last { filter } => reader.last_match(&mut matcher(Some(filter))),
        MessageSelector::Next { filter, from } => reader.next_match(&mut matcher(Some(filter)), *from),
        MessageSelector::FromTime { time, filter } => {
            at_time(reader, *time)?.and_then(|from| reader.next_match(&mut matcher(filter.as_deref()), from))
        }
    })
}

fn get(reader: &StreamReader, request: &MessageGetRequest) -> Result<StoredMessage, ApiError> {
    let io = |error: ReadError| ErrorCode::StreamGeneralFailure.with(error);
    let seq = select(reader, &request.select()?).map_err(io)?;
    let message = match seq {
        Some(seq) => fetch(reader, seq).map_err(io)?,
        None => None,
    };
    let message = message.ok_or_else(|| ErrorCode::MessageNotFound.error())?;
    Ok(StoredMessage {
        subject: String::from_utf8_lossy(&message.subject()).into_owned(),
        seq: message.seq(),
        headers: if request.no_hdr {
            Bytes::new()
        } else {
            message.headers()
        },
        data: message.payload(),
        time: Timestamp::from_unix_nanos(message.time()),
    })
}

/// Answers a message get, on a thread that may wait.
pub(super) fn serve_get(
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    stream: &Arc<Stream>,
    request: MessageGetRequest,
    answer: Answer<MessageGetResponse>,
) {
    let (server, reader, reads) = (server.clone(), stream.reader.clone(), js.reads.clone());
    if let Ok(MessageSelector::Sequence(seq)) = request.select()
        && !matches!(reader.read(seq), Found::NeedsDisk(_))
    {
        let result = get(&reader, &request).map(|message| MessageGetResponse { message });
        answer.send_quietly(&server, result);
        return;
    }
    server.tasks.clone().spawn(async move {
        let _permit = reads.acquire_owned().await;
        let result = off_thread(move || get(&reader, &request)).await;
        let result = result.unwrap_or_else(|_| Err(ErrorCode::StreamGeneralFailure.with("reading failed")));
        answer.send_quietly(&server, result.map(|message| MessageGetResponse { message }));
    });
}

/// Sends the replies of one direct get.
struct Replies<'r> {
    server: &'r Shared,
    account: &'r Account,
    stream: &'r str,
    to: &'r [u8],
}

impl Replies<'_> {
    fn status(&self, status: &Status) {
        self.block(&status.block());
    }

    fn block(&self, headers: &[u8]) {
        self.server
            .publish(self.account, self.to, None, headers, &Bytes::new());
    }

    fn message(&self, message: &Stored, bare: bool, batch: Option<(u64, u64)>) {
        let mut headers = Vec::new();
        if !bare {
            headers = message.headers().to_vec();
            block::append(&mut headers, names::STREAM, self.stream.as_bytes());
            block::append(&mut headers, names::SUBJECT, &message.subject());
            block::append(
                &mut headers,
                names::SEQUENCE,
                message.seq().to_string().as_bytes(),
            );
            let time = Timestamp::from_unix_nanos(message.time()).to_string();
            block::append(&mut headers, names::TIME_STAMP, time.as_bytes());
            if let Some((pending, last)) = batch {
                block::append(&mut headers, names::NUM_PENDING, pending.to_string().as_bytes());
                block::append(&mut headers, names::LAST_SEQUENCE, last.to_string().as_bytes());
            }
        }
        self.server
            .publish(self.account, self.to, None, &headers, &message.payload());
    }

    fn one(&self, reader: &StreamReader, seq: Option<u64>, bare: bool) -> Result<(), ReadError> {
        let message = match seq {
            Some(seq) => fetch(reader, seq)?,
            None => None,
        };
        match message {
            Some(message) => self.message(&message, bare, None),
            None => self.status(&Status::MessageNotFound),
        }
        Ok(())
    }

    fn answer(&self, reader: &StreamReader, get: &DirectGet<'_>) -> Result<(), ReadError> {
        let bare = get.no_headers;
        match &get.query {
            DirectQuery::One(selector) => {
                let seq = select(reader, selector)?;
                self.one(reader, seq, bare)
            }
            DirectQuery::Batch {
                start,
                filter,
                bounds,
            } => {
                let from = match start {
                    BatchStart::Sequence(seq) => Some(*seq),
                    BatchStart::Time(time) => at_time(reader, *time)?,
                };
                let mut matcher = matcher(filter.as_deref());
                let max = bounds.messages.unwrap_or(u64::MAX).max(1);
                let budget = bounds.bytes.unwrap_or(BATCH_BYTES);
                let Some(mut at) = from else {
                    self.status(&Status::MessageNotFound);
                    return Ok(());
                };
                let mut pending = reader.count(&mut matcher, at);
                let (mut sent, mut bytes, mut last) = (0, 0, 0);
                while sent < max && (sent == 0 || bytes < budget) {
                    let Some(seq) = reader.next_match(&mut matcher, at) else {
                        break;
                    };
                    at = seq + 1;
                    let Some(message) = fetch(reader, seq)? else {
                        continue;
                    };
                    // Without headers nobody sees the count of each; nor does nats-server count then.
                    if !bare {
                        pending = pending.saturating_sub(1);
                    }
                    self.message(&message, bare, Some((pending, last)));
                    sent += 1;
                    last = seq;
                    bytes += size(&message);
                }
                if sent == 0 {
                    self.status(&Status::MessageNotFound);
                } else {
                    self.block(&status::end_of_batch(pending, last, None));
                }
                Ok(())
            }
            DirectQuery::MultiLast {
                filters,
                from,
                up_to,
                bounds,
            } => {
                let bound = match up_to {
                    UpTo::Sequence(seq) => *seq,
                    UpTo::Time(time) => match at_time(reader, *time)? {
                        Some(seq) => seq.saturating_sub(1),
                        None => reader.state().last_seq,
                    },
                    UpTo::Now => reader.state().last_seq,
                };
                if bound > reader.state().last_seq {
                    self.status(&Status::NoResults);
                    return Ok(());
                }
                let mut matcher = Matcher::new(filters.iter());
                let Some(seqs) = reader.multi_last(&mut matcher, bound, MULTI_MAX) else {
                    self.status(&Status::TooManyResults);
                    return Ok(());
                };
                if seqs.is_empty() {
                    self.status(&Status::NoResults);
                    return Ok(());
                }
                let seqs: Vec<u64> = seqs.into_iter().filter(|seq| seq >= from).collect();
                let max = bounds.messages.unwrap_or(u64::MAX);
                let budget = bounds.bytes.unwrap_or(BATCH_BYTES);
                let mut pending = seqs.len() as u64;
                let (mut sent, mut bytes, mut last) = (0, 0, 0);
                for seq in seqs {
                    if sent >= max || (sent > 0 && bytes >= budget) {
                        break;
                    }
                    let Some(message) = fetch(reader, seq)? else {
                        continue;
                    };
                    pending = pending.saturating_sub(1);
                    self.message(&message, false, Some((pending, last)));
                    sent += 1;
                    last = seq;
                    bytes += size(&message);
                }
                self.block(&status::end_of_batch(pending, last, Some(bound)));
                Ok(())
            }
        }
    }
}

fn size(message: &Stored) -> u64 {
    (message.subject().len() + message.headers().len() + message.payload().len()) as u64
}

/// Answers a direct get.
pub(super) fn serve_direct(
    context: &Context,
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    stream: &Arc<Stream>,
    subject: Option<&str>,
    message: &Message<'_>,
    reply: &[u8],
) {
    let account = context.account.account.clone();
    let replies = Replies {
        server,
        account: &account,
        stream: &stream.name,
        to: reply,
    };
    if let Some(status) = super::api::direct_refused(message.headers) {
        return replies.status(&status);
    }
    let get = match DirectGet::parse(subject, message.payload) {
        Ok(get) => get,
        Err(status) => return replies.status(&status),
    };
    // The usual case, a key's last value, is in memory and needs no thread.
    let quick = match &get.query {
        DirectQuery::One(selector @ (MessageSelector::Sequence(_) | MessageSelector::Last { .. })) => {
            select(&stream.reader, selector).ok()
        }
        _ => None,
    };
    if let Some(seq) = quick
        && seq.is_none_or(|seq| !matches!(stream.reader.read(seq), Found::NeedsDisk(_)))
        && replies.one(&stream.reader, seq, get.no_headers).is_ok()
    {
        return;
    }
    let (server, stream, reads) = (server.clone(), stream.clone(), js.reads.clone());
    let (subject, payload, reply) = (
        subject.map(str::to_owned),
        message.payload.to_vec(),
        reply.to_vec(),
    );
    server.tasks.clone().spawn(async move {
        let _permit = reads.acquire_owned().await;
        let read = off_thread(move || {
            let replies = Replies {
                server: &server,
                account: &account,
                stream: &stream.name,
                to: &reply,
            };
            if let Ok(get) = DirectGet::parse(subject.as_deref(), &payload)
                && let Err(error) = replies.answer(&stream.reader, &get)
            {
                tracing::error!(stream = %stream.name, "a message cannot be read: {error}");
                replies.block(b"NATS/1.0 500 Read Error\r\n\r\n");
            }
        });
        drop(read.await);
    });
}
