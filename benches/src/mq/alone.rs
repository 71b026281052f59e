//! The same publishes with nobody beside them, for a while, so that a profiler can be attached.

use std::time::Duration;

use anyhow::Result;

use super::{Embedded, Flood, topics};

pub(super) async fn run(tenants: usize, tasks: usize, seconds: u64) -> Result<()> {
    let (topics, inside) = (topics(tenants)?, Embedded::with(tenants).await?);
    for _ in 0..seconds {
        let round = Flood::run(&inside.broker, &topics, tasks, Duration::from_secs(1)).await?;
        println!("{:.0} publishes a second", round.rate());
    }
    Ok(())
}
