//! The wire codec: the specification's tables row by row, limits, every split of long streams, round trips.

mod grammar;
mod handshake;
mod limits;
mod round_trip;

use super::*;

/// What a stream of bytes turned into: the operations as text, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    ops: Vec<String>,
    error: Option<DecodeError>,
    left: usize,
}

/// Drives a decoder over chunks the way a connection does, checking the contract on the way.
fn drive<'c>(
    chunks: impl IntoIterator<Item = &'c [u8]>,
    mut decode: impl FnMut(&[u8]) -> Result<Step<String>, DecodeError>,
) -> Outcome {
    let mut buf: Vec<u8> = Vec::new();
    let mut ops = Vec::new();
    let mut wanted = 1;
    for chunk in chunks {
        buf.extend_from_slice(chunk);
        loop {
            match decode(&buf) {
                Ok(Step::Op { op, consumed }) => {
                    assert!(
                        consumed > 0 && consumed <= buf.len(),
                        "consumed {consumed} of {}",
                        buf.len()
                    );
                    assert!(
                        buf.len() >= wanted,
                        "an operation came before the wanted {wanted} bytes"
                    );
                    buf.drain(..consumed);
                    ops.push(op);
                    wanted = 1;
                }
                Ok(Step::Incomplete { want }) => {
                    assert!(want > buf.len(), "wants {want}, has {}", buf.len());
                    wanted = want;
                    break;
                }
                Err(error) => {
                    assert_eq!(decode(&buf), Err(error), "an error must repeat");
                    return Outcome {
                        ops,
                        error: Some(error),
                        left: buf.len(),
                    };
                }
            }
        }
    }
    Outcome {
        ops,
        error: None,
        left: buf.len(),
    }
}

fn from_client_with<'c>(mut decoder: ClientDecoder, chunks: impl IntoIterator<Item = &'c [u8]>) -> Outcome {
    drive(chunks, |buf| {
        decoder.decode(buf).map(|step| match step {
            Step::Op { op, consumed } => Step::Op {
                op: show_client(&op),
                consumed,
            },
            Step::Incomplete { want } => Step::Incomplete { want },
        })
    })
}

/// A decoder with limits of its own.
fn limited(max_control_line: usize, max_payload: i64) -> ClientDecoder {
    let mut decoder = ClientDecoder::new();
    decoder.max_control_line = max_control_line;
    decoder.max_payload = max_payload;
    decoder
}

fn from_client(bytes: &[u8]) -> Outcome {
    from_client_with(ClientDecoder::new(), [bytes])
}

fn from_server(bytes: &[u8]) -> Outcome {
    let mut decoder = ServerDecoder::new();
    drive([bytes], |buf| {
        decoder.decode(buf).map(|step| match step {
            Step::Op { op, consumed } => Step::Op {
                op: show_server(&op),
                consumed,
            },
            Step::Incomplete { want } => Step::Incomplete { want },
        })
    })
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn optional(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "-".into(), text)
}

fn show_client(op: &ClientOp<'_>) -> String {
    match *op {
        ClientOp::Connect(json) => format!("CONNECT {}", text(json)),
        ClientOp::Ping => "PING".into(),
        ClientOp::Pong => "PONG".into(),
        ClientOp::Ok => "+OK".into(),
        ClientOp::Info(json) => format!("INFO {}", text(json)),
        ClientOp::Err(message) => format!("-ERR {}", text(message)),
        ClientOp::Pub {
            subject,
            reply,
            payload,
        } => {
            format!("PUB {} {} [{}]", text(subject), optional(reply), text(payload))
        }
        ClientOp::HPub {
            subject,
            reply,
            header_len,
            message,
        } => {
            format!(
                "HPUB {} {} {header_len} [{}]",
                text(subject),
                optional(reply),
                text(message)
            )
        }
        ClientOp::Sub { subject, queue, sid } => {
            format!("SUB {} {} {}", text(subject), optional(queue), text(sid))
        }
        ClientOp::Unsub { sid, max } => format!("UNSUB {} {max:?}", text(sid)),
    }
}

fn show_server(op: &ServerOp<'_>) -> String {
    match *op {
        ServerOp::Info(json) => format!("INFO {}", text(json)),
        ServerOp::Msg {
            subject,
            sid,
            reply,
            payload,
        } => {
            format!(
                "MSG {} {} {} [{}]",
                text(subject),
                text(sid),
                optional(reply),
                text(payload)
            )
        }
        ServerOp::HMsg {
            subject,
            sid,
            reply,
            header_len,
            message,
        } => {
            let (subject, sid, reply) = (text(subject), text(sid), optional(reply));
            format!("HMSG {subject} {sid} {reply} {header_len} [{}]", text(message))
        }
        ServerOp::Ping => "PING".into(),
        ServerOp::Pong => "PONG".into(),
        ServerOp::Ok => "+OK".into(),
        ServerOp::Err(message) => format!("-ERR {}", text(message)),
    }
}

fn malformed(verb: &'static str, reason: Malformed) -> DecodeError {
    DecodeError::Malformed { verb, reason }
}
