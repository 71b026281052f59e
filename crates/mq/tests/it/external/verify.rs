//! The check of the topology, on a real server.

use std::time::Duration;

use windjet_mq::nats::{ExternalNats, Finding, Severity, Topology, TopologyError, check_topology};
use windjet_mq::{ErrorKind, Publisher as _};

use super::{Cluster, topology};

async fn findings(cluster: &Cluster) -> Vec<Finding> {
    check_topology(cluster.config()).await.unwrap()
}

fn required(findings: &[Finding]) -> Vec<String> {
    let required = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Required);
    required.map(ToString::to_string).collect()
}

fn has(findings: &[Finding], severity: Severity, object: &str, field: &str) -> bool {
    let is = |finding: &&Finding| {
        finding.severity == severity && finding.object == object && finding.field == field
    };
    findings.iter().any(|finding| is(&finding))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_generated_topology_passes_and_the_probe_touches_nothing() {
    let cluster = Cluster::start(topology()).await;
    let before = cluster.operate(|operator| operator.consumer("WH_INGEST_0", "wh-ingest-0").unwrap());
    let found = findings(&cluster).await;
    assert_eq!(required(&found), Vec::<String>::new());
    // One server is all there is, so replicas are all that is left to wish for.
    assert!(
        found.iter().all(|finding| finding.field == "num_replicas"),
        "{found:#?}"
    );
    let after = cluster.operate(|operator| operator.consumer("WH_INGEST_0", "wh-ingest-0").unwrap());
    for field in [
        "num_pending",
        "num_ack_pending",
        "num_waiting",
        "delivered",
        "priority_groups",
    ] {
        assert_eq!(before[field], after[field], "{field}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_for_fewer_shards_are_a_finding_for_each_of_the_others() {
    let granted = Topology {
        shards: 1,
        ..topology()
    };
    let cluster = Cluster::start_with(topology(), granted).await;
    let found = findings(&cluster).await;
    let denied = found
        .iter()
        .filter(|finding| finding.field == "permissions")
        .count();
    assert_eq!(denied, 2, "{found:#?}");
    for partition in 0..2 {
        let object = format!("consumer WH_INGEST_{partition}/wh-ingest-1");
        assert!(has(&found, Severity::Required, &object, "permissions"));
    }
    let problem = &found
        .iter()
        .find(|finding| finding.field == "permissions")
        .unwrap()
        .problem;
    assert!(
        problem.contains("windjet nats permissions --shards 2"),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_the_dead_letter_stream_lists_what_is_missing() {
    let cluster = Cluster::start(topology()).await;
    cluster.operate(|operator| {
        operator.delete_stream("WH_DLQ").unwrap();
        operator.delete_consumer("WH_INGEST_1", "wh-ingest-1").unwrap();
    });
    let mut config = cluster.config();
    config.topology_wait = Duration::from_secs(1);
    let error = ExternalNats::connect(config).await.unwrap_err();
    assert!(error.is(ErrorKind::Topology), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("dead-letter stream: subjects: no stream holds wh.dlq.x"),
        "{text}"
    );
    assert!(
        text.contains("consumer WH_INGEST_1/wh-ingest-1: durable_name: does not exist"),
        "{text}"
    );
    assert!(error.find::<TopologyError>().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_count_of_partitions_is_found_by_the_metadata() {
    let mut cluster = Cluster::start(topology()).await;
    cluster.topology.partitions = 1;
    let found = findings(&cluster).await;
    assert!(
        has(&found, Severity::Required, "stream WH_INGEST_0", "metadata"),
        "{found:#?}"
    );
    for shard in 0..2 {
        let object = format!("consumer WH_INGEST_1/wh-ingest-{shard}");
        assert!(
            has(&found, Severity::Recommended, &object, "durable_name"),
            "{found:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_not_there_is_unavailable_within_the_wait() {
    let cluster = Cluster::start(topology()).await;
    let mut config = cluster.config();
    config.topology_wait = Duration::from_secs(1);
    cluster.deployment().server.kill().unwrap();
    let error = ExternalNats::connect(config).await.unwrap_err();
    assert!(
        error.is(ErrorKind::Unavailable) && !error.is(ErrorKind::Topology),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_stream_is_gone_is_not_ready() {
    let cluster = Cluster::start(topology()).await;
    let broker = cluster.broker().await;
    broker.ready().unwrap();
    assert_eq!(broker.duplicate_window().await.unwrap(), Duration::from_secs(120));
    broker.close().await.unwrap();
}
