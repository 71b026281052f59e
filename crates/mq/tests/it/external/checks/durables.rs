//! What can be wrong with durables.

use serde_json::{Value, json};

use super::bench::Bench;
use super::{Row, recommended, required};

const DURABLE: &str = "shard's durable";
const FIRST: &str = "consumer WH_INGEST_0/wh-ingest-0";

pub(super) fn configured() -> Vec<Row> {
    vec![
        required(
            DURABLE,
            "durable_name",
            "it does not exist",
            FIRST,
            "does not exist",
            |bench| {
                bench.without_durable();
            },
        ),
        required(
            DURABLE,
            "deliver_subject",
            "it is a push consumer",
            FIRST,
            "push consumer",
            |bench| {
                bench.durable(|config| {
                    unpinned(config);
                    config["deliver_subject"] = json!("somewhere");
                    config["max_waiting"] = json!(0);
                });
            },
        ),
        required(
            DURABLE,
            "ack_policy",
            "not explicit",
            FIRST,
            "use explicit",
            |bench| {
                // A work queue refuses such a consumer, so it is none.
                bench.stream("WH_INGEST_0", |config| config["retention"] = json!("limits"));
                bench.durable(|config| {
                    unpinned(config);
                    config["ack_policy"] = json!("all");
                });
            },
        ),
        required(
            DURABLE,
            "ack_wait",
            "less than 60 s",
            FIRST,
            "30s; 1m or more",
            |bench| {
                bench.durable(|config| config["ack_wait"] = seconds(30));
            },
        ),
        required(
            DURABLE,
            "max_deliver",
            "not -1",
            FIRST,
            "5, and rows are given up",
            |bench| {
                bench.durable(|config| config["max_deliver"] = json!(5));
            },
        ),
        required(
            DURABLE,
            "max_ack_pending",
            "no limit",
            FIRST,
            "not set",
            |bench| {
                bench.durable(|config| config["max_ack_pending"] = json!(-1));
            },
        ),
        recommended(
            DURABLE,
            "max_ack_pending",
            "less than 10,000",
            FIRST,
            "100; 10000",
            |bench| {
                bench.durable(|config| config["max_ack_pending"] = json!(100));
            },
        ),
        required(DURABLE, "deliver_policy", "not all", FIRST, "use all", |bench| {
            bench.stream("WH_INGEST_0", |config| config["retention"] = json!("limits"));
            bench.durable(|config| config["deliver_policy"] = json!("new"));
        }),
        required(
            DURABLE,
            "filter_subject",
            "not its shard alone",
            FIRST,
            "must be wh.ingest.0.0.> alone",
            |bench| {
                bench.durable(|config| config["filter_subject"] = json!("wh.ingest.0.0.acme.>"));
            },
        ),
        required(DURABLE, "headers_only", "set", FIRST, "without bodies", |bench| {
            bench.durable(|config| config["headers_only"] = json!(true));
        }),
        required(
            DURABLE,
            "replay_policy",
            "not instant",
            FIRST,
            "use instant",
            |bench| {
                bench.durable(|config| config["replay_policy"] = json!("original"));
            },
        ),
        required(
            DURABLE,
            "inactive_threshold",
            "set",
            FIRST,
            "idle durable vanishes",
            |bench| {
                bench.durable(|config| config["inactive_threshold"] = seconds(3600));
            },
        ),
        required(
            DURABLE,
            "max_expires",
            "less than 5 s",
            FIRST,
            "4s; 5s or more",
            |bench| {
                bench.durable(|config| config["max_expires"] = seconds(4));
            },
        ),
        required(
            DURABLE,
            "max_request_batch",
            "less than 500",
            FIRST,
            "100; 500 or more",
            |bench| {
                bench.durable(|config| config["max_batch"] = json!(100));
            },
        ),
        required(
            DURABLE,
            "priority_policy",
            "not pinned_client",
            FIRST,
            "none; use pinned_client",
            |bench| {
                bench.durable(unpinned);
            },
        ),
        required(
            DURABLE,
            "priority_policy",
            "another policy",
            FIRST,
            "overflow; use pinned_client",
            |bench| {
                bench.durable(|config| {
                    config["priority_policy"] = json!("overflow");
                    config["priority_timeout"] = json!(0);
                });
            },
        ),
        required(
            DURABLE,
            "priority_groups",
            "not `wavehouse` alone",
            FIRST,
            "must be wavehouse alone",
            |bench| {
                bench.durable(|config| config["priority_groups"] = json!(["other"]));
            },
        ),
        required(
            DURABLE,
            "priority_timeout",
            "less than 10 s",
            FIRST,
            "5s; 10s or more",
            |bench| {
                bench.durable(|config| config["priority_timeout"] = seconds(5));
            },
        ),
        recommended(
            DURABLE,
            "priority_timeout",
            "15 s or more",
            FIRST,
            "20s; below 15s",
            |bench| {
                bench.durable(|config| config["priority_timeout"] = seconds(20));
            },
        ),
        required(
            DURABLE,
            "permissions",
            "the user may not pull from it or give up its pin",
            "consumer WH_INGEST_1/wh-ingest-1",
            "`windjet nats permissions --shards 2`",
            Bench::deny,
        ),
    ]
}

pub(super) fn outside() -> Vec<Row> {
    vec![
        recommended(
            "durable outside of the shards",
            "durable_name",
            "it exists",
            "consumer WH_INGEST_0/wh-ingest-2",
            "drain its 5 rows",
            |bench| bench.another_durable("wh-ingest-2", "wh.ingest.0.2.>", &["wh.ingest.0.2.acme.t"; 5]),
        ),
        recommended(
            "stream outside of the partitions",
            "subjects",
            "it has none of our durables, so nothing drains it",
            "stream ROGUE",
            "nothing drains its 2 rows",
            |bench| {
                let config = json!({ "name": "ROGUE", "subjects": ["wh.ingest.7.>"] });
                bench.foreign("ROGUE", &config, &["wh.ingest.7.0.acme.t"; 2]);
            },
        ),
    ]
}

fn unpinned(config: &mut Value) {
    config["priority_policy"] = json!("none");
    config["priority_groups"] = json!([]);
    config["priority_timeout"] = json!(0);
}

fn seconds(count: u64) -> Value {
    json!(count * 1_000_000_000)
}
