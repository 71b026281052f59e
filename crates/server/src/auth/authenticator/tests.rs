//! The order of checks and every way a configured user can present itself.

mod recheck;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nkeys::KeyPair;

use super::*;
use crate::auth::certificate::PeerCertificate;
use crate::options::{
    AccountOptions, ListenAddress, PermissionsOptions, TlsOptions, UserCredential, UserOptions,
    WebSocketOptions,
};

const NONCE: &[u8] = b"abcdefghijklmno";

fn user(name: &str, password: &str) -> UserOptions {
    UserOptions {
        credential: UserCredential::Password {
            name: name.to_owned(),
            password: password.to_owned(),
        },
        permissions: None,
        allowed_connection_types: Vec::new(),
    }
}

fn nkey_user(key: &KeyPair) -> UserOptions {
    UserOptions {
        credential: UserCredential::Nkey(key.public_key()),
        ..user("", "")
    }
}

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

fn users(list: &[UserOptions]) -> Options {
    options(|options| options.auth.users = list.to_vec())
}

fn authenticator(options: &Options) -> Authenticator {
    Authenticator::from_options(options).unwrap()
}

fn password(user: &str, password: &str) -> Credentials {
    Credentials {
        user: user.to_owned(),
        password: password.into(),
        ..Credentials::default()
    }
}

fn token(token: &str) -> Credentials {
    Credentials {
        token: token.into(),
        ..Credentials::default()
    }
}

fn signed(key: &KeyPair, nonce: &[u8]) -> Credentials {
    Credentials {
        nkey: key.public_key(),
        signature: URL_SAFE_NO_PAD.encode(key.sign(nonce).unwrap()),
        ..Credentials::default()
    }
}

fn attempt(credentials: &Credentials) -> Attempt<'_> {
    Attempt {
        credentials,
        nonce: Some(NONCE),
        connection_type: ConnectionType::Standard,
        remote: None,
        certificate: None,
        now: SystemTime::UNIX_EPOCH,
    }
}

fn over_websocket(credentials: &Credentials) -> Attempt<'_> {
    Attempt {
        connection_type: ConnectionType::WebSocket,
        ..attempt(credentials)
    }
}

fn outcome(
    authenticator: &Authenticator,
    credentials: &Credentials,
) -> Result<(IdentityKind, String), AuthFailure> {
    authenticator
        .authenticate(&attempt(credentials))
        .map(|identity| (identity.kind, identity.user))
}

fn problems(options: &Options) -> Vec<String> {
    Authenticator::from_options(options).unwrap_err().problems
}

#[test]
fn a_server_without_users_takes_everybody_and_ignores_credentials() {
    let open = authenticator(&Options::default());
    assert!(!open.auth_required(ConnectionType::Standard));
    assert!(!open.nonce_required());
    let identity = open.authenticate(&attempt(&password("x", "y"))).unwrap();
    assert_eq!((identity.kind, identity.user.as_str()), (IdentityKind::Open, "x"));
    assert_eq!((&*identity.account, &*identity.account_name), ("$G", "$G"));
    assert!(identity.permissions.is_none() && identity.expiry.is_none());
    assert_eq!(outcome(&open, &token("t")).unwrap().1, "[REDACTED]");
    assert_eq!(outcome(&open, &Credentials::default()).unwrap().1, "");
}

#[test]
fn choosing_an_account_is_always_refused() {
    let open = authenticator(&Options::default());
    let credentials = Credentials {
        account: "A".to_owned(),
        ..Credentials::default()
    };
    assert_eq!(outcome(&open, &credentials), Err(AuthFailure::AccountChosen));
}

#[test]
fn the_single_user_needs_its_name_and_password() {
    let server = authenticator(&options(|o| {
        o.auth.user = Some(("a".to_owned(), "s3cr3t".to_owned()));
    }));
    assert!(server.auth_required(ConnectionType::Standard));
    let found = outcome(&server, &password("a", "s3cr3t")).unwrap();
    assert_eq!(found, (IdentityKind::SingleUser, "a".to_owned()));
    assert_eq!(
        outcome(&server, &password("a", "")),
        Err(AuthFailure::WrongSecret)
    );
    assert_eq!(
        outcome(&server, &password("b", "s3cr3t")),
        Err(AuthFailure::UnknownUser)
    );
    assert_eq!(
        outcome(&server, &Credentials::default()),
        Err(AuthFailure::UnknownUser)
    );
}

