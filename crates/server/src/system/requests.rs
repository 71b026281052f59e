//! Requests to the server: which subjects it serves in which account, and what each asks for. Section 4.4 of the core
//! protocol.
//!
//! A request is served in the turn of the one who asks. A list that may be long is built on the blocking pool and sent from
//! there, so that the asker's connection goes on meanwhile.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windjet_protocol::subject;

use super::AUTOMATIC_IMPORTS;
use super::documents::{AccountDocument, Document, statz, with};
use super::events;
use super::orders::Order;
use super::reply::{Answer, Asker};
use super::statsz::StatszMessage;
use super::user_info::UserInfo;
use crate::account::Account;
use crate::monitor::{AccstatzOptions, compact, tags};
use crate::options::ConnectionType;
use crate::router::{Message, Service, Sink, Subscription, Turn};
use crate::server::Shared;

/// A list about more connections or subscriptions than this is built elsewhere.
const LONG: usize = 256;

/// Puts the services of one account in place.
pub(super) fn attach(shared: &Arc<Shared>, account: &Arc<Account>, system: bool) {
    let service: Arc<dyn Service> = Arc::new(Requests {
        shared: Arc::downgrade(shared),
        account: Arc::downgrade(account),
        system,
    });
    let own = AUTOMATIC_IMPORTS
        .iter()
        .filter(|automatic| !system || automatic.in_system)
        .map(|automatic| automatic.local.to_owned());
    let everything = [
        "$SYS.REQ.SERVER.PING".to_owned(),
        "$SYS.REQ.SERVER.PING.*".to_owned(),
        format!("$SYS.REQ.SERVER.{}.*", shared.id),
        "$SYS.REQ.ACCOUNT.NSUBS".to_owned(),
        "$SYS.REQ.ACCOUNT.*.*".to_owned(),
        "$SYS.DEBUG.SUBSCRIBERS".to_owned(),
    ];
    let patterns = own.chain(everything.into_iter().filter(|_| system));
    for (pattern, sid) in patterns.zip(1_u32..) {
        account.subscribe(Arc::new(Subscription::new(
            Bytes::from(pattern),
            None,
            Bytes::from(sid.to_string()),
            0,
            account,
            Sink::Service(service.clone()),
        )));
    }
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    UserInfo,
    Id,
    Statsz,
    Document(Document),
    AccountDocument(String, AccountDocument),
    AllStatz,
    Connections(String),
    /// Subscribers of a subject of the asker's account, as plain text.
    Subscribers,
    /// Subscribers of a subject of any account, as JSON.
    SubscribersOf,
    Order(Order),
}

impl Request {
    /// Reads the subject of a request that arrived in the system account.
    fn of_system(subject: &str, id: &str) -> Option<Self> {
        let tokens: Vec<&str> = subject.split('.').collect();
        Some(match tokens[..] {
            ["$SYS", "REQ", "USER", "INFO"] => Self::UserInfo,
            ["$SYS", "DEBUG", "SUBSCRIBERS"] => Self::Subscribers,
            ["$SYS", "REQ", "SERVER", "PING"] => Self::Statsz,
            ["$SYS", "REQ", "SERVER", server, what] if server == "PING" || server == id => match what {
                "IDZ" => Self::Id,
                "STATSZ" => Self::Statsz,
                what => match Document::named(what) {
                    Some(document) => Self::Document(document),
                    None => Self::Order(Order::named(what).filter(|_| server == id)?),
                },
            },
            ["$SYS", "REQ", "ACCOUNT", "NSUBS"] => Self::SubscribersOf,
            ["$SYS", "REQ", "ACCOUNT", "PING", "STATZ"] => Self::AllStatz,
            ["$SYS", "REQ", "ACCOUNT", account, "CONNS"] => Self::Connections(account.to_owned()),
            ["$SYS", "REQ", "ACCOUNT", account, what] => {
                Self::AccountDocument(account.to_owned(), AccountDocument::named(what)?)
            }
            _ => return None,
        })
    }

