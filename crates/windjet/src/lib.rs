//! JetStream as a Rust library: a durable message broker inside your own process, on the NATS wire protocol.

pub use windjet_server::Options;
