//! Requests and events of the system account.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;
use windjet_protocol::header::HeaderMap;
use windjet_protocol::wire::Connect;
use windjet_server::client::{RequestError, Subscription};
use windjet_server::options::{
    AccountOptions, PermissionList, PermissionsOptions, UserCredential, UserOptions,
};
use windjet_server::{Builder, Client, Server};

use crate::wire::Raw;

const DEADLINE: Duration = Duration::from_secs(10);

fn user(name: &str, permissions: Option<PermissionsOptions>) -> UserOptions {
    UserOptions {
        credential: UserCredential::Password {
            name: name.to_owned(),
            password: "p".to_owned(),
        },
        permissions,
        allowed_connection_types: Vec::new(),
    }
}

/// A server with an account `A` that has the users `a` and, with few permissions, `few`.
fn described() -> Builder {
    let few = PermissionsOptions {
        publish: PermissionList {
            allow: vec!["a.>".to_owned(), "$SYS.REQ.USER.INFO".to_owned()],
            deny: vec!["x".to_owned()],
        },
        ..PermissionsOptions::default()
    };
    Server::builder()
        .name("one")
        .listen_loopback()
        .configure(move |options| {
            options.server_tags = vec!["blue".to_owned()];
            let account = AccountOptions {
                users: vec![user("a", None), user("few", Some(few))],
                ..AccountOptions::default()
            };
            options.accounts.insert("A".to_owned(), account);
        })
}

async fn login(server: &Server, name: &str) -> Raw {
    let mut raw = Raw::open(server.client_addr().unwrap()).await;
    let hello = format!(
        "CONNECT {{\"verbose\":false,\"protocol\":1,\"user\":\"{name}\",\"pass\":\"p\",\"name\":\"n\"}}\r\nPING\r\n"
    );
    raw.send(hello.as_bytes()).await;
    assert_eq!(raw.line().await, "PONG");
    assert!(raw.line().await.starts_with("INFO {"));
    raw
}

async fn ask(client: &Client, subject: &str, payload: &str) -> String {
    let answer = client.request(subject, payload.to_owned()).await.unwrap();
    String::from_utf8(answer.payload.to_vec()).unwrap()
}

async fn json(client: &Client, subject: &str, payload: &str) -> Value {
    serde_json::from_str(&ask(client, subject, payload).await).unwrap()
}

async fn next(subscription: &mut Subscription) -> (String, Value) {
    let message = timeout(DEADLINE, subscription.next()).await.unwrap().unwrap();
    let body = serde_json::from_slice(&message.payload).unwrap();
    (message.subject_str().unwrap().to_owned(), body)
}

/// What stands between two texts.
fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let rest = text.split_once(from).unwrap().1;
    rest.split_once(to).unwrap().0
}

#[tokio::test]
async fn a_client_learns_who_it_is_and_what_it_may() {
    let server = described().start().await.unwrap();
    let few = Connect {
        user: "few".to_owned(),
        pass: "p".to_owned(),
        ..Connect::default()
    };
    let client = server.connect(few).await.unwrap();
    let answer = ask(&client, "$SYS.REQ.USER.INFO", "").await;
    assert!(
        answer.starts_with("{\"server\":{\"name\":\"one\",\"host\":\"127.0.0.1\",\"id\":\"N"),
        "{answer}"
    );
    assert!(
        answer.ends_with(
            "\"data\":{\"user\":\"few\",\"account\":\"A\",\"account_name\":\"A\",\"permissions\":{\"publish\":\
             {\"allow\":[\"a.\\u003e\",\"$SYS.REQ.USER.INFO\"],\"deny\":[\"x\"]},\"subscribe\":{}}}}"
        ),
        "{answer}"
    );
    let anonymous = ask(&server.client(), "$SYS.REQ.USER.INFO", "").await;
    assert!(
        anonymous.ends_with("\"data\":{\"user\":\"\",\"account\":\"$G\",\"account_name\":\"$G\"}}"),
        "{anonymous}"
    );
}

