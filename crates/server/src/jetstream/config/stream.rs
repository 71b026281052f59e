//! Stream configurations: what becomes of a request, or why it is refused.
//!
//! [`create`] and [`update`] fill in defaults, hold the configuration against the limits and the rules in the order of
//! nats-server (the first that fails is the answer), and record the level it needs. They read other streams of the
//! account, for mirrors and sources, and change nothing. Whether the subjects collide with another stream's is asked by
//! the caller, after the comparison with a stream of the same name.

mod check;
mod copies;
mod limits;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use windjet_protocol::jetstream::stream::requests::StreamConfigRequest;
use windjet_protocol::jetstream::{
    ApiError, ErrorCode, Nanos, RetentionPolicy, StorageType, StreamConfig, level,
};

pub(crate) use limits::{Bounds, Reserved};

use crate::jetstream::JetStream;
use crate::jetstream::account::JsAccount;
use crate::options::AccountJetStreamLimits;

/// Other streams and what they take, as the rules see them.
pub(crate) trait Streams {
    /// A stream's configuration.
    fn config(&self, name: &str) -> Option<Arc<StreamConfig>>;

    /// What the streams other than `name` reserve.
    fn reserved(&self, name: &str, storage: StorageType) -> Reserved;
}

/// What a configuration is held against besides itself.
pub(crate) struct Rules<'r> {
    streams: &'r dyn Streams,
    bounds: Bounds,
    window_max: Option<Nanos>,
}

/// The streams of an account on a server.
pub(crate) struct Neighbours<'r> {
    js: &'r JetStream,
    account: Arc<JsAccount>,
}

impl Streams for Neighbours<'_> {
    fn config(&self, name: &str) -> Option<Arc<StreamConfig>> {
        self.account.stream(name).map(|stream| stream.config())
    }

    fn reserved(&self, name: &str, storage: StorageType) -> Reserved {
        let size = self.js.size();
        let server_max = match storage {
            StorageType::Memory => size.memory,
            StorageType::File => size.storage,
        };
        let (streams, account) = self.account.reserved(storage, Some(name));
        let mut server = account;
        for other in self.js.accounts() {
            if !Arc::ptr_eq(&other, &self.account) {
                server = server.saturating_add(other.reserved(storage, None).1);
            }
        }
        Reserved {
            streams,
            account,
            server,
            server_max: Some(server_max),
        }
    }
}

impl JetStream {
    /// The streams beside which one of this account stands.
    pub(crate) fn neighbours(&self, account: &Arc<JsAccount>) -> Neighbours<'_> {
        Neighbours {
            js: self,
            account: account.clone(),
        }
    }
}

impl<'r> Rules<'r> {
    /// Rules of an account with these limits; `window_max` is the server's bound on duplicate windows.
    pub(crate) fn new(
        streams: &'r dyn Streams,
        limits: &AccountJetStreamLimits,
        window_max: Option<Nanos>,
    ) -> Self {
        Self {
            streams,
            bounds: Bounds::from(limits),
            window_max,
        }
    }
}

impl Neighbours<'_> {
    /// The rules for a stream among them.
    pub(crate) fn rules(&self) -> Rules<'_> {
        let window = self.js.options().limits.duplicate_window;
        let window_max = window.map(|w| Nanos(i64::try_from(w.as_nanos()).unwrap_or(i64::MAX)));
        Rules::new(self, &self.account.limits(), window_max)
    }
}

fn invalid(text: impl std::fmt::Display) -> ApiError {
    ErrorCode::StreamInvalidConfig.with(text)
}

/// A new stream's configuration as it will be.
///
/// # Errors
///
/// What the client is to be told.
pub(crate) fn create(request: StreamConfigRequest, rules: &Rules<'_>) -> Result<StreamConfig, ApiError> {
    let config = &request.config;
    if config.sealed {
        return Err(invalid("stream configuration for create can not be sealed"));
    }
    if config.mirror_direct && config.mirror.is_none() {
        return Err(invalid("stream has no mirror but does have mirror direct"));
    }
    let reserved = rules.streams.reserved(&config.name, config.storage);
    limits::check(config, None, &rules.bounds, &reserved)?;
    check::normalised(request, rules)
}

/// Whether a request for an update is valid by itself, whatever there is to update.
///
/// # Errors
///
/// What the client is to be told.
pub(crate) fn check_request(request: &StreamConfigRequest, rules: &Rules<'_>) -> Result<(), ApiError> {
    let mut request = request.clone();
    request.config.sealed = false;
    check::normalised(request, rules).map(drop)
}

/// The configuration after an update.
///
/// # Errors
///
/// What the client is to be told.
pub(crate) fn update(
    old: &StreamConfig,
    mut request: StreamConfigRequest,
    rules: &Rules<'_>,
) -> Result<StreamConfig, ApiError> {
    // The rules are for what was asked; what sealing forces comes after them.
    let sealed = std::mem::take(&mut request.config.sealed);
    let mut config = check::normalised(request, rules)?;
    config.sealed = sealed;
    check_change(old, &config)?;
    config.fill_defaults(rules.window_max);
    let reserved = rules.streams.reserved(&config.name, config.storage);
    limits::check(&config, Some(old), &rules.bounds, &reserved)?;
    Ok(config)
}

/// Whether a stream may become this.
fn check_change(old: &StreamConfig, new: &StreamConfig) -> Result<(), ApiError> {
    let queue = |config: &StreamConfig| config.retention == RetentionPolicy::WorkQueue;
    let refused = [
        (
            old.storage != new.storage,
            "stream configuration update can not change storage type",
        ),
        (
            queue(old) != queue(new),
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            old.sealed && !new.sealed,
            "stream configuration update can not unseal a sealed stream",
        ),
        (
            old.deny_delete && !new.deny_delete,
            "stream configuration update can not cancel deny message deletes",
        ),
        (
            old.deny_purge && !new.deny_purge,
            "stream configuration update can not cancel deny purge",
        ),
    ];
    if let Some((_, text)) = refused.iter().find(|(refused, _)| *refused) {
        return Err(invalid(text));
    }
    if new.mirror.is_some() && old.mirror != new.mirror {
        return Err(ErrorCode::MirrorNotUpdatable.error());
    }
    let refused = [
        (
            old.allow_msg_ttl && !new.allow_msg_ttl,
            "message TTL status can not be disabled",
        ),
        (
            old.allow_msg_counter != new.allow_msg_counter,
            "stream configuration update can not change message counter setting",
        ),
        (
            old.allow_msg_schedules && !new.allow_msg_schedules,
            "message schedules can not be disabled",
        ),
        (
            old.persist_mode != new.persist_mode,
            "stream configuration update can not change persist mode",
        ),
    ];
    match refused.iter().find(|(refused, _)| *refused) {
        Some((_, text)) => Err(invalid(text)),
        None => Ok(()),
    }
}

/// Records the level that the configuration needs.
fn stamp(config: &mut StreamConfig) {
    let level = config.required_level();
    level::stamp_stored(&mut config.metadata, level);
}
