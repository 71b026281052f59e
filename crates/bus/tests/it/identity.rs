//! Keys, permissions, encryption: who may come in, and what a worker may do.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;
use windjet_bus::auth::{Credential, WorkerKey, inbox_prefix};
use windjet_bus::broker::{Auth, Tls};
use windjet_bus::client::{Backoff, ClientTls, LeaseCall, lease_handler};
use windjet_bus::{Broker, BrokerConfig, Bus, Client, ConnectOptions, ErrorKind, Layout, LinkState, Token};
use windjet_client::async_nats;

use crate::support::{LIMIT, bytes, config, quick, token, until};

struct Farm {
    broker: Broker,
    keys: Vec<(Token, Arc<WorkerKey>)>,
    folder: TempDir,
}

fn credentials(keys: &[(Token, Arc<WorkerKey>)]) -> Vec<Credential> {
    let one = |(worker, key): &(Token, Arc<WorkerKey>)| Credential {
        worker: worker.clone(),
        public_key: key.public_key(),
    };
    keys.iter().map(one).collect()
}

impl Farm {
    /// A broker with two enrolled workers, `w1` and `w2`.
    async fn new(change: impl FnOnce(&mut BrokerConfig, &TempDir)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys: Vec<_> = ["w1", "w2"]
            .map(|id| (token(id), Arc::new(WorkerKey::generate())))
            .into();
        let mut config = BrokerConfig {
            layout: Layout::Identity,
            auth: Some(Auth {
                workers: credentials(&keys),
            }),
            ..config(&folder)
        };
        change(&mut config, &folder);
        let broker = Broker::new(config);
        broker.start().await.unwrap();
        Self { broker, keys, folder }
    }

    fn url(&self) -> String {
        self.broker.client_url().unwrap()
    }

    fn options(&self, worker: usize) -> ConnectOptions {
        let (id, key) = self.keys[worker].clone();
        ConnectOptions::identified(id, key).backoff(Backoff {
            base: Duration::from_millis(20),
            cap: Duration::from_millis(100),
        })
    }

    async fn worker(&self, worker: usize) -> Client {
        Client::connect(&self.url(), self.options(worker)).await.unwrap()
    }

