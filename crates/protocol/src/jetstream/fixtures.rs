//! Bodies captured from nats-server 2.15.1, read and written again: every byte must come back.
//!
//! The files hold one body a line. Escapes of `<`, `>` and `&` were undone when they were captured; nothing else was
//! changed.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::jetstream::account::AccountInfo;
use crate::jetstream::advisory::{
    ApiAudit, BatchAbandoned, ConsumerAction, ConsumerPause, Event, EventBody, GroupPinned, GroupUnpinned,
    MaxDeliveries, MessageAcked, MessageNaked, MessageTerminated, RestoreComplete, RestoreCreate,
    SnapshotComplete, SnapshotCreate, StreamAction,
};
use crate::jetstream::consumer::requests::{
    ConsumerCreateResponse, ConsumerDeleteResponse, ConsumerInfoResponse, ConsumerListResponse,
    ConsumerNamesResponse, ConsumerPauseResponse, ConsumerResetResponse, ConsumerUnpinResponse,
};
use crate::jetstream::publish::{BatchFlow, decode_pub_ack, encode_pub_error};
use crate::jetstream::stream::get::MessageGetResponse;
use crate::jetstream::stream::requests::{
    MessageDeleteResponse, PurgeResponse, RestoreResponse, SnapshotResponse, StreamCreateResponse,
    StreamDeleteResponse, StreamInfoResponse, StreamListResponse, StreamNamesResponse, StreamUpdateResponse,
};
use crate::jetstream::{ApiResponse, Response};

const STREAM_ANSWERS: &str = include_str!("../../tests/fixtures/jetstream/stream_answers.jsonl");
const CONSUMER_ANSWERS: &str = include_str!("../../tests/fixtures/jetstream/consumer_answers.jsonl");
/// One event a line: subject, blank, body.
const EVENTS: &str = include_str!("../../tests/fixtures/jetstream/events.txt");

fn answer<T: ApiResponse + DeserializeOwned>(line: &str) -> Vec<u8> {
    serde_json::from_str::<Response<T>>(line)
        .unwrap_or_else(|err| panic!("{err}: {line}"))
        .to_vec()
}

fn pub_ack(line: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match decode_pub_ack(line.as_bytes()).unwrap_or_else(|err| panic!("{err}: {line}")) {
        Ok(ack) => ack.encode(&mut out),
        Err(error) => {
            let value: Value = serde_json::from_str(line).unwrap();
            encode_pub_error(value["stream"].as_str().unwrap(), &error, &mut out);
        }
    }
    out
}

/// Reads a line as what its `type` says, and writes it.
fn again(line: &str) -> Vec<u8> {
    let value: Value = serde_json::from_str(line).unwrap();
    let kind = value["type"].as_str().unwrap_or("pub_ack");
    match kind.strip_prefix("io.nats.jetstream.api.v1.").unwrap_or(kind) {
        "pub_ack" => pub_ack(line),
        "ack" | "gap" | "err" => {
            serde_json::to_vec(&serde_json::from_str::<BatchFlow>(line).unwrap()).unwrap()
        }
        "account_info_response" => answer::<AccountInfo>(line),
        "stream_names_response" => answer::<StreamNamesResponse>(line),
        "stream_list_response" => answer::<StreamListResponse>(line),
        "stream_create_response" => answer::<StreamCreateResponse>(line),
        "stream_update_response" => answer::<StreamUpdateResponse>(line),
        "stream_info_response" => answer::<StreamInfoResponse>(line),
        "stream_delete_response" => answer::<StreamDeleteResponse>(line),
        "stream_purge_response" => answer::<PurgeResponse>(line),
        "stream_msg_get_response" => answer::<MessageGetResponse>(line),
        "stream_msg_delete_response" => answer::<MessageDeleteResponse>(line),
        "stream_snapshot_response" => answer::<SnapshotResponse>(line),
        "stream_restore_response" => answer::<RestoreResponse>(line),
        "consumer_create_response" => answer::<ConsumerCreateResponse>(line),
        "consumer_info_response" => answer::<ConsumerInfoResponse>(line),
        "consumer_names_response" => answer::<ConsumerNamesResponse>(line),
        "consumer_list_response" => answer::<ConsumerListResponse>(line),
        "consumer_delete_response" => answer::<ConsumerDeleteResponse>(line),
        "consumer_pause_response" => answer::<ConsumerPauseResponse>(line),
        "consumer_unpin_response" => answer::<ConsumerUnpinResponse>(line),
        "consumer_reset_response" => answer::<ConsumerResetResponse>(line),
        other => panic!("no reader for {other}"),
    }
}

fn check(lines: &str) {
    assert!(lines.lines().count() > 20);
    for line in lines.lines() {
        assert_eq!(String::from_utf8(again(line)).unwrap(), line);
    }
}

#[test]
fn stream_answers_of_the_real_server_come_back_byte_for_byte() {
    check(STREAM_ANSWERS);
}

#[test]
fn consumer_answers_of_the_real_server_come_back_byte_for_byte() {
    check(CONSUMER_ANSWERS);
}

/// Reads an event, and gives its subject and text.
fn event<B: EventBody + DeserializeOwned>(text: &str) -> (String, Vec<u8>) {
    let event = serde_json::from_str::<Event<B>>(text).unwrap_or_else(|err| panic!("{err}: {text}"));
    (event.body.subject(), event.to_vec())
}

#[test]
fn events_of_the_real_server_come_back_byte_for_byte() {
    let mut kinds = std::collections::BTreeSet::new();
    for line in EVENTS.lines() {
        let (subject, text) = line.split_once(' ').unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        let kind = value["type"]
            .as_str()
            .unwrap()
            .strip_prefix("io.nats.jetstream.")
            .unwrap();
        kinds.insert(kind.to_owned());
        let again = match kind {
            "advisory.v1.api_audit" => event::<ApiAudit>(text),
            "advisory.v1.stream_action" => event::<StreamAction>(text),
            "advisory.v1.snapshot_create" => event::<SnapshotCreate>(text),
            "advisory.v1.snapshot_complete" => event::<SnapshotComplete>(text),
            "advisory.v1.restore_create" => event::<RestoreCreate>(text),
            "advisory.v1.restore_complete" => event::<RestoreComplete>(text),
            "advisory.v1.stream_batch_abandoned" => event::<BatchAbandoned>(text),
            "advisory.v1.consumer_action" => event::<ConsumerAction>(text),
            "advisory.v1.consumer_pause" => event::<ConsumerPause>(text),
            "advisory.v1.max_deliver" => event::<MaxDeliveries>(text),
            "advisory.v1.nak" => event::<MessageNaked>(text),
            "advisory.v1.terminated" => event::<MessageTerminated>(text),
            "advisory.v1.consumer_group_pinned" => event::<GroupPinned>(text),
            "advisory.v1.consumer_group_unpinned" => event::<GroupUnpinned>(text),
            "metric.v1.consumer_ack" => event::<MessageAcked>(text),
            other => panic!("no reader for {other}"),
        };
        assert_eq!(
            (again.0.as_str(), std::str::from_utf8(&again.1).unwrap()),
            (subject, text)
        );
    }
    assert_eq!(kinds.len(), 15);
}
