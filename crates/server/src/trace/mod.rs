//! Message traces: what became of one message, told to whoever its publisher names. Section 4.3 of the core protocol.
//!
//! A message whose headers ask for it ([`headers`]) carries a [`Trace`] through its publisher's turn. The publish path,
//! the router and the imports note in it what they do ([`event`]), and at the end it is published as one JSON document in
//! the publisher's account. A message that is only traced goes through every check and is handed to nobody.
//!
//! Guarantees: a message without trace headers pays one look at its header block, and one without headers nothing; a
//! publisher learns of another account only what that account's `allow_trace` permits; the destination is subject to the
//! publisher's permissions. The document grows with the number of receivers, as the fan-out itself does.
//!
//! What is not here: hops between servers, of which there are none.

mod event;
mod headers;

use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::header::block;
use windjet_protocol::subject;
use windjet_protocol::wire::errors;

use self::event::{Document, Event};
use self::headers::Asked;
use crate::account::Account;
use crate::connection::{Connection, Published, Publisher, is_reserved_subject};
use crate::router::{Message, Subscription, Turn, Undelivered};
use crate::system::Encoding;

/// Header that names where the trace goes.
const DESTINATION: &str = "Nats-Trace-Dest";
/// Its value on a message that must not be traced, or not any further. Not a subject, on purpose.
const DISABLED: &str = "trace disabled";
/// Header that asks for the trace without the delivery.
const ONLY: &str = "Nats-Trace-Only";
/// Header of servers before this form of traces; a message that has it is not traced.
const ORIGIN_ACCOUNT: &str = "Nats-Trace-Origin-Account";
/// Header by which the one who asks says that the document may be compressed.
const ACCEPT_ENCODING: &str = "Accept-Encoding";

/// The trace of the message that is being published.
#[derive(Debug)]
pub(crate) struct Trace {
    account: Arc<Account>,
    destination: Bytes,
    encoding: Encoding,
    only: bool,
    document: Document,
    /// The stream import that the message goes through just now.
    through: Option<StreamCrossing>,
}

/// A message on its way through a stream import.
#[derive(Debug, Clone)]
pub(crate) struct StreamCrossing {
    /// The importing account.
    pub(crate) account: Arc<str>,
    /// The subject there.
    pub(crate) to: String,
    /// Whether the trace may follow.
    pub(crate) allow_trace: bool,
}

/// What the headers of a message come to.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is published like any other.
    Ordinary,
    /// It is published with these headers, which say that it is not to be traced.
    Disabled(Vec<u8>),
    /// It is not published: it was to be traced only, and cannot be.
    Withheld,
    /// It is not published: the publisher may not publish to the destination.
    Denied(Bytes),
    /// It is published and traced.
    Traced(Box<Trace>),
}

/// What a service import makes of a traced request.
#[derive(Debug)]
pub(crate) enum ServiceCrossing {
    /// The request is not traced.
    Untraced,
    /// The trace goes on in the exporting account.
    Follows,
    /// The request goes on without its trace.
    Suspended(Box<Trace>),
    /// The request was to be traced only, and ends here.
    Ends,
}

/// Whether a message asks to be traced, and how.
pub(crate) fn asked(message: &Message<'_>) -> Option<Asked> {
    headers::asked(message.headers)
}

/// Judges what a message asks for.
pub(crate) fn begin(
    asked: Asked,
    connection: &Connection,
    publisher: &Publisher,
    message: &Message<'_>,
) -> Begun {
    let account = &publisher.account;
    let only = asked.only();
    let unless_only = |otherwise: Begun| if only { Begun::Withheld } else { otherwise };
    let destination = if asked.external {
        let Some((destination, percent)) = account.msg_trace() else {
            return Begun::Ordinary;
        };
        if percent < 100 && rand::random_range(0..100) > percent {
            return Begun::Disabled(disabled(message.headers));
        }
        destination
    } else {
        match asked.first(DESTINATION) {
            Some(destination) => destination.to_owned(),
            None => return unless_only(Begun::Ordinary),
        }
    };
    if let Some(origin) = asked.first(ORIGIN_ACCOUNT) {
        tracing::error!(
            client = %connection.log_name(),
            "Message tracing disabled because of header {ORIGIN_ACCOUNT:?} with value={origin:?}"
        );
        return unless_only(Begun::Disabled(disabled(message.headers)));
    }
    if !subject::is_literal(destination.as_bytes()) {
        tracing::error!(
            client = %connection.log_name(),
            "Destination {destination:?} is not valid, won't be able to trace events"
        );
        return unless_only(Begun::Ordinary);
    }
    let denied = is_reserved_subject(destination.as_bytes(), publisher.system)
        || publisher
            .permissions
            .as_ref()
            .is_some_and(|permissions| !permissions.can_publish(destination.as_bytes()));
    if denied {
        return Begun::Denied(Bytes::from(destination));
    }
    let ingress = Event::ingress(connection, account, message.subject);
    Begun::Traced(Box::new(Trace {
        account: account.clone(),
        destination: Bytes::from(destination),
        encoding: Encoding::of(asked.first(ACCEPT_ENCODING).unwrap_or_default()),
        only,
        document: Document::new(asked.fields, message.size(), ingress),
        through: None,
    }))
}

