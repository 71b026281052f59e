//! From flags to exit code: the life of a server started as nats-server.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use windjet_server::config::{ConfigError, Problem};
use windjet_server::options::Options;
use windjet_server::{Listener, Server, StartError};

use super::files::Files;
use super::flags::Flags;
use super::options::Refusal;
use super::{NAME, complain, options, startup};
use crate::control::{Housekeeping, until_end};
use crate::logging::{self, Log, fatal};
use crate::process::raise_file_limit;
use crate::signals::Signals;
use crate::{config, go_text};

/// Time for a clean shutdown. Suites allow five seconds from the signal to the end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(4);

/// What [`Options::validate`] finds and nats-server notices only when its log runs already.
const NOTICED_LATE: [&str; 4] = [
    "Not allowed to enable JetStream",
    "Error setting server INFO",
    "can't specify both HTTP",
    "TLS cert and key required for HTTPS",
];

/// Options that nats-server reloads without a word.
const UNTOLD: [&str; 1] = ["client_advertise"];

/// Runs a server until it is told to end.
///
/// # Errors
///
/// What is wrong before there is a log; later failures are in the log, with exit code 1.
pub(super) fn run(flags: &Flags) -> Result<ExitCode, String> {
    let (loaded, refusal) = match load(flags) {
        Ok(Outcome::Start(loaded)) => {
            let refusal = loaded.refusal.clone().or_else(|| judge(&loaded.options));
            (*loaded, refusal)
        }
        Ok(Outcome::Checked(digest)) => {
            let file = flags.config.as_deref().unwrap_or_default();
            complain(&format!("{NAME}: configuration file {file} is valid ({digest})"));
            return Ok(ExitCode::SUCCESS);
        }
        Err(refusal) => (Loaded::default(), Some(refusal)),
    };
    if let Some(Refusal::Plain(text)) = refusal {
        return Err(text);
    }
    let Loaded { options, notices, .. } = loaded;
    let log = open_log(&options)?;
    if let Some(Refusal::Fatal(text)) = refusal {
        startup::greet(Server::builder().id(), &options);
        fatal!("{text}");
        return Ok(ExitCode::FAILURE);
    }
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("windjet")
        .build()
        .map_err(|error| format!("no threads to run on: {error}"))?;
    let code = runtime.block_on(serve(flags, options, &notices, &log));
    // A shutdown past its deadline may have left tasks behind; they end with the process.
    runtime.shutdown_background();
    Ok(code)
}

/// What flags and configuration come to.
enum Outcome {
    /// A server is to be started.
    Start(Box<Loaded>),
    /// The configuration was only to be checked; its digest.
    Checked(String),
}

/// Options, what in the configuration has no effect, and what in the flags cannot be.
#[derive(Default)]
struct Loaded {
    options: Options,
    notices: Vec<Problem>,
    refusal: Option<Refusal>,
}

fn load(flags: &Flags) -> Result<Outcome, Refusal> {
    let only_check = flags.test_config == Some(true);
    let mut loaded = match &flags.config {
        None if only_check => {
            return Err(Refusal::Plain(
                "must specify [-c, --config] option to check configuration file syntax".to_owned(),
            ));
        }
        None => Loaded::default(),
        Some(file) => {
            let parsed = config::load(Path::new(file)).map_err(|error| unusable(&error, only_check))?;
            let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
            match (only_check, warnings.is_empty()) {
                (true, true) => return Ok(Outcome::Checked(parsed.digest)),
                (true, false) => return Err(Refusal::Plain(warnings.join("\n") + "\n")),
                (false, true) => {}
                (false, false) => complain(&warnings.join("\n")),
            }
            Loaded {
                options: parsed.options,
                notices: parsed.notices,
                refusal: None,
            }
        }
    };
    loaded.refusal = options::apply(flags, &mut loaded.options).err();
    Ok(Outcome::Start(Box::new(loaded)))
}

/// A port out of range is found when the file is read; nats-server finds it when it listens.
fn unusable(error: &ConfigError, only_check: bool) -> Refusal {
    if let ConfigError::Invalid { problems, .. } = error
        && !only_check
        && let Some(port) = problems
            .iter()
            .find(|problem| problem.message.starts_with("Error listening on port"))
    {
        return Refusal::Fatal(port.message.clone());
    }
    // nats-server ends each problem of a configuration with a line end, and the whole with another one.
    let end = if matches!(error, ConfigError::Invalid { .. }) {
        "\n"
    } else {
        ""
    };
    Refusal::Plain(format!("{error}{end}"))
}

/// Why a server with these options would not start.
fn judge(options: &Options) -> Option<Refusal> {
    let problems = options.validate().err()?.problems;
    let (late, early): (Vec<String>, Vec<String>) = problems
        .into_iter()
        .partition(|problem| NOTICED_LATE.iter().any(|start| problem.starts_with(start)));
    match (early.is_empty(), late.into_iter().next()) {
        (false, _) => Some(Refusal::Plain(early.join("\n"))),
        (true, Some(problem)) if problem.contains("HTTP") => {
            Some(Refusal::Fatal(format!("Can't start monitoring: {problem}")))
        }
        (true, late) => late.map(Refusal::Fatal),
    }
}

fn open_log(options: &Options) -> Result<Arc<Log>, String> {
    let log = Log::open(&options.log).map_err(|error| {
        let path = options.log.file.as_deref().unwrap_or("standard error".as_ref());
        format!("error opening file: {}", go_text::open(path, &error))
    })?;
    let log = Arc::new(log);
    tracing_subscriber::registry()
        .with(logging::Layer::new(log.clone()))
        .try_init()
        .map_err(|error| error.to_string())?;
    Ok(log)
}

