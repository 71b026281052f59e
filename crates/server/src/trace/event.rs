//! The document of a trace: what was asked, and everything that happened to the message.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use crate::account::Account;
use crate::connection::Connection;
use crate::monitor::{compact, rfc3339};
use crate::router::{Sink, Subscription, Undelivered};
use crate::server::Shared;
use crate::system::ServerInfo;

/// The number of connections of clients in traces.
const CLIENT: u8 = 0;

/// One thing that happened.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum Event {
    /// The message came in.
    #[serde(rename = "in")]
    Ingress {
        ts: String,
        kind: u8,
        cid: u64,
        #[serde(skip_serializing_if = "String::is_empty")]
        name: String,
        acc: String,
        subj: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Its subject was mapped.
    #[serde(rename = "sm")]
    Mapped { ts: String, to: String },
    /// It went through a stream import.
    #[serde(rename = "se")]
    StreamExport { ts: String, acc: String, to: String },
    /// It went through a service import.
    #[serde(rename = "si")]
    ServiceImport {
        ts: String,
        acc: String,
        from: String,
        to: String,
    },
    /// It reached a subscription.
    #[serde(rename = "eg")]
    Egress {
        ts: String,
        kind: u8,
        cid: u64,
        #[serde(skip_serializing_if = "String::is_empty")]
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        acc: Option<String>,
        sub: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        queue: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'static str>,
    },
}

impl Event {
    /// A client published the message.
    pub(super) fn ingress(connection: &Connection, account: &Account, subject: &[u8]) -> Self {
        Self::Ingress {
            ts: now(),
            kind: CLIENT,
            cid: connection.id,
            name: name(connection),
            acc: account.name.to_string(),
            subj: text(subject),
            error: None,
        }
    }

    /// The subject was mapped.
    pub(super) fn mapped(to: &[u8]) -> Self {
        Self::Mapped {
            ts: now(),
            to: text(to),
        }
    }

    /// A stream import of `account` took the message.
    pub(super) fn stream_export(account: &str, to: &str) -> Self {
        Self::StreamExport {
            ts: now(),
            acc: account.to_owned(),
            to: to.to_owned(),
        }
    }

    /// The message crossed into `account`.
    pub(super) fn service_import(account: &str, from: &[u8], to: &[u8]) -> Self {
        Self::ServiceImport {
            ts: now(),
            acc: account.to_owned(),
            from: text(from),
            to: text(to),
        }
    }

    /// A subscription of a client got the message or did not. Its account is named where it is not the publisher's.
    pub(super) fn egress(subscription: &Subscription, home: &Account, error: Option<Undelivered>) -> Self {
        let client = match &subscription.sink {
            Sink::Connection(connection) => Some(&**connection),
            Sink::Mailbox(mailbox) => Some(mailbox.connection()),
            Sink::Service(_) => None,
        };
        let account = subscription.account.upgrade();
        Self::Egress {
            ts: now(),
            kind: CLIENT,
            cid: subscription.owner,
            name: client.map(name).unwrap_or_default(),
            acc: account
                .filter(|account| account.name != home.name)
                .map(|account| account.name.to_string()),
            sub: text(&subscription.subject),
            queue: subscription.queue.as_deref().map(text),
            error: error.map(Undelivered::text),
        }
    }
}

/// All of a trace.
#[derive(Debug)]
pub(super) struct Document {
    header: BTreeMap<String, Vec<String>>,
    size: usize,
    events: Vec<Event>,
}

impl Document {
    /// A document that begins with how the message came in.
    pub(super) fn new(header: BTreeMap<String, Vec<String>>, size: usize, ingress: Event) -> Self {
        Self {
            header,
            size,
            events: vec![ingress],
        }
    }

    /// Another thing happened.
    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The message was refused.
    pub(super) fn refused(&mut self, why: &str) {
        if let Some(Event::Ingress { error, .. }) = self.events.first_mut() {
            *error = Some(why.to_owned());
        }
    }

    /// The message is as large as it was announced.
    pub(super) fn resize(&mut self, size: usize) {
        self.size = size;
    }

    /// The document as it is published.
    pub(super) fn json(&self, shared: &Shared) -> String {
        compact(&Shown {
            server: ServerInfo::now(shared),
            request: Request {
                header: &self.header,
                msgsize: self.size,
            },
            events: &self.events,
        })
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    server: ServerInfo,
    request: Request<'a>,
    events: &'a [Event],
}

#[derive(Serialize)]
struct Request<'a> {
    header: &'a BTreeMap<String, Vec<String>>,
    msgsize: usize,
}

fn now() -> String {
    rfc3339(SystemTime::now())
}

fn name(connection: &Connection) -> String {
    connection
        .profile()
        .map(|profile| profile.name.clone())
        .unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