    /// A worker's connection without the bus's manners.
    async fn raw(&self, worker: usize) -> (async_nats::Client, Arc<Mutex<Vec<String>>>) {
        let refusals: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = refusals.clone();
        let (id, key) = &self.keys[worker];
        let client = async_nats::ConnectOptions::new()
            .nkey(key.seed().unwrap())
            .custom_inbox_prefix(inbox_prefix(id))
            .event_callback(move |event| {
                let heard = heard.clone();
                async move {
                    if let async_nats::Event::ServerError(error) = event {
                        heard.lock().push(error.to_string());
                    }
                }
            })
            .connect(self.url())
            .await
            .unwrap();
        (client, refusals)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_anonymous_and_unknown_keys_are_refused_and_an_enrolled_one_is_let_in() {
    let farm = Farm::new(|_, _| ()).await;
    let anonymous = Client::connect(&farm.url(), quick()).await.unwrap_err();
    assert_eq!(anonymous.kind(), &ErrorKind::AuthRejected);
    let unknown = ConnectOptions::identified(token("w1"), Arc::new(WorkerKey::generate()));
    let unknown = Client::connect_patiently(&farm.url(), unknown).await.unwrap_err();
    assert_eq!(unknown.kind(), &ErrorKind::AuthRejected);
    assert!(unknown.to_string().contains("enrol"), "{unknown}");
    let worker = farm.worker(0).await;
    worker.publish_worker_register(bytes("here")).await.unwrap();
    worker.drain(LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b8_enrolling_disturbs_nobody_and_revoking_ends_that_connection_only() {
    let mut farm = Farm::new(|_, _| ()).await;
    let (first, second) = (farm.worker(0).await, farm.worker(1).await);
    let states = [first.state(), second.state()];
    farm.keys.push((token("w3"), Arc::new(WorkerKey::generate())));
    farm.broker
        .reload_credentials(credentials(&farm.keys))
        .await
        .unwrap();
    let third = farm.worker(2).await;
    third.publish_worker_register(bytes("w3")).await.unwrap();

    farm.broker
        .reload_credentials(credentials(&[farm.keys[0].clone(), farm.keys[2].clone()]))
        .await
        .unwrap();
    let mut state = second.state();
    let rejected = tokio::time::timeout(LIMIT, state.wait_for(|state| *state == LinkState::Rejected)).await;
    rejected.unwrap().unwrap();
    let error = second.publish_worker_register(bytes("w2")).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::AuthRejected);
    first.publish_worker_register(bytes("w1")).await.unwrap();
    third.publish_worker_register(bytes("w3")).await.unwrap();
    // The others never lost their connection.
    assert!(!states[0].has_changed().unwrap() || matches!(*states[0].borrow(), LinkState::Connected(_)));
    assert!(matches!(*first.state().borrow(), LinkState::Connected(_)));
}

/// B-9, B-10 and issue 6: a worker's credentials cannot read or write another worker's subjects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_the_matrix_of_what_a_worker_may_publish_and_hear() {
    let farm = Farm::new(|_, _| ()).await;
    let (raw, refusals) = farm.raw(0).await;
    let own = [
        "task.status.w1.j",
        "task.logs.w1.t",
        "worker.register.w1",
        "worker.heartbeat.w1",
        "worker.deregister.w1",
        "worker.diag.w1",
        "work.lease.w1.q",
    ];
    for subject in own {
        raw.publish(subject, "x".into()).await.unwrap();
        raw.flush().await.unwrap();
        let answer = raw
            .request("$JS.API.DIRECT.GET.SQI_CANCEL.task.cancel.none", "".into())
            .await;
        assert!(answer.is_ok(), "the round trip after {subject}: {answer:?}");
        assert_eq!(refusals.lock().clone(), Vec::<String>::new(), "{subject}");
    }
    let foreign = own.map(|subject| subject.replace("w1", "w2"));
    let more = [
        "task.cancel.t",
        "task.status.j",
        "worker.register",
        "_INBOX.x",
        "_INBOX_w2.x",
        "dead.x",
        "$SYS.REQ.SERVER.PING",
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.DELETE.SQI_TASK",
        "$JS.API.CONSUMER.CREATE.SQI_LOGS.x",
        "$JS.API.DIRECT.GET.SQI_LOGS",
        "$JS.API.DIRECT.GET.SQI_TASK.task.status.w2.j",
        "$JS.API.STREAM.MSG.GET.SQI_TASK",
        "$JS.ACK.SQI_TASK.sqi-task-status-srv.1.1.1.1.0",
    ];
    for subject in foreign.iter().map(String::as_str).chain(more) {
        let before = refusals.lock().len();
        raw.publish(subject.to_owned(), "x".into()).await.unwrap();
        until(&format!("the refusal of {subject}"), || async {
            refusals.lock().len() > before
        })
        .await;
        let text = refusals.lock().last().cloned().unwrap();
        assert!(
            text.to_lowercase().contains("permissions violation for publish"),
            "{subject}: {text}"
        );
    }
    for subject in [
        ">",
        "task.status.>",
        "task.logs.>",
        "task.status.w1.*",
        "_INBOX.>",
        "_INBOX_w2.>",
        "work.lease.>",
        "worker.diag.>",
        "dead.>",
        "$JS.>",
        "$SYS.>",
    ] {
        let before = refusals.lock().len();
        let _subscription = raw.subscribe(subject).await.unwrap();
        until(&format!("the refusal of {subject}"), || async {
            refusals.lock().len() > before
        })
        .await;
        let text = refusals.lock().last().cloned().unwrap();
        assert!(
            text.to_lowercase()
                .contains("permissions violation for subscription"),
            "{subject}: {text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_a_workers_lease_reply_reaches_no_other_worker() {
    let farm = Farm::new(|_, _| ()).await;
    let server = farm.broker.client().unwrap();
    let handler =
        lease_handler(|call: LeaseCall| async move { format!("for {}", call.worker.unwrap()).into() });
    server.subscribe_lease(handler).await.unwrap();
    let (first, second) = (farm.worker(0).await, farm.worker(1).await);
    for _ in 0..20 {
        let (one, two) = tokio::join!(
            first.request_lease("q1", bytes("x"), LIMIT),
            second.request_lease("_any", bytes("x"), LIMIT)
        );
        assert_eq!(&one.unwrap()[..], b"for w1");
        assert_eq!(&two.unwrap()[..], b"for w2");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_hears_cancels_with_its_permissions() {
    let farm = Farm::new(|_, _| ()).await;
    let server = farm.broker.client().unwrap();
    server
        .publish_task_cancel(&token("t1"), bytes("stop"))
        .await
        .unwrap();
    let worker = farm.worker(0).await;
    let heard = Arc::new(Mutex::new(0));
    let count = heard.clone();
    worker
        .subscribe_task_cancel(&token("t1"), Arc::new(move |_| *count.lock() += 1))
        .await
        .unwrap();
    assert_eq!(*heard.lock(), 1);
    server
        .publish_task_cancel(&token("t1"), bytes("stop"))
        .await
        .unwrap();
    // It may be told more than once, for one after the connection says that it stands.
    until("the second is heard", || async { *heard.lock() >= 2 }).await;
}

/// L-6: in the identity layout a request without identity is never answered, and the handler is not called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l6_a_request_without_identity_is_never_answered() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::new(BrokerConfig {
        layout: Layout::Identity,
        ..config(&folder)
    });
    broker.start().await.unwrap();
    let server = broker.client().unwrap();
    let calls = Arc::new(Mutex::new(0));
    let count = calls.clone();
    let handler = lease_handler(move |call: LeaseCall| {
        *count.lock() += 1;
        async move { call.data }
    });
    server.subscribe_lease(handler).await.unwrap();
    let plain = Client::connect(&broker.client_url().unwrap(), quick())
        .await
        .unwrap();
    let limit = Duration::from_millis(300);
    let error = plain.request_lease("q1", bytes("x"), limit).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Timeout { limit });
    assert_eq!(*calls.lock(), 0);
    assert_eq!(server.counts().leases_dropped, 1);
}

struct Pki {
    ca: PathBuf,
    server: (PathBuf, PathBuf),
    client: (PathBuf, PathBuf),
    other_ca: PathBuf,
}

fn pki(folder: &std::path::Path) -> Pki {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let authority = || {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), Issuer::new(params, key))
    };
    let write = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let (ca_pem, issuer) = authority();
    let (other_pem, _) = authority();
    let leaf = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (
            write(&format!("{name}.pem"), certificate.pem()),
            write(&format!("{name}.key"), key.serialize_pem()),
        )
    };
    Pki {
        server: leaf("server"),
        client: leaf("client"),
        ca: write("ca.pem", ca_pem),
        other_ca: write("other.pem", other_pem),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b11_with_tls_plaintext_a_wrong_authority_and_a_missing_certificate_are_refused() {
    for client_certificates in [false, true] {
        let mut files = None;
        let farm = Farm::new(|config, folder| {
            let pki = pki(folder.path());
            config.tls = Some(Tls {
                cert_file: pki.server.0.clone(),
                key_file: pki.server.1.clone(),
                client_ca_file: client_certificates.then(|| pki.ca.clone()),
            });
            files = Some(pki);
        })
        .await;
        let pki = files.unwrap();
        assert!(farm.folder.path().join("ca.pem").exists());
        let tls = |ca: &PathBuf, certificate: Option<(PathBuf, PathBuf)>| ClientTls {
            ca_file: Some(ca.clone()),
            certificate,
        };
        let certificate = client_certificates.then(|| pki.client.clone());
        let connect = |options: ConnectOptions| {
            let url = farm.url();
            async move {
                tokio::time::timeout(LIMIT, Client::connect(&url, options))
                    .await
                    .unwrap()
            }
        };

        let good = connect(farm.options(0).tls(tls(&pki.ca, certificate.clone())))
            .await
            .unwrap();
        good.publish_worker_register(bytes("x")).await.unwrap();
        good.drain(LIMIT).await.unwrap();

        let wrong = connect(farm.options(0).tls(tls(&pki.other_ca, certificate.clone())))
            .await
            .unwrap_err();
        assert_eq!(wrong.kind(), &ErrorKind::Connect, "{wrong}");
        assert!(
            wrong.to_string().to_lowercase().contains("certificate"),
            "{wrong}"
        );

        // A stranger to encryption gets no answer to its CONNECT.
        let address = farm.url().replace("tls://", "");
        let refused = plaintext(&address).await;
        assert!(refused, "plaintext was let in");

        if client_certificates {
            let missing = connect(farm.options(0).tls(tls(&pki.ca, None))).await;
            assert!(missing.is_err(), "a missing certificate was let in");
        }
        // A certificate alone is not enough.
        let mut keyless = farm.options(0).tls(tls(&pki.ca, certificate));
        keyless.key = None;
        assert_eq!(
            connect(keyless).await.unwrap_err().kind(),
            &ErrorKind::AuthRejected
        );
    }
}

/// Whether a plaintext CONNECT is refused.
async fn plaintext(address: &str) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut info = vec![0; 4096];
    let read = stream.read(&mut info).await.unwrap();
    assert!(info[..read].starts_with(b"INFO "));
    stream
        .write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(LIMIT, stream.read_to_end(&mut rest)).await;
    ended.is_ok() && !rest.windows(4).any(|part| part == b"PONG")
}
