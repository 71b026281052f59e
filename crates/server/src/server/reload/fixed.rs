//! What cannot change without a restart.
//!
//! Called by a reload before it applies anything. The texts name options and values as nats-server does.

use std::fmt;
use std::net::SocketAddr;

use super::ReloadError;
use crate::config::format_duration;
use crate::options::{JetStreamOptions, ListenAddress, Options, TlsOptions, WebSocketOptions};

/// Requests that may wait where `request_queue_limit` is not configured, as nats-server tells it.
const QUEUE_LIMIT: u64 = 10_000;

/// Refuses the first such change. `client` is where clients are listened for.
pub(super) fn check(old: &Options, new: &Options, client: Option<SocketAddr>) -> Result<(), ReloadError> {
    let mut check = Check(None);
    let listening = client.map(|address| i32::from(address.port()));
    let in_force = listening.unwrap_or_else(|| port(old.listen.as_ref()));
    let wanted = match port(new.listen.as_ref()) {
        // Any port will do, so the one in use does.
        -1 => in_force,
        port => port,
    };
    check.same("Port", &in_force, &wanted);
    check.same("Host", &host(old), &host(new));
    check.same("ServerName", &text(&old.server_name), &text(&new.server_name));
    check.same("MaxPending", &old.max_pending, &new.max_pending);
    check.same("MaxSubs", &old.max_subscriptions, &new.max_subscriptions);
    check.same("NoHeaderSupport", &old.no_header_support, &new.no_header_support);
    check.same(
        "MaxClosedClients",
        &old.max_closed_clients,
        &new.max_closed_clients,
    );
    check.same(
        "SystemAccount",
        &text(&old.system_account),
        &text(&new.system_account),
    );
    check.same("NoSystemAccount", &old.no_system_account, &new.no_system_account);
    check.same(
        "LameDuckDuration",
        &format_duration(old.lame_duck_duration),
        &format_duration(new.lame_duck_duration),
    );
    check.same(
        "LameDuckGracePeriod",
        &format_duration(old.lame_duck_grace_period),
        &format_duration(new.lame_duck_grace_period),
    );
    check_jetstream(&mut check, old, new);
    check_monitoring(&mut check, old, new);
    check.debug("Websocket", &fixed_websocket(old), &fixed_websocket(new));
    check.same(
        "NoAuthUser",
        &kept_no_auth_user(old, new),
        &text(&new.auth.no_auth_user),
    );
    match check.0 {
        Some(error) => Err(error),
        None => check_store(old, new),
    }
}

/// What of the `jetstream` block shows in a difference even where JetStream is switched on or off.
fn check_jetstream(check: &mut Check, old: &Options, new: &Options) {
    let default = JetStreamOptions::default();
    let before = old.jetstream.as_ref().unwrap_or(&default);
    let after = new.jetstream.as_ref().unwrap_or(&default);
    check.same("JetStreamDomain", &text(&before.domain), &text(&after.domain));
    if old.jetstream.is_none() || new.jetstream.is_none() {
        return;
    }
    check.same("NoJetStreamStrict", &!before.strict, &!after.strict);
    let tag = |options: &JetStreamOptions| text(&options.unique_tag);
    check.same("JetStreamUniqueTag", &tag(before), &tag(after));
    let requests = |options: &JetStreamOptions| options.request_queue_limit.unwrap_or(QUEUE_LIMIT);
    check.same("JetStreamRequestQueueLimit", &requests(before), &requests(after));
    let infos = |options: &JetStreamOptions| options.info_queue_limit.unwrap_or(requests(options));
    check.same("JetStreamInfoQueueLimit", &infos(before), &infos(after));
    let sync = |options: &JetStreamOptions| match options.sync_interval {
        Some(every) => format_duration(every),
        None => "always".to_owned(),
    };
    check.same("SyncInterval", &sync(before), &sync(after));
}

/// A running store keeps its folder, and its bounds may only grow.
fn check_store(old: &Options, new: &Options) -> Result<(), ReloadError> {
    let (Some(before), Some(after)) = (&old.jetstream, &new.jetstream) else {
        return Ok(());
    };
    let bounds = [
        (before.max_memory_store, after.max_memory_store),
        (before.max_file_store, after.max_file_store),
    ];
    let some = |found: fn(&(Option<u64>, Option<u64>)) -> bool| bounds.iter().any(found);
    let folder = |jetstream: &JetStreamOptions, options: &Options| {
        jetstream.store_dir.clone().or_else(|| options.store_dir.clone())
    };
    let fixed = if some(|bound| matches!(bound, (Some(_), None))) {
        "jetstream max memory and max store"
    } else if some(|bound| matches!(bound, (None, Some(_)))) {
        "jetstream dynamic max memory and store"
    } else if some(|bound| bound.1 < bound.0) {
        "decreasing jetstream max memory and store"
    } else if folder(before, old) != folder(after, new) {
        "jetstream storage directory"
    } else {
        return Ok(());
    };
    Err(ReloadError::JetStreamFixed(fixed))
}

