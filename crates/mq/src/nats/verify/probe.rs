//! Tries whether the service's user may pull from each durable and give up its pin.
//!
//! The server tells a refused publish to nobody but the connection, as an error beside the protocol; the request itself
//! just goes without an answer. So two requests are sent that the server refuses on their merits, without any effect: any
//! answer means that they may be sent. `RESET` cannot be tried that way, because a well-formed one acts.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use windjet_client::async_nats::Request;

use crate::nats::Topology;
use crate::nats::api::{Api, ApiFailure};
use crate::nats::finding::Findings;
use crate::nats::permissions;
use crate::nats::refusals::Refusals;
use crate::nats::units::Unit;

const WAIT: Duration = Duration::from_secs(2);
const PARALLEL: usize = 64;

/// A pull whose heartbeat is more than half of its time; an unpin that names no group.
const REQUESTS: [(&str, &str); 2] = [
    (
        "MSG.NEXT",
        r#"{"batch":1,"expires":1000000000,"idle_heartbeat":1000000000}"#,
    ),
    ("UNPIN", "{}"),
];

/// What the probe needs to know of its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe<'a> {
    /// The refusals that the connection has been told of.
    pub(crate) refusals: &'a Refusals,
    /// The connection's JetStream domain.
    pub(crate) domain: Option<&'a str>,
}

impl Probe<'_> {
    pub(super) async fn run(
        self,
        api: &Api,
        topology: &Topology,
        units: &[Unit],
        findings: &mut Findings,
    ) -> Result<(), ApiFailure> {
        let before = self.refusals.count();
        let api = &api.wait(WAIT);
        let requests = units
            .iter()
            .flat_map(|unit| REQUESTS.map(|(verb, body)| (unit, verb, body)));
        let requests: Vec<_> = requests
            .map(|(unit, verb, body)| self.denied(api, unit, verb, body, before))
            .collect();
        let denied: Vec<_> = futures_util::stream::iter(requests)
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        let mut last = None;
        for (unit, subject) in denied.into_iter().flatten() {
            if last.as_ref() == Some(&unit) {
                continue;
            }
            let command = permissions::command(topology, self.domain);
            let problem = format!("publish to {subject} is refused; give the user what `{command}` writes");
            findings.required(&format!("consumer {unit}"), "permissions", problem);
            last = Some(unit);
        }
        Ok(())
    }

    /// Sends one request; the unit and the subject when it is refused.
    async fn denied(
        self,
        api: &Api,
        unit: &Unit,
        verb: &str,
        body: &'static str,
        before: u64,
    ) -> Result<Option<(Unit, String)>, ApiFailure> {
        let call = format!("CONSUMER.{verb}.{}.{}", unit.stream, unit.durable);
        let (subject, plain) = (format!("{}{call}", api.prefix()), format!("$JS.API.{call}"));
        let request = Request::new().payload(Bytes::from_static(body.as_bytes()));
        tokio::select! {
            reply = api.raw(subject.clone(), request) => reply.map(|_| None),
            () = self.refusals.since(&subject, before) => Ok(Some((unit.clone(), subject.clone()))),
            () = self.refusals.since(&plain, before) => Ok(Some((unit.clone(), subject.clone()))),
        }
    }
}
