//! Monitoring over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use windjet_server::options::{ListenAddress, Options};
use windjet_server::{Builder, Server};

use crate::wire::Raw;

const DEADLINE: Duration = Duration::from_secs(10);

fn monitored() -> Builder {
    Server::builder().listen_loopback().configure(|options| {
        options.monitoring.http = Some(ListenAddress::loopback());
    })
}

async fn start(change: impl FnOnce(&mut Options)) -> (Server, SocketAddr) {
    let server = monitored().configure(change).start().await.unwrap();
    let address = server.monitoring_addr().unwrap();
    (server, address)
}

/// Head and body of the answer to a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, socket.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

async fn json(address: SocketAddr, path: &str) -> Value {
    let (head, body) = get(address, path).await;
    assert!(head.starts_with("http/1.1 200"), "{head} {body}");
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains("access-control-allow-origin: *"), "{head}");
    serde_json::from_str(&body).unwrap()
}

/// Names of the fields at one level of an indented document, in the order in which they stand there.
fn fields(body: &str, depth: usize) -> Vec<&str> {
    let indent = "  ".repeat(depth);
    body.lines()
        .filter_map(|line| line.strip_prefix(&indent)?.strip_prefix('"'))
        .filter_map(|rest| rest.split_once("\":").map(|(name, _)| name))
        .collect()
}

