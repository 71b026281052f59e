//! A JetStream server for each test, and what tests do with it.
//!
//! Every test is written against [`World`] and does not know which server it runs on. [`jetstream_tests!`] makes one
//! test of it for each server.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::{self, Context, consumer, stream};
use futures_util::StreamExt as _;
use windjet_client::pull::{Options, Puller, Target};
use windjet_client::{Client, Config, Delivery, Handler, HandlerError, async_nats};
use windjet_testkit::server::{ServerUnderTest, Setup};

/// Long enough for anything that should happen; only a failing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Which server to run on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Backend {
    /// The real nats-server.
    Real,
    /// This project's server.
    Windjet,
}

impl Backend {
    pub(crate) fn setup(self) -> Setup {
        match self {
            Self::Real => ServerUnderTest::real().unwrap(),
            Self::Windjet => ServerUnderTest::ours().unwrap(),
        }
    }
}

/// Makes one test for each server out of functions that take a [`World`].
#[macro_export]
macro_rules! jetstream_tests {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident: World) $body:block)*) => {
        $($(#[$meta])* async fn $name(#[allow(unused_mut)] mut $world: $crate::harness::World) $body)*

        mod real {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::harness::World::start($crate::harness::Backend::Real).await).await;
                }
            )*
        }

        mod windjet {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::harness::World::start($crate::harness::Backend::Windjet).await).await;
                }
            )*
        }
    };
}

/// A server with JetStream and a client of it.
pub(crate) struct World {
    pub(crate) server: ServerUnderTest,
    pub(crate) client: async_nats::Client,
    pub(crate) js: Context,
}

impl World {
    pub(crate) async fn start(backend: Backend) -> Self {
        let server = tokio::task::spawn_blocking(move || {
            backend.setup().flags(["-js", "-sd", "store"]).start().unwrap()
        })
        .await
        .unwrap();
        let client = connect(&server).await;
        let js = jetstream::new(client.clone());
        Self { server, client, js }
    }

