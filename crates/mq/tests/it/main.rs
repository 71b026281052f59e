//! Tests of the message-queue boundary by its public behaviour.

mod memory;
