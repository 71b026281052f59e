//! Test support that is not published: the real nats-server, the parity runner, process harness.
