//! What becomes of imports and exports of two accounts.

use std::time::Duration;

use nkeys::KeyPair;
use serde_json::{Value, json};

use super::super::decode_account;
use super::super::test_support::{claims, open_account, sign, with};
use super::*;

const NOW: u64 = 2_000;

/// An exporter and an importer with these members in their claims.
struct Pair {
    exporter: KeyPair,
    importer: KeyPair,
    signer: KeyPair,
    export: Value,
    import: Value,
}

impl Pair {
    /// Everything exported as a stream on `s.>`, and `s.a` imported.
    fn new() -> Self {
        let exporter = KeyPair::new_account();
        Self {
            import: json!({"subject": "s.a", "type": "stream", "account": exporter.public_key()}),
            export: json!({"subject": "s.>", "type": "stream"}),
            exporter,
            importer: KeyPair::new_account(),
            signer: KeyPair::new_account(),
        }
    }

    fn export(mut self, change: Value) -> Self {
        self.export = with(self.export, change);
        self
    }

    fn import(mut self, change: Value) -> Self {
        self.import = with(self.import, change);
        self
    }

    /// Requires an activation and gives one, signed by `issuer`, changed by `change`.
    fn activated(self, issuer: &KeyPair, change: Value) -> Self {
        let nats = json!({"subject": "s.*", "kind": "stream"});
        let activation = with(
            claims(issuer, &self.importer, "activation", nats, json!({})),
            change,
        );
        let token = sign(issuer, &activation);
        self.export(json!({"token_req": true}))
            .import(json!({"token": token}))
    }

    /// Exporter and importer as settled, and what was left out.
    fn settled(&self) -> (ClaimedAccount, ClaimedAccount, Vec<String>) {
        let operator = KeyPair::new_operator();
        let compile = |key: &KeyPair, nats: Value| {
            let nats = with(open_account(), nats);
            let token = sign(&operator, &claims(&operator, key, "account", nats, json!({})));
            ClaimedAccount::compile(&token, decode_account(&token).unwrap(), true).unwrap()
        };
        let signers = json!([self.signer.public_key()]);
        let exporter = compile(
            &self.exporter,
            json!({"exports": [self.export], "signing_keys": signers}),
        );
        let importer = compile(&self.importer, json!({"imports": [self.import]}));
        let accounts = [&exporter, &importer]
            .into_iter()
            .map(|account| (&*account.id, account))
            .collect();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        let (mut settled, left_out) = settle(&accounts, now);
        settled.sort_by_key(|account| account.id != exporter.id);
        let importer = settled.pop().unwrap();
        (settled.pop().unwrap(), importer, left_out)
    }

    fn admitted(&self) -> bool {
        let (_, importer, left_out) = self.settled();
        assert_eq!(importer.options.imports.len() + left_out.len(), 1, "{left_out:?}");
        left_out.is_empty()
    }
}

#[test]
fn an_import_needs_an_export_of_its_kind_that_covers_it() {
    assert!(Pair::new().admitted());
    assert!(!Pair::new().import(json!({"subject": ">"})).admitted());
    assert!(!Pair::new().import(json!({"type": "service"})).admitted());
    assert!(
        !Pair::new()
            .import(json!({"account": KeyPair::new_account().public_key()}))
            .admitted()
    );
    let old_style = Pair::new().export(json!({"type": "service"}));
    assert!(
        old_style
            .import(json!({"type": "service", "subject": "local", "to": "s.a"}))
            .admitted()
    );
}

#[test]
fn a_public_export_stays_open_and_one_with_tokens_is_restricted() {
    let (exporter, ..) = Pair::new().settled();
    assert!(exporter.options.exports[0].accounts.is_empty());

    let closed = Pair::new().export(json!({"token_req": true}));
    let (exporter, ..) = closed.settled();
    assert_eq!(
        exporter.options.exports[0].accounts,
        [closed.exporter.public_key()],
        "empty would mean all"
    );

    let key = KeyPair::new_account();
    let mut pair = Pair::new();
    pair.import["account"] = key.public_key().into();
    pair.exporter = key.clone();
    let open = pair.activated(&key, json!({}));
    let (exporter, _, left_out) = open.settled();
    assert_eq!(left_out, [""; 0]);
    assert_eq!(
        exporter.options.exports[0].accounts,
        [open.exporter.public_key(), open.importer.public_key()]
    );
}

#[test]
fn an_activation_must_hold_and_come_from_the_exporter() {
    let activated = |change: Value| {
        let pair = Pair::new();
        let issuer = pair.exporter.clone();
        pair.activated(&issuer, change).admitted()
    };
    assert!(activated(json!({})));
    assert!(activated(json!({"exp": NOW + 1})));
    assert!(!activated(json!({"exp": NOW})));
    assert!(!activated(json!({"nbf": NOW + 1})));

    let pair = Pair::new();
    let (signer, exporter) = (pair.signer.clone(), pair.exporter.public_key());
    let by_signing_key = json!({"nats": {"issuer_account": exporter}});
    assert!(pair.activated(&signer, by_signing_key).admitted());
}

#[test]
fn an_activation_by_a_stranger_in_the_name_of_the_exporter_is_refused() {
    let pair = Pair::new();
    let account = pair.exporter.public_key();
    let stranger = KeyPair::new_account();
    assert!(
        !pair
            .activated(&stranger, json!({"nats": {"issuer_account": account}}))
            .admitted()
    );
}

#[test]
fn a_revoked_activation_is_refused() {
    for key in ["*", "importer"] {
        for (until, admitted) in [(1_000, false), (999, true)] {
            let pair = Pair::new();
            let (issuer, importer) = (pair.exporter.clone(), pair.importer.public_key());
            let key = if key == "*" { key } else { &importer };
            let pair = pair
                .activated(&issuer, json!({}))
                .export(json!({"revocations": {key: until}}));
            assert_eq!(pair.admitted(), admitted, "{key} {until}");
        }
    }
}

#[test]
fn a_subject_with_an_account_token_must_name_the_importer() {
    let positioned = || Pair::new().export(json!({"subject": "s.*", "account_token_position": 2}));
    assert!(!positioned().admitted());
    let pair = positioned();
    let own = format!("s.{}", pair.importer.public_key());
    assert!(pair.import(json!({"subject": own})).admitted());
}
