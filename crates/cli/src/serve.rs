//! `windjet serve`: a server with defaults for people.
//!
//! It listens on the loopback interface unless told otherwise, and refuses to listen anywhere else without
//! authentication. The log goes to standard error; standard output gets one line per thing that others need to
//! know, beginning with the URL for clients.

use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tracing_subscriber::EnvFilter;
use windjet_server::Server;
use windjet_server::auth::Authenticator;
use windjet_server::options::{ConnectionType, JetStreamOptions, ListenAddress, Options, TlsOptions};

use crate::go_text;
use crate::process::raise_file_limit;
use crate::signals::{Asked, Signals};

/// Options of `windjet serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windjet serve                                  clients on this machine only
  windjet serve --host 0.0.0.0 --user app --password s3cret
  windjet serve --port 0 --monitor-port 8222     a free port, and http://127.0.0.1:8222/varz")]
pub(crate) struct Serve {
    /// Address to listen on; other than loopback it needs authentication or --insecure
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port for clients; 0 takes a free one
    #[arg(short, long, default_value_t = 4222)]
    port: u16,
    /// Name of the server; its id when absent
    #[arg(short, long)]
    name: Option<String>,
    /// User that clients must give, with --password
    #[arg(long, requires = "password")]
    user: Option<String>,
    /// Password that clients must give, plain or bcrypt
    #[arg(long, requires = "user", env = "WINDJET_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Token that clients must give, plain or bcrypt
    #[arg(long, env = "WINDJET_TOKEN", hide_env_values = true, conflicts_with = "user")]
    token: Option<String>,
    /// Certificate chain of the server (PEM); clients must then use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the server (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authorities of client certificates (PEM); clients must then show one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Port of HTTP monitoring on the same address; 0 takes a free one [default: none]
    #[arg(long, value_name = "PORT")]
    monitor_port: Option<u16>,
    /// Folder for data; switches JetStream on
    #[arg(short, long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// What to log: a level, or a filter such as `info,windjet_server=debug`
    #[arg(long, value_name = "FILTER", default_value = "info", env = "WINDJET_LOG")]
    log: EnvFilter,
    /// Listen beyond this machine without authentication
    #[arg(long)]
    insecure: bool,
    /// Longest time that a shutdown takes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    shutdown_timeout: u64,
}

impl Serve {
    /// Runs the server until a signal ends it.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub(crate) fn run(self) -> Result<()> {
        let options = self.options();
        let deadline = Duration::from_secs(self.shutdown_timeout);
        if !self.insecure {
            refuse_open_door(&options)?;
        }
        tracing_subscriber::fmt()
            .with_env_filter(self.log)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .init();
        if let Some(files) = raise_file_limit() {
            tracing::debug!(files, "limit of open files");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("windjet")
            .build()
            .context("no threads to run on")?;
        let result = runtime.block_on(serve(options, deadline));
        // A shutdown past its deadline may have left tasks behind; they end with the process.
        runtime.shutdown_background();
        result
    }

    fn options(&self) -> Options {
        let mut options = Options::default();
        options.listen = Some(address(&self.host, self.port));
        options.monitoring.http = self.monitor_port.map(|port| address(&self.host, port));
        options.server_name.clone_from(&self.name);
        options.auth.user = self.user.clone().zip(self.password.clone());
        options.auth.token.clone_from(&self.token);
        if let Some(pair) = self.tls_cert.clone().zip(self.tls_key.clone()) {
            let mut tls = TlsOptions::default();
            tls.certificates.push(pair);
            tls.ca_file.clone_from(&self.tls_ca);
            tls.verify = self.tls_ca.is_some();
            options.tls = Some(tls);
        }
        options.jetstream = self.data.clone().map(|folder| {
            let mut jetstream = JetStreamOptions::default();
            jetstream.store_dir = Some(folder);
            jetstream
        });
        options
    }
}

fn address(host: &str, port: u16) -> ListenAddress {
    ListenAddress {
        host: host.to_owned(),
        port: Some(port).filter(|&port| port != 0),
    }
}

