//! Publishers that go on through every crash, and the count at the end.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::client::{ask, rows, wait};

/// Tenant and table.
pub(crate) type Table = (&'static str, &'static str);

/// What the publishers and the test share.
#[derive(Default)]
struct World {
    /// Where the service is now, if it is somewhere.
    addrs: Mutex<Vec<SocketAddr>>,
    moved: Condvar,
    accepted: AtomicU64,
    stop: AtomicBool,
}

/// Publishers under way. Each sends its numbers one after the other, and a number until it is accepted.
pub(crate) struct Load {
    world: Arc<World>,
    tables: Vec<Table>,
    publishers: Vec<JoinHandle<u64>>,
}

impl Load {
    /// One publisher for each of the tables; several may share one.
    pub(crate) fn start(tables: &[Table]) -> Self {
        let world = Arc::<World>::default();
        let publishers = tables.iter().copied().enumerate().map(|(publisher, table)| {
            let world = Arc::clone(&world);
            std::thread::spawn(move || world.publish(publisher, table))
        });
        Self {
            publishers: publishers.collect(),
            tables: tables.to_vec(),
            world,
        }
    }

    /// Says where the service is.
    pub(crate) fn at(&self, addrs: &[SocketAddr]) {
        *self.world.addrs.lock().unwrap() = addrs.to_vec();
        self.world.moved.notify_all();
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.world.accepted.load(Ordering::Relaxed)
    }

    /// Ends the publishers and checks at a service that every accepted row is written, once and in order.
    pub(crate) fn finish(self, addr: SocketAddr) -> u64 {
        self.world.stop.store(true, Ordering::Relaxed);
        let sent: Vec<u64> = self
            .publishers
            .into_iter()
            .map(|publisher| publisher.join().unwrap())
            .collect();
        let accepted = sent.iter().sum();
        let tables: BTreeSet<Table> = self.tables.iter().copied().collect();
        let tenants: BTreeSet<&str> = tables.iter().map(|(tenant, _)| *tenant).collect();
        let count = || tenants.iter().map(|tenant| count(addr, tenant)).sum::<u64>();
        wait("every accepted row", || count() >= accepted);
        let mut written: Vec<Vec<u64>> = vec![Vec::new(); sent.len()];
        for (tenant, table) in tables {
            for (key, row) in rows(addr, tenant, table) {
                let publisher = usize::try_from(row["p"].as_u64().unwrap()).unwrap();
                let number = row["n"].as_u64().unwrap();
                assert_eq!(key, format!("{publisher}-{number}"));
                assert_eq!(self.tables[publisher], (tenant, table));
                written[publisher].push(number);
            }
        }
        for (publisher, (written, sent)) in written.iter().zip(&sent).enumerate() {
            let first = written
                .iter()
                .zip(0..)
                .find(|(written, number)| **written != *number);
            assert!(first.is_none(), "publisher {publisher}: found {first:?}");
            assert_eq!(written.len() as u64, *sent, "publisher {publisher}");
        }
        accepted
    }
}

/// Rows that a tenant has.
pub(crate) fn count(addr: SocketAddr, tenant: &str) -> u64 {
    let answer = ask(addr, "GET", &format!("/v1/tenants/{tenant}"), &[], b"")
        .unwrap()
        .json();
    assert_eq!(answer["dead_letters"], 0, "{answer}");
    answer["rows"].as_u64().unwrap()
}

impl World {
    /// Sends until stopped; how many were accepted.
    fn publish(&self, publisher: usize, (tenant, table): Table) -> u64 {
        let path = format!("/v1/tenants/{tenant}/tables/{table}/rows");
        let (mut number, mut turn) = (0, publisher);
        while !self.stop.load(Ordering::Relaxed) {
            let Some(addr) = self.somewhere(turn) else {
                continue;
            };
            let key = format!("{publisher}-{number}");
            let row = json!({ "p": publisher, "n": number }).to_string();
            match ask(addr, "POST", &path, &[("Idempotency-Key", &key)], row.as_bytes()) {
                Ok(answer) if [200, 202].contains(&answer.status) => {
                    number += 1;
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                }
                Ok(answer) => {
                    assert!(answer.status >= 500, "{answer:?}: {}", answer.error());
                    turn += 1;
                }
                Err(_) => {
                    turn += 1;
                    self.lost();
                }
            }
        }
        number
    }

    fn somewhere(&self, turn: usize) -> Option<SocketAddr> {
        let mut addrs = self.addrs.lock().unwrap();
        if addrs.is_empty() {
            addrs = self
                .moved
                .wait_timeout(addrs, Duration::from_millis(100))
                .unwrap()
                .0;
        }
        (!addrs.is_empty()).then(|| addrs[turn % addrs.len()])
    }

    /// Waits for the service to move, or for a moment if it did already.
    fn lost(&self) {
        let addrs = self.addrs.lock().unwrap();
        drop(self.moved.wait_timeout(addrs, Duration::from_millis(20)).unwrap());
    }
}

/// Numbers that a seed decides.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// From the environment, or from the clock: print it.
    pub(crate) fn new() -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        Self(number("INGEST_SEED").unwrap_or_else(clock))
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A number in the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}