    /// The kit's settings for this server.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new(self.server.url().unwrap());
        config.connection.reconnect_wait = Duration::from_millis(20);
        config.connection.drain_timeout = PATIENCE;
        config
    }

    /// A connected client of the kit.
    pub(crate) async fn kit(&self) -> Client {
        self.kit_with(self.config()).await
    }

    pub(crate) async fn kit_with(&self, config: Config) -> Client {
        let client = Client::connect(config).await.unwrap();
        soon("a connection", client.connector().wait_connected())
            .await
            .unwrap();
        client
    }

    /// The messages of a stream, in order.
    pub(crate) async fn stored(&self, stream: &str) -> Vec<StreamMessage> {
        let stream = self.js.get_stream(stream).await.unwrap();
        let state = stream.get_info().await.unwrap().state;
        let mut found = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            if let Ok(message) = stream.get_raw_message(sequence).await {
                found.push(message);
            }
        }
        found
    }

    /// Kills the server and starts it again on the same port and store.
    pub(crate) fn restart(&mut self) {
        self.server.restart().unwrap();
    }

    /// Sends the server a signal by name: `STOP` makes it silent without ending it, `CONT` wakes it again.
    pub(crate) fn signal(&mut self, name: &str) {
        let id = self.server.running().unwrap().id();
        let status = std::process::Command::new("kill")
            .args([format!("-{name}"), id.to_string()])
            .status();
        assert!(status.unwrap().success());
        if name == "STOP" && cfg!(target_os = "linux") {
            // The signal is on its way when `kill` returns; the server may still answer on a thread that has not stopped.
            let stopped = || {
                std::fs::read_dir(format!("/proc/{id}/task"))
                    .unwrap()
                    .all(|thread| {
                        let stat =
                            thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
                        stat.is_ok_and(|stat| {
                            stat.rsplit_once(") ")
                                .is_some_and(|(_, rest)| rest.starts_with('T'))
                        })
                    })
            };
            windjet_testkit::until("the server to stop", PATIENCE, stopped).unwrap();
        }
    }

    /// A stream on `name.>` in lower case, in memory unless told otherwise.
    pub(crate) async fn stream(&self, name: &str) -> stream::Stream {
        self.stream_with(name, stream::Config::default()).await
    }

    pub(crate) async fn stream_with(&self, name: &str, config: stream::Config) -> stream::Stream {
        let subjects = if config.subjects.is_empty() {
            vec![format!("{}.>", name.to_lowercase())]
        } else {
            config.subjects.clone()
        };
        let name = name.to_owned();
        self.js
            .create_stream(stream::Config {
                name,
                subjects,
                ..config
            })
            .await
            .unwrap()
    }

    /// A durable pull consumer with an ack wait of a minute.
    pub(crate) async fn durable(&self, stream: &str, durable: &str) {
        self.durable_with(stream, durable, consumer::pull::Config::default())
            .await;
    }

    pub(crate) async fn durable_with(&self, stream: &str, durable: &str, config: consumer::pull::Config) {
        let ack_wait = if config.ack_wait.is_zero() {
            Duration::from_secs(60)
        } else {
            config.ack_wait
        };
        let config = consumer::pull::Config {
            durable_name: Some(durable.to_owned()),
            ack_wait,
            ..config
        };
        self.js.create_consumer_on_stream(config, stream).await.unwrap();
    }

    pub(crate) async fn info(&self, stream: &str, durable: &str) -> consumer::Info {
        let stream = self.js.get_stream_no_info(stream).await.unwrap();
        stream.consumer_info(durable).await.unwrap()
    }

    pub(crate) async fn puller(&self, stream: &str, durable: &str) -> Puller {
        let target = Target::new(stream, durable).unwrap();
        Puller::new(self.client.clone(), target, Options::default())
            .await
            .unwrap()
    }

    /// Everything that is published from now on. A flush only writes; the server has taken the subscription in when what is
    /// sent behind it comes back.
    pub(crate) async fn listen(&self) -> async_nats::Subscriber {
        let mut heard = self.client.subscribe(">").await.unwrap();
        self.client.publish("in.force", "".into()).await.unwrap();
        let first = soon("the subscription", heard.next()).await.unwrap();
        assert_eq!(first.subject.as_str(), "in.force");
        heard
    }

    /// Publishes `count` messages with their number, from 0, as payload, and waits for their acks.
    pub(crate) async fn publish(&self, subject: &str, count: usize) {
        let mut acks = Vec::new();
        for number in 0..count {
            let ack = self
                .js
                .publish(subject.to_owned(), number.to_string().into())
                .await
                .unwrap();
            acks.push(ack.into_future());
        }
        for ack in acks {
            ack.await.unwrap();
        }
    }
}

async fn connect(server: &ServerUnderTest) -> async_nats::Client {
    async_nats::ConnectOptions::new()
        .reconnect_delay_callback(|_| Duration::from_millis(20))
        .connect(server.url().unwrap())
        .await
        .unwrap()
}

/// Asks again until `condition` gives a value.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Lets time pass on the server, whose clock no test can control. Never a guess how long something takes.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Fails the test when `future` takes too long.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Payloads that a handler was given.
pub(crate) type Seen = Arc<Mutex<Vec<String>>>;

/// A payload as text.
pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.to_vec()).unwrap()
}

/// A handler that notes payloads and acknowledges.
pub(crate) fn noting(seen: &Seen) -> impl Handler + use<> {
    let seen = Arc::clone(seen);
    move |delivery: Arc<Delivery>| {
        seen.lock().unwrap().push(text(&delivery));
        async { Ok::<_, HandlerError>(()) }
    }
}

/// Waits for so many; all there are by then.
pub(crate) async fn seen(list: &Seen, count: usize) -> Vec<String> {
    until("the messages", || async {
        (list.lock().unwrap().len() >= count).then_some(())
    })
    .await;
    list.lock().unwrap().clone()
}

/// Waits until a consumer of the stream `S` has nothing to do.
pub(crate) async fn settled(world: &World, durable: &str) {
    until("all to be settled", || async {
        let info = world.info("S", durable).await;
        (info.num_ack_pending == 0 && info.num_pending == 0).then_some(())
    })
    .await;
}
