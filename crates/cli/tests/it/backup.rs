//! Backups of streams, from the real nats-server to ours and back, and the other way round: messages, gaps and consumers
//! are the same at every station.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::net::TcpStream;

use serde_json::{Value, json};
use windjet_testkit::server::{PATIENCE, ServerUnderTest};
use windjet_testkit::until;
use windjet_testkit::wire::{Message, Op, next_op, read_some};

use crate::dropin;

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Subscriptions besides that for answers.
    open: Vec<&'static str>,
    /// What came for them while something else was waited for: the first chunk of a snapshot may overtake the answer.
    kept: VecDeque<Message>,
    asked: usize,
}

/// A backup as a client keeps it.
struct Backup {
    config: Value,
    state: Value,
    bytes: Vec<u8>,
}

impl Client {
    fn connect(server: &ServerUnderTest) -> Self {
        let stream = TcpStream::connect(server.client_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self {
            stream,
            buffer: Vec::new(),
            open: Vec::new(),
            kept: VecDeque::new(),
            asked: 0,
        };
        client
            .send(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB in.* in\r\n");
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn subscribe(&mut self, subject: &str, sid: &'static str) {
        self.send(format!("SUB {subject} {sid}\r\n").as_bytes());
        self.open.push(sid);
    }

    fn unsubscribe(&mut self, sid: &str) {
        self.send(format!("UNSUB {sid}\r\n").as_bytes());
        self.open.retain(|open| *open != sid);
        self.kept.retain(|message| message.control[2] != sid);
    }

    /// The next message of a subscription; what comes for others is kept.
    fn next(&mut self, sid: &str) -> Message {
        if let Some(at) = self.kept.iter().position(|message| message.control[2] == sid) {
            return self.kept.remove(at).unwrap();
        }
        loop {
            match next_op(&mut self.buffer) {
                Some(Op::Msg(message)) if message.control[2] == sid => return message,
                Some(Op::Msg(message)) if self.open.iter().any(|open| *open == message.control[2]) => {
                    self.kept.push_back(message);
                }
                Some(_) => {}
                None => {
                    let mut chunk = [0; 1 << 16];
                    let read = read_some(&self.stream, &mut chunk).unwrap();
                    assert!(read > 0, "the server has closed the connection");
                    self.buffer.extend_from_slice(&chunk[..read]);
                }
            }
        }
    }

    fn publish(&mut self, subject: &str, reply: &str, headers: &str, payload: &[u8]) {
        let text = if headers.is_empty() {
            format!("PUB {subject} {reply} {}\r\n", payload.len())
        } else {
            let block = headers.len() + 14;
            format!(
                "HPUB {subject} {reply} {block} {}\r\nNATS/1.0\r\n{headers}\r\n\r\n",
                block + payload.len()
            )
        };
        self.send(text.as_bytes());
        self.send(payload);
        self.send(b"\r\n");
    }

    fn ask(&mut self, subject: &str, headers: &str, payload: &[u8]) -> Vec<u8> {
        self.asked += 1;
        let reply = format!("in.{}", self.asked);
        self.publish(subject, &reply, headers, payload);
        loop {
            let message = self.next("in");
            if message.control[1] == reply {
                return message.payload;
            }
        }
    }

    fn try_api(&mut self, call: &str, body: &Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = self.ask(&format!("$JS.API.{call}"), "", body.as_bytes());
        serde_json::from_slice(&answer).unwrap()
    }

    fn api(&mut self, call: &str, body: &Value) -> Value {
        let answer = self.try_api(call, body);
        assert!(answer.get("error").is_none(), "{call}: {answer}");
        answer
    }

    fn store(&mut self, subject: &str, headers: &str, payload: &[u8]) {
        let answer: Value = serde_json::from_slice(&self.ask(subject, headers, payload)).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
    }

    /// Asks a consumer for messages; where their acks go.
    fn fetch(&mut self, consumer: &str, count: usize) -> Vec<String> {
        self.subscribe(&format!("got.{consumer}"), "got");
        self.publish(
            &format!("$JS.API.CONSUMER.MSG.NEXT.S.{consumer}"),
            &format!("got.{consumer}"),
            "",
            count.to_string().as_bytes(),
        );
        let acks = (0..count).map(|_| self.next("got").control[3].clone()).collect();
        self.unsubscribe("got");
        acks
    }

    fn back_up(&mut self) -> Backup {
        self.subscribe("chunks", "chunks");
        let request = json!({"deliver_subject": "chunks", "chunk_size": 4096, "window_size": 16384});
        let answer = self.api("STREAM.SNAPSHOT.S", &request);
        let mut bytes = Vec::new();
        loop {
            let message = self.next("chunks");
            if message.payload.is_empty() {
                let headers = String::from_utf8(message.headers.unwrap_or_default()).unwrap();
                assert!(headers.starts_with("NATS/1.0 204"), "{headers}");
                break;
            }
            bytes.extend_from_slice(&message.payload);
            if message.control.len() > 4 {
                self.publish(&message.control[3], "", "", b"");
            }
        }
        self.unsubscribe("chunks");
        Backup {
            config: answer["config"].clone(),
            state: answer["state"].clone(),
            bytes,
        }
    }

    fn restore(&mut self, backup: &Backup) {
        let request = json!({"config": backup.config, "state": backup.state});
        let answer = self.api("STREAM.RESTORE.S", &request);
        let to = answer["deliver_subject"].as_str().unwrap().to_owned();
        for chunk in backup.bytes.chunks(50_000) {
            let answer = self.ask(&to, "", chunk);
            assert_eq!(String::from_utf8_lossy(&answer), "");
        }
        let answer: Value = serde_json::from_slice(&self.ask(&to, "", b"")).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        assert_eq!(answer["type"], "io.nats.jetstream.api.v1.stream_create_response");
    }

    /// Everything that has to be the same everywhere.
    fn picture(&mut self) -> BTreeMap<String, Value> {
        let mut picture = BTreeMap::new();
        let request = json!({"deleted_details": true, "subjects_filter": ">"});
        let mut info = self.api("STREAM.INFO.S", &request);
        let (first, last) = (
            info["state"]["first_seq"].as_u64().unwrap(),
            info["state"]["last_seq"].as_u64().unwrap(),
        );
        let mut state = info["state"].take();
        picture.insert("last_ts".into(), state["last_ts"].take());
        picture.insert("state".into(), state);
        for seq in first..=last {
            let answer = self.try_api("STREAM.MSG.GET.S", &json!({"seq": seq}));
            picture.insert(format!("message {seq}"), answer["message"].clone());
        }
        let consumers = self.api("CONSUMER.LIST.S", &Value::Null);
        for consumer in consumers["consumers"].as_array().unwrap() {
            let name = consumer["name"].as_str().unwrap();
            let fields = [
                "config",
                "num_ack_pending",
                "num_redelivered",
                "num_pending",
                "delivered",
                "ack_floor",
            ];
            for field in fields {
                let mut value = consumer[field].clone();
                if let Some(object) = value.as_object_mut() {
                    object.remove("last_active");
                }
                picture.insert(format!("{name} {field}"), value);
            }
        }
        picture
    }

    fn fill(&mut self) {
        let config = json!({"name": "S", "subjects": ["s.>"], "allow_msg_ttl": true, "allow_direct": true});
        self.api("STREAM.CREATE.S", &config);
        for n in 0..300 {
            let headers = match n % 3 {
                0 => format!("Nats-TTL: 1h\r\nKind: of {n}"),
                1 => format!("Nats-Msg-Id: id {n}"),
                _ => String::new(),
            };
            // Neither all alike nor all different, and some larger than a block of the compression.
            let size = if n % 100 == 7 { 150_000 } else { n * 3 };
            let payload: Vec<u8> = (0..size)
                .map(|i: usize| (i.wrapping_mul(i) % 251 + n) as u8)
                .collect();
            self.store(&format!("s.{}", n % 7), &headers, &payload);
        }
        for seq in [1, 2, 3, 20, 21, 22, 50, 299, 300] {
            self.api("STREAM.MSG.DELETE.S", &json!({ "seq": seq }));
        }
        let hour = 3_600_000_000_000_u64;
        for (name, more) in [
            ("pull", json!({"durable_name": "pull"})),
            (
                "all",
                json!({"durable_name": "all", "ack_policy": "all", "filter_subject": "s.2"}),
            ),
            ("none", json!({"durable_name": "none", "ack_policy": "none"})),
            ("memory", json!({"durable_name": "memory", "mem_storage": true})),
            ("brief", json!({"inactive_threshold": hour})),
            (
                "unused",
                json!({"durable_name": "unused", "deliver_policy": "by_start_sequence", "opt_start_seq": 100}),
            ),
            (
                "push",
                json!({"durable_name": "push", "deliver_subject": "pushed", "max_ack_pending": 5}),
            ),
        ] {
            let mut config = json!({"name": name, "ack_policy": "explicit", "ack_wait": hour});
            for (key, value) in more.as_object().unwrap() {
                config[key] = value.clone();
            }
            let request = json!({"stream_name": "S", "config": config});
            self.api(&format!("CONSUMER.CREATE.S.{name}"), &request);
        }
        for name in ["pull", "all", "none", "memory", "brief"] {
            let acks = self.fetch(name, 6);
            if name != "none" {
                self.ask(&acks[1], "", b"+ACK");
                self.ask(&acks[2], "", b"+ACK");
            }
            if name == "pull" {
                // It comes again at once, and is delivered twice then.
                self.ask(&acks[4], "", b"-NAK");
                self.fetch(name, 1);
            }
        }
        self.subscribe("pushed", "pushed");
        let acks: Vec<String> = (0..5).map(|_| self.next("pushed").control[3].clone()).collect();
        self.ask(&acks[1], "", b"+ACK");
        self.unsubscribe("pushed");
    }
}

fn real() -> ServerUnderTest {
    let setup = ServerUnderTest::real().unwrap();
    setup.flags(["-js", "-sd", "store"]).start().unwrap()
}

fn ours() -> ServerUnderTest {
    dropin().config("jetstream { store_dir: js }\n").start().unwrap()
}

/// Fills the first server and takes its stream from each to the next.
fn travel(mut stations: Vec<ServerUnderTest>) {
    let mut client = Client::connect(&stations[0]);
    client.fill();
    let mut before = client.picture();
    // What a consumer delivered is stored a little later.
    until("the consumers' positions to be stored", PATIENCE, || {
        let now = client.picture();
        std::mem::replace(&mut before, now.clone()) == now
    })
    .unwrap();
    let mut backup = client.back_up();
    for (n, station) in stations[1..].iter_mut().enumerate() {
        let mut client = Client::connect(station);
        client.restore(&backup);
        let after = client.picture();
        // A backup has the times of messages. That of an end which is deleted is lost on the way, between two of nats-server too.
        before.insert("last_ts".into(), before["message 298"]["time"].clone());
        for (what, value) in &before {
            assert_eq!(after.get(what), Some(value), "{what} at station {}", n + 1);
        }
        assert_eq!(after.len(), before.len());
        backup = client.back_up();
    }
}

#[test]
fn a_stream_goes_from_nats_server_to_ours_and_back() {
    travel(vec![real(), ours(), real()]);
}

#[test]
fn a_stream_goes_from_ours_to_nats_server_and_back() {
    travel(vec![ours(), real(), ours()]);
}

#[test]
fn a_restored_stream_survives_a_kill() {
    let mut server = ours();
    let mut client = Client::connect(&server);
    client.fill();
    let (before, backup) = (client.picture(), client.back_up());
    client.api("STREAM.DELETE.S", &Value::Null);
    client.restore(&backup);
    server.restart().unwrap();
    let after = Client::connect(&server).picture();
    for (what, value) in &before {
        // What is kept in memory is gone, as it should be.
        if !what.starts_with("memory ") && what != "state" && what != "last_ts" {
            assert_eq!(after.get(what), Some(value), "{what}");
        }
    }
    assert_eq!(after["last_ts"], before["message 298"]["time"]);
    for field in [
        "messages",
        "bytes",
        "first_seq",
        "last_seq",
        "deleted",
        "subjects",
    ] {
        assert_eq!(after["state"][field], before["state"][field], "{field}");
    }
}

/// What the others are measured by.
#[test]
fn a_stream_goes_from_one_nats_server_to_another() {
    travel(vec![real(), real()]);
}
