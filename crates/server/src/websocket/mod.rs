//! Clients over WebSocket: the upgrade, and the protocol inside frames.
//!
//! After the upgrade a WebSocket client is a connection like any other; its bytes come out of frames ([`reader`]) and go into
//! frames ([`writer`]). One flush of the outbound buffer is one message; a protocol line may span frames and a frame may hold
//! several. Control frames from the client are answered by the writer task, which also sends the close frame with the code that
//! belongs to the reason.
//!
//! Bounds: the upgrade request 8 KiB and the handshake time-out; a decompressed message eight times the largest payload, at most
//! 64 MiB; control frames 125 bytes, as the standard says, and a handful of them waiting.

mod deflate;
mod reader;
mod upgrade;
mod writer;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::auth::nkey;
use crate::connection::handshake::{Guest, Stream, establish};
use crate::connection::{Session, Source};
use crate::options::ConnectionType;
use crate::server::{Peer, Shared};

pub(crate) use upgrade::Cookies;
pub(crate) use writer::{Framing, run as write};

use reader::Reader;
use upgrade::Upgrade;

/// Control frames that wait for the writer; more are dropped.
const CONTROLS_MAX: usize = 8;
/// Largest decompressed message, whatever the payload limit.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Something to be sent between data frames.
#[derive(Debug)]
pub(crate) enum ControlFrame {
    /// Answer to a PING, with its body.
    Pong(Vec<u8>),
    /// The close frame, with its body; nothing follows it.
    Close(Vec<u8>),
}

impl ControlFrame {
    /// A close frame with a code and a text.
    pub(crate) fn close(code: u16, text: &str) -> Self {
        let mut body = code.to_be_bytes().to_vec();
        body.extend_from_slice(&text.as_bytes()[..text.len().min(123)]);
        Self::Close(body)
    }
}

/// Greets a client of the WebSocket listener. `None` when there will be no session.
pub(crate) async fn run(
    server: Arc<Shared>,
    socket: TcpStream,
    remote: SocketAddr,
) -> Option<(Session, Source)> {
    let limit = server.options().websocket.as_ref()?.handshake_timeout;
    let mut guest = Guest::new(
        Peer {
            id: server.registry.next_id(),
            kind: ConnectionType::WebSocket,
            ip: remote.ip().to_string(),
        },
        remote,
    );
    guest.nonce = server.authenticator().nonce_required().then(nkey::new_nonce);
    let Some(setup) = server.websocket_tls() else {
        return upgrade(&server, guest, socket).await;
    };
    let secured = match timeout(limit, setup.handshake(socket)).await {
        Ok(Ok(secured)) => secured,
        Ok(Err(error)) => {
            tracing::error!(%remote, "TLS handshake error: {error}");
            return None;
        }
        Err(_) => return None,
    };
    guest.certificate = secured.certificate.clone();
    guest.tls = Some(secured.facts(false));
    upgrade(&server, guest, secured.stream).await
}

async fn upgrade<S>(server: &Arc<Shared>, mut guest: Guest, mut stream: S) -> Option<(Session, Source)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let options = server.options().websocket.clone()?;
    let secure = options.tls.is_some();
    let read = timeout(options.handshake_timeout, upgrade::read(&mut stream))
        .await
        .ok()?
        .ok()?;
    let (upgrade, rest) = match Upgrade::check(&read, &options, secure) {
        Ok(upgrade) => (upgrade, read.rest()),
        Err(refusal) => {
            let _ = timeout(options.handshake_timeout, stream.write_all(&refusal.response())).await;
            let _ = stream.shutdown().await;
            return None;
        }
    };
    let response = upgrade.response(&options);
    timeout(options.handshake_timeout, stream.write_all(&response))
        .await
        .ok()?
        .ok()?;
    guest.forwarded_for.clone_from(&upgrade.forwarded_for);
    guest.cookies = upgrade.cookies.clone();
    let max_payload = usize::try_from(server.limits().max_payload).unwrap_or(MESSAGE_BYTES_MAX);
    let (controls, waiting) = mpsc::channel(CONTROLS_MAX);
    let (reading, writing) = tokio::io::split(stream);
    let reader = Reader::new(
        reading,
        rest,
        controls,
        upgrade.compress,
        !upgrade.no_masking,
        max_payload.saturating_mul(8).min(MESSAGE_BYTES_MAX),
    );
    let framing = Framing {
        compress: upgrade.compress,
        browser: upgrade.browser,
        controls: waiting,
    };
    Some(establish(
        server,
        guest,
        Stream::Frames(Box::new(reader), Box::new(writing), framing),
    ))
}
