//! What can be wrong with the server, the streams and the bucket.

use std::time::Duration;

use serde_json::{Value, json};
use windjet_mq::nats::Severity;
use windjet_testkit::Way;

use super::{Row, Wrong, recommended, required};

const SERVER: &str = "server";
const PARTITION: &str = "partition's stream";
const FIRST: &str = "stream WH_INGEST_0";
const HISTORY: &str = "history stream";
const DEAD: &str = "dead-letter stream";
const BUCKET: &str = "lease bucket";

pub(super) fn server() -> Vec<Row> {
    const VERSION: &str = "\"version\":\"2.15.1\"";
    vec![
        required(
            SERVER,
            "version",
            "it cannot be read",
            SERVER,
            "cannot be read",
            |bench| {
                bench.lie(Way::ToClient, VERSION, "\"version\":\"latest\"");
            },
        ),
        required(
            SERVER,
            "version",
            "below 2.14.0",
            SERVER,
            "2.13.9; 2.14.0 or later",
            |bench| {
                bench.lie(Way::ToClient, VERSION, "\"version\":\"2.13.9\"");
            },
        ),
        recommended(
            SERVER,
            "version",
            "neither 2.14 nor 2.15",
            SERVER,
            "2.16.0; tried with",
            |bench| {
                bench.lie(Way::ToClient, VERSION, "\"version\":\"2.16.0\"");
            },
        ),
    ]
}

pub(super) fn partitions() -> Vec<Row> {
    let mut rows = placed();
    rows.extend(kept());
    rows.extend(named());
    rows
}

/// Where its rows are, and where they go.
fn placed() -> Vec<Row> {
    let object = "ingest partition 0";
    vec![
        required(
            PARTITION,
            "subjects",
            "no stream holds it",
            object,
            "no stream holds wh.ingest.0.x",
            |bench| {
                bench.without_stream("WH_INGEST_0");
            },
        ),
        required(
            PARTITION,
            "subjects",
            "several streams hold it",
            object,
            "WH_INGEST_0, WH_INGEST_1; one must",
            |bench| {
                // A server has no streams that overlap, so it is asked for something else.
                bench.lie(Way::ToServer, "\"wh.ingest.0.x\"", "\"wh.ingest.*.x\"");
            },
        ),
        required(
            PARTITION,
            "name",
            "it vanished in between",
            FIRST,
            "is listed and does not exist",
            |bench| {
                bench.lie(
                    Way::ToServer,
                    "STREAM.INFO.WH_INGEST_0",
                    "STREAM.INFO.WH_INGEST_9",
                );
            },
        ),
        required(
            PARTITION,
            "subjects",
            "not all that is the partition's",
            FIRST,
            "must have wh.ingest.0.>",
            |bench| {
                bench.stream("WH_INGEST_0", |config| {
                    config["subjects"] = json!(["wh.ingest.0.*", "wh.ingest.0.*.>"]);
                });
            },
        ),
        required(
            PARTITION,
            "subjects",
            "another partition's too",
            FIRST,
            "also holds partition 1",
            |bench| {
                bench.without_stream("WH_INGEST_1");
                bench.stream("WH_INGEST_0", |config| {
                    config["subjects"] = json!(["wh.ingest.0.>", "wh.ingest.1.>"]);
                });
            },
        ),
        required(
            PARTITION,
            "retention",
            "not work queue",
            FIRST,
            "use workqueue",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["retention"] = json!("limits"));
            },
        ),
        required(
            PARTITION,
            "republish",
            "none",
            FIRST,
            "must republish wh.ingest.0.*.> to wh.hist.>",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["republish"] = Value::Null);
            },
        ),
        required(
            PARTITION,
            "republish",
            "of other subjects, or to others",
            FIRST,
            "must republish",
            |bench| {
                bench.stream("WH_INGEST_0", |config| {
                    config["republish"]["dest"] = json!("wh.other.>");
                });
            },
        ),
        required(
            PARTITION,
            "republish",
            "without bodies",
            FIRST,
            "with bodies",
            |bench| {
                bench.stream("WH_INGEST_0", |config| {
                    config["republish"]["headers_only"] = json!(true);
                });
            },
        ),
        required(
            PARTITION,
            "mirror",
            "it is a mirror",
            "stream WH_INGEST_M",
            "cannot be published to",
            |bench| {
                // A mirror has no subjects, so nobody finds it by them.
                let mirror = json!({ "name": "WH_INGEST_M", "mirror": { "name": "WH_DLQ" } });
                bench.foreign("WH_INGEST_M", &mirror, &[]);
                bench.lie(
                    Way::ToServer,
                    "STREAM.INFO.WH_INGEST_0",
                    "STREAM.INFO.WH_INGEST_M",
                );
            },
        ),
    ]
}

