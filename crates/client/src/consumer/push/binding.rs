//! Whether a push consumer is the one that a subscription wants. Pure.

use async_nats::jetstream::consumer::{Config, Info};

use crate::config::ConsumerConfig;
use crate::error::{Error, ErrorKind, Result};

/// What a subscription expects of a durable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) stream: &'a str,
    pub(super) durable: &'a str,
    pub(super) queue: Option<&'a str>,
    pub(super) subject: &'a str,
}

/// Why the consumer cannot be used, if so.
pub(super) fn check(wanted: Wanted<'_>, info: &Info) -> Result<()> {
    let config = &info.config;
    let refuse = |why: String| {
        let what = format!(
            "binding {}/{} to {}: {why}",
            wanted.stream, wanted.durable, wanted.subject
        );
        Err(Error::new(ErrorKind::InvalidSubscription, what))
    };
    if config.deliver_subject.is_none() {
        return refuse("it is a pull consumer; use `pull`".into());
    }
    let filters = filters(config);
    if let [one] = filters.as_slice()
        && *one != wanted.subject
    {
        return refuse(format!("it delivers {one}"));
    }
    let group = config.deliver_group.as_deref().filter(|group| !group.is_empty());
    match (wanted.queue, group) {
        (Some(queue), None) => refuse(format!("it has no queue group, and {queue} was asked for")),
        (None, Some(group)) => refuse(format!("it belongs to the queue group {group}")),
        (Some(queue), Some(group)) if queue != group => {
            refuse(format!("it belongs to the queue group {group}, not {queue}"))
        }
        (None, None) if info.push_bound => refuse("somebody else is bound to it".into()),
        _ => Ok(()),
    }
}

/// The client's settings that the consumer does not share, each as a sentence for the log.
pub(super) fn differences(queue: Option<&str>, settings: &ConsumerConfig, config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    if config.ack_wait != settings.ack_wait {
        found.push(format!(
            "its ack wait is {:?}, not {:?}",
            config.ack_wait, settings.ack_wait
        ));
    }
    if queue.is_none() {
        if config.idle_heartbeat != settings.idle_heartbeat {
            found.push(format!(
                "its heartbeat is {:?}, not {:?}",
                config.idle_heartbeat, settings.idle_heartbeat
            ));
        }
        let flow_control = settings.flow_control && !settings.idle_heartbeat.is_zero();
        if config.flow_control != flow_control {
            found.push(format!("its flow control is {}", config.flow_control));
        }
    }
    found
}

fn filters(config: &Config) -> Vec<&str> {
    let one = Some(config.filter_subject.as_str()).filter(|filter| !filter.is_empty());
    one.into_iter()
        .chain(config.filter_subjects.iter().map(String::as_str))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn info(change: impl FnOnce(&mut Info)) -> Info {
        let mut info: Info = serde_json::from_value(serde_json::json!({
            "stream_name": "ORDERS", "name": "worker", "created": "2026-01-01T00:00:00Z",
            "config": {"durable_name": "worker", "deliver_subject": "_INBOX.a", "ack_policy": "explicit",
                "deliver_policy": "all", "replay_policy": "instant", "filter_subject": "orders.>"},
            "delivered": {"consumer_seq": 0, "stream_seq": 0}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0
        }))
        .unwrap();
        change(&mut info);
        info
    }

    fn wanted(queue: Option<&'static str>) -> Wanted<'static> {
        Wanted {
            stream: "ORDERS",
            durable: "worker",
            queue,
            subject: "orders.>",
        }
    }

    #[test]
    fn a_durable_is_bound_when_filter_and_group_are_the_same() {
        let group = |info: &mut Info| info.config.deliver_group = Some("workers".into());
        check(wanted(None), &info(|_| {})).unwrap();
        check(wanted(Some("workers")), &info(group)).unwrap();
        // Somebody is in every queue group; that is what it is for.
        check(
            wanted(Some("workers")),
            &info(|found| {
                group(found);
                found.push_bound = true;
            }),
        )
        .unwrap();
        // Several filters, or none, are taken as they are.
        check(
            wanted(None),
            &info(|info| {
                info.config.filter_subject.clear();
                info.config.filter_subjects = vec!["orders.a".into(), "orders.b".into()];
            }),
        )
        .unwrap();
        check(wanted(None), &info(|info| info.config.filter_subject.clear())).unwrap();
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let refused: [(Option<&'static str>, Info); 6] = [
            (None, info(|info| info.config.deliver_subject = None)),
            (
                None,
                info(|info| info.config.filter_subject = "orders.new".into()),
            ),
            (Some("workers"), info(|_| {})),
            (
                None,
                info(|info| info.config.deliver_group = Some("workers".into())),
            ),
            (
                Some("workers"),
                info(|info| info.config.deliver_group = Some("others".into())),
            ),
            (None, info(|info| info.push_bound = true)),
        ];
        for (queue, info) in refused {
            let error = check(wanted(queue), &info).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSubscription, "{info:?}");
        }
    }

    #[test]
    fn other_settings_are_told_and_taken() {
        let settings = ConsumerConfig::default();
        let ours = info(|info| {
            info.config.ack_wait = settings.ack_wait;
            info.config.idle_heartbeat = settings.idle_heartbeat;
            info.config.flow_control = true;
        });
        assert!(differences(None, &settings, &ours.config).is_empty());
        let theirs = info(|info| info.config.ack_wait = Duration::from_secs(45));
        assert_eq!(differences(None, &settings, &theirs.config).len(), 3);
        // Queue groups have neither heartbeats nor flow control.
        assert_eq!(differences(Some("q"), &settings, &theirs.config).len(), 1);
    }
}
