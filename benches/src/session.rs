//! One raw connection to a server: handshake and setup blocking, measuring without blocking.
//!
//! Bytes to send are prepared before the clock starts; what comes in is counted by [`Frames`]. A
//! [`Session`] is opened and set up with blocking calls (simple, and outside the measured stretch, except
//! where connecting is what is measured), then turned into a [`Link`] that the load loops drive by
//! readiness, edge triggered.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use mio::{Interest, Registry, Token};

use crate::frames::Frames;

/// How long a server may take for an answer before the run is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How much one read takes in.
pub(crate) const READ_LEN: usize = 256 * 1024;

const CONNECT: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"raw\",\"version\":\"1\",\
    \"protocol\":1,\"headers\":true,\"no_responders\":true}\r\nPING\r\n";

/// A connection that blocks.
#[derive(Debug)]
pub(crate) struct Session {
    stream: TcpStream,
    frames: Frames,
}

impl Session {
    /// Connects and waits until the server has answered `CONNECT` and `PING`.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut session = Self {
            stream,
            frames: Frames::default(),
        };
        // The reference server speaks first; waiting for its INFO is what every client does.
        let mut info = [0; 4096];
        let mut len = 0;
        while !info[..len].contains(&b'\n') {
            match session
                .stream
                .read(&mut info[len..])
                .context("waiting for INFO")?
            {
                0 => bail!("the server closed the connection before its INFO"),
                n => len += n,
            }
        }
        session.frames.feed(&info[..len], |_| {})?;
        session.stream.write_all(CONNECT)?;
        session.wait_for_pong(1)?;
        Ok(session)
    }

    /// Subscribes with `sid` 1; later messages are expected to be `frame_len` bytes long.
    pub(crate) fn subscribe(&mut self, subject: &str, group: &str, frame_len: usize) -> Result<()> {
        self.frames.expect(frame_len);
        self.stream
            .write_all(format!("SUB {subject} {group} 1\r\n").as_bytes())?;
        self.sync()
    }

    /// Subscribes to all `subjects`, none of which will be published to.
    pub(crate) fn subscribe_many(&mut self, subjects: impl Iterator<Item = String>) -> Result<()> {
        let lines: String = subjects
            .enumerate()
            .map(|(sid, subject)| format!("SUB {subject} {}\r\n", sid + 1))
            .collect();
        self.stream.write_all(lines.as_bytes())?;
        self.sync()
    }

    /// Returns when the server has worked through all that was sent so far.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let wanted = self.frames.pongs + 1;
        self.stream.write_all(b"PING\r\n")?;
        self.wait_for_pong(wanted)
    }

    fn wait_for_pong(&mut self, wanted: u64) -> Result<()> {
        let mut buffer = [0; 4096];
        while self.frames.pongs < wanted {
            let len = self.stream.read(&mut buffer).context("waiting for PONG")?;
            if len == 0 {
                bail!("the server closed the connection");
            }
            self.frames.feed(&buffer[..len], |_| {})?;
            while self.frames.pings > 0 {
                self.frames.pings -= 1;
                self.stream.write_all(b"PONG\r\n")?;
            }
        }
        Ok(())
    }

    /// Goes over to readiness, registered as `token`.
    pub(crate) fn into_link(self, registry: &Registry, token: usize) -> Result<Link> {
        self.stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(self.stream);
        registry.register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Link {
            stream,
            frames: self.frames,
            readable: true,
            writable: true,
            closed: false,
        })
    }
}

/// A connection that never blocks.
#[derive(Debug)]
pub(crate) struct Link {
    stream: mio::net::TcpStream,
    /// What has come in.
    pub(crate) frames: Frames,
    /// There may be something to read.
    pub(crate) readable: bool,
    /// The socket may take something.
    pub(crate) writable: bool,
    closed: bool,
}

impl Link {
    /// Notes what the poll reported.
    pub(crate) fn ready(&mut self, event: &mio::event::Event) {
        self.readable |= event.is_readable();
        self.writable |= event.is_writable();
        self.closed |= event.is_read_closed();
    }

    /// Reads once, answers the server's pings, hands complete messages to `on_message`.
    pub(crate) fn read(&mut self, buffer: &mut [u8], on_message: impl FnMut(&[u8])) -> Result<()> {
        match self.stream.read(buffer) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(len) => {
                // A short read has emptied the socket: the next arrival raises a new edge. Except at the
                // end of the stream, where no further edge comes.
                self.readable = len == buffer.len() || self.closed;
                self.frames.feed(&buffer[..len], on_message)?;
                while self.frames.pings > 0 {
                    self.frames.pings -= 1;
                    self.write_all(b"PONG\r\n")?;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Err(error) => return Err(error).context("reading"),
        }
        Ok(())
    }

    /// Writes as much of `bytes` as the socket takes in one call.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self.stream.write(bytes) {
            Ok(len) => Ok(len),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(0)
            }
            Err(error) => Err(error).context("writing"),
        }
    }

    /// Writes a few bytes that the socket is known to have room for.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        if self.write(bytes)? != bytes.len() {
            bail!("the socket did not take {} bytes", bytes.len());
        }
        Ok(())
    }
}

/// `count` publishes of `payload` as they go over the wire.
pub(crate) fn publishes(subject: &str, reply: &str, payload: &[u8], count: usize) -> Vec<u8> {
    let mut head = format!("PUB {subject} ");
    if !reply.is_empty() {
        let _infallible = write!(head, "{reply} ");
    }
    let _infallible = write!(head, "{}\r\n", payload.len());
    let one = [head.as_bytes(), payload, b"\r\n"].concat();
    one.repeat(count)
}

/// The length of the `MSG` a subscriber with `sid` 1 receives for such a publish.
pub(crate) fn message_len(subject: &str, reply: &str, payload_len: usize) -> usize {
    let reply = if reply.is_empty() {
        String::new()
    } else {
        format!("{reply} ")
    };
    format!("MSG {subject} 1 {reply}{payload_len}\r\n").len() + payload_len + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_bytes_have_the_form_of_the_protocol() {
        assert_eq!(
            publishes("a.b", "", b"xyz", 2),
            b"PUB a.b 3\r\nxyz\r\nPUB a.b 3\r\nxyz\r\n"
        );
        assert_eq!(publishes("a", "r.1", b"", 1), b"PUB a r.1 0\r\n\r\n");
    }

    #[test]
    fn message_length_is_that_of_the_frame() {
        assert_eq!(message_len("a.b", "", 3), b"MSG a.b 1 3\r\nxyz\r\n".len());
        assert_eq!(
            message_len("a", "r.1", 10),
            b"MSG a 1 r.1 10\r\n0123456789\r\n".len()
        );
    }
}
