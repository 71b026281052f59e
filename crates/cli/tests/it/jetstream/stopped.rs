//! A client that stops reading.

use std::io::Write as _;
use std::net::TcpStream;

use async_nats::jetstream::consumer::pull;
use futures_util::StreamExt as _;

use super::{ACK_WAIT, connect, create, drain, plain, publish, run, server, unique};

const LARGE: usize = 8 << 10;
/// Together far more than the server keeps for a client.
const MESSAGES: u64 = 20_000;

#[test]
fn a_reader_that_stops_hinders_nobody_and_what_it_did_not_acknowledge_comes_again() {
    let server = server();
    run(async {
        let context = connect(&server).await;
        let large = &create(&context, plain("S")).await;
        let durable = |name: &str| pull::Config {
            durable_name: Some(name.to_owned()),
            ack_wait: ACK_WAIT,
            max_ack_pending: -1,
            ..pull::Config::default()
        };
        let stuck = large.create_consumer(durable("STUCK")).await.unwrap();
        let other = large.create_consumer(durable("OTHER")).await.unwrap();

        let mut stopped = TcpStream::connect(server.client_addr().unwrap()).unwrap();
        let request = format!("{{\"batch\":{MESSAGES}}}");
        let lines = format!(
            "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB in 1\r\n\
             PUB $JS.API.CONSUMER.MSG.NEXT.S.STUCK in {}\r\n{request}\r\n",
            request.len()
        );
        stopped.write_all(lines.as_bytes()).unwrap();

        let mut acks = Vec::new();
        for n in 0..MESSAGES {
            // A number with leading zeros is still that number.
            let payload = format!("{n:0>LARGE$}");
            acks.push(context.publish("S.x", payload.into()).await.unwrap());
            if acks.len() == 500 {
                for ack in acks.drain(..) {
                    ack.await.unwrap();
                }
            }
        }
        let mut all = other
            .stream()
            .max_messages_per_batch(500)
            .messages()
            .await
            .unwrap();
        for n in 0..MESSAGES {
            let message = all.next().await.unwrap().unwrap();
            assert_eq!(super::number(&message.payload), n);
            message.ack().await.unwrap();
        }
        // Everybody else is served while it stands still, new ones too.
        create(&connect(&server).await, plain("T")).await;
        publish(&context, "T.x", 0..100).await;

        drop(stopped);
        let again = unique(&drain(&stuck).await);
        assert_eq!(again.len() as u64, MESSAGES);
    });
}
