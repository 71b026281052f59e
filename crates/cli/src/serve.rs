//! `windjet serve`: a server with defaults for people.
//!
//! It listens on the loopback interface unless told otherwise, and refuses to listen anywhere else without
//! authentication. The log goes to standard error; standard output gets one line per thing that others need to
//! know, beginning with the URL for clients.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tracing_subscriber::EnvFilter;
use windjet_server::auth::Authenticator;
use windjet_server::options::{ConnectionType, JetStreamOptions, ListenAddress, Options, TlsOptions};
use windjet_server::{Listener, Server};

use crate::control::{Housekeeping, until_end};
use crate::process::raise_file_limit;
use crate::signals::Signals;
use crate::{config, go_text};

/// Options of `windjet serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windjet serve                                  clients on this machine only
  windjet serve --host 0.0.0.0 --user app --password s3cret
  windjet serve --port 0 --monitor-port 8222     a free port, and http://127.0.0.1:8222/varz")]
pub(crate) struct Serve {
    /// Configuration file in the format of nats-server; the options here win over it
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on; other than loopback it needs authentication or --insecure [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Port for clients; 0 takes a free one [default: 4222]
    #[arg(short, long)]
    port: Option<u16>,
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
    /// Folder for the data of JetStream, which it asks for
    #[arg(short, long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// What to log: a level, or a filter such as `info,windjet_server=debug`
    #[arg(long, value_name = "FILTER", default_value = "info", env = "WINDJET_LOG", value_parser = log_filter)]
    log: LogFilter,
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
    pub(crate) fn run(mut self) -> Result<()> {
        tracing_subscriber::fmt()
            .with_env_filter(std::mem::take(&mut self.log.0))
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .init();
        let options = self.options()?;
        if let Some(files) = raise_file_limit() {
            tracing::debug!(files, "limit of open files");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("windjet")
            .build()
            .context("no threads to run on")?;
        let result = runtime.block_on(self.serve(options));
        // A shutdown past its deadline may have left tasks behind; they end with the process.
        runtime.shutdown_background();
        result
    }

    /// Options of the configuration file, if any, with those of the command line over them.
    fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        if let Some(file) = &self.config {
            let parsed = config::load(file)
                .with_context(|| format!("the configuration {} cannot be used", file.display()))?;
            for problem in parsed.warnings.iter().chain(&parsed.notices) {
                tracing::warn!("{problem}");
            }
            options = parsed.options;
        }
        self.apply(&mut options);
        if !self.insecure {
            refuse_open_door(&options)?;
        }
        Ok(options)
    }

    fn apply(&self, options: &mut Options) {
        let listen = options.listen.get_or_insert_with(|| ListenAddress {
            host: "127.0.0.1".to_owned(),
            port: Some(4222),
        });
        if let Some(host) = &self.host {
            listen.host.clone_from(host);
        }
        if let Some(port) = self.port {
            listen.port = Some(port).filter(|&port| port != 0);
        }
        if let Some(port) = self.monitor_port {
            options.monitoring.http = Some(address(&listen.host, port));
        }
        if let Some(name) = &self.name {
            options.server_name = Some(name.clone());
        }
        if let Some(user) = self.user.clone().zip(self.password.clone()) {
            options.auth.user = Some(user);
        }
        if let Some(token) = &self.token {
            options.auth.token = Some(token.clone());
        }
        if let Some(pair) = self.tls_cert.clone().zip(self.tls_key.clone()) {
            let mut tls = TlsOptions::default();
            tls.certificates.push(pair);
            tls.ca_file.clone_from(&self.tls_ca);
            tls.verify = self.tls_ca.is_some();
            options.tls = Some(tls);
        }
        if let Some(folder) = &self.data {
            let jetstream = options.jetstream.get_or_insert_with(JetStreamOptions::default);
            jetstream.store_dir = Some(folder.clone());
        }
    }

    async fn serve(&self, options: Options) -> Result<()> {
        let mut signals = Signals::new().context("cannot watch for signals")?;
        let server = Server::builder()
            .options(options)
            .start()
            .await
            .map_err(explain)?;
        announce(&server)?;
        until_end(&server, &mut signals, &mut Keeper { serve: self }).await;
        tracing::info!("shutting down; a second signal ends at once");
        tokio::select! {
            report = server.shutdown(Duration::from_secs(self.shutdown_timeout)) => {
                tracing::info!(
                    connections = report.connections,
                    complete = report.complete,
                    took = ?report.took,
                    "stopped"
                );
            }
            _ = signals.next() => bail!("ended before the shutdown was complete"),
        }
        Ok(())
    }

    async fn reload(&self, server: &Server) -> Result<()> {
        let Some(file) = &self.config else {
            bail!("there is no configuration file");
        };
        let report = config::apply(server, self.options()?)
            .await
            .with_context(|| format!("{} asks for what cannot be applied", file.display()))?;
        let applied: Vec<String> = report.applied.iter().map(ToString::to_string).collect();
        tracing::info!(?applied, "configuration reloaded");
        Ok(())
    }
}

/// Obeys the signals that do not end the server.
struct Keeper<'a> {
    serve: &'a Serve,
}

impl Housekeeping for Keeper<'_> {
    async fn reload(&mut self, server: &Server) {
        if let Err(error) = self.serve.reload(server).await {
            tracing::error!("configuration not reloaded: {error:#}");
        }
    }

    fn reopen_log(&mut self) {
        tracing::info!("the log is standard error; there is no file to open again");
    }
}

/// A filter of the log.
#[derive(Debug)]
struct LogFilter(EnvFilter);

impl Clone for LogFilter {
    fn clone(&self) -> Self {
        // A filter was made of its own text.
        Self(EnvFilter::new(self.0.to_string()))
    }
}

/// Reads a filter. A word alone must be a level or one of the program's own modules: everything is a module's name to the
/// library, which would leave a misspelt level without any effect.
fn log_filter(text: &str) -> Result<LogFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let alone = !part.contains(['=', '[']);
        let level = LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
        if alone && !level && !part.starts_with("windjet") {
            return Err(format!(
                "{part:?} is no level; levels are {}, and a module has one as MODULE=LEVEL",
                LEVELS.join(", ")
            ));
        }
    }
    EnvFilter::try_new(text)
        .map(LogFilter)
        .map_err(|error| error.to_string())
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

/// Tells standard output where clients connect.
fn announce(server: &Server) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Windjet {} is ready", env!("CARGO_PKG_VERSION"))?;
    if let Some(url) = server.client_url() {
        writeln!(out, "  clients     {url}")?;
    }
    if let Some(address) = server.monitoring_addr() {
        // Where both are configured, the address is that of plain HTTP.
        let scheme = match server.options().monitoring.http {
            Some(_) => "http",
            None => "https",
        };
        writeln!(out, "  monitoring  {scheme}://{address}/varz")?;
    }
    out.flush()
}

fn explain(error: windjet_server::StartError) -> anyhow::Error {
    match error {
        windjet_server::StartError::Listen {
            listener,
            address,
            source,
        } => {
            let advice = match listener {
                _ if source.kind() != io::ErrorKind::AddrInUse => "",
                Listener::Clients => ". Another server has that port; choose one with --port, or 0 for any",
                Listener::Monitoring => {
                    ". Another server has that port; choose one with --monitor-port, or 0 for any"
                }
                _ => ". Another server has that port; choose one in the configuration file, or -1 for any",
            };
            anyhow::anyhow!(
                "cannot listen for {listener} on {address}: {}{advice}",
                go_text::reason(&source)
            )
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
