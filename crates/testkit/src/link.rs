//! A client's byte stream to a server: TCP, or TLS over it, blocking with deadlines.
//!
//! [`Link`] writes bytes exactly as given and reads whatever comes within a time. The ends of a stream that the two
//! peers' kernels decide by chance (FIN or RST after a close with unread data) are one thing here: [`Got::End`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// What a read brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    /// Bytes, added to the buffer.
    Bytes,
    /// Nothing within the time.
    Nothing,
    /// The stream has ended.
    End,
    /// The stream broke, for instance by a TLS alert.
    Broken(String),
}

/// An open byte stream.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    /// Connects to `addr`.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn dial(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, Duration::from_secs(5))
            .with_context(|| format!("connecting to {addr}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: Stream::Plain(stream),
        })
    }

    /// Does a TLS handshake over this link and tells the protocol version agreed on.
    ///
    /// # Errors
    /// When the handshake fails; the link is then closed.
    pub fn upgrade(self, config: Arc<ClientConfig>, name: &str, wait: Duration) -> Result<(Self, String)> {
        let Stream::Plain(mut tcp) = self.stream else {
            anyhow::bail!("this link speaks TLS already")
        };
        tcp.set_read_timeout(Some(wait))?;
        let mut session = ClientConnection::new(config, ServerName::try_from(name.to_owned())?)?;
        while session.is_handshaking() {
            session.complete_io(&mut tcp)?;
        }
        let version = session
            .protocol_version()
            .map_or("", |version| version.as_str().unwrap_or(""))
            .to_owned();
        Ok((
            Self {
                stream: Stream::Tls(Box::new(StreamOwned::new(session, tcp))),
            },
            version,
        ))
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// When the peer is gone or does not read for ten seconds.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tcp().set_write_timeout(Some(Duration::from_secs(10)))?;
        match &mut self.stream {
            Stream::Plain(tcp) => tcp.write_all(bytes),
            Stream::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
        }
    }

    /// Reads once into `buffer`, waiting at most `wait`.
    pub fn receive(&mut self, buffer: &mut Vec<u8>, wait: Duration) -> Got {
        let mut chunk = [0; 64 * 1024];
        if let Err(error) = self
            .tcp()
            .set_read_timeout(Some(wait.max(Duration::from_millis(1))))
        {
            return Got::Broken(error.to_string());
        }
        let read = match &mut self.stream {
            Stream::Plain(tcp) => tcp.read(&mut chunk),
            Stream::Tls(tls) => tls.read(&mut chunk),
        };
        match read {
            Ok(0) => Got::End,
            Ok(len) => {
                buffer.extend_from_slice(&chunk[..len]);
                Got::Bytes
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Got::Nothing,
                ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof => Got::End,
                _ => Got::Broken(error.to_string()),
            },
        }
    }

    /// Ends the writing half; the peer sees the end of the stream and may still answer.
    ///
    /// # Errors
    /// When the stream is gone already.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Stream::Tls(tls) = &mut self.stream {
            tls.conn.send_close_notify();
            tls.flush()?;
        }
        self.tcp().shutdown(Shutdown::Write)
    }

    /// Drops the link with a reset instead of an orderly end.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn reset(self) -> io::Result<()> {
        socket2::SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO))
    }

    /// This end's port, by which the server knows the connection.
    ///
    /// # Errors
    /// When the system has lost it.
    pub fn local_port(&self) -> io::Result<u16> {
        Ok(self.tcp().local_addr()?.port())
    }

    fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => &tls.sock,
        }
    }
}
