//! A service import at work.

use std::sync::{Arc, Weak};

use windjet_protocol::header::block;
use windjet_protocol::transform::ImportTransform;

use super::DEPTH_MAX;
use crate::account::Account;
use crate::monitor::compact;
use crate::options::ResponseType;
use crate::router::{Message, Service, Turn, route};
use crate::trace::{self, ServiceCrossing};

/// Header that tells the service who asks.
const REQUEST_INFO: &str = "Nats-Request-Info";
/// A header block without any header.
const EMPTY_BLOCK: &[u8] = b"NATS/1.0\r\n\r\n";

/// Carries requests of the importing account into the exporting one.
#[derive(Debug)]
pub(super) struct ServiceImport {
    /// The importing account.
    pub(super) from: Weak<Account>,
    /// The exporting account.
    pub(super) into: Weak<Account>,
    /// From the importer's subjects to the exporter's.
    pub(super) rename: ImportTransform,
    /// How many answers the service gives.
    pub(super) response_type: ResponseType,
    /// Whether the service sees all about the requesting client.
    pub(super) share: bool,
    /// Whether message traces may follow.
    pub(super) allow_trace: bool,
}

impl Service for ServiceImport {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let (Some(from), Some(into)) = (self.from.upgrade(), self.into.upgrade()) else {
            return false;
        };
        let mut subject = Vec::with_capacity(message.subject.len() + 16);
        if turn.depth >= DEPTH_MAX || !self.rename.apply(message.subject, &mut subject) {
            return false;
        }
        let crossing = trace::cross_service(turn, &into, message.subject, &subject, self.allow_trace);
        let taken = match crossing {
            ServiceCrossing::Ends => false,
            _ => self.forward(&subject, message, (&from, &into), &crossing, turn),
        };
        if let ServiceCrossing::Suspended(trace) = crossing {
            turn.trace = Some(trace);
        }
        taken
    }
}

impl ServiceImport {
    /// Routes a request in the exporting account.
    fn forward(
        &self,
        subject: &[u8],
        message: &Message<'_>,
        (from, into): (&Arc<Account>, &Arc<Account>),
        crossing: &ServiceCrossing,
        turn: &mut Turn<'_>,
    ) -> bool {
        let (_, matches) = into.matches(subject);
        if matches.is_empty() {
            return false;
        }
        let mut headers = self.request_info(message, from, turn);
        trace::hide_destination(crossing, &mut headers, || {
            let responses = into.responses(turn.server);
            let nowhere = responses.open(from, b"", ResponseType::Singleton);
            responses.forget(&nowhere);
            nowhere
        });
        let open = message
            .reply
            .map(|reply| into.responses(turn.server).open(from, reply, self.response_type));
        let request = Message::new(
            subject,
            open.as_deref().map(str::as_bytes),
            &headers,
            message.payload,
        );
        turn.depth += 1;
        let taken = route(&matches, &request, turn);
        turn.depth -= 1;
        let traced_only = turn.trace.as_ref().is_some_and(|trace| trace.only());
        if (taken == 0 || traced_only)
            && let Some(reply) = &open
        {
            into.responses(turn.server).forget(reply);
        }
        taken > 0
    }

    /// The message's headers with what the service may know of the requester.
    fn request_info(&self, message: &Message<'_>, from: &Arc<Account>, turn: &Turn<'_>) -> Vec<u8> {
        let mut headers = if message.headers.is_empty() {
            EMPTY_BLOCK
        } else {
            message.headers
        }
        .to_vec();
        let info = match turn.origin {
            Some(origin) if self.share => {
                let mut info = origin.client_info();
                info.server = Some(turn.server.name.clone());
                info.name_tag = origin.user_name();
                compact(&info)
            }
            origin => {
                let rtt = origin.and_then(|origin| origin.rtt()).unwrap_or_default();
                let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
                serde_json::json!({ "acc": &*from.name, "rtt": rtt }).to_string()
            }
        };
        block::set(&mut headers, REQUEST_INFO, info.as_bytes());
        headers
    }
}
