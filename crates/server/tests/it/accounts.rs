//! Accounts: mappings, exports and imports.

use windjet_protocol::wire::Connect;
use windjet_server::client::{ConnectError, PublishError, RequestError};
use windjet_server::options::{
    AccountOptions, ExportKind, ExportOptions, ImportKind, ImportOptions, MappingDestination, MappingOptions,
    Options, PermissionList, PermissionsOptions, ResponseType, UserCredential, UserOptions,
};
use windjet_server::{Server, StartError};

fn mapping(source: &str, destinations: &[(&str, u8)]) -> MappingOptions {
    MappingOptions {
        source: source.to_owned(),
        destinations: destinations
            .iter()
            .map(|&(subject, weight)| MappingDestination {
                subject: subject.to_owned(),
                weight,
            })
            .collect(),
    }
}

fn export(kind: ExportKind, subject: &str) -> ExportOptions {
    ExportOptions {
        kind,
        subject: subject.to_owned(),
        accounts: Vec::new(),
        response_type: ResponseType::Singleton,
        response_threshold: None,
        account_token_position: None,
        allow_trace: false,
    }
}

fn import(kind: ImportKind, account: &str, subject: &str) -> ImportOptions {
    ImportOptions {
        kind,
        account: account.to_owned(),
        subject: subject.to_owned(),
        allow_trace: false,
    }
}

fn service(to: Option<&str>) -> ImportKind {
    ImportKind::Service {
        to: to.map(str::to_owned),
        share: false,
    }
}

fn stream(prefix: Option<&str>, to: Option<&str>) -> ImportKind {
    ImportKind::Stream {
        prefix: prefix.map(str::to_owned),
        to: to.map(str::to_owned),
    }
}

async fn with(change: impl FnOnce(&mut Options)) -> Result<Server, StartError> {
    Server::builder().configure(change).start().await
}

/// Accounts A and B, as given.
async fn pair(a: AccountOptions, b: AccountOptions) -> Result<Server, StartError> {
    with(|options| {
        options.accounts.insert("A".to_owned(), a);
        options.accounts.insert("B".to_owned(), b);
    })
    .await
}

fn exporting(exports: Vec<ExportOptions>) -> AccountOptions {
    AccountOptions {
        exports,
        ..AccountOptions::default()
    }
}

fn importing(imports: Vec<ImportOptions>) -> AccountOptions {
    AccountOptions {
        imports,
        ..AccountOptions::default()
    }
}

#[tokio::test]
async fn a_mapping_renames_what_is_published() {
    let server = with(|options| options.mappings.push(mapping("a.*", &[("b.$1", 100)])))
        .await
        .unwrap();
    let client = server.client();
    let mut all = client.subscribe(">").await.unwrap();
    client.publish("a.x", "1").await.unwrap();
    client.publish("c.x", "2").await.unwrap();
    assert_eq!(all.next().await.unwrap().subject, "b.x");
    assert_eq!(all.next().await.unwrap().subject, "c.x");
}

#[tokio::test]
async fn a_mapping_that_cannot_be_is_a_start_error() {
    let error = with(|options| options.mappings.push(mapping("foo", &[("bar.{{nope(1)}}", 100)])))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Error adding mapping for \"foo\" to \"bar.{{nope(1)}}\" : \
         invalid mapping destination: unknown function in {{nope(1)}}"
    );
}

#[tokio::test]
async fn accounts_share_nothing_by_default() {
    let server = pair(AccountOptions::default(), AccountOptions::default())
        .await
        .unwrap();
    let mut other = server.client_of("B").unwrap().subscribe(">").await.unwrap();
    server.client_of("A").unwrap().publish("x", "").await.unwrap();
    assert!(other.try_next().is_none());
    assert_eq!(
        server.client_of("C").unwrap_err(),
        ConnectError::NoSuchAccount("C".to_owned())
    );
}

#[tokio::test]
async fn a_stream_import_carries_messages_under_its_prefix_with_their_reply() {
    let a = exporting(vec![export(ExportKind::Stream, "s.>")]);
    let b = importing(vec![
        import(stream(Some("fromA"), None), "A", "s.>"),
        import(stream(None, Some("xx")), "A", "s.x"),
    ]);
    let server = pair(a, b).await.unwrap();
    let (outside, inside) = (server.client_of("A").unwrap(), server.client_of("B").unwrap());
    let mut prefixed = inside.subscribe("fromA.>").await.unwrap();
    let mut renamed = inside.subscribe("xx").await.unwrap();
    outside
        .publish_with_reply("s.x", "answer.here", "1")
        .await
        .unwrap();
    let message = prefixed.next().await.unwrap();
    assert_eq!(
        (&message.subject[..], message.reply.as_deref()),
        (&b"fromA.s.x"[..], Some(&b"answer.here"[..]))
    );
    assert_eq!(renamed.next().await.unwrap().payload, "1");
}

