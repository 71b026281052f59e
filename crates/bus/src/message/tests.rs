//! The wire forms: examples of the contract, byte for byte, and properties of all types.

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::Token;

const REGISTER: &str = r#"{"version":"2","type":"register","worker_id":"w-07","farm_id":"f1","hostname":"node7","os":"linux","arch":"amd64","cpu_count":4,"gpu_info":{},"tags":{"pool":"fx"}}"#;
const REPLY: &str = r#"{"assignments":[{"version":"2","type":"assign","task_id":"t1","job_id":"j1","step_id":"s1","attempt_id":"a1","task_name":"frame 1","worker_id":"w-07","assigned_at":"2026-01-02T03:04:05Z","on_run":{"command":"echo","args":["hi"]}}]}"#;
const STATUS: &str = r#"{"version":"2","type":"task_status","task_id":"t1","attempt_id":"a1","job_id":"j1","status":"succeeded","exit_code":0,"at":"2026-01-02T03:04:09Z","worker_id":"w-07"}"#;
const LOG: &str = r#"{"version":"2","type":"log_chunk","task_id":"t1","attempt_id":"a1","seq_num":1,"at":"2026-01-02T03:04:06Z","stream":"stdout","data":"hi"}"#;
const CANCEL: &str = r#"{"task_id":"t1","job_id":"j1","canceled_at":"2026-01-02T03:04:07Z"}"#;

fn golden<T: Serialize + DeserializeOwned>(text: &str) -> T {
    let message: T = decode(text.as_bytes()).unwrap();
    let written = encode(&message).unwrap();
    assert_eq!(std::str::from_utf8(&written).unwrap(), text);
    message
}

