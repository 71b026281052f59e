//! The steps of a start, each with its own error, and the credentials of a running server.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use windjet_server::options::{Options, TlsOptions, UserCredential, UserOptions};
use windjet_server::{Server, StartError};

use super::{BrokerConfig, Running};
use crate::auth::{Credential, permissions_of};
use crate::error::{BusError, ErrorKind};
use crate::streams;
use crate::subjects::Layout;
use crate::token::Token;

/// Name of the lock file in the folder.
const LOCK: &str = "bus.lock";

pub(super) async fn start(config: &BrokerConfig) -> Result<Running, BusError> {
    let address = resolve(&config.addr).await?;
    check_exposure(config, address)?;
    if config.auth.is_some() && config.layout == Layout::Plain {
        return Err(BusError::new(
            ErrorKind::Config,
            "start: authentication needs the identity layout, or permissions could not tell workers apart",
        ));
    }
    check_store(config)?;
    // Said at once and clearly; the server itself opens its store before it listens.
    std::net::TcpListener::bind(address).map_err(|error| bind_error(address, error))?;
    let lock = take_folder(&config.data_dir)?;
    let users = match &config.auth {
        Some(auth) => users(&auth.workers)?,
        None => Vec::new(),
    };
    let mut builder = Server::builder()
        .name("windjet-bus")
        .listen(address)
        .jetstream(&config.data_dir)
        .configure(|options| {
            options.auth.users = users;
            if let Some(budget) = config.file_budget() {
                options.storage_budget = Some(budget);
                let longest = i64::try_from(budget / MESSAGE_SHARE).unwrap_or(i64::MAX);
                options.max_payload = options.max_payload.min(longest);
            }
            if let Some(jetstream) = &mut options.jetstream {
                jetstream.max_file_store = config.store_cap();
            }
        });
    if let Some(tls) = &config.tls {
        let mut options = TlsOptions::default();
        options.certificates = vec![(tls.cert_file.clone(), tls.key_file.clone())];
        options.ca_file.clone_from(&tls.client_ca_file);
        options.verify = tls.client_ca_file.is_some();
        builder = builder.tls(options);
    }
    let server = builder
        .start()
        .await
        .map_err(|error| start_error(config, address, error))?;
    let listening = server.client_addr().unwrap_or(address);
    let js = server
        .jetstream()
        .ok_or_else(|| BusError::new(ErrorKind::NotReady, "start: the server has no JetStream"))?;
    if let Err(error) = streams::ensure(&js, config).await {
        server.shutdown(Duration::from_secs(5)).await;
        return Err(error);
    }
    tracing::info!(addr = %listening, data_dir = %config.data_dir.display(), max_store_mb = config.max_store_mb, "the broker has started");
    let workers = config
        .auth
        .as_ref()
        .map(|auth| auth.workers.clone())
        .unwrap_or_default();
    Ok(Running {
        server,
        js,
        url: url(listening, config.tls.is_some()),
        workers: parking_lot::Mutex::new(workers),
        _lock: lock,
    })
}

/// The part of the folder's budget that one message may be long, which the store's journal bears.
const MESSAGE_SHARE: u64 = 32;
/// The least cap, MiB. With less, the room for the files that are being compacted is short all the time, and publishes hardly get on.
const CAP_MIN: u64 = 8;
/// Percent of the cap that the streams' messages may take. The rest, and a tenth more, is for journal, ballast, manifest,
/// what frames messages in files, and what is not compacted yet.
const SHARES_MAX: u32 = 75;

fn check_store(config: &BrokerConfig) -> Result<(), BusError> {
    let wrong = |text: String| Err(BusError::new(ErrorKind::Config, format!("start: {text}")));
    let cap = config.max_store_mb;
    if cap > 0 && cap < CAP_MIN {
        return wrong(format!(
            "max_store_mb is {cap}; it must be at least {CAP_MIN}, or 0 for no cap"
        ));
    }
    let s = &config.streams;
    let shares = [
        s.task_share,
        s.logs_share,
        s.worker_share,
        s.cancel_share,
        s.dead_share,
    ];
    let sum: u32 = shares.map(u32::from).iter().sum();
    if sum > SHARES_MAX || shares.contains(&0) {
        return wrong(format!(
            "the shares of the streams are {shares:?} percent; each must be at least 1, and all together at most {SHARES_MAX}"
        ));
    }
    Ok(())
}

/// A URL that can be dialled from this machine, also when the broker listens everywhere.
fn url(address: SocketAddr, tls: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if tls { "tls" } else { "nats" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

async fn resolve(addr: &str) -> Result<SocketAddr, BusError> {
    let bad = |why: &str| BusError::new(ErrorKind::BadAddr, format!("start: the address {addr:?} {why}"));
    let (host, port) = addr
        .rsplit_once(':')
        .ok_or_else(|| bad("has no port; write host:port"))?;
    let port: u16 = port
        .parse()
        .map_err(|_| bad("has a port that is no number from 0 to 65535"))?;
    if let Some(host) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let ip: Ipv6Addr = host
            .parse()
            .map_err(|_| bad("has no IPv6 address in its brackets"))?;
        return Ok(SocketAddr::new(IpAddr::V6(ip), port));
    }
    if host.contains(':') {
        return Err(bad("has an IPv6 host without brackets; write [host]:port"));
    }
    if host.is_empty() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port));
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let mut found = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| bad("has a host that cannot be resolved").with(error))?;
    found.next().ok_or_else(|| bad("has a host without an address"))
}