/// What it keeps, and how safely.
fn kept() -> Vec<Row> {
    vec![
        required(
            PARTITION,
            "discard",
            "not new",
            FIRST,
            "old drops unwritten rows",
            |bench| {
                bench.stream("WH_INGEST_0", |config| {
                    config["discard"] = json!("old");
                    config["discard_new_per_subject"] = json!(false);
                });
            },
        ),
        required(
            PARTITION,
            "max_bytes",
            "no limit",
            FIRST,
            "without a limit",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["max_bytes"] = json!(-1));
            },
        ),
        required(
            PARTITION,
            "max_age",
            "set",
            FIRST,
            "drops unwritten rows",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["max_age"] = seconds(3600));
            },
        ),
        required(PARTITION, "storage", "not file", FIRST, "use file", |bench| {
            bench.stream("WH_INGEST_0", |config| config["storage"] = json!("memory"));
        }),
        required(
            PARTITION,
            "duplicate_window",
            "shorter than all attempts of a publish, 15.5 s by default",
            FIRST,
            "15s; 15.5s or more covers all attempts",
            |bench| bench.stream("WH_INGEST_0", |config| config["duplicate_window"] = seconds(15)),
        ),
        required(
            PARTITION,
            "duplicate_window",
            "shorter than twice the dedupe lease and a second",
            FIRST,
            "2m; 3m1s or more covers a publish whose claim",
            |bench| bench.topology.dedupe_lease = Duration::from_secs(90),
        ),
        required(PARTITION, "no_ack", "set", FIRST, "not confirmed", |bench| {
            bench.stream("WH_INGEST_0", |config| config["no_ack"] = json!(true));
        }),
        required(
            PARTITION,
            "sealed",
            "set",
            FIRST,
            "nothing can be stored",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["sealed"] = json!(true));
            },
        ),
        required(
            PARTITION,
            "discard_new_per_subject",
            "unset with `max_msgs_per_subject`",
            FIRST,
            "drops unwritten rows",
            |bench| {
                bench.stream("WH_INGEST_0", |config| {
                    config["discard_new_per_subject"] = json!(false);
                });
            },
        ),
        recommended(
            PARTITION,
            "max_msgs_per_subject",
            "no limit",
            FIRST,
            "one topic can fill",
            |bench| {
                bench.stream("WH_INGEST_0", |config| {
                    config["max_msgs_per_subject"] = json!(-1);
                    config["discard_new_per_subject"] = json!(false);
                });
            },
        ),
        recommended(
            PARTITION,
            "deny_purge",
            "unset",
            FIRST,
            "removed by hand",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["deny_purge"] = json!(false));
            },
        ),
        recommended(
            PARTITION,
            "deny_purge",
            "`deny_delete` unset",
            FIRST,
            "removed by hand",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["deny_delete"] = json!(false));
            },
        ),
        required(
            PARTITION,
            "persist_mode",
            "async",
            FIRST,
            "not on disk",
            |bench| {
                bench.stream("WH_INGEST_0", |config| config["persist_mode"] = json!("async"));
            },
        ),
        copies(
            PARTITION,
            "1",
            FIRST,
            "1: rows are on one disk",
            Wrong::Copies("WH_INGEST_0", 1),
        ),
        copies(
            PARTITION,
            "2",
            FIRST,
            "2 stops at the loss of either",
            Wrong::Copies("WH_INGEST_0", 2),
        ),
    ]
}

