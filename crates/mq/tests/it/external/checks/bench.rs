//! A deployment in which single things are made wrong, and put right again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windjet_mq::nats::{ExternalConfig, Topology, write_permissions};
use windjet_testkit::natstest::Operator;
use windjet_testkit::{Relay, Way};

use crate::external::Cluster;

/// The deployment, what it was like at first, and what is wrong now.
pub(super) struct Bench {
    cluster: Cluster,
    relay: Relay,
    config: ExternalConfig,
    /// What is configured now; a process may be configured otherwise than the cluster.
    pub(super) topology: Topology,
    streams: BTreeMap<String, Value>,
    durables: Vec<(String, Value)>,
    wrong: BTreeSet<String>,
    /// Streams that are not the deployment's.
    foreign: Vec<&'static str>,
    denied: bool,
}

impl Bench {
    pub(super) async fn start(topology: Topology) -> Self {
        let cluster = Cluster::start(topology.clone()).await;
        let (relay, config) = cluster.relay();
        let mut streams = BTreeMap::new();
        let mut durables = Vec::new();
        cluster.operate(|operator| {
            let names = operator.api("STREAM.NAMES", &json!({})).unwrap();
            for name in names["streams"].as_array().unwrap() {
                let name = name.as_str().unwrap();
                streams.insert(name.to_owned(), operator.stream(name).unwrap()["config"].take());
            }
            for (stream, durable) in cluster_units(&topology) {
                let info = operator.consumer(&stream, &durable).unwrap()["config"].take();
                durables.push((stream, info));
            }
        });
        Self {
            cluster,
            relay,
            config,
            topology,
            streams,
            durables,
            wrong: BTreeSet::new(),
            foreign: Vec::new(),
            denied: false,
        }
    }

    /// How a process reaches the cluster, through the relay.
    pub(super) fn config(&self) -> ExternalConfig {
        ExternalConfig {
            topology: self.topology.clone(),
            ..self.config.clone()
        }
    }

    /// Changes a stream's configuration, with a new stream if it has to be.
    pub(super) fn stream(&mut self, name: &'static str, change: fn(&mut Value)) {
        let mut config = self.streams[name].clone();
        change(&mut config);
        self.configure(name, &config);
        self.wrong.insert(name.to_owned());
    }

    pub(super) fn without_stream(&mut self, name: &'static str) {
        self.cluster
            .operate(|operator| operator.delete_stream(name).unwrap());
        self.wrong.insert(name.to_owned());
    }

    /// Adds a stream that the deployment does not have, with some rows.
    pub(super) fn foreign(&mut self, name: &'static str, config: &Value, rows: &[&str]) {
        self.cluster.operate(|operator| {
            operator.api(&format!("STREAM.CREATE.{name}"), config).unwrap();
            store(operator, rows);
        });
        self.foreign.push(name);
    }

    /// Makes the first durable anew, with another configuration.
    pub(super) fn durable(&mut self, change: fn(&mut Value)) {
        let mut config = self.durables[0].1.clone();
        change(&mut config);
        self.without_durable();
        self.cluster
            .operate(|operator| operator.create_consumer("WH_INGEST_0", &config).unwrap());
    }

    pub(super) fn without_durable(&mut self) {
        self.cluster
            .operate(|operator| operator.delete_consumer("WH_INGEST_0", "wh-ingest-0").unwrap());
        self.wrong.insert("WH_INGEST_0".to_owned());
    }

    /// Adds a durable to the first partition, with some rows.
    pub(super) fn another_durable(&mut self, name: &str, filter: &str, rows: &[&str]) {
        let mut config = self.durables[0].1.clone();
        config["durable_name"] = json!(name);
        config["name"] = json!(name);
        config["filter_subject"] = json!(filter);
        self.cluster.operate(|operator| {
            operator.create_consumer("WH_INGEST_0", &config).unwrap();
            store(operator, rows);
        });
        self.wrong.insert("WH_INGEST_0".to_owned());
    }

    /// Has a text replaced in what goes one way; both are as long.
    pub(super) fn lie(&mut self, way: Way, text: &str, with: &str) {
        self.relay.replace(way, text, with).unwrap();
    }

    /// Takes from the user what the shards behind the first one need.
    pub(super) fn deny(&mut self) {
        let fewer = Topology {
            shards: 1,
            ..self.topology.clone()
        };
        self.permit(&fewer);
        self.denied = true;
    }

    fn permit(&self, topology: &Topology) {
        let permissions = write_permissions(topology, None).unwrap();
        self.cluster.deployment().permit(&permissions).unwrap();
    }

    /// Puts everything right again.
    pub(super) fn mend(&mut self) {
        self.relay.keep();
        self.topology = self.config.topology.clone();
        if std::mem::take(&mut self.denied) {
            self.permit(&self.topology);
        }
        for name in std::mem::take(&mut self.foreign) {
            self.without_stream(name);
            self.wrong.remove(name);
        }
        for name in std::mem::take(&mut self.wrong) {
            // With a new stream, so that nothing of the mistake is left.
            self.make(&name, &self.streams[&name].clone());
        }
    }

    /// Changes a stream as it is, or makes it anew where the server does not allow that.
    fn configure(&self, name: &str, config: &Value) {
        let update = format!("STREAM.UPDATE.{name}");
        let updated = self
            .cluster
            .operate(|operator| operator.api(&update, config).is_ok());
        if !updated {
            self.make(name, config);
        }
    }

    fn make(&self, name: &str, config: &Value) {
        self.cluster.operate(|operator| {
            // It may be missing; anything else would show when it is made.
            let _ = operator.delete_stream(name);
            operator.api(&format!("STREAM.CREATE.{name}"), config).unwrap();
            for (_, durable) in self.durables.iter().filter(|(stream, _)| stream == name) {
                operator.create_consumer(name, durable).unwrap();
            }
        });
    }
}

fn cluster_units(topology: &Topology) -> Vec<(String, String)> {
    let of = |partition| {
        let stream = topology.partition_stream(partition);
        (0..topology.shards).map(move |shard| (stream.clone(), topology.shard_durable(shard)))
    };
    (0..topology.partitions).flat_map(of).collect()
}

/// Stores a row under each of these subjects.
fn store(operator: &mut Operator, subjects: &[&str]) {
    for subject in subjects {
        let answer = operator.request(subject, "row").unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
    }
}
