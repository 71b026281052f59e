//! What the server wants to know of a client's TLS certificate.
//!
//! TLS has checked the certificate before; nothing here does. With `verify_and_map` it names the user, looked up in
//! this order: e-mail addresses, DNS names and URIs of the subject alternative names, the subject as a distinguished
//! name (exactly, then with its parts in any order), then the subject's text with and without domain components.
//!
//! [`PeerCertificate::is_pinned`] is the check of `pinned_certs`: the SHA-256 of the public key's DER form.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use x509_parser::asn1_rs::Tag;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::dn::{Attribute, Dn, short_name};

/// Bytes that are not an X.509 certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an X.509 certificate: {0}")]
pub struct CertificateError(String);

/// A client's certificate, reduced to its names and fingerprints.
#[derive(Debug, Clone)]
pub struct PeerCertificate {
    names: Vec<String>,
    /// All attributes with a short name; the others do not appear in the subject's text.
    subject: Dn,
    /// Whether the subject has attributes without a short name, so that it cannot be compared as a whole.
    subject_is_partial: bool,
    spki_sha256: String,
    cert_sha256: String,
}

impl PeerCertificate {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    ///
    /// When the bytes are not a certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| CertificateError(error.to_string()))?;
        let (subject, subject_is_partial) = read_subject(certificate.subject());
        Ok(Self {
            names: alternative_names(&certificate)?,
            subject,
            subject_is_partial,
            spki_sha256: HEXLOWER.encode(&Sha256::digest(certificate.public_key().raw)),
            cert_sha256: HEXLOWER.encode(&Sha256::digest(der)),
        })
    }

    /// The subject's text.
    pub fn subject(&self) -> String {
        self.subject.text(false)
    }

    /// SHA-256 of the public key with its algorithm (SPKI), in lower-case hex.
    pub fn spki_sha256(&self) -> &str {
        &self.spki_sha256
    }

    /// SHA-256 of the whole certificate, in lower-case hex.
    pub fn cert_sha256(&self) -> &str {
        &self.cert_sha256
    }

    /// Whether the public key is among `pins` (hex, any case). No pins admit any key.
    pub fn is_pinned(&self, pins: &[String]) -> bool {
        pins.is_empty() || pins.iter().any(|pin| pin.eq_ignore_ascii_case(&self.spki_sha256))
    }

    /// Finds the user that this certificate names. `named` looks a user up by its exact name; `everyone` lists those
    /// whose names are distinguished names.
    pub(super) fn find_user<'u, U, I>(
        &self,
        named: impl Fn(&str) -> Option<U>,
        everyone: impl Fn() -> I,
    ) -> Option<U>
    where
        I: Iterator<Item = (&'u Dn, U)>,
    {
        if let Some(user) = self.names.iter().find_map(|name| named(name)) {
            return Some(user);
        }
        if !self.subject_is_partial {
            let found = everyone()
                .find(|(dn, _)| dn.same(&self.subject))
                .or_else(|| everyone().find(|(dn, _)| dn.same_in_any_order(&self.subject)));
            if let Some((_, user)) = found {
                return Some(user);
            }
        }
        let with_domain_components = self
            .subject
            .has_domain_components()
            .then(|| named(&self.subject.text(true)))
            .flatten();
        with_domain_components.or_else(|| {
            let text = self.subject.text(false);
            if text.is_empty() { None } else { named(&text) }
        })
    }
}

/// E-mail addresses, then DNS names, then URIs.
fn alternative_names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, CertificateError> {
    let extension = certificate
        .subject_alternative_name()
        .map_err(|error| CertificateError(error.to_string()))?;
    let Some(extension) = extension else {
        return Ok(Vec::new());
    };
    let all = &extension.value.general_names;
    let emails = all.iter().filter_map(|name| match name {
        GeneralName::RFC822Name(text) => Some(*text),
        _ => None,
    });
    let hosts = all.iter().filter_map(|name| match name {
        GeneralName::DNSName(text) => Some(*text),
        _ => None,
    });
    let uris = all.iter().filter_map(|name| match name {
        GeneralName::URI(text) => Some(*text),
        _ => None,
    });
    Ok(emails.chain(hosts).chain(uris).map(str::to_owned).collect())
}

/// The subject, the most specific relative name first, and whether something was left out of it.
fn read_subject(subject: &X509Name<'_>) -> (Dn, bool) {
    let mut dn = Dn::default();
    let mut partial = false;
    for rdn in subject.iter_rdn() {
        let mut attributes = Vec::new();
        for attribute in rdn.iter() {
            let kind = short_name(&attribute.attr_type().to_id_string());
            match (kind, attribute_text(attribute)) {
                (Some(kind), Some(value)) => attributes.push(Attribute {
                    kind: kind.to_owned(),
                    value,
                }),
                _ => partial = true,
            }
        }
        attributes.reverse();
        if !attributes.is_empty() {
            dn.rdns.push(attributes);
        }
    }
    dn.rdns.reverse();
    (dn, partial)
}

