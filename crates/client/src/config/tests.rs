use super::*;
use crate::error::ErrorKind;

const SEED: &str = "SUACH75SWCM5D2JMJM6EKLR2WDARVGZT4QC6LX3AGHSWOMVAKERABBBRWM";

fn refused(change: impl FnOnce(&mut Connection)) -> ErrorKind {
    let mut config = Config::default();
    change(&mut config.connection);
    config.validate().unwrap_err().kind()
}

#[test]
fn the_defaults_are_what_the_contract_says() {
    let config = Config::default();
    let connection = &config.connection;
    assert_eq!(connection.address, "nats://127.0.0.1:4222");
    assert_eq!(connection.connect_timeout, Duration::from_secs(5));
    assert_eq!(connection.drain_timeout, Duration::from_secs(30));
    assert_eq!(connection.ping_interval, Duration::from_secs(20));
    assert!(connection.allow_reconnect && connection.retry_on_failed_connect);
    assert_eq!(connection.max_reconnect, None);
    assert_eq!(connection.reconnect_wait, Duration::from_secs(1));
    assert_eq!(connection.reconnect_jitter, Duration::from_millis(100));
    assert_eq!(connection.reconnect_jitter_tls, Duration::from_secs(1));
    assert_eq!(connection.initial_retry_attempts, 5);
    assert_eq!(connection.initial_retry_wait, Duration::from_secs(1));
    assert!((connection.initial_retry_backoff - 2.0).abs() < f64::EPSILON);
    assert!(!connection.dont_randomize && !connection.refuse_while_disconnected);
    assert!(connection.health_check_interval.is_zero());
    assert!(!connection.tls.is_on());

    let metrics = &config.metrics;
    assert!(connection.allow_metrics && metrics.allow_metrics && metrics.allow_tracing);
    assert_eq!(
        (metrics.prefix.as_str(), connection.metric_prefix.as_str()),
        ("nats", "nats")
    );
    assert_eq!(metrics.collect_interval, Duration::from_secs(15));
    assert!(!metrics.lite && !metrics.fixed_cardinality);
    assert!(metrics.tracked_streams.is_empty() && metrics.tracked_consumers.is_empty());
    for (measured, traced) in [
        (config.publisher.allow_metrics, config.publisher.allow_tracing),
        (config.requester.allow_metrics, config.requester.allow_tracing),
        (config.responder.allow_metrics, config.responder.allow_tracing),
        (config.consumer.allow_metrics, config.consumer.allow_tracing),
    ] {
        assert!(measured && traced);
    }
    assert_eq!(
        config.backpressure.queue_depth_sample_interval,
        Duration::from_secs(5)
    );

    assert!(!config.publisher.skip_subject_validation);
    assert_eq!(config.publisher.max_async_pending, Some(1024));
    assert_eq!(config.publisher.compression, Compression::Off);
    assert_eq!(config.requester.timeout, Duration::from_secs(2));
    assert!(config.requester.decompression && config.responder.decompression);
    assert_eq!(config.requester.compression, Compression::Off);
    assert_eq!(config.responder.compression, Compression::Off);

    let consumer = &config.consumer;
    assert_eq!(consumer.ack_wait, Duration::from_secs(30));
    assert_eq!(consumer.idle_heartbeat, Duration::from_secs(5));
    assert!(consumer.flow_control && consumer.decompression && !consumer.worker_pool_enabled);
    assert_eq!((consumer.worker_pool_size, consumer.worker_buffer_size), (4, 64));
    assert_eq!(config.backpressure.mode, Backpressure::Nak);
    assert_eq!(config.backpressure.max_ack_pending, 1000);
    assert!(config.validate().is_ok());
}

#[test]
fn an_address_is_needed() {
    for address in ["", " , "] {
        assert_eq!(refused(|c| c.address = address.into()), ErrorKind::EmptyAddress);
    }
}

#[test]
fn every_two_ways_to_authenticate_conflict() {
    type Way = fn(&mut Connection);
    let ways: [Way; 5] = [
        |c| (c.user, c.password) = ("u".into(), "p".into()),
        |c| c.seed = SEED.into(),
        |c| c.secret = "t".into(),
        |c| c.credentials_file = "some.creds".into(),
        |c| c.address = "nats://a:4222, nats://token@b:4222".into(),
    ];
    for (index, first) in ways.iter().enumerate() {
        let mut alone = Config::default();
        first(&mut alone.connection);
        assert!(alone.validate().is_ok(), "{index}");
        for second in &ways[index + 1..] {
            let kind = refused(|c| {
                first(c);
                second(c);
            });
            assert_eq!(kind, ErrorKind::ConflictingAuth);
        }
    }
}

#[test]
fn half_of_user_and_password_is_refused() {
    assert_eq!(
        refused(|c| c.user = "u".into()),
        ErrorKind::IncompleteUserPassword
    );
    assert_eq!(
        refused(|c| c.password = "p".into()),
        ErrorKind::IncompleteUserPassword
    );
}

#[test]
fn a_seed_that_is_none_is_refused() {
    assert_eq!(
        refused(|c| c.seed = "SUANOTASEED".into()),
        ErrorKind::InvalidNKeySeed
    );
}

#[test]
fn broken_tls_settings_are_refused() {
    assert_eq!(
        refused(|c| c.tls.ca = b"no certificate".to_vec()),
        ErrorKind::InvalidTls
    );
    assert_eq!(refused(|c| c.tls.cert = b"alone".to_vec()), ErrorKind::InvalidTls);
    assert_eq!(refused(|c| c.tls.key = b"alone".to_vec()), ErrorKind::InvalidTls);
}

#[test]
fn secrets_are_not_printed() {
    let mut config = Config::new("nats://user:hidden1@host:4222");
    config.connection.password = "hidden2".into();
    config.connection.secret = "hidden3".into();
    config.connection.seed = "hidden4".into();
    let text = format!("{config:?}");
    assert!(!text.contains("hidden"), "{text}");
}

#[test]
fn user_info_is_removed_from_addresses() {
    assert_eq!(
        redact("nats://u:p@a:4222, tls://b:4222 ,nats://tok@c"),
        "nats://a:4222,tls://b:4222,nats://c"
    );
    assert_eq!(redact("nats://a:4222"), "nats://a:4222");
    assert_eq!(redact("u:p@a:4222"), "a:4222");
    assert_eq!(redact("nats://a/x@y"), "nats://a/x@y");
}
