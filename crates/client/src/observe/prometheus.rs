//! Measurements as Prometheus' text: rendered for an endpoint that the program has, or served by one of the kit's.
//!
//! ```no_run
//! # async fn example() -> windjet_client::Result<()> {
//! use windjet_client::{Config, observe::prometheus::Prometheus};
//!
//! let prometheus = Prometheus::new()?;
//! let mut config = Config::default();
//! config.metrics.sink = prometheus.sink();
//! let endpoint = prometheus.serve("127.0.0.1:9090".parse().unwrap()).await?; // GET /metrics
//! # endpoint.stop().await; Ok(())
//! # }
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{INSTRUMENTS, Kind, Sink, bounds};
use crate::error::{Error, ErrorKind, Result};

/// Most connections at a time; more wait.
const CONNECTIONS: usize = 32;
/// How long a scraper may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may last in all: one that reads nothing must not keep its place.
const LONGEST: Duration = Duration::from_secs(30);

/// Gathers measurements for Prometheus. Clones share them; several clients may have the same.
#[derive(Clone)]
pub struct Prometheus {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
}

impl Prometheus {
    /// Gathers from now on, what is sent to [`Prometheus::sink`].
    ///
    /// # Errors
    /// Never with the buckets that this crate has; the exporter checks them all the same.
    pub fn new() -> Result<Self> {
        let failed = |error| Error::new(ErrorKind::InvalidConfig, "gathering for Prometheus").because(error);
        let mut builder = PrometheusBuilder::new();
        for known in INSTRUMENTS.iter().filter(|known| known.kind == Kind::Histogram) {
            // Whatever prefix a client has.
            let which = Matcher::Suffix(known.name.to_owned());
            builder = builder
                .set_buckets_for_metric(which, bounds(known.unit))
                .map_err(failed)?;
        }
        let builder = builder.set_buckets(bounds(Unit::Seconds)).map_err(failed)?;
        let recorder = builder.build_recorder();
        Ok(Self {
            handle: recorder.handle(),
            recorder: Arc::new(recorder),
        })
    }

    /// Where a client has to send its measurements.
    #[must_use]
    pub fn sink(&self) -> Sink {
        let handle = self.handle.clone();
        Sink::recorder(Arc::clone(&self.recorder)).with_upkeep(move || handle.run_upkeep())
    }

    /// Everything as text.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Serves `GET /metrics` over HTTP until it is stopped. Without TLS and authentication: bind it where only scrapers
    /// are.
    ///
    /// # Errors
    /// When the address cannot be bound.
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn serve(&self, address: SocketAddr) -> Result<Endpoint> {
        let failed = |error| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("serving measurements at {address}"),
            )
            .because(error)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = CancellationToken::new();
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let task = tokio::spawn(accept(listener, self.handle.clone(), stop.clone(), room, LONGEST));
        Ok(Endpoint { address, stop, task })
    }
}

impl std::fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prometheus").finish_non_exhaustive()
    }
}

/// A running endpoint. Dropped, it stops.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Endpoint {
    /// Where it is, with the port that it was given.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Stops it, and waits until it has.
    ///
    /// # Cancel safety
    /// Dropped early, it stops all the same.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    handle: PrometheusHandle,
    stop: CancellationToken,
    room: Arc<Semaphore>,
    longest: Duration,
) {
    let tasks = TaskTracker::new();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            next = next => next,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most often the process has no more descriptors; the next try may have one.
                tracing::warn!(%error, "a scraper could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (handle, stop) = (handle.clone(), stop.clone());
        tasks.spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&request, &handle);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .keep_alive(false);
            let serving = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(longest) => tracing::debug!("a scraper took too long"),
                served = serving => if let Err(error) = served {
                    tracing::debug!(%error, "a scraper went away");
                }
            }
            drop(place);
        });
    }
    tasks.close();
    tasks.wait().await;
}

fn answer(request: &Request<Incoming>, handle: &PrometheusHandle) -> Response<Full<Bytes>> {
    let plain = |status, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    };
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "measurements are at /metrics\n".to_owned());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
    }
    plain(StatusCode::OK, handle.render())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
            .await
            .unwrap();
        stream
    }

    #[tokio::test]
    async fn a_scraper_that_does_not_read_loses_its_place() {
        let prometheus = Prometheus::new().unwrap();
        // More than the buffers of a connection hold.
        let filler = "x".repeat(1 << 20);
        metrics::with_local_recorder(&*prometheus.recorder, || {
            for n in 0..24 {
                metrics::counter!("c", "label" => format!("{n}{filler}")).increment(1);
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, room) = (CancellationToken::new(), Arc::new(Semaphore::new(1)));
        let longest = Duration::from_millis(500);
        let task = tokio::spawn(accept(
            listener,
            prometheus.handle.clone(),
            stop.clone(),
            room,
            longest,
        ));
        let mut stalled = ask(address).await;
        let mut first = [0; 15];
        stalled.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        let mut next = ask(address).await;
        tokio::time::timeout(Duration::from_secs(20), next.read_exact(&mut first))
            .await
            .expect("the place is not free")
            .unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        stop.cancel();
        task.await.unwrap();
    }
}
