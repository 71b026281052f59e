//! From an accepted socket to a session: INFO, TLS, and the order of the two.
//!
//! | listener | what happens |
//! |---|---|
//! | plain | INFO, operations |
//! | `tls` | INFO, handshake, operations |
//! | `tls`, `allow_non_tls` | INFO; the client's first byte says whether a handshake follows |
//! | `tls`, `handshake_first` | handshake, INFO, operations |
//! | `tls`, `handshake_first: auto` | as before when the client begins in time, else INFO first |
//!
//! Until it is done, an accepted socket costs one small task and is given up after the TLS time-out. When the server is
//! full, the client still gets INFO and then the error, as clients expect.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use windjet_protocol::wire::encode;

use super::reader::Source;
use super::session::Session;
use super::{Carrier, CloseReason, Connection, NewConnection, TlsFacts, writer};
use crate::auth::{PeerCertificate, nkey};
use crate::options::{ConnectionType, HandshakeFirst};
use crate::server::{Peer, Shared};
use crate::tls::{HandshakeError, Secured, Setup};
use crate::websocket::{self, Cookies, Framing};

/// First byte of a TLS handshake record.
const TLS_RECORD: u8 = 0x16;

/// The reading half of a transport.
pub(crate) type Reading = Box<dyn AsyncRead + Send + Unpin>;
/// The writing half of a transport.
pub(crate) type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// What carries a client's bytes once every handshake is done.
pub(crate) enum Stream {
    /// A plain socket.
    Socket(TcpStream),
    /// Anything else, as two halves.
    Halves(Reading, Writing),
    /// A WebSocket, as the protocol's bytes and a transport for frames.
    Frames(Reading, Writing, Framing),
}

/// What is known of a client by the time its bytes can be read.
#[derive(Debug)]
pub(crate) struct Guest {
    /// The server's view of the peer.
    pub(crate) peer: Peer,
    /// Its socket address.
    pub(crate) remote: SocketAddr,
    /// What it signs, when keys are in use.
    pub(crate) nonce: Option<String>,
    /// Whether INFO was sent already.
    pub(crate) greeted: bool,
    /// TLS facts, for monitoring.
    pub(crate) tls: Option<TlsFacts>,
    /// The client's certificate.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
    /// Credentials out of cookies.
    pub(crate) cookies: Cookies,
    /// Address told by a proxy; monitoring shows it instead of the socket's.
    pub(crate) forwarded_for: Option<String>,
}

/// Greets a client of the TCP listener. `None` when it is gone, or refused before there was a connection.
pub(crate) async fn run(
    server: Arc<Shared>,
    socket: TcpStream,
    remote: SocketAddr,
) -> Option<(Session, Source)> {
    let peer = Peer {
        id: server.registry.next_id(),
        kind: ConnectionType::Standard,
        ip: remote.ip().to_string(),
    };
    let mut guest = Guest::new(peer, remote);
    guest.nonce = server.authenticator().nonce_required().then(nkey::new_nonce);
    let Some(setup) = server.tls() else {
        return Some(establish(&server, guest, Stream::Socket(socket)));
    };
    let failed = Guest::new(guest.peer.clone(), remote);
    match secure(&server, &setup, guest, socket).await {
        Ok((guest, stream)) => Some(establish(&server, guest, stream)),
        Err(HandshakeError::Throttled) => None,
        Err(error) => {
            tracing::error!(client = %format_args!("{remote} - cid:{}", failed.peer.id), "TLS handshake error: {error}");
            record_failure(&server, failed);
            None
        }
    }
}

/// Remembers a client that never got through its handshake among the closed connections.
pub(crate) fn record_failure(server: &Arc<Shared>, guest: Guest) {
    let connection = Arc::new(Connection::new(NewConnection {
        id: guest.peer.id,
        kind: guest.peer.kind,
        server: server.clone(),
        remote: Some(guest.remote),
        shown_ip: guest.peer.ip,
        carrier: Carrier::None,
        tls: None,
    }));
    server.admit(&connection);
    connection.close(CloseReason::TlsHandshake);
    server.client_gone(&connection, 0);
}

