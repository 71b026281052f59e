//! New options for a running server.
//!
//! Each option is either applied, or needs a restart, in which case the whole reload is refused and nothing changes.
//! Live clients are judged again under the new credentials and permissions by their own tasks, right after.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Limits, Server, Shared};
use crate::auth::Authenticator;
use crate::connection::{CloseReason, Control};
use crate::options::{Options, OptionsError};
use crate::system;
use crate::tls::{self, TlsError};

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// Names of the options that were applied, in the words of the configuration file.
    pub applied: Vec<&'static str>,
}

/// Why a reload was refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The new options contradict each other or cannot be honoured.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The `tls` block cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An option that needs a restart was changed.
    #[error("config reload not supported for {option}: old={old}, new={new}")]
    NeedsRestart {
        /// The option, in the words of nats-server.
        option: &'static str,
        /// The value in force.
        old: String,
        /// The value that was asked for.
        new: String,
    },
}

impl Server {
    /// Reads certificate files, so call it where blocking is allowed.
    ///
    /// Applies new options as far as a running server can.
    ///
    /// Applied: credentials, users, permissions, accounts, mappings, imports and exports; limits of connections and
    /// messages; PING and write timing; TLS for new connections; labels; logging and file paths (which the embedding
    /// program reads). Everything else needs a restart.
    ///
    /// # Errors
    ///
    /// When the options are wrong, or one that needs a restart differs. Nothing has changed then.
    pub fn reload(&self, options: Options) -> Result<ReloadReport, ReloadError> {
        self.shared().reload(options)
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> Arc<Options> {
        self.shared().options().clone()
    }
}

impl Shared {
    pub(crate) fn reload(self: &Arc<Self>, options: Options) -> Result<ReloadReport, ReloadError> {
        let _one_at_a_time = self.reloading.lock();
        options.validate()?;
        let old = self.options().clone();
        refuse_fixed(&old, &options)?;
        let authenticator = Authenticator::from_options(&options)?;
        let tls = options.tls.as_ref().map(tls::Setup::build).transpose()?;
        let websocket_tls = tls::of_websocket(&options)?;
        let report = ReloadReport {
            applied: changes(&old, &options),
        };
        self.accounts.apply(&options, &authenticator)?;
        self.limits.store(Arc::new(Limits::of(&options)));
        self.tls.store(tls.map(Arc::new));
        self.websocket_tls.store(websocket_tls.map(Arc::new));
        self.authenticator.store(Arc::new(authenticator));
        let max = usize::try_from(options.max_connections).unwrap_or(0);
        self.options.store(Arc::new(options));
        *self.configured_at.lock() = SystemTime::now();
        system::attach(self);
        let live = self.registry.live();
        let surplus = live.len().saturating_sub(max);
        for (n, connection) in live.iter().rev().enumerate() {
            if n < surplus {
                let mut touched = Vec::new();
                connection.send(&mut touched, |out| {
                    windjet_protocol::wire::encode::err(out, b"maximum connections exceeded");
                });
                connection.flush();
                connection.close(CloseReason::MaxConnectionsExceeded);
            } else {
                connection.control(Control::Reload);
            }
        }
        Ok(report)
    }
}

/// Refuses a change of what cannot change without a restart.
fn refuse_fixed(old: &Options, new: &Options) -> Result<(), ReloadError> {
    let mut check = Check(None);
    let port = |options: &Options| {
        options
            .listen
            .as_ref()
            .map_or(0, |listen| listen.port.map_or(-1, i32::from))
    };
    let host = |options: &Options| {
        options
            .listen
            .as_ref()
            .map(|listen| listen.host.clone())
            .unwrap_or_default()
    };
    check.same("Port", &port(old), &port(new));
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
        &old.lame_duck_duration.as_nanos(),
        &new.lame_duck_duration.as_nanos(),
    );
    check.same(
        "LameDuckGracePeriod",
        &old.lame_duck_grace_period.as_nanos(),
        &new.lame_duck_grace_period.as_nanos(),
    );
    check.debug("HTTPPort", &old.monitoring, &new.monitoring);
    check.debug("Websocket", &fixed_websocket(old), &fixed_websocket(new));
    check.same(
        "NoAuthUser",
        &kept_no_auth_user(old, new),
        &text(&new.auth.no_auth_user),
    );
    match check.0 {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// The WebSocket options that cannot change: all but its TLS certificates.
fn fixed_websocket(options: &Options) -> Option<crate::options::WebSocketOptions> {
    let mut websocket = options.websocket.clone()?;
    if let Some(tls) = &mut websocket.tls {
        *tls = crate::options::TlsOptions::default();
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

/// The names of what differs and can be applied.
fn changes(old: &Options, new: &Options) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut differs = |name: &'static str, differs: bool| {
        if differs {
            names.push(name);
        }
    };
    let shown = |value: &dyn fmt::Debug| format!("{value:?}");
    differs("debug", old.log.debug != new.log.debug);
    differs(
        "trace",
        old.log.trace != new.log.trace || old.log.trace_verbose != new.log.trace_verbose,
    );
    differs("trace_headers", old.log.trace_headers != new.log.trace_headers);
    differs(
        "logtime",
        old.log.no_time != new.log.no_time || old.log.utc != new.log.utc,
    );
    differs(
        "logfile",
        old.log.file != new.log.file || old.log.file_size_limit != new.log.file_size_limit,
    );
    differs(
        "max_traced_msg_len",
        old.max_traced_msg_len != new.max_traced_msg_len,
    );
    differs(
        "tls",
        old.tls != new.tls || old.allow_non_tls != new.allow_non_tls,
    );
    differs("websocket tls", shown(&old.websocket) != shown(&new.websocket));
    differs("authorization", shown(&old.auth) != shown(&new.auth));
    differs("accounts", shown(&old.accounts) != shown(&new.accounts));
    differs("mappings", old.mappings != new.mappings);
    differs("max_connections", old.max_connections != new.max_connections);
    differs("max_control_line", old.max_control_line != new.max_control_line);
    differs("max_payload", old.max_payload != new.max_payload);
    differs("max_sub_tokens", old.max_sub_tokens != new.max_sub_tokens);
    differs("ping_interval", old.ping_interval != new.ping_interval);
    differs("ping_max", old.ping_max != new.ping_max);
    differs("write_deadline", old.write_deadline != new.write_deadline);
    differs("write_timeout", old.write_timeout != new.write_timeout);
    differs(
        "no_fast_producer_stall",
        old.no_fast_producer_stall != new.no_fast_producer_stall,
    );
    differs("client_advertise", old.client_advertise != new.client_advertise);
    differs("server_tags", old.server_tags != new.server_tags);
    differs("server_metadata", old.server_metadata != new.server_metadata);
    differs("pid_file", old.pid_file != new.pid_file);
    differs("ports_file_dir", old.ports_file_dir != new.ports_file_dir);
    names
}
