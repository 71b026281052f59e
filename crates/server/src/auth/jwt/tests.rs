//! Reading JWTs: both versions, every way to be wrong, arbitrary bytes.

use nkeys::KeyPair;
use proptest::prelude::*;
use serde_json::json;

use super::claims::{Kind, Responses};
use super::test_support::{claims, open_user, sign, sign_v1, sign_with, with};
use super::*;

fn keys() -> (KeyPair, KeyPair) {
    (KeyPair::new_account(), KeyPair::new_user())
}

#[test]
fn a_user_of_version_two_is_read_whole() {
    let (account, user) = keys();
    let nats = json!({
        "pub": {"allow": ["a.>"], "deny": ["a.x"]},
        "sub": {"allow": ["b q"]},
        "resp": {"max": 3, "ttl": 1_000_000_000},
        "src": ["10.0.0.0/8"],
        "times": [{"start": "08:00:00", "end": "17:00:00"}],
        "times_location": "Europe/Amsterdam",
        "subs": 10, "data": -1, "payload": 1024,
        "bearer_token": true,
        "allowed_connection_types": ["STANDARD"],
        "issuer_account": "A1",
        "tags": ["k:v"],
    });
    let token = sign(
        &account,
        &claims(&account, &user, "user", nats, json!({"exp": 5_000, "nbf": null})),
    );
    let read = decode_user(&token).unwrap();
    assert_eq!(read.common.subject, user.public_key());
    assert_eq!(read.common.issuer, account.public_key());
    assert_eq!(read.common.name, "the user");
    assert_eq!(
        (read.common.issued_at, read.common.expires, read.common.not_before),
        (1_000, 5_000, 0)
    );
    assert_eq!(read.common.tags, ["k:v"]);
    assert_eq!((read.account(), read.common.version), ("A1", 2));
    let access = &read.access;
    assert_eq!(access.permissions.publish.allow, ["a.>"]);
    assert_eq!(access.permissions.publish.deny, ["a.x"]);
    assert_eq!(access.permissions.subscribe.allow, ["b q"]);
    let responses = Responses {
        max: 3,
        ttl: 1_000_000_000,
    };
    assert_eq!(access.permissions.resp, Some(responses));
    assert_eq!(access.src, ["10.0.0.0/8"]);
    assert_eq!(access.times[0].end, "17:00:00");
    assert_eq!(access.times_location, "Europe/Amsterdam");
    assert_eq!(
        (access.subs, access.data, access.payload),
        (Some(10), Some(-1), Some(1024))
    );
    assert!(access.bearer_token);
    assert_eq!(access.allowed_connection_types, ["STANDARD"]);
}

#[test]
fn a_user_of_version_one_has_type_tags_and_account_at_the_top() {
    let (account, user) = keys();
    let body = json!({
        "iss": account.public_key(), "sub": user.public_key(), "name": "old", "iat": 1,
        "type": "user", "tags": ["t"], "issuer_account": "A1",
        "nats": {"pub": {}, "sub": {"allow": ["x"]}, "src": "10.0.0.0/8, 192.168.0.0/16"},
    });
    let read = decode_user(&sign_v1(&account, &body)).unwrap();
    assert_eq!((read.common.version, read.account()), (1, "A1"));
    assert_eq!(read.common.tags, ["t"]);
    assert_eq!(read.access.src, ["10.0.0.0/8", "192.168.0.0/16"]);
    assert_eq!(read.access.subs, None);
    // The signature of version 1 does not cover the header, that of version 2 does.
    assert_eq!(decode(&sign(&account, &body)).unwrap_err(), JwtError::Signature);
    let new = claims(&account, &user, "user", open_user(), json!({}));
    assert_eq!(decode(&sign_v1(&account, &new)).unwrap_err(), JwtError::Signature);
}

#[test]
fn nulls_count_as_absent() {
    let (account, user) = keys();
    let nats =
        json!({"pub": null, "sub": {"allow": null}, "resp": null, "src": null, "subs": null, "times": null});
    let token = sign(
        &account,
        &claims(&account, &user, "user", nats, json!({"name": null, "exp": null})),
    );
    let read = decode_user(&token).unwrap();
    assert!(read.access.is_empty());
    assert_eq!(read.common.name, "");
}

