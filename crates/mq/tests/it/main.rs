//! Tests of the message-queue boundary by its public behaviour.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod embedded;
mod external;
mod memory;
mod page;
