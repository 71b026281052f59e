//! The HTTP request that opens a WebSocket: what is accepted, and the answers.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};
use tungstenite::handshake::derive_accept_key;
use windjet_protocol::wire::Connect;

use crate::options::WebSocketOptions;

/// Longest request head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header lines.
const HEADERS_MAX: usize = 64;

/// A request head, and what came after it.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    head: usize,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
}

/// Credentials out of cookies, for CONNECT fields that the client leaves out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cookies {
    pub(crate) jwt: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) pass: Option<String>,
    pub(crate) token: Option<String>,
}

impl Cookies {
    /// Fills the fields that the client left out.
    pub(crate) fn fill(&self, connect: &mut Connect) {
        let fields = [
            (&self.jwt, &mut connect.jwt),
            (&self.user, &mut connect.user),
            (&self.pass, &mut connect.pass),
            (&self.token, &mut connect.auth_token),
        ];
        for (cookie, field) in fields {
            if let (Some(cookie), true) = (cookie, field.is_empty()) {
                field.clone_from(cookie);
            }
        }
    }
}

/// An upgrade that may go on.
#[derive(Debug)]
pub(super) struct Upgrade {
    accept: String,
    /// permessage-deflate was agreed on.
    pub(super) compress: bool,
    /// The client does not mask its frames.
    pub(super) no_masking: bool,
    /// The client is a browser, which wants small frames.
    pub(super) browser: bool,
    /// Address told by a proxy.
    pub(super) forwarded_for: Option<String>,
    /// Credentials out of cookies.
    pub(super) cookies: Cookies,
}

/// An upgrade that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    BadRequest,
    NoHost,
    Forbidden,
    NotFound,
    MethodNotAllowed,
}

impl Refusal {
    /// The whole response.
    pub(super) fn response(self) -> Vec<u8> {
        let status = match self {
            Self::NoHost => {
                let status = "400 Bad Request: missing required Host header";
                return format!(
                    "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{status}"
                )
                .into_bytes();
            }
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
        };
        let body = &status[4..];
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nSec-Websocket-Version: 13\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Length: {}\r\n\r\n{body}\n",
            body.len() + 1
        )
        .into_bytes()
    }
}

/// Reads a request head.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Request> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(request) = Request::parse(&mut bytes)? {
            return Ok(request);
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

impl Request {
    /// The request once its head is whole. Takes the bytes then.
    fn parse(bytes: &mut Vec<u8>) -> io::Result<Option<Self>> {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut lines);
        let status = parsed
            .parse(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let httparse::Status::Complete(head) = status else {
            return Ok(None);
        };
        let headers = parsed
            .headers
            .iter()
            .map(|line| {
                (
                    line.name.to_owned(),
                    String::from_utf8_lossy(line.value).trim().to_owned(),
                )
            })
            .collect();
        let (method, path) = (
            parsed.method.unwrap_or_default().to_owned(),
            parsed.path.unwrap_or_default().to_owned(),
        );
        Ok(Some(Self {
            head,
            method,
            path,
            headers,
            bytes: std::mem::take(bytes),
        }))
    }

    /// Bytes that came after the head.
    pub(super) fn rest(&self) -> Vec<u8> {
        self.bytes[self.head..].to_vec()
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Whether a comma-separated header has this word.
    fn has_word(&self, name: &str, word: &str) -> bool {
        self.headers
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .flat_map(|(_, value)| value.split(','))
            .any(|known| known.trim().eq_ignore_ascii_case(word))
    }

    fn cookie(&self, name: Option<&str>) -> Option<String> {
        let name = name?;
        self.headers
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case("cookie"))
            .flat_map(|(_, value)| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.trim_matches('"').to_owned())
    }
}

impl Upgrade {
    /// Checks a request in the order of nats-server.
    pub(super) fn check(
        request: &Request,
        options: &WebSocketOptions,
        secure: bool,
    ) -> Result<Self, Refusal> {
        let host = request
            .get("host")
            .filter(|host| !host.is_empty())
            .ok_or(Refusal::NoHost)?;
        let path = request.path.split('?').next().unwrap_or_default();
        if path.ends_with("/mqtt") || path.ends_with("/leafnode") {
            return Err(Refusal::NotFound);
        }
        if request.method != "GET" {
            return Err(Refusal::MethodNotAllowed);
        }

        if !request.has_word("upgrade", "websocket") || !request.has_word("connection", "upgrade") {
            return Err(Refusal::BadRequest);
        }
        let key = request
            .get("sec-websocket-key")
            .filter(|key| is_key(key))
            .ok_or(Refusal::BadRequest)?;
        if request.get("sec-websocket-version") != Some("13") {
            return Err(Refusal::BadRequest);
        }
        if !origin_allowed(request.get("origin"), host, options, secure) {
            return Err(Refusal::Forbidden);
        }
        let offers_deflate = request.get("sec-websocket-extensions").is_some_and(|offers| {
            offers
                .split([',', ';'])
                .any(|offer| offer.trim().eq_ignore_ascii_case("permessage-deflate"))
        });
        Ok(Self {
            accept: derive_accept_key(key.as_bytes()),
            compress: options.compression && offers_deflate,
            no_masking: request
                .get("nats-no-masking")
                .is_some_and(|value| value.eq_ignore_ascii_case("true")),
            browser: request
                .get("user-agent")
                .is_some_and(|agent| agent.starts_with("Mozilla/")),
            forwarded_for: request
                .get("x-forwarded-for")
                .and_then(|list| list.split(',').next())
                .map(|ip| ip.trim().to_owned())
                .filter(|ip| ip.parse::<std::net::IpAddr>().is_ok()),
            cookies: Cookies {
                jwt: request.cookie(options.jwt_cookie.as_deref()),
                user: request.cookie(options.user_cookie.as_deref()),
                pass: request.cookie(options.pass_cookie.as_deref()),
                token: request.cookie(options.token_cookie.as_deref()),
            },
        })
    }

