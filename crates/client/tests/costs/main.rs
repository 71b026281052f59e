//! What the client kit holds and allocates, counted.
//!
//! A binary of its own: its allocator counts for the whole process, so its tests run one after the other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]
#![allow(clippy::print_stdout, reason = "what was counted is worth knowing")]

mod fuzz;
#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../it/harness.rs"]
mod harness;
mod hostile;
mod leak;
mod tax;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};
use tokio::sync::{Mutex, MutexGuard};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

static ALONE: Mutex<()> = Mutex::const_new(());

/// Held while a test counts.
async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

fn allocated() -> Stats {
    ALLOCATOR.stats()
}

/// Bytes that are allocated now.
fn held() -> usize {
    let stats = allocated();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}
