//! Cutting the byte stream of a server into frames, as cheaply as a load generator must.
//!
//! Within a scenario every `MSG` a connection receives has the same length, so a frame is skipped, not
//! parsed: one look at its first byte, one addition. Control lines (`PING`, `PONG`, `INFO`, `+OK`) can
//! stand between any two frames and are told apart by that first byte. Anything else, `-ERR` and
//! unexpected frames included, is an error: a run that the server disturbed must not become a sample.
//!
//! Callers: `session` while connecting, `flood` and `pingpong` while measuring.

use anyhow::{Result, bail};

/// Counts fixed-length messages and control lines in a stream of bytes.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Length of each `MSG` from its first byte through the line end after the payload; zero: none is due.
    frame_len: usize,
    /// The beginning of a frame or line whose end has not come yet.
    partial: Vec<u8>,
    /// Complete messages seen.
    pub(crate) messages: u64,
    /// `PONG` lines seen.
    pub(crate) pongs: u64,
    /// `PING` lines seen; whoever owns the socket answers them.
    pub(crate) pings: u64,
}

impl Frames {
    /// From now on messages of `frame_len` bytes are expected.
    pub(crate) fn expect(&mut self, frame_len: usize) {
        self.frame_len = frame_len;
    }

    /// Takes in `bytes`; `on_message` gets each complete message.
    ///
    /// # Errors
    /// On a line the server only sends when something is wrong, or that cannot be understood.
    #[inline]
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut on_message: impl FnMut(&[u8])) -> Result<()> {
        while !bytes.is_empty() {
            if self.partial.is_empty() {
                bytes = self.whole_messages(bytes, &mut on_message);
                if bytes.is_empty() {
                    break;
                }
            }
            bytes = self.piece(bytes, &mut on_message)?;
        }
        Ok(())
    }

    /// Skips the messages that lie complete at the front.
    #[inline]
    fn whole_messages<'b>(&mut self, mut bytes: &'b [u8], on_message: &mut impl FnMut(&[u8])) -> &'b [u8] {
        let len = self.frame_len;
        if len > 0 {
            while bytes.len() >= len && bytes[0] == b'M' {
                on_message(&bytes[..len]);
                self.messages += 1;
                bytes = &bytes[len..];
            }
        }
        bytes
    }

    /// Takes a control line, or the part of a frame or line that has come.
    fn piece<'b>(&mut self, bytes: &'b [u8], on_message: &mut impl FnMut(&[u8])) -> Result<&'b [u8]> {
        let first = self.partial.first().copied().unwrap_or(bytes[0]);
        if first == b'M' && self.frame_len > 0 {
            let missing = self.frame_len - self.partial.len();
            let (part, rest) = bytes.split_at(missing.min(bytes.len()));
            self.partial.extend_from_slice(part);
            if self.partial.len() == self.frame_len {
                on_message(&self.partial);
                self.messages += 1;
                self.partial.clear();
            }
            return Ok(rest);
        }
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.partial.extend_from_slice(bytes);
            return Ok(&[]);
        };
        self.partial.extend_from_slice(&bytes[..=end]);
        self.control()?;
        self.partial.clear();
        Ok(&bytes[end + 1..])
    }

    fn control(&mut self) -> Result<()> {
        match self.partial.as_slice() {
            b"PONG\r\n" => self.pongs += 1,
            b"PING\r\n" => self.pings += 1,
            b"+OK\r\n" => {}
            line if line.starts_with(b"INFO ") => {}
            line => bail!("the server sent {:?}", String::from_utf8_lossy(line)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"INFO {}\r\nPONG\r\nMSG a 1 2\r\nxx\r\nPING\r\nMSG a 1 2\r\nyy\r\nMSG a 1 2\r\nzz\r\n";

    #[test]
    fn every_way_of_cutting_the_stream_counts_the_same() {
        for chunk in 1..STREAM.len() {
            let mut frames = Frames::default();
            frames.expect(b"MSG a 1 2\r\nxx\r\n".len());
            let mut payloads = Vec::new();
            for bytes in STREAM.chunks(chunk) {
                frames
                    .feed(bytes, |message| payloads.push(message[message.len() - 3]))
                    .unwrap();
            }
            assert_eq!(
                (frames.messages, frames.pongs, frames.pings),
                (3, 1, 1),
                "chunks of {chunk}"
            );
            assert_eq!(payloads, b"xyz", "chunks of {chunk}");
        }
    }

    #[test]
    fn errors_and_unexpected_messages_stop_the_run() {
        assert!(
            Frames::default()
                .feed(b"-ERR 'Slow Consumer'\r\n", |_| {})
                .is_err()
        );
        assert!(Frames::default().feed(b"MSG a 1 0\r\n\r\n", |_| {}).is_err());
        let mut frames = Frames::default();
        frames.expect(14);
        assert!(
            frames
                .feed(b"HMSG a 1 12 12\r\nNATS/1.0 503\r\n", |_| {})
                .is_err()
        );
    }
}