fn cids(document: &Value) -> Vec<u64> {
    document["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|connection| connection["cid"].as_u64().unwrap())
        .collect()
}

/// Asks until the answer holds.
async fn until(address: SocketAddr, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let asking = async {
        loop {
            let document = json(address, path).await;
            if holds(&document) {
                return document;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, asking).await.unwrap()
}

#[tokio::test]
async fn varz_has_the_fields_of_the_reference_in_its_order() {
    let (_server, address) = start(|options| {
        options.server_tags = vec!["Blue".to_owned()];
    })
    .await;
    let (_, body) = get(address, "/varz").await;
    let expected = "server_id server_name version proto go host port max_connections ping_interval ping_max \
        http_host http_port http_base_path https_port auth_timeout max_control_line max_payload max_pending \
        cluster gateway leaf mqtt websocket jetstream tls_timeout write_deadline start now uptime mem cores \
        gomaxprocs cpu connections total_connections routes remotes leafnodes in_msgs in_bytes in_client_msgs \
        in_client_bytes out_msgs out_bytes out_client_msgs out_client_bytes slow_consumers stale_connections \
        stalled_clients subscriptions http_req_stats config_load_time config_digest tags feature_flags \
        system_account slow_consumer_stats stale_connection_stats disk_io_wait_stats";
    assert_eq!(fields(&body, 1), expected.split_whitespace().collect::<Vec<_>>());
    assert!(body.contains("\"auth_timeout\": 2,"), "{body}");
    assert!(body.contains("\"blue\""), "{body}");
}

#[tokio::test]
async fn counters_are_exact_once_a_ping_is_answered() {
    let (server, address) = start(|_| {}).await;
    let clients = server.client_addr().unwrap();
    let mut receiver = Raw::connect(clients).await;
    receiver.send(b"SUB foo 1\r\nSUB foo 2\r\nPING\r\n").await;
    assert_eq!(receiver.line().await, "PONG");
    let mut sender = Raw::connect(clients).await;
    sender
        .send(b"PUB foo 5\r\nhello\r\nHPUB foo 17 22\r\nNATS/1.0\r\nA:b\r\n\r\nhello\r\nPUB nobody 1\r\nx\r\nPING\r\n")
        .await;
    assert_eq!(sender.line().await, "PONG");
    let varz = json(address, "/varz").await;
    for (field, value) in [
        ("in_msgs", 3),
        ("in_bytes", 28),
        ("out_msgs", 4),
        ("out_bytes", 54),
    ] {
        assert_eq!(varz[field], value, "{field}");
    }
    let connz = json(address, "/connz").await;
    let of = |n: usize, field: &str| connz["connections"][n][field].as_u64().unwrap();
    assert_eq!(
        (of(0, "out_msgs"), of(0, "out_bytes"), of(0, "in_msgs")),
        (4, 54, 0)
    );
    assert_eq!(
        (of(1, "in_msgs"), of(1, "in_bytes"), of(1, "out_msgs")),
        (3, 28, 0)
    );
}

#[tokio::test]
async fn connz_shows_open_and_closed_connections() {
    let (server, address) = start(|_| {}).await;
    let clients = server.client_addr().unwrap();
    let mut first = Raw::open(clients).await;
    first
        .send(b"CONNECT {\"verbose\":false,\"name\":\"one\",\"lang\":\"rust\",\"version\":\"1\"}\r\nSUB a 1\r\nSUB b q 2\r\nPING\r\n")
        .await;
    assert_eq!(first.line().await, "PONG");
    let mut second = Raw::connect(clients).await;
    second.send(b"SUB c 1\r\nPING\r\n").await;
    assert_eq!(second.line().await, "PONG");
    let (_, body) = get(address, "/connz").await;
    let expected = "cid kind type ip port start last_activity rtt uptime idle pending_bytes in_msgs out_msgs in_bytes \
        out_bytes subscriptions name lang version";
    assert_eq!(
        fields(&body, 3)[..19],
        expected.split_whitespace().collect::<Vec<_>>()[..]
    );
    let open = json(address, "/connz?subs=1").await;
    let ids = cids(&open);
    assert_eq!((ids.len(), &open["total"]), (2, &Value::from(2)));
    assert_eq!(open["connections"][0]["subscriptions"], 2);
    assert_eq!(
        open["connections"][0]["subscriptions_list"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(cids(&json(address, "/connz?sort=subs&limit=1").await), [ids[0]]);
    assert_eq!(cids(&json(address, "/connz?offset=1").await), [ids[1]]);
    drop(second);
    let closed = until(address, "/connz?state=closed", |connz| {
        connz["num_connections"] == 1
    })
    .await;
    assert_eq!(cids(&closed), [ids[1]]);
    assert_eq!(closed["connections"][0]["reason"], "Client Closed");
    assert_eq!(closed["connections"][0]["subscriptions"], 1);
    assert!(closed["connections"][0]["stop"].is_string());
    assert_eq!(cids(&json(address, "/connz?state=all").await), ids);
    assert_eq!(
        cids(&json(address, &format!("/connz?state=closed&cid={}", ids[1])).await),
        [ids[1]]
    );
    let detail = json(address, "/connz?subs=detail").await;
    let detail = &detail["connections"][0]["subscriptions_list_detail"];
    assert!(detail.to_string().contains("\"qgroup\":\"q\""), "{detail}");
}

#[tokio::test]
async fn users_and_accounts_are_shown_to_those_who_ask() {
    let (server, address) = start(|options| options.auth.user = Some(("u".to_owned(), "p".to_owned()))).await;
    let clients = server.client_addr().unwrap();
    let mut known = Raw::open(clients).await;
    known
        .send(b"CONNECT {\"verbose\":false,\"user\":\"u\",\"pass\":\"p\"}\r\nPING\r\n")
        .await;
    assert_eq!(known.line().await, "PONG");
    let mut unknown = Raw::open(clients).await;
    unknown
        .send(b"CONNECT {\"verbose\":false,\"user\":\"who\",\"pass\":\"p\"}\r\n")
        .await;
    assert_eq!(unknown.rest().await, "-ERR 'Authorization Violation'\r\n");
    let plain = json(address, "/connz").await;
    assert_eq!(plain["connections"][0]["authorized_user"], Value::Null);
    let asked = json(address, "/connz?auth=1").await;
    assert_eq!(asked["connections"][0]["authorized_user"], "u");
    let closed = until(address, "/connz?auth=1&state=closed", |connz| {
        connz["num_connections"] == 1
    })
    .await;
    assert_eq!(closed["connections"][0]["authorized_user"], "who");
    assert_eq!(closed["connections"][0]["reason"], "Authentication Failure");
    assert_eq!(cids(&json(address, "/connz?user=u").await).len(), 1);
    assert_eq!(cids(&json(address, "/connz?user=nobody").await).len(), 0);
    assert_eq!(json(address, "/connz?acc=NOPE").await["connections"], Value::Null);
}

#[tokio::test]
async fn bad_parameters_are_refused_in_the_words_of_the_reference() {
    let (_server, address) = start(|_| {}).await;
    for (path, text) in [
        ("/connz?sort=foo", "invalid sorting option: foo"),
        ("/connz?state=foo", "Error decoding state for foo"),
        (
            "/connz?sort=stop",
            "sort by stop only valid on closed connections",
        ),
        (
            "/connz?cid=x",
            "Error decoding uint64 for 'cid': strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (
            "/subsz?test=a.*",
            "invalid test subject, must be valid publish subject: a.*",
        ),
        ("/accountz?acc=NOPE", "Account NOPE does not exist"),
    ] {
        let (head, body) = get(address, path).await;
        assert!(head.starts_with("http/1.1 400"), "{path} {head}");
        assert!(
            head.contains("content-type: text/plain; charset=utf-8"),
            "{path} {head}"
        );
        assert_eq!(body, text, "{path}");
    }
}

#[tokio::test]
async fn unknown_paths_and_pages_beside_the_base_path_do_not_exist() {
    let (_server, address) = start(|options| options.monitoring.base_path = "/base".to_owned()).await;
    assert_eq!(get(address, "/base/healthz").await.1, "{\"status\":\"ok\"}");
    for path in ["/healthz", "/base/nope", "/base/varz/"] {
        let (head, body) = get(address, path).await;
        assert!(head.starts_with("http/1.1 404"), "{path} {head}");
        assert_eq!(body, "404 page not found\n");
    }
}

#[tokio::test]
async fn subsz_lists_what_matches_a_subject() {
    let (server, address) = start(|_| {}).await;
    let mut client = Raw::connect(server.client_addr().unwrap()).await;
    client
        .send(b"SUB a.b 1\r\nSUB a.* q 2\r\nSUB other 3\r\nUNSUB 3 7\r\nPING\r\n")
        .await;
    assert_eq!(client.line().await, "PONG");
    let found = json(address, "/subsz?subs=1&test=a.b").await;
    assert_eq!(found["total"], 2);
    let found = json(address, "/subsz?subs=1&test=other").await;
    assert_eq!(found["subscriptions_list"][0]["max"], 7);
    assert_eq!(found["subscriptions_list"][0]["account"], "$G");
}

#[tokio::test]
async fn a_client_that_sends_no_request_does_not_hold_up_the_others_or_the_shutdown() {
    let (server, address) = start(|_| {}).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(b"GET /va").await.unwrap();
    assert_eq!(json(address, "/routez").await["num_routes"], 0);
    assert!(server.shutdown(DEADLINE).await.complete);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn messages_of_an_in_process_client_are_counted_both_ways() {
    let (server, address) = start(|_| {}).await;
    let client = server.client();
    let mut foo = client.subscribe("foo").await.unwrap();
    client.publish("foo", "hello").await.unwrap();
    assert!(foo.try_next().is_some());
    let connz = json(address, "/connz").await;
    let connection = &connz["connections"][0];
    for field in ["in_msgs", "out_msgs"] {
        assert_eq!(connection[field], 1, "{connz}");
    }
    assert_eq!(connection["out_bytes"], 5, "{connz}");
}
