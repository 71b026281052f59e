//! Connections themselves: what ten thousand idle ones hold in memory, and how fast new ones come.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use mio::{Events, Poll};

use super::{CpuMeter, Scenario};
use crate::{
    metric::{Metric, Sample},
    server::Server,
    session::{Link, READ_LEN, Session},
};

/// How long idle connections are held before memory is read: past the reference server's first `PING`,
/// which it sends two seconds after a connection was made.
const SETTLE: Duration = Duration::from_secs(4);

struct Idle {
    connections: usize,
    subscribed: bool,
}

struct Storm {
    workers: usize,
}

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(Idle {
            connections: 10_000,
            subscribed: false,
        }),
        Box::new(Idle {
            connections: 10_000,
            subscribed: true,
        }),
        Box::new(Storm { workers: 8 }),
    ]
}

impl Scenario for Idle {
    fn name(&self) -> String {
        format!(
            "{}/{}",
            if self.subscribed { "idle-sub" } else { "idle" },
            self.connections
        )
    }

    fn about(&self) -> String {
        let each = if self.subscribed {
            "one subscription"
        } else {
            "no subscription"
        };
        format!(
            "{} connections with {each} each, after {} s",
            self.connections,
            SETTLE.as_secs()
        )
    }

    fn fresh_server(&self) -> bool {
        true
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::PssMib, 0.6), (Metric::RssMib, 0.6)]
    }

    fn round(&self, server: &Server, _length: Duration) -> Result<Sample> {
        let before = server.memory();
        let mut poll = Poll::new()?;
        let mut links = Vec::with_capacity(self.connections);
        for number in 0..self.connections {
            let mut session = Session::open(server.address)
                .with_context(|| format!("connection {number}; is the limit of open files high enough?"))?;
            if self.subscribed {
                session.subscribe(&format!("idle.{number}"), "", 0)?;
            }
            links.push(session.into_link(poll.registry(), number)?);
        }
        hold(&mut poll, &mut links, SETTLE)?;
        let after = server.memory();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let growth = before
            .zip(after)
            .map(|(before, after)| after.pss.saturating_sub(before.pss));
        Ok(Sample::default()
            .with(Metric::PssMib, after.map(|memory| mib(memory.pss)))
            .with(Metric::RssMib, after.map(|memory| mib(memory.rss)))
            .with(
                Metric::PssEachKib,
                growth.map(|bytes| bytes as f64 / 1024.0 / self.connections as f64),
            ))
    }
}

/// Keeps the connections alive, pings answered, for `length`.
fn hold(poll: &mut Poll, links: &mut [Link], length: Duration) -> Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; READ_LEN];
    let deadline = Instant::now() + length;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        poll.poll(&mut events, Some(left))?;
        for event in &events {
            let link = &mut links[event.token().0];
            link.ready(event);
            while link.readable {
                link.read(&mut buffer, |_| {})?;
            }
        }
    }
    Ok(())
}

impl Scenario for Storm {
    fn name(&self) -> String {
        "connect-storm".to_owned()
    }

    fn about(&self) -> String {
        format!(
            "{} threads: connect, INFO, CONNECT, PING, PONG, close, again",
            self.workers
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::Rate, 1.0), (Metric::ServerCpuNs, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let made = AtomicU64::new(0);
        let meter = CpuMeter::start(server);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers)
                .map(|_| scope.spawn(|| connect_until(server.address, start + length, &made)))
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a load thread panicked"))?)
        })?;
        let elapsed = start.elapsed();
        let made = made.into_inner();
        let sample = Sample::default().with(Metric::Rate, made as f64 / elapsed.as_secs_f64());
        Ok(meter.finish(sample, made))
    }
}

fn connect_until(address: SocketAddr, deadline: Instant, made: &AtomicU64) -> Result<()> {
    while Instant::now() < deadline {
        drop(Session::open(address)?);
        made.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