#[tokio::test]
async fn an_ordinary_account_sees_its_own_connections_only() {
    let server = described().start().await.unwrap();
    let inside = server.client_of("A").unwrap();
    let _elsewhere = server.client();
    let answer = json(&inside, "$SYS.REQ.SERVER.PING.CONNZ", "").await;
    assert_eq!(answer["data"]["num_connections"], 1);
    let forged = json(&inside, "$SYS.REQ.ACCOUNT.PING.CONNZ", "{\"acc\":\"$G\"}").await;
    assert_eq!(forged["data"]["num_connections"], 1);
    assert_eq!(
        forged["data"]["connections"][0]["cid"],
        answer["data"]["connections"][0]["cid"]
    );
    let statz = json(&inside, "$SYS.REQ.ACCOUNT.PING.STATZ", "").await;
    assert_eq!(statz["data"]["account_statz"][0]["acc"], "A");
    let refused = inside.request("$SYS.REQ.SERVER.PING.VARZ", "").await;
    assert!(
        matches!(refused, Err(RequestError::NoResponders(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn the_system_account_may_ask_for_everything() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let _client = server.client_of("A").unwrap();
    let id = server.id().to_owned();
    let idz = ask(&system, "$SYS.REQ.SERVER.PING.IDZ", "").await;
    assert_eq!(
        idz,
        format!("{{\"name\":\"one\",\"host\":\"127.0.0.1\",\"id\":\"{id}\"}}")
    );
    for what in [
        "VARZ", "CONNZ", "SUBSZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ",
    ] {
        let answer = json(&system, &format!("$SYS.REQ.SERVER.{id}.{what}"), "").await;
        assert!(
            answer["data"].is_object() && answer["error"].is_null(),
            "{what} {answer}"
        );
    }
    let health = json(&system, "$SYS.REQ.SERVER.PING.HEALTHZ", "").await;
    assert_eq!(health["data"]["status_code"], 200);
    let statsz = json(&system, "$SYS.REQ.SERVER.PING", "").await;
    assert_eq!(statsz["statsz"]["connections"], 2);
    let first = json(&system, "$SYS.REQ.SERVER.PING", "").await["server"]["seq"].as_u64();
    let second = json(&system, "$SYS.REQ.SERVER.PING", "").await["server"]["seq"].as_u64();
    assert!(first < second);
    let account = json(&system, "$SYS.REQ.ACCOUNT.A.CONNZ", "").await;
    assert_eq!(account["data"]["num_connections"], 1);
    let conns = json(&system, "$SYS.REQ.ACCOUNT.A.CONNS", "").await;
    assert_eq!(
        (&conns["acc"], &conns["conns"]),
        (&Value::from("A"), &Value::from(1))
    );
    let missing = ask(&system, "$SYS.REQ.ACCOUNT.NOPE.INFO", "").await;
    assert!(
        missing.ends_with(
            "\"data\":null,\"error\":{\"code\":500,\"description\":\"Account NOPE does not exist\"}}"
        ),
        "{missing}"
    );
    let bad = json(&system, "$SYS.REQ.SERVER.PING.VARZ", "{x").await;
    assert_eq!(bad["error"]["code"], 400);
    let count = ask(
        &system,
        "$SYS.REQ.ACCOUNT.NSUBS",
        "{\"acc\":\"A\",\"subject\":\"foo\"}",
    )
    .await;
    assert_eq!(count, "0");
}

#[tokio::test]
async fn a_server_that_is_not_meant_stays_silent() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let mut answers = system.subscribe("in.*").await.unwrap();
    for (reply, filter) in [
        ("in.other", "{\"server_name\":\"two\"}"),
        ("in.exact", "{\"server_name\":\"on\",\"exact_match\":true}"),
        ("in.tag", "{\"tags\":[\"blue\",\"red\"]}"),
        ("in.domain", "{\"domain\":\"d\"}"),
        ("in.cluster", "{\"cluster\":\"c\"}"),
        ("in.part", "{\"server_name\":\"on\"}"),
        ("in.blue", "{\"tags\":[\"BLUE\"]}"),
    ] {
        system
            .publish_with_reply("$SYS.REQ.SERVER.PING.HEALTHZ", reply, filter)
            .await
            .unwrap();
    }
    assert_eq!(next(&mut answers).await.0, "in.part");
    assert_eq!(next(&mut answers).await.0, "in.blue");
}

#[tokio::test]
async fn an_answer_is_compressed_for_those_who_ask() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Accept-Encoding", "gzip").unwrap();
    let answer = system
        .request_within(
            "$SYS.REQ.SERVER.PING.VARZ",
            Some(&headers),
            Bytes::new(),
            DEADLINE,
        )
        .await
        .unwrap();
    let headers = answer.headers().unwrap().unwrap();
    assert_eq!(headers.get_str("Content-Encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer.payload[..])
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.starts_with("{\"server\":{\"name\":\"one\""), "{text}");
}

#[tokio::test]
async fn connecting_and_leaving_are_told_to_the_system_account() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let mut events = system.subscribe("$SYS.ACCOUNT.A.*").await.unwrap();
    let mut counts = system.subscribe("$SYS.ACCOUNT.A.SERVER.CONNS").await.unwrap();
    let mut client = login(&server, "a").await;
    let (subject, event) = next(&mut events).await;
    assert_eq!(subject, "$SYS.ACCOUNT.A.CONNECT");
    assert_eq!(event["type"], "io.nats.server.advisory.v1.client_connect");
    assert_eq!(event["id"].as_str().unwrap().len(), 22);
    let text = event["client"].to_string();
    for expected in [
        "\"acc\":\"A\"",
        "\"user\":\"a\"",
        "\"name\":\"n\"",
        "\"kind\":\"Client\"",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(next(&mut counts).await.1["conns"], 1);
    client.send(b"PUB foo 5\r\nhello\r\nPING\r\n").await;
    assert_eq!(client.line().await, "PONG");
    drop(client);
    let (subject, event) = next(&mut events).await;
    assert_eq!(subject, "$SYS.ACCOUNT.A.DISCONNECT");
    assert_eq!(event["reason"], "Client Closed");
    assert_eq!(
        (&event["sent"]["msgs"], &event["sent"]["bytes"]),
        (&Value::from(1), &Value::from(5))
    );
    assert!(event["client"]["stop"].is_string());
    assert_eq!(next(&mut counts).await.1["conns"], 0);
}

#[tokio::test]
async fn refused_credentials_are_told() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let mut events = system.subscribe("$SYS.SERVER.*.CLIENT.AUTH.ERR").await.unwrap();
    let mut raw = Raw::open(server.client_addr().unwrap()).await;
    raw.send(b"CONNECT {\"user\":\"a\",\"pass\":\"wrong\"}\r\n").await;
    assert_eq!(raw.rest().await, "-ERR 'Authorization Violation'\r\n");
    let (_, event) = next(&mut events).await;
    assert_eq!(event["reason"], "Authentication Failure");
    assert_eq!(event["client"]["user"], "a");
}

#[tokio::test]
async fn clients_are_kicked_and_sent_elsewhere_by_order() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let id = server.id().to_owned();
    let mut client = login(&server, "a").await;
    let connz = json(&system, "$SYS.REQ.ACCOUNT.A.CONNZ", "").await;
    let order = format!("{{\"cid\":{}}}", connz["data"]["connections"][0]["cid"]);
    let done = json(&system, &format!("$SYS.REQ.SERVER.{id}.LDM"), &order).await;
    assert!(done["error"].is_null(), "{done}");
    assert!(client.line().await.contains("\"ldm\":true"));
    json(&system, &format!("$SYS.REQ.SERVER.{id}.KICK"), &order).await;
    assert_eq!(client.rest().await, "");
    let unknown = ask(&system, &format!("$SYS.REQ.SERVER.{id}.KICK"), "{\"cid\":99999}").await;
    assert_eq!(
        between(&unknown, "\"description\":\"", "\""),
        "no such client or leafnode id"
    );
}

#[tokio::test]
async fn a_reload_by_request_needs_somebody_who_knows_the_options() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let subject = format!("$SYS.REQ.SERVER.{}.RELOAD", server.id());
    let refused = json(&system, &subject, "").await;
    assert_eq!(
        refused["error"]["description"],
        "can only reload config when a file is provided using -c or --config"
    );
    let mut options = (*server.options()).clone();
    options.max_payload = 5;
    let server = Server::builder()
        .options(options.clone())
        .reload_from(move || Ok(options.clone()))
        .configure(|options| options.max_payload = 1_000)
        .start()
        .await
        .unwrap();
    let system = server.client_of("$SYS").unwrap();
    let subject = format!("$SYS.REQ.SERVER.{}.RELOAD", server.id());
    let done = json(&system, &subject, "").await;
    assert!(done["error"].is_null(), "{done}");
    assert_eq!(server.options().max_payload, 5);
}

#[tokio::test]
async fn counters_come_by_themselves_and_the_end_is_announced() {
    let server = described().start().await.unwrap();
    let system = server.client_of("$SYS").unwrap();
    let mut counters = system.subscribe("$SYS.SERVER.*.STATSZ").await.unwrap();
    assert_eq!(next(&mut counters).await.1["statsz"]["active_servers"], 1);
    let mut end = system.subscribe("$SYS.SERVER.*.SHUTDOWN").await.unwrap();
    assert!(server.shutdown(DEADLINE).await.complete);
    assert_eq!(next(&mut end).await.1["name"], "one");
}

#[tokio::test]
async fn without_a_system_account_nobody_answers() {
    let server = Server::builder()
        .configure(|options| options.no_system_account = true)
        .start()
        .await
        .unwrap();
    let refused = server.client().request("$SYS.REQ.USER.INFO", "").await;
    assert!(
        matches!(refused, Err(RequestError::NoResponders(_))),
        "{refused:?}"
    );
}
