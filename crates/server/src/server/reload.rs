//! New options for a running server.
//!
//! Each option is either applied, or needs a restart, in which case the whole reload is refused and nothing changes.
//! Live clients are judged again under the new credentials and permissions by their own tasks, right after.

mod changes;
mod fixed;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Limits, Server, Shared};
use crate::auth::Authenticator;
use crate::connection::{CloseReason, Control};
use crate::jetstream;
use crate::options::{Options, OptionsError};
use crate::system;
use crate::tls::{self, TlsError};

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// The options that were applied.
    pub applied: Vec<Applied>,
}

/// An option that a reload changed. Its text is `name = value`, or the name alone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The option, in the words with which nats-server reports it.
    pub option: &'static str,
    /// The value now in force; `None` for secrets and for what is too long for a line.
    pub value: Option<String>,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.option)?;
        match &self.value {
            Some(value) => write!(f, " = {value}"),
            None => Ok(()),
        }
    }
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
    /// JetStream cannot be changed in this way without a restart.
    #[error("config reload not supported for {0}")]
    JetStreamFixed(&'static str),
    /// JetStream was to be switched on and does not start.
    #[error("JetStream does not start: {0}")]
    JetStream(String),
}

impl Server {
    /// Applies new options as far as a running server can.
    ///
    /// Reads certificate files and waits for the disk when JetStream is switched on or off, for all or for an account, so call
    /// it where blocking is allowed.
    ///
    /// Applied: credentials, users, permissions, accounts, mappings, imports and exports; limits of connections and
    /// messages; PING and write timing; TLS for new connections; labels; JetStream on or off, also for accounts, its `limits`, more of
    /// `max_memory_store` and `max_file_store`; logging and file paths (which the embedding program reads). Everything else needs a restart.
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
        fixed::check(&old, &options, self.addresses().client)?;
        let authenticator = Authenticator::from_options(&options)?;
        let tls = options.tls.as_ref().map(tls::Setup::build).transpose()?;
        let websocket_tls = tls::of_websocket(&options)?;
        let monitoring_tls = tls::of_monitoring(&options)?;
        let report = ReloadReport {
            applied: changes::between(&old, &options),
        };
        let opened = match (&old.jetstream, &options.jetstream) {
            (None, Some(_)) => jetstream::open(&options, self.medium().clone())
                .map_err(|error| ReloadError::JetStream(error.to_string()))?,
            _ => None,
        };
        self.accounts.apply(&options, &authenticator)?;
        self.limits.store(Arc::new(Limits::of(&options)));
        self.tls.store(tls.map(Arc::new));
        self.websocket_tls.store(websocket_tls.map(Arc::new));
        self.monitoring_tls.store(monitoring_tls.map(Arc::new));
        self.authenticator.store(Arc::new(authenticator));
        let max = usize::try_from(options.max_connections).unwrap_or(0);
        self.options.store(Arc::new(options));
        *self.configured_at.lock() = SystemTime::now();
        system::attach(self);
        match opened {
            Some(opened) => jetstream::switch_on(self, opened),
            None if self.options().jetstream.is_none() => jetstream::switch_off(self),
            None => jetstream::apply_options(self),
        }
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
