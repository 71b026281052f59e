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
    let Some(socket) = connection.outbound.socket() else {
        return connection.discard_output();
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
        match connection.outbound.drain(&connection.server.memory) {
            Flushed::Done => return,
            Flushed::Blocked => {}
            Flushed::Failed => return connection.close(CloseReason::WriteError),
            Flushed::OverBudget => return connection.close(CloseReason::SlowConsumerPendingBytes),
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
                let size = first.len();
                if !write_all(&connection, &mut transport, first).await {
                    return;
                }
                connection.outbound.wrote(size, &connection.server.memory);
                batch.advance(size);
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

/// Writes all of `bytes`; false when the connection was closed instead, at the write deadline or by an error.
pub(crate) async fn write_all(
    connection: &Connection,
    transport: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match timeout(
            connection.server.limits().write_deadline,
            transport.write(&bytes[at..]),
        )
        .await
        {
            Ok(Ok(written)) if written > 0 => at += written,
            Ok(_) => {
                connection.close(CloseReason::WriteError);
                return false;
            }
            Err(_) if retries(connection) => {}
            Err(_) => {
                connection.close(CloseReason::SlowConsumerWriteDeadline);
                return false;
            }
        }
    }
    true
}

fn retries(connection: &Connection) -> bool {
    connection.server.limits().write_timeout == WriteTimeoutPolicy::Retry
        && connection.closing.reason().is_none()
}
