//! Steps that ask: a message with a reply subject of its own, and the answers to it.
//!
//! Every question gets a fresh reply subject and subscription, so that answers cannot be taken for one another, and the
//! subscription ends with the question. What else the connection receives meanwhile is kept for the steps that follow.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use regex::Regex;

use crate::deadline::{Deadline, pause};
use crate::json::Json;
use crate::wire::{Message, Op};

use super::act::published;
use super::escape::bytes_of;
use super::normal::{self, Normal};
use super::peer::Heard;
use super::run::Run;
use super::show;
use super::step::{Ask, AskKind, Options, View};

/// How long a question that nobody should answer is given.
const MUTE: Duration = Duration::from_millis(150);

impl Run<'_> {
    pub(super) fn ask(&mut self, name: &str, ask: &Ask) -> Result<()> {
        if !self.peers.contains_key(name) {
            self.connect(name, false, &Options::Usual(None))?;
        }
        let subject = self.fill(&ask.subject)?;
        let lead = format!("{name} {}:", self.normal.text(&subject));
        match &ask.kind {
            AskKind::Once(view) => {
                let answer = self.answer(name, &subject, ask)?;
                let lines = answer_lines(&self.normal, &answer, view);
                self.record_block(&lead, lines);
            }
            AskKind::Many(end) => {
                let end = Regex::new(&self.fill(end)?)?;
                self.record(lead);
                let sid = self.question(name, &subject, ask)?;
                let deadline = Deadline::after(self.patience * 2);
                loop {
                    if deadline.left().is_none() {
                        bail!("{name} heard other things than {end} for {:?}", self.patience * 2);
                    }
                    let Some(message) = self.reply(name, &sid, Deadline::after(self.patience))? else {
                        bail!("{name} heard nothing for {:?} instead of {end}", self.patience);
                    };
                    let plain = show::plain(&Op::Msg(message.clone()));
                    let lines = show::op(&self.normal, &Op::Msg(without_sid(message)));
                    self.record_block("   <", lines);
                    if end.is_match(&plain) {
                        break;
                    }
                }
                self.peer(name)?.send(format!("UNSUB {sid}\r\n").as_bytes())?;
            }
            AskKind::Mute => {
                let sid = self.question(name, &subject, ask)?;
                let line = match self.reply(name, &sid, Deadline::after(MUTE))? {
                    None => vec!["no answer".to_owned()],
                    Some(message) => show::op(&self.normal, &Op::Msg(without_sid(message))),
                };
                self.peer(name)?.send(format!("UNSUB {sid}\r\n").as_bytes())?;
                self.record_block(&lead, line);
            }
            AskKind::Until(pattern) => {
                let pattern = Regex::new(&self.fill(pattern)?)?;
                let deadline = Deadline::after(self.patience);
                loop {
                    let answer = self.answer(name, &subject, ask)?;
                    let plain = show::plain(&Op::Msg(answer));
                    if pattern.is_match(&plain) {
                        break;
                    }
                    if deadline.left().is_none() {
                        bail!("{subject} did not answer {pattern} but {plain}");
                    }
                    pause();
                }
                self.record(format!("{lead} matches"));
            }
            AskKind::Fill(count) => {
                let mut last = String::new();
                for number in 1..=*count {
                    let nth = |text: &str| text.replace('#', &number.to_string());
                    let ask = Ask {
                        text: nth(&ask.text),
                        headers: ask.headers.as_deref().map(nth),
                        ..ask.clone()
                    };
                    let answer = self.answer(name, &nth(&subject), &ask)?;
                    last = answer_lines(&self.normal, &answer, &View::Whole).join(" ");
                    if last.contains("error") {
                        break;
                    }
                }
                self.record(format!("{lead} {last}"));
            }
        }
        Ok(())
    }

    /// Asks and waits for the first answer.
    pub(super) fn answer(&mut self, name: &str, subject: &str, ask: &Ask) -> Result<Message> {
        let sid = self.question(name, subject, ask)?;
        self.first(name, &sid, subject)
    }

    /// Sends bytes as they are and waits for the first answer.
    pub(super) fn answer_with(&mut self, name: &str, subject: &str, bytes: &[u8]) -> Result<Message> {
        let sid = self.send_question(name, subject, None, bytes)?;
        self.first(name, &sid, subject)
    }

    fn first(&mut self, name: &str, sid: &str, subject: &str) -> Result<Message> {
        self.peer(name)?.send(format!("UNSUB {sid} 1\r\n").as_bytes())?;
        self.reply(name, sid, Deadline::after(self.patience))?
            .with_context(|| format!("{name} heard nothing for {:?} about {subject}", self.patience))
    }

    /// Sends the message with a fresh reply subject; the sid of its subscription.
    fn question(&mut self, name: &str, subject: &str, ask: &Ask) -> Result<String> {
        let text = bytes_of(&self.fill(&ask.text)?)?;
        let headers = match &ask.headers {
            Some(headers) => Some(self.header_block(headers)?),
            None => None,
        };
        let subject = String::from_utf8(bytes_of(subject)?)?;
        self.send_question(name, &subject, headers.as_deref(), &text)
    }

    fn send_question(
        &mut self,
        name: &str,
        subject: &str,
        headers: Option<&[u8]>,
        text: &[u8],
    ) -> Result<String> {
        let peer = self.peer(name)?;
        peer.asked += 1;
        let sid = format!("q{}", peer.asked);
        let inbox = format!("_IN.{name}.{}", peer.asked);
        let mut bytes = format!("SUB {inbox} {sid}\r\n").into_bytes();
        bytes.extend(published(&format!("{subject} {inbox}"), headers, text));
        peer.send(&bytes)?;
        Ok(sid)
    }

    /// The next message of this subscription, kept or fresh; other things are kept for later.
    pub(super) fn reply(&mut self, name: &str, sid: &str, deadline: Deadline) -> Result<Option<Message>> {
        let is_it = |heard: &Heard| matches!(heard, Heard::Op(Op::Msg(message)) if message.control.get(2).is_some_and(|found| found == sid));
        let stash = &mut self.peer(name)?.stash;
        let kept = stash.iter().position(is_it).and_then(|at| stash.remove(at));
        if let Some(Heard::Op(Op::Msg(message))) = kept {
            return Ok(Some(message));
        }
        loop {
            match self.fresh(name, deadline)? {
                Heard::Op(Op::Msg(message)) if message.control.get(2).is_some_and(|found| found == sid) => {
                    return Ok(Some(message));
                }
                Heard::Silence => return Ok(None),
                Heard::End => bail!("{name} was closed: {}", self.peer(name)?.heard_tail()),
                other => self.peer(name)?.stash.push_back(other),
            }
        }
    }
}

/// The message as if its control line had no sid.
fn without_sid(mut message: Message) -> Message {
    if message.control.len() > 3 {
        message.control.remove(2);
    }
    message
}

/// An answer without its control line, which says nothing of interest.
fn answer_lines(normal: &Normal, answer: &Message, view: &View) -> Vec<String> {
    let mut answer = answer.clone();
    let text = String::from_utf8_lossy(&answer.payload).into_owned();
    if let (View::Only(paths), Ok(json)) = (view, Json::parse(&text)) {
        answer.payload = normal::only(json, paths).compact().into_bytes();
    }
    show::body(normal, &answer)
}
