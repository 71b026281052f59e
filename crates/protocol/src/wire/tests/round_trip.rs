//! Encoders against decoders, and decoders against every way of cutting a stream.

use proptest::prelude::*;

use super::*;

/// A long stream with every operation and the awkward spellings.
fn long_stream() -> Vec<u8> {
    let mut stream = Vec::new();
    stream.extend_from_slice(b"CONNECT {\"verbose\":false,\"name\":\"x y\"}\r\nPING\r\npInG junk\n");
    stream.extend_from_slice(b"SUB foo.* 1\r\nSUB\tbar \t queue  2\nUNSUB 1 5\r\nUNSUB 2\r\n");
    stream.extend_from_slice(b"PUB foo 0\r\n\r\npub \t foo  reply 13\r\nPUB x 1\r\n\r\n\r\n\r\n");
    stream.extend_from_slice(b"HPUB h 12 15\r\nNATS/1.0\r\n\r\nabc\r\nHPUB h r 0 0\r\n\r\n");
    stream.extend_from_slice(b"+OK\r\n-ERR 'x'\r\nINFO {}\r\nPONG\r\n");
    encode::publish(&mut stream, b"big", Some(b"r"), &[b'\n'; 300]);
    stream.extend_from_slice(b"PING\r\n");
    stream
}

#[test]
fn every_split_point_gives_the_same_operations() {
    let stream = long_stream();
    let whole = from_client(&stream);
    assert_eq!((whole.error, whole.left, whole.ops.len()), (None, 0, 17));
    for at in 0..=stream.len() {
        let (head, tail) = stream.split_at(at);
        assert_eq!(
            from_client_with(ClientDecoder::new(), [head, tail]),
            whole,
            "cut at {at}"
        );
    }
    for size in 1..20 {
        assert_eq!(
            from_client_with(ClientDecoder::new(), stream.chunks(size)),
            whole,
            "chunks of {size}"
        );
    }
}

#[test]
fn messages_are_written_without_doubled_spaces() {
    let mut out = Vec::new();
    encode::msg(&mut out, b"a.b", b"7", None, b"hello");
    encode::msg(&mut out, b"a.b", b"7", Some(b"r"), b"");
    encode::hmsg(&mut out, b"a.b", b"7", None, b"NATS/1.0\r\n\r\n", b"x");
    encode::hmsg(&mut out, b"a.b", b"7", Some(b"r"), b"NATS/1.0\r\n\r\n", b"");
    encode::ok(&mut out);
    encode::ping(&mut out);
    encode::pong(&mut out);
    encode::err(&mut out, b"Stale Connection");
    let expected = "MSG a.b 7 5\r\nhello\r\nMSG a.b 7 r 0\r\n\r\nHMSG a.b 7 12 13\r\nNATS/1.0\r\n\r\nx\r\n\
                    HMSG a.b 7 r 12 12\r\nNATS/1.0\r\n\r\n\r\n+OK\r\nPING\r\nPONG\r\n-ERR 'Stale Connection'\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn a_line_and_its_message_can_be_written_apart() {
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    encode::msg(&mut whole, b"s", b"1", Some(b"r"), b"payload");
    encode::msg_line(&mut parts, b"s", b"1", Some(b"r"), 7);
    parts.extend_from_slice(b"payload");
    parts.extend_from_slice(CRLF);
    encode::hmsg(&mut whole, b"s", b"1", None, b"HH", b"payload");
    encode::hmsg_line(&mut parts, b"s", b"1", None, 2, 9);
    parts.extend_from_slice(b"HHpayload");
    parts.extend_from_slice(CRLF);
    assert_eq!(whole, parts);
}

/// An operation of either direction, owned, that can be written.
#[derive(Debug, Clone)]
struct Message {
    subject: Vec<u8>,
    sid: Vec<u8>,
    reply: Option<Vec<u8>>,
    headers: Option<Vec<u8>>,
    payload: Vec<u8>,
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_map(|byte| if b" \t\r\n".contains(&byte) { b'.' } else { byte });
    prop::collection::vec(byte, 1..20)
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..60);
    (
        word(),
        word(),
        prop::option::of(word()),
        prop::option::of(bytes()),
        bytes(),
    )
        .prop_map(|(subject, sid, reply, headers, payload)| Message {
            subject,
            sid,
            reply,
            headers,
            payload,
        })
}

impl Message {
    fn whole(&self) -> Vec<u8> {
        [self.headers.as_deref().unwrap_or_default(), &self.payload].concat()
    }
}

