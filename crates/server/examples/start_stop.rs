//! Starts and stops servers over and over, several at a time, and says whether the process has grown.
//!
//! usage: `start_stop [SERVERS]`, 10,000 unless said otherwise. Each one has a listener, a client over a socket and one in
//! process. The end fails when a shutdown was not complete, a task is left over, or files stay open.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that checks")]

use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use windjet_server::Server;

const LANES: usize = 16;
const DEADLINE: Duration = Duration::from_secs(30);

async fn once() {
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let _socket = TcpStream::connect(server.client_addr().unwrap()).await.unwrap();
    let client = server.client();
    let mut own = client.subscribe("own").await.unwrap();
    client.publish("own", "x").await.unwrap();
    assert!(own.try_next().is_some());
    assert!(server.shutdown(DEADLINE).await.complete, "a server did not end");
}

/// Open files of this process; `None` where the system does not show them.
fn open_files() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

#[tokio::main]
async fn main() {
    let servers: usize = std::env::args()
        .nth(1)
        .map_or(10_000, |number| number.parse().unwrap());
    let before = open_files();
    let begun = Instant::now();
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        lanes.spawn(async move {
            for _ in 0..servers.div_ceil(LANES) {
                once().await;
            }
        });
    }
    while let Some(done) = lanes.join_next().await {
        done.unwrap();
    }
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::timeout(DEADLINE, async {
        while metrics.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert!(
        open_files() <= before,
        "files stay open: {before:?} before, {:?} after",
        open_files()
    );
    println!("{servers} servers started and stopped in {:?}", begun.elapsed());
}
