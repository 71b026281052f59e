//! Three real servers in a cluster on loopback, with everything an operator made on them.
//!
//! Their routes need ports that all know beforehand: they are chosen by the system, given back, and taken by the servers; if
//! another program was faster, other ones are tried. Clients' ports are chosen by the servers, and kept over restarts.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::operator::Operator;
use super::resource::{Replicas, Resource};
use super::{USER, account, password};
use crate::deadline::{Deadline, pause, until_some};
use crate::server::ServerUnderTest;

/// How many servers there are.
pub const NODES: usize = 3;

/// Elections on a busy machine take their time.
const PATIENCE: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 3;

/// A cluster of [`NODES`] servers. Each can be killed and started again.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<ServerUnderTest>,
    alive: [bool; NODES],
    operator: Operator,
    at: usize,
    streams: Vec<String>,
}

impl Cluster {
    /// Starts the servers with a user of these permissions and applies the manifests, with the replicas that they name.
    ///
    /// # Errors
    /// When the servers do not find each other, a text is not what the chart or the controller understands, or something
    /// is refused.
    pub fn start(manifests: &str, permissions: &str) -> Result<Self> {
        let account = account(permissions)?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match launch(&account) {
                Ok(nodes) => return Self::with(nodes, manifests),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn with(nodes: Vec<ServerUnderTest>, manifests: &str) -> Result<Self> {
        let operator = Operator::connect(&nodes[0])?;
        let mut cluster = Self {
            nodes,
            alive: [true; NODES],
            operator,
            at: 0,
            streams: Vec::new(),
        };
        // A stream of three copies can be made once all three are known.
        cluster.eventually("three servers with JetStream", |operator| {
            operator.delete_stream_if_there("READY")?;
            operator.api(
                "STREAM.CREATE.READY",
                &json!({ "name": "READY", "num_replicas": NODES }),
            )?;
            operator.delete_stream("READY")
        })?;
        for resource in Resource::read(manifests)? {
            resource.apply(&mut cluster.operator, Replicas::AsSaid)?;
        }
        cluster.streams = cluster.operator.api("STREAM.NAMES", &json!({}))?["streams"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        cluster.wait_current()?;
        Ok(cluster)
    }

    /// The addresses for clients, also of servers that do not run now.
    ///
    /// # Errors
    /// None once the cluster has started.
    pub fn urls(&self) -> Result<Vec<String>> {
        self.nodes.iter().map(ServerUnderTest::url).collect()
    }

    /// The file with the restricted user's password.
    #[must_use]
    pub fn password_file(&self) -> PathBuf {
        self.nodes[0].dir().join("password")
    }

    /// The operator, connected to a server that runs.
    ///
    /// # Errors
    /// When none does.
    pub fn operator(&mut self) -> Result<&mut Operator> {
        if !self.alive[self.at] {
            self.reconnect()?;
        }
        Ok(&mut self.operator)
    }

    /// The server that leads a stream, once one does.
    ///
    /// # Errors
    /// When nobody does in time.
    pub fn leader(&mut self, stream: &str) -> Result<usize> {
        let what = format!("a leader of stream {stream}");
        let leader = self.eventually(&what, |operator| {
            let info = operator.stream(stream)?;
            let leader = info["cluster"]["leader"].as_str().unwrap_or_default();
            leader_number(leader).context("no leader")
        })?;
        Ok(leader)
    }

    /// The server that leads a consumer, once one does.
    ///
    /// # Errors
    /// When nobody does in time.
    pub fn consumer_leader(&mut self, stream: &str, consumer: &str) -> Result<usize> {
        let what = format!("a leader of consumer {consumer}");
        self.eventually(&what, |operator| {
            let info = operator.consumer(stream, consumer)?;
            let leader = info["cluster"]["leader"].as_str().unwrap_or_default();
            leader_number(leader).context("no leader")
        })
    }

    /// Kills a server as `kill -9` does.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.alive[node] = false;
        self.nodes[node].kill()
    }

    /// Starts a server again on its store, and waits until every stream has all its copies up to date.
    ///
    /// # Errors
    /// When it does not get there in time.
    pub fn restart(&mut self, node: usize) -> Result<()> {
        self.nodes[node].restart()?;
        self.alive[node] = true;
        self.wait_current()
    }

    /// Waits until every stream has a leader, and its copies are current.
    ///
    /// # Errors
    /// When that is not so in time.
    pub fn wait_current(&mut self) -> Result<()> {
        for stream in self.streams.clone() {
            self.eventually(&format!("all copies of stream {stream}"), |operator| {
                let info = operator.stream(&stream)?;
                let cluster = &info["cluster"];
                let copies = info["config"]["num_replicas"].as_u64().unwrap_or(1);
                let others = cluster["replicas"].as_array().map_or(&[][..], Vec::as_slice);
                let current = |peer: &Value| peer["current"] == true && peer["offline"] != true;
                let led = cluster["leader"].as_str().is_some_and(|name| !name.is_empty());
                if !led || others.len() as u64 + 1 != copies || !others.iter().all(current) {
                    bail!("not yet: {cluster}");
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Tries again until it succeeds, on a server that runs.
    ///
    /// # Errors
    /// The last attempt's, when the time is up.
    pub fn eventually<T>(
        &mut self,
        what: &str,
        mut act: impl FnMut(&mut Operator) -> Result<T>,
    ) -> Result<T> {
        let deadline = Deadline::after(PATIENCE);
        loop {
            let error = match self.operator().and_then(&mut act) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if deadline.left().is_none() {
                return Err(error.context(format!("waited {PATIENCE:?} in vain for {what}")));
            }
            pause();
            // An answer that was too late must not be taken for the next one's, and a connection may have ended.
            self.reconnect()?;
        }
    }

    fn reconnect(&mut self) -> Result<()> {
        let alive = self
            .alive
            .iter()
            .position(|alive| *alive)
            .context("no server runs")?;
        let node = &self.nodes[alive];
        self.operator = until_some("a connection of the operator", PATIENCE, || {
            Operator::connect(node).ok()
        })?;
        self.at = alive;
        Ok(())
    }
}

fn leader_number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

/// Starts the servers.
fn launch(account: &str) -> Result<Vec<ServerUnderTest>> {
    let ports = free_ports()?;
    let routes = ports
        .map(|port| format!("nats-route://127.0.0.1:{port}"))
        .join(", ");
    let mut nodes = Vec::new();
    for (number, port) in ports.iter().enumerate() {
        let config = format!(
            "server_name: node-{number}\n\
             cluster {{ name: testkit, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n\
             {account}"
        );
        let mut node = ServerUnderTest::real()?
            .config(config)
            .file("password", format!("{}\n", password(USER)))
            .prepare()?;
        node.launch()?;
        nodes.push(node);
    }
    for node in &mut nodes {
        node.wait_until_ready()?;
    }
    Ok(nodes)
}

fn free_ports() -> Result<[u16; NODES]> {
    let mut ports = [0; NODES];
    // All held until the last one is known, so that they differ.
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