/// What its metadata says.
fn named() -> Vec<Row> {
    vec![
        recommended(
            PARTITION,
            "metadata",
            "`wavehouse.dev/partition` missing",
            FIRST,
            "missing",
            |bench| {
                bench.stream("WH_INGEST_0", |config| label(config, "partition", Value::Null));
            },
        ),
        recommended(
            PARTITION,
            "metadata",
            "`wavehouse.dev/partitions` missing",
            FIRST,
            "missing",
            |bench| {
                bench.stream("WH_INGEST_0", |config| label(config, "partitions", Value::Null));
            },
        ),
        required(
            PARTITION,
            "metadata",
            "`wavehouse.dev/partition` is another's",
            FIRST,
            "partition is 1, and this process is configured with 0",
            |bench| bench.stream("WH_INGEST_0", |config| label(config, "partition", json!("1"))),
        ),
        required(
            PARTITION,
            "metadata",
            "`wavehouse.dev/partitions` differs",
            FIRST,
            "partitions is 4, and this process is configured with 2",
            |bench| bench.stream("WH_INGEST_0", |config| label(config, "partitions", json!("4"))),
        ),
        recommended(
            PARTITION,
            "metadata",
            "`wavehouse.dev/shards` missing",
            FIRST,
            "wavehouse.dev/shards missing",
            |bench| bench.stream("WH_INGEST_0", |config| label(config, "shards", Value::Null)),
        ),
        required(
            PARTITION,
            "metadata",
            "`wavehouse.dev/shards` differs",
            FIRST,
            "shards is 8, and this process is configured with 2",
            |bench| bench.stream("WH_INGEST_0", |config| label(config, "shards", json!("8"))),
        ),
    ]
}

pub(super) fn history() -> Vec<Row> {
    let on = "stream WH_HISTORY";
    vec![
        required(
            HISTORY,
            "name",
            "it does not exist",
            on,
            "does not exist",
            |bench| {
                bench.without_stream("WH_HISTORY");
            },
        ),
        required(
            HISTORY,
            "subjects",
            "not the history's alone",
            on,
            "must be wh.hist.> alone",
            |bench| {
                bench.stream("WH_HISTORY", |config| {
                    config["subjects"] = json!(["wh.hist.>", "other.>"]);
                });
            },
        ),
        required(
            HISTORY,
            "sources",
            "it has sources",
            on,
            "only the partitions",
            |bench| {
                bench.stream("WH_HISTORY", |config| {
                    config["sources"] = json!([{ "name": "WH_DLQ" }]);
                });
            },
        ),
        required(
            HISTORY,
            "sources",
            "it is a mirror",
            on,
            "only the partitions",
            |bench| {
                bench.stream("WH_HISTORY", |config| {
                    config["subjects"] = json!([]);
                    config["mirror"] = json!({ "name": "WH_DLQ" });
                });
            },
        ),
        required(HISTORY, "retention", "not limits", on, "use limits", |bench| {
            bench.stream("WH_HISTORY", |config| config["retention"] = json!("interest"));
        }),
        recommended(HISTORY, "discard", "not old", on, "use old", |bench| {
            bench.stream("WH_HISTORY", |config| config["discard"] = json!("new"));
        }),
        required(HISTORY, "max_age", "no limit", on, "grows without end", |bench| {
            bench.stream("WH_HISTORY", |config| config["max_age"] = json!(0));
        }),
        recommended(
            HISTORY,
            "max_bytes",
            "no limit",
            on,
            "only max_age bounds",
            |bench| {
                bench.stream("WH_HISTORY", |config| config["max_bytes"] = json!(-1));
            },
        ),
        copies(
            HISTORY,
            "less than 3",
            on,
            "2; use 3",
            Wrong::Copies("WH_HISTORY", 2),
        ),
    ]
}

