//! Steps that back a stream up and restore it, over the snapshot API of JetStream.
//!
//! What a backup holds is compressed and differs from server to server, so it is not recorded: a script restores it and
//! looks at what came back.

use anyhow::{Context as _, Result, bail};

use crate::deadline::Deadline;
use crate::json::Json;
use crate::wire::Message;

use super::run::Run;
use super::show;
use super::step::Options;

/// The bytes sent in one message of a restore.
const CHUNK: usize = 64 * 1024;

/// A stream as it was backed up.
#[derive(Debug, Clone)]
pub(super) struct Backup {
    config: Json,
    state: Json,
    bytes: Vec<u8>,
}

impl Run<'_> {
    /// Backs `stream` up under the name `backup`; `wishes` are fields of the request.
    pub(super) fn back_up(&mut self, name: &str, backup: &str, stream: &str, wishes: &str) -> Result<()> {
        if !self.peers.contains_key(name) {
            self.connect(name, false, &Options::Usual(None))?;
        }
        let inbox = format!("_IN.{name}.0{}", self.peer(name)?.asked);
        let sid = "backup";
        self.peer(name)?
            .send(format!("SUB {inbox} {sid}\r\n").as_bytes())?;
        let mut request = match wishes.trim() {
            "" => Json::Object(Vec::new()),
            wishes => Json::parse(&self.fill(wishes)?).context("the fields of the request")?,
        };
        request.set("deliver_subject", Json::string(&inbox));
        let answer = self.answer_with(
            name,
            &format!("$JS.API.STREAM.SNAPSHOT.{stream}"),
            request.compact().as_bytes(),
        )?;
        let lines = show::body(&self.normal, &answer);
        self.record_block(&format!("{name} backup of {stream}:"), lines);
        let text = String::from_utf8_lossy(&answer.payload).into_owned();
        let answer = Json::parse(&text).context("the answer")?;
        if answer.field("error").is_none() {
            let mut bytes = Vec::new();
            loop {
                let message = self
                    .reply(name, sid, Deadline::after(self.patience))?
                    .context("another chunk of the backup")?;
                let reply = reply_of(&message).map(str::to_owned);
                if message.payload.is_empty() && reply.is_none() {
                    let lines = show::body(&self.normal, &message);
                    self.record_block(&format!("{name} end of the backup:"), lines);
                    break;
                }
                bytes.extend_from_slice(&message.payload);
                if let Some(reply) = reply {
                    self.peer(name)?
                        .send(format!("PUB {reply} 0\r\n\r\n").as_bytes())?;
                }
            }
            let part = |field: &str| {
                answer
                    .field(field)
                    .cloned()
                    .context("config and state in the answer")
            };
            let made = Backup {
                config: part("config")?,
                state: part("state")?,
                bytes,
            };
            self.backups.insert(backup.to_owned(), made);
        }
        self.peer(name)?.send(format!("UNSUB {sid}\r\n").as_bytes())
    }

    /// Restores the backup as `stream`; `changes` are fields of the configuration.
    pub(super) fn restore(&mut self, name: &str, backup: &str, stream: &str, changes: &str) -> Result<()> {
        let Backup {
            mut config,
            state,
            bytes,
        } = self
            .backups
            .get(backup)
            .with_context(|| format!("there is no backup {backup}"))?
            .clone();
        config.set("name", Json::string(stream));
        if let Json::Object(fields) = match changes.trim() {
            "" => Json::Object(Vec::new()),
            changes => Json::parse(&self.fill(changes)?).context("changes of the configuration")?,
        } {
            for (field, value) in fields {
                config.set(&field, value);
            }
        }
        let request = Json::Object(vec![("config".to_owned(), config), ("state".to_owned(), state)]);
        let answer = self.answer_with(
            name,
            &format!("$JS.API.STREAM.RESTORE.{stream}"),
            request.compact().as_bytes(),
        )?;
        let lines = show::body(&self.normal, &answer);
        self.record_block(&format!("{name} restore of {stream}:"), lines);
        let answer = Json::parse(&String::from_utf8_lossy(&answer.payload)).context("the answer")?;
        let Some(target) = answer.field("deliver_subject").and_then(Json::as_string) else {
            bail!("no subject to send the backup to")
        };
        if answer.field("error").is_some() {
            return Ok(());
        }
        for chunk in bytes.chunks(CHUNK) {
            let answer = self.answer_with(name, &target, chunk)?;
            if !answer.payload.is_empty() {
                let lines = show::body(&self.normal, &answer);
                self.record_block(&format!("{name} chunk of the restore:"), lines);
            }
        }
        let answer = self.answer_with(name, &target, b"")?;
        let lines = show::body(&self.normal, &answer);
        self.record_block(&format!("{name} end of the restore:"), lines);
        Ok(())
    }
}

/// The reply subject of a message: the word between its sid and its sizes.
fn reply_of(message: &Message) -> Option<&str> {
    let sizes = if message.headers.is_some() { 2 } else { 1 };
    let without_reply = 3 + sizes;
    (message.control.len() > without_reply).then(|| message.control[3].as_str())
}
