//! The TLS side of a listener.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificates::{Certificates, read_chain, read_pair};
use crate::auth::PeerCertificate;
use crate::connection::TlsFacts;
use crate::options::{TlsOptions, TlsVersion};

/// Why a `tls` block cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// There is no certificate.
    #[error("TLS Server certificate must be present and valid")]
    NoCertificate,
    /// A certificate or key cannot be read, or they do not belong together.
    #[error("error parsing X509 certificate/key pair: {0}")]
    Pair(String),
    /// The file of certificate authorities cannot be read.
    #[error("error parsing ca certificates: {0}")]
    Authorities(String),
    /// Client certificates are demanded and nothing says whom to trust.
    #[error("tls: verify needs a ca_file that says which client certificates are trusted")]
    NoAuthorities,
}

impl TlsError {
    pub(super) fn pair(path: &Path, error: &rustls::pki_types::pem::Error) -> Self {
        Self::Pair(describe(path, error))
    }
}

fn describe(path: &Path, error: &rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("open {}: no such file or directory", path.display())
        }
        error => format!("{}: {error}", path.display()),
    }
}

/// Why a handshake did not come to an end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// Too many handshakes this second.
    #[error("connection rate limit exceeded")]
    Throttled,
    /// The first byte begins no handshake.
    #[error("first record does not look like a TLS handshake")]
    NotTls,
    /// Not done in time.
    #[error("timeout")]
    Timeout,
    /// The peer does not speak TLS, or refused us, or we refused it.
    #[error("{0}")]
    Failed(#[from] io::Error),
    /// The client's key is not one of the pinned ones.
    #[error("certificate not pinned")]
    NotPinned,
}

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Secured<S> {
    /// The encrypted stream.
    pub(crate) stream: TlsStream<S>,
    /// The client's certificate, if it showed one.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
    /// Version, as `1.3`.
    pub(crate) version: String,
    /// Cipher suite, in the words of the standard.
    pub(crate) cipher: String,
}

impl<S> Secured<S> {
    /// What monitoring shows of it.
    pub(crate) fn facts(&self, first: bool) -> TlsFacts {
        TlsFacts {
            version: self.version.clone(),
            cipher: self.cipher.clone(),
            first,
            certificate: self.certificate.clone(),
        }
    }
}

/// See the module's page.
pub(crate) struct Setup {
    acceptor: TlsAcceptor,
    options: TlsOptions,
    not_after: Option<SystemTime>,
    rate: Mutex<Rate>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Rate {
    second_began: Instant,
    handshakes: u32,
}

impl Setup {
    /// Reads the files and builds the configuration. Blocks on file reads.
    pub(crate) fn build(options: &TlsOptions) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        if options.certificates.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let pairs: Vec<_> = options
            .certificates
            .iter()
            .map(|(certificate, key)| read_pair(certificate, key, &provider))
            .collect::<Result<_, _>>()?;
        let not_after = pairs.first().and_then(not_after);
        let versions: &[_] = match options.min_version {
            TlsVersion::V1_2 => &[&TLS13, &TLS12],
            TlsVersion::V1_3 => &[&TLS13],
        };
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| TlsError::Pair(error.to_string()))?;
        let builder = if options.demands_certificate() {
            let roots = Arc::new(authorities(
                options.ca_file.as_deref().ok_or(TlsError::NoAuthorities)?,
            )?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|error| TlsError::Authorities(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_cert_resolver(Arc::new(Certificates::new(pairs)));
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            options: options.clone(),
            not_after,
            rate: Mutex::new(Rate {
                second_began: Instant::now(),
                handshakes: 0,
            }),
        })
    }

    /// When the first certificate ends.
    pub(crate) fn not_after(&self) -> Option<SystemTime> {
        self.not_after
    }

    /// The options that the setup was built from.
    pub(crate) fn options(&self) -> &TlsOptions {
        &self.options
    }

    /// Runs the server's side of the handshake, within the configured time.
    pub(crate) async fn handshake<S>(&self, stream: S) -> Result<Secured<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = timeout(self.options.timeout, self.acceptor.accept(stream))
            .await
            .map_err(|_| HandshakeError::Timeout)??;
        let (_, session) = stream.get_ref();
        let certificate = session
            .peer_certificates()
            .and_then(|chain| PeerCertificate::from_der(chain.first()?).ok())
            .map(Arc::new);
        let pins = &self.options.pinned_certs;
        if !pins.is_empty()
            && !certificate
                .as_ref()
                .is_some_and(|certificate| certificate.is_pinned(pins))
        {
            return Err(HandshakeError::NotPinned);
        }
        let version = match session.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "1.2",
            _ => "1.3",
        };
        let cipher = session
            .negotiated_cipher_suite()
            .map(|suite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_"))
            .unwrap_or_default();
        Ok(Secured {
            certificate,
            version: version.to_owned(),
            cipher,
            stream,
        })
    }

    /// Counts a new handshake; false when there were too many in this second.
    pub(crate) fn within_rate(&self, now: Instant) -> bool {
        let limit = self.options.connection_rate_limit;
        if limit == 0 {
            return true;
        }
        let mut rate = self.rate.lock();
        if now.saturating_duration_since(rate.second_began).as_secs() >= 1 {
            *rate = Rate {
                second_began: now,
                handshakes: 0,
            };
        }
        rate.handshakes += 1;
        rate.handshakes <= limit
    }
}

fn not_after(pair: &CertifiedKey) -> Option<SystemTime> {
    let (_, leaf) = X509Certificate::from_der(pair.cert.first()?).ok()?;
    let seconds = u64::try_from(leaf.validity().not_after.timestamp()).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let chain = read_chain(path).map_err(|error| match error {
        TlsError::Pair(text) => TlsError::Authorities(text),
        other => other,
    })?;
    for certificate in chain {
        roots
            .add(certificate)
            .map_err(|error| TlsError::Authorities(error.to_string()))?;
    }
    Ok(roots)
}
