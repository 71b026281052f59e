//! `subsz`: the subscriptions of all accounts or of one.
//!
//! Matching keeps no shared cache here (each publisher remembers its own subjects), so the fields about one are 0.

use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use windjet_protocol::subject;

use super::Refused;
use super::connz::SubDetail;
use super::format::{float, rfc3339};
use super::params::Params;
use crate::account::Account;
use crate::server::Shared;

/// Subscriptions in one answer unless the asker says otherwise.
const LIMIT: i64 = 1_024;

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SubszOptions {
    /// Whether the subscriptions are listed.
    pub(crate) subscriptions: bool,
    offset: i64,
    limit: i64,
    /// Only subscriptions of this account.
    #[serde(rename = "account", alias = "acc")]
    pub(crate) account: String,
    test: String,
}

impl SubszOptions {
    /// Reads the query part of a URL.
    pub(super) fn of(params: &Params) -> Result<Self, Refused> {
        Ok(Self {
            subscriptions: params.flag("subs")?,
            offset: params.int("offset")?,
            limit: params.int("limit")?,
            account: params.text("acc").to_owned(),
            test: params.text("test").to_owned(),
        })
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct Subsz {
    server_id: String,
    now: String,
    #[serde(flatten)]
    stats: SublistStats,
    total: usize,
    offset: i64,
    limit: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subscriptions_list: Vec<SubDetail>,
}

/// Counters of the index of subscriptions.
#[derive(Debug, Default, Serialize)]
pub(super) struct SublistStats {
    num_subscriptions: usize,
    num_cache: u32,
    num_inserts: u64,
    num_removes: u64,
    num_matches: u64,
    #[serde(serialize_with = "float")]
    cache_hit_rate: f64,
    max_fanout: u32,
    #[serde(serialize_with = "float")]
    avg_fanout: f64,
}

impl SublistStats {
    /// The counters of one account.
    pub(super) fn of(account: &Account) -> Self {
        let mut stats = Self::default();
        stats.add(account);
        stats
    }

    fn add(&mut self, account: &Account) {
        let (live, inserted) = account.subscription_counts();
        self.num_subscriptions += live;
        self.num_inserts += inserted;
        self.num_removes += inserted - live as u64;
    }
}

/// The subscriptions that are asked for.
///
/// # Errors
///
/// When the subject to test is not one that can be published to.
pub(crate) fn subsz(shared: &Shared, options: &SubszOptions) -> Result<Subsz, Refused> {
    if !options.test.is_empty() && !subject::is_literal(options.test.as_bytes()) {
        return Err(Refused(format!(
            "invalid test subject, must be valid publish subject: {}",
            options.test
        )));
    }
    let mut accounts = shared.accounts.all();
    if !options.account.is_empty() {
        accounts.retain(|account| *account.name == *options.account);
    }
    let mut answer = Subsz {
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        stats: SublistStats::default(),
        total: 0,
        offset: options.offset.max(0),
        limit: if options.limit > 0 { options.limit } else { LIMIT },
        subscriptions_list: Vec::new(),
    };
    accounts.iter().for_each(|account| answer.stats.add(account));
    if options.subscriptions || !options.test.is_empty() {
        answer.list(&accounts, options);
    } else {
        answer.total = answer.stats.num_subscriptions;
    }
    Ok(answer)
}

impl Subsz {
    fn list(&mut self, accounts: &[Arc<Account>], options: &SubszOptions) {
        let mut skip = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let take = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let list = &mut self.subscriptions_list;
        for account in accounts {
            account.for_each_subscription(&mut |subscription| {
                let fits = options.test.is_empty()
                    || subject::matches(&subscription.subject, options.test.as_bytes());
                if !fits || list.len() >= take {
                    return;
                }
                match skip.checked_sub(1) {
                    Some(left) => skip = left,
                    None => list.push(SubDetail::of(subscription, Some(account))),
                }
            });
        }
        self.total = list.len();
        if !options.subscriptions {
            list.clear();
        }
    }
}
