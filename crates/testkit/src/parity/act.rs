//! Steps on connections.

use anyhow::{Context as _, Result, bail};

use crate::deadline::Deadline;
use crate::http::take_head;
use crate::json::Json;
use crate::link::Link;
use crate::tls;
use crate::websocket::Frame;
use crate::wire::Op;

use super::escape::{bytes_of, text_of};
use super::peer::{Heard, Peer};
use super::run::Run;
use super::show;
use super::step::{Act, Door, Options};

/// The CONNECT options of a script that gives none.
const USUAL: &str = r#"{"verbose":false,"pedantic":false,"tls_required":false,"lang":"test","version":"1","protocol":1,"echo":true,"headers":true,"no_responders":true}"#;

/// The headers of a WebSocket handshake; the key is the one of the standard's example.
const UPGRADE: [(&str, &str); 5] = [
    ("Host", "localhost"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
];

impl Run<'_> {
    pub(super) fn act(&mut self, name: &str, act: &Act) -> Result<()> {
        match act {
            Act::Open { full } => {
                self.dial(name, Door::Client)?;
                self.info(name, *full)
            }
            Act::Dial(door) => self.dial(name, *door),
            Act::Info { full } => self.info(name, *full),
            Act::Connect { full, options } => self.connect(name, *full, options),
            Act::Send { text, line_end } => {
                let nonce = self.peer(name)?.nonce.clone();
                let mut bytes = bytes_of(&self.vars.fill(text, nonce.as_deref())?)?;
                if *line_end {
                    bytes.extend_from_slice(b"\r\n");
                }
                self.peer(name)?.send(&bytes)
            }
            Act::Publish {
                target,
                headers,
                text,
            } => {
                let target = String::from_utf8(bytes_of(&self.fill(target)?)?)?;
                let text = bytes_of(&self.fill(text)?)?;
                let block = match headers {
                    None => None,
                    Some(headers) => Some(self.header_block(headers)?),
                };
                self.peer(name)?
                    .send(&published(&target, block.as_deref(), &text))
            }
            Act::Sync => {
                for lines in self.barrier(name)? {
                    self.record_block(&format!("{name} <"), lines);
                }
                Ok(())
            }
            Act::Read(count) => {
                for _ in 0..*count {
                    if !self.hear(name, "another operation")? {
                        break;
                    }
                }
                Ok(())
            }
            Act::Until(pattern) => {
                let pattern = regex::Regex::new(&self.fill(pattern)?)?;
                let deadline = Deadline::after(self.patience * 2);
                let mut heard = String::new();
                while self.hear_into(name, &format!("{pattern}"), &mut heard)? {
                    if pattern.is_match(&heard) {
                        break;
                    }
                    if deadline.left().is_none() {
                        bail!(
                            "{name} heard other things than {pattern} for {:?}",
                            self.patience * 2
                        );
                    }
                }
                Ok(())
            }
            Act::Eof => {
                while self.hear(name, "the end")? {}
                Ok(())
            }
            Act::Quiet(wait) => {
                let line = match self.next(name, Deadline::after(*wait))? {
                    Heard::Silence => "quiet".to_owned(),
                    heard => format!("not quiet: {}", self.shown(&heard).join(" ")),
                };
                self.record(format!("{name} {line}"));
                Ok(())
            }
            Act::Raw(count) => self.raw(name, Some(*count)),
            Act::Line => self.raw(name, None),
            Act::Pings => {
                self.peer(name)?.keeps_pings = true;
                Ok(())
            }
            Act::Close => {
                self.peer(name)?.take_link()?;
                Ok(())
            }
            Act::Reset => Ok(self.peer(name)?.take_link()?.reset()?),
            Act::Fin => self.peer(name)?.finish(),
            Act::Tls {
                certificate,
                name: host,
                old,
            } => self.tls(name, certificate.as_deref(), host, *old),
            Act::Upgrade { path, headers } => self.upgrade(name, path, headers),
            Act::Frame { head, masked, text } => {
                let frame = Frame {
                    head: *head,
                    masked: *masked,
                    payload: bytes_of(&self.fill(text)?)?,
                };
                self.peer(name)?.send_raw(&frame.encode())
            }
            Act::Frames(count) => {
                for _ in 0..*count {
                    let deadline = Deadline::after(self.patience);
                    let line = match self.peer(name)?.take_frame(deadline)? {
                        Some(frame) => {
                            let mask = if frame.masked { "m" } else { "" };
                            let text = text_of(&frame.payload);
                            self.normal
                                .text(&format!("frame {:02x}{mask} {text}", frame.head))
                        }
                        None => "no frame".to_owned(),
                    };
                    self.record(format!("{name} < {line}"));
                }
                Ok(())
            }
            Act::Capture { variable, pattern } => {
                let value = self.found(name, pattern)?;
                self.vars.set(variable, &value);
                Ok(())
            }
            Act::Name { variable, pattern } => {
                let value = self.found(name, pattern)?;
                self.vars.set(variable, &value);
                self.named.push((value, format!("<{variable}>")));
                Ok(())
            }
            Act::Ask(ask) => self.ask(name, ask),
            Act::BackUp {
                backup,
                stream,
                fields,
            } => self.back_up(name, backup, stream, fields),
            Act::Restore {
                backup,
                stream,
                fields,
            } => self.restore(name, backup, stream, fields),
        }
    }

    /// A barrier on several connections; what they received is recorded sorted and without names.
    pub(super) fn pool(&mut self, names: &[String]) -> Result<()> {
        let mut entries = Vec::new();
        for name in names {
            entries.extend(self.barrier(name)?);
        }
        entries.sort();
        for lines in entries {
            self.record_block("pool <", lines);
        }
        Ok(())
    }

    /// The first group of the pattern's last match in what the connection received.
    fn found(&mut self, name: &str, pattern: &str) -> Result<String> {
        let pattern = regex::Regex::new(&self.fill(pattern)?)?;
        let heard = &self.peer(name)?.heard;
        let last = pattern.captures_iter(heard).last();
        let value = last
            .and_then(|found| found.get(1))
            .with_context(|| format!("no {pattern} in {heard}"))?;
        Ok(value.as_str().to_owned())
    }

    /// A header block of `Name: value` separated by semicolons.
    pub(super) fn header_block(&self, headers: &str) -> Result<Vec<u8>> {
        let fields = self.fill(headers)?;
        let fields = fields.split(';').map(str::trim).filter(|field| !field.is_empty());
        let block: String = fields.map(|field| format!("{field}\r\n")).collect();
        bytes_of(&format!("NATS/1.0\r\n{block}\r\n"))
    }

    pub(super) fn peer(&mut self, name: &str) -> Result<&mut Peer> {
        self.peers
            .get_mut(name)
            .with_context(|| format!("there is no connection {name}"))
    }

    fn dial(&mut self, name: &str, door: Door) -> Result<()> {
        let addr = match door {
            Door::Client => self.server.client_addr()?,
            Door::Websocket => self.server.websocket_addr()?,
            Door::Monitor => self.server.monitor_addr()?,
        };
        let link = Link::dial(addr)?;
        self.normal.remote(link.local_port()?, name);
        self.peers.insert(name.to_owned(), Peer::over(link));
        Ok(())
    }

    /// The next thing on a connection, what was kept for later first.
    fn next(&mut self, name: &str, deadline: Deadline) -> Result<Heard> {
        match self.peer(name)?.stash.pop_front() {
            Some(kept) => Ok(kept),
            None => self.fresh(name, deadline),
        }
    }

    /// The next thing that comes in on a connection; INFO is taken note of.
    pub(super) fn fresh(&mut self, name: &str, deadline: Deadline) -> Result<Heard> {
        let heard = self.peer(name)?.next(deadline)?;
        if let Heard::Op(op) = &heard {
            let peer = self.peer(name)?;
            peer.heard.push('\n');
            peer.heard.push_str(&show::plain(op));
            if let Op::Info(text) = op {
                self.learn_info(name, text)?;
            }
        }
        Ok(heard)
    }

    fn learn_info(&mut self, name: &str, text: &str) -> Result<()> {
        let Ok(info) = Json::parse(text) else {
            return Ok(());
        };
        let peer = self.peer(name)?;
        peer.greeted = true;
        if let Some(nonce) = info.field("nonce").and_then(Json::as_string) {
            peer.nonce = Some(nonce.clone());
            self.vars.set(&format!("nonce:{name}"), &nonce);
        }
        if let Some(Json::Scalar(id)) = info.field("client_id") {
            self.normal.client(id, name);
            self.vars.set(&format!("cid:{name}"), id);
        }
        if let Some(id) = info.field("server_id").and_then(Json::as_string) {
            self.vars.set("id", &id);
        }
        Ok(())
    }

    fn shown(&self, heard: &Heard) -> Vec<String> {
        match heard {
            Heard::Op(op) => show::op(&self.normal, op),
            Heard::Event(event) => vec![self.normal.text(event)],
            Heard::End => vec!["EOF".to_owned()],
            Heard::Silence => vec!["silence".to_owned()],
        }
    }

    /// Records the next thing; false at the end of the stream. Silence is a fault.
    fn hear(&mut self, name: &str, what: &str) -> Result<bool> {
        self.hear_into(name, what, &mut String::new())
    }

    /// The same, and appends it to `text` as it came.
    fn hear_into(&mut self, name: &str, what: &str, text: &mut String) -> Result<bool> {
        let heard = self.next(name, Deadline::after(self.patience))?;
        if matches!(heard, Heard::Silence) {
            bail!("{name} heard nothing for {:?} instead of {what}", self.patience);
        }
        if let Heard::Op(op) = &heard {
            text.push('\n');
            text.push_str(&show::plain(op));
        }
        let lines = self.shown(&heard);
        self.record_block(&format!("{name} <"), lines);
        Ok(!matches!(heard, Heard::End))
    }

    /// Sends PING and returns what came before its PONG, or before the end.
    fn barrier(&mut self, name: &str) -> Result<Vec<Vec<String>>> {
        self.peer(name)?.send(b"PING\r\n")?;
        let mut entries = Vec::new();
        loop {
            match self.next(name, Deadline::after(self.patience))? {
                Heard::Op(Op::Pong) => return Ok(entries),
                Heard::Silence => bail!("{name} heard nothing for {:?} instead of PONG", self.patience),
                heard => {
                    entries.push(self.shown(&heard));
                    if matches!(heard, Heard::End) {
                        return Ok(entries);
                    }
                }
            }
        }
    }

    fn info(&mut self, name: &str, full: bool) -> Result<()> {
        let heard = self.next(name, Deadline::after(self.patience))?;
        match &heard {
            Heard::Silence => bail!("{name} heard nothing for {:?} instead of INFO", self.patience),
            Heard::Op(Op::Info(_)) if !full => {}
            _ => {
                let lines = self.shown(&heard);
                self.record_block(&format!("{name} <"), lines);
            }
        }
        Ok(())
    }

    pub(super) fn connect(&mut self, name: &str, full: bool, options: &Options) -> Result<()> {
        if !self.peers.get(name).is_some_and(Peer::is_open) {
            self.dial(name, Door::Client)?;
        }
        if !self.peer(name)?.greeted {
            self.info(name, full)?;
        }
        let nonce = self.peer(name)?.nonce.clone();
        let fill = |text: &str| self.vars.fill(text, nonce.as_deref());
        let (text, asynchronous) = match options {
            Options::Exact(text) => (fill(text)?, text.contains("\"protocol\":1")),
            Options::Usual(None) => (USUAL.to_owned(), true),
            Options::Usual(Some(changes)) => {
                let mut json = Json::parse(USUAL)?;
                if let Json::Object(fields) = Json::parse(&fill(changes)?).context("changes to CONNECT")? {
                    for (name, value) in fields {
                        json.set(&name, value);
                    }
                }
                let asynchronous = json.field("protocol") == Some(&Json::Scalar("1".to_owned()));
                (json.compact(), asynchronous)
            }
        };
        self.peer(name)?
            .send(format!("CONNECT {text}\r\nPING\r\n").as_bytes())?;
        let mut summary = Vec::new();
        // PONG and then, for clients that take asynchronous INFO, the second INFO; or whatever ends this.
        let mut expected = if asynchronous { 2 } else { 1 };
        while expected > 0 {
            let heard = self.next(name, Deadline::after(self.patience))?;
            match &heard {
                Heard::Silence => bail!(
                    "{name} heard nothing for {:?} after {}",
                    self.patience,
                    summary.join(" ")
                ),
                Heard::Op(Op::Info(_) | Op::Pong) => expected -= 1,
                Heard::End => expected = 0,
                _ => {}
            }
            match &heard {
                Heard::Op(op) if !full => summary.push(show::kind(&self.normal, op)),
                heard => {
                    let lines = self.shown(heard);
                    if full {
                        self.record_block(&format!("{name} <"), lines);
                    } else {
                        summary.extend(lines);
                    }
                }
            }
        }
        if !full && summary != ["PONG", "INFO"] {
            self.record(format!("{name} connect: {}", summary.join(" ")));
        }
        Ok(())
    }

    fn raw(&mut self, name: &str, wanted: Option<usize>) -> Result<()> {
        let deadline = Deadline::after(self.patience);
        let bytes = self.peer(name)?.take_raw(wanted, deadline)?;
        let heard = &mut self.peer(name)?.heard;
        heard.push('\n');
        heard.push_str(&String::from_utf8_lossy(&bytes));
        let line = self.normal.text(&text_of(&bytes));
        self.record(format!("{name} bytes {line}"));
        Ok(())
    }

    fn tls(&mut self, name: &str, certificate: Option<&str>, host: &str, old: bool) -> Result<()> {
        let config = tls::client_config(certificate, old)?;
        let link = self.peer(name)?.take_link()?;
        match link.upgrade(config, host, self.patience) {
            Ok((link, version)) => {
                self.peer(name)?.put_link(link);
                self.record(format!("{name} tls: {version}"));
                Ok(())
            }
            Err(error) => {
                self.record(format!("{name} tls failed: {error:#}"));
                Ok(())
            }
        }
    }

    fn upgrade(&mut self, name: &str, path: &str, changes: &[String]) -> Result<()> {
        let mut method = "GET";
        let mut headers: Vec<(String, String)> = UPGRADE
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        for change in changes {
            if let Some(removed) = change.strip_prefix('-') {
                headers.retain(|(name, _)| name != removed);
            } else if let Some((name, value)) = change.split_once(": ") {
                headers.retain(|(found, _)| found != name);
                headers.push((name.to_owned(), value.to_owned()));
            } else {
                method = change;
            }
        }
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let request = self.fill(&format!("{method} {path} HTTP/1.1\r\n{headers}\r\n"))?;
        let deadline = Deadline::after(self.patience);
        let peer = self.peer(name)?;
        peer.send_raw(request.as_bytes())?;
        let Some(mut response) = peer.take_with(deadline, take_head)? else {
            self.record(format!("{name} upgrade: no answer"));
            return Ok(());
        };
        if response.status.contains(" 101 ") {
            peer.frame();
        } else {
            let len = response
                .header("content-length")
                .and_then(|len| len.parse::<usize>().ok())
                .unwrap_or(0);
            let body = peer.take_with(deadline, |wire| {
                Ok((wire.len() >= len).then(|| wire.drain(..len).collect()))
            })?;
            response.body = body.unwrap_or_default();
        }
        let volatile = ["date", "content-length"];
        let mut lines = vec![response.status.clone()];
        lines.extend(
            response
                .headers
                .iter()
                .filter(|(name, _)| !volatile.contains(&name.to_ascii_lowercase().as_str()))
                .map(|(name, value)| format!("{name}: {value}")),
        );
        if !response.body.is_empty() {
            lines.push(format!("| {}", text_of(&response.body)));
        }
        self.record_block(&format!("{name} upgrade:"), lines);
        Ok(())
    }
}

/// The bytes of a PUB or HPUB; `target` is the subject and perhaps a reply subject.
pub(super) fn published(target: &str, block: Option<&[u8]>, text: &[u8]) -> Vec<u8> {
    let block = block.unwrap_or_default();
    let mut bytes = if block.is_empty() {
        format!("PUB {target} {}\r\n", text.len()).into_bytes()
    } else {
        format!("HPUB {target} {} {}\r\n", block.len(), block.len() + text.len()).into_bytes()
    };
    bytes.extend_from_slice(block);
    bytes.extend_from_slice(text);
    bytes.extend_from_slice(b"\r\n");
    bytes
}
