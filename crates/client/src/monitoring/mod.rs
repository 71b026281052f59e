//! A server's monitoring pages, fetched so that a page for people may pass addresses through.
//!
//! [`Monitoring::fetch`] asks one path of one server. What it guarantees:
//!
//! * Only `http` and `https`, at most five requests in a row when the server redirects.
//! * Never to the metadata services of clouds, to link-local, multicast or unspecified addresses, however they are written:
//!   each address that a name resolves to is checked, and the connection is made to the address that was checked. A
//!   redirect's target is checked like the first. Loopback and private addresses are allowed: servers are there.
//! * No proxy of the environment is used, which would connect somewhere else.
//! * At most [`BODY_MAX`] bytes of an answer are held, and one time limit is for everything together.
//!
//! It sends no credentials, and never logs the user info of an address.
//!
//! Called by: applications, by [`Client::monitoring`](crate::Client::monitoring).

mod exchange;
mod guard;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::ClientConfig;
use url::Url;

use crate::config::Tls;
use crate::connector::tls;
use crate::error::{Error, ErrorKind, Result};
use exchange::Answer;

/// Most bytes of an answer's body.
pub const BODY_MAX: usize = 8 * 1024 * 1024;
/// The pages that servers have, for [`Monitoring::only_known_paths`].
pub const KNOWN_PATHS: &[&str] = &[
    "/varz",
    "/connz",
    "/routez",
    "/gatewayz",
    "/leafz",
    "/subsz",
    "/jsz",
    "/accountz",
    "/accstatz",
    "/healthz",
];

/// Requests in one chain of redirects.
const REQUESTS_MAX: usize = 5;
/// What is told of the body of an error.
const EXCERPT: usize = 256;
/// The time limit when there is none in the settings.
const TIMEOUT: Duration = Duration::from_secs(10);

type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
type Resolver = Arc<dyn Fn(String, u16) -> Resolving + Send + Sync>;

/// Fetches monitoring pages.
#[derive(Clone)]
pub struct Monitoring {
    timeout: Duration,
    known_paths_only: bool,
    tls: Arc<ClientConfig>,
    resolve: Resolver,
}

impl Monitoring {
    /// With a time limit for the whole of a fetch, 10 s if it is zero, and the certificates of `tls`, or those of the
    /// system.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidTls`] when the TLS settings cannot be used.
    pub fn new(timeout: Duration, tls: &Tls) -> Result<Self> {
        Ok(Self {
            timeout: if timeout.is_zero() { TIMEOUT } else { timeout },
            known_paths_only: false,
            tls: Arc::new(tls::any_config(tls)?),
            resolve: Arc::new(|host, port| {
                Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
            }),
        })
    }

    /// Fetches nothing but the pages in [`KNOWN_PATHS`], whatever their queries.
    #[must_use]
    pub fn only_known_paths(mut self) -> Self {
        self.known_paths_only = true;
        self
    }

    /// Fetches `path` from the server at `base`, such as `http://127.0.0.1:8222`.
    ///
    /// # Errors
    /// [`ErrorKind::MonitoringBlocked`] for an address or a path that may not be asked, before anything is sent there;
    /// [`ErrorKind::MonitoringBodyTooLarge`]; [`ErrorKind::TimedOut`]; [`ErrorKind::Monitoring`] when nobody answers, or
    /// with a status from 400, and then with the begin of the body.
    ///
    /// # Cancel safety
    /// Dropped early, the connection is closed and nothing stays behind.
    pub async fn fetch(&self, base: &str, path: &str) -> Result<Bytes> {
        let (url, path) = self.target(base, path)?;
        let what = format!("fetching {path} from {}", guard::shown(&url));
        match tokio::time::timeout(self.timeout, self.follow(url, &path, &what)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(Error::new(ErrorKind::TimedOut, what)),
        }
    }

    /// The page's address.
    fn target(&self, base: &str, path: &str) -> Result<(Url, String)> {
        let base = base.trim_end_matches('/');
        if base.is_empty() {
            return Err(Error::new(
                ErrorKind::EmptyAddress,
                "fetching from a server's monitoring",
            ));
        }
        let path = match path.strip_prefix('/') {
            Some(_) => path.to_owned(),
            None => format!("/{path}"),
        };
        let invalid = |why: String| {
            Error::new(
                ErrorKind::MonitoringBlocked,
                "reading the address of a server's monitoring",
            )
            .because(why)
        };
        let url = Url::parse(&format!("{base}{path}")).map_err(|error| invalid(error.to_string()))?;
        self.check(&url)?;
        Ok((url, path))
    }

    /// Whether a page may be fetched, as far as its address says: the first, and each that a redirect leads to.
    fn check(&self, url: &Url) -> Result<()> {
        guard::check(url)?;
        if self.known_paths_only && !KNOWN_PATHS.contains(&url.path()) {
            let context = format!(
                "fetching {} from {}: it is none of the known pages",
                url.path(),
                guard::shown(url)
            );
            return Err(Error::new(ErrorKind::MonitoringBlocked, context));
        }
        Ok(())
    }

    async fn follow(&self, mut url: Url, path: &str, what: &str) -> Result<Bytes> {
        for _ in 0..REQUESTS_MAX {
            let addresses = self.addresses(&url, what).await?;
            match exchange::get(&url, &addresses, &self.tls, what).await? {
                Answer::Body(body) => return Ok(body),
                Answer::Refused(status, body) => {
                    let end = body.len().min(EXCERPT);
                    let text = String::from_utf8_lossy(&body[..end]).into_owned();
                    let context = format!("{what}: the answer to {path} has the status {status}");
                    return Err(Error::new(ErrorKind::Monitoring, context).because(text));
                }
                Answer::Elsewhere(location) => {
                    url = url.join(&location).map_err(|error| {
                        Error::new(ErrorKind::Monitoring, format!("{what}: reading a redirect"))
                            .because(error)
                    })?;
                    self.check(&url)?;
                }
            }
        }
        Err(Error::new(
            ErrorKind::Monitoring,
            format!("{what}: redirected too often"),
        ))
    }

    /// Where the name leads, all of it checked.
    async fn addresses(&self, url: &Url, what: &str) -> Result<Vec<SocketAddr>> {
        let port = url.port_or_known_default().unwrap_or(80);
        let unknown = |error: io::Error| {
            Error::new(ErrorKind::Monitoring, format!("{what}: looking the host up")).because(error)
        };
        let found = match url.host() {
            Some(url::Host::Ipv4(address)) => vec![SocketAddr::from((address, port))],
            Some(url::Host::Ipv6(address)) => vec![SocketAddr::from((address, port))],
            Some(url::Host::Domain(name)) => (self.resolve)(name.to_owned(), port).await.map_err(unknown)?,
            None => Vec::new(),
        };
        if found.is_empty() {
            return Err(unknown(io::Error::other("the host has no address")));
        }
        if let Some(blocked) = found.iter().find(|address| guard::is_blocked(address.ip())) {
            let context = format!("{what}: the host leads to {}", blocked.ip());
            return Err(Error::new(ErrorKind::MonitoringBlocked, context));
        }
        Ok(found)
    }
}

impl fmt::Debug for Monitoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitoring")
            .field("timeout", &self.timeout)
            .field("known_paths_only", &self.known_paths_only)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
