//! Certificates for tests, and a blocking TLS client.
//!
//! [`certificates`] makes one authority per test process with a server's and several clients' certificates, as PEM
//! files by name; [`client_config`] makes the client that trusts it. The keys are as fresh as the process and protect
//! nothing.

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The names of the certificates that [`certificates`] makes, each with a key `NAME-key.pem`:
///
/// | name | subject and alternative names |
/// |---|---|
/// | `server` | `localhost`, `127.0.0.1` |
/// | `second` | `second.test` |
/// | `client` | CN `client`, e-mail `client@windjet.test`, DNS `client.windjet.test` |
/// | `plain` | CN `plain`, O `windjet`, no alternative name |
/// | `stranger` | like `client`, signed by another authority |
pub const NAMES: [&str; 5] = ["server", "second", "client", "plain", "stranger"];

/// All files, as (name, PEM text): `ca.pem`, and two for each of [`NAMES`].
///
/// # Errors
/// When the certificates cannot be made.
pub fn certificates() -> Result<&'static [(String, String)]> {
    static MADE: OnceLock<std::result::Result<Vec<(String, String)>, String>> = OnceLock::new();
    match MADE.get_or_init(|| make().map_err(|error| format!("{error:#}"))) {
        Ok(files) => Ok(files),
        Err(error) => bail!("making certificates: {error}"),
    }
}

fn make() -> Result<Vec<(String, String)>> {
    let (ca, ca_pem) = authority("windjet test authority")?;
    let (other, _) = authority("another authority")?;
    let mut files = vec![("ca.pem".to_owned(), ca_pem)];
    for name in NAMES {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = match name {
            "server" => vec![
                SanType::DnsName("localhost".try_into()?),
                SanType::IpAddress([127, 0, 0, 1].into()),
            ],
            "second" => vec![SanType::DnsName("second.test".try_into()?)],
            "plain" => {
                params
                    .distinguished_name
                    .push(DnType::OrganizationName, "windjet");
                Vec::new()
            }
            _ => vec![
                SanType::Rfc822Name("client@windjet.test".try_into()?),
                SanType::DnsName("client.windjet.test".try_into()?),
            ],
        };
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, if name == "stranger" { &other } else { &ca })?;
        files.push((format!("{name}.pem"), certificate.pem()));
        files.push((format!("{name}-key.pem"), key.serialize_pem()));
    }
    Ok(files)
}

fn authority(name: &str) -> Result<(Issuer<'static, KeyPair>, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}

/// A client that trusts the test authority, with the certificate of this name if one is given, and at most TLS 1.2
/// when `old` is set.
///
/// # Errors
/// When there is no such certificate.
pub fn client_config(certificate: Option<&str>, old: bool) -> Result<Arc<ClientConfig>> {
    let files = certificates()?;
    let file = |name: String| {
        let found = files
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, pem)| pem.as_bytes());
        found.with_context(|| format!("there is no certificate {name}"))
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(file("ca.pem".to_owned())?)?)?;
    let versions: &[_] = if old {
        &[&rustls::version::TLS12]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(roots);
    let config = match certificate {
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_slice(file(format!("{name}.pem"))?)?];
            let key = PrivateKeyDer::from_pem_slice(file(format!("{name}-key.pem"))?)?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_certificate_makes_a_client() {
        assert_eq!(certificates().unwrap().len(), 1 + 2 * NAMES.len());
        for name in NAMES {
            client_config(Some(name), false).unwrap();
        }
        assert!(client_config(Some("nobody"), false).is_err());
    }
}