#[test]
fn the_examples_of_the_contract_are_read_and_written_byte_for_byte() {
    let register: RegisterMsg = golden(REGISTER);
    assert_eq!((register.cpu_count, register.tags["pool"].as_str()), (4, "fx"));
    let request: LeaseRequest = golden(r#"{"worker_id":"w-07"}"#);
    assert_eq!(request.worker_id, "w-07");
    let reply: LeaseReply = golden(REPLY);
    assert_eq!(reply.assignments[0].on_run.as_ref().unwrap().args, ["hi"]);
    let status: TaskStatusMsg = golden(STATUS);
    assert_eq!(status.exit_code, Some(0));
    golden::<LogChunkMsg>(LOG);
    assert_eq!(golden::<TaskCancelMsg>(CANCEL).attempt_id, "");
    golden::<LeaseReply>(r#"{"assignments":[]}"#);
    golden::<DiagLogMsg>(
        r#"{"ts":"2026-01-02T03:04:05.123456789Z","level":"WARN","msg":"slow","attrs":{"k":"v"}}"#,
    );
    golden::<DeregisterMsg>(
        r#"{"version":"2","type":"deregister","worker_id":"w1","reason":"graceful shutdown"}"#,
    );
    golden::<HeartbeatMsg>(
        r#"{"version":"2","type":"heartbeat","worker_id":"w1","at":"2026-01-02T03:04:05Z","active_task_count":1,"max_concurrent_tasks":4,"active_task_ids":["t1"],"uptime_seconds":1.5}"#,
    );
}

#[test]
fn constructors_fill_the_envelope_of_their_layout() {
    let worker = Token::new("w1").unwrap();
    let plain = RegisterMsg::new(Layout::Plain, &worker);
    assert_eq!(
        (plain.version.as_str(), plain.kind.as_str()),
        ("2", TYPE_REGISTER)
    );
    assert_eq!(HeartbeatMsg::new(Layout::Identity, &worker).version, "3");
    assert_eq!(DeregisterMsg::new(Layout::Plain, &worker).kind, TYPE_DEREGISTER);
    assert_eq!(AssignMsg::new(Layout::Plain).kind, TYPE_ASSIGN);
    assert_eq!(
        TaskStatusMsg::new(Layout::Plain, "running").kind,
        TYPE_TASK_STATUS
    );
    assert_eq!(LogChunkMsg::new(Layout::Plain).kind, TYPE_LOG_CHUNK);
    assert!(is_current("2", Layout::Plain) && is_current("3", Layout::Identity));
    for wrong in ["", "1", "3", "2 "] {
        assert!(!is_current(wrong, Layout::Plain), "{wrong:?}");
    }
}

#[test]
fn w4t_running_and_canceled_have_no_exit_code_on_the_wire() {
    for status in ["running", "canceled"] {
        let text = encode(&TaskStatusMsg::new(Layout::Plain, status)).unwrap();
        assert!(!std::str::from_utf8(&text).unwrap().contains("exit_code"));
    }
}

#[test]
fn p2_a_plain_assignment_has_none_of_the_expression_keys() {
    let mut assign = AssignMsg::new(Layout::Plain);
    assign.environments.push(Environment::default());
    let text = encode(&assign).unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    for key in [
        "job_name",
        "step_name",
        "parameter_types",
        "job_parameter_types",
        "expr",
        "step_template_let",
        "step_script_let",
        "\"let\"",
        "step_environment",
    ] {
        assert!(!text.contains(key), "{key} in {text}");
    }
}

#[test]
fn null_reads_as_absent_and_unknown_fields_are_ignored() {
    let text = r#"{"version":"2","type":"register","worker_id":null,"cpu_count":null,"gpu_info":null,"tags":null,"expr_limits":null,"queue_ids":null,"new_field":{"a":[1]}}"#;
    let register: RegisterMsg = decode(text.as_bytes()).unwrap();
    assert_eq!((register.worker_id.as_str(), register.cpu_count), ("", 0));
    let reply: LeaseReply = decode(br#"{"assignments":null}"#).unwrap();
    assert!(reply.assignments.is_empty());
    let chunk: LogChunkMsg = decode(br#"{"at":null}"#).unwrap();
    assert!(chunk.at.is_zero());
    let status: TaskStatusMsg = decode(br#"{"at":"0001-01-01T00:00:00Z"}"#).unwrap();
    assert!(status.at.is_zero());
}

#[test]
fn a_reply_with_one_broken_assignment_still_gives_the_others() {
    let reply: RawLeaseReply =
        decode(br#"{"assignments":[{"version":7},{"version":"2","task_id":"t2"}]}"#).unwrap();
    assert!(decode::<AssignMsg>(reply.assignments[0].get().as_bytes()).is_err());
    let second: AssignMsg = decode(reply.assignments[1].get().as_bytes()).unwrap();
    assert_eq!(second.task_id, "t2");
}

/// P-1 and P-3: what decodes, encodes, and decodes to the same.
fn stable<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<T>(bytes) {
        let again = encode(&message).unwrap();
        assert_eq!(decode::<T>(&again).unwrap(), message);
    }
}

fn all_types(bytes: &[u8]) {
    stable::<RegisterMsg>(bytes);
    stable::<DeregisterMsg>(bytes);
    stable::<HeartbeatMsg>(bytes);
    stable::<LeaseRequest>(bytes);
    stable::<LeaseReply>(bytes);
    stable::<AssignMsg>(bytes);
    stable::<TaskStatusMsg>(bytes);
    stable::<LogChunkMsg>(bytes);
    stable::<TaskCancelMsg>(bytes);
    stable::<DiagLogMsg>(bytes);
    let _ = decode::<RawLeaseReply>(bytes);
}

proptest! {
    #[test]
    fn p3_arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        all_types(&bytes);
    }

    /// One byte of a valid message changed: the interesting neighbourhood.
    #[test]
    fn p1_p3_damaged_messages_never_panic_and_what_decodes_is_stable(
        which in 0usize..5, at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = [REGISTER, REPLY, STATUS, LOG, CANCEL][which].as_bytes().to_vec();
        all_types(&bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        all_types(&bytes);
    }
}