pub(super) fn dead_letters() -> Vec<Row> {
    let on = "stream WH_DLQ";
    vec![
        required(
            DEAD,
            "subjects",
            "no stream holds it",
            DEAD,
            "no stream holds wh.dlq.x",
            |bench| {
                bench.without_stream("WH_DLQ");
            },
        ),
        required(
            DEAD,
            "subjects",
            "several streams hold it",
            DEAD,
            "several streams hold wh.dlq.x",
            |bench| {
                bench.lie(Way::ToServer, "\"wh.dlq.x\"", "\"wh.*.>\"  ");
            },
        ),
        required(
            DEAD,
            "name",
            "it vanished in between",
            on,
            "is listed and does not exist",
            |bench| {
                bench.lie(Way::ToServer, "STREAM.INFO.WH_DLQ", "STREAM.INFO.WH_NOT");
            },
        ),
        required(
            DEAD,
            "subjects",
            "not all dead letters",
            on,
            "must have wh.dlq.>",
            |bench| {
                bench.stream("WH_DLQ", |config| config["subjects"] = json!(["wh.dlq.*"]));
            },
        ),
        required(DEAD, "retention", "not limits", on, "use limits", |bench| {
            bench.stream("WH_DLQ", |config| config["retention"] = json!("interest"));
        }),
        required(DEAD, "discard", "not old", on, "use old", |bench| {
            bench.stream("WH_DLQ", |config| config["discard"] = json!("new"));
        }),
        required(DEAD, "storage", "not file", on, "use file", |bench| {
            bench.stream("WH_DLQ", |config| config["storage"] = json!("memory"));
        }),
        required(DEAD, "max_bytes", "no limit", on, "without a limit", |bench| {
            bench.stream("WH_DLQ", |config| config["max_bytes"] = json!(-1));
        }),
        recommended(
            DEAD,
            "max_msgs_per_subject",
            "no limit",
            on,
            "push out all others",
            |bench| {
                bench.stream("WH_DLQ", |config| config["max_msgs_per_subject"] = json!(-1));
            },
        ),
        recommended(DEAD, "persist_mode", "async", on, "not on disk", |bench| {
            bench.stream("WH_DLQ", |config| config["persist_mode"] = json!("async"));
        }),
        copies(DEAD, "less than 3", on, "2; use 3", Wrong::Copies("WH_DLQ", 2)),
    ]
}

pub(super) fn bucket() -> Vec<Row> {
    let on = "kv bucket wh_coord";
    vec![
        required(
            BUCKET,
            "bucket",
            "it does not exist",
            on,
            "does not exist",
            |bench| {
                bench.without_stream("KV_wh_coord");
            },
        ),
        required(BUCKET, "history", "none is kept", on, "1 is enough", |bench| {
            bench.stream("KV_wh_coord", |config| config["max_msgs_per_subject"] = json!(-1));
        }),
        required(BUCKET, "allow_direct", "unset", on, "direct get", |bench| {
            bench.stream("KV_wh_coord", |config| config["allow_direct"] = json!(false));
        }),
        required(BUCKET, "ttl", "set", on, "vanishes", |bench| {
            bench.stream("KV_wh_coord", |config| config["max_age"] = seconds(3600));
        }),
        recommended(BUCKET, "storage", "not file", on, "use file", |bench| {
            bench.stream("KV_wh_coord", |config| config["storage"] = json!("memory"));
        }),
        copies(
            BUCKET,
            "less than 3",
            on,
            "2; use 3",
            Wrong::Copies("KV_wh_coord", 2),
        ),
    ]
}

fn copies(
    object: &'static str,
    when: &'static str,
    on: &'static str,
    says: &'static str,
    wrong: Wrong,
) -> Row {
    Row {
        object,
        field: "num_replicas",
        when,
        severity: Severity::Recommended,
        on,
        says,
        wrong,
    }
}

fn label(config: &mut Value, name: &str, value: Value) {
    let labels = config["metadata"].as_object_mut().unwrap();
    let name = format!("wavehouse.dev/{name}");
    match value {
        Value::Null => drop(labels.remove(&name)),
        value => drop(labels.insert(name, value)),
    }
}

fn seconds(count: u64) -> Value {
    json!(count * 1_000_000_000)
}
