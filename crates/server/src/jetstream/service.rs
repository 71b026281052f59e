//! The subjects that JetStream serves in each account: the API, acks, flow control answers, the server's own API.
//!
//! Everything here runs in the turn of whoever published and never waits: it looks names up and puts what came into the
//! inbox of the stream it is for. One subscription a kind and account, however many streams and consumers there are. What a
//! stream or consumer does not serve counts as not taken, so that a requester hears "no responders" at once.

use std::collections::HashMap;
use std::str;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use windjet_protocol::jetstream::account::AccountPurgeResponse;
use windjet_protocol::jetstream::api::{self, ApiCall, ConsumerVerb, DomainTarget};
use windjet_protocol::jetstream::{ApiError, ErrorCode, Response};

use super::JetStream;
use super::account::JsAccount;
use super::api as calls;
use super::explain;
use super::stream::call::{Answer, Call};
use super::stream::inbox::{Push, Signal};
use crate::account::Account;
use crate::router::{Message, Service, Sink, Subscription, Turn, route};
use crate::server::Shared;

/// The API's subjects.
const API_PATTERN: &str = "$JS.API.>";

/// What all services of an account know.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) server: Weak<Shared>,
    pub(super) js: Weak<JetStream>,
    pub(super) account: Arc<JsAccount>,
}

/// The services of all accounts. They end with it.
#[derive(Debug, Default)]
pub(super) struct Services(Mutex<HashMap<Arc<str>, Attached>>);

impl Services {
    /// Takes all of them away: from now on nobody answers.
    pub(super) fn detach(&self) {
        // Leaving an account calls into it.
        let gone = std::mem::take(&mut *self.0.lock());
        drop(gone);
    }

    /// Lets go of accounts that are no longer there.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let mut all = self.0.lock();
        let gone: Vec<Attached> = all
            .extract_if(|name, _| !is_there(name))
            .map(|(_, a)| a)
            .collect();
        drop(all);
        drop(gone);
    }
}

/// The services of one account.
#[derive(Debug)]
struct Attached {
    account: Weak<Account>,
    enabled: bool,
    subscriptions: Vec<Arc<Subscription>>,
}

impl Attached {
    fn is(&self, account: &Arc<Account>, enabled: bool) -> bool {
        self.enabled == enabled && std::ptr::eq(self.account.as_ptr(), Arc::as_ptr(account))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(account) = self.account.upgrade() {
            for subscription in &self.subscriptions {
                account.unsubscribe(subscription);
            }
        }
    }
}

/// Puts the services of an account in place; `None` for an account that has no JetStream, which is told so. Does nothing
/// when they are there already.
pub(super) fn attach(
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    account: &Arc<Account>,
    enabled: Option<Arc<JsAccount>>,
) {
    let is_there = |attached: &Attached| attached.is(account, enabled.is_some());
    if js.services.0.lock().get(&account.name).is_some_and(is_there) {
        return;
    }
    let attached = Attached {
        account: Arc::downgrade(account),
        enabled: enabled.is_some(),
        subscriptions: subscriptions(server, js, account, enabled),
    };
    let before = js.services.0.lock().insert(account.name.clone(), attached);
    drop(before);
}

fn subscriptions(
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    account: &Arc<Account>,
    enabled: Option<Arc<JsAccount>>,
) -> Vec<Arc<Subscription>> {
    let mut made = Vec::new();
    let mut subscribe = |pattern: String, service: Arc<dyn Service>| {
        let subscription = Arc::new(Subscription::new(
            Bytes::from(pattern),
            None,
            Bytes::from_static(b"0"),
            0,
            account,
            Sink::Service(service),
        ));
        account.subscribe(subscription.clone());
        made.push(subscription);
    };
    let Some(enabled) = enabled else {
        let off: Arc<dyn Service> = Arc::new(Off {
            server: Arc::downgrade(server),
            account: Arc::downgrade(account),
        });
        subscribe(API_PATTERN.into(), off);
        return made;
    };
    let context = Context {
        server: Arc::downgrade(server),
        js: Arc::downgrade(js),
        account: enabled,
    };
    subscribe(API_PATTERN.into(), Arc::new(Api(context.clone())));
    if let Some(domain) = js.options().domain.clone() {
        let pattern = format!("$JS.{domain}.API.>");
        subscribe(pattern, Arc::new(Domain(context.clone(), domain)));
    }
    subscribe(
        explain::PATTERN.into(),
        Arc::new(explain::Explain(context.clone())),
    );
    subscribe("$JS.ACK.>".into(), Arc::new(Acks(context.clone())));
    subscribe("$JS.FC.>".into(), Arc::new(Acks(context)));
    made
}

/// An account without JetStream.
#[derive(Debug)]
struct Off {
    server: Weak<Shared>,
    account: Weak<Account>,
}

