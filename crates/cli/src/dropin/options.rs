//! From flags to server options.
//!
//! Flags win over the configuration file, at the start and at every reload.

use std::path::PathBuf;

use windjet_server::options::{JetStreamOptions, ListenAddress, Options, TlsOptions};

use super::flags::Flags;
use crate::go_text;

/// Port of clients when neither flags nor configuration name one.
const CLIENT_PORT: u16 = 4222;
/// Address of clients when neither flags nor configuration name one.
const CLIENT_HOST: &str = "0.0.0.0";

/// Why there is no server, and when nats-server notices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Before there is a log.
    Plain(String),
    /// When the log runs: it ends with this text.
    Fatal(String),
}

impl Refusal {
    /// The text alone.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Fatal(text) => text,
        }
    }
}

/// Applies `flags` to `options` and fills in where nats-server listens by itself.
///
/// # Errors
///
/// A sentence in nats-server's words. After [`Refusal::Fatal`] the log and the name of the server are in `options`.
pub(super) fn apply(flags: &Flags, options: &mut Options) -> Result<(), Refusal> {
    apply_log(flags, options);
    apply_tls(flags, options).map_err(Refusal::Plain)?;
    if flags.routes.as_deref().is_some_and(|routes| !routes.is_empty()) {
        return Err(Refusal::Plain(
            "routes are not supported: Windjet runs on one machine and joins no cluster".to_owned(),
        ));
    }
    if let Some(name) = &flags.name {
        options.server_name = Some(name.clone());
    }
    if let Some(advertise) = &flags.client_advertise {
        options.client_advertise = Some(advertise.clone());
    }
    if let Some(path) = &flags.pid_file {
        options.pid_file = Some(PathBuf::from(path));
    }
    if let Some(path) = &flags.ports_file_dir {
        options.ports_file_dir = Some(PathBuf::from(path));
    }
    apply_credentials(flags, options);
    match flags.jetstream {
        Some(true) => {
            options.jetstream.get_or_insert_with(JetStreamOptions::default);
        }
        Some(false) => options.jetstream = None,
        None => {}
    }
    if let Some(folder) = &flags.store_dir {
        options.store_dir = Some(PathBuf::from(folder));
        if let Some(jetstream) = &mut options.jetstream {
            jetstream.store_dir = Some(PathBuf::from(folder));
        }
    }
    // Last, so that a refusal finds the log and the name in place.
    apply_listeners(flags, options).map_err(Refusal::Fatal)
}

/// As in nats-server, users of the configuration win over a single user or token of the flags, and a token wins over
/// a single user.
fn apply_credentials(flags: &Flags, options: &mut Options) {
    let has_users = !options.auth.users.is_empty()
        || options.auth.jwt.is_some()
        || options.accounts.values().any(|account| !account.users.is_empty());
    if has_users {
        return;
    }
    if let Some(user) = &flags.user {
        let password = flags.pass.clone().unwrap_or_default();
        options.auth.user = Some((user.clone(), password));
    }
    if let Some(token) = &flags.token {
        options.auth.token = Some(token.clone());
        options.auth.user = None;
    }
}

fn apply_listeners(flags: &Flags, options: &mut Options) -> Result<(), String> {
    let listen = options.listen.get_or_insert_with(|| ListenAddress {
        host: CLIENT_HOST.to_owned(),
        port: Some(CLIENT_PORT),
    });
    if let Some(host) = &flags.host {
        listen.host.clone_from(host);
    }
    match flags.port {
        None => {}
        Some(0) => listen.port = Some(CLIENT_PORT),
        Some(number) => {
            let host = &listen.host;
            listen.port = port(number).ok_or_else(|| {
                format!(
                    "Error listening on port: {host}:{number}, \"listen tcp: address {number}: invalid port\""
                )
            })?;
        }
    }
    let host = listen.host.clone();
    let monitor = |number: i64| -> Result<Option<ListenAddress>, String> {
        if number == 0 {
            return Ok(None);
        }
        let port = self::port(number).ok_or_else(|| {
            format!(
                "Can't start monitoring: can't listen to the monitor port: \
                 listen tcp: address {number}: invalid port"
            )
        })?;
        Ok(Some(ListenAddress {
            host: host.clone(),
            port,
        }))
    };
    if let Some(number) = flags.http_port {
        options.monitoring.http = monitor(number)?;
    }
    if let Some(number) = flags.https_port {
        options.monitoring.https = monitor(number)?;
    }
    Ok(())
}

/// A port number, itself `None` where -1 asks for a free one. `None` for a number out of range.
fn port(number: i64) -> Option<Option<u16>> {
    match number {
        -1 => Some(None),
        number => u16::try_from(number).ok().map(Some),
    }
}

fn apply_log(flags: &Flags, options: &mut Options) {
    let log = &mut options.log;
    if let Some(file) = &flags.log_file {
        log.file = Some(PathBuf::from(file));
    }
    if let Some(limit) = flags.log_size_limit {
        log.file_size_limit = u64::try_from(limit).unwrap_or(0);
    }
    if let Some(debug) = flags.debug {
        log.debug = debug;
    }
    if let Some(trace) = flags.trace {
        log.trace = trace;
    }
    if flags.debug_trace == Some(true) || flags.debug_trace_verbose == Some(true) {
        log.debug = true;
        log.trace = true;
    }
    if flags.trace_verbose == Some(true) || flags.debug_trace_verbose == Some(true) {
        log.trace = true;
        log.trace_verbose = true;
    }
    if let Some(time) = flags.log_time {
        log.no_time = !time;
    }
    if let Some(utc) = flags.log_time_utc {
        log.utc = utc;
    }
    if let Some(length) = flags.max_traced_msg_len {
        options.max_traced_msg_len = usize::try_from(length).unwrap_or(0);
    }
}