#[test]
fn the_token_is_compared_and_never_shown() {
    let server = authenticator(&options(|o| o.auth.token = Some("t0ken".to_owned())));
    let found = outcome(&server, &token("t0ken")).unwrap();
    assert_eq!(found, (IdentityKind::Token, "[REDACTED]".to_owned()));
    assert_eq!(outcome(&server, &token("token")), Err(AuthFailure::WrongSecret));
    assert_eq!(
        outcome(&server, &password("t0ken", "")),
        Err(AuthFailure::WrongSecret)
    );
    assert!(!format!("{server:?}").contains("t0ken"));
    assert!(!format!("{:?}", token("t0ken")).contains("t0ken"));
}

#[test]
fn a_configured_user_enters_its_own_account_with_its_permissions() {
    let publish_only = |subject: &str| {
        let mut permissions = PermissionsOptions::default();
        permissions.publish.allow.push(subject.to_owned());
        permissions
    };
    let server = authenticator(&options(|o| {
        o.auth.users = vec![user("g", "p")];
        o.auth.default_permissions = Some(publish_only("global"));
        let own = UserOptions {
            permissions: Some(publish_only("own")),
            ..user("b", "p")
        };
        let account = AccountOptions {
            users: vec![user("a", "p"), own],
            default_permissions: Some(publish_only("default")),
            ..AccountOptions::default()
        };
        o.accounts.insert("A".to_owned(), account);
    }));
    for (name, account, subject) in [("g", "$G", "global"), ("a", "A", "default"), ("b", "A", "own")] {
        let identity = server.authenticate(&attempt(&password(name, "p"))).unwrap();
        assert_eq!((&*identity.account, identity.user.as_str()), (account, name));
        let permissions = identity.permissions.unwrap();
        for other in ["global", "default", "own"] {
            assert_eq!(
                permissions.can_publish(other.as_bytes()),
                other == subject,
                "{name} {other}"
            );
        }
    }
}

#[test]
fn a_user_without_a_password_needs_an_empty_one() {
    let server = authenticator(&users(&[user("a", "")]));
    assert!(outcome(&server, &password("a", "")).is_ok());
    assert_eq!(
        outcome(&server, &password("a", "x")),
        Err(AuthFailure::WrongSecret)
    );
}

#[test]
fn passwords_of_any_script_compare_bytewise() {
    let server = authenticator(&users(&[user("ünïcode", "пароль")]));
    assert!(outcome(&server, &password("ünïcode", "пароль")).is_ok());
    assert_eq!(
        outcome(&server, &password("ünïcode", "пароли")),
        Err(AuthFailure::WrongSecret)
    );
}

#[test]
fn bcrypt_is_checked_and_announced_as_slow() {
    let hash = bcrypt::hash("p", 4).unwrap();
    let server = authenticator(&users(&[user("slow", &hash), user("fast", "p")]));
    let needs = |credentials| server.needs_blocking(&credentials, ConnectionType::Standard);
    assert!(needs(password("slow", "p")));
    assert!(!needs(password("fast", "p")));
    assert!(outcome(&server, &password("slow", "p")).is_ok());
    assert_eq!(
        outcome(&server, &password("slow", &hash)),
        Err(AuthFailure::WrongSecret)
    );

    let by_token = authenticator(&options(|o| o.auth.token = Some(hash.clone())));
    assert!(by_token.needs_blocking(&token("p"), ConnectionType::Standard));
    assert!(outcome(&by_token, &token("p")).is_ok());
    assert!(!by_token.has_plain_secrets());
    assert!(server.has_plain_secrets());
}

#[test]
fn an_nkey_user_signs_the_nonce() {
    let key = KeyPair::new_user();
    let server = authenticator(&users(&[nkey_user(&key)]));
    assert!(server.nonce_required());
    let good = signed(&key, NONCE);
    let identity = server.authenticate(&attempt(&good)).unwrap();
    assert_eq!(
        (identity.kind, &identity.user),
        (IdentityKind::Nkey, &key.public_key())
    );
    assert_eq!(identity.issuer_key.as_deref(), Some("$G"));

    let standard = Credentials {
        signature: STANDARD.encode(key.sign(NONCE).unwrap()),
        ..good.clone()
    };
    assert!(outcome(&server, &standard).is_ok());
    let unsigned = Credentials {
        signature: String::new(),
        ..good.clone()
    };
    assert_eq!(outcome(&server, &unsigned), Err(AuthFailure::NoSignature));
    assert_eq!(
        outcome(&server, &signed(&key, b"old nonce")),
        Err(AuthFailure::WrongSignature)
    );
    assert_eq!(
        outcome(&server, &signed(&KeyPair::new_user(), NONCE)),
        Err(AuthFailure::UnknownUser)
    );
    for nonce in [None, Some(&b""[..])] {
        let signed_nothing = signed(&key, b"");
        let attempt = Attempt {
            nonce,
            ..attempt(&signed_nothing)
        };
        assert_eq!(
            server.authenticate(&attempt).unwrap_err(),
            AuthFailure::WrongSignature
        );
    }
}