/// Refuses options that let anybody in from other machines.
fn refuse_open_door(options: &Options) -> Result<()> {
    let authenticator = Authenticator::from_options(options)?;
    let doors = [
        (
            options.listen.as_ref(),
            options.tls.as_ref(),
            ConnectionType::Standard,
        ),
        (
            options.websocket.as_ref().map(|websocket| &websocket.listen),
            options
                .websocket
                .as_ref()
                .and_then(|websocket| websocket.tls.as_ref()),
            ConnectionType::WebSocket,
        ),
    ];
    for (listen, tls, kind) in doors {
        let Some(listen) = listen else { continue };
        // A client certificate is authentication as well, unless plain text is let in beside it.
        let certified = tls.is_some_and(TlsOptions::demands_certificate) && !options.allow_non_tls;
        if is_loopback(&listen.host) || certified || authenticator.auth_required(kind) {
            continue;
        }
        bail!(
            "refusing to listen on {}: anybody who reaches it could read and write everything. \
             Give --user and --password, or --token, or a configuration with users; \
             or say --insecure if that is what you want",
            listen.host
        );
    }
    Ok(())
}

/// Whether only programs on this machine reach the address. A name is taken for reachable unless it is `localhost`.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<std::net::IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

async fn serve(options: Options, deadline: Duration) -> Result<()> {
    let mut signals = Signals::new().context("cannot watch for signals")?;
    let server = Server::builder()
        .options(options)
        .start()
        .await
        .map_err(explain)?;
    announce(&server)?;
    loop {
        match signals.next().await {
            Asked::Interrupt | Asked::Terminate => break,
            asked @ (Asked::Reload | Asked::Reopen | Asked::LameDuck) => {
                tracing::info!("nothing to do for signal {:?}", asked.name());
            }
        }
    }
    tracing::info!("shutting down; a second signal ends at once");
    tokio::select! {
        report = server.shutdown(deadline) => {
            tracing::info!(connections = report.connections, complete = report.complete, took = ?report.took, "stopped");
        }
        _ = signals.next() => bail!("ended before the shutdown was complete"),
    }
    Ok(())
}

/// Tells standard output where clients connect.
fn announce(server: &Server) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Windjet {} is ready", env!("CARGO_PKG_VERSION"))?;
    if let Some(url) = server.client_url() {
        writeln!(out, "  clients     {url}")?;
    }
    if let Some(address) = server.monitoring_addr() {
        writeln!(out, "  monitoring  http://{}/varz", reachable(address))?;
    }
    out.flush()
}

/// An address that a browser can open: the loopback one when the listener has all.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

fn explain(error: windjet_server::StartError) -> anyhow::Error {
    match error {
        windjet_server::StartError::Listen { address, source } => {
            let advice = if source.kind() == io::ErrorKind::AddrInUse {
                ". Another server has that port; choose one with --port, or 0 for any"
            } else {
                ""
            };
            anyhow::anyhow!("cannot listen on {address}: {}{advice}", go_text::reason(&source))
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(host: &str) -> Options {
        let mut options = Options::default();
        options.listen = Some(address(host, 0));
        options
    }

    #[test]
    fn loopback_needs_no_authentication() {
        for host in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "[::1]",
            "localhost",
            "::ffff:127.0.0.1",
        ] {
            assert!(refuse_open_door(&options(host)).is_ok(), "{host}");
        }
    }

    #[test]
    fn other_addresses_are_refused_without_authentication() {
        for host in [
            "0.0.0.0",
            "::",
            "192.0.2.1",
            "example.org",
            "",
            "localhost.example.org",
        ] {
            assert!(refuse_open_door(&options(host)).is_err(), "{host}");
        }
    }

    #[test]
    fn credentials_open_other_addresses() {
        let mut with_token = options("0.0.0.0");
        with_token.auth.token = Some("t".to_owned());
        assert!(refuse_open_door(&with_token).is_ok());
        let mut with_user = options("0.0.0.0");
        with_user.auth.user = Some(("u".to_owned(), "p".to_owned()));
        assert!(refuse_open_door(&with_user).is_ok());
    }

    #[test]
    fn demanded_client_certificates_count_as_authentication_unless_plain_text_is_let_in() {
        let mut certified = options("0.0.0.0");
        let mut tls = TlsOptions::default();
        tls.verify = true;
        certified.tls = Some(tls);
        assert!(refuse_open_door(&certified).is_ok());
        certified.allow_non_tls = true;
        assert!(refuse_open_door(&certified).is_err());
    }
}
