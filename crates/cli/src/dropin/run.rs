//! From flags to exit code: the life of a server started as nats-server.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use windjet_server::options::Options;
use windjet_server::{Server, StartError};

use super::files::Files;
use super::flags::Flags;
use super::{NAME, options, startup};
use crate::go_text;
use crate::logging::{self, Log, fatal};
use crate::process::raise_file_limit;
use crate::signals::{Asked, Signals};

/// Time for a clean shutdown. Suites allow five seconds from the signal to the end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(4);

/// Runs a server until it is told to end.
///
/// # Errors
///
/// What is wrong before there is a log; later failures are in the log, with exit code 1.
pub(super) fn run(flags: &Flags) -> Result<ExitCode, String> {
    if flags.test_config == Some(true) && flags.config.is_none() {
        return Err("must specify [-c, --config] option to check configuration file syntax".to_owned());
    }
    if let Some(file) = &flags.config {
        return Err(format!("{file}: this build reads no configuration files"));
    }
    let mut options = Options::default();
    options::apply(flags, &mut options)?;
    let log = open_log(&options)?;
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("windjet")
        .build()
        .map_err(|error| format!("no threads to run on: {error}"))?;
    let code = runtime.block_on(serve(options, &log));
    // A shutdown past its deadline may have left tasks behind; they end with the process.
    runtime.shutdown_background();
    Ok(code)
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

async fn serve(options: Options, log: &Log) -> ExitCode {
    let mut builder = Server::builder().options(options.clone());
    startup::greet(builder.id(), &options);
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
    if let Some(folder) = &options.ports_file_dir
        && let Err(error) = files.write_ports(folder, NAME, &startup::ports(&server, &options))
    {
        tracing::error!(
            "Error writing ports file in {}: {}",
            folder.display(),
            go_text::reason(&error)
        );
    }
    obey(&mut signals, log).await;
    tracing::info!("Initiating Shutdown...");
    files.remove();
    server.shutdown(SHUTDOWN_DEADLINE).await;
    tracing::info!("Server Exiting..");
    ExitCode::SUCCESS
}

/// Does what signals ask until one asks to end.
async fn obey(signals: &mut Signals, log: &Log) {
    loop {
        let asked = signals.next().await;
        tracing::info!("Trapped {:?} signal", asked.name());
        match asked {
            Asked::Interrupt | Asked::Terminate => return,
            Asked::Reopen => reopen(log),
            Asked::Reload | Asked::LameDuck => {}
        }
    }
}

fn reopen(log: &Log) {
    match log.reopen() {
        Ok(true) => tracing::info!("File log re-opened"),
        Ok(false) => tracing::info!("File log re-open ignored, not a file logger"),
        Err(error) => tracing::error!("Unable to re-open the log file: {}", go_text::reason(&error)),
    }
}

/// Reports why the server did not start, in the words of nats-server.
fn report(error: &StartError) {
    match error {
        StartError::Listen { address, source } => {
            let reason = go_text::reason(source);
            fatal!("Error listening on port: {address}, \"listen tcp {address}: bind: {reason}\"");
        }
        StartError::Options(problems) => {
            for problem in &problems.problems {
                fatal!("{problem}");
            }
        }
        other => fatal!("{other}"),
    }
}
