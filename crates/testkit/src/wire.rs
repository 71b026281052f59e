//! What a NATS server sends to a client, cut into operations.
//!
//! [`next_op`] takes one whole operation from the front of a buffer. It is lenient where clients are (runs of blanks,
//! a missing CR) and keeps what it does not know as [`Op::Other`], because the parity runner has to show whatever a
//! server says. It is test code, independent of the codec under test on purpose.

use std::io::{self, ErrorKind, Read};

/// Reads once, and again when a signal came between: a socket with a time-out reports one even where nobody handles it,
/// such as the stop and continuation of the whole process.
///
/// # Errors
/// Any other error of the reader.
pub fn read_some(mut from: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// One operation as a server sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// `INFO`: the text behind the verb, blanks at its end included.
    Info(String),
    /// `MSG` or `HMSG`.
    Msg(Message),
    /// `PING`.
    Ping,
    /// `PONG`.
    Pong,
    /// Any other line, such as `+OK` and `-ERR '...'`.
    Other(String),
}

/// A delivered message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The words of the control line: verb, subject, sid, reply if any, sizes.
    pub control: Vec<String>,
    /// The header block with its blank line; `None` for `MSG`.
    pub headers: Option<Vec<u8>>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Takes the first operation out of `buffer`; `None` when it is not all there yet.
pub fn next_op(buffer: &mut Vec<u8>) -> Option<Op> {
    let end = buffer.iter().position(|&byte| byte == b'\n')?;
    let line = &buffer[..end];
    let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
    let words: Vec<String> = line
        .split([' ', '\t'])
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    match words.first().map(|verb| verb.to_ascii_uppercase()).as_deref() {
        Some("MSG") => message(buffer, end + 1, words, &line, 4),
        Some("HMSG") => message(buffer, end + 1, words, &line, 5),
        verb => {
            buffer.drain(..=end);
            Some(match verb {
                Some("INFO") => Op::Info(line[4..].trim_start().to_owned()),
                Some("PING") if words.len() == 1 => Op::Ping,
                Some("PONG") if words.len() == 1 => Op::Pong,
                _ => Op::Other(line),
            })
        }
    }
}

fn message(
    buffer: &mut Vec<u8>,
    body: usize,
    control: Vec<String>,
    line: &str,
    words_min: usize,
) -> Option<Op> {
    let size = |from_end: usize| control[control.len() - from_end].parse::<usize>().ok();
    let sizes = if (words_min..=words_min + 1).contains(&control.len()) {
        match words_min {
            5 => size(2).zip(size(1)).filter(|(head, total)| head <= total),
            _ => size(1).map(|total| (0, total)),
        }
    } else {
        None
    };
    let Some((head, total)) = sizes else {
        buffer.drain(..body);
        return Some(Op::Other(line.to_owned()));
    };
    if buffer.len() < body + total + 2 {
        return None;
    }
    let content = buffer[body..body + total].to_vec();
    let closed = &buffer[body + total..body + total + 2] == b"\r\n";
    buffer.drain(..body + total + 2);
    if !closed {
        return Some(Op::Other(format!("{line} (payload not closed by CR LF)")));
    }
    let headers = (words_min == 5).then(|| content[..head].to_vec());
    Some(Op::Msg(Message {
        control,
        headers,
        payload: content[head..].to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<Op> {
        let mut buffer = bytes.to_vec();
        std::iter::from_fn(|| next_op(&mut buffer)).collect()
    }

    #[test]
    fn operations_come_out_in_order() {
        let ops = all(b"INFO {\"a\":1} \r\nPING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\nMSG a 1 r 2\r\nhi\r\n");
        assert_eq!(ops[0], Op::Info("{\"a\":1} ".into()));
        assert_eq!(ops[1..3], [Op::Ping, Op::Pong]);
        assert_eq!(ops[3..5], [Op::Other("+OK".into()), Op::Other("-ERR 'x'".into())]);
        let control = ["MSG", "a", "1", "r", "2"].map(str::to_owned).to_vec();
        assert_eq!(
            ops[5],
            Op::Msg(Message {
                control,
                headers: None,
                payload: b"hi".to_vec()
            })
        );
        assert_eq!(ops.len(), 6);
    }

    #[test]
    fn headers_are_split_from_the_payload() {
        let ops = all(b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n");
        let Op::Msg(message) = &ops[0] else {
            panic!("{ops:?}")
        };
        assert_eq!(message.headers.as_deref(), Some(b"NATS/1.0\r\n\r\n".as_slice()));
        assert_eq!(message.payload, b"hi");
    }

    #[test]
    fn an_operation_waits_for_its_last_byte() {
        let whole = b"MSG a 1 2\r\nhi\r\n";
        for cut in 0..whole.len() {
            assert_eq!(next_op(&mut whole[..cut].to_vec()), None, "{cut}");
        }
    }

    #[test]
    fn a_control_line_that_makes_no_sense_is_shown_as_it_is() {
        assert_eq!(all(b"MSG a 1\r\n"), [Op::Other("MSG a 1".into())]);
        assert_eq!(all(b"HMSG a 1 9 3\r\n"), [Op::Other("HMSG a 1 9 3".into())]);
    }
}