/// Publishes the trace that the turn carries, if any.
pub(crate) fn finish(turn: &mut Turn<'_>) {
    if let Some(trace) = turn.trace.take() {
        trace.publish(turn);
    }
}

/// Tells the destination of a message that was refused for its size, as far as its headers have arrived. `rest` begins
/// with the command line.
pub(crate) fn too_large(rest: &[u8], connection: &Connection, publisher: &Publisher, turn: &Turn<'_>) {
    let Some(refused) = headers::refused(rest) else {
        return;
    };
    let message = Message::new(refused.subject, None, refused.headers, &[]);
    let Some(asked) = asked(&message) else { return };
    if let Begun::Traced(mut trace) = begin(asked, connection, publisher, &message) {
        trace.document.resize(refused.size);
        trace.refused("maximum payload exceeded");
        trace.publish(turn);
    }
}

/// A header block that says that the message is not to be traced.
fn disabled(headers: &[u8]) -> Vec<u8> {
    let mut headers = headers.to_vec();
    block::set(&mut headers, DESTINATION, DISABLED.as_bytes());
    headers
}

impl Trace {
    /// Whether the message is handed to nobody.
    pub(crate) fn only(&self) -> bool {
        self.only
    }

    /// The message was mapped to another subject.
    pub(crate) fn mapped(&mut self, to: &[u8]) {
        self.document.push(Event::mapped(to));
    }

    /// Notes what became of the message as a whole.
    pub(crate) fn published(&mut self, published: &Published, message: &Message<'_>) {
        match published {
            Published::Denied => self.refused(&errors::publish_denied(message.subject)),
            Published::DeniedAs(subject) => self.refused(&errors::publish_denied(subject)),
            Published::ReplyDenied => {
                self.refused(&errors::publish_reply_denied(message.reply.unwrap_or_default()));
            }
            Published::Delivered(_) | Published::UntakenAs(_) | Published::Withheld => {}
        }
    }

    fn refused(&mut self, why: &str) {
        self.document.refused(why);
    }

    /// A subscription of a client is about to get the message. False when its account keeps the rest to itself.
    pub(crate) fn meets(&mut self, _subscription: &Subscription) -> bool {
        let Some(through) = &self.through else { return true };
        let follows = through.allow_trace;
        self.document
            .push(Event::stream_export(&through.account, &through.to));
        follows
    }

    /// A subscription of a client got the message, or did not.
    pub(crate) fn reached(&mut self, subscription: &Subscription, outcome: Result<(), Undelivered>) {
        let event = Event::egress(subscription, &self.account, outcome.err());
        self.document.push(event);
    }

    fn publish(self, turn: &Turn<'_>) {
        let json = self.document.json(turn.server);
        // Compressing into memory cannot fail; if it did, the plain text would still be right.
        let (headers, payload) = match self.encoding.apply(json.as_bytes()) {
            Some((headers, packed)) => (headers, Bytes::from(packed)),
            None => (&b""[..], Bytes::from(json)),
        };
        turn.server
            .publish(&self.account, &self.destination, None, headers, &payload);
    }
}

/// Says that the message goes through a stream import from now on, or through what came before it, which is returned.
pub(crate) fn through(turn: &mut Turn<'_>, crossing: Option<StreamCrossing>) -> Option<StreamCrossing> {
    match &mut turn.trace {
        Some(trace) => std::mem::replace(&mut trace.through, crossing),
        None => None,
    }
}

/// A request goes through a service import into the account `into`.
pub(crate) fn cross_service(
    turn: &mut Turn<'_>,
    into: &Account,
    from: &[u8],
    to: &[u8],
    allow_trace: bool,
) -> ServiceCrossing {
    let Some(mut trace) = turn.trace.take() else {
        return ServiceCrossing::Untraced;
    };
    trace.document.push(Event::service_import(&into.name, from, to));
    if allow_trace {
        turn.trace = Some(trace);
        ServiceCrossing::Follows
    } else if trace.only {
        turn.trace = Some(trace);
        ServiceCrossing::Ends
    } else {
        ServiceCrossing::Suspended(trace)
    }
}

/// Changes the headers of a request that crossed: what the exporting account sees as the trace's destination. `open`
/// makes a reply subject of the server that leads nowhere.
pub(crate) fn hide_destination(
    crossing: &ServiceCrossing,
    headers: &mut Vec<u8>,
    open: impl FnOnce() -> String,
) {
    match crossing {
        ServiceCrossing::Untraced | ServiceCrossing::Ends => {}
        ServiceCrossing::Follows => block::set(headers, DESTINATION, open().as_bytes()),
        ServiceCrossing::Suspended(_) => block::set(headers, DESTINATION, DISABLED.as_bytes()),
    }
}
