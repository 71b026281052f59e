//! A minimal HTTP/1.1 client: one request, one connection, the answer as it came.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::deadline::Deadline;
use crate::link::{Got, Link};

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status line, `HTTP/1.1 200 OK`.
    pub status: String,
    /// The header fields in their order.
    pub headers: Vec<(String, String)>,
    /// The body, with chunks joined.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// Sends `METHOD path` to `addr` over plain TCP and reads the answer to the end of the connection.
///
/// # Errors
/// When nobody answers within `wait`, or not in HTTP.
pub fn request(addr: SocketAddr, method: &str, path: &str, wait: Duration) -> Result<Response> {
    exchange(Link::dial(addr)?, method, path, wait)
}

/// The same over a link that exists already.
///
/// # Errors
/// As [`request`].
pub fn exchange(mut link: Link, method: &str, path: &str, wait: Duration) -> Result<Response> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    link.send(head.as_bytes())?;
    let deadline = Deadline::after(wait);
    let mut bytes = Vec::new();
    loop {
        let Some(left) = deadline.left() else {
            bail!("no whole answer to {method} {path} within {wait:?}")
        };
        match link.receive(&mut bytes, left) {
            Got::Bytes | Got::Nothing => {}
            Got::End => break,
            Got::Broken(error) => bail!("{method} {path}: {error}"),
        }
    }
    parse(&bytes).with_context(|| format!("the answer to {method} {path}"))
}

/// Takes the head of an answer from the front of `buffer` when it is all there.
///
/// # Errors
/// When it is not HTTP.
pub fn take_head(buffer: &mut Vec<u8>) -> Result<Option<Response>> {
    let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head: Vec<u8> = buffer.drain(..end + 4).collect();
    let head = String::from_utf8_lossy(&head[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().context("a status line")?.to_owned();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').with_context(|| format!("header {line:?}"))?;
        Ok((name.to_owned(), value.trim().to_owned()))
    });
    Ok(Some(Response {
        status,
        headers: headers.collect::<Result<_>>()?,
        body: Vec::new(),
    }))
}

fn parse(bytes: &[u8]) -> Result<Response> {
    let mut rest = bytes.to_vec();
    let mut response = take_head(&mut rest)?.context("a whole head")?;
    let chunked = response
        .header("transfer-encoding")
        .is_some_and(|coding| coding == "chunked");
    response.body = if chunked { join_chunks(&rest)? } else { rest };
    Ok(response)
}

fn join_chunks(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest
            .windows(2)
            .position(|window| window == b"\r\n")
            .context("a chunk's length")?;
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..end])?.trim(), 16)?;
        if len == 0 {
            return Ok(body);
        }
        rest = &rest[end + 2..];
        body.extend_from_slice(rest.get(..len).context("a whole chunk")?);
        rest = rest.get(len + 2..).context("a chunk's end")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_answer_is_split_into_its_parts() {
        let response = parse(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        assert_eq!(response.status, "HTTP/1.1 200 OK");
        assert_eq!(response.header("content-type"), Some("a/b"));
        assert_eq!(response.body, b"hi");
    }

    #[test]
    fn chunks_are_joined() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(parse(bytes).unwrap().body, b"hi0123456789");
    }

    #[test]
    fn half_an_answer_is_an_error() {
        assert!(parse(b"HTTP/1.1 200 OK\r\n").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi").is_err());
    }
}