#[test]
fn an_nkey_is_tried_before_a_user_name_and_only_where_nkeys_exist() {
    let key = KeyPair::new_user();
    let both = Credentials {
        user: "a".to_owned(),
        password: "p".into(),
        ..signed(&key, NONCE)
    };
    let mixed = authenticator(&users(&[user("a", "p"), nkey_user(&key)]));
    assert_eq!(outcome(&mixed, &both).unwrap().0, IdentityKind::Nkey);
    let other_keys = authenticator(&users(&[user("a", "p"), nkey_user(&KeyPair::new_user())]));
    assert_eq!(outcome(&other_keys, &both), Err(AuthFailure::UnknownUser));
    let no_keys = authenticator(&users(&[user("a", "p")]));
    assert_eq!(outcome(&no_keys, &both).unwrap().0, IdentityKind::User);
}

#[test]
fn no_auth_user_stands_in_only_without_credentials() {
    let hash = bcrypt::hash("p", 4).unwrap();
    let server = authenticator(&options(|o| {
        o.auth.users = vec![user("guest", &hash), user("a", "p")];
        o.auth.no_auth_user = Some("guest".to_owned());
    }));
    assert!(server.auth_required(ConnectionType::Standard));
    assert!(server.admits_without_credentials(ConnectionType::Standard));
    let guest = (IdentityKind::NoAuthUser, "guest".to_owned());
    assert_eq!(outcome(&server, &Credentials::default()).unwrap(), guest);
    // As in nats-server, a JWT outside of operator mode and an nkey where no nkeys are configured do not count.
    let unusable = Credentials {
        jwt: "eyJ".into(),
        nkey: KeyPair::new_user().public_key(),
        ..Credentials::default()
    };
    assert_eq!(outcome(&server, &unusable).unwrap(), guest);
    assert_eq!(outcome(&server, &password("a", "p")).unwrap().1, "a");
    assert_eq!(
        outcome(&server, &password("a", "x")),
        Err(AuthFailure::WrongSecret)
    );
    assert_eq!(
        outcome(&server, &password("guest", "x")),
        Err(AuthFailure::WrongSecret)
    );
    assert_eq!(
        outcome(&server, &password("nobody", "")),
        Err(AuthFailure::UnknownUser)
    );
    assert_eq!(
        outcome(&server, &password("", "p")),
        Err(AuthFailure::NoCredentials)
    );
    assert_eq!(outcome(&server, &token("t")), Err(AuthFailure::NoCredentials));
}

#[test]
fn no_auth_user_may_be_an_nkey() {
    let key = KeyPair::new_user();
    let server = authenticator(&options(|o| {
        o.auth.users = vec![nkey_user(&key)];
        o.auth.no_auth_user = Some(key.public_key());
    }));
    let found = outcome(&server, &Credentials::default()).unwrap();
    assert_eq!(found, (IdentityKind::NoAuthUser, key.public_key()));
    assert_eq!(
        outcome(&server, &signed(&KeyPair::new_user(), NONCE)),
        Err(AuthFailure::UnknownUser)
    );
}

#[test]
fn a_user_may_be_bound_to_kinds_of_connection() {
    let bound = UserOptions {
        allowed_connection_types: vec![ConnectionType::WebSocket],
        ..user("ws", "p")
    };
    let server = authenticator(&users(&[bound]));
    let credentials = password("ws", "p");
    assert_eq!(outcome(&server, &credentials), Err(AuthFailure::ConnectionType));
    assert!(server.authenticate(&over_websocket(&credentials)).is_ok());
}

