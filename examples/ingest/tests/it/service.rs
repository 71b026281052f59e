//! What a user does with it.

use std::io::{Read as _, Write as _};

use serde_json::json;
use windjet_testkit::process::Signal;

use super::client::{Events, Service, ask, folder, open, wait};

#[test]
fn an_accepted_row_is_heard_and_written_once() {
    let data = folder();
    let service = Service::start(data.path(), &[]);
    let mut events = Events::listen(service.addr, "clicks", None);
    let first = service.send("clicks", "k1", r#"{"n":1}"#);
    assert_eq!((first.status, first.json()["id"].as_str()), (202, Some("k1")));
    // The repeat comes before or after the row is written; neither makes a second row.
    let again = service.send("clicks", "k1", r#"{"n":1}"#);
    assert!([200, 202].contains(&again.status), "{again:?}");
    assert_eq!(service.send("clicks", "k2", r#"{"n":2}"#).status, 202);
    assert_eq!(events.next().1, json!({ "n": 1 }));
    assert_eq!(events.next().1, json!({ "n": 2 }));
    wait("both rows", || service.keys("clicks") == ["k1", "k2"]);

    let known = service.send("clicks", "k1", r#"{"n":1}"#);
    assert_eq!(
        (known.status, known.json()["status"].as_str()),
        (200, Some("written"))
    );
    let other = service.send("clicks", "k1", r#"{"n":7}"#);
    assert_eq!(other.status, 409);
    assert!(other.error().contains("a key of its own"), "{}", other.error());
    // Another table's keys are others.
    assert_eq!(service.send("views", "k1", "1").status, 202);
    wait("the other table's row", || service.keys("views") == ["k1"]);
    assert_eq!(service.keys("clicks"), ["k1", "k2"]);
    service.stop();
}

#[test]
fn a_row_without_a_key_gets_one() {
    let data = folder();
    let service = Service::start(data.path(), &[]);
    let answer = ask(
        service.addr,
        "POST",
        "/v1/tenants/acme/tables/clicks/rows",
        &[],
        b"[1]",
    )
    .unwrap();
    assert_eq!(answer.status, 202);
    let key = answer.json()["id"].as_str().unwrap().to_owned();
    wait("the row", || service.keys("clicks") == [key.as_str()]);
}

#[test]
fn a_dead_letter_is_listed_and_redriven() {
    let data = folder();
    let service = Service::start(data.path(), &[]);
    let send = |key: &str| assert_eq!(service.send("orders", key, r#"{"price":1}"#).status, 202);
    let redrive = |number: i64, body: &[u8]| {
        let path = format!("/v1/tenants/acme/dead-letters/{number}/redrive");
        ask(service.addr, "POST", &path, &[], body).unwrap()
    };
    send("o1");
    wait("the dead letter", || service.dead_letters().len() == 1);
    let letter = service.dead_letters().remove(0);
    let reason = letter["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.contains("order_id") && reason.contains("redrive"),
        "{reason}"
    );
    assert_eq!(
        (&letter["id"], &letter["row"]),
        (&json!("o1"), &json!({ "price": 1 }))
    );
    let number = letter["number"].as_i64().unwrap();

    // As it was, it fails again.
    assert_eq!(redrive(number, b"").status, 202);
    wait("another failure", || service.dead_letters()[0]["failures"] == 2);
    // Corrected, it is a row.
    assert_eq!(redrive(number, br#"{"order_id":1,"price":1}"#).status, 202);
    wait("the row", || service.keys("orders") == ["o1"]);
    assert_eq!(service.dead_letters().len(), 0);
    assert_eq!(redrive(number, b"").status, 404);

    // So it is when the rule is changed.
    send("o2");
    wait("the dead letter", || service.dead_letters().len() == 1);
    let rules = r#"{"tenants":{"acme":{"max_bytes":"64Mi"}}}"#;
    std::fs::write(data.path().join("ingest.json"), rules).unwrap();
    assert_eq!(
        ask(service.addr, "POST", "/v1/reload", &[], b"").unwrap().status,
        200
    );
    let number = service.dead_letters()[0]["number"].as_i64().unwrap();
    assert_eq!(redrive(number, b"").status, 202);
    wait("both rows", || service.keys("orders") == ["o1", "o2"]);
    let acme = service.get("/v1/tenants/acme");
    assert_eq!((&acme["rows"], &acme["dead_letters"]), (&json!(2), &json!(0)));
    // The queue keeps its copies: o1 twice, o2 once.
    assert_eq!(acme["dead_letter_queue"], 3);

    send("o3");
    wait("the row", || service.keys("orders").len() == 3);
    let gone = ask(
        service.addr,
        "DELETE",
        "/v1/tenants/acme/dead-letters/99",
        &[],
        b"",
    )
    .unwrap();
    assert_eq!(gone.status, 404);
}

#[test]
fn another_row_under_a_key_that_is_still_queued_becomes_a_dead_letter_and_is_not_dropped() {
    let data = folder();
    let api = Service::start(data.path(), &["--role", "api"]);
    assert_eq!(api.send("clicks", "k", "1").status, 202);
    assert_eq!(api.send("clicks", "k", "2").status, 202);
    assert_eq!(api.send("clicks", "k", "1").status, 202);
    api.stop();
    let service = Service::start(data.path(), &[]);
    wait("the dead letter", || service.dead_letters().len() == 1);
    let letter = service.dead_letters().remove(0);
    assert_eq!(
        (&letter["row"], service.keys("clicks")),
        (&json!(2), vec!["k".to_owned()])
    );
    // Under a key of its own it is a row.
    let path = format!("/v1/tenants/acme/dead-letters/{}/redrive", letter["number"]);
    let redriven = ask(service.addr, "POST", &path, &[("Idempotency-Key", "k-2")], b"").unwrap();
    assert_eq!(redriven.status, 202);
    wait("both rows", || service.keys("clicks") == ["k", "k-2"]);
    wait("an empty list", || service.dead_letters().is_empty());
}

#[test]
fn a_listener_that_comes_back_gets_what_it_missed_once_and_in_order() {
    let data = folder();
    let mut service = Service::start(data.path(), &[]);
    let send = |service: &Service, n: usize| {
        let sent = service.send("clicks", &format!("k{n}"), &n.to_string());
        assert_eq!(sent.status, 202);
    };
    let mut events = Events::listen(service.addr, "clicks", None);
    send(&service, 0);
    send(&service, 1);
    let (id, row) = events.next();
    assert_eq!(row, 0);
    drop(events);
    for n in 2..150 {
        send(&service, n);
    }
    service.process.kill().unwrap();
    let service = Service::start(data.path(), &[]);
    for n in 150..300 {
        send(&service, n);
    }
    let mut events = Events::listen(service.addr, "clicks", Some(&id));
    send(&service, 300);
    for n in 1..=300 {
        assert_eq!(events.next().1, n);
    }
    let bad = ask(
        service.addr,
        "GET",
        "/v1/tenants/acme/tables/clicks/events",
        &[("Last-Event-ID", "nonsense")],
        b"",
    );
    assert_eq!(bad.unwrap().status, 400);
    service.stop();
}

#[test]
fn a_listener_that_falls_behind_misses_nothing() {
    const ROWS: usize = 1200;
    let data = folder();
    let service = Service::start(data.path(), &[]);
    let mut events = Events::listen(service.addr, "clicks", None);
    // More than sockets and channels hold while nobody reads.
    let filler = "x".repeat(16 << 10);
    for n in 0..ROWS {
        let row = json!({ "n": n, "filler": filler }).to_string();
        assert_eq!(service.send("clicks", &format!("k{n}"), &row).status, 202);
    }
    for n in 0..ROWS {
        assert_eq!(events.next().1["n"], n);
    }
    service.stop();
}

#[test]
fn refusals_say_what_to_do() {
    let data = folder();
    let service = Service::start(data.path(), &["--max-row", "1000", "--max-in-flight", "1"]);
    let post = |path: &str, key: &str, body: &[u8]| {
        ask(service.addr, "POST", path, &[("Idempotency-Key", key)], body).unwrap()
    };
    let rows = "/v1/tenants/acme/tables/clicks/rows";
    let refused = |answer: super::client::Answer, status: u16, says: &str| {
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.error().contains(says), "{}", answer.error());
    };
    refused(post("/v1/rows", "k", b"1"), 404, "README");
    refused(post(rows, "k", b"{"), 400, "send one JSON value");
    refused(post(rows, "a b", b"1"), 400, "printable ASCII");
    refused(post("/v1/tenants/a.b/tables/t/rows", "k", b"1"), 400, "tenant id");
    refused(
        post("/v1/tenants/initech/tables/t/rows", "k", b"1"),
        404,
        "reload",
    );
    refused(post(rows, "k", &[b'1'; 1001]), 413, "--max-row");
    assert_eq!(post(rows, "k", &[b'1'; 1000]).status, 202);

    // One row is on its way and does not end: the tenant has no more places, another one has.
    let mut slow = open(service.addr, "POST", rows, &[("Expect", "100-continue")], 2).unwrap();
    let mut asked_for = [0; 25];
    slow.read_exact(&mut asked_for).unwrap();
    assert!(
        asked_for.starts_with(b"HTTP/1.1 100 "),
        "its body is asked for once it has its place"
    );
    let full = post(rows, "k3", b"1");
    assert!(full.head.contains("retry-after: 1"), "{}", full.head);
    refused(full, 429, "fewer at the same time");
    assert_eq!(
        post("/v1/tenants/globex/tables/clicks/rows", "k", b"1").status,
        202
    );
    slow.write_all(b"11").unwrap();
    wait("the place to be free", || post(rows, "k4", b"1").status != 429);
    service.stop();
}

#[test]
fn a_full_budget_is_told_and_a_reload_raises_it() {
    let data = folder();
    let budget = |max: &str| {
        let config = format!(r#"{{"tenants":{{"acme":{{"max_bytes":"{max}"}}}}}}"#);
        std::fs::write(data.path().join("ingest.json"), config).unwrap();
    };
    budget("64Ki");
    // Nobody writes, so nothing makes room.
    let service = Service::start(data.path(), &["--role", "api"]);
    let row = format!("\"{}\"", "x".repeat(8000));
    let mut sent = 0;
    let full = loop {
        let answer = service.send("clicks", &format!("k{sent}"), &row);
        if answer.status != 202 {
            break answer;
        }
        sent += 1;
        assert!(sent < 20, "the budget is not kept");
    };
    assert_eq!(full.status, 503);
    assert!(full.head.contains("retry-after: 5"), "{}", full.head);
    assert!(
        full.error().contains("raise its max_bytes and reload"),
        "{}",
        full.error()
    );

    budget("lots");
    let refused = ask(service.addr, "POST", "/v1/reload", &[], b"").unwrap();
    assert_eq!(refused.status, 400);
    assert!(
        refused.error().contains("the last configuration stays"),
        "{}",
        refused.error()
    );
    budget("1Mi");
    let reloaded = ask(service.addr, "POST", "/v1/reload", &[], b"").unwrap();
    assert_eq!(
        reloaded.json(),
        json!({ "applied": { "acme": 1 << 20 }, "failed": {} })
    );
    assert_eq!(service.send("clicks", &format!("k{sent}"), &row).status, 202);
    budget("2Mi");
    service.process.signal(Signal::Hup).unwrap();
    wait("the budget", || {
        service.get("/v1/tenants/acme")["max_bytes"] == 2 << 20
    });
    service.stop();

    let service = Service::start(data.path(), &[]);
    wait("every row", || service.keys("clicks").len() == sent + 1);
    assert_eq!(service.get("/v1/tenants/acme")["max_bytes"], 2 << 20);
}

#[test]
fn what_is_written_makes_room() {
    let data = folder();
    let config = r#"{"tenants":{"acme":{"max_bytes":"64Ki"}},"replay_seconds":0}"#;
    std::fs::write(data.path().join("ingest.json"), config).unwrap();
    let service = Service::start(data.path(), &[]);
    let row = format!("\"{}\"", "x".repeat(8000));
    let mut refused = 0;
    for n in 0..20 {
        wait("room for a row", || {
            let answer = service.send("clicks", &format!("k{n}"), &row);
            refused += u32::from(answer.status == 503);
            answer.status == 202
        });
    }
    assert!(refused > 0, "the budget is not kept");
    wait("every row", || service.keys("clicks").len() == 20);
    service.stop();
}
