//! From an accepted socket to a session: INFO, and whatever must come before it.
//!
//! The connection is counted from here on. When the server is full, the client still gets INFO and then the error, as
//! clients expect.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use windjet_protocol::wire::encode;

use super::reader::Source;
use super::session::Session;
use super::{Carrier, CloseReason, Connection, NewConnection};
use crate::auth::nkey;
use crate::options::ConnectionType;
use crate::server::Shared;

/// Greets a client. `None` when it is gone already.
pub(crate) async fn run(
    server: Arc<Shared>,
    socket: TcpStream,
    remote: SocketAddr,
    kind: ConnectionType,
) -> Option<(Session, Source)> {
    let socket = Arc::new(socket);
    let nonce = server.authenticator().nonce_required().then(nkey::new_nonce);
    let connection = Arc::new(Connection::new(NewConnection {
        id: server.registry.next_id(),
        kind,
        server: server.clone(),
        remote: Some(remote),
        shown_ip: remote.ip().to_string(),
        carrier: Carrier::Socket(socket.clone()),
        tls: None,
    }));
    let admitted = server.admit(&connection);
    let info = server.first_info(&connection, nonce.as_deref());
    let mut touched = Vec::new();
    connection.send(&mut touched, |out| encode::info(out, &info));
    if !admitted {
        connection.send(&mut touched, |out| {
            encode::err(out, b"maximum connections exceeded");
        });
    }
    connection.flush();
    let session = Session::new(connection.clone(), nonce, None);
    if !admitted {
        connection.close(CloseReason::MaxConnectionsExceeded);
    }
    Some((session, Source::Socket(socket)))
}
