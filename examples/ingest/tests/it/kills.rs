//! The process killed anywhere, again and again, under load.
//!
//! `INGEST_KILLS` says how often (8), `INGEST_SEED` repeats a run's choices.

use std::time::{Duration, Instant};

use windjet_testkit::deadline::until;

use super::client::{PATIENCE, folder, ready, spawn};
use super::load::{Dice, Load, number};

#[test]
fn no_kill_loses_or_doubles_an_accepted_row() {
    let (mut dice, data) = (Dice::new(), folder());
    let load = Load::start(&[("acme", "clicks"), ("acme", "clicks"), ("globex", "clicks")]);
    println!("INGEST_SEED: {dice:?}");
    let kills = number("INGEST_KILLS").unwrap_or(8);
    for _ in 0..kills {
        let mut process = spawn(data.path(), &[]);
        if dice.below(4) == 0 {
            // While it starts.
            let moment = Instant::now() + Duration::from_millis(dice.below(150));
            until("the moment of the kill", PATIENCE, || Instant::now() >= moment).unwrap();
        } else {
            load.at(&[ready(&mut process)]);
            let rows = load.accepted() + dice.below(300);
            until("rows to be accepted", PATIENCE, || load.accepted() >= rows).unwrap();
        }
        process.kill().unwrap();
        load.at(&[]);
    }
    let mut process = spawn(data.path(), &[]);
    let addr = ready(&mut process);
    load.at(&[addr]);
    let accepted = load.finish(addr);
    println!("{kills} kills, {accepted} rows accepted, each written once and in order");
    assert!(accepted > kills, "the publishers did not get through");
}