fn attribute_text(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    if let Ok(text) = attribute.as_str() {
        return Some(text.to_owned());
    }
    let value = attribute.attr_value();
    match value.tag() {
        Tag::BmpString => {
            let units: Vec<u16> = value
                .data
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                .collect();
            String::from_utf16(&units).ok()
        }
        Tag::T61String => String::from_utf8(value.data.to_vec()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData, SanType};

    use super::*;

    struct Sample {
        certificate: PeerCertificate,
        key: KeyPair,
    }

    fn certificate(sans: Vec<SanType>, subject: &[(DnType, &str)]) -> Sample {
        let mut params = CertificateParams::default();
        params.subject_alt_names = sans;
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap();
        Sample {
            certificate: PeerCertificate::from_der(der.der()).unwrap(),
            key,
        }
    }

    /// The configured name under which the certificate finds a user.
    fn found(certificate: &PeerCertificate, users: &[&str]) -> Option<String> {
        let dns: HashMap<String, Dn> = users
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), Dn::parse(name)?)))
            .collect();
        certificate.find_user(
            |name| users.contains(&name).then(|| name.to_owned()),
            || dns.iter().map(|(name, dn)| (dn, name.clone())),
        )
    }

    fn subject() -> Vec<(DnType, &'static str)> {
        vec![
            (DnType::CountryName, "NL"),
            (DnType::OrganizationName, "acme"),
            (DnType::OrganizationalUnitName, "dev"),
            (DnType::CommonName, "alice"),
        ]
    }

    #[test]
    fn alternative_names_come_before_the_subject_email_first() {
        let sans = vec![
            SanType::URI("spiffe://acme/alice".try_into().unwrap()),
            SanType::DnsName("alice.acme.test".try_into().unwrap()),
            SanType::Rfc822Name("alice@acme.test".try_into().unwrap()),
        ];
        let sample = certificate(sans, &subject());
        let all = [
            "CN=alice,OU=dev,O=acme,C=NL",
            "spiffe://acme/alice",
            "alice.acme.test",
            "alice@acme.test",
        ];
        for count in (1..=all.len()).rev() {
            let expected = all[count - 1];
            assert_eq!(
                found(&sample.certificate, &all[..count]).as_deref(),
                Some(expected)
            );
        }
        assert_eq!(found(&sample.certificate, &["alice"]), None);
    }

    #[test]
    fn the_subject_is_found_in_its_order_in_any_order_and_with_any_case_of_types() {
        let sample = certificate(Vec::new(), &subject());
        for name in [
            "CN=alice,OU=dev,O=acme,C=NL",
            "cn=alice, ou=dev, o=acme, c=NL",
            "C=NL,O=acme,OU=dev,CN=alice",
        ] {
            assert_eq!(found(&sample.certificate, &[name]).as_deref(), Some(name));
        }
        for name in [
            "CN=alice",
            "CN=Alice,OU=dev,O=acme,C=NL",
            "CN=alice,OU=dev,O=acme,C=NL,L=x",
        ] {
            assert_eq!(found(&sample.certificate, &[name]), None);
        }
        assert_eq!(sample.certificate.subject(), "CN=alice,OU=dev,O=acme,C=NL");
    }

    #[test]
    fn a_subject_with_unknown_attributes_is_found_by_its_text_only() {
        let mut with_unknown = subject();
        with_unknown.push((DnType::CustomDnType(vec![1, 2, 3, 4]), "odd"));
        let sample = certificate(Vec::new(), &with_unknown);
        let text = "CN=alice,OU=dev,O=acme,C=NL";
        assert_eq!(found(&sample.certificate, &[text]).as_deref(), Some(text));
        assert_eq!(found(&sample.certificate, &["C=NL,O=acme,OU=dev,CN=alice"]), None);
    }

    #[test]
    fn domain_components_follow_the_text() {
        let dc = || DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 25]);
        let sample = certificate(Vec::new(), &[(dc(), "acme"), (DnType::CommonName, "alice")]);
        for name in ["CN=alice,DC=acme", "DC=acme,CN=alice", "CN=alice"] {
            assert_eq!(found(&sample.certificate, &[name]).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_certificate_without_names_finds_nobody() {
        let sample = certificate(Vec::new(), &[]);
        assert_eq!(found(&sample.certificate, &["", "CN="]), None);
    }

    #[test]
    fn a_pin_is_the_hash_of_the_public_key() {
        let sample = certificate(Vec::new(), &subject());
        let pin = HEXLOWER.encode(&Sha256::digest(sample.key.subject_public_key_info()));
        assert_eq!(sample.certificate.spki_sha256(), pin);
        assert!(sample.certificate.is_pinned(&[]));
        assert!(
            sample
                .certificate
                .is_pinned(&["00".to_owned(), pin.to_uppercase()])
        );
        assert!(!sample.certificate.is_pinned(&["00".repeat(32)]));
        assert_eq!(sample.certificate.cert_sha256().len(), 64);
    }

    #[test]
    fn other_bytes_are_not_a_certificate() {
        assert!(PeerCertificate::from_der(b"").is_err());
        assert!(PeerCertificate::from_der(b"-----BEGIN CERTIFICATE-----").is_err());
    }
}
