//! Power cuts, kills and recovery, by seed. The long run is `scripts/long`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::time::{Duration, Instant};

use windjet_store::Fault;
use windjet_store::sim::{Plan, run};

/// Seeds that failed once; each is a bug that was fixed.
const REGRESSIONS: [u64; 8] = [2, 52, 58, 182, 268, 6775, 7617, 20302];

#[test]
fn no_acknowledged_operation_is_lost_and_nothing_appears_that_was_not_issued() {
    for seed in REGRESSIONS {
        run(&Plan::new(seed)).unwrap();
    }
    let start = Instant::now();
    let first: u64 = std::env::var("WINDJET_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let mut seed = first;
    let mut crashes = 0;
    while start.elapsed() < Duration::from_secs(30) {
        let outcome =
            run(&Plan::new(seed)).unwrap_or_else(|e| panic!("{e}\nrepeat with WINDJET_SEED={seed}"));
        crashes += outcome.distinct.len();
        seed += 1;
    }
    println!("seeds {first}..{seed}, {crashes} distinct crash points");
    assert!(crashes > 500, "too few crash points to mean anything: {crashes}");
}

/// Runs seeds with a planted fault until one run finds it.
fn is_found(fault: Fault) -> bool {
    let start = Instant::now();
    let mut seed = 1;
    while start.elapsed() < Duration::from_secs(60) {
        let mut plan = Plan::new(seed);
        plan.options.fault = Some(fault);
        if let Err(e) = run(&plan) {
            println!("{fault:?} found after {:?} at seed {seed}: {e}", start.elapsed());
            return true;
        }
        seed += 1;
    }
    false
}

#[test]
fn every_planted_fault_is_found_within_a_minute() {
    let missed: Vec<Fault> = Fault::ALL.into_iter().filter(|f| !is_found(*f)).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
