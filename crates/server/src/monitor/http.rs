//! The HTTP side of monitoring: listeners, paths, status codes.
//!
//! Plain HTTP/1.1, and HTTPS with the certificates of the client listener. Every method is answered like GET, as
//! nats-server does. Documents are built on the blocking pool, since a long list takes longer than a turn of a
//! connection should wait.
//!
//! Bounds: [`CONNECTIONS_MAX`] connections at a time (others wait in the system's queue), [`HEAD_TIMEOUT`] for
//! a request to arrive, bodies are not read. The listeners live until the server stops, lame duck mode included.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::format::pretty;
use super::params::Params;
use super::{
    AccountzOptions, AccstatzOptions, ConnzOptions, HealthzOptions, JszOptions, Refused, SubszOptions,
    accountz, accstatz, compact, connz, gatewayz, healthz, jsz, leafz, routez, subsz, varz,
};
use crate::server::{Listener, PROTOCOL_VERSION, Shared, StartError, open_listener};
use crate::tls::Setup;

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 256;
/// Time for the head of a request, and between two requests of one connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an `accept` that failed for want of file handles or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Opens the listeners that the options ask for.
///
/// # Errors
///
/// When one cannot be opened.
pub(crate) async fn open(shared: &Arc<Shared>) -> Result<(), StartError> {
    let options = shared.options().clone();
    if let Some(address) = &options.monitoring.http {
        let address = &address.with_host_of(options.listen.as_ref());
        let listener = open_listener(Listener::Monitoring, address).await?;
        shared.set_monitoring_addr(listener.local_addr().ok(), false);
        shared.tasks.spawn(accept(shared.clone(), listener, false));
    }
    if let Some(address) = &options.monitoring.https {
        let address = &address.with_host_of(options.listen.as_ref());
        let listener = open_listener(Listener::Monitoring, address).await?;
        shared.set_monitoring_addr(listener.local_addr().ok(), true);
        shared.tasks.spawn(accept(shared.clone(), listener, true));
    }
    Ok(())
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, secure: bool) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let stop = shared.stop.clone();
    let endless = async {
        loop {
            let Ok(place) = room.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((socket, _)) => {
                    let shared = shared.clone();
                    // Asked for every connection: a reload may have brought other certificates.
                    let tls = if secure {
                        let Some(setup) = shared.monitoring_tls() else {
                            continue;
                        };
                        Some(setup)
                    } else {
                        None
                    };
                    shared.tasks.clone().spawn(async move {
                        serve(shared, socket, tls).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::error!("Error accepting a monitoring connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    let _ = stop.run_until_cancelled(endless).await;
}

async fn serve(shared: Arc<Shared>, socket: TcpStream, tls: Option<Arc<Setup>>) {
    let stop = shared.stop.clone();
    let served = async {
        match tls {
            None => converse(shared, socket).await,
            Some(setup) => {
                if let Ok(secured) = setup.handshake(socket).await {
                    converse(shared, secured.stream).await;
                }
            }
        }
    };
    let _ = stop.run_until_cancelled(served).await;
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(shared: Arc<Shared>, stream: S) {
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(shared, request).await) }
    });
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = ended {
        tracing::debug!("monitoring connection: {error}");
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let uri = request.uri().clone();
    let build = move || {
        let params = Params::parse(uri.query().unwrap_or_default());
        let options = shared.options().clone();
        match below(&options.monitoring.base_path, uri.path()) {
            Some(path) => page(&shared, path, &params),
            None => not_found(),
        }
    };
    tokio::task::spawn_blocking(build)
        .await
        .unwrap_or_else(|_| text(StatusCode::INTERNAL_SERVER_ERROR, "internal error".to_owned()))
}

/// The path below the base path; `/` for the base path itself.
fn below<'p>(base: &str, path: &'p str) -> Option<&'p str> {
    let base = base.trim_matches('/');
    if base.is_empty() {
        return Some(path);
    }
    match path.strip_prefix('/')?.strip_prefix(base)? {
        "" => Some("/"),
        "/" => None,
        rest => rest.starts_with('/').then_some(rest),
    }
}

/// One page. Asking for it is counted.
fn page(shared: &Arc<Shared>, path: &str, params: &Params) -> Response<Full<Bytes>> {
    let count = |path| shared.monitor.count(path);
    let built = match path {
        "/" => {
            count("/");
            return index();
        }
        "/varz" => {
            count("/varz");
            Ok(json(pretty(&varz(shared))))
        }
        "/connz" => {
            count("/connz");
            ConnzOptions::of(params).and_then(|options| document(connz(shared, &options)))
        }
        "/subsz" | "/subscriptionsz" => {
            count("/subsz");
            SubszOptions::of(params).and_then(|options| document(subsz(shared, &options)))
        }
        "/routez" => {
            count("/routez");
            params.flag("subs").map(|_| json(pretty(&routez(shared))))
        }
        "/leafz" => {
            count("/leafz");
            params.flag("subs").map(|_| json(pretty(&leafz(shared))))
        }
        "/gatewayz" => {
            count("/gatewayz");
            params.flag("accs").map(|_| json(pretty(&gatewayz(shared))))
        }
        "/accountz" => {
            count("/accountz");
            document(accountz(shared, &AccountzOptions::of(params)))
        }
        "/accstatz" => {
            count("/accstatz");
            AccstatzOptions::of(params).map(|options| json(pretty(&accstatz(shared, &options))))
        }
        "/jsz" => {
            count("/jsz");
            JszOptions::of(params).map(|options| json(pretty(&jsz(shared, &options))))
        }
        "/healthz" => {
            count("/healthz");
            HealthzOptions::of(params).map(|options| {
                let health = healthz(shared, &options);
                let mut response = json(compact(&health));
                *response.status_mut() = StatusCode::from_u16(health.code).unwrap_or_default();
                response
            })
        }
        "/ipqueuesz" => {
            count("/ipqueuesz");
            params.flag("all").map(|_| json("{}".to_owned()))
        }
        "/raftz" => {
            count("/raftz");
            return text(StatusCode::NOT_FOUND, "No Raft nodes registered".to_owned());
        }
        "/stacksz" => {
            count("/stacksz");
            Ok(json(
                "No stacks: this server does not run on goroutines.\n".to_owned(),
            ))
        }
        "/debug/vars" => {
            let mut response = Response::new(Full::from(pretty(&Variables::now(shared))));
            let kind = HeaderValue::from_static("application/json; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            return response;
        }
        _ => return not_found(),
    };
    built.unwrap_or_else(|Refused(why)| text(StatusCode::BAD_REQUEST, why))
}

/// What `/debug/vars` tells: the memory of the process, under the name that dashboards look for.
#[derive(Debug, Serialize)]
pub(crate) struct Variables {
    memstats: MemStats,
}

#[derive(Debug, Serialize)]
struct MemStats {
    #[serde(rename = "Sys")]
    sys: u64,
}

impl Variables {
    /// The memory now.
    pub(crate) fn now(shared: &Shared) -> Self {
        Self {
            memstats: MemStats {
                sys: shared.monitor.process.memory(),
            },
        }
    }
}

fn document<T: Serialize>(built: Result<T, Refused>) -> Result<Response<Full<Bytes>>, Refused> {
    built.map(|document| json(pretty(&document)))
}

fn json(body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

fn not_found() -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// The page of links.
fn index() -> Response<Full<Bytes>> {
    const PAGES: [(&str, &str); 11] = [
        ("General", "varz"),
        ("JetStream", "jsz"),
        ("Connections", "connz"),
        ("Accounts", "accountz"),
        ("Account Stats", "accstatz"),
        ("Subscriptions", "subsz"),
        ("Routes", "routez"),
        ("LeafNodes", "leafz"),
        ("Gateways", "gatewayz"),
        ("Raft Groups", "raftz"),
        ("Health Probe", "healthz"),
    ];
    let links: String = PAGES
        .iter()
        .map(|(name, path)| format!("<li><a href=\"./{path}\">{name}</a></li>\n"))
        .collect();
    let page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><title>Windjet</title></head>\n<body>\n\
         <h1>Windjet {}</h1>\n<p>Speaks the protocol of nats-server {PROTOCOL_VERSION}.</p>\n\
         <ul>\n{links}</ul>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    );
    let mut response = Response::new(Full::from(page));
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, html);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stand_below_the_base_path_only() {
        assert_eq!(below("", "/varz"), Some("/varz"));
        assert_eq!(below("/x", "/x/varz"), Some("/varz"));
        assert_eq!(below("x/y/", "/x/y/varz"), Some("/varz"));
        assert_eq!(below("/x", "/x"), Some("/"));
        assert_eq!(below("/x", "/x/"), None);
        assert_eq!(below("/x", "/varz"), None);
        assert_eq!(below("/x", "/xvarz"), None);
    }
}
