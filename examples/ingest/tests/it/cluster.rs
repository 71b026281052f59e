//! The same service on the real nats-server, as the restricted user, on the generated manifests and permissions.
//!
//! `INGEST_SECONDS` says how long consumers are killed (two rounds without it), `INGEST_SEED` repeats a run's choices.

use std::time::{Duration, Instant};

use serde_json::json;
use windjet_mq::nats::{ManifestOptions, Topology, write_manifests, write_permissions};
use windjet_testkit::deadline::until;
use windjet_testkit::natstest::{Deployment, USER};
use windjet_testkit::process::Process;

use super::client::{Events, PATIENCE, Service, folder, ready, spawn, wait};
use super::load::{Dice, Load, count, number};

const SHARDS: u32 = 4;

/// The server with what an operator made on it, and how the service reaches it.
fn deploy() -> (Deployment, Vec<String>) {
    let topology = Topology {
        shards: SHARDS,
        coord_bucket: Some("wh_coord".to_owned()),
        ..Topology::default()
    };
    let permissions = write_permissions(&topology, None).unwrap();
    let options = ManifestOptions {
        topology,
        ..ManifestOptions::default()
    };
    let deployment = Deployment::start(&write_manifests(&options).unwrap(), &permissions).unwrap();
    let args = [
        "--broker",
        &deployment.server.url().unwrap(),
        "--shards",
        &SHARDS.to_string(),
        "--nats-user",
        USER,
        "--nats-password-file",
        &deployment.password_file().display().to_string(),
    ];
    let args = args.map(str::to_owned).to_vec();
    (deployment, args)
}

#[test]
fn on_a_cluster_the_service_is_the_same() {
    let (data, (_deployment, args)) = (folder(), deploy());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let service = Service::start(data.path(), &args);
    let mut events = Events::listen(service.addr, "clicks", None);
    assert_eq!(service.send("clicks", "k0", "0").status, 202);
    let (id, row) = events.next();
    assert_eq!(row, 0);
    assert_eq!(service.send("orders", "o1", "{}").status, 202);
    wait("the row", || service.keys("clicks") == ["k0"]);
    wait("the dead letter", || service.dead_letters().len() == 1);
    let acme = service.get("/v1/tenants/acme");
    assert_eq!(acme["dead_letter_queue"], 1, "{acme}");
    let path = format!(
        "/v1/tenants/acme/dead-letters/{}/redrive",
        service.dead_letters()[0]["number"]
    );
    let redriven = super::client::ask(service.addr, "POST", &path, &[], br#"{"order_id":1}"#).unwrap();
    assert_eq!(redriven.status, 202);
    wait("the corrected row", || service.keys("orders") == ["o1"]);
    drop(events);
    for n in 1..20 {
        assert_eq!(
            service.send("clicks", &format!("k{n}"), &n.to_string()).status,
            202
        );
    }
    service.stop();

    // What the first process gave up in order, the second one has at once.
    let service = Service::start(data.path(), &args);
    let mut events = Events::listen(service.addr, "clicks", Some(&id));
    assert_eq!(service.send("clicks", "k20", "20").status, 202);
    for n in 1..=20 {
        assert_eq!(events.next().1, json!(n));
    }
    wait("every row", || service.keys("clicks").len() == 21);
    service.stop();
}

#[test]
fn publishers_and_consumers_killed_at_random_write_every_row_once_and_in_order() {
    let (mut dice, data, (_deployment, args)) = (Dice::new(), folder(), deploy());
    println!("INGEST_SEED: {dice:?}");
    let (seconds, publishers, consumers) = match number("INGEST_SECONDS") {
        Some(seconds) => (seconds, 3, 4),
        None => (0, 2, 3),
    };
    let with = |role: &'static str| -> Vec<&str> {
        let args = args.iter().map(String::as_str);
        args.chain(["--role", role]).collect()
    };
    let start_api = || Service::start(data.path(), &with("api"));
    let mut apis: Vec<Service> = (0..publishers).map(|_| start_api()).collect();
    let start = || spawn(data.path(), &with("worker"));
    let mut workers: Vec<Process> = (0..consumers).map(|_| start()).collect();
    for worker in &mut workers {
        ready(worker);
    }
    let addrs = |apis: &[Service]| apis.iter().map(|api| api.addr).collect::<Vec<_>>();
    let tables = [("acme", "clicks"), ("acme", "views"), ("globex", "clicks")];
    let load = Load::start(&tables);
    load.at(&addrs(&apis));
    let (end, mut round, mut kills) = (Instant::now() + Duration::from_secs(seconds), 0, [0, 0]);
    while round < 2 || Instant::now() < end {
        // One after the other or several in a row, while rows come.
        for _ in 0..=dice.below(2) {
            let rows = load.accepted() + 1 + dice.below(200);
            until("rows to be accepted", PATIENCE, || load.accepted() >= rows).unwrap();
            let victim = usize::try_from(dice.below(consumers)).unwrap();
            workers[victim].kill().unwrap();
            workers[victim] = start();
            kills[1] += 1;
        }
        let victim = usize::try_from(dice.below(publishers)).unwrap();
        apis[victim].process.kill().unwrap();
        kills[0] += 1;
        // The others take its rows meanwhile.
        let rows = load.accepted() + 1 + dice.below(200);
        until("rows to be accepted", PATIENCE, || load.accepted() >= rows).unwrap();
        apis[victim] = start_api();
        load.at(&addrs(&apis));
        // Until somebody writes each tenant's rows again.
        let accepted = load.accepted();
        let addr = apis[0].addr;
        wait("the rows accepted so far", || {
            count(addr, "acme") + count(addr, "globex") >= accepted
        });
        round += 1;
    }
    let accepted = load.finish(apis[0].addr);
    let [of_publishers, of_consumers] = kills;
    println!(
        "{of_publishers} kills of {publishers} publishers, {of_consumers} of {consumers} consumers, {accepted} rows accepted, \
         each written once and in order"
    );
    // An operator's stop hands everything over, and none had failed.
    for mut process in workers {
        let addr = ready(&mut process);
        Service { process, addr }.stop();
    }
    for api in apis {
        api.stop();
    }
}

#[test]
fn a_server_that_is_killed_under_load_loses_and_doubles_nothing() {
    let (mut dice, data, (mut deployment, args)) = (Dice::new(), folder(), deploy());
    println!("INGEST_SEED: {dice:?}");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let service = Service::start(data.path(), &args);
    let tables = [
        ("acme", "clicks"),
        ("acme", "views"),
        ("globex", "clicks"),
        ("globex", "views"),
    ]
    .repeat(4);
    let load = Load::start(&tables);
    load.at(&[service.addr]);
    for _ in 0..3 {
        let rows = load.accepted() + 200 + dice.below(500);
        until("rows to be accepted", PATIENCE, || load.accepted() >= rows).unwrap();
        deployment.restart().unwrap();
    }
    let rows = load.accepted() + 200;
    until("rows to be accepted", PATIENCE, || load.accepted() >= rows).unwrap();
    let accepted = load.finish(service.addr);
    println!("3 kills of the server, {accepted} rows accepted, each written once and in order");
    service.stop();
}
