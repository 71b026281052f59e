//! A lot of data: how long a restart takes, and what a million subjects hold in memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mio::Poll;
use serde_json::{Value, json};

use super::publish::{PIPELINED, Publisher, Until, connect, publish};
use super::{DEFAULT, PAYLOAD, check_messages, empty_stream, messages};
use crate::{
    metric::{Metric, Sample},
    peer::{Admin, Peer},
    scenario::Scenario,
    server::Server,
    session::publishes,
    wait::until,
};

const MILLION: u64 = 1_000_000;
/// Messages that are published before each restart.
const FRESH: u64 = 10_000;
/// How long a restart may take.
const RESTART_LIMIT: Duration = Duration::from_secs(120);
/// How long a server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(5);

struct Restart;
struct Subjects;

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(Restart), Box::new(Subjects)]
}

impl Scenario for Restart {
    fn name(&self) -> String {
        "js/restart".to_owned()
    }

    fn about(&self) -> String {
        format!(
            "kill -9 after {FRESH} more acknowledged messages, then from the start of the process to the answer that all \
             {MILLION} and more messages of {PAYLOAD} B are there"
        )
    }

    fn config(&self) -> Option<&str> {
        Some(DEFAULT)
    }

    fn rounds_at_most(&self) -> usize {
        5
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::RestartMs, 0.34)]
    }

    fn round(&self, server: &Server, _length: Duration) -> Result<Sample> {
        let mut admin = Admin::open(server.address)?;
        let mut stored = messages(&mut admin)?.unwrap_or(0);
        if stored < MILLION {
            empty_stream(&mut admin, &Value::Null)?;
            stored = fill(server, MILLION)?;
        }
        stored += fill(server, FRESH)?;
        drop(admin);
        server.kill()?;
        let start = Instant::now();
        server.launch()?;
        let found = until(RESTART_LIMIT, || {
            messages(&mut Admin::open(server.address).ok()?)
                .ok()?
                .filter(|found| *found == stored)
        });
        found.context("the messages did not come back")?;
        Ok(Sample::default().with(Metric::RestartMs, start.elapsed().as_secs_f64() * 1e3))
    }
}

fn fill(server: &Server, count: u64) -> Result<u64> {
    let mut poll = Poll::new()?;
    let mut publishers = connect(server, &poll, 1, PIPELINED)?;
    publish(&mut poll, &mut publishers, Until::Count(count)).context("filling the stream")
}

impl Scenario for Subjects {
    fn name(&self) -> String {
        "js/million-subjects".to_owned()
    }

    fn about(&self) -> String {
        format!(
            "memory with {MILLION} messages of 16 B on a subject each, {} s after the last",
            SETTLE.as_secs()
        )
    }

    fn config(&self) -> Option<&str> {
        Some(DEFAULT)
    }

    fn fresh_server(&self) -> bool {
        true
    }

    fn rounds_at_most(&self) -> usize {
        3
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::PssMib, 0.6)]
    }

    fn round(&self, server: &Server, _length: Duration) -> Result<Sample> {
        empty_stream(
            &mut Admin::open(server.address)?,
            &json!({"max_msgs_per_subject": 1}),
        )?;
        let mut poll = Poll::new()?;
        let peer = Peer::open(server.address, "_INBOX.m", &poll, 0)?;
        let line = |number: u64| {
            publishes(
                &format!("bench.item.{number:07}.state"),
                "_INBOX.m",
                &[b'x'; 16],
                1,
            )
        };
        let one = line(0).len();
        let mut all = Vec::with_capacity(one * MILLION as usize);
        for number in 0..MILLION {
            all.extend_from_slice(&line(number));
        }
        let mut publisher = [Publisher::new(peer, all, one, PIPELINED)];
        let count = publish(&mut poll, &mut publisher, Until::Count(MILLION))?;
        ensure!(count == MILLION, "{count} messages were acknowledged");
        check_messages(server, MILLION)?;
        drop(publisher);
        until(SETTLE, || None::<()>);
        let memory = server.memory();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Ok(Sample::default()
            .with(Metric::PssMib, memory.map(|memory| mib(memory.pss)))
            .with(Metric::RssMib, memory.map(|memory| mib(memory.rss))))
    }
}
