//! Running a server: reload and lame duck mode.

use std::time::Duration;

use windjet_server::options::{PermissionList, PermissionsOptions, UserCredential, UserOptions};
use windjet_server::{ReloadError, Server};

use crate::wire::Raw;

fn user(name: &str, subscribe: &[&str]) -> UserOptions {
    UserOptions {
        credential: UserCredential::Password {
            name: name.to_owned(),
            password: "p".to_owned(),
        },
        permissions: Some(PermissionsOptions {
            subscribe: PermissionList {
                allow: subscribe.iter().map(|&pattern| pattern.to_owned()).collect(),
                deny: Vec::new(),
            },
            ..PermissionsOptions::default()
        }),
        allowed_connection_types: Vec::new(),
    }
}

async fn login(server: &Server, name: &str) -> Raw {
    let hello = format!(
        "CONNECT {{\"user\":\"{name}\",\"pass\":\"p\",\"verbose\":false,\"protocol\":1}}\r\nPING\r\n"
    );
    let mut raw = Raw::open(server.client_addr().unwrap()).await;
    raw.send(hello.as_bytes()).await;
    assert_eq!(raw.line().await, "PONG");
    assert!(raw.line().await.contains("\"connect_info\":true"));
    raw
}

#[tokio::test]
async fn a_reload_turns_out_removed_users_and_revokes_subscriptions() {
    let server = Server::builder()
        .listen_loopback()
        .add_user(user("goes", &[]))
        .add_user(user("stays", &["a", "b"]))
        .start()
        .await
        .unwrap();
    let mut goes = login(&server, "goes").await;
    let mut stays = login(&server, "stays").await;
    stays.send(b"SUB a 1\r\nSUB b 2\r\nPING\r\n").await;
    assert_eq!(stays.line().await, "PONG");
    let mut options = (*server.options()).clone();
    options.auth.users = vec![user("stays", &["a"])];
    let report = server.reload(options).unwrap();
    let applied: Vec<String> = report.applied.iter().map(ToString::to_string).collect();
    assert_eq!(applied, ["authorization users"]);
    assert_eq!(goes.rest().await, "", "closed without a text");
    assert_eq!(
        stays.line().await,
        "-ERR 'Permissions Violation for Subscription to \"b\" (sid \"2\")'"
    );
    server.client().publish("b", "no").await.unwrap();
    server.client().publish("a", "yes").await.unwrap();
    assert_eq!(stays.line().await, "MSG a 1 3");
}

#[tokio::test]
async fn credentials_given_to_an_open_server_count_once_it_asks_for_some() {
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let mut known = login(&server, "known").await;
    let mut unknown = login(&server, "unknown").await;
    let mut options = (*server.options()).clone();
    options.auth.users = vec![user("known", &[])];
    server.reload(options).unwrap();
    assert_eq!(unknown.rest().await, "", "closed without a text");
    known.send(b"PING\r\n").await;
    assert_eq!(known.line().await, "PONG");
}

#[tokio::test]
async fn an_option_that_needs_a_restart_refuses_the_whole_reload() {
    let server = Server::builder().name("one").start().await.unwrap();
    let mut options = (*server.options()).clone();
    options.max_payload = 5;
    options.server_name = Some("two".to_owned());
    let error = server.reload(options).unwrap_err();
    assert_eq!(
        error,
        ReloadError::NeedsRestart {
            option: "ServerName",
            old: "one".to_owned(),
            new: "two".to_owned()
        }
    );
    server.client().publish("a", "123456").await.unwrap();
}

#[tokio::test]
async fn a_lower_connection_limit_closes_the_newest() {
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let mut first = Raw::connect(server.client_addr().unwrap()).await;
    let mut second = Raw::connect(server.client_addr().unwrap()).await;
    let mut options = (*server.options()).clone();
    options.max_connections = 1;
    server.reload(options).unwrap();
    assert_eq!(second.rest().await, "-ERR 'maximum connections exceeded'\r\n");
    first.send(b"PING\r\n").await;
    assert_eq!(first.line().await, "PONG");
}

#[tokio::test]
async fn lame_duck_tells_the_clients_and_then_sends_them_away() {
    let server = Server::builder()
        .listen_loopback()
        .add_user(user("u", &[]))
        .configure(|options| {
            options.lame_duck_grace_period = Duration::from_millis(50);
            options.lame_duck_duration = Duration::from_secs(30);
        })
        .start()
        .await
        .unwrap();
    let mut client = login(&server, "u").await;
    let address = server.client_addr().unwrap();
    let (_, rest) = tokio::join!(server.lame_duck(), client.rest());
    assert!(
        rest.starts_with("INFO {") && rest.contains("\"ldm\":true"),
        "{rest}"
    );
    assert!(!rest.contains("-ERR"), "{rest}");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    assert!(server.shutdown(Duration::from_secs(5)).await.complete);
}
