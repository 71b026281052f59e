//! One connection of a script: bytes in, operations out.
//!
//! A [`Peer`] speaks plain TCP, TLS or WebSocket and cuts what the server sends into [`Heard`] pieces. It records
//! nothing; that is the runner's part. Server PINGs are answered here unless the script wants to see them.

use std::collections::VecDeque;

use anyhow::{Context as _, Result};

use crate::deadline::Deadline;
use crate::link::{Got, Link};
use crate::websocket::Frame;
use crate::wire::{Op, next_op};

use super::escape::text_of;

/// What the next look at a connection brought.
#[derive(Debug)]
pub(super) enum Heard {
    /// A whole operation.
    Op(Op),
    /// Something below the protocol, such as a close frame.
    Event(String),
    /// The end of the stream.
    End,
    /// Nothing before the deadline.
    Silence,
}

/// A connection. `Default` is one that has not been made yet.
#[derive(Debug, Default)]
pub(super) struct Peer {
    link: Option<Link>,
    /// Bytes as they came, not yet taken out of WebSocket frames.
    wire: Vec<u8>,
    /// Bytes of the NATS protocol.
    inbox: Vec<u8>,
    framed: bool,
    events: VecDeque<String>,
    ended: bool,
    /// Whether INFO has been read.
    pub(super) greeted: bool,
    /// The nonce in that INFO.
    pub(super) nonce: Option<String>,
    /// Whether PINGs are recorded instead of answered.
    pub(super) keeps_pings: bool,
    /// How many questions were asked on it.
    pub(super) asked: usize,
    /// What came while a question waited for its answer.
    pub(super) stash: VecDeque<Heard>,
    /// All operations as text, for patterns.
    pub(super) heard: String,
}

impl Peer {
    pub(super) fn over(link: Link) -> Self {
        Self {
            link: Some(link),
            ..Self::default()
        }
    }

    /// The last of what was heard, for messages.
    pub(super) fn heard_tail(&self) -> &str {
        self.heard.lines().next_back().unwrap_or_default()
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.is_some()
    }

    /// Takes the link away, for a TLS handshake or an end.
    pub(super) fn take_link(&mut self) -> Result<Link> {
        self.link.take().context("this connection is not open")
    }

    pub(super) fn put_link(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// From now on NATS bytes travel in WebSocket frames.
    pub(super) fn frame(&mut self) {
        self.framed = true;
    }

    /// Sends NATS bytes. A connection that the server has closed swallows them: reading will show the end.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if self.framed {
            self.send_raw(&Frame::binary(bytes.to_vec()).encode())
        } else {
            self.send_raw(bytes)
        }
    }

    /// Sends bytes past any framing.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        let link = self.link.as_mut().context("this connection is not open")?;
        if let Err(error) = link.send(bytes) {
            self.heard.push_str(&format!("\n(sending failed: {error})"));
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        // Fails only when the server was faster.
        let _ = self
            .link
            .as_mut()
            .context("this connection is not open")?
            .finish();
        Ok(())
    }

    /// The next operation, event or end.
    pub(super) fn next(&mut self, deadline: Deadline) -> Result<Heard> {
        loop {
            if let Some(op) = next_op(&mut self.inbox) {
                if op == Op::Ping && !self.keeps_pings {
                    self.send(b"PONG\r\n")?;
                    continue;
                }
                return Ok(Heard::Op(op));
            }
            if let Some(event) = self.events.pop_front() {
                return Ok(Heard::Event(event));
            }
            if self.ended {
                if self.inbox.is_empty() {
                    return Ok(Heard::End);
                }
                return Ok(Heard::Event(format!(
                    "half an operation: {}",
                    text_of(&std::mem::take(&mut self.inbox))
                )));
            }
            if !self.fill(deadline)? {
                return Ok(Heard::Silence);
            }
        }
    }

    /// Takes bytes from the front as they came: so many, or up to a line end. Fewer at the end or after silence.
    pub(super) fn take_raw(&mut self, wanted: Option<usize>, deadline: Deadline) -> Result<Vec<u8>> {
        loop {
            let end = match wanted {
                Some(len) => (self.inbox.len() >= len).then_some(len),
                None => self.inbox.iter().position(|&byte| byte == b'\n').map(|at| at + 1),
            };
            if let Some(end) = end {
                return Ok(self.inbox.drain(..end).collect());
            }
            if self.ended || !self.fill(deadline)? {
                return Ok(std::mem::take(&mut self.inbox));
            }
        }
    }

    /// Takes one WebSocket frame; `None` at the end or after silence.
    pub(super) fn take_frame(&mut self, deadline: Deadline) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = Frame::take(&mut self.wire) {
                return Ok(Some(frame));
            }
            if self.ended || !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Lets `take` find something in the bytes that came, outside the NATS protocol; `None` at the end or after
    /// silence.
    pub(super) fn take_with<T>(
        &mut self,
        deadline: Deadline,
        mut take: impl FnMut(&mut Vec<u8>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        loop {
            if let Some(found) = take(&mut self.wire)? {
                return Ok(Some(found));
            }
            if self.ended || !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Reads more NATS bytes; false when the deadline has passed.
    fn fill(&mut self, deadline: Deadline) -> Result<bool> {
        if self.wire.is_empty() && !self.receive(deadline)? {
            return Ok(false);
        }
        if !self.framed {
            self.inbox.append(&mut self.wire);
            return Ok(true);
        }
        loop {
            match Frame::take(&mut self.wire) {
                Some(frame) => self.unframe(frame),
                // Half a frame has to be completed before anything else can be found.
                None if self.wire.is_empty() || self.ended => return Ok(true),
                None if !self.receive(deadline)? => return Ok(false),
                None => {}
            }
        }
    }

    fn unframe(&mut self, frame: Frame) {
        match frame.opcode() {
            0..=2 => self.inbox.extend(frame.payload),
            8 => {
                let (code, reason) = frame.payload.split_at(frame.payload.len().min(2));
                let code = code.iter().fold(0_u32, |code, &byte| code << 8 | u32::from(byte));
                self.events.push_back(format!("CLOSE {code} {}", text_of(reason)));
            }
            opcode => self
                .events
                .push_back(format!("FRAME {opcode} {}", text_of(&frame.payload))),
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<bool> {
        let link = self.link.as_mut().context("this connection is not open")?;
        let Some(left) = deadline.left() else {
            return Ok(false);
        };
        match link.receive(&mut self.wire, left) {
            Got::Bytes => {}
            Got::Nothing => return Ok(false),
            Got::End => self.ended = true,
            Got::Broken(error) => {
                self.events.push_back(format!("broken: {error}"));
                self.ended = true;
            }
        }
        Ok(true)
    }
}
