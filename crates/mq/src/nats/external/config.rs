//! How to reach the operator's cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use windjet_client::async_nats::{Client, ConnectOptions};

use super::link::Link;
use crate::nats::Topology;
use crate::nats::topology::is_name;
use crate::{Error, ErrorKind};

const PING_EVERY: Duration = Duration::from_secs(20);
/// Between two attempts to connect, after the first.
const RECONNECT_WAIT: Duration = Duration::from_secs(2);
/// Spread over this, so that many clients do not come back at once.
const RECONNECT_JITTER_MS: u64 = 500;

/// How to say who one is. Secrets are in files only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Auth {
    /// Nothing is said.
    #[default]
    None,
    /// A credentials file: a user's signed claims and the seed of its key.
    CredsFile(PathBuf),
    /// A file with the seed of a key.
    NkeySeedFile(PathBuf),
    /// A user, and a file with the password; line ends at its end are left out.
    Password {
        /// The user.
        user: String,
        /// The file.
        file: PathBuf,
    },
}

/// TLS to the servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Certificates of authorities to trust beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key, for servers that ask for one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether TLS begins before the server's greeting. Such a server must be configured so too.
    pub handshake_first: bool,
}

/// Where the operator's cluster is, and what is expected there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalConfig {
    /// The servers, at least one.
    pub urls: Vec<String>,
    /// The connection's name, as the server shows it and as the gauges are labelled. Default `windjet-mq`.
    pub name: String,
    /// Who connects.
    pub auth: Auth,
    /// TLS; `None` leaves it to the servers and the URLs.
    pub tls: Option<Tls>,
    /// The JetStream domain, behind a leaf node.
    pub domain: Option<String>,
    /// What the operator must have created.
    pub topology: Topology,
    /// Bounds one attempt to connect. Default 5 s.
    pub connect_timeout: Duration,
    /// How long the start waits for the topology. Default 60 s.
    pub topology_wait: Duration,
    /// How often the topology is checked again, beside after each reconnect. Default 5 min.
    pub check_every: Duration,
    /// How often it is read how far the history trails the partitions. Default 30 s.
    pub history_every: Duration,
}

impl ExternalConfig {
    /// A connection without authentication to one server or several.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            name: "windjet-mq".to_owned(),
            auth: Auth::None,
            tls: None,
            domain: None,
            topology: Topology::default(),
            connect_timeout: Duration::from_secs(5),
            topology_wait: Duration::from_secs(60),
            check_every: Duration::from_secs(5 * 60),
            history_every: Duration::from_secs(30),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if self.urls.is_empty() {
            return refuse("no server URLs; give at least one".to_owned());
        }
        if let Some(domain) = self.domain.as_ref().filter(|domain| !is_name(domain)) {
            return refuse(format!(
                "JetStream domain {domain:?}: use one token of A-Z a-z 0-9 _ -"
            ));
        }
        if self.check_every.is_zero() || self.history_every.is_zero() {
            return refuse("check_every and history_every: more than zero".to_owned());
        }
        self.topology.check()
    }

    /// The servers, without what may be secret.
    pub(super) fn redacted_urls(&self) -> String {
        let redact = |url: &String| match url.rsplit_once('@') {
            Some((front, host)) => {
                let scheme = front.split_once("://").map_or("", |(scheme, _)| scheme);
                format!("{scheme}://[redacted]@{host}")
            }
            None => url.clone(),
        };
        self.urls.iter().map(redact).collect::<Vec<_>>().join(", ")
    }

    /// Begins to connect. Returns at once: the connection is made, and made again, in the background.
    pub(super) async fn connect(&self, link: &Arc<Link>) -> Result<Client, Error> {
        self.check()?;
        let read = async |what: &str, file: &PathBuf| {
            tokio::fs::read_to_string(file).await.map_err(|error| {
                let text = format!("{what} {} cannot be read", file.display());
                Error::wrap(ErrorKind::Invalid, text, error)
            })
        };
        let mut options = ConnectOptions::new();
        options = match &self.auth {
            Auth::None => options,
            Auth::CredsFile(file) => {
                let text = read("credentials file", file).await?;
                let bad = |error| Error::wrap(ErrorKind::Invalid, "credentials file is not one", error);
                options.credentials(&text).map_err(bad)?
            }
            Auth::NkeySeedFile(file) => options.nkey(read("nkey seed file", file).await?.trim().to_owned()),
            Auth::Password { user, file } => {
                let password = read("password file", file).await?;
                options.user_and_password(user.clone(), password.trim_end_matches(['\r', '\n']).to_owned())
            }
        };
        if let Some(tls) = &self.tls {
            options = options.require_tls(true);
            if let Some(file) = &tls.ca_file {
                options = options.add_root_certificates(file.clone());
            }
            if let Some((certificate, key)) = &tls.client {
                options = options.add_client_certificate(certificate.clone(), key.clone());
            }
            if tls.handshake_first {
                options = options.tls_first();
            }
        }
        let events = Arc::clone(link);
        options
            .name(&self.name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(self.connect_timeout)
            .ping_interval(PING_EVERY)
            .custom_inbox_prefix(self.topology.inbox_prefix())
            .reconnect_delay_callback(|attempts| {
                let jitter = Duration::from_millis(jitter());
                if attempts <= 1 {
                    jitter
                } else {
                    RECONNECT_WAIT + jitter
                }
            })
            .event_callback(move |event| {
                events.on(&event);
                async {}
            })
            .connect(self.urls.as_slice())
            .await
            .map_err(|error| {
                let text = format!("connecting to {}", self.redacted_urls());
                Error::wrap(ErrorKind::Unavailable, text, error)
            })
    }
}

/// Different for each process and moment; nothing hangs on its quality.
fn jitter() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) % RECONNECT_JITTER_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_is_refused_before_anything_is_dialled() {
        let link = Arc::default();
        let refused = async |config: &ExternalConfig| {
            let error = config.connect(&link).await.unwrap_err();
            assert!(error.is(ErrorKind::Invalid), "{error:?}");
            error.to_string()
        };
        assert!(
            refused(&ExternalConfig::new(Vec::<String>::new()))
                .await
                .contains("URLs")
        );
        let mut config = ExternalConfig::new(["nats://127.0.0.1:1"]);
        config.auth = Auth::NkeySeedFile("/no/such/seed".into());
        assert!(refused(&config).await.contains("/no/such/seed"));
        config.auth = Auth::Password {
            user: "u".into(),
            file: "/no/such/password".into(),
        };
        assert!(refused(&config).await.contains("/no/such/password"));
        config.topology.shards = 0;
        assert!(refused(&config).await.contains("shards"));
    }

    #[test]
    fn secrets_in_urls_are_not_shown() {
        let config = ExternalConfig::new(["nats://user:p@ss@a:4222", "tls://b:4222"]);
        assert_eq!(config.redacted_urls(), "nats://[redacted]@a:4222, tls://b:4222");
    }
}
