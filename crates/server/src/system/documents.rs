//! The monitoring documents that can be asked for by request.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::reply::Answer;
use super::requests::read;
use crate::monitor::{
    AccountzOptions, AccstatzOptions, ConnzOptions, HealthzOptions, JszOptions, SubszOptions, Variables,
    account_detail, account_jsz, accountz, accstatz, connz, gatewayz, healthz, jsz, leafz, routez, subsz,
    varz,
};
use crate::server::Shared;

/// Which document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Document {
    Varz,
    Connz,
    Subsz,
    Routez,
    Gatewayz,
    Leafz,
    Accountz,
    Jsz,
    Healthz,
    Expvarz,
    Ipqueuesz,
    Raftz,
    Profilez,
}

impl Document {
    /// The document of this name about the whole server.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "VARZ" => Self::Varz,
            "CONNZ" => Self::Connz,
            "SUBSZ" => Self::Subsz,
            "ROUTEZ" => Self::Routez,
            "GATEWAYZ" => Self::Gatewayz,
            "LEAFZ" => Self::Leafz,
            "ACCOUNTZ" => Self::Accountz,
            "JSZ" => Self::Jsz,
            "HEALTHZ" => Self::Healthz,
            "EXPVARZ" => Self::Expvarz,
            "IPQUEUESZ" => Self::Ipqueuesz,
            "RAFTZ" => Self::Raftz,
            "PROFILEZ" => Self::Profilez,
            _ => return None,
        })
    }

    /// Whether it may be long.
    pub(super) fn is_list(self) -> bool {
        matches!(self, Self::Connz | Self::Subsz)
    }

    /// Whether building it may wait for something.
    pub(super) fn may_wait(self) -> bool {
        matches!(self, Self::Jsz | Self::Healthz)
    }

    /// Builds it for the options in `payload`.
    pub(super) fn build(self, shared: &Shared, payload: &[u8]) -> Answer {
        match self {
            Self::Varz => Answer::data(&varz(shared)),
            Self::Connz => with(payload, |options: ConnzOptions| {
                Answer::built(connz(shared, &options))
            }),
            Self::Subsz => with(payload, |options: SubszOptions| {
                Answer::built(subsz(shared, &options))
            }),
            Self::Routez => Answer::data(&routez(shared)),
            Self::Gatewayz => Answer::data(&gatewayz(shared)),
            Self::Leafz => Answer::data(&leafz(shared)),
            Self::Accountz => with(payload, |options: AccountzOptions| {
                Answer::built(accountz(shared, &options))
            }),
            Self::Jsz => with(payload, |options: JszOptions| {
                Answer::data(&jsz(shared, &options))
            }),
            Self::Healthz => with(payload, |options: HealthzOptions| {
                let mut health = healthz(shared, &options);
                health.status_code = Some(health.code);
                Answer::data(&health)
            }),
            Self::Expvarz => Answer::data(&Variables::now(shared)),
            Self::Ipqueuesz | Self::Raftz => Answer::Data("{}".to_owned()),
            Self::Profilez => Answer::data(&NoProfile {
                profile: None,
                error: "profiles are not available",
            }),
        }
    }
}

#[derive(Debug, Serialize)]
struct NoProfile {
    profile: Option<()>,
    error: &'static str,
}

/// Which document about one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccountDocument {
    Connz,
    Subsz,
    Leafz,
    Jsz,
    Info,
    Statz,
}

impl AccountDocument {
    /// The document of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "CONNZ" => Self::Connz,
            "SUBSZ" => Self::Subsz,
            "LEAFZ" => Self::Leafz,
            "JSZ" => Self::Jsz,
            "INFO" => Self::Info,
            "STATZ" => Self::Statz,
            _ => return None,
        })
    }

    /// Whether it may be long.
    pub(super) fn is_list(self) -> bool {
        matches!(self, Self::Connz | Self::Subsz)
    }

    /// Whether building it may wait for something.
    pub(super) fn may_wait(self) -> bool {
        self == Self::Jsz
    }

    /// Builds it for `account` and the options in `payload`.
    pub(super) fn build(self, shared: &Shared, account: &str, payload: &[u8]) -> Answer {
        match self {
            Self::Connz => with(payload, |mut options: ConnzOptions| {
                account.clone_into(&mut options.account);
                Answer::built(connz(shared, &options))
            }),
            Self::Subsz => with(payload, |mut options: SubszOptions| {
                account.clone_into(&mut options.account);
                options.subscriptions = true;
                Answer::built(subsz(shared, &options))
            }),
            Self::Leafz => Answer::data(&leafz(shared)),
            Self::Jsz => with(payload, |options: JszOptions| {
                Answer::built(account_jsz(shared, account, &options))
            }),
            Self::Info => Answer::built(account_detail(shared, account)),
            Self::Statz => with(payload, |mut options: AccstatzOptions| {
                options.accounts = vec![account.to_owned()];
                statz(shared, &options)
            }),
        }
    }
}

/// The counters of the accounts that are asked for; silence when there are none and that was not asked for.
pub(super) fn statz(shared: &Shared, options: &AccstatzOptions) -> Answer {
    let found = accstatz(shared, options);
    if found.is_empty() && !options.include_unused {
        return Answer::Silent;
    }
    Answer::data(&found)
}

/// Reads the options and goes on with them.
pub(super) fn with<T: DeserializeOwned + Default>(payload: &[u8], go_on: impl FnOnce(T) -> Answer) -> Answer {
    match read(payload) {
        Ok(options) => go_on(options),
        Err(answer) => answer,
    }
}
