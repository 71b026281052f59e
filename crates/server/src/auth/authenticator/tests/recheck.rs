//! What becomes of live clients after a reload.

use std::time::Duration;

use super::*;

fn recheck(before: &Options, after: &Options, credentials: &Credentials) -> Recheck {
    let identity = authenticator(before).authenticate(&attempt(credentials)).unwrap();
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
    authenticator(after).recheck(&identity, later)
}

#[test]
fn a_live_client_is_judged_again_under_new_options() {
    let before = users(&[user("a", "p")]);
    let credentials = password("a", "p");

    let mut limited = user("a", "p");
    limited.permissions = Some(PermissionsOptions::default());
    match recheck(&before, &users(&[limited]), &credentials) {
        Recheck::Keep(identity) => assert!(identity.permissions.is_some()),
        other => panic!("{other:?}"),
    }
    let refused = |after: &Options| match recheck(&before, after, &credentials) {
        Recheck::Refused(failure) => {
            assert_eq!(failure.live_text(), "Authorization Violation");
            failure
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&users(&[user("a", "q")])), AuthFailure::WrongSecret);
    for gone in [users(&[user("b", "p")]), Options::default()] {
        assert!(matches!(recheck(&before, &gone, &credentials), Recheck::UserGone));
    }

    let moved = options(|o| {
        let account = AccountOptions {
            users: vec![user("a", "p")],
            ..AccountOptions::default()
        };
        o.accounts.insert("A".to_owned(), account);
    });
    assert!(matches!(
        recheck(&before, &moved, &credentials),
        Recheck::AccountChanged
    ));
}

#[test]
fn credentials_that_were_ignored_count_once_they_are_asked_for() {
    let open = Options::default();
    let closed = users(&[user("a", "p")]);
    assert!(matches!(
        recheck(&open, &closed, &password("a", "p")),
        Recheck::Keep(_)
    ));
    assert!(matches!(
        recheck(&open, &closed, &Credentials::default()),
        Recheck::Refused(_)
    ));
    assert!(matches!(
        recheck(&open, &closed, &password("b", "p")),
        Recheck::UserGone
    ));
    assert!(matches!(
        recheck(&open, &open, &password("b", "p")),
        Recheck::Keep(_)
    ));
}

#[test]
fn an_unchanged_secret_is_not_hashed_again() {
    // A hash of a cost that would take minutes: only equality with what was verified before can admit the client.
    let hash = bcrypt::hash("p", 4).unwrap();
    let before = authenticator(&users(&[user("a", &hash)]));
    let identity = before.authenticate(&attempt(&password("a", "p"))).unwrap();
    let costly = hash.replacen("$04$", "$31$", 1);
    let evidence = Evidence {
        verified: Some(costly.as_str().into()),
        ..Evidence::clone(&identity.evidence)
    };
    let identity = Identity {
        evidence: Arc::new(evidence),
        ..identity
    };
    let after = authenticator(&users(&[user("a", &costly)]));
    assert!(matches!(
        after.recheck(&identity, SystemTime::UNIX_EPOCH),
        Recheck::Keep(_)
    ));
}

#[test]
fn a_recheck_announces_the_hash_it_would_compute() {
    let hash = |password: &str| bcrypt::hash(password, 4).unwrap();
    let before = users(&[user("a", "p")]);
    let identity = authenticator(&before)
        .authenticate(&attempt(&password("a", "p")))
        .unwrap();
    let slow =
        |options: &Options, identity: &Identity| authenticator(options).recheck_needs_blocking(identity);
    assert!(!slow(&before, &identity));
    assert!(!slow(&users(&[user("a", "q")]), &identity));
    let hashed = users(&[user("a", &hash("p"))]);
    assert!(slow(&hashed, &identity));
    let Recheck::Keep(identity) = authenticator(&hashed).recheck(&identity, SystemTime::UNIX_EPOCH) else {
        panic!("refused");
    };
    assert!(!slow(&hashed, &identity), "compared with this very hash");
    assert!(slow(&users(&[user("a", &hash("p"))]), &identity), "a new salt");
}

#[test]
fn a_password_that_became_a_hash_of_itself_still_admits() {
    let before = users(&[user("a", "p")]);
    let after = users(&[user("a", &bcrypt::hash("p", 4).unwrap())]);
    assert!(matches!(
        recheck(&before, &after, &password("a", "p")),
        Recheck::Keep(_)
    ));
}

#[test]
fn an_nkey_client_is_judged_again_by_its_old_signature() {
    let key = KeyPair::new_user();
    let with_key = users(&[nkey_user(&key)]);
    let credentials = signed(&key, NONCE);
    assert!(matches!(
        recheck(&with_key, &with_key, &credentials),
        Recheck::Keep(_)
    ));
    let without = users(&[nkey_user(&KeyPair::new_user())]);
    assert!(matches!(
        recheck(&with_key, &without, &credentials),
        Recheck::UserGone
    ));
}
