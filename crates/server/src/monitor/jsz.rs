//! `jsz`: JetStream, in the form that stands for "off".

use std::time::SystemTime;

use serde::Serialize;

use super::Refused;
use super::format::rfc3339;
use super::params::Params;
use crate::server::Shared;

/// The document of a server without JetStream.
#[derive(Debug, Serialize)]
pub(crate) struct Jsz {
    memory: u64,
    storage: u64,
    reserved_memory: u64,
    reserved_storage: u64,
    accounts: u64,
    ha_assets: u64,
    api: Api,
    server_id: String,
    now: String,
    disabled: bool,
    config: Config,
    streams: u64,
    consumers: u64,
    messages: u64,
    bytes: u64,
    total: u64,
}

#[derive(Debug, Default, Serialize)]
struct Api {
    level: u32,
    total: u64,
    errors: u64,
}

#[derive(Debug, Default, Serialize)]
struct Config {
    max_memory: u64,
    max_storage: u64,
}

/// Checks the query part of a URL.
///
/// # Errors
///
/// When a value is not of its kind.
pub(super) fn check(params: &Params) -> Result<(), Refused> {
    for name in [
        "accounts",
        "streams",
        "consumers",
        "direct-consumers",
        "config",
        "leader-only",
        "raft",
        "stream-leader-only",
    ] {
        params.flag(name)?;
    }
    params.int("offset")?;
    params.int("limit")?;
    Ok(())
}

/// The document.
pub(crate) fn jsz(shared: &Shared) -> Jsz {
    Jsz {
        memory: 0,
        storage: 0,
        reserved_memory: 0,
        reserved_storage: 0,
        accounts: 0,
        ha_assets: 0,
        api: Api::default(),
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        disabled: true,
        config: Config::default(),
        streams: 0,
        consumers: 0,
        messages: 0,
        bytes: 0,
        total: 0,
    }
}
