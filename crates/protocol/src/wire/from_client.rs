//! [`ClientDecoder`]: reads what a client sends.
//!
//! Accepts every operation that a client may send to a server, including the odd ones that exist for symmetry
//! (`+OK`, `-ERR`, `INFO`). Says nothing about whether an operation is allowed now: authentication, subjects and
//! permissions are the server's. The one thing it does refuse on behalf of the connection is a message with headers
//! where they were not negotiated, because that must be refused before its payload is awaited.

use super::line::{
    Body, Found, Rest, Scan, Verb, Word, is_blank, is_blank_or_cr, parse_size, pick, sizes, split, word,
};
use super::{DEFAULT_MAX_CONTROL_LINE, DEFAULT_MAX_PAYLOAD, DecodeError, Malformed, Step};

/// One operation from a client. Slices borrow from the buffer given to [`ClientDecoder::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientOp<'b> {
    /// `CONNECT`: the JSON text, not looked at; see [`Connect`](super::Connect).
    Connect(&'b [u8]),
    /// `PING`.
    Ping,
    /// `PONG`.
    Pong,
    /// `+OK`.
    Ok,
    /// `INFO`: the JSON text, not looked at.
    Info(&'b [u8]),
    /// `-ERR`: the text as sent, quotes included.
    Err(&'b [u8]),
    /// `PUB`.
    Pub {
        /// Where to. Free of spaces, tabs and LF, not validated further.
        subject: &'b [u8],
        /// Where answers should go.
        reply: Option<&'b [u8]>,
        /// The message.
        payload: &'b [u8],
    },
    /// `HPUB`.
    HPub {
        /// Where to. Free of spaces, tabs and LF, not validated further.
        subject: &'b [u8],
        /// Where answers should go.
        reply: Option<&'b [u8]>,
        /// The length of the header block at the front of `message`; never more than its length, possibly 0.
        header_len: usize,
        /// Header block and payload.
        message: &'b [u8],
    },
    /// `SUB`.
    Sub {
        /// What to. Free of whitespace, not validated further.
        subject: &'b [u8],
        /// The queue group.
        queue: Option<&'b [u8]>,
        /// The client's name for the subscription: any bytes but whitespace.
        sid: &'b [u8],
    },
    /// `UNSUB`.
    Unsub {
        /// The client's name for the subscription.
        sid: &'b [u8],
        /// After how many deliveries since `SUB`. `None` means now, which is also how 0 and an unreadable number count.
        max: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientVerb {
    Connect,
    Ping,
    Pong,
    Ok,
    Info,
    Err,
    Pub,
    HPub,
    Sub,
    Unsub,
}

impl Verb for ClientVerb {
    #[inline]
    fn find(buf: &[u8]) -> Found<Self> {
        let Some(first) = buf.first() else {
            return Found::Prefix;
        };
        match first.to_ascii_lowercase() {
            b'p' => pick(
                buf,
                &[(b"pub", Self::Pub), (b"ping", Self::Ping), (b"pong", Self::Pong)],
            ),
            b'h' => pick(buf, &[(b"hpub", Self::HPub)]),
            b's' => pick(buf, &[(b"sub", Self::Sub)]),
            b'u' => pick(buf, &[(b"unsub", Self::Unsub)]),
            b'c' => pick(buf, &[(b"connect", Self::Connect)]),
            b'i' => pick(buf, &[(b"info", Self::Info)]),
            b'+' => pick(buf, &[(b"+ok", Self::Ok)]),
            b'-' => pick(buf, &[(b"-err", Self::Err)]),
            _ => Found::Nothing,
        }
    }

    #[inline]
    fn rest(self) -> Rest {
        match self {
            Self::Ping | Self::Pong | Self::Ok => Rest::Ignored,
            Self::Connect | Self::Info => Rest::Json,
            Self::Err | Self::Pub | Self::HPub | Self::Sub | Self::Unsub => Rest::Words,
        }
    }
}

/// Reads the operations of one client connection. The settings may be changed between any two calls.
#[derive(Debug, Clone)]
pub struct ClientDecoder {
    /// Longest argument text of a control line, in bytes. Default [`DEFAULT_MAX_CONTROL_LINE`].
    pub max_control_line: usize,
    /// Largest message, header block included, in bytes; negative means no limit. Default [`DEFAULT_MAX_PAYLOAD`].
    pub max_payload: i64,
    /// Whether `HPUB` is accepted. Default true.
    pub headers: bool,
    scan: Scan<ClientVerb>,
    body: Option<Body>,
}

impl Default for ClientDecoder {
    fn default() -> Self {
        Self {
            max_control_line: DEFAULT_MAX_CONTROL_LINE,
            max_payload: DEFAULT_MAX_PAYLOAD,
            headers: true,
            scan: Scan::Verb,
            body: None,
        }
    }
}

impl ClientDecoder {
    /// A decoder at the start of a connection, with the default limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the decoder stands between two operations; false after an [`Step::Incomplete`] that began one. A
    /// connection that ends here ended cleanly.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.body.is_none() && self.scan == Scan::Verb
    }

    /// Reads the operation at the front of `buf`. See the [module documentation](super) for the contract.
    ///
    /// # Errors
    ///
    /// When the bytes are not the protocol or are over a limit; the connection cannot be continued then.
    #[inline]
    pub fn decode<'b>(&mut self, buf: &'b [u8]) -> Result<Step<ClientOp<'b>>, DecodeError> {
        if let Some(body) = self.body {
            return self.message(buf, body);
        }
        let Some(line) = self.scan.line(buf, self.max_control_line)? else {
            return Ok(Step::Incomplete { want: buf.len() + 1 });
        };
        let (start, end) = (line.start, line.end);
        let op = match line.verb {
            ClientVerb::Pub => {
                let body = self.pub_body(buf, start, end, line.next)?;
                return self.message(buf, body);
            }
            ClientVerb::HPub => {
                let body = self.hpub_body(buf, start, end, line.next)?;
                return self.message(buf, body);
            }
            ClientVerb::Sub => sub(buf, start, end)?,
            ClientVerb::Unsub => unsub(buf, start, end)?,
            ClientVerb::Ping => ClientOp::Ping,
            ClientVerb::Pong => ClientOp::Pong,
            ClientVerb::Ok => ClientOp::Ok,
            ClientVerb::Connect => ClientOp::Connect(&buf[start..end]),
            ClientVerb::Info => ClientOp::Info(&buf[start..end]),
            ClientVerb::Err => ClientOp::Err(&buf[start..end]),
        };
        Ok(Step::Op {
            op,
            consumed: line.next,
        })
    }

    #[inline]
    fn pub_body(&self, buf: &[u8], start: usize, end: usize, next: usize) -> Result<Body, DecodeError> {
        let (subject, reply, total) = match split::<3>(buf, start, end, is_blank) {
            Some(([subject, total, _], 2)) => (subject, None, total),
            Some(([subject, reply, total], 3)) => (subject, Some(reply), total),
            _ => return Err(argument_count("PUB")),
        };
        let (header_len, size) = sizes(buf, "PUB", None, total, self.max_payload)?;
        Ok(Body {
            subject,
            sid: NO_SID,
            reply,
            header_len,
            start: next,
            size,
        })
    }

    fn hpub_body(&self, buf: &[u8], start: usize, end: usize, next: usize) -> Result<Body, DecodeError> {
        if !self.headers {
            return Err(DecodeError::HeadersNotNegotiated);
        }
        let (subject, reply, header, total) = match split::<4>(buf, start, end, is_blank) {
            Some(([subject, header, total, _], 3)) => (subject, None, header, total),
            Some(([subject, reply, header, total], 4)) => (subject, Some(reply), header, total),
            _ => return Err(argument_count("HPUB")),
        };
        let (header_len, size) = sizes(buf, "HPUB", Some(header), total, self.max_payload)?;
        Ok(Body {
            subject,
            sid: NO_SID,
            reply,
            header_len,
            start: next,
            size,
        })
    }

    /// Completes a message, or remembers it until its bytes are there.
    #[inline]
    fn message<'b>(&mut self, buf: &'b [u8], body: Body) -> Result<Step<ClientOp<'b>>, DecodeError> {
        match body.take(buf) {
            Ok(Step::Op {
                op: message,
                consumed,
            }) => {
                self.body = None;
                let subject = word(buf, body.subject);
                let reply = body.reply.map(|at| word(buf, at));
                let op = match body.header_len {
                    None => ClientOp::Pub {
                        subject,
                        reply,
                        payload: message,
                    },
                    Some(header_len) => ClientOp::HPub {
                        subject,
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

const NO_SID: Word = (0, 0);

fn argument_count(verb: &'static str) -> DecodeError {
    DecodeError::Malformed {
        verb,
        reason: Malformed::ArgumentCount,
    }
}

fn sub(buf: &[u8], start: usize, end: usize) -> Result<ClientOp<'_>, DecodeError> {
    match split::<3>(buf, start, end, is_blank_or_cr) {
        Some(([subject, sid, _], 2)) => Ok(ClientOp::Sub {
            subject: word(buf, subject),
            queue: None,
            sid: word(buf, sid),
        }),
        Some(([subject, queue, sid], 3)) => Ok(ClientOp::Sub {
            subject: word(buf, subject),
            queue: Some(word(buf, queue)),
            sid: word(buf, sid),
        }),
        _ => Err(argument_count("SUB")),
    }
}

fn unsub(buf: &[u8], start: usize, end: usize) -> Result<ClientOp<'_>, DecodeError> {
    match split::<2>(buf, start, end, is_blank_or_cr) {
        Some(([sid, _], 1)) => Ok(ClientOp::Unsub {
            sid: word(buf, sid),
            max: None,
        }),
        Some(([sid, max], 2)) => {
            let max = parse_size(word(buf, max))
                .filter(|&max| max > 0)
                .map(|max| max as u64);
            Ok(ClientOp::Unsub {
                sid: word(buf, sid),
                max,
            })
        }
        _ => Err(argument_count("UNSUB")),
    }
}
