//! Account claims as options, member by member.

use nkeys::KeyPair;
use serde_json::{Value, json};

use super::super::decode_account;
use super::super::test_support::{claims, open_account, sign, sign_v1, with};
use super::*;

fn compiled(nats: Value) -> ClaimedAccount {
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let nats = with(open_account(), nats);
    let token = sign(
        &operator,
        &claims(&operator, &account, "account", nats, json!({"exp": 9_000})),
    );
    ClaimedAccount::compile(&token, decode_account(&token).unwrap(), true).unwrap()
}

#[test]
fn identity_and_limits_are_taken_over() {
    let account = compiled(json!({"tags": ["a:b"], "limits": {"conn": 5, "payload": 0, "leaf": 2}}));
    assert_eq!((&*account.name, account.tags.len()), ("the account", 1));
    assert_eq!(account.options.nkey.as_deref(), Some(&*account.id));
    assert_eq!(
        account.expires_at,
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(9_000))
    );
    let expected = AccountLimits {
        max_connections: Some(5),
        max_subscriptions: None,
        max_payload: Some(0),
        max_leafnodes: Some(2),
    };
    assert_eq!(account.options.limits, expected);
}

#[test]
fn an_account_without_a_name_is_called_by_its_key() {
    let (operator, key) = (KeyPair::new_operator(), KeyPair::new_account());
    let body = json!({"iss": operator.public_key(), "sub": key.public_key(), "type": "account", "nats": open_account()});
    let token = sign_v1(&operator, &body);
    let account = ClaimedAccount::compile(&token, decode_account(&token).unwrap(), true).unwrap();
    assert_eq!(
        (account.name.clone(), &*account.id),
        (account.id.clone(), key.public_key().as_str())
    );
}

#[test]
fn jetstream_is_off_without_storage_and_negative_means_no_limit() {
    assert_eq!(compiled(json!({})).options.jetstream, None);
    let limits = json!({"limits": {
        "mem_storage": -1, "disk_storage": 1000, "streams": 3, "consumer": -1, "max_ack_pending": 0,
        "mem_max_stream_bytes": 7, "disk_max_stream_bytes": -1, "max_bytes_required": true,
    }});
    let jetstream = compiled(limits).options.jetstream.unwrap();
    assert_eq!((jetstream.max_memory, jetstream.max_store), (None, Some(1000)));
    assert_eq!(
        (
            jetstream.max_streams,
            jetstream.max_consumers,
            jetstream.max_ack_pending
        ),
        (Some(3), None, None)
    );
    assert_eq!(
        (
            jetstream.memory_max_stream_bytes,
            jetstream.store_max_stream_bytes
        ),
        (Some(7), None)
    );
    assert!(jetstream.max_bytes_required);
}

#[test]
fn of_jetstream_tiers_the_one_of_a_single_replica_holds() {
    let tiers = |tiers: Value| {
        compiled(json!({"limits": {"disk_storage": 1, "tiered_limits": tiers}}))
            .options
            .jetstream
    };
    let both = tiers(json!({"R1": {"disk_storage": 10, "streams": 1}, "R3": {"disk_storage": 30}})).unwrap();
    assert_eq!(
        (both.max_store, both.max_memory, both.max_streams),
        (Some(10), Some(0), Some(1))
    );
    let only_three = tiers(json!({"R3": {"disk_storage": 30}})).unwrap();
    assert_eq!((only_three.max_store, only_three.max_memory), (Some(0), Some(0)));
    assert_eq!(tiers(json!({"R1": {}})), None);
}

#[test]
fn exports_are_taken_over() {
    let account = compiled(json!({"exports": [
        {"subject": "s.>", "type": "stream"},
        {"subject": "q.*", "type": "service", "response_type": "Chunked", "response_threshold": 5_000_000_000_i64,
         "account_token_position": 2, "allow_trace": true},
    ]}));
    let service = ExportOptions {
        kind: ExportKind::Service,
        subject: "q.*".to_owned(),
        accounts: Vec::new(),
        response_type: ResponseType::Chunked,
        response_threshold: Some(Duration::from_secs(5)),
        account_token_position: Some(2),
        allow_trace: true,
    };
    assert_eq!(account.options.exports[1], service);
    assert_eq!(
        (
            account.options.exports[0].kind,
            account.options.exports[0].account_token_position
        ),
        (ExportKind::Stream, None)
    );
}

#[test]
fn imports_of_both_styles_name_the_same_subjects() {
    let exporter = KeyPair::new_account().public_key();
    let import = |import: Value| {
        let import = with(json!({"account": exporter}), import);
        compiled(json!({"imports": [import]})).options.imports.remove(0)
    };
    let service = |json: Value| {
        let import = import(with(json!({"type": "service"}), json));
        match import.kind {
            ImportKind::Service { to, share } => (import.subject, to, share),
            ImportKind::Stream { .. } => panic!("stream"),
        }
    };
    let local = || Some("local".to_owned());
    assert_eq!(
        service(json!({"subject": "remote"})),
        ("remote".to_owned(), None, false)
    );
    assert_eq!(
        service(json!({"subject": "local", "to": "remote", "share": true})),
        ("remote".to_owned(), local(), true)
    );
    assert_eq!(
        service(json!({"subject": "remote", "local_subject": "local"})),
        ("remote".to_owned(), local(), false)
    );

    let stream = |json: Value| import(with(json!({"type": "stream", "subject": "remote.*"}), json)).kind;
    let expected = |prefix: Option<&str>, to: Option<&str>| ImportKind::Stream {
        prefix: prefix.map(str::to_owned),
        to: to.map(str::to_owned),
    };
    assert_eq!(stream(json!({})), expected(None, None));
    assert_eq!(stream(json!({"to": "p"})), expected(Some("p"), None));
    assert_eq!(
        stream(json!({"local_subject": "l.$1"})),
        expected(None, Some("l.$1"))
    );
}

#[test]
fn mappings_and_traces_are_taken_over() {
    let account = compiled(json!({
        "mappings": {"a": [{"subject": "b", "weight": 40}, {"subject": "c", "cluster": "elsewhere"}], "x": [{"subject": "y"}]},
        "trace": {"dest": "traces", "sampling": 30},
    }));
    let mappings: Vec<(&str, Vec<(&str, u8)>)> = account
        .options
        .mappings
        .iter()
        .map(|mapping| {
            let destinations = mapping
                .destinations
                .iter()
                .map(|d| (d.subject.as_str(), d.weight))
                .collect();
            (mapping.source.as_str(), destinations)
        })
        .collect();
    assert_eq!(mappings, [("a", vec![("b", 40)]), ("x", vec![("y", 100)])]);
    assert_eq!(account.options.msg_trace, Some(("traces".to_owned(), 30)));
    assert_eq!(
        compiled(json!({"trace": {"dest": "t"}})).options.msg_trace,
        Some(("t".to_owned(), 100))
    );
}

#[test]
fn the_own_key_signs_users_unless_told_otherwise() {
    let scope =
        json!({"kind": "user_scope", "key": KeyPair::new_account().public_key(), "template": {"subs": 3}});
    let plain = KeyPair::new_account().public_key();
    let account = compiled(json!({"signing_keys": [plain.clone(), scope]}));
    assert_eq!(account.signers.len(), 3);
    assert_eq!(account.signers.get(&*account.id), Some(&None));
    assert_eq!(account.signers.get(&plain), Some(&None));
    let strict = ClaimedAccount::compile("", account.claims, false).unwrap();
    assert!(!strict.signers.contains_key(&*strict.id));
}
