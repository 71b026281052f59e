//! A stream in a map, which does what plans say: for tests of decisions.

use std::collections::{BTreeMap, HashMap};

use windjet_protocol::jetstream::{ApiError, StreamConfig};
use windjet_protocol::subject::matches;
use windjet_store::{Duplicate, Subject};

use super::check::{Incoming, Origin, Place, Plan, Rollup, Stop, check};
use super::counter::{Known, Total, Totals};
use super::rules::Rules;
use super::schedule::{Part, Schedules};
use super::view::{NotYet, View};

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) block: Vec<u8>,
    pub(super) payload: Vec<u8>,
    size: u64,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) rules: Rules,
    pub(super) messages: BTreeMap<u64, Stored>,
    pub(super) last_seq: u64,
    pub(super) ids: HashMap<Vec<u8>, u64>,
    pub(super) last_id: Vec<u8>,
    pub(super) totals: Totals,
    /// Filters of consumers; all subjects are of interest without.
    pub(super) interest: Option<Vec<String>>,
    /// Whether something is staged, so that some questions wait.
    pub(super) staged: bool,
    pub(super) server_full: bool,
    pub(super) account_room: u64,
    pub(super) schedules: Schedules,
}

/// A header block of fields.
pub(super) fn block_of(fields: &[(&str, &str)]) -> Vec<u8> {
    if fields.is_empty() {
        return Vec::new();
    }
    let mut text = String::from("NATS/1.0\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

impl Model {
    /// An empty stream called `S`.
    pub(super) fn new(change: impl FnOnce(&mut StreamConfig)) -> Self {
        let mut config = StreamConfig {
            name: "S".into(),
            subjects: vec![">".into()],
            ..StreamConfig::default()
        };
        change(&mut config);
        Self {
            rules: Rules::new(&config, 1 << 20).unwrap(),
            messages: BTreeMap::new(),
            last_seq: 0,
            ids: HashMap::new(),
            last_id: Vec::new(),
            totals: Totals::default(),
            interest: None,
            staged: false,
            server_full: false,
            account_room: u64::MAX,
            schedules: Schedules::default(),
        }
    }

    /// Does what a plan says, and answers the sequence.
    pub(super) fn apply(&mut self, subject: &str, plan: &Plan<'_>) -> u64 {
        self.last_seq += 1;
        let seq = self.last_seq;
        self.note(plan.id);
        if let Some(total) = &plan.counter {
            self.totals.put(subject.as_bytes(), seq, Ok(total.clone()));
        }
        let when = match &plan.schedule {
            Part::Schedule(when) => Some(when.clone()),
            _ => None,
        };
        self.schedules.stored(subject.as_bytes(), seq, 0, when);
        let stored = Stored {
            subject: subject.to_owned(),
            block: plan.block.to_vec(),
            payload: plan.payload.to_vec(),
            size: plan.size,
        };
        self.messages.insert(seq, stored);
        self.messages.retain(|at, _| !plan.remove.contains(*at));
        match plan.purge {
            Some(Rollup::Subject) => self.messages.retain(|at, m| *at >= seq || m.subject != subject),
            Some(Rollup::All) => self.messages.retain(|at, _| *at >= seq),
            None => {}
        }
        seq
    }

    fn note(&mut self, id: Option<&[u8]>) {
        self.last_id = id.unwrap_or_default().to_vec();
        if let Some(id) = id {
            self.ids.insert(id.to_vec(), self.last_seq);
        }
    }

    /// Publishes a message of a client and tells what became of it: `ok 1`, `duplicate 1`, `skip 2`, `wait`,
    /// `read 1`, or number and text of an error.
    pub(super) fn publish(&mut self, subject: &str, fields: &[(&str, &str)], payload: &str) -> String {
        self.publish_from(Origin::Client, subject, &block_of(fields), payload)
    }

    /// The same with any origin and block.
    pub(super) fn publish_from(
        &mut self,
        origin: Origin,
        subject: &str,
        block: &[u8],
        payload: &str,
    ) -> String {
        let stored = self.rules.stored_subject(subject.as_bytes()).into_owned();
        let message = Incoming {
            origin,
            ..Incoming::new(&stored, block, payload.as_bytes())
        };
        match check(&self.rules, self, &message, Place::Alone) {
            Ok(plan) => {
                let subject = String::from_utf8(stored.clone()).unwrap();
                format!("ok {}", self.apply(&subject, &plan))
            }
            Err(Stop::Skip { id }) => {
                self.last_seq += 1;
                self.note(id);
                format!("skip {}", self.last_seq)
            }
            Err(Stop::Duplicate(duplicate)) => format!("duplicate {}", duplicate.seq),
            Err(Stop::Wait) => "wait".into(),
            Err(Stop::Read(seq)) => format!("read {seq}"),
            Err(Stop::Refuse(error)) => format!("{} {error}", error.err_code),
        }
    }

    /// Sequences that are live.
    pub(super) fn live(&self) -> Vec<u64> {
        self.messages.keys().copied().collect()
    }

    /// Block of a message as text.
    pub(super) fn block(&self, seq: u64) -> String {
        String::from_utf8(self.messages[&seq].block.clone()).unwrap()
    }

    /// Payload of a message as text.
    pub(super) fn payload(&self, seq: u64) -> String {
        String::from_utf8(self.messages[&seq].payload.clone()).unwrap()
    }

    /// Reads a counter, as is asked for by `read`.
    pub(super) fn read(&mut self, seq: u64) {
        let message = self.messages[&seq].clone();
        let total = Total::read(&message.block, &message.payload);
        self.totals.put(message.subject.as_bytes(), seq, total);
    }

    fn of<'a>(&'a self, subject: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
        let same = move |(_, m): &(&u64, &Stored)| m.subject.as_bytes() == subject;
        self.messages.iter().filter(same).map(|(seq, _)| *seq)
    }
}

impl View for Model {
    fn last_seq(&self) -> u64 {
        self.last_seq
    }

    fn messages(&self) -> u64 {
        self.messages.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.messages.values().map(|m| m.size).sum()
    }

    fn subject(&self, subject: &[u8]) -> Subject {
        Subject {
            messages: self.of(subject).count() as u64,
            last: self.of(subject).last(),
        }
    }

    fn subject_next(&self, subject: &[u8], from: u64) -> Option<u64> {
        self.of(subject).find(|seq| *seq >= from)
    }

    fn subject_key(&self, subject: &[u8]) -> u128 {
        subject.iter().fold(1, |key, byte| key << 8 | u128::from(*byte))
    }

    fn subject_key_of(&self, seq: u64) -> Option<u128> {
        let message = self.messages.get(&seq)?;
        Some(self.subject_key(message.subject.as_bytes()))
    }

    fn last_match(&self, pattern: &[u8]) -> Result<Option<u64>, NotYet> {
        if self.staged {
            return Err(NotYet);
        }
        let mut newest = self.messages.iter().rev();
        let found = newest.find(|(_, m)| matches(pattern, m.subject.as_bytes()));
        Ok(found.map(|(seq, _)| *seq))
    }

    fn next_live(&self, from: u64) -> Option<u64> {
        self.messages.range(from..).next().map(|(seq, _)| *seq)
    }

    fn size_of(&self, seq: u64) -> Option<u32> {
        self.messages.get(&seq).map(|m| m.size as u32)
    }

    fn duplicate(&self, id: &[u8]) -> Option<Duplicate> {
        self.ids.get(id).map(|seq| Duplicate { seq: *seq, op: 0 })
    }

    fn last_msg_id(&self) -> &[u8] {
        &self.last_id
    }

    fn interested(&self, subject: &[u8]) -> bool {
        match &self.interest {
            Some(filters) => filters.iter().any(|filter| matches(filter.as_bytes(), subject)),
            None => true,
        }
    }

    fn server_full(&self) -> bool {
        self.server_full
    }

    fn account_full(&self, size: u64) -> bool {
        size > self.account_room
    }

    fn counter(&self, subject: &[u8]) -> Result<Known, ApiError> {
        self.totals.get(subject, self.of(subject).last())
    }

    fn schedule(&self, subject: &[u8]) -> Option<u64> {
        self.schedules.get(subject)
    }
}
