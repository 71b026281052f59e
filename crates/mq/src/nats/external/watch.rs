//! Looking after the topology and the history while the broker runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::Shared;
use crate::TenantId;
use crate::nats::finding::Severity;
use crate::nats::text::format_duration;
use crate::nats::units;
use crate::nats::verify::{Probe, verify};

const CHECK_WAIT: Duration = Duration::from_secs(30);

impl Shared {
    /// Runs until the close: checks again at intervals and as soon as the client has reconnected.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut connected = self.link.watch();
        connected.mark_unchanged();
        let mut next_check = Instant::now() + self.check_every;
        let mut next_history = Instant::now() + self.history_every;
        loop {
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep_until(next_check) => {}
                () = tokio::time::sleep_until(next_history) => {
                    next_history = Instant::now() + self.history_every;
                    tokio::select! {
                        () = self.closed.cancelled() => return,
                        () = self.read_history() => {}
                    }
                    continue;
                }
                _ = connected.changed() => {
                    if !*connected.borrow_and_update() {
                        continue;
                    }
                }
            }
            next_check = Instant::now() + self.check_every;
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.recheck() => {}
            }
        }
    }

    /// Checks the topology again. A check that could not be made changes nothing.
    async fn recheck(&self) {
        // Without a connection the version is not known, which is no fault of the topology.
        if !self.link.connected() {
            return;
        }
        let probe = Probe {
            refusals: &self.link.refusals,
            domain: self.domain.as_deref(),
        };
        let checked = timeout(CHECK_WAIT, verify(&self.api, &self.topology, Some(probe))).await;
        if !self.link.connected() {
            return;
        }
        let findings = match checked {
            Ok(Ok(findings)) => findings,
            Ok(Err(error)) => {
                tracing::warn!(component = "nats", %error, "the topology could not be checked");
                return;
            }
            Err(_) => {
                tracing::warn!(component = "nats", "the topology could not be checked in time");
                return;
            }
        };
        match units::outside(&self.api, &self.topology, &self.partitions).await {
            Ok(outside) => *self.extras.lock() = outside.units,
            Err(error) => tracing::warn!(component = "nats", %error, "extra units could not be read"),
        }
        let required: Vec<_> = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Required)
            .collect();
        let was_ok = self.link.set_topology_ok(required.is_empty());
        for finding in &required {
            tracing::error!(component = "nats", "{finding}");
        }
        if required.is_empty() && !was_ok {
            tracing::info!(component = "nats", "the topology is as needed again");
        }
    }

    /// Reads how far the history trails the partitions, and how long it keeps what it has.
    pub(super) async fn read_history(&self) {
        let read = async {
            // The partitions first: what they store meanwhile is no gap.
            let mut newest = i64::MIN;
            for stream in &self.partitions {
                let info = self.api.stream(stream).await?;
                newest = newest.max(info.map_or(i64::MIN, |info| info.state.last_ts.unix_nanos()));
            }
            let info = self.api.stream(&self.topology.history_stream()).await?;
            Ok::<_, crate::nats::api::ApiFailure>(info.map(|info| {
                let last = if info.state.last_seq == 0 {
                    info.created
                } else {
                    info.state.last_ts
                };
                let behind = newest.saturating_sub(last.unix_nanos());
                (
                    Duration::from_nanos(u64::try_from(behind).unwrap_or(0)),
                    info.config.max_age.to_std(),
                )
            }))
        };
        match timeout(CHECK_WAIT, read).await {
            Ok(Ok(Some((behind, max_age)))) => {
                self.history.note(behind, max_age);
                self.link.tell_behind(behind);
                self.history.check_windows(None);
            }
            Ok(Ok(None)) => tracing::warn!(component = "nats", "the history does not exist"),
            Ok(Err(error)) => tracing::warn!(component = "nats", %error, "the history could not be read"),
            Err(_) => tracing::warn!(component = "nats", "the history could not be read in time"),
        }
    }
}

/// What is known of the history, and the windows that tenants expect of it.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    behind: Option<Duration>,
    max_age: Option<Duration>,
    windows: BTreeMap<TenantId, Duration>,
    /// The windows that were warned of.
    warned: BTreeMap<TenantId, Duration>,
}

impl History {
    fn note(&self, behind: Duration, max_age: Duration) {
        let mut state = self.0.lock();
        if state.max_age != Some(max_age) {
            state.warned.clear();
        }
        state.behind = Some(behind);
        state.max_age = Some(max_age);
    }

    pub(super) fn behind(&self) -> Option<Duration> {
        self.0.lock().behind
    }

    /// Warns of windows that are longer than the history keeps; the tenants warned of.
    pub(super) fn check_windows(&self, windows: Option<BTreeMap<TenantId, Duration>>) -> Vec<TenantId> {
        let state = &mut *self.0.lock();
        if let Some(windows) = windows {
            state.windows = windows;
        }
        let Some(max_age) = state.max_age else {
            return Vec::new();
        };
        state
            .warned
            .retain(|tenant, window| state.windows.get(tenant) == Some(window) && *window > max_age);
        let mut new = Vec::new();
        for (tenant, window) in &state.windows {
            if *window > max_age && !state.warned.contains_key(tenant) {
                let (window, kept) = (format_duration(*window), format_duration(max_age));
                tracing::warn!(component = "nats", %tenant, window, kept, "replay serves less than the tenant's window; raise the history's max_age");
                new.push(tenant.clone());
            }
        }
        for tenant in &new {
            state.warned.insert(tenant.clone(), state.windows[tenant]);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_warned_of_once_and_anew_when_it_or_the_age_changes() {
        let (history, acme) = (History::default(), TenantId::parse("acme").unwrap());
        let warned = std::slice::from_ref(&acme);
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let windows = |count| Some(BTreeMap::from([(acme.clone(), minutes(count))]));
        assert!(
            history.check_windows(windows(20)).is_empty(),
            "the age is not known yet"
        );
        history.note(Duration::ZERO, minutes(15));
        assert_eq!(history.check_windows(None), warned);
        assert!(history.check_windows(windows(20)).is_empty());
        assert_eq!(history.check_windows(windows(30)), warned);
        assert!(
            history.check_windows(windows(15)).is_empty(),
            "exactly what is kept fits"
        );
        assert_eq!(
            history.check_windows(windows(30)),
            warned,
            "it had fitted in between"
        );
        history.note(Duration::ZERO, minutes(10));
        assert_eq!(history.check_windows(None), warned);
    }
}