    /// The response that ends HTTP on this connection.
    pub(super) fn response(&self, options: &WebSocketOptions) -> Vec<u8> {
        let mut out = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n",
            self.accept
        );
        if self.compress {
            out.push_str(
                "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n",
            );
        }
        if self.no_masking {
            out.push_str("Nats-No-Masking: true\r\n");
        }
        for (name, value) in &options.headers {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        out.push_str("\r\n");
        out.into_bytes()
    }
}

/// Whether this is the base64 form of 16 bytes.
fn is_key(key: &str) -> bool {
    data_encoding::BASE64
        .decode(key.as_bytes())
        .is_ok_and(|bytes| bytes.len() == 16)
}

/// Whether a browser's page may connect. Requests without an origin come from no browser.
fn origin_allowed(origin: Option<&str>, host: &str, options: &WebSocketOptions, secure: bool) -> bool {
    let Some(origin) = origin else { return true };
    if !options.same_origin && options.allowed_origins.is_empty() {
        return true;
    }
    let Some(origin) = Origin::parse(origin) else {
        return false;
    };
    if options.same_origin {
        let scheme = if secure { "https" } else { "http" };
        let same = Origin::parse(&format!("{scheme}://{host}"))
            .is_some_and(|own| own.host == origin.host && own.port == origin.port);
        if !same {
            return false;
        }
    }
    options.allowed_origins.is_empty()
        || options
            .allowed_origins
            .iter()
            .filter_map(|allowed| Origin::parse(allowed))
            .any(|allowed| allowed == origin)
}

/// Scheme, host and port of an origin.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let authority = rest.split('/').next()?;
        let scheme = scheme.to_ascii_lowercase();
        let default = if scheme == "https" { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, default),
        };
        Some(Self {
            scheme,
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ListenAddress;

    fn request(head: &str) -> Request {
        Request::parse(&mut head.replace('\n', "\r\n").into_bytes())
            .unwrap()
            .unwrap()
    }

    fn options() -> WebSocketOptions {
        WebSocketOptions::new(ListenAddress::loopback())
    }

    const GOOD: &str = "GET / HTTP/1.1\nHost: h:80\nUpgrade: websocket\nConnection: keep-alive, Upgrade\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\n";

    fn with(extra: &str) -> Request {
        request(&format!("{GOOD}{extra}\n"))
    }

    #[test]
    fn a_good_request_is_answered_with_its_key() {
        let upgrade = Upgrade::check(&with(""), &options(), false).unwrap();
        let response = String::from_utf8(upgrade.response(&options())).unwrap();
        assert!(
            response.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
            "{response}"
        );
        assert!(!response.contains("Extensions"));
    }

    #[test]
    fn compression_needs_both_sides() {
        let offer = with("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\n");
        assert!(!Upgrade::check(&offer, &options(), false).unwrap().compress);
        let mut on = options();
        on.compression = true;
        assert!(Upgrade::check(&offer, &on, false).unwrap().compress);
        assert!(!Upgrade::check(&with(""), &on, false).unwrap().compress);
    }

    #[test]
    fn each_fault_has_its_status() {
        let refused =
            |head: String| Upgrade::check(&request(&format!("{head}\n")), &options(), false).unwrap_err();
        assert_eq!(refused(GOOD.replace("GET", "POST")), Refusal::MethodNotAllowed);
        assert_eq!(refused(GOOD.replace("GET /", "GET /mqtt")), Refusal::NotFound);
        assert_eq!(refused(GOOD.replace("Host: h:80\n", "")), Refusal::NoHost);
        assert_eq!(
            refused(GOOD.replace("dGhlIHNhbXBsZSBub25jZQ==", "short")),
            Refusal::BadRequest
        );
        assert_eq!(
            refused(GOOD.replace("Version: 13", "Version: 8")),
            Refusal::BadRequest
        );
        assert_eq!(
            refused(GOOD.replace("Upgrade: websocket\n", "")),
            Refusal::BadRequest
        );
    }

    #[test]
    fn origins_are_checked_where_they_are_limited() {
        let from = |origin: &str| with(&format!("Origin: {origin}\n"));
        let mut same = options();
        same.same_origin = true;
        assert!(Upgrade::check(&from("http://h"), &same, false).is_ok());
        assert_eq!(
            Upgrade::check(&from("http://other"), &same, false).unwrap_err(),
            Refusal::Forbidden
        );
        let mut listed = options();
        listed.allowed_origins = vec!["https://good:444".to_owned()];
        assert!(Upgrade::check(&from("https://good:444"), &listed, false).is_ok());
        assert_eq!(
            Upgrade::check(&from("https://good"), &listed, false).unwrap_err(),
            Refusal::Forbidden
        );
        assert!(
            Upgrade::check(&with(""), &listed, false).is_ok(),
            "no browser, no origin"
        );
    }

    #[test]
    fn cookies_and_proxies_are_read() {
        let mut options = options();
        options.jwt_cookie = Some("nats".to_owned());
        let upgrade = Upgrade::check(
            &with("Cookie: a=b; nats=\"eyJ\"\nX-Forwarded-For: 1.2.3.4, 5.6.7.8\n"),
            &options,
            false,
        )
        .unwrap();
        assert_eq!(upgrade.cookies.jwt.as_deref(), Some("eyJ"));
        assert_eq!(upgrade.forwarded_for.as_deref(), Some("1.2.3.4"));
    }
}