fn check_exposure(config: &BrokerConfig, address: SocketAddr) -> Result<(), BusError> {
    if address.ip().is_loopback() || config.auth.is_some() {
        return Ok(());
    }
    if config.allow_unauthenticated {
        tracing::warn!(addr = %address, "anybody who reaches this address can register as a worker and receive work");
        return Ok(());
    }
    Err(BusError::new(
        ErrorKind::Exposed,
        format!(
            "start: {address} can be reached from other machines and nobody would have to authenticate; listen on 127.0.0.1, \
             set `auth`, or allow it with `allow_unauthenticated`"
        ),
    ))
}

fn bind_error(address: SocketAddr, error: io::Error) -> BusError {
    let (kind, text) = match error.kind() {
        io::ErrorKind::AddrInUse => (ErrorKind::AddrInUse, "another process listens on"),
        _ => (ErrorKind::BadAddr, "cannot listen on"),
    };
    BusError::new(kind, format!("start: {text} {address}")).with(error)
}

fn start_error(config: &BrokerConfig, address: SocketAddr, error: StartError) -> BusError {
    let kind = match &error {
        StartError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
            ErrorKind::AddrInUse
        }
        StartError::Listen { .. } => ErrorKind::BadAddr,
        StartError::JetStream(_) => ErrorKind::Storage,
        _ => ErrorKind::Config,
    };
    let folder = config.data_dir.display();
    BusError::new(kind, format!("start: on {address} with the folder {folder}")).with(error)
}

/// Makes the folder and takes its lock, which nobody else gets for as long as the file is open.
fn take_folder(folder: &Path) -> Result<File, BusError> {
    let failed = |error: io::Error| {
        BusError::new(
            ErrorKind::Storage,
            format!("start: cannot use the folder {}", folder.display()),
        )
        .with(error)
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(LOCK))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(BusError::new(
            ErrorKind::InUse,
            format!("start: another broker has the folder {} open", folder.display()),
        )),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A user whose key nobody has: without any user the server would let everybody in.
fn nobody() -> UserOptions {
    UserOptions {
        credential: UserCredential::Nkey(nkeys::KeyPair::new_user().public_key()),
        permissions: Some(permissions_of_nobody()),
        allowed_connection_types: Vec::new(),
    }
}

fn permissions_of_nobody() -> windjet_server::options::PermissionsOptions {
    let none = windjet_server::options::PermissionList {
        allow: Vec::new(),
        deny: vec![">".to_owned()],
    };
    windjet_server::options::PermissionsOptions {
        publish: none.clone(),
        subscribe: none,
        allow_responses: None,
    }
}

/// The server's users for a set of workers.
pub(super) fn users(workers: &[Credential]) -> Result<Vec<UserOptions>, BusError> {
    let mut users = Vec::with_capacity(workers.len().max(1));
    for Credential { worker, public_key } in workers {
        let bad = || {
            BusError::new(
                ErrorKind::Config,
                format!("the key of worker {worker} is no public nkey of a user (U…)"),
            )
        };
        if !public_key.starts_with('U') {
            return Err(bad());
        }
        nkeys::KeyPair::from_public_key(public_key).map_err(|error| bad().with(error))?;
        if workers
            .iter()
            .filter(|other| other.public_key == *public_key)
            .count()
            > 1
        {
            return Err(BusError::new(
                ErrorKind::Config,
                format!("the key of worker {worker} is enrolled twice; every worker needs its own"),
            ));
        }
        users.push(user(worker, public_key));
    }
    if users.is_empty() {
        users.push(nobody());
    }
    Ok(users)
}

fn user(worker: &Token, public_key: &str) -> UserOptions {
    UserOptions {
        credential: UserCredential::Nkey(public_key.to_owned()),
        permissions: Some(permissions_of(worker)),
        allowed_connection_types: Vec::new(),
    }
}

pub(super) async fn reload(server: Server, options: Options) -> Result<(), BusError> {
    // It reads certificate files.
    let reloaded = tokio::task::spawn_blocking(move || server.reload(options)).await;
    match reloaded {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(BusError::new(ErrorKind::Config, "reload credentials").with(error)),
        Err(error) => Err(BusError::new(ErrorKind::Cancelled, "reload credentials").with(error)),
    }
}

/// Waits until no connection has one of these keys.
pub(super) async fn until_gone(server: &Server, keys: &[String], until: Instant) -> Result<(), BusError> {
    if keys.is_empty() {
        return Ok(());
    }
    while server.connected_users().iter().any(|key| keys.contains(key)) {
        if Instant::now() >= until {
            return Err(BusError::new(
                ErrorKind::Timeout {
                    limit: Duration::from_secs(5),
                },
                "reload credentials: a removed worker is still connected",
            ));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}
