//! The rows about copies, on three servers.

use serde_json::json;
use windjet_mq::nats::{Finding, check_topology};

use super::{Row, Wrong, all};
use crate::external::three::Three;
use crate::external::{topology, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_of_copies_is_found_and_goes_once_mended() {
    let three = Three::start(topology()).await;
    let found = check_topology(three.config()).await.unwrap();
    assert_eq!(found, [], "three copies of everything leave nothing to wish for");
    let mut rows = 0;
    for row in all() {
        let Wrong::Copies(stream, copies) = row.wrong else {
            continue;
        };
        rows += 1;
        set_copies(&three, stream, copies);
        await_findings(&three, |found| found.len() == 1 && row.is(&found[0]), &row).await;
        set_copies(&three, stream, 3);
        await_findings(&three, <[Finding]>::is_empty, &row).await;
    }
    assert_eq!(rows, 5);
}

fn set_copies(three: &Three, stream: &str, copies: u64) {
    three.operate(|cluster| {
        cluster
            .eventually("another number of copies", |operator| {
                operator.update_stream(stream, |config| config["num_replicas"] = json!(copies))
            })
            .unwrap();
        cluster.wait_current().unwrap();
    });
}

/// A check that meets a change of leaders cannot always be made.
async fn await_findings(three: &Three, holds: impl Fn(&[Finding]) -> bool, row: &Row) {
    until(&row.name(), || async {
        let found = check_topology(three.config()).await.ok()?;
        holds(&found).then_some(())
    })
    .await;
}
