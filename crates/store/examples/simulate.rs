//! The long simulation: seeds upward from a first one, until enough distinct crash points were passed.
//!
//! `cargo run --release -p windjet-store --features test-util --example simulate -- [POINTS] [FIRST_SEED]`
//!
//! Prints the seeds it ran, the distinct crash points (action, disk operation, file, what survived), and how often each
//! kind came. A failure names its seed and ends with status 1.

#![allow(clippy::print_stdout, reason = "a program that reports")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use windjet_store::sim::{Plan, run};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap_or(0));
    let points = args.next().unwrap_or(100_000);
    let first = args.next().unwrap_or(1);
    let (mut distinct, mut kinds, mut ops) = (0, BTreeMap::<String, u64>::new(), 0);
    let begun = Instant::now();
    let mut seed = first;
    while distinct < points {
        match run(&Plan::new(seed)) {
            Ok(outcome) => {
                distinct += outcome.distinct.len() as u64;
                ops += outcome.ops;
                for (kind, n) in outcome.points {
                    *kinds.entry(kind).or_default() += n;
                }
            }
            Err(e) => {
                println!("seed {seed} failed: {e}");
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
    }
    for (kind, n) in &kinds {
        println!("{n:>8} {kind}");
    }
    println!(
        "seeds {first}..{seed}: {distinct} distinct crash points of {} kinds, {ops} operations, {:?}",
        kinds.len(),
        begun.elapsed()
    );
    ExitCode::SUCCESS
}
