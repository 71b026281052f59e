//! Listeners: opening them, and accepting clients until told to stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};

use super::{Listener, Shared, StartError};
use crate::connection::handshake;
use crate::options::ListenAddress;
use crate::{monitor, websocket};

/// Connections that the system may keep waiting for `accept`.
const BACKLOG: i32 = 1024;
/// Pause after an `accept` that failed for want of file handles or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Opens the listeners that the options ask for and starts to accept.
pub(super) async fn open_all(shared: &Arc<Shared>) -> Result<(), StartError> {
    let options = shared.options().clone();
    if let Some(address) = &options.listen {
        let listener = open(Listener::Clients, address).await?;
        shared.addresses.lock().client = listener.local_addr().ok();
        shared.tasks.spawn(accept(shared.clone(), listener, Door::Client));
    }
    if let Some(websocket) = &options.websocket {
        let listener = open(Listener::WebSocket, &websocket.listen).await?;
        shared.addresses.lock().websocket = listener.local_addr().ok();
        shared
            .tasks
            .spawn(accept(shared.clone(), listener, Door::WebSocket));
    }
    monitor::open(shared).await
}

/// What is spoken behind a listener.
#[derive(Debug, Clone, Copy)]
enum Door {
    Client,
    WebSocket,
}

/// Binds one address. Port `None` takes a free one.
pub(crate) async fn open(listener: Listener, address: &ListenAddress) -> Result<TcpListener, StartError> {
    let port = address.port.unwrap_or(0);
    let failed = |source| StartError::Listen {
        listener,
        address: format!("{}:{port}", address.host),
        source,
    };
    let host = address.host.trim_start_matches('[').trim_end_matches(']');
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such host");
    for candidate in lookup_host((host, port)).await.map_err(failed)? {
        match bind(candidate) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, door: Door) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.stop_accepting.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, remote)) => {
                let _ = socket.set_nodelay(true);
                shared.tasks.spawn(serve(shared.clone(), socket, remote, door));
            }
            Err(error) => {
                tracing::error!("Error accepting a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(shared: Arc<Shared>, socket: TcpStream, remote: SocketAddr, door: Door) {
    let stop = shared.stop.clone();
    let greeting = async {
        match door {
            Door::Client => handshake::run(shared, socket, remote).await,
            Door::WebSocket => websocket::run(shared, socket, remote).await,
        }
    };
    // In a box of its own, since the futures of TLS and WebSocket handshakes are several times as large as what a
    // connection needs for the rest of its life, and a task never shrinks.
    let greeted = stop.run_until_cancelled_owned(Box::pin(greeting)).await.flatten();
    if let Some((session, source)) = greeted {
        crate::connection::reader::serve(session, source).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;

    /// A task is as large as its largest state for as long as it lives: with the handshakes inside, each idle connection
    /// held three times the memory it needed.
    #[tokio::test]
    async fn the_task_of_a_connection_is_small() {
        let server = Server::builder().listen_loopback().start().await.unwrap();
        let address = server.client_addr().unwrap();
        let socket = TcpStream::connect(address).await.unwrap();
        let task = serve(server.shared().clone(), socket, address, Door::Client);
        let size = size_of_val(&task);
        assert!(size <= 4096, "{size} bytes");
    }
}
