//! Many servers in one process: started, used and stopped at the same time.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use windjet_server::Server;

const DEADLINE: Duration = Duration::from_secs(30);

/// Uses a server over its socket and in process, so that its end has something to end.
async fn start_and_use(number: usize) -> (Server, TcpStream) {
    let server = Server::builder().listen_loopback().start().await.unwrap();
    let socket = TcpStream::connect(server.client_addr().unwrap()).await.unwrap();
    let client = server.client();
    let mut own = client.subscribe("own").await.unwrap();
    client.publish("own", number.to_string()).await.unwrap();
    let message = own.try_next().unwrap();
    assert_eq!(message.payload, number.to_string());
    assert!(own.try_next().is_none(), "a message of another server");
    (server, socket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_hundred_servers_live_side_by_side_and_end_together() {
    const SERVERS: usize = 500;
    let all_are_up = Arc::new(Barrier::new(SERVERS));
    let mut servers = JoinSet::new();
    for number in 0..SERVERS {
        let all_are_up = all_are_up.clone();
        servers.spawn(async move {
            let (server, _socket) = start_and_use(number).await;
            let address = server.client_addr().unwrap();
            all_are_up.wait().await;
            let report = server.shutdown(DEADLINE).await;
            assert!(report.complete, "server {number} did not end");
            assert!(
                TcpStream::connect(address).await.is_err(),
                "its port is still open"
            );
        });
    }
    while let Some(done) = servers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_start_and_stop_over_and_over_at_the_same_time() {
    let mut lanes = JoinSet::new();
    for lane in 0..8 {
        lanes.spawn(async move {
            for round in 0..25 {
                let (server, _socket) = start_and_use(lane * 100 + round).await;
                // Every third one is dropped without a shutdown, which must end it as well.
                if round % 3 != 0 {
                    assert!(server.shutdown(DEADLINE).await.complete);
                }
            }
        });
    }
    while let Some(done) = lanes.join_next().await {
        done.unwrap();
    }
    // Nothing of them is left on the runtime, once the dropped ones have had their turn.
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::timeout(DEADLINE, async {
        while metrics.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}