async fn serve(flags: &Flags, options: Options, notices: &[Problem], log: &Log) -> ExitCode {
    let mut builder = Server::builder().options(options.clone());
    if flags.config.is_some() {
        let flags = flags.clone();
        builder = builder.reload_from(move || match load(&flags).map_err(Refusal::into_text)? {
            Outcome::Start(loaded) => Ok(loaded.options),
            Outcome::Checked(_) => Err("the configuration was only checked".to_owned()),
        });
    }
    startup::greet(builder.id(), &options);
    startup::warn(flags, notices);
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            fatal!("Could not watch for signals: {}", go_text::reason(&error));
            return ExitCode::FAILURE;
        }
    };
    let mut files = Files::default();
    if let Some(path) = &options.pid_file
        && let Err(error) = files.write_pid(path)
    {
        fatal!("Could not write pidfile: {}", go_text::open(path, &error));
        return ExitCode::FAILURE;
    }
    let server = match builder.start().await {
        Ok(server) => server,
        Err(error) => {
            report(&error);
            files.remove();
            return ExitCode::FAILURE;
        }
    };
    startup::announce(&server, &options);
    let mut keeper = Keeper { flags, log, files };
    keeper.write_ports(&server, &options);
    until_end(&server, &mut signals, &mut keeper).await;
    tracing::info!("Initiating Shutdown...");
    keeper.files.remove();
    let jetstream = server.jetstream_report().is_some();
    if jetstream {
        tracing::info!("Initiating JetStream Shutdown...");
    }
    server.shutdown(SHUTDOWN_DEADLINE).await;
    if jetstream {
        tracing::info!("JetStream Shutdown");
    }
    tracing::info!("Server Exiting..");
    ExitCode::SUCCESS
}

/// Keeps log and files in order while the server runs.
struct Keeper<'a> {
    flags: &'a Flags,
    log: &'a Log,
    files: Files,
}

impl Keeper<'_> {
    fn write_ports(&mut self, server: &Server, options: &Options) {
        let Some(folder) = &options.ports_file_dir else {
            return;
        };
        let ports = startup::ports(server, options);
        if let Err(error) = self.files.write_ports(folder, NAME, &ports) {
            let path = Files::ports_path(folder, NAME);
            let reason = go_text::open(&path, &error);
            tracing::error!("Error writing ports file ({}): {reason}", path.display());
        }
    }

    async fn try_reload(&mut self, server: &Server) -> Result<(), String> {
        if self.flags.config.is_none() {
            return Err("can only reload config when a file is provided using -c or --config".to_owned());
        }
        let Outcome::Start(loaded) = load(self.flags).map_err(Refusal::into_text)? else {
            return Ok(());
        };
        if let Some(refusal) = loaded.refusal {
            return Err(refusal.into_text());
        }
        let options = loaded.options;
        let before = server.options();
        let report = config::apply(server, options.clone())
            .await
            .map_err(|error| error.to_string())?;
        // The old log names what changes; the end of the reload is the first line of the new one.
        for applied in report
            .applied
            .iter()
            .filter(|applied| !UNTOLD.contains(&applied.option))
        {
            tracing::info!("Reloaded: {applied}");
        }
        match (&before.jetstream, &options.jetstream, server.jetstream_report()) {
            (None, Some(_), Some(report)) => {
                tracing::info!("Restarting JetStream");
                tracing::info!("Starting JetStream");
                startup::jetstream(&report, &options);
            }
            (Some(_), None, _) => {
                tracing::info!("Initiating JetStream Shutdown...");
                tracing::info!("JetStream Shutdown");
            }
            _ => {}
        }
        if let Err(error) = self.log.reconfigure(&options.log) {
            let path = options.log.file.as_deref().unwrap_or("standard error".as_ref());
            tracing::error!("error opening file: {}", go_text::open(path, &error));
        }
        if before.pid_file != options.pid_file
            && let Err(error) = self.files.move_pid(options.pid_file.as_deref())
        {
            tracing::error!("Could not write pidfile: {}", go_text::reason(&error));
        }
        if before.ports_file_dir != options.ports_file_dir {
            self.files.remove_ports();
            self.write_ports(server, &options);
        }
        tracing::info!("Reloaded server configuration ({})", options.config_digest);
        Ok(())
    }
}

impl Housekeeping for Keeper<'_> {
    async fn reload(&mut self, server: &Server) {
        if let Err(error) = self.try_reload(server).await {
            tracing::error!("Failed to reload server configuration: {error}");
        }
    }

    fn reopen_log(&mut self) {
        match self.log.reopen() {
            Ok(true) => tracing::info!("File log re-opened"),
            Ok(false) => tracing::info!("File log re-open ignored, not a file logger"),
            Err(error) => tracing::error!("Unable to re-open the log file: {}", go_text::reason(&error)),
        }
    }
}

/// Reports why the server did not start, in the words of nats-server.
fn report(error: &StartError) {
    match error {
        StartError::Listen {
            listener,
            address,
            source,
        } => {
            let reason = go_text::listen(address, source);
            match listener {
                Listener::WebSocket => fatal!("Unable to listen for websocket connections: {reason}"),
                Listener::Monitoring => {
                    fatal!("Can't start monitoring: can't listen to the monitor port: {reason}");
                }
                _ => fatal!("Error listening on port: {address}, \"{reason}\""),
            }
        }
        other => fatal!("{other}"),
    }
}
