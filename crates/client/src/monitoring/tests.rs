use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

fn monitoring() -> Monitoring {
    Monitoring::new(Duration::from_secs(20), &Tls::default()).unwrap()
}

/// A server that answers each connection with what `answer` makes of the request's first line.
async fn server(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            // The asker may have heard enough before all is written.
            let _ = stream.write_all(&answer(head.lines().next().unwrap())).await;
        }
    });
    format!("http://{address}")
}

fn ok(body: &[u8]) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

fn to(place: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn base_and_path_are_put_together() {
    let base = server(|line| ok(line.as_bytes())).await;
    let fetched = async |base: &str, path: &str| {
        String::from_utf8(monitoring().fetch(base, path).await.unwrap().to_vec()).unwrap()
    };
    assert_eq!(fetched(&base, "varz?x=1").await, "GET /varz?x=1 HTTP/1.1");
    assert_eq!(fetched(&format!("{base}//"), "/jsz").await, "GET /jsz HTTP/1.1");
    assert_eq!(fetched(&base, "").await, "GET / HTTP/1.1");
    for empty in ["", "/"] {
        let error = monitoring().fetch(empty, "/varz").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EmptyAddress);
    }
}

#[tokio::test]
async fn the_limit_of_the_body_is_exact() {
    let base = server(|line| {
        ok(&vec![
            b'x';
            if line.contains("/fits") {
                BODY_MAX
            } else {
                BODY_MAX + 1
            }
        ])
    })
    .await;
    assert_eq!(monitoring().fetch(&base, "/fits").await.unwrap().len(), BODY_MAX);
    let error = monitoring().fetch(&base, "/over").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MonitoringBodyTooLarge);
    // A body that says that it is compressed is what it is: nothing is expanded past the limit.
    let base = server(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b".to_vec()
    })
    .await;
    assert_eq!(&monitoring().fetch(&base, "/").await.unwrap()[..], b"\x1f\x8b");
}

#[tokio::test]
async fn an_error_has_status_and_the_begin_of_the_body() {
    let long = "e".repeat(1000);
    let text = format!("HTTP/1.1 404 Not Found\r\nContent-Length: 1000\r\n\r\n{long}");
    let base = server(move |_| text.clone().into_bytes()).await;
    let error = monitoring().fetch(&base, "/nothing").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Monitoring);
    let told = format!("{error} {}", std::error::Error::source(&error).unwrap());
    assert!(
        told.contains("404") && told.contains("/nothing") && told.contains(&"e".repeat(256)),
        "{told}"
    );
    assert!(!told.contains(&"e".repeat(257)));
}

#[tokio::test]
async fn redirects_are_followed_four_times_and_checked() {
    // `/4` leads to `/3` and so on to `/0`, which is a page.
    let base = server(|line| {
        let number: u32 = line.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
        if number == 0 {
            ok(b"here")
        } else {
            to(&format!("/{}", number - 1))
        }
    })
    .await;
    assert_eq!(&monitoring().fetch(&base, "/4").await.unwrap()[..], b"here");
    assert_eq!(
        monitoring().fetch(&base, "/5").await.unwrap_err().kind(),
        ErrorKind::Monitoring
    );
    for place in [
        "http://169.254.169.254/latest",
        "ftp://127.0.0.1/",
        "http://metadata.google.internal./",
    ] {
        let base = server(move |_| to(place)).await;
        let error = monitoring().fetch(&base, "/").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MonitoringBlocked, "{place}");
    }
}

#[tokio::test]
async fn metadata_services_are_blocked_however_they_are_written() {
    for base in [
        "http://169.254.169.254",
        "http://169.254.0.1:8222",
        "http://0xa9fea9fe",
        "http://2852039166",
        "http://[::ffff:169.254.169.254]",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://[::a9fe:a9fe]",
        "http://100.100.100.200",
        "http://[fd00:ec2::254]",
        "http://[fe80::1]",
        "http://[ff02::1]",
        "http://224.0.0.1",
        "http://0.0.0.0",
        "http://[::]",
        "http://metadata.google.internal",
        "http://METADATA.google.internal.",
        "http://metadata.goog",
        "http://instance-data",
        "ftp://127.0.0.1",
        "file:///etc",
        "nonsense",
    ] {
        let error = monitoring().fetch(base, "/varz").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MonitoringBlocked, "{base}");
    }
    for allowed in [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "::1",
        "fd00::1",
        "8.8.8.8",
    ] {
        assert!(
            !guard::is_blocked(allowed.parse::<IpAddr>().unwrap()),
            "{allowed}"
        );
    }
}

/// A name may lead to several addresses; one that is blocked blocks it. The address that was checked is the one dialled.
#[tokio::test]
async fn every_address_of_a_name_is_checked_and_no_other_is_dialled() {
    let base = server(|_| ok(b"here")).await;
    let port: u16 = base.rsplit(':').next().unwrap().parse().unwrap();
    let leading = |to: &'static [&'static str]| {
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let resolve: Resolver = Arc::new(move |_, port| {
            count.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            let found = to
                .iter()
                .map(|to| SocketAddr::new(to.parse().unwrap(), port))
                .collect();
            Box::pin(std::future::ready(Ok(found)))
        });
        (
            Monitoring {
                resolve,
                ..monitoring()
            },
            asked,
        )
    };
    let (monitoring, asked) = leading(&["127.0.0.1"]);
    let fetched = monitoring
        .fetch(&format!("http://server.example:{port}"), "/")
        .await
        .unwrap();
    assert_eq!(&fetched[..], b"here");
    assert_eq!(asked.load(std::sync::atomic::Ordering::Acquire), 1);
    let (monitoring, _) = leading(&["127.0.0.1", "::ffff:169.254.169.254"]);
    let error = monitoring
        .fetch(&format!("http://server.example:{port}"), "/")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MonitoringBlocked);
    let (monitoring, _) = leading(&[]);
    let error = monitoring.fetch("http://server.example", "/").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Monitoring);
}

#[tokio::test]
async fn only_known_pages_when_so_told_and_no_user_info_in_errors() {
    let base = server(|_| ok(b"here")).await;
    let strict = monitoring().only_known_paths();
    assert!(strict.fetch(&base, "/jsz?acc=A").await.is_ok());
    for path in ["/", "/debug/pprof", "/varz/x", "/varz/../debug", "/%76arz"] {
        let error = strict.fetch(&base, path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MonitoringBlocked, "{path}");
    }
    let error = monitoring()
        .fetch("http://user:secret@169.254.1.1", "/")
        .await
        .unwrap_err();
    assert!(!format!("{error:?} {error}").contains("secret"));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_longer_than_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let impatient = Monitoring::new(Duration::from_millis(50), &Tls::default()).unwrap();
    let error = impatient.fetch(&base, "/varz").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(
        Monitoring::new(Duration::ZERO, &Tls::default()).unwrap().timeout,
        TIMEOUT
    );
}
