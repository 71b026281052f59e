//! Certificate chains of a listener, chosen by the name that the client asks for.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::TlsError;

/// Reads a PEM file of certificates.
pub(super) fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error: rustls::pki_types::pem::Error| TlsError::pair(path, &error);
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    if chain.is_empty() {
        return Err(TlsError::Pair(
            "failed to find any PEM data in certificate input".to_owned(),
        ));
    }
    Ok(chain)
}

/// Reads a certificate chain and its key.
pub(super) fn read_pair(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = read_chain(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::pair(key, &error))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| TlsError::Pair(error.to_string()))
}

/// The chains of a listener; the first one serves clients whose name matches none.
pub(super) struct Certificates {
    pairs: Vec<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({})", self.pairs.len())
    }
}

impl Certificates {
    /// A choice of chains.
    pub(super) fn new(pairs: Vec<CertifiedKey>) -> Self {
        Self {
            pairs: pairs.into_iter().map(Arc::new).collect(),
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let wanted = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let fits = |pair: &&Arc<CertifiedKey>| {
            let (Some(name), Some(leaf)) = (&wanted, pair.cert.first()) else {
                return false;
            };
            ParsedCertificate::try_from(leaf).is_ok_and(|leaf| verify_server_name(&leaf, name).is_ok())
        };
        self.pairs.iter().find(fits).or(self.pairs.first()).cloned()
    }
}