/// Cuts a stream at the given fractions of its length.
fn pieces<'s>(stream: &'s [u8], cuts: &[u16]) -> Vec<&'s [u8]> {
    let mut at: Vec<usize> = cuts
        .iter()
        .map(|&cut| stream.len() * usize::from(cut) / 0x1_0000)
        .collect();
    at.sort_unstable();
    at.push(stream.len());
    let mut from = 0;
    at.into_iter()
        .map(|to| {
            let piece = &stream[from..to];
            from = to;
            piece
        })
        .collect()
}

proptest! {
    #[test]
    fn what_is_written_to_a_server_is_read_back(
        messages in prop::collection::vec(message(), 1..8),
        cuts in prop::collection::vec(any::<u16>(), 0..6),
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for m in &messages {
            let reply = m.reply.as_deref();
            let whole = m.whole();
            if let Some(headers) = m.headers.as_deref() {
                encode::hpublish(&mut stream, &m.subject, reply, headers, &m.payload);
                let op = ClientOp::HPub { subject: &m.subject, reply, header_len: headers.len(), message: &whole };
                expected.push(show_client(&op));
            } else {
                encode::publish(&mut stream, &m.subject, reply, &m.payload);
                expected.push(show_client(&ClientOp::Pub { subject: &m.subject, reply, payload: &whole }));
            }
            encode::subscribe(&mut stream, &m.subject, reply, &m.sid);
            expected.push(show_client(&ClientOp::Sub { subject: &m.subject, queue: reply, sid: &m.sid }));
            let max = m.headers.as_ref().map(|h| h.len() as u64 + 1);
            encode::unsubscribe(&mut stream, &m.sid, max);
            expected.push(show_client(&ClientOp::Unsub { sid: &m.sid, max }));
        }
        let outcome = from_client_with(ClientDecoder::new(), pieces(&stream, &cuts));
        prop_assert_eq!(outcome, Outcome { ops: expected, error: None, left: 0 });
    }

    #[test]
    fn what_is_written_to_a_client_is_read_back(messages in prop::collection::vec(message(), 1..8)) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for m in &messages {
            let (reply, whole) = (m.reply.as_deref(), m.whole());
            if let Some(headers) = m.headers.as_deref() {
                encode::hmsg(&mut stream, &m.subject, &m.sid, reply, headers, &m.payload);
                let (subject, sid, header_len) = (m.subject.as_slice(), m.sid.as_slice(), headers.len());
                expected.push(show_server(&ServerOp::HMsg { subject, sid, reply, header_len, message: &whole }));
            } else {
                encode::msg(&mut stream, &m.subject, &m.sid, reply, &m.payload);
                let (subject, sid) = (m.subject.as_slice(), m.sid.as_slice());
                expected.push(show_server(&ServerOp::Msg { subject, sid, reply, payload: &whole }));
            }
        }
        prop_assert_eq!(from_server(&stream), Outcome { ops: expected, error: None, left: 0 });
    }

    #[test]
    fn hostile_bytes_decode_the_same_however_they_are_cut(
        bytes in hostile(),
        cuts in prop::collection::vec(any::<u16>(), 0..8),
    ) {
        let decoder = || limited(40, 60);
        let whole = from_client_with(decoder(), [bytes.as_slice()]);
        let cut = from_client_with(decoder(), pieces(&bytes, &cuts));
        let single = from_client_with(decoder(), bytes.chunks(1));
        prop_assert_eq!(&cut.ops, &whole.ops);
        prop_assert_eq!(&single.ops, &whole.ops);
        // How long a line was when it was refused depends on the cut; that it was refused does not.
        let kind = |outcome: &Outcome| outcome.error.map(|error| std::mem::discriminant(&error));
        prop_assert_eq!(kind(&cut), kind(&whole));
        prop_assert_eq!(kind(&single), kind(&whole));
        // The other direction must be as calm.
        from_server(&bytes);
    }
}

/// Streams put together from fragments that mean something, with a few that do not.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        prop::sample::select(vec![
            "PUB ",
            "HPUB ",
            "SUB ",
            "UNSUB ",
            "CONNECT ",
            "PING",
            "PONG",
            "+OK",
            "-ERR ",
            "INFO ",
            "MSG ",
            "foo",
            "a.b",
            " ",
            "\t",
            "\r\n",
            "\n",
            "\r",
            "0",
            "1",
            "5",
            "12",
            "60",
            "61",
            "999999999",
            "hello",
            "{}",
            "PUB a 2\r\nhi\r\n",
            "PUB a 5\r\nhello\r\n",
            "HPUB a 2 4\r\nabcd\r\n",
            "SUB a 1\r\n",
            "PING\r\n",
            "UNSUB 1\r\n",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}
