//! One tenant of many, against the only one.

use anyhow::{Context as _, Result};

use super::{Embedded, Flood, Pairs, Rounds, header, topics};

pub(super) async fn run(tenants: usize, rounds: Rounds) -> Result<()> {
    eprintln!("giving {tenants} tenants a budget");
    let (one, many) = (Embedded::with(1).await?, Embedded::with(tenants).await?);
    let topic = topics(1)?;
    println!("{}", header(rounds, "one tenant", &format!("{tenants} tenants")));
    for tasks in [1, 64] {
        let round =
            async |embedded: &Embedded| Flood::run(&embedded.broker, &topic, tasks, rounds.length()).await;
        round(&one).await.context("warm-up")?;
        round(&many).await.context("warm-up")?;
        let (mut cost, mut late) = (Pairs::default(), Pairs::default());
        for number in 0..rounds.rounds {
            let (mut base, mut other);
            if number % 2 == 0 {
                base = round(&one).await?;
                other = round(&many).await?;
            } else {
                other = round(&many).await?;
                base = round(&one).await?;
            }
            cost.add(1e6 / base.rate(), 1e6 / other.rate());
            let p99 = |flood: &mut Flood| flood.quantile(0.99).context("no latencies");
            late.add(p99(&mut base)?, p99(&mut other)?);
        }
        let goal = "≤ 1.5";
        println!(
            "{}",
            cost.row(&format!("a publish, {tasks} at a time; µs"), goal)?
        );
        println!(
            "{}",
            late.row(&format!("p99 of a publish, {tasks} at a time; µs"), "")?
        );
    }
    Ok(())
}
