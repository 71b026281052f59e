//! A relay between clients and a server: it can hold back what either side sends, change it on its way, and tell what went
//! through.
//!
//! It is how tests lose answers, stall a connection without ending it, and let the real server say what it would not say by
//! itself. A change keeps the length, because the protocol counts bytes; it misses a text that two reads share.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::wire::read_some;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// A running relay. Dropping it ends every connection through it.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: [bool; 2],
    changes: [Vec<(Vec<u8>, Vec<u8>)>; 2],
    /// What was received from clients, held back or not.
    sent: Vec<u8>,
    streams: Vec<TcpStream>,
    closed: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole after every statement, also in a thread that panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// Starts a relay to `server` on a port that the system chooses.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port for the relay")?;
        let addr = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.state().closed {
                    return;
                }
                if let Ok(client) = client {
                    // A server that is not there is an end of the connection to the client too.
                    let _ = connect(&accepting, client, server);
                }
            }
        });
        Ok(Self { addr, shared })
    }

    /// The address for NATS client libraries, `nats://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr)
    }

    /// Holds back what goes one way from now on, or lets it go, in order and whole.
    pub fn hold(&self, way: Way, hold: bool) {
        self.shared.state().held[way as usize] = hold;
        self.shared.changed.notify_all();
    }

    /// Replaces a text in what goes one way from now on.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn replace(&self, way: Way, text: &str, with: &str) -> Result<()> {
        ensure!(text.len() == with.len(), "{text:?} and {with:?} differ in length");
        self.shared.state().changes[way as usize].push((text.into(), with.into()));
        Ok(())
    }

    /// Replaces nothing any more.
    pub fn keep(&self) {
        self.shared.state().changes = Default::default();
    }

    /// Everything that clients have sent so far.
    #[must_use]
    pub fn sent(&self) -> Vec<u8> {
        self.shared.state().sent.clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        // The accepting thread looks at the state once more.
        let _ = TcpStream::connect(self.addr);
    }
}

fn connect(shared: &Arc<Shared>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    shared
        .state()
        .streams
        .extend([client.try_clone()?, server.try_clone()?]);
    for (way, from, to) in [
        (Way::ToServer, client.try_clone()?, server.try_clone()?),
        (Way::ToClient, server, client),
    ] {
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            copy(&shared, way, &from, &to);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Passes bytes on until either side has ended.
fn copy(shared: &Shared, way: Way, from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = vec![0; 65536];
    loop {
        let Ok(read @ 1..) = read_some(from, &mut buffer) else {
            return;
        };
        let bytes = &mut buffer[..read];
        let mut state = shared.state();
        if way == Way::ToServer {
            state.sent.extend_from_slice(bytes);
        }
        while state.held[way as usize] && !state.closed {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for (text, with) in &state.changes[way as usize] {
            replace(bytes, text, with);
        }
        drop(state);
        if to.write_all(bytes).is_err() {
            return;
        }
    }
}

fn replace(bytes: &mut [u8], text: &[u8], with: &[u8]) {
    let mut at = 0;
    while let Some(found) = bytes[at..]
        .windows(text.len().max(1))
        .position(|window| window == text)
    {
        at += found;
        bytes[at..at + text.len()].copy_from_slice(with);
        at += text.len();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn bytes_are_changed_held_back_and_told() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Relay::to(server.local_addr().unwrap()).unwrap();
        assert!(relay.replace(Way::ToClient, "one", "three").is_err());
        relay.replace(Way::ToClient, "one", "two").unwrap();
        let mut client = TcpStream::connect(relay.addr).unwrap();
        let (mut served, _) = server.accept().unwrap();
        relay.replace(Way::ToServer, "one", "six").unwrap();
        client.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        served.read_exact(&mut got).unwrap();
        assert_eq!((&got, relay.sent().as_slice()), (b"hello", &b"hello"[..]));

        relay.hold(Way::ToClient, true);
        served.write_all(b"one+one").unwrap();
        client
            .set_read_timeout(Some(std::time::Duration::from_millis(100)))
            .unwrap();
        let mut got = [0; 7];
        assert!(client.read_exact(&mut got).is_err(), "it is held back");
        client.set_read_timeout(None).unwrap();
        relay.hold(Way::ToClient, false);
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"two+two");
        client.write_all(b"b-one").unwrap();
        let mut got = [0; 5];
        served.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"b-six");

        drop(relay);
        assert_eq!(client.read(&mut got).unwrap_or(0), 0, "the connection is ended");
    }
}
