//! Leases in the operator's bucket, as the restricted user.

use std::time::Duration;

use tokio::time::Instant;
use windjet_mq::coord::Coordinator as _;
use windjet_mq::nats::{LeaseTimings, NatsLeases};
use windjet_mq::{Ctx, ErrorKind, Publisher as _};

use super::{Cluster, PATIENCE, topology, until};

/// Short, so that a takeover is soon.
const SHORT: LeaseTimings = LeaseTimings {
    duration: Duration::from_millis(800),
    renew_deadline: Duration::from_millis(600),
    renew_every: Duration::from_millis(100),
};

async fn two(cluster: &Cluster, timings: LeaseTimings) -> (NatsLeases, NatsLeases) {
    let (a, b) = (cluster.broker().await, cluster.broker().await);
    (
        a.leases("wh_coord", "a", timings).await.unwrap(),
        b.leases("wh_coord", "b", timings).await.unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holds_at_a_time_and_a_resignation_lets_the_other_in_with_a_greater_token() {
    let cluster = Cluster::start(topology()).await;
    let (a, b) = two(&cluster, LeaseTimings::default()).await;
    let ctx = Ctx::new();
    let term = a.try_acquire(&ctx, "sweeper").await.unwrap();
    ctx.cancel();
    let ctx = Ctx::new();
    for candidate in [&a, &b] {
        let refused = candidate.try_acquire(&ctx, "sweeper").await.err().unwrap();
        assert!(refused.is(ErrorKind::LeaseHeld), "{refused:?}");
        assert!(candidate.held(&ctx, "sweeper").await.unwrap());
    }
    assert!(!b.held(&ctx, "other").await.unwrap());
    b.try_acquire(&ctx, "other").await.unwrap();
    term.resign(&ctx).await.unwrap();
    term.done().await;
    assert!(term.error().is_none());
    term.resign(&ctx).await.unwrap();
    let next = b.try_acquire(&ctx, "sweeper").await.unwrap();
    assert!(next.token() > term.token());
    b.close(&ctx).await.unwrap();
    next.done().await;
    assert!(
        b.try_acquire(&ctx, "sweeper")
            .await
            .err()
            .unwrap()
            .is(ErrorKind::Closed)
    );
    let again = a.try_acquire(&ctx, "sweeper").await.unwrap();
    assert!(again.token() > next.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewing_holder_outlives_many_durations_of_campaigning() {
    let cluster = Cluster::start(topology()).await;
    let (a, b) = two(&cluster, SHORT).await;
    let ctx = Ctx::new();
    let term = a.try_acquire(&ctx, "sweeper").await.unwrap();
    let token = term.token();
    let end = Instant::now() + SHORT.duration * 4;
    while Instant::now() < end {
        let refused = b.try_acquire(&ctx, "sweeper").await.err().unwrap();
        assert!(refused.is(ErrorKind::LeaseHeld), "{refused:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(term.error().is_none() && term.token() == token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_operator_overwrote_is_lost_and_taken_over_after_its_duration() {
    let cluster = Cluster::start(topology()).await;
    let (a, b) = two(&cluster, SHORT).await;
    let ctx = Ctx::new();
    let term = a.try_acquire(&ctx, "sweeper").await.unwrap();
    let foreign = r#"{"holder":"x","duration_ms":800,"session":"nobody"}"#;
    cluster.operate(|operator| operator.request("$KV.wh_coord.lease.sweeper", foreign).unwrap());
    tokio::time::timeout(PATIENCE, term.done()).await.unwrap();
    assert!(term.error().unwrap().is(ErrorKind::LeaseLost));
    let begun = Instant::now();
    let next = until("the takeover", || async {
        b.try_acquire(&ctx, "sweeper").await.ok()
    })
    .await;
    assert!(
        begun.elapsed() >= SHORT.duration,
        "taken over after {:?}",
        begun.elapsed()
    );
    assert!(next.token() > term.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holders_lease_is_taken_over_and_a_missing_bucket_is_named() {
    let cluster = Cluster::start(topology()).await;
    let (dead, alive) = (cluster.broker().await, cluster.broker().await);
    let ctx = Ctx::new();
    let leases = dead.leases("wh_coord", "dead", SHORT).await.unwrap();
    let term = leases.try_acquire(&ctx, "sweeper").await.unwrap();
    let candidate = alive.leases("wh_coord", "alive", SHORT).await.unwrap();
    // A close of the broker does not resign: to the others it is as dead as after a crash.
    dead.close().await.unwrap();
    term.done().await;
    assert!(term.error().unwrap().is(ErrorKind::LeaseLost));
    let next = until("the takeover", || async {
        candidate.try_acquire(&ctx, "sweeper").await.ok()
    })
    .await;
    assert!(next.token() > term.token());
    let missing = alive.leases("no_bucket", "alive", SHORT).await.err().unwrap();
    assert!(
        missing.is(ErrorKind::Topology) && missing.to_string().contains("no_bucket"),
        "{missing:?}"
    );
    let bad = LeaseTimings {
        renew_every: SHORT.duration,
        ..SHORT
    };
    assert!(
        alive
            .leases("wh_coord", "alive", bad)
            .await
            .err()
            .unwrap()
            .is(ErrorKind::Invalid)
    );
}