    /// Reads the subject of a request about the asker's own account.
    fn of_own(subject: &str, account: &str) -> Option<Self> {
        let own = |document| Some(Self::AccountDocument(account.to_owned(), document));
        match subject {
            "$SYS.REQ.USER.INFO" => Some(Self::UserInfo),
            "$SYS.REQ.ACCOUNT.PING.CONNZ" | "$SYS.REQ.SERVER.PING.CONNZ" => own(AccountDocument::Connz),
            "$SYS.REQ.ACCOUNT.PING.STATZ" => own(AccountDocument::Statz),
            _ => None,
        }
    }

    fn is_list(&self) -> bool {
        match self {
            Self::Document(document) => document.is_list(),
            Self::AccountDocument(_, document) => document.is_list(),
            _ => false,
        }
    }

    fn may_wait(&self) -> bool {
        match self {
            Self::Document(document) => document.may_wait(),
            Self::AccountDocument(_, document) => document.may_wait(),
            _ => false,
        }
    }

    /// The answer to everything but orders and questions about the asker.
    fn build(&self, shared: &Shared, account: &Account, payload: &[u8]) -> Answer {
        if *self == Self::Id {
            // Every server says who it is, whatever the payload.
            return Answer::Bare(compact(&Id {
                name: &shared.name,
                host: shared.advertised(ConnectionType::Standard).0,
                id: &shared.id,
            }));
        }
        match Filter::read(payload) {
            Ok(filter) if filter.admits(shared) => {}
            Ok(_) => return Answer::Silent,
            Err(answer) => return answer,
        }
        match self {
            Self::Statsz => Answer::Bare(compact(&StatszMessage::now(shared))),
            Self::Document(document) => document.build(shared, payload),
            Self::AccountDocument(account, document) => document.build(shared, account, payload),
            Self::AllStatz => with(payload, |options: AccstatzOptions| statz(shared, &options)),
            Self::Connections(name) => match shared.accounts.get(name) {
                Some(account) if account.connections.load(std::sync::atomic::Ordering::Relaxed) > 0 => {
                    Answer::Bare(events::connections_event(shared, &account))
                }
                _ => Answer::Silent,
            },
            Self::Subscribers => {
                let text = String::from_utf8_lossy(payload);
                let mut words = text.split_ascii_whitespace();
                let (subject, queue) = (words.next().unwrap_or_default(), words.next());
                Answer::Bare(subscribers(account, subject, queue).to_string())
            }
            Self::SubscribersOf => with(payload, |asked: AskedSubject| {
                let queue = Some(asked.queue.as_str()).filter(|queue| !queue.is_empty());
                match shared.accounts.get(&asked.acc) {
                    Some(account) => Answer::Bare(subscribers(&account, &asked.subject, queue).to_string()),
                    None => Answer::Silent,
                }
            }),
            Self::Id | Self::UserInfo | Self::Order(_) => Answer::Silent,
        }
    }
}

#[derive(Debug, serde::Serialize)]
struct Id<'a> {
    name: &'a str,
    host: String,
    id: &'a str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AskedSubject {
    acc: String,
    subject: String,
    queue: String,
}

/// Client subscriptions that a subject, or a subset of it, reaches.
fn subscribers(account: &Account, asked: &str, queue: Option<&str>) -> usize {
    let mut count = 0;
    account.for_each_subscription(&mut |subscription| {
        let of_client = !matches!(subscription.sink, Sink::Service(_));
        let in_group = queue.is_none_or(|queue| subscription.queue.as_deref() == Some(queue.as_bytes()));
        let reached = if subject::is_literal(asked.as_bytes()) {
            subject::matches(&subscription.subject, asked.as_bytes())
        } else {
            subject::matches(asked.as_bytes(), &subscription.subject)
        };
        count += usize::from(of_client && in_group && reached);
    });
    count
}

/// Which servers are meant.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Filter {
    server_name: String,
    cluster: String,
    host: String,
    exact_match: bool,
    tags: Vec<String>,
    domain: String,
}

impl Filter {
    /// The filter inside a payload. A payload that is no JSON is left to the one who needs it.
    fn read(payload: &[u8]) -> Result<Self, Answer> {
        if payload.first() == Some(&b'{') {
            read(payload)
        } else {
            Ok(Self::default())
        }
    }