#[test]
fn the_header_must_name_type_and_algorithm() {
    let (account, user) = keys();
    let body = claims(&account, &user, "user", open_user(), json!({}));
    for header in [
        json!({"typ": "jwt", "alg": "ED25519-NKEY"}),
        json!({"typ": "JWT", "alg": "ed25519"}),
    ] {
        assert!(
            decode_user(&sign_with(&account, &header, &body, false)).is_ok(),
            "{header}"
        );
    }
    for header in [
        json!({"typ": "JWT", "alg": "none"}),
        json!({"typ": "X", "alg": "ed25519"}),
        json!({}),
        json!([]),
    ] {
        let error = decode(&sign_with(&account, &header, &body, false)).unwrap_err();
        assert!(
            matches!(error, JwtError::Header { .. } | JwtError::Json { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_changed_token_is_refused() {
    let (account, user) = keys();
    let token = sign(&account, &claims(&account, &user, "user", open_user(), json!({})));
    assert!(decode(&token).is_ok());
    assert_eq!(decode(&format!("{token}.x")).unwrap_err(), JwtError::Parts);
    assert_eq!(decode("").unwrap_err(), JwtError::Parts);
    assert_eq!(
        decode(&"x".repeat(JWT_BYTES_MAX + 1)).unwrap_err(),
        JwtError::TooLarge(JWT_BYTES_MAX + 1)
    );
    let other = sign(
        &account,
        &claims(&account, &KeyPair::new_user(), "user", open_user(), json!({})),
    );
    let mixed = format!(
        "{}.{}",
        token.rsplit_once('.').unwrap().0,
        other.rsplit_once('.').unwrap().1
    );
    assert_eq!(decode(&mixed).unwrap_err(), JwtError::Signature);
}

#[test]
fn claims_are_signed_by_keys_of_the_right_kind() {
    let (account, user) = keys();
    let operator = KeyPair::new_operator();
    let refused = |issuer: &KeyPair, kind: &str| {
        let token = sign(issuer, &claims(issuer, &user, kind, json!({}), json!({})));
        decode(&token).err() == Some(JwtError::Issuer)
    };
    for (kind, by_operator, by_account) in [
        ("operator", true, false),
        ("account", true, true),
        ("user", false, true),
    ] {
        assert_eq!(refused(&operator, kind), !by_operator, "{kind}");
        assert_eq!(refused(&account, kind), !by_account, "{kind}");
        assert!(refused(&user, kind));
    }
    let nobody = sign(
        &account,
        &claims(&account, &user, "user", json!({}), json!({"iss": "A"})),
    );
    assert_eq!(decode(&nobody).unwrap_err(), JwtError::Issuer);
}

#[test]
fn unknown_versions_and_kinds_are_refused() {
    let (account, user) = keys();
    let signed = |change| {
        let body = with(
            claims(&account, &user, "user", open_user(), json!({})),
            json!({"nats": change}),
        );
        decode(&sign(&account, &body)).unwrap_err()
    };
    assert_eq!(signed(json!({"version": 3})), JwtError::Version(3));
    assert_eq!(signed(json!({"version": 0})), JwtError::Version(0));
    assert!(matches!(
        signed(json!({"type": "cluster"})),
        JwtError::Kind { .. }
    ));
    assert!(matches!(
        signed(json!({"subs": "many"})),
        JwtError::Json { part: "nats", .. }
    ));
    let token = sign(
        &account,
        &claims(&account, &account, "account", json!({}), json!({})),
    );
    assert!(matches!(
        decode_user(&token),
        Err(JwtError::Kind { wanted: "user", .. })
    ));
}

#[test]
fn an_operator_may_stand_in_a_decorated_file() {
    let operator = KeyPair::new_operator();
    let token = sign(
        &operator,
        &claims(&operator, &operator, "operator", json!({}), json!({})),
    );
    let file = format!("-----BEGIN NATS OPERATOR JWT-----\n{token}\n------END NATS OPERATOR JWT------\n");
    assert_eq!(
        decode_operator(&file).unwrap().common.subject,
        operator.public_key()
    );
    assert!(decode_operator(&token).is_ok());
    assert!(decode_operator("nothing").is_err());
}

#[test]
fn activations_are_read_in_both_versions() {
    let (exporter, importer) = (KeyPair::new_account(), KeyPair::new_account());
    let new = json!({"subject": "a.>", "kind": "service"});
    let token = sign(
        &exporter,
        &claims(&exporter, &importer, "activation", new, json!({})),
    );
    assert_eq!(decode_activation(&token).unwrap().body.kind, Kind::Service);
    let old = json!({
        "iss": exporter.public_key(), "sub": importer.public_key(), "type": "activation", "issuer_account": "A1",
        "nats": {"subject": "a.>", "type": "stream"},
    });
    let read = decode_activation(&sign_v1(&exporter, &old)).unwrap();
    assert_eq!(
        (read.body.kind, read.body.issuer_account.as_str()),
        (Kind::Stream, "A1")
    );
}

/// Any claims object, signed, so that everything behind the signature is reached.
fn signed_json() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9.*>$/: ]{0,12}".prop_map(Value::from),
        Just(json!("user")),
        Just(json!("account")),
    ];
    let name = prop_oneof![
        Just("nats"),
        Just("type"),
        Just("version"),
        Just("pub"),
        Just("sub"),
        Just("allow"),
        Just("src"),
        Just("times"),
        Just("limits"),
        Just("signing_keys"),
        Just("imports"),
        Just("exports"),
        Just("exp"),
        Just("mappings"),
        Just("revocations"),
        Just("tags"),
        Just("template"),
        Just("key"),
        Just("kind"),
    ];
    let value = leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..6).prop_map(|members| {
                Value::Object(
                    members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    });
    value.prop_map(|value| value.to_string().into_bytes())
}

proptest! {
    #[test]
    fn any_text_is_answered(token in "\\PC*") {
        let _ = decode(&token);
        let _ = decode_operator(&token);
    }

    #[test]
    fn any_parts_are_answered(header in any::<Vec<u8>>(), body in any::<Vec<u8>>(), signature in any::<Vec<u8>>()) {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let _ = decode(&format!("{}.{}.{}", encode(&header), encode(&body), encode(&signature)));
    }

    #[test]
    fn any_signed_claims_are_answered(nats in signed_json(), kind in "user|account|operator|activation", old: bool) {
        let issuer = if kind == "operator" { KeyPair::new_operator() } else { KeyPair::new_account() };
        let subject = KeyPair::new_user();
        let nats: Value = serde_json::from_slice(&nats).unwrap();
        let nats = if nats.is_object() { nats } else { json!({ "pub": nats }) };
        let mut body = claims(&issuer, &subject, &kind, nats, json!({}));
        let token = if old {
            body["type"] = kind.into();
            sign_v1(&issuer, &body)
        } else {
            sign(&issuer, &body)
        };
        match decode(&token) {
            Ok(Claims::User(claims)) => drop(checks::user(&claims)),
            Ok(Claims::Account(claims)) => drop(ClaimedAccount::compile(&token, *claims, true)),
            Ok(_) => {}
            Err(error) => prop_assert!(!matches!(error, JwtError::Signature | JwtError::Parts), "{error}"),
        }
    }
}