#[test]
fn users_of_the_system_account_alone_leave_the_server_open() {
    let only_system = options(|o| {
        let account = AccountOptions {
            users: vec![user("sys", "p")],
            ..AccountOptions::default()
        };
        o.accounts.insert("$SYS".to_owned(), account);
    });
    let server = authenticator(&only_system);
    assert!(server.admits_without_credentials(ConnectionType::Standard));
    let anonymous = server.authenticate(&attempt(&Credentials::default())).unwrap();
    assert_eq!(
        (anonymous.kind, &*anonymous.account),
        (IdentityKind::NoAuthUser, "$G")
    );
    let system = server.authenticate(&attempt(&password("sys", "p"))).unwrap();
    assert_eq!(&*system.account, "$SYS");
    assert_eq!(
        outcome(&server, &password("x", "p")),
        Err(AuthFailure::UnknownUser)
    );

    let mut two_accounts = only_system;
    two_accounts
        .accounts
        .insert("A".to_owned(), AccountOptions::default());
    assert_eq!(
        outcome(&authenticator(&two_accounts), &Credentials::default()),
        Err(AuthFailure::NoCredentials)
    );
}

#[test]
fn the_websocket_listener_may_ask_for_something_else() {
    let listen = ListenAddress::loopback;
    let server = authenticator(&options(|o| {
        o.auth.token = Some("main".to_owned());
        let mut websocket = WebSocketOptions::new(listen());
        websocket.user = Some(("w".to_owned(), "p".to_owned()));
        o.websocket = Some(websocket);
    }));
    let (by_token, by_name) = (token("main"), password("w", "p"));
    assert!(outcome(&server, &by_token).is_ok());
    assert_eq!(
        server.authenticate(&over_websocket(&by_token)).unwrap_err(),
        AuthFailure::UnknownUser
    );
    assert!(server.authenticate(&over_websocket(&by_name)).is_ok());
    assert_eq!(outcome(&server, &by_name), Err(AuthFailure::WrongSecret));

    let only_websocket = authenticator(&options(|o| {
        let mut websocket = WebSocketOptions::new(listen());
        websocket.token = Some("t".to_owned());
        o.websocket = Some(websocket);
    }));
    assert!(!only_websocket.auth_required(ConnectionType::Standard));
    assert!(only_websocket.auth_required(ConnectionType::WebSocket));
    assert!(
        only_websocket
            .authenticate(&over_websocket(&Credentials::default()))
            .is_err()
    );

    let other_guest = authenticator(&options(|o| {
        o.auth.users = vec![user("a", "p"), user("guest", "p")];
        let mut websocket = WebSocketOptions::new(listen());
        websocket.no_auth_user = Some("guest".to_owned());
        o.websocket = Some(websocket);
    }));
    let nobody = Credentials::default();
    assert_eq!(outcome(&other_guest, &nobody), Err(AuthFailure::NoCredentials));
    assert_eq!(
        other_guest.authenticate(&over_websocket(&nobody)).unwrap().user,
        "guest"
    );

    let same = authenticator(&options(|o| {
        o.auth.token = Some("main".to_owned());
        o.websocket = Some(WebSocketOptions::new(listen()));
    }));
    assert!(same.authenticate(&over_websocket(&by_token)).is_ok());
}

fn certificate_for(common_name: &str) -> Arc<PeerCertificate> {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, common_name);
    let key = rcgen::KeyPair::generate().unwrap();
    Arc::new(PeerCertificate::from_der(params.self_signed(&key).unwrap().der()).unwrap())
}

