//! Writing when the producer's own flush is not enough.
//!
//! [`drain`] finishes what a full socket refused; [`run`] is the writer task of transports that only a task can write
//! (TLS, WebSocket). Both enforce the write deadline: a write that makes no progress for so long ends the connection,
//! or is tried again where the configuration says so.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::{CloseReason, Connection, Flushed};
use crate::options::WriteTimeoutPolicy;

/// Waits for the socket and writes until nothing is pending.
pub(crate) async fn drain(connection: Arc<Connection>) {
    let Some(socket) = connection.outbound.socket().cloned() else {
        return;
    };
    loop {
        match timeout(connection.server.limits().write_deadline, socket.writable()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return connection.close(CloseReason::WriteError),
            Err(_) => {
                if !retries(&connection) {
                    return connection.close(CloseReason::SlowConsumerWriteDeadline);
                }
            }
        }
        match connection.outbound.drain() {
            Flushed::Done => return,
            Flushed::Blocked => {}
            Flushed::Failed => return connection.close(CloseReason::WriteError),
        }
    }
}

/// Writes for a transport that needs a task, until the connection closes.
///
/// After the close it writes what is left (nothing, when the reason says so) and shuts the transport down.
pub(crate) async fn run(connection: Arc<Connection>, mut transport: impl AsyncWrite + Unpin) {
    loop {
        let closing = connection.closing.reason().is_some();
        while let Some(mut batch) = connection.outbound.take() {
            while let Some(first) = batch.first() {
                let write = transport.write(first);
                match timeout(connection.server.limits().write_deadline, write).await {
                    Ok(Ok(written)) if written > 0 => {
                        connection.outbound.wrote(written);
                        batch.advance(written);
                    }
                    Ok(_) => return connection.close(CloseReason::WriteError),
                    Err(_) if retries(&connection) => {}
                    Err(_) => return connection.close(CloseReason::SlowConsumerWriteDeadline),
                }
            }
        }
        if transport.flush().await.is_err() {
            return connection.close(CloseReason::WriteError);
        }
        if closing {
            let _ = transport.shutdown().await;
            return;
        }
        connection.outbound.wait().await;
    }
}

fn retries(connection: &Connection) -> bool {
    connection.server.limits().write_timeout == WriteTimeoutPolicy::Retry
        && connection.closing.reason().is_none()
}
