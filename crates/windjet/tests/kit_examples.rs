//! The client kit's examples, each run as it stands; what an example shows it checks itself.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may panic, and examples print"
)]
#![allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "each example has a main function and a server of its own"
)]

#[path = "../examples/kit/dlq.rs"]
mod dlq;
#[path = "../examples/kit/incident.rs"]
mod incident;
#[path = "../examples/kit/publisher.rs"]
mod publisher;
#[path = "../examples/kit/puller.rs"]
mod puller;
#[path = "../examples/kit/replay.rs"]
mod replay;
#[path = "../examples/kit/request_reply.rs"]
mod request_reply;
#[path = "../examples/kit/worker.rs"]
mod worker;

#[tokio::test]
async fn messages_that_died_are_redriven() {
    dlq::run().await.unwrap();
}

#[tokio::test]
async fn an_incident_is_captured_and_replayed() {
    incident::run().await.unwrap();
}

#[tokio::test]
async fn messages_are_published_in_every_way() {
    publisher::run().await.unwrap();
}

#[tokio::test]
async fn messages_are_pulled_by_hand() {
    puller::run().await.unwrap();
}

#[tokio::test]
async fn the_past_is_replayed() {
    replay::run().await.unwrap();
}

#[tokio::test]
async fn requests_are_answered() {
    request_reply::run().await.unwrap();
}

#[tokio::test]
async fn a_worker_works_and_stops() {
    worker::run().await.unwrap();
}
