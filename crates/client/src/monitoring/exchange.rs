//! One request and its answer, over a connection of its own.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HOST, LOCATION};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use super::{BODY_MAX, EXCERPT};
use crate::error::{Error, ErrorKind, Result};

/// What a server says.
pub(super) enum Answer {
    Body(Bytes),
    /// A status from 400, with the begin of the body.
    Refused(StatusCode, Bytes),
    /// A redirect.
    Elsewhere(String),
}

/// Asks one of `addresses`, the first that takes a connection.
pub(super) async fn get(
    url: &Url,
    addresses: &[SocketAddr],
    tls: &Arc<ClientConfig>,
    what: &str,
) -> Result<Answer> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Monitoring, format!("{what}: connecting")).because(error)
    };
    let stream = TcpStream::connect(addresses).await.map_err(failed)?;
    if url.scheme() != "https" {
        return ask(stream, url, what).await;
    }
    let name = match url.host() {
        Some(url::Host::Domain(name)) => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok(),
        Some(url::Host::Ipv4(address)) => Some(ServerName::from(std::net::IpAddr::from(address))),
        Some(url::Host::Ipv6(address)) => Some(ServerName::from(std::net::IpAddr::from(address))),
        None => None,
    };
    let name = name.ok_or_else(|| {
        failed(std::io::Error::other(
            "the host's name cannot be in a certificate",
        ))
    })?;
    let secured = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
    ask(secured.map_err(failed)?, url, what).await
}

async fn ask<S>(stream: S, url: &Url, what: &str) -> Result<Answer>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed =
        |error: hyper::Error| Error::new(ErrorKind::Monitoring, format!("{what}: asking")).because(error);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let exchange = async {
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let host = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
            None => url.host_str().unwrap_or_default().to_owned(),
        };
        let request = Request::get(target)
            .header(HOST, host)
            .header(ACCEPT, "*/*")
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::new(ErrorKind::Monitoring, what).because(error))?;
        let response = sender.send_request(request).await.map_err(failed)?;
        read(response, what).await
    };
    beside(connection, exchange).await
}

/// Drives a connection as long as the exchange on it lasts.
async fn beside<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = T>,
) -> T {
    let driver = async {
        // Its end, good or bad, reaches the exchange by its own channel; what has arrived is still read.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a server's monitoring broke");
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        never = driver => match never {},
    }
}

async fn read(response: Response<Incoming>, what: &str) -> Result<Answer> {
    let status = response.status();
    let location = response
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok());
    if let (true, Some(location)) = (is_redirect(status), location) {
        return Ok(Answer::Elsewhere(location.to_owned()));
    }
    let (mut parts, mut body) = (BytesMut::new(), response.into_body());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Error::new(ErrorKind::Monitoring, format!("{what}: reading the answer")).because(error)
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if status.as_u16() >= 400 {
            let room = EXCERPT - parts.len();
            parts.extend_from_slice(&data[..data.len().min(room)]);
            if parts.len() == EXCERPT {
                break;
            }
            continue;
        }
        if data.len() > BODY_MAX - parts.len() {
            return Err(Error::new(ErrorKind::MonitoringBodyTooLarge, what));
        }
        parts.extend_from_slice(&data);
    }
    let body = parts.freeze();
    Ok(if status.as_u16() >= 400 {
        Answer::Refused(status, body)
    } else {
        Answer::Body(body)
    })
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
