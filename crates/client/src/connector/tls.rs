//! TLS settings from PEM bytes.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::config::Tls;
use crate::error::{Error, ErrorKind, Result};

/// The TLS configuration that the settings ask for, if they ask for TLS.
pub(crate) fn client_config(tls: &Tls) -> Result<Option<ClientConfig>> {
    if !tls.is_on() {
        return Ok(None);
    }
    any_config(tls).map(Some)
}

/// The TLS configuration of the settings, or that of the system when they have none.
pub(crate) fn any_config(tls: &Tls) -> Result<ClientConfig> {
    if let Some(config) = &tls.config {
        return Ok(ClientConfig::clone(config));
    }
    if tls.cert.is_empty() != tls.key.is_empty() {
        return Err(invalid("certificate and key go together"));
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(tls, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("choosing protocol versions").because(error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    if tls.cert.is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let chain = certificates(&tls.cert, "the client's certificate")?;
    let key = PrivateKeyDer::from_pem_slice(&tls.key)
        .map_err(|error| invalid("reading the client's key").because(error.to_string()))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| invalid("pairing certificate and key").because(error))
}

fn verifier(tls: &Tls, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>> {
    if tls.insecure_skip_verify {
        return Ok(Arc::new(Anyone(Arc::clone(provider))));
    }
    let mut roots = RootCertStore::empty();
    if tls.ca.is_empty() {
        // Some of a system's certificates may be unreadable; those that are not suffice.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        for certificate in certificates(&tls.ca, "the CA")? {
            roots
                .add(certificate)
                .map_err(|error| invalid("adding the CA").because(error))?;
        }
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| invalid("reading the CA").because(error))?;
    if tls.server_name.is_empty() {
        return Ok(usual);
    }
    let name = ServerName::try_from(tls.server_name.clone())
        .map_err(|error| invalid("reading the server name").because(error))?;
    Ok(Arc::new(Named { name, usual }))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| invalid(&format!("reading {what}")).because(error.to_string()))?;
    if found.is_empty() {
        return Err(invalid(&format!("{what} holds no certificate")));
    }
    Ok(found)
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidTls, what)
}

/// Looks for a given name instead of the host's.
#[derive(Debug)]
struct Named {
    name: ServerName<'static>,
    usual: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.usual
            .verify_server_cert(end_entity, intermediates, &self.name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Accepts any certificate, but only from who holds its key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
