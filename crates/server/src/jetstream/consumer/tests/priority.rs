use super::*;

const PINNED: &str = r#"{"durable_name":"C","ack_policy":"explicit","priority_policy":"pinned_client","priority_groups":["G"],"priority_timeout":2000000000}"#;

fn pin(bench: &mut Bench) -> String {
    bench.info().priority_groups[0]
        .pinned_client_id
        .clone()
        .unwrap_or_default()
}

#[test]
fn requests_must_name_a_group() {
    let mut bench = Bench::start(&[], PINNED);
    for (payload, line) in [
        ("1", "400 Bad Request - Priority Group missing"),
        ("{}", "400 Bad Request - Priority Group missing"),
        (r#"{"group":"H"}"#, "400 Bad Request - Invalid Priority Group"),
        (
            r#"{"group":"G","min_ack_pending":1}"#,
            "400 Bad Request - Not a Overflow Priority consumer",
        ),
    ] {
        bench.pull("a", payload);
        assert_eq!(bench.line(), format!("a: {line}"), "{payload}");
    }
}

#[test]
fn the_life_of_pins() {
    let mut bench = Bench::start(&[], PINNED);
    let pull = r#"{"batch":3,"group":"G"}"#;
    bench.pull("a", pull);
    bench.pull("b", pull);
    bench.publish(&xs(2));
    let x = pin(&mut bench);
    assert_eq!(x.len(), 22);
    assert_eq!(
        bench.out(),
        [
            format!(r#"ADVISORY.CONSUMER.PINNED {{"account":"$G","group":"G","pinned_id":"{x}"}}"#),
            format!("a: 1/1 x1 p0 Nats-Pin-Id={x}"),
            format!("a: 2/2 x1 p0 Nats-Pin-Id={x}"),
        ]
        .map(|line| line)
    );
    bench.pull("a", r#"{"group":"G","id":"WRONG"}"#);
    assert_eq!(bench.line(), "a: 423 Nats-Pin-Id mismatch");
    // The pinned client keeps its pin by asking.
    bench.advance(1500);
    bench.pull("a", &format!(r#"{{"batch":1,"group":"G","id":"{x}"}}"#));
    bench.advance(1500);
    assert_eq!((bench.line().as_str(), pin(&mut bench) == x), ("", true));
    bench.publish(&xs(4));
    let out = bench.out();
    assert_eq!(out.len(), 2, "{out:?}");
    assert!(
        out.iter()
            .all(|line| line.starts_with("a: ") && line.ends_with(&x))
    );
    bench.advance(500);
    let y = pin(&mut bench);
    assert_ne!(x, y);
    assert_eq!(
        bench.out(),
        [
            r#"ADVISORY.CONSUMER.UNPINNED {"account":"$G","group":"G","reason":"timeout"}"#.to_owned(),
            format!(r#"ADVISORY.CONSUMER.PINNED {{"account":"$G","group":"G","pinned_id":"{y}"}}"#),
            format!("b: 5/5 x1 p1 Nats-Pin-Id={y}"),
            format!("b: 6/6 x1 p0 Nats-Pin-Id={y}"),
        ]
    );
    // Unpinned, the old client is told when there is a message, not before.
    bench.pull("b", &format!(r#"{{"batch":1,"group":"G","id":"{y}"}}"#));
    bench.with(|c, port, now| c.unpin(port, "G", now)).unwrap();
    assert_eq!(
        bench.line(),
        r#"ADVISORY.CONSUMER.UNPINNED {"account":"$G","group":"G","reason":"admin"}"#
    );
    assert_eq!(pin(&mut bench), "");
    bench.pull("c", r#"{"group":"G"}"#);
    bench.publish(&["x"]);
    let out = bench.out();
    let z = pin(&mut bench);
    let wrong = "b: 423 Nats-Wrong-Pin-Id Nats-Pending-Messages=1 Nats-Pending-Bytes=0";
    assert_eq!(out[..2], [wrong.to_owned(), wrong.to_owned()]);
    assert!(out[2].starts_with("ADVISORY.CONSUMER.PINNED"), "{out:?}");
    assert_eq!(out[3], format!("c: 7/7 x1 p0 Nats-Pin-Id={z}"));
    assert!(![x, y].contains(&z));
    let refused = bench.with(|c, port, now| c.unpin(port, "H", now)).unwrap_err();
    assert_eq!(refused.err_code, 10160);
}

#[test]
fn a_pin_does_not_survive_a_restart_or_another_policy() {
    let mut bench = Bench::start(&xs(1), PINNED);
    bench.pull("a", r#"{"group":"G","batch":2}"#);
    let x = pin(&mut bench);
    bench.restart(0);
    assert_eq!(pin(&mut bench), "");
    bench.out();
    bench.pull("a", &format!(r#"{{"group":"G","id":"{x}"}}"#));
    assert_eq!(bench.line(), "");
    bench.publish(&["x"]);
    assert_eq!(
        bench.line(),
        "a: 423 Nats-Wrong-Pin-Id Nats-Pending-Messages=1 Nats-Pending-Bytes=0"
    );
    bench.pull("a", r#"{"group":"G","batch":2}"#);
    assert!(!pin(&mut bench).is_empty());
    bench.update(&PINNED.replace("pinned_client", "overflow"));
    assert_eq!(pin(&mut bench), "");
    assert!(bench.c.as_ref().unwrap().pin.is_none());
}

#[test]
fn a_request_over_its_budget_is_not_pinned() {
    let mut bench = Bench::start(&[], PINNED);
    bench.pull("a", r#"{"group":"G","max_bytes":10}"#);
    bench.pull("b", r#"{"group":"G"}"#);
    bench.publish(&["x"]);
    let out = bench.out();
    assert!(out[0].starts_with("a: 409 Message Size Exceeds MaxBytes"));
    assert!(out[1].starts_with("ADVISORY.CONSUMER.PINNED"));
    assert!(out[2].starts_with("b: 1/1 x1 p0 Nats-Pin-Id="));
}

#[test]
fn standbys_keep_waiting_when_the_pinned_client_is_gone() {
    let mut bench = Bench::start(&[], PINNED);
    bench.pull("a", r#"{"group":"G","batch":5}"#);
    bench.pull(
        "b",
        &format!(
            r#"{{"group":"G","expires":{},"idle_heartbeat":{}}}"#,
            9000 * MS,
            600 * MS
        ),
    );
    bench.publish(&["x"]);
    bench.port.listening = ["b".into()].into();
    bench.publish(&["x"]);
    bench.out();
    bench.advance(1900);
    assert_eq!(bench.out().len(), 3);
    bench.advance(100);
    let out = bench.out();
    assert!(out[0].starts_with("b: 2/2 x1 p0 Nats-Pin-Id="), "{out:?}");
}

const OVERFLOW: &str = r#"{"ack_policy":"explicit","priority_policy":"overflow","priority_groups":["G"]}"#;

#[test]
fn overflow_serves_who_meets_any_threshold() {
    let mut bench = Bench::start(&[], OVERFLOW);
    bench.pull("p", r#"{"group":"G","batch":9,"min_pending":3}"#);
    bench.publish(&xs(2));
    assert_eq!(bench.line(), "");
    bench.publish(&["x"]);
    // With three to come one is given; then two are to come.
    assert_eq!(bench.line(), "p: 1/1 x1 p2");
    bench.pull(
        "k",
        r#"{"group":"G","batch":9,"min_pending":100,"min_ack_pending":2}"#,
    );
    assert_eq!(bench.line(), "");
    // A delivery to one may be what another waits for.
    bench.pull("a", r#"{"group":"G","batch":1}"#);
    assert_eq!(bench.line(), "a: 2/2 x1 p1 | k: 3/3 x1 p0");
    bench.ack(1, 1, "");
    bench.ack(2, 1, "");
    bench.publish(&["x"]);
    assert_eq!(bench.line(), "r: + | r: +");
    let explanation = bench.with(|c, port, now| c.explain(port, now));
    assert_eq!(explanation, super::super::Explanation::Overflow);
}

#[test]
fn the_more_urgent_are_served_first() {
    let json = r#"{"priority_policy":"prioritized","priority_groups":["G"]}"#;
    let mut bench = Bench::start(&[], json);
    bench.pull("plain", "1");
    bench.pull("two", r#"{"group":"G","batch":2,"priority":2}"#);
    bench.pull("one.a", r#"{"group":"G","batch":2,"priority":1}"#);
    bench.pull("one.b", r#"{"group":"G","batch":1,"priority":1}"#);
    bench.publish(&xs(2));
    bench.pull("zero", r#"{"group":"G"}"#);
    bench.publish(&xs(5));
    let order: Vec<_> = bench
        .out()
        .iter()
        .map(|line| line.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(order, ["one.a", "one.b", "zero", "one.a", "two", "two", "plain"]);
}
