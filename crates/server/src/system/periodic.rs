//! What is published from time to time: the server's counters, and the connections of each account.
//!
//! One task for all of it. The counters come quickly after the start and after a client of the system account arrives,
//! then less and less often.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::events;
use crate::server::Shared;

/// The first wait for counters; each wait is twice as long as the one before.
const STATSZ_FIRST: Duration = Duration::from_millis(250);
/// The longest wait for counters.
const STATSZ_MAX: Duration = Duration::from_secs(10);
/// Time between two events about an account whose connections do not change.
const CONNECTIONS_EVERY: Duration = Duration::from_secs(30);

/// Runs until the server stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let stop = shared.stop.clone();
    let _ = stop.run_until_cancelled(publish(&shared)).await;
}

async fn publish(shared: &Arc<Shared>) {
    let mut wait = STATSZ_FIRST;
    let mut statsz_at = Instant::now() + wait;
    let mut connections_at = Instant::now() + CONNECTIONS_EVERY;
    loop {
        tokio::select! {
            () = shared.system.arrival.notified() => {
                wait = STATSZ_FIRST;
                statsz_at = Instant::now() + wait;
            }
            () = sleep_until(statsz_at) => {
                events::statsz(shared);
                wait = (wait * 2).min(STATSZ_MAX);
                statsz_at = Instant::now() + wait;
            }
            () = sleep_until(connections_at) => {
                connections_at = Instant::now() + CONNECTIONS_EVERY;
                for account in shared.accounts.all() {
                    if account.connections.load(Ordering::Relaxed) > 0 {
                        events::connections(shared, &account);
                    }
                }
            }
        }
    }
}