#[test]
fn a_certificate_names_the_user_where_verify_and_map_is_on() {
    let tls = TlsOptions {
        verify_and_map: true,
        ..TlsOptions::default()
    };
    let server = authenticator(&options(|o| {
        o.tls = Some(tls);
        let websocket_only = UserOptions {
            allowed_connection_types: vec![ConnectionType::WebSocket],
            ..user("CN=ws", "")
        };
        o.auth.users = vec![
            user("CN=alice", ""),
            user("CN=both", "p"),
            user("plain", "p"),
            websocket_only,
        ];
        o.websocket = Some(WebSocketOptions::new(ListenAddress::loopback()));
    }));
    let with = |name: &str, credentials: &Credentials| {
        let certificate = certificate_for(name);
        let attempt = Attempt {
            certificate: Some(&certificate),
            ..attempt(credentials)
        };
        server
            .authenticate(&attempt)
            .map(|identity| (identity.kind, identity.user))
    };
    let nobody = Credentials::default();
    assert_eq!(
        with("alice", &nobody).unwrap(),
        (IdentityKind::Certificate, "CN=alice".to_owned())
    );
    assert_eq!(
        with("alice", &password("plain", "")).unwrap().1,
        "CN=alice",
        "the certificate decides"
    );
    assert_eq!(with("both", &nobody), Err(AuthFailure::WrongSecret));
    assert_eq!(with("both", &password("", "p")).unwrap().1, "CN=both");
    assert_eq!(
        with("mallory", &password("plain", "p")),
        Err(AuthFailure::NoCertificateUser)
    );
    assert_eq!(
        with("ws", &nobody),
        Err(AuthFailure::NoCertificateUser),
        "not allowed on this listener"
    );
    assert_eq!(
        outcome(&server, &password("plain", "p")),
        Err(AuthFailure::NoCertificateUser)
    );

    // Another listener does not map, and an empty password is not enough there for a user of certificates.
    let named = password("CN=alice", "");
    assert_eq!(
        server.authenticate(&over_websocket(&named)).unwrap_err(),
        AuthFailure::CertificateRequired
    );
    assert!(
        server
            .authenticate(&over_websocket(&password("plain", "p")))
            .is_ok()
    );
    assert!(
        server
            .authenticate(&over_websocket(&password("CN=ws", "")))
            .is_ok()
    );
}

#[test]
fn options_that_contradict_each_other_are_refused_together() {
    let single = || Some(("a".to_owned(), "p".to_owned()));
    let key = KeyPair::new_user();
    assert_eq!(
        problems(&options(|o| {
            o.auth.user = single();
            o.auth.token = Some("t".to_owned());
            o.auth.users = vec![user("a", "p"), user("a", "q"), nkey_user(&key), nkey_user(&key)];
        })),
        [
            "Duplicate user \"a\" detected".to_owned(),
            format!("Duplicate nkey \"{}\" detected", key.public_key()),
            "Can not have a single user/pass and a users array".to_owned(),
            "Can not have a token and a users array".to_owned(),
            "Cannot have a user/pass and token".to_owned(),
        ]
    );
    let with_account = |o: &mut Options| {
        let account = AccountOptions {
            users: vec![user("a", "p")],
            ..AccountOptions::default()
        };
        o.accounts.insert("A".to_owned(), account);
    };
    assert_eq!(
        problems(&options(|o| {
            with_account(o);
            o.auth.user = single();
        })),
        ["Can not have a single user/pass and accounts"]
    );
    assert_eq!(
        problems(&options(|o| {
            with_account(o);
            o.auth.token = Some("t".to_owned());
        })),
        ["Can not have a token and accounts"]
    );
    assert_eq!(
        problems(&options(|o| {
            with_account(o);
            let mut websocket = WebSocketOptions::new(ListenAddress::loopback());
            websocket.user = single();
            websocket.token = Some("t".to_owned());
            websocket.jwt_cookie = Some("c".to_owned());
            o.websocket = Some(websocket);
        })),
        [
            "websocket authentication username not compatible with presence of users/nkeys",
            "websocket authentication token not compatible with presence of users/nkeys",
            "trusted operators or trusted keys configuration is required for JWT authentication via cookie \"c\"",
        ]
    );
}

#[test]
fn bad_users_are_refused_by_name() {
    let mut broken = user("a", "p");
    broken.permissions = Some(PermissionsOptions::default());
    if let Some(permissions) = &mut broken.permissions {
        permissions.publish.allow.push("a..b".to_owned());
    }
    assert_eq!(
        problems(&users(&[broken])),
        ["invalid permissions for user \"a\": publish allow: subject \"a..b\" is not a valid subject"]
    );
    let bad_key = UserOptions {
        credential: UserCredential::Nkey("UNOTAKEY".to_owned()),
        ..user("", "")
    };
    assert_eq!(
        problems(&users(&[bad_key])),
        ["\"UNOTAKEY\" is not a valid public nkey for a user"]
    );
    assert_eq!(
        problems(&options(|o| o.auth.no_auth_user = Some("zz".to_owned()))),
        ["no_auth_user: \"zz\" present, but users/nkeys are not defined"]
    );
    assert_eq!(
        problems(&options(|o| {
            o.auth.users = vec![user("a", "p")];
            o.auth.no_auth_user = Some("zz".to_owned());
        })),
        ["no_auth_user: \"zz\" not present as user or nkey in authorization block or account configuration"]
    );
}