impl Service for Off {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let (Some(server), Some(account)) = (self.server.upgrade(), self.account.upgrade()) else {
            return false;
        };
        // An import of all of another account's API takes the place of this answer.
        let (_, matches) = account.matches(message.subject);
        let mut same = matches
            .plain
            .iter()
            .filter(|s| s.owner == 0 && s.subject == API_PATTERN);
        if same.nth(1).is_some() {
            return false;
        }
        let error: ApiError = ErrorCode::NotEnabledForAccount.error();
        let call = str::from_utf8(message.subject).ok().and_then(ApiCall::parse);
        if let Some(ApiCall::AccountPurge { account: name }) = call {
            if server.is_system(&account) {
                purge_account(&server, name);
                let response = AccountPurgeResponse { initiated: true };
                answer(&account, message, Response(Ok(response)).to_vec(), turn);
            }
            return true;
        }
        let text = match call {
            Some(call) if !server.is_system(&account) || matches!(call, ApiCall::AccountInfo) => {
                call.failure(&error)
            }
            Some(_) => Some(api::system_failure(&error)),
            None => None,
        };
        if let Some(text) = text {
            answer(&account, message, text, turn);
        }
        true
    }
}

fn answer(account: &Account, message: &Message<'_>, text: Vec<u8>, turn: &mut Turn<'_>) {
    let Some(reply) = message.reply else { return };
    let (_, matches) = account.matches(reply);
    let text = Bytes::from(text);
    route(&matches, &Message::with_shared(reply, None, b"", &text), turn);
}

/// Deletes all streams of an account, as if its clients had.
fn purge_account(server: &Shared, name: &str) {
    let account = server.jetstream().and_then(|js| js.account(name));
    let streams = account.map(|account| account.streams()).unwrap_or_default();
    for stream in streams {
        // Nobody waits for the answer, and a stream that is gone is what is wanted.
        let (sender, _) = oneshot::channel();
        drop(stream.inbox.call(Call::Delete(Answer::Local(sender))));
    }
}

/// The API.
#[derive(Debug)]
struct Api(Context);

impl Service for Api {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let Some(call) = str::from_utf8(message.subject).ok().and_then(ApiCall::parse) else {
            // Like nats-server: an unknown call gets no answer at all.
            return true;
        };
        self.0.serve(call, message, turn)
    }
}

/// The API under the domain's name.
#[derive(Debug)]
struct Domain(Context, String);

impl Service for Domain {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let target = str::from_utf8(message.subject)
            .ok()
            .and_then(|subject| api::in_domain(subject, &self.1));
        match target {
            Some(DomainTarget::Call(tail)) => match ApiCall::parse_tail(tail) {
                Some(call) => self.0.serve(call, message, turn),
                None => true,
            },
            Some(DomainTarget::Publish(subject)) => {
                let account = &self.0.account.account;
                let (_, matches) = account.matches(subject.as_bytes());
                if turn.depth > 8 {
                    return false;
                }
                turn.depth += 1;
                let taken = route(
                    &matches,
                    &message.renamed(subject.as_bytes(), message.reply),
                    turn,
                );
                turn.depth -= 1;
                if taken == 0 {
                    turn.untaken_as = Some(Bytes::copy_from_slice(subject.as_bytes()));
                }
                taken > 0
            }
            None => true,
        }
    }
}

impl Context {
    fn serve(&self, call: ApiCall<'_>, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let (Some(server), Some(js)) = (self.server.upgrade(), self.js.upgrade()) else {
            return false;
        };
        match call {
            ApiCall::Consumer {
                verb: ConsumerVerb::Next,
                stream,
                consumer,
            } => self.signal(Signal::Next, stream, consumer, message, turn),
            ApiCall::DirectGet { stream, subject } => {
                calls::direct_get(self, &server, &js, stream, subject, message)
            }
            call => {
                calls::serve(self, &server, &js, call, message, turn);
                true
            }
        }
    }

    fn signal(
        &self,
        signal: Signal,
        stream: &str,
        consumer: &str,
        message: &Message<'_>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let Some(stream) = self.account.stream(stream) else {
            return false;
        };
        let Some(entry) = stream.consumer(consumer) else {
            return false;
        };
        if signal == Signal::Ack && !entry.acks {
            return false;
        }
        let origin = turn.origin.map_or(0, |connection| connection.id);
        match stream.inbox.signal(signal, entry.number, message, origin) {
            Push::Queued => true,
            Push::Crowded => {
                turn.crowded += 4;
                true
            }
            // What is lost here is delivered again, or asked for again.
            Push::Full | Push::Closed => false,
        }
    }
}

/// Acks and answers to flow control.
#[derive(Debug)]
struct Acks(Context);

/// Stream and consumer in an ack or flow control subject of either form. The longer one begins with a domain, which must be
/// ours, or `_` for none.
fn names<'s>(subject: &'s str, domain: Option<&str>) -> Option<(&'s str, &'s str)> {
    let tokens: smallvec::SmallVec<[&str; 12]> = subject.split('.').collect();
    match tokens[1] {
        "ACK" => match tokens.len() {
            9 => Some((tokens[2], tokens[3])),
            11.. if tokens[2] == domain.unwrap_or("_") => Some((tokens[4], tokens[5])),
            _ => None,
        },
        _ => match tokens.len() {
            5 => Some((tokens[2], tokens[3])),
            7 => Some((tokens[4], tokens[5])),
            _ => None,
        },
    }
}

impl Service for Acks {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let Some(subject) = str::from_utf8(message.subject).ok() else {
            return false;
        };
        let Some((stream, consumer)) = names(subject, self.0.account.domain()) else {
            return false;
        };
        let signal = if subject.starts_with("$JS.ACK.") {
            Signal::Ack
        } else {
            Signal::Flow
        };
        self.0.signal(signal, stream, consumer, message, turn)
    }
}
