//! Atomic batches and the end of the process: all of a batch is there, or nothing.

use std::io::Write as _;
use std::net::TcpStream;

use windjet_testkit::server::{PATIENCE, ServerUnderTest};
use windjet_testkit::wire::{Op, next_op, read_some};

use crate::dropin;

const CONFIG: &str = "jetstream { store_dir: js }\n";
const CREATE: &str = r#"{"name":"S","subjects":["s.>"],"allow_atomic":true}"#;

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    asked: usize,
}

impl Client {
    fn connect(server: &ServerUnderTest) -> Self {
        let mut stream = TcpStream::connect(server.client_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB in.> 1\r\n")
            .unwrap();
        Self {
            stream,
            buffer: Vec::new(),
            asked: 0,
        }
    }

    /// The next answer, or `None` when the server is gone.
    fn answer(&mut self) -> Option<String> {
        loop {
            match next_op(&mut self.buffer) {
                Some(Op::Msg(message)) => return Some(String::from_utf8(message.payload).unwrap()),
                Some(_) => {}
                None => {
                    let mut chunk = [0; 4096];
                    let read = read_some(&self.stream, &mut chunk)
                        .ok()
                        .filter(|read| *read > 0)?;
                    self.buffer.extend_from_slice(&chunk[..read]);
                }
            }
        }
    }

    fn api(&mut self, call: &str, body: &str) -> String {
        self.asked += 1;
        let asked = self.asked;
        let text = format!("PUB $JS.API.{call} in.{asked} {}\r\n{body}\r\n", body.len());
        self.stream.write_all(text.as_bytes()).unwrap();
        self.answer().unwrap()
    }

    fn batched(&mut self, id: &str, seq: usize, commit: bool) -> String {
        self.stream
            .write_all(message(id, seq, commit).as_bytes())
            .unwrap();
        self.answer().unwrap()
    }

    fn messages(&mut self) -> u64 {
        let info = self.api("STREAM.INFO.S", "");
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["state"]["messages"].as_u64().unwrap()
    }
}

fn message(id: &str, seq: usize, commit: bool) -> String {
    let commit = if commit { "Nats-Batch-Commit: 1\r\n" } else { "" };
    let block = format!("NATS/1.0\r\nNats-Batch-Id: {id}\r\nNats-Batch-Sequence: {seq}\r\n{commit}\r\n");
    let total = block.len() + 1;
    format!("HPUB s.a in.{id}.{seq} {} {total}\r\n{block}x\r\n", block.len())
}

#[test]
fn a_committed_batch_survives_a_kill_and_an_open_one_is_gone() {
    let mut server = dropin().config(CONFIG).start().unwrap();
    let mut client = Client::connect(&server);
    let created = client.api("STREAM.CREATE.S", CREATE);
    assert!(created.contains("\"did_create\":true"), "{created}");
    for seq in 1..50 {
        assert_eq!(client.batched("whole", seq, false), "");
    }
    assert_eq!(
        client.batched("whole", 50, true),
        r#"{"stream":"S","seq":50,"batch":"whole","count":50}"#
    );
    assert_eq!(client.batched("open", 1, false), "");
    server.restart().unwrap();
    let mut client = Client::connect(&server);
    assert_eq!(client.messages(), 50);
    let rest = client.batched("open", 2, true);
    assert!(rest.contains("\"err_code\":10176"), "{rest}");
    assert_eq!(client.messages(), 50);
}

#[test]
fn batches_that_are_under_way_at_a_kill_are_whole_or_not_there() {
    const LEN: u64 = 20;
    let mut server = dropin().config(CONFIG).start().unwrap();
    let mut client = Client::connect(&server);
    let created = client.api("STREAM.CREATE.S", CREATE);
    assert!(created.contains("\"did_create\":true"), "{created}");
    let mut known = 0;
    for round in 0..3 {
        let mut writing = client.stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            for batch in 0.. {
                let id = format!("r{round}b{batch}");
                let text: String = (1..=20).map(|seq| message(&id, seq, seq == 20)).collect();
                // The server is killed meanwhile.
                if writing.write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let mut acked = 0;
        while acked < 5 + round * 7 {
            let answer = client.answer().unwrap();
            assert!(!answer.contains("error"), "{answer}");
            acked += u64::from(answer.contains("\"count\":20"));
        }
        server.restart().unwrap();
        while let Some(answer) = client.answer() {
            acked += u64::from(answer.contains("\"count\":20"));
        }
        writer.join().unwrap();
        client = Client::connect(&server);
        let messages = client.messages();
        assert_eq!(messages % LEN, 0, "a batch is there in part");
        assert!(
            messages >= known + acked * LEN,
            "{messages} messages after {acked} acknowledged batches and {known} messages before"
        );
        known = messages;
    }
}