    fn admits(&self, shared: &Shared) -> bool {
        let host = shared.advertised(ConnectionType::Standard).0;
        let fits = |asked: &str, own: &str| {
            asked.is_empty()
                || if self.exact_match {
                    asked == own
                } else {
                    own.contains(asked)
                }
        };
        let own_tags = tags(&shared.options());
        let own_domain = shared
            .jetstream()
            .and_then(|js| js.options().domain.clone())
            .unwrap_or_default();
        fits(&self.server_name, &shared.name)
            && fits(&self.host, &host)
            && self.cluster.is_empty()
            && (self.domain.is_empty() || self.domain == own_domain)
            && self.tags.iter().all(|tag| own_tags.contains(&tag.to_lowercase()))
    }
}

/// Reads a payload; an empty one asks for nothing in particular, and null is as good as absent.
pub(super) fn read<T: DeserializeOwned + Default>(payload: &[u8]) -> Result<T, Answer> {
    if payload.is_empty() {
        return Ok(T::default());
    }
    let refused = |error: serde_json::Error| Answer::BadRequest(error.to_string());
    let mut value: Value = serde_json::from_slice(payload).map_err(refused)?;
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(value).map_err(refused)
}

/// Receives the requests of one account.
struct Requests {
    shared: Weak<Shared>,
    account: Weak<Account>,
    system: bool,
}

impl Service for Requests {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let (Some(shared), Some(account)) = (self.shared.upgrade(), self.account.upgrade()) else {
            return false;
        };
        let subject = String::from_utf8_lossy(message.subject);
        let request = if self.system {
            Request::of_system(&subject, &shared.id)
        } else {
            Request::of_own(&subject, &account.name)
        };
        let Some(request) = request else { return false };
        let asker = Asker::of(&account, message);
        match (request, asker) {
            (Request::Order(order), asker) => order.obey(&shared, message.payload, asker),
            (_, None) => {}
            (Request::UserInfo, Some(asker)) => {
                if let Some(user) = turn.origin.and_then(|origin| UserInfo::of(origin)) {
                    asker.answer(&shared, Answer::data(&user));
                }
            }
            (request, Some(asker)) => answer(&shared, request, message.payload, account, asker),
        }
        true
    }
}

fn answer(shared: &Arc<Shared>, request: Request, payload: &[u8], account: Arc<Account>, asker: Asker) {
    let long = request.is_list() && (shared.registry.len() > LONG || shared.subscriptions() > LONG);
    let waits = request.may_wait() && shared.jetstream().is_some();
    if (long || waits) && tokio::runtime::Handle::try_current().is_ok() {
        let (server, payload) = (shared.clone(), payload.to_vec());
        shared.tasks.spawn_blocking(move || {
            asker.answer(&server, request.build(&server, &account, &payload));
        });
    } else {
        asker.answer(shared, request.build(shared, &account, payload));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_for_one_server_by_its_id() {
        let order = |subject: &str| Request::of_system(subject, "NID");
        assert_eq!(
            order("$SYS.REQ.SERVER.NID.KICK"),
            Some(Request::Order(Order::Kick))
        );
        assert_eq!(order("$SYS.REQ.SERVER.PING.KICK"), None);
        assert_eq!(order("$SYS.REQ.SERVER.OTHER.VARZ"), None);
        assert_eq!(order("$SYS.REQ.SERVER.PING.NOPE"), None);
    }

    #[test]
    fn an_ordinary_account_asks_about_itself_only() {
        let own = |subject: &str| Request::of_own(subject, "A");
        assert_eq!(
            own("$SYS.REQ.SERVER.PING.CONNZ"),
            Some(Request::AccountDocument("A".to_owned(), AccountDocument::Connz))
        );
        assert_eq!(own("$SYS.REQ.SERVER.PING.VARZ"), None);
    }

    #[test]
    fn a_payload_may_be_empty_and_hold_nulls() {
        assert!(read::<Filter>(b"").is_ok());
        let filter: Filter = read(br#"{"server_name":null,"tags":["a"]}"#).unwrap();
        assert_eq!(filter.tags, ["a"]);
        assert!(matches!(read::<Filter>(b"{x"), Err(Answer::BadRequest(_))));
    }
}
