//! Lame duck mode: clients are asked to go elsewhere, then sent away one by one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Server, Shared};
use crate::connection::{CloseReason, Connection, Control};
use crate::system::events;

/// Longest time between two closes.
const STEP_MAX: Duration = Duration::from_secs(1);
/// How often the server looks whether the clients have gone by themselves.
const LOOK: Duration = Duration::from_millis(250);

impl Server {
    /// Goes into lame duck mode: new clients are refused, live ones are told and, after the grace period, closed one by
    /// one over the rest of the lame duck duration. Returns once no client is left; [`Server::shutdown`] is what comes
    /// next. A second call waits for the same end.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, no more clients are closed, but new ones stay refused.
    pub async fn lame_duck(&self) {
        let shared = self.shared();
        let first = !shared.lame_duck.swap(true, Ordering::AcqRel);
        shared.stop_accepting.cancel();
        if first {
            tracing::info!("Entering lame duck mode, stop accepting new clients");
            events::lame_duck(shared);
            for connection in shared.registry.live() {
                connection.control(Control::LameDuck);
            }
        }
        shared.send_away().await;
    }
}

impl Shared {
    fn guests(&self) -> Vec<Arc<Connection>> {
        self.registry
            .live()
            .into_iter()
            .filter(|connection| !connection.kind.is_in_process())
            .collect()
    }

    async fn send_away(&self) {
        let options = self.options().clone();
        let grace_ends = Instant::now() + options.lame_duck_grace_period;
        while !self.guests().is_empty() && Instant::now() < grace_ends {
            sleep_until(grace_ends.min(Instant::now() + LOOK)).await;
        }
        let guests = self.guests();
        if guests.is_empty() {
            return;
        }
        tracing::info!("Closing existing clients");
        let rest = options
            .lame_duck_duration
            .saturating_sub(options.lame_duck_grace_period);
        let count = u32::try_from(guests.len()).unwrap_or(u32::MAX);
        let step = (rest / count).min(STEP_MAX);
        for guest in guests {
            guest.close(CloseReason::ServerShutdown);
            if self.guests().is_empty() {
                return;
            }
            sleep(step.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
        }
        while !self.guests().is_empty() {
            sleep(LOOK).await;
        }
    }
}