fn check_monitoring(check: &mut Check, old: &Options, new: &Options) {
    let address = |options: &Options| {
        let monitoring = &options.monitoring;
        let listener = monitoring.http.as_ref().or(monitoring.https.as_ref());
        listener.map_or_else(|| host(options), |listener| listener.host.clone())
    };
    let (before, after) = (&old.monitoring, &new.monitoring);
    check.same("HTTPHost", &address(old), &address(new));
    check.same(
        "HTTPPort",
        &port(before.http.as_ref()),
        &port(after.http.as_ref()),
    );
    check.same("HTTPBasePath", &before.base_path, &after.base_path);
    check.same(
        "HTTPSPort",
        &port(before.https.as_ref()),
        &port(after.https.as_ref()),
    );
    // Two listeners may have different hosts, of which the above compares one.
    check.debug("HTTPSHost", &before.https, &after.https);
}

/// A port as nats-server counts: 0 without a listener, -1 for any.
fn port(listen: Option<&ListenAddress>) -> i32 {
    listen.map_or(0, |listen| listen.port.map_or(-1, i32::from))
}

fn host(options: &Options) -> String {
    let listen = options.listen.as_ref();
    listen.map(|listen| listen.host.clone()).unwrap_or_default()
}

/// The WebSocket options that cannot change: all but its TLS certificates.
fn fixed_websocket(options: &Options) -> Option<WebSocketOptions> {
    let mut websocket = options.websocket.clone()?;
    if let Some(tls) = &mut websocket.tls {
        *tls = TlsOptions::default();
    }
    Some(websocket)
}

/// `no_auth_user` may only go, together with its user.
fn kept_no_auth_user(old: &Options, new: &Options) -> String {
    if new.auth.no_auth_user.is_none() {
        String::new()
    } else {
        text(&old.auth.no_auth_user)
    }
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

/// Collects the first difference.
struct Check(Option<ReloadError>);

impl Check {
    fn same<T: PartialEq + fmt::Display>(&mut self, option: &'static str, old: &T, new: &T) {
        if self.0.is_none() && old != new {
            self.0 = Some(ReloadError::NeedsRestart {
                option,
                old: old.to_string(),
                new: new.to_string(),
            });
        }
    }

    fn debug<T: fmt::Debug>(&mut self, option: &'static str, old: &T, new: &T) {
        let (old, new) = (format!("{old:?}"), format!("{new:?}"));
        self.same(option, &old, &new);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn listening(port: Option<u16>) -> Options {
        let listen = ListenAddress {
            port,
            ..ListenAddress::loopback()
        };
        Options {
            listen: Some(listen),
            ..Options::default()
        }
    }

    fn refusal(old: &Options, new: &Options) -> String {
        let client = old.listen.as_ref().map(|_| "127.0.0.1:5000".parse().unwrap());
        check(old, new, client).unwrap_err().to_string()
    }

    #[test]
    fn the_port_in_use_is_named_and_any_port_keeps_it() {
        assert_eq!(
            refusal(&listening(None), &listening(Some(4299))),
            "config reload not supported for Port: old=5000, new=4299"
        );
        let client = Some("127.0.0.1:5000".parse().unwrap());
        check(&listening(None), &listening(None), client).unwrap();
        check(&listening(Some(5000)), &listening(None), client).unwrap();
        check(&listening(None), &listening(Some(5000)), client).unwrap();
    }

    #[test]
    fn a_running_jetstream_keeps_its_folder_and_never_gets_less() {
        let with = |change: fn(&mut JetStreamOptions)| {
            let mut options = listening(None);
            change(options.jetstream.insert(JetStreamOptions::default()));
            options
        };
        let bounded = with(|js| js.max_memory_store = Some(10));
        for (old, new, what) in [
            (
                &bounded,
                with(|js| js.max_memory_store = Some(9)),
                "decreasing jetstream max memory and store",
            ),
            (&bounded, with(|_| ()), "jetstream max memory and max store"),
            (
                &with(|_| ()),
                bounded.clone(),
                "jetstream dynamic max memory and store",
            ),
            (
                &with(|_| ()),
                with(|js| js.store_dir = Some("other".into())),
                "jetstream storage directory",
            ),
            (
                &with(|_| ()),
                with(|js| js.domain = Some("hub".into())),
                "JetStreamDomain: old=, new=hub",
            ),
            (
                &with(|_| ()),
                with(|js| js.strict = false),
                "NoJetStreamStrict: old=false, new=true",
            ),
        ] {
            assert_eq!(
                refusal(old, &new),
                format!("config reload not supported for {what}")
            );
        }
        let client = Some("127.0.0.1:5000".parse().unwrap());
        check(&bounded, &with(|js| js.max_memory_store = Some(11)), client).unwrap();
        check(&bounded, &listening(None), client).unwrap();
        check(&listening(None), &bounded, client).unwrap();
    }

    #[test]
    fn durations_and_ports_read_as_in_nats_server() {
        let old = listening(None);
        let mut new = listening(None);
        new.lame_duck_duration = Duration::from_secs(40);
        assert_eq!(
            refusal(&old, &new),
            "config reload not supported for LameDuckDuration: old=2m0s, new=40s"
        );
        let mut new = listening(None);
        new.monitoring.http = Some(ListenAddress::loopback());
        assert_eq!(
            refusal(&old, &new),
            "config reload not supported for HTTPPort: old=0, new=-1"
        );
        let mut new = listening(None);
        new.monitoring.https = Some(ListenAddress::loopback());
        assert_eq!(
            refusal(&old, &new),
            "config reload not supported for HTTPSPort: old=0, new=-1"
        );
    }
}
