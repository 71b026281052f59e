//! TLS for listeners: from options to a rustls configuration, and the handshake itself.
//!
//! A [`Setup`] is built once from a `tls` block and shared by all handshakes of a listener; a reload builds a new one,
//! which new handshakes use. What is not done here: the order of handshake and INFO, which is
//! [`crate::connection::handshake`]'s.

mod certificates;
mod setup;

pub use setup::TlsError;

use crate::options::Options;

/// The setup of the WebSocket listener; `None` when it is plain or absent.
pub(crate) fn of_websocket(options: &Options) -> Result<Option<Setup>, TlsError> {
    let tls = options
        .websocket
        .as_ref()
        .and_then(|websocket| websocket.tls.as_ref());
    tls.map(Setup::build).transpose()
}

/// The setup of HTTPS monitoring: the certificates of the client listener, shown to whoever asks. `None` when there is no
/// such listener.
pub(crate) fn of_monitoring(options: &Options) -> Result<Option<Setup>, TlsError> {
    if options.monitoring.https.is_none() {
        return Ok(None);
    }
    let mut tls = options.tls.clone().unwrap_or_default();
    tls.verify = false;
    tls.verify_and_map = false;
    tls.pinned_certs.clear();
    Setup::build(&tls).map(Some)
}
pub(crate) use setup::{HandshakeError, Secured, Setup};
