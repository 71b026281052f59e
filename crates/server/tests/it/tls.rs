//! TLS on the client listener: every order of handshake and INFO, and client certificates. TLS on the monitoring listener.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use windjet_server::options::{HandshakeFirst, ListenAddress, TlsOptions};
use windjet_server::{Server, StartError, TlsError};

const DEADLINE: Duration = Duration::from_secs(10);

/// An authority, a server certificate on disk, and a client certificate.
struct Pki {
    folder: tempfile::TempDir,
    roots: RootCertStore,
    client: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

impl Pki {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let server = server.signed_by(&key, &authority).unwrap();
        std::fs::write(folder.path().join("cert.pem"), server.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut client = CertificateParams::new(vec!["client".to_owned()]).unwrap();
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = client.signed_by(&key, &authority).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Self {
            folder,
            roots,
            client: (client.der().clone(), key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> TlsOptions {
        let mut options = TlsOptions::default();
        options.certificates = vec![(self.path("cert.pem"), self.path("key.pem"))];
        options
    }

    fn connector(&self, with_certificate: bool) -> TlsConnector {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = if with_certificate {
            let (certificate, key) = &self.client;
            builder
                .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
                .unwrap()
        } else {
            builder.with_no_client_auth()
        };
        TlsConnector::from(Arc::new(config))
    }

    async fn start(&self, tls: TlsOptions, allow_non_tls: bool) -> (Server, SocketAddr) {
        let server = Server::builder()
            .listen_loopback()
            .tls(tls)
            .configure(|options| options.allow_non_tls = allow_non_tls)
            .start()
            .await
            .unwrap();
        let address = server.client_addr().unwrap();
        (server, address)
    }
}

/// Reads one line.
async fn line(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(timeout(DEADLINE, stream.read_u8()).await.unwrap()?);
    }
    Ok(String::from_utf8(line).unwrap())
}

/// Says hello over an open stream.
async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream
        .write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")
        .await
        .unwrap();
    stream.flush().await.unwrap();
    assert_eq!(line(stream).await.unwrap(), "PONG\r\n");
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

#[tokio::test]
async fn info_comes_in_plain_text_and_the_handshake_follows() {
    let pki = Pki::new();
    let (server, address) = pki.start(pki.options(), false).await;
    assert_eq!(server.client_url().unwrap(), format!("tls://{address}"));
    let mut socket = TcpStream::connect(address).await.unwrap();
    assert!(line(&mut socket).await.unwrap().contains("\"tls_required\":true"));
    let mut stream = pki.connector(false).connect(localhost(), socket).await.unwrap();
    greet(&mut stream).await;
    // A large message crosses in both directions.
    let payload = "x".repeat(300_000);
    stream
        .write_all(format!("SUB a 1\r\nPUB a {}\r\n{payload}\r\n", payload.len()).as_bytes())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    assert_eq!(line(&mut stream).await.unwrap(), "MSG a 1 300000\r\n");
    assert_eq!(line(&mut stream).await.unwrap().trim_end(), payload);
}

#[tokio::test]
async fn the_handshake_may_come_first() {
    let pki = Pki::new();
    let mut options = pki.options();
    options.handshake_first = HandshakeFirst::Required;
    let (_server, address) = pki.start(options, false).await;
    let socket = TcpStream::connect(address).await.unwrap();
    let mut stream = pki.connector(false).connect(localhost(), socket).await.unwrap();
    assert!(line(&mut stream).await.unwrap().contains("\"tls_required\":true"));
    greet(&mut stream).await;
}

#[tokio::test]
async fn a_client_that_waits_for_info_gets_it_after_a_while() {
    let pki = Pki::new();
    let mut options = pki.options();
    options.handshake_first = HandshakeFirst::Auto(Duration::from_millis(20));
    let (_server, address) = pki.start(options, false).await;
    let mut waits = TcpStream::connect(address).await.unwrap();
    assert!(line(&mut waits).await.unwrap().starts_with("INFO"));
    greet(&mut pki.connector(false).connect(localhost(), waits).await.unwrap()).await;
    let begins = TcpStream::connect(address).await.unwrap();
    let mut stream = pki.connector(false).connect(localhost(), begins).await.unwrap();
    assert!(line(&mut stream).await.unwrap().starts_with("INFO"));
}

#[tokio::test]
async fn plain_clients_are_admitted_where_they_are_allowed() {
    let pki = Pki::new();
    let (_server, address) = pki.start(pki.options(), true).await;
    let mut plain = TcpStream::connect(address).await.unwrap();
    let info = line(&mut plain).await.unwrap();
    assert!(
        info.contains("\"tls_available\":true") && !info.contains("tls_required"),
        "{info}"
    );
    greet(&mut plain).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    line(&mut socket).await.unwrap();
    greet(&mut pki.connector(false).connect(localhost(), socket).await.unwrap()).await;
}

#[tokio::test]
async fn plain_bytes_where_tls_is_required_cost_only_their_connection() {
    let pki = Pki::new();
    let (server, address) = pki.start(pki.options(), false).await;
    let mut plain = TcpStream::connect(address).await.unwrap();
    line(&mut plain).await.unwrap();
    plain.write_all(b"CONNECT {}\r\nPING\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, plain.read_to_end(&mut rest)).await.unwrap();
    assert!(!rest.starts_with(b"PONG"));
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_demanded_client_certificate_must_be_shown() {
    let pki = Pki::new();
    let mut options = pki.options();
    options.verify = true;
    options.ca_file = Some(pki.path("ca.pem"));
    let (_server, address) = pki.start(options, false).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    assert!(line(&mut socket).await.unwrap().contains("\"tls_verify\":true"));
    greet(&mut pki.connector(true).connect(localhost(), socket).await.unwrap()).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    line(&mut socket).await.unwrap();
    // In TLS 1.3 the client learns of the refusal with its first read.
    let refused = match pki.connector(false).connect(localhost(), socket).await {
        Ok(mut stream) => line(&mut stream).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test]
async fn files_that_are_not_there_are_start_errors() {
    let pki = Pki::new();
    let mut options = pki.options();
    options.certificates = vec![("nope.pem".into(), "nope.key".into())];
    let error = Server::builder().tls(options).start().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "error parsing X509 certificate/key pair: open nope.pem: no such file or directory"
    );
    let error = Server::builder()
        .tls(TlsOptions::default())
        .start()
        .await
        .unwrap_err();
    assert!(matches!(error, StartError::Tls(TlsError::NoCertificate)));
}

#[tokio::test]
async fn monitoring_over_tls_asks_for_no_client_certificate_and_tells_of_those_of_clients() {
    let pki = Pki::new();
    let mut tls = pki.options();
    tls.verify = true;
    tls.ca_file = Some(pki.path("ca.pem"));
    let server = Server::builder()
        .listen_loopback()
        .tls(tls)
        .configure(|options| options.monitoring.https = Some(ListenAddress::loopback()))
        .start()
        .await
        .unwrap();
    let mut socket = TcpStream::connect(server.client_addr().unwrap()).await.unwrap();
    assert!(line(&mut socket).await.unwrap().contains("\"tls_verify\":true"));
    let mut client = pki.connector(true).connect(localhost(), socket).await.unwrap();
    greet(&mut client).await;
    let socket = TcpStream::connect(server.monitoring_addr().unwrap())
        .await
        .unwrap();
    let mut page = pki.connector(false).connect(localhost(), socket).await.unwrap();
    page.write_all(b"GET /connz?auth=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, page.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for expected in [
        "\"tls_version\": \"1.3\"",
        "\"tls_peer_certs\": [",
        "\"spki_sha256\": \"",
    ] {
        assert!(answer.contains(expected), "{answer}");
    }
}

/// Monitoring kept the certificate of its start, so that a renewed one needed a restart.
#[tokio::test]
async fn monitoring_over_tls_shows_the_certificate_of_the_last_reload() {
    let pki = Pki::new();
    let options = pki.options();
    let server = Server::builder()
        .configure(|all| {
            all.tls = Some(options);
            all.monitoring.https = Some(ListenAddress::loopback());
        })
        .start()
        .await
        .unwrap();
    let address = server.monitoring_addr().unwrap();
    let handshake = async |pki: &Pki| {
        let socket = TcpStream::connect(address).await.unwrap();
        timeout(DEADLINE, pki.connector(false).connect(localhost(), socket))
            .await
            .unwrap()
    };
    handshake(&pki).await.unwrap();
    let renewed = Pki::new();
    for name in ["cert.pem", "key.pem"] {
        std::fs::copy(renewed.path(name), pki.path(name)).unwrap();
    }
    server.reload((*server.options()).clone()).unwrap();
    handshake(&renewed).await.unwrap();
    assert!(handshake(&pki).await.is_err());
}

#[tokio::test]
async fn half_open_handshakes_end_in_time_and_hold_up_nobody() {
    let pki = Pki::new();
    let mut tls = pki.options();
    tls.timeout = Duration::from_millis(300);
    tls.handshake_first = HandshakeFirst::Required;
    let (server, address) = pki.start(tls, false).await;
    // A record that announces a ClientHello of 512 bytes: some send all of its header and a little more, some a byte.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let mut waiting = Vec::new();
    for n in 0..200 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&hello[..n % (hello.len() + 1)]).await.unwrap();
        waiting.push(socket);
    }
    let socket = TcpStream::connect(address).await.unwrap();
    let mut stream = timeout(DEADLINE, pki.connector(false).connect(localhost(), socket))
        .await
        .unwrap()
        .unwrap();
    assert!(line(&mut stream).await.unwrap().starts_with("INFO "));
    greet(&mut stream).await;
    for mut socket in waiting {
        let mut rest = Vec::new();
        // An end or a reset: either way the server has let go.
        let _ = timeout(DEADLINE, socket.read_to_end(&mut rest)).await.unwrap();
    }
    stream.write_all(b"PING\r\n").await.unwrap();
    assert_eq!(line(&mut stream).await.unwrap().trim_end(), "PONG");
    drop(server);
}
