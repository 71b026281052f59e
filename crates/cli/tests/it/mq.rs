//! `windjet mq graduate`: a stopped store goes to a cluster, also by a program that is killed again and again.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windjet_mq::{
    Broker as _, ConsumerConfig, ConsumerManager as _, Ctx, EmbeddedNats, PublishOptions, Publisher as _,
    TenantId, Topic,
};
use windjet_testkit::natstest::{Deployment, USER};

use crate::{BINARY, err, out, run_windjet};

const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of one partition.
fn cluster() -> Deployment {
    let manifests = run_windjet(&["nats", "manifests", "--file-store", "10Gi", "--shards", "2"]);
    let permissions = run_windjet(&["nats", "permissions", "--shards", "2"]);
    Deployment::start(&out(&manifests), &out(&permissions)).unwrap()
}

/// A store whose worker has written nothing; every table gets the numbers from 0 on.
fn store(tables: &[(&str, &str)], events: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (ctx, broker) = (Ctx::new(), EmbeddedNats::open(folder.path()).await.unwrap());
        for (tenant, _) in tables {
            let tenant = TenantId::parse(tenant).unwrap();
            broker.set_max_bytes(&ctx, &tenant, 64 << 20).await.unwrap();
        }
        let worker = broker
            .create_consumer(&ctx, ConsumerConfig::new("buffer-consumer"))
            .await
            .unwrap();
        drop(worker);
        for number in 0..events {
            for (tenant, table) in tables {
                let topic = Topic::new(TenantId::parse(tenant).unwrap(), *table);
                let data = number.to_string().into();
                broker
                    .publish(&ctx, &topic, data, PublishOptions::new())
                    .await
                    .unwrap();
            }
        }
        broker.close().await.unwrap();
    });
    folder
}

fn command(folder: &Path, deployment: &Deployment, more: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["mq", "graduate"]).arg(folder);
    command.args([
        "--server",
        &deployment.server.url().unwrap(),
        "--shards",
        "2",
        "--user",
        USER,
    ]);
    command
        .arg("--password-file")
        .arg(deployment.password_file())
        .args(more);
    command.stdin(Stdio::null());
    command
}

fn graduate(folder: &Path, deployment: &Deployment, more: &[&str]) -> Output {
    command(folder, deployment, more).output().unwrap()
}

fn stored(deployment: &mut Deployment) -> u64 {
    let info = deployment.operator.stream("WH_INGEST_0").unwrap();
    info["state"]["messages"].as_u64().unwrap()
}

/// The numbers of one table, in order.
fn table(deployment: &mut Deployment, key: &str) -> Vec<usize> {
    let last = deployment.operator.stream("WH_INGEST_0").unwrap()["state"]["last_seq"]
        .as_u64()
        .unwrap();
    let mut numbers = Vec::new();
    for seq in 1..=last {
        let got = deployment
            .operator
            .api("STREAM.MSG.GET.WH_INGEST_0", &json!({ "seq": seq }))
            .unwrap();
        if got["message"]["subject"].as_str().unwrap().ends_with(key) {
            let data = got["message"]["data"].as_str().unwrap();
            let data = data_encoding::BASE64.decode(data.as_bytes()).unwrap();
            numbers.push(String::from_utf8(data).unwrap().parse().unwrap());
        }
    }
    numbers
}

#[test]
fn a_dry_run_counts_and_a_move_moves_and_balances() {
    let (folder, mut deployment) = (store(&[("acme", "t"), ("globex", "t")], 5), cluster());
    let output = graduate(folder.path(), &deployment, &["--dry-run", "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tenants"]["acme"]["events"]["to_move"], 5, "{report}");
    assert_eq!((stored(&mut deployment), &report["dry_run"]), (0, &json!(true)));

    let output = graduate(folder.path(), &deployment, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("balanced"), "{}", out(&output));
    assert_eq!(table(&mut deployment, ".acme.t"), [0, 1, 2, 3, 4]);
    // Once more: the same, and nothing twice.
    let again = graduate(folder.path(), &deployment, &[]);
    assert_eq!((out(&again), stored(&mut deployment)), (out(&output), 10));
}

#[test]
fn killed_again_and_again_it_goes_on_and_balances() {
    const EVENTS: usize = 1_500;
    let (folder, mut deployment) = (store(&[("acme", "t"), ("globex", "t")], EVENTS), cluster());
    let begun = Instant::now();
    let mut kills = 0;
    // Later and later, so that it is killed in all of its phases and gets through in the end.
    let done = loop {
        assert!(begun.elapsed() < PATIENCE, "it never got through");
        let mut child = command(folder.path(), &deployment, &["--output", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let before = stored(&mut deployment);
        let ended = loop {
            if child.try_wait().unwrap().is_some() {
                break true;
            }
            if stored(&mut deployment) >= before + 250 {
                break false;
            }
        };
        if ended {
            break child.wait_with_output().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    };
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(kills >= 3, "it was killed {kills} times only");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["balanced"], true, "{report}");
    for tenant in ["acme", "globex"] {
        let count = &report["tenants"][tenant]["events"];
        assert_eq!(
            (&count["found"], &count["repeated"]),
            (&json!(EVENTS), &json!(0)),
            "{report}"
        );
        let expected: Vec<_> = (0..EVENTS).collect();
        assert_eq!(table(&mut deployment, &format!(".{tenant}.t")), expected);
    }
}

#[test]
fn what_is_no_store_is_refused_and_left_as_it_is() {
    let (folder, deployment) = (tempfile::tempdir().unwrap(), cluster());
    let output = graduate(folder.path(), &deployment, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("is empty"), "{}", err(&output));
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    let missing = folder.path().join("missing");
    let output = graduate(&missing, &deployment, &[]);
    assert!(err(&output).contains("no folder"), "{}", err(&output));
    assert!(!missing.exists());
}