#[tokio::test]
async fn a_service_import_carries_a_request_and_its_answer() {
    let a = exporting(vec![export(ExportKind::Service, "q.>")]);
    let b = importing(vec![import(service(Some("ask.$1")), "A", "q.*")]);
    let server = pair(a, b).await.unwrap();
    let (serving, asking) = (server.client_of("A").unwrap(), server.client_of("B").unwrap());
    let mut requests = serving.subscribe("q.>").await.unwrap();
    let answering = tokio::spawn(async move {
        let request = requests.next().await.unwrap();
        let reply = request.reply.clone().unwrap();
        assert_eq!(request.subject, "q.one");
        assert!(reply.starts_with(b"_R_."), "{reply:?}");
        let info = request.headers().unwrap().unwrap();
        assert!(
            info.get_str("Nats-Request-Info")
                .unwrap()
                .starts_with("{\"acc\":\"B\"")
        );
        serving.publish(&reply, "first").await.unwrap();
        serving.publish(&reply, "second").await.unwrap();
    });
    assert_eq!(asking.request("ask.one", "?").await.unwrap().payload, "first");
    answering.await.unwrap();
}

#[tokio::test]
async fn a_streaming_service_may_answer_often() {
    let mut offered = export(ExportKind::Service, "q");
    offered.response_type = ResponseType::Stream;
    let server = pair(
        exporting(vec![offered]),
        importing(vec![import(service(None), "A", "q")]),
    )
    .await
    .unwrap();
    let (serving, asking) = (server.client_of("A").unwrap(), server.client_of("B").unwrap());
    let mut requests = serving.subscribe("q").await.unwrap();
    let mut answers = asking.subscribe("inbox").await.unwrap();
    asking.publish_with_reply("q", "inbox", "").await.unwrap();
    let reply = requests.next().await.unwrap().reply.unwrap();
    for n in 0..3 {
        serving.publish(&reply, n.to_string()).await.unwrap();
    }
    for n in 0..3 {
        assert_eq!(answers.next().await.unwrap().payload, n.to_string());
    }
}

#[tokio::test]
async fn an_imported_service_that_nobody_serves_has_no_responders() {
    let a = exporting(vec![export(ExportKind::Service, "q")]);
    let server = pair(a, importing(vec![import(service(None), "A", "q")]))
        .await
        .unwrap();
    let asking = server.client_of("B").unwrap();
    assert!(matches!(
        asking.request("q", "").await,
        Err(RequestError::NoResponders(_))
    ));
}

#[tokio::test]
async fn imports_that_are_not_offered_are_start_errors() {
    let mut private = export(ExportKind::Service, "x");
    private.accounts = vec!["A".to_owned()];
    let error = pair(
        exporting(vec![private]),
        importing(vec![import(service(None), "A", "x")]),
    )
    .await
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Error adding service import \"x\": service import not authorized"
    );
    let error = pair(
        AccountOptions::default(),
        importing(vec![import(service(None), "Z", "x")]),
    )
    .await
    .unwrap_err();
    assert_eq!(error.to_string(), "\"Z\" account not defined for service import");
}

#[tokio::test]
async fn service_imports_that_lead_back_are_start_errors() {
    let mut a = exporting(vec![export(ExportKind::Service, "x")]);
    a.imports = vec![import(service(Some("x")), "B", "x")];
    let mut b = exporting(vec![export(ExportKind::Service, "x")]);
    b.imports = vec![import(service(Some("x")), "A", "x")];
    let error = pair(a, b).await.unwrap_err();
    assert!(error.to_string().contains("import forms a cycle"), "{error}");
}

#[tokio::test]
async fn an_in_process_client_has_the_permissions_of_its_user() {
    let user = UserOptions {
        credential: UserCredential::Password {
            name: "u".to_owned(),
            password: "p".to_owned(),
        },
        permissions: Some(PermissionsOptions {
            publish: PermissionList {
                allow: vec!["open.>".to_owned()],
                deny: Vec::new(),
            },
            ..PermissionsOptions::default()
        }),
        allowed_connection_types: Vec::new(),
    };
    let server = Server::builder().add_user(user).start().await.unwrap();
    let login = |password: &str| Connect {
        user: "u".to_owned(),
        pass: password.to_owned(),
        ..Connect::default()
    };
    assert_eq!(
        server.connect(login("wrong")).await.unwrap_err(),
        ConnectError::Unauthorized
    );
    let client = server.connect(login("p")).await.unwrap();
    client.publish("open.x", "").await.unwrap();
    assert_eq!(
        client.publish("shut.x", "").await,
        Err(PublishError::Denied("shut.x".to_owned()))
    );
}