fn apply_tls(flags: &Flags, options: &mut Options) -> Result<(), String> {
    let paths = [&flags.tls_cert, &flags.tls_key, &flags.tls_ca_cert];
    let wanted =
        flags.tls == Some(true) || flags.tls_verify == Some(true) || paths.iter().any(|path| path.is_some());
    if !wanted {
        return Ok(());
    }
    let given = |path: &Option<String>| path.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from);
    let certificate = given(&flags.tls_cert).ok_or("TLS Server certificate must be present and valid")?;
    let key = given(&flags.tls_key).ok_or("TLS Server private key must be present and valid")?;
    for path in [&certificate, &key] {
        std::fs::File::open(path).map_err(|error| {
            format!(
                "error parsing X509 certificate/key pair: {}",
                go_text::open(path, &error)
            )
        })?;
    }
    let mut tls = TlsOptions::default();
    tls.certificates.push((certificate, key));
    tls.ca_file = given(&flags.tls_ca_cert);
    tls.verify = flags.tls_verify == Some(true);
    options.tls = Some(tls);
    Ok(())
}

#[cfg(test)]
mod tests {
    use windjet_server::options::{UserCredential, UserOptions};

    use super::*;
    use crate::dropin::flags::parse;

    fn options(line: &str) -> Result<Options, Refusal> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (flags, _) = parse(&words).unwrap();
        let mut options = Options::default();
        apply(&flags, &mut options).map(|()| options)
    }

    #[test]
    fn without_flags_clients_are_awaited_on_every_address() {
        let listen = options("").unwrap().listen.unwrap();
        assert_eq!((listen.host.as_str(), listen.port), ("0.0.0.0", Some(4222)));
        assert_eq!(options("-p 0").unwrap().listen.unwrap().port, Some(4222));
        assert_eq!(options("-p -1").unwrap().listen.unwrap().port, None);
    }

    #[test]
    fn monitoring_is_bound_to_the_host_of_clients() {
        let http = options("-m 8222 -a 127.0.0.1").unwrap().monitoring.http.unwrap();
        assert_eq!((http.host.as_str(), http.port), ("127.0.0.1", Some(8222)));
        assert_eq!(options("-m 0").unwrap().monitoring.http, None);
    }

    #[test]
    fn a_port_out_of_range_is_refused_as_the_listener_would() {
        assert_eq!(
            options("-a 127.0.0.1 -p 99999").unwrap_err(),
            Refusal::Fatal(
                r#"Error listening on port: 127.0.0.1:99999, "listen tcp: address 99999: invalid port""#
                    .to_owned()
            )
        );
    }

    #[test]
    fn any_flag_of_tls_switches_it_on_and_needs_certificate_and_key() {
        let refused = |line: &str| options(line).unwrap_err().into_text();
        assert_eq!(
            refused("--tls"),
            "TLS Server certificate must be present and valid"
        );
        assert_eq!(
            refused("--tlscert c.pem"),
            "TLS Server private key must be present and valid"
        );
        assert_eq!(
            refused("--tlscert /nope/c.pem --tlskey /nope/k.pem"),
            "error parsing X509 certificate/key pair: open /nope/c.pem: no such file or directory"
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("both.pem");
        std::fs::write(&file, "").unwrap();
        let path = file.to_str().unwrap();
        let tls = options(&format!("--tlscert {path} --tlskey {path} --tlsverify"))
            .unwrap()
            .tls
            .unwrap();
        assert!(tls.verify);
        assert_eq!(tls.certificates, [(file.clone(), file)]);
    }

    #[test]
    fn a_token_wins_over_a_user_and_configured_users_over_both() {
        let auth = options("--user u --pass p --auth t").unwrap().auth;
        assert_eq!((auth.user, auth.token.as_deref()), (None, Some("t")));
        let mut configured = Options::default();
        configured.auth.users.push(UserOptions {
            credential: UserCredential::Nkey("U".to_owned()),
            permissions: None,
            allowed_connection_types: Vec::new(),
        });
        let words = ["--user".to_owned(), "u".to_owned()];
        apply(&parse(&words).unwrap().0, &mut configured).unwrap();
        assert_eq!(configured.auth.user, None);
    }

    #[test]
    fn verbose_flags_combine_debug_and_trace() {
        let switches = |line: &str| {
            let log = options(line).unwrap().log;
            (log.debug, log.trace, log.trace_verbose)
        };
        assert_eq!(switches("-D"), (true, false, false));
        assert_eq!(switches("-V"), (false, true, false));
        assert_eq!(switches("-DV"), (true, true, false));
        assert_eq!(switches("-VV"), (false, true, true));
        assert_eq!(switches("-DVV"), (true, true, true));
    }

    #[test]
    fn routes_are_refused_and_other_cluster_flags_are_not() {
        assert!(options("--routes nats://127.0.0.1:6222").is_err());
        assert!(options("--cluster_listen nats://127.0.0.1:-1 --cluster_name c").is_ok());
    }
}
