//! [`ServerDecoder`]: reads what a server sends.
//!
//! For tests, tools and benchmarks. It accepts what the reference server sends, including doubled spaces on message
//! lines and the space before the line end of `INFO`, and has the same contract as the other direction.

use super::line::{Body, Found, Rest, Scan, Verb, is_blank, pick, sizes, split, word};
use super::{DecodeError, Malformed, Step};

/// One operation from a server. Slices borrow from the buffer given to [`ServerDecoder::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerOp<'b> {
    /// `INFO`: the JSON text without surrounding whitespace; see [`ServerInfo`](super::ServerInfo).
    Info(&'b [u8]),
    /// `MSG`.
    Msg {
        /// The published subject.
        subject: &'b [u8],
        /// The subscription it is for.
        sid: &'b [u8],
        /// Where answers should go.
        reply: Option<&'b [u8]>,
        /// The message.
        payload: &'b [u8],
    },
    /// `HMSG`.
    HMsg {
        /// The published subject.
        subject: &'b [u8],
        /// The subscription it is for.
        sid: &'b [u8],
        /// Where answers should go.
        reply: Option<&'b [u8]>,
        /// The length of the header block at the front of `message`; never more than its length.
        header_len: usize,
        /// Header block and payload.
        message: &'b [u8],
    },
    /// `PING`.
    Ping,
    /// `PONG`.
    Pong,
    /// `+OK`.
    Ok,
    /// `-ERR`: the text without the quotes around it.
    Err(&'b [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerVerb {
    Info,
    Msg,
    HMsg,
    Ping,
    Pong,
    Ok,
    Err,
}

impl Verb for ServerVerb {
    #[inline]
    fn find(buf: &[u8]) -> Found<Self> {
        let Some(first) = buf.first() else {
            return Found::Prefix;
        };
        match first.to_ascii_lowercase() {
            b'm' => pick(buf, &[(b"msg", Self::Msg)]),
            b'h' => pick(buf, &[(b"hmsg", Self::HMsg)]),
            b'p' => pick(buf, &[(b"ping", Self::Ping), (b"pong", Self::Pong)]),
            b'+' => pick(buf, &[(b"+ok", Self::Ok)]),
            b'-' => pick(buf, &[(b"-err", Self::Err)]),
            b'i' => pick(buf, &[(b"info", Self::Info)]),
            _ => Found::Nothing,
        }
    }

    #[inline]
    fn rest(self) -> Rest {
        match self {
            Self::Ping | Self::Pong | Self::Ok => Rest::Ignored,
            Self::Info => Rest::Json,
            Self::Msg | Self::HMsg | Self::Err => Rest::Words,
        }
    }
}

/// Reads the operations of one connection to a server. The settings may be changed between any two calls.
#[derive(Debug, Clone)]
pub struct ServerDecoder {
    /// Longest argument text of a control line, in bytes. Default 1 MiB, as `INFO` may list many servers.
    pub max_control_line: usize,
    /// Largest message, header block included, in bytes; negative means no limit, which is the default.
    pub max_payload: i64,
    scan: Scan<ServerVerb>,
    body: Option<Body>,
}

impl Default for ServerDecoder {
    fn default() -> Self {
        Self {
            max_control_line: 1024 * 1024,
            max_payload: -1,
            scan: Scan::Verb,
            body: None,
        }
    }
}

impl ServerDecoder {
    /// A decoder at the start of a connection, with the default limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the operation at the front of `buf`. See the [module documentation](super) for the contract.
    ///
    /// # Errors
    ///
    /// When the bytes are not the protocol or are over a limit; the connection cannot be continued then.
    #[inline]
    pub fn decode<'b>(&mut self, buf: &'b [u8]) -> Result<Step<ServerOp<'b>>, DecodeError> {
        if let Some(body) = self.body {
            return self.message(buf, body);
        }
        let Some(line) = self.scan.line(buf, self.max_control_line)? else {
            return Ok(Step::Incomplete { want: buf.len() + 1 });
        };
        let text = &buf[line.start..line.end];
        let op = match line.verb {
            ServerVerb::Msg | ServerVerb::HMsg => {
                let headers = line.verb == ServerVerb::HMsg;
                let body = self.body(buf, headers, line.start, line.end, line.next)?;
                return self.message(buf, body);
            }
            ServerVerb::Info => ServerOp::Info(text.trim_ascii()),
            ServerVerb::Ping => ServerOp::Ping,
            ServerVerb::Pong => ServerOp::Pong,
            ServerVerb::Ok => ServerOp::Ok,
            ServerVerb::Err => ServerOp::Err(unquote(text.trim_ascii())),
        };
        Ok(Step::Op {
            op,
            consumed: line.next,
        })
    }

    #[inline]
    fn body(
        &self,
        buf: &[u8],
        headers: bool,
        start: usize,
        end: usize,
        next: usize,
    ) -> Result<Body, DecodeError> {
        let verb = if headers { "HMSG" } else { "MSG" };
        let (subject, sid, reply, header, total) = match (split::<5>(buf, start, end, is_blank), headers) {
            (Some(([subject, sid, total, ..], 3)), false) => (subject, sid, None, None, total),
            (Some(([subject, sid, reply, total, _], 4)), false) => (subject, sid, Some(reply), None, total),
            (Some(([subject, sid, header, total, _], 4)), true) => (subject, sid, None, Some(header), total),
            (Some(([subject, sid, reply, header, total], 5)), true) => {
                (subject, sid, Some(reply), Some(header), total)
            }
            _ => {
                return Err(DecodeError::Malformed {
                    verb,
                    reason: Malformed::ArgumentCount,
                });
            }
        };
        let (header_len, size) = sizes(buf, verb, header, total, self.max_payload)?;
        Ok(Body {
            subject,
            sid,
            reply,
            header_len,
            start: next,
            size,
        })
    }

    /// Completes a message, or remembers it until its bytes are there.
    #[inline]
    fn message<'b>(&mut self, buf: &'b [u8], body: Body) -> Result<Step<ServerOp<'b>>, DecodeError> {
        match body.take(buf) {
            Ok(Step::Op {
                op: message,
                consumed,
            }) => {
                self.body = None;
                let subject = word(buf, body.subject);
                let sid = word(buf, body.sid);
                let reply = body.reply.map(|at| word(buf, at));
                let op = match body.header_len {
                    None => ServerOp::Msg {
                        subject,
                        sid,
                        reply,
                        payload: message,
                    },
                    Some(header_len) => ServerOp::HMsg {
                        subject,
                        sid,
                        reply,
                        header_len,
                        message,
                    },
                };
                Ok(Step::Op { op, consumed })
            }
            Ok(Step::Incomplete { want }) => {
                self.body = Some(body);
                Ok(Step::Incomplete { want })
            }
            Err(error) => {
                self.body = Some(body);
                Err(error)
            }
        }
    }
}

/// The text between a pair of single quotes, or all of it.
fn unquote(text: &[u8]) -> &[u8] {
    match text {
        [b'\'', inner @ .., b'\''] => inner,
        _ => text,
    }
}
