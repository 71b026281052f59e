//! How a client in another process connects: who it is, with which key, and how patiently it reconnects.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use windjet_client::async_nats;

use crate::auth::{WorkerKey, inbox_prefix};
use crate::error::{BusError, ErrorKind};
use crate::subjects::Layout;
use crate::token::Token;

/// How a [`Client`](super::Client) connects over TCP. The defaults are those of a worker without a key.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The layout of the subjects, the same as the broker's. Default: plain.
    pub layout: Layout,
    /// The worker that connects. Needed in the identity layout; its replies then come to an inbox of its own.
    pub worker: Option<Token>,
    /// Its key, where the broker authenticates.
    pub key: Option<Arc<WorkerKey>>,
    /// Encryption, where the broker has it. A URL `tls://` without this trusts the system's authorities.
    pub tls: Option<ClientTls>,
    /// Pauses between tries.
    pub backoff: Backoff,
}

/// Encryption of a connection.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// PEM file with the authority to trust, besides the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the client's certificate and its key, where the broker wants one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl ConnectOptions {
    /// A worker of the plain layout.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker of the identity layout with its key.
    #[must_use]
    pub fn identified(worker: Token, key: Arc<WorkerKey>) -> Self {
        Self {
            layout: Layout::Identity,
            worker: Some(worker),
            key: Some(key),
            ..Self::default()
        }
    }

    /// With encryption.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// With other pauses.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    pub(super) fn for_nats(self) -> Result<async_nats::ConnectOptions, BusError> {
        let mut options = async_nats::ConnectOptions::new()
            .name(self.worker.as_ref().map_or("windjet-bus", Token::as_str))
            .connection_timeout(Duration::from_secs(2))
            .ping_interval(Duration::from_secs(20));
        match (&self.worker, self.layout) {
            (Some(worker), Layout::Identity) => options = options.custom_inbox_prefix(inbox_prefix(worker)),
            (None, Layout::Identity) => {
                return Err(BusError::new(
                    ErrorKind::Config,
                    "connect: the identity layout needs a worker; give its id",
                ));
            }
            (_, Layout::Plain) => {}
        }
        if let Some(key) = &self.key {
            options = options.nkey(key.seed()?);
        }
        if let Some(tls) = self.tls {
            options = options.require_tls(true);
            if let Some(file) = tls.ca_file {
                options = options.add_root_certificates(file);
            }
            if let Some((certificate, key)) = tls.certificate {
                options = options.add_client_certificate(certificate, key);
            }
        }
        Ok(options)
    }
}

/// Growing pauses between tries: `base`, doubled each time up to `cap`, a fifth more or less at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause. Default: 2 s.
    pub base: Duration,
    /// The longest. Default: 120 s.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            cap: Duration::from_secs(120),
        }
    }
}

impl Backoff {
    /// The pause before try `n`, counted from 0.
    #[must_use]
    pub fn delay(self, n: u32) -> Duration {
        let doubled = self.base.saturating_mul(1 << n.min(10)).min(self.cap);
        let jitter = 0.8 + 0.4 * f64::from(rand::random::<u16>()) / f64::from(u16::MAX);
        doubled.mul_f64(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w2t_pauses_begin_at_the_base_and_never_pass_the_cap_by_more_than_a_fifth() {
        let backoff = Backoff::default();
        for _ in 0..200 {
            let first = backoff.delay(0).as_secs_f64();
            assert!((1.6..=2.4).contains(&first), "{first}");
            let late = backoff.delay(1000).as_secs_f64();
            assert!((96.0..=144.0).contains(&late), "{late}");
        }
        let second = backoff.delay(1).as_secs_f64();
        assert!((3.2..=4.8).contains(&second), "{second}");
    }
}
