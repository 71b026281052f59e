//! What the kit allocates for a message, over what the official client does for the same one.

use bytes::Bytes;
use windjet_client::Message;

use crate::harness::{Backend, World};
use crate::{allocated, alone};

const MESSAGES: usize = 500;
const ROUNDS: usize = 5;

fn since(before: usize) -> usize {
    (allocated().allocations - before) / MESSAGES
}

/// The rounds alternate; the smallest of each is what the calls themselves cost.
async fn a_publish_allocates_little_more(backend: Backend) {
    let world = World::start(backend).await;
    world.stream("S").await;
    let mut config = world.config();
    config.metrics.allow_metrics = false;
    config.connection.allow_metrics = false;
    config.publisher.allow_metrics = false;
    config.publisher.allow_tracing = false;
    let client = world.kit_with(config).await;
    let publisher = client.publisher();
    let payload = Bytes::from_static(b"a payload of some bytes");
    let (mut bare, mut kit) = (usize::MAX, usize::MAX);
    let (mut bare_queued, mut kit_queued) = (usize::MAX, usize::MAX);
    for _ in 0..ROUNDS {
        let before = allocated().allocations;
        for _ in 0..MESSAGES {
            let ack = world.js.publish("s.a", payload.clone()).await.unwrap();
            ack.await.unwrap();
        }
        bare = bare.min(since(before));
        let before = allocated().allocations;
        for _ in 0..MESSAGES {
            publisher.publish_bytes("s.a", payload.clone()).await.unwrap();
        }
        kit = kit.min(since(before));
        let before = allocated().allocations;
        let mut acks = Vec::with_capacity(MESSAGES);
        for _ in 0..MESSAGES {
            acks.push(world.js.publish("s.a", payload.clone()).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
        bare_queued = bare_queued.min(since(before));
        let before = allocated().allocations;
        let mut acks = Vec::with_capacity(MESSAGES);
        for _ in 0..MESSAGES {
            let message = Message::raw(payload.clone());
            acks.push(publisher.publish_async("s.a", message).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
        kit_queued = kit_queued.min(since(before));
    }
    println!(
        "{backend:?}, allocations a message: publish {kit} over {bare}, without waiting {kit_queued} over {bare_queued}"
    );
    assert!(kit <= bare + 2, "{kit} over {bare}");
    assert!(kit_queued <= bare_queued + 2, "{kit_queued} over {bare_queued}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_publish_allocates_little_more_than_the_official_clients() {
    let _alone = alone().await;
    a_publish_allocates_little_more(Backend::Real).await;
    a_publish_allocates_little_more(Backend::Windjet).await;
}

#[tokio::test]
async fn checking_a_subject_allocates_nothing() {
    use windjet_client::names::validate_publish_subject;
    let _alone = alone().await;
    // Another thread of the test runner may allocate meanwhile, but not each time.
    let allocations = (0..100).map(|_| {
        let before = allocated().allocations;
        validate_publish_subject("orders.created.europe.1").unwrap();
        allocated().allocations - before
    });
    assert_eq!(allocations.min(), Some(0));
}