/// Sends INFO and runs the handshake in the order that the options ask for.
async fn secure(
    server: &Shared,
    setup: &Setup,
    mut guest: Guest,
    mut socket: TcpStream,
) -> Result<(Guest, Stream), HandshakeError> {
    if !setup.within_rate(Instant::now()) {
        let mut refusal = Vec::new();
        encode::err(
            &mut refusal,
            b"Connection throttling is active. Please try again later.",
        );
        let _ = timeout(setup.options().timeout, socket.write_all(&refusal)).await;
        return Err(HandshakeError::Throttled);
    }
    let first = match setup.options().handshake_first {
        HandshakeFirst::No => false,
        HandshakeFirst::Required => true,
        HandshakeFirst::Auto(within) => begins_with_tls(&socket, within).await?.unwrap_or(false),
    };
    if !first {
        let mut info = Vec::new();
        encode::info(&mut info, &server.first_info(&guest.peer, guest.nonce.as_deref()));
        timeout(setup.options().timeout, socket.write_all(&info))
            .await
            .map_err(|_| HandshakeError::Timeout)??;
        guest.greeted = true;
    }
    if !first && server.options().allow_non_tls {
        let limit = server.auth_timeout(guest.peer.kind);
        if begins_with_tls(&socket, limit).await? != Some(true) {
            return Ok((guest, Stream::Socket(socket)));
        }
    }
    // What is no handshake at all is dropped without a TLS alert, which a plain-text client could not read.
    if begins_with_tls(&socket, setup.options().timeout).await? != Some(true) {
        return Err(HandshakeError::NotTls);
    }
    let secured = setup.handshake(socket).await?;
    Ok(guest.secured(secured, first))
}

/// Whether the first byte that comes within `limit` begins a TLS handshake; `None` when nothing comes.
async fn begins_with_tls(socket: &TcpStream, limit: Duration) -> io::Result<Option<bool>> {
    let mut byte = [0];
    match timeout(limit, socket.peek(&mut byte)).await {
        Err(_) => Ok(None),
        Ok(read) => Ok(Some(read? == 1 && byte[0] == TLS_RECORD)),
    }
}

impl Guest {
    /// A guest of whom nothing else is known yet.
    pub(crate) fn new(peer: Peer, remote: SocketAddr) -> Self {
        Self {
            peer,
            remote,
            nonce: None,
            greeted: false,
            tls: None,
            certificate: None,
            cookies: Cookies::default(),
            forwarded_for: None,
        }
    }

    fn secured(mut self, secured: Secured<TcpStream>, first: bool) -> (Self, Stream) {
        self.certificate.clone_from(&secured.certificate);
        self.tls = Some(secured.facts(first));
        let (reader, writer) = tokio::io::split(secured.stream);
        (self, Stream::Halves(Box::new(reader), Box::new(writer)))
    }
}

/// Makes the connection and its session, and sends INFO if that was not done.
pub(crate) fn establish(server: &Arc<Shared>, guest: Guest, stream: Stream) -> (Session, Source) {
    let info = (!guest.greeted).then(|| server.first_info(&guest.peer, guest.nonce.as_deref()));
    let stream = match stream {
        Stream::Socket(socket) => Ok(Arc::new(socket)),
        Stream::Halves(reader, writer) => Err((reader, writer, None)),
        Stream::Frames(reader, writer, framing) => Err((reader, writer, Some(framing))),
    };
    let carrier = match &stream {
        Ok(socket) => Carrier::Socket(Arc::downgrade(socket)),
        Err(_) => Carrier::Task(Notify::new()),
    };
    let connection = Arc::new(Connection::new(NewConnection {
        id: guest.peer.id,
        kind: guest.peer.kind,
        server: server.clone(),
        remote: Some(guest.remote),
        shown_ip: guest.forwarded_for.unwrap_or(guest.peer.ip),
        carrier,
        tls: guest.tls,
    }));
    let admitted = server.admit(&connection);
    let mut touched = Vec::new();
    if let Some(info) = info {
        connection.send(&mut touched, |out| encode::info(out, &info));
    }
    if !admitted {
        connection.send(&mut touched, |out| {
            encode::err(out, b"maximum connections exceeded");
        });
    }
    let source = match stream {
        Ok(socket) => Source::Socket(socket),
        Err((reader, writer, framing)) => {
            let writing = connection.clone();
            let writer = match framing {
                None => server.tasks.spawn(writer::run(writing, writer)),
                Some(framing) => server.tasks.spawn(websocket::write(writing, writer, framing)),
            };
            Source::Stream { reader, writer }
        }
    };
    connection.flush();
    let session = Session::new(connection.clone(), guest.nonce, guest.certificate, guest.cookies);
    if !admitted {
        connection.close(CloseReason::MaxConnectionsExceeded);
    }
    (session, source)
}
