//! Every link of the chain from operator to user, broken one at a time, through the [`Authenticator`].

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::super::test_support::{claims, open_account, open_user, sign, sign_v1, with};
use crate::auth::{
    Attempt, AuthFailure, Authenticator, Credentials, Expires, Identity, IdentityKind, Recheck,
};
use crate::options::{AccountOptions, ConnectionType, JwtOptions, Options, UserCredential, UserOptions};

const NONCE: &[u8] = b"abcdefghijklmno";
/// The present of all tests: after `iat` (1,000), before the usual `exp`.
const NOW: u64 = 2_000;

/// One operator, one account, one user. The claims can be changed before they are signed.
struct World {
    operator: KeyPair,
    operator_signer: KeyPair,
    account: KeyPair,
    account_signer: KeyPair,
    user: KeyPair,
    operator_claims: Value,
    account_claims: Value,
    user_claims: Value,
    now: u64,
}

impl World {
    fn new() -> Self {
        let (operator, operator_signer) = (KeyPair::new_operator(), KeyPair::new_operator());
        let (account, account_signer) = (KeyPair::new_account(), KeyPair::new_account());
        let user = KeyPair::new_user();
        let operator_nats = json!({"signing_keys": [operator_signer.public_key()]});
        Self {
            operator_claims: claims(&operator, &operator, "operator", operator_nats, json!({})),
            account_claims: claims(&operator, &account, "account", open_account(), json!({})),
            user_claims: claims(&account, &user, "user", open_user(), json!({})),
            operator,
            operator_signer,
            account,
            account_signer,
            user,
            now: NOW,
        }
    }

    fn operator(mut self, change: Value) -> Self {
        self.operator_claims = with(self.operator_claims, change);
        self
    }

    fn account(mut self, change: Value) -> Self {
        self.account_claims = with(self.account_claims, change);
        self
    }

    fn user(mut self, change: Value) -> Self {
        self.user_claims = with(self.user_claims, change);
        self
    }

    /// The user is signed by the account's signing key.
    fn by_signing_key(self) -> Self {
        let (account, signer) = (self.account.public_key(), self.account_signer.public_key());
        self.user(json!({"iss": signer, "nats": {"issuer_account": account}}))
    }

    fn signer(&self, key: &Value) -> &KeyPair {
        [
            &self.operator,
            &self.operator_signer,
            &self.account,
            &self.account_signer,
        ]
        .into_iter()
        .find(|pair| *key == pair.public_key())
        .unwrap()
    }

    fn sign(&self, claims: &Value) -> String {
        sign(self.signer(&claims["iss"]), claims)
    }

    fn user_jwt(&self) -> String {
        self.sign(&self.user_claims)
    }

    fn options(&self) -> Options {
        let mut options = Options::default();
        options.auth.jwt = Some(JwtOptions {
            operators: vec![sign(&self.operator, &self.operator_claims)],
            preload: [(self.account.public_key(), self.sign(&self.account_claims))].into(),
            ..JwtOptions::default()
        });
        options
    }

    fn authenticator(&self) -> Authenticator {
        Authenticator::from_options(&self.options()).unwrap()
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            jwt: self.user_jwt().as_str().into(),
            signature: URL_SAFE_NO_PAD.encode(self.user.sign(NONCE).unwrap()),
            ..Credentials::default()
        }
    }

    fn attempt<'a>(&self, credentials: &'a Credentials) -> Attempt<'a> {
        Attempt {
            credentials,
            nonce: Some(NONCE),
            connection_type: ConnectionType::Standard,
            remote: Some("10.1.2.3".parse().unwrap()),
            certificate: None,
            now: at(self.now),
        }
    }

    fn outcome(&self) -> Result<Identity, AuthFailure> {
        self.authenticator()
            .authenticate(&self.attempt(&self.credentials()))
    }

    fn failure(&self) -> AuthFailure {
        self.outcome().unwrap_err()
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn a_user_signed_by_its_account_is_admitted_into_it() {
    let world = World::new();
    let server = world.authenticator();
    assert!(server.is_operator_mode() && server.nonce_required());
    assert!(server.auth_required(ConnectionType::Standard));
    assert!(!server.admits_without_credentials(ConnectionType::Standard));
    let identity = world.outcome().unwrap();
    assert_eq!(identity.kind, IdentityKind::Jwt);
    assert_eq!(identity.user, world.user.public_key());
    assert_eq!(*identity.account, *world.account.public_key());
    assert_eq!(&*identity.account_name, "the account");
    assert_eq!(identity.user_name.as_deref(), Some("the user"));
    assert_eq!(identity.issuer_key, Some(world.account.public_key()));
    assert_eq!(identity.jwt, Some(world.user_jwt().as_str().into()));
    assert!(identity.permissions.is_none() && identity.expiry.is_none());
    assert_eq!((identity.max_payload, identity.max_subscriptions), (None, None));
}

#[test]
fn nothing_but_a_user_jwt_is_looked_at() {
    let world = World::new();
    let server = world.authenticator();
    let by_password = Credentials {
        user: "a".to_owned(),
        password: "p".into(),
        ..Credentials::default()
    };
    assert_eq!(
        server.authenticate(&world.attempt(&by_password)).unwrap_err(),
        AuthFailure::NoCredentials
    );
    let account_jwt = Credentials {
        jwt: world.sign(&world.account_claims).as_str().into(),
        ..world.credentials()
    };
    let refused = server.authenticate(&world.attempt(&account_jwt)).unwrap_err();
    assert!(matches!(refused, AuthFailure::InvalidJwt(_)), "{refused}");
}

#[test]
fn the_nonce_is_signed_with_the_users_key_in_either_base64() {
    let world = World::new();
    let server = world.authenticator();
    let with_signature = |signature: String| {
        let credentials = Credentials {
            signature,
            ..world.credentials()
        };
        server
            .authenticate(&world.attempt(&credentials))
            .map(|identity| identity.user)
    };
    assert!(with_signature(STANDARD.encode(world.user.sign(NONCE).unwrap())).is_ok());
    assert_eq!(with_signature(String::new()), Err(AuthFailure::NoSignature));
    let by_account = URL_SAFE_NO_PAD.encode(world.account.sign(NONCE).unwrap());
    assert_eq!(with_signature(by_account), Err(AuthFailure::WrongSignature));
}

#[test]
fn a_bearer_token_needs_no_signature_unless_the_account_wants_one() {
    let world = World::new().user(json!({"nats": {"bearer_token": true}}));
    let unsigned = Credentials {
        signature: String::new(),
        ..world.credentials()
    };
    let identity = world
        .authenticator()
        .authenticate(&world.attempt(&unsigned))
        .unwrap();
    assert_eq!(identity.kind, IdentityKind::BearerJwt);
    let strict = world.account(json!({"nats": {"limits": {"disallow_bearer": true}}}));
    assert_eq!(strict.failure(), AuthFailure::BearerNotAllowed);
}

#[test]
fn the_account_must_be_signed_by_the_operator() {
    let world = World::new();
    let signer = world.operator_signer.public_key();
    assert!(
        World {
            account_claims: with(world.account_claims.clone(), json!({"iss": signer})),
            ..world
        }
        .outcome()
        .is_ok()
    );

    let own = World::new();
    let itself = own.account.public_key();
    let self_signed = own.account(json!({"iss": itself}));
    assert!(matches!(self_signed.failure(), AuthFailure::Account(_)));

    let mut strange = World::new();
    let other = KeyPair::new_operator();
    strange.operator_claims = with(
        strange.operator_claims,
        json!({"iss": other.public_key(), "sub": other.public_key()}),
    );
    strange.operator_claims["nats"]["signing_keys"] = json!([]);
    let mut options = strange.options();
    options.auth.jwt.as_mut().unwrap().operators = vec![sign(&other, &strange.operator_claims)];
    let server = Authenticator::from_options(&options).unwrap();
    let refused = server
        .authenticate(&strange.attempt(&strange.credentials()))
        .unwrap_err();
    assert!(matches!(refused, AuthFailure::Account(_)));
}

#[test]
fn trusted_keys_stand_in_for_an_operator() {
    let world = World::new();
    let mut options = world.options();
    let jwt = options.auth.jwt.as_mut().unwrap();
    jwt.operators.clear();
    jwt.trusted_keys = vec![world.operator.public_key()];
    let server = Authenticator::from_options(&options).unwrap();
    assert!(server.authenticate(&world.attempt(&world.credentials())).is_ok());
}

#[test]
fn an_unknown_account_or_issuer_is_refused() {
    let world = World::new();
    let mut options = world.options();
    options.auth.jwt.as_mut().unwrap().preload.clear();
    let server = Authenticator::from_options(&options).unwrap();
    let refused = server
        .authenticate(&world.attempt(&world.credentials()))
        .unwrap_err();
    assert_eq!(refused, AuthFailure::Account("no such account".to_owned()));

    let not_listed = World::new().by_signing_key();
    assert_eq!(not_listed.failure(), AuthFailure::Issuer);
}

#[test]
fn a_signing_key_of_the_account_signs_users() {
    let world = World::new().by_signing_key();
    let signer = world.account_signer.public_key();
    let world = world.account(json!({"nats": {"signing_keys": [signer.clone()]}}));
    let identity = world.outcome().unwrap();
    assert_eq!(*identity.account, *world.account.public_key());
    assert_eq!(identity.issuer_key, Some(signer));
}

#[test]
fn a_strict_operator_signs_with_signing_keys_only_and_so_do_its_accounts() {
    let strict = || World::new().operator(json!({"nats": {"strict_signing_key_usage": true}}));
    assert!(
        matches!(strict().failure(), AuthFailure::Account(_)),
        "account signed by the operator itself"
    );

    let world = strict();
    let operator_signer = world.operator_signer.public_key();
    let by_signer = world.account(json!({"iss": operator_signer}));
    assert_eq!(
        by_signer.failure(),
        AuthFailure::Issuer,
        "user signed by the account itself"
    );

    let world = by_signer.by_signing_key();
    let signer = world.account_signer.public_key();
    assert!(
        world
            .account(json!({"nats": {"signing_keys": [signer]}}))
            .outcome()
            .is_ok()
    );
}

#[test]
fn claims_hold_from_nbf_to_exp() {
    let user = |change| World::new().user(change).outcome();
    assert!(user(json!({"exp": NOW + 1, "nbf": NOW})).is_ok());
    assert_eq!(user(json!({"exp": NOW})).unwrap_err(), AuthFailure::UserExpired);
    assert_eq!(
        user(json!({"nbf": NOW + 1})).unwrap_err(),
        AuthFailure::UserExpired
    );
    assert!(user(json!({"exp": i64::MAX})).unwrap().expiry.is_some());
    assert!(user(json!({"exp": -5})).unwrap().expiry.is_none());
    let account = |change| World::new().account(change).outcome();
    assert_eq!(
        account(json!({"exp": NOW})).unwrap_err(),
        AuthFailure::AccountExpired
    );
    assert_eq!(
        account(json!({"nbf": NOW + 1})).unwrap_err(),
        AuthFailure::AccountExpired
    );
}

#[test]
fn the_earlier_end_of_user_and_account_is_told_with_its_text() {
    let ends = |user: u64, account: u64| {
        let world = World::new()
            .user(json!({"exp": user}))
            .account(json!({"exp": account}));
        let identity = world.outcome().unwrap();
        assert_eq!(identity.user_expires_at, Some(at(user)));
        identity.expiry.unwrap()
    };
    let user_first = ends(NOW + 10, NOW + 20);
    assert_eq!((user_first.at, user_first.of), (at(NOW + 10), Expires::User));
    assert_eq!(user_first.of.error_text(), "User Authentication Expired");
    let account_first = ends(NOW + 30, NOW + 20);
    assert_eq!(
        (account_first.at, account_first.of),
        (at(NOW + 20), Expires::Account)
    );
    assert_eq!(account_first.of.error_text(), "Account Authentication Expired");
}

#[test]
fn a_time_window_ends_an_identity_like_an_expiry() {
    // 2,000 seconds after midnight is 00:33:20.
    let times = |start: &str, end: &str| {
        let range = json!([{"start": start, "end": end}]);
        World::new().user(json!({"exp": 100_000, "nats": {"times": range, "times_location": "UTC"}}))
    };
    let expiry = times("00:30:00", "01:00:00").outcome().unwrap().expiry.unwrap();
    assert_eq!((expiry.at, expiry.of), (at(3_600), Expires::User));
    assert_eq!(times("01:00:00", "02:00:00").failure(), AuthFailure::TimeOfDay);
    assert!(matches!(
        times("1 am", "2 am").failure(),
        AuthFailure::InvalidJwt(_)
    ));
    let nowhere = World::new().user(json!({"nats": {"times_location": "No/Where"}}));
    assert!(matches!(nowhere.failure(), AuthFailure::InvalidJwt(_)));
}

#[test]
fn revocation_covers_what_was_issued_before_it() {
    let revoked = |key: &str, until: u64| {
        let world = World::new();
        let key = if key == "*" {
            key.to_owned()
        } else {
            world.user.public_key()
        };
        world
            .account(json!({"nats": {"revocations": {key: until}}}))
            .outcome()
    };
    for key in ["*", "user"] {
        assert_eq!(revoked(key, 1_000).unwrap_err(), AuthFailure::Revoked);
        assert!(revoked(key, 999).is_ok());
    }
    let other =
        World::new().account(json!({"nats": {"revocations": {KeyPair::new_user().public_key(): NOW}}}));
    assert!(other.outcome().is_ok());
}

#[test]
fn the_source_address_must_be_in_a_network() {
    let from = |networks: Value| World::new().user(json!({"nats": {"src": networks}})).outcome();
    assert!(from(json!(["192.168.0.0/16", "10.1.0.0/16"])).is_ok());
    assert!(from(json!("10.0.0.0/8")).is_ok());
    assert_eq!(
        from(json!(["192.168.0.0/16"])).unwrap_err(),
        AuthFailure::SourceAddress
    );
    assert!(matches!(
        from(json!(["nonsense"])).unwrap_err(),
        AuthFailure::InvalidJwt(_)
    ));

    let world = World::new().user(json!({"nats": {"src": ["10.0.0.0/8"]}}));
    let credentials = world.credentials();
    let server = world.authenticator();
    let attempt = |remote: Option<&str>| Attempt {
        remote: remote.map(|remote| remote.parse().unwrap()),
        ..world.attempt(&credentials)
    };
    assert!(server.authenticate(&attempt(Some("::ffff:10.1.2.3"))).is_ok());
    assert!(server.authenticate(&attempt(Some("fe80::1"))).is_err());
    assert!(server.authenticate(&attempt(None)).is_err());
}

#[test]
fn connection_types_bind_a_user_and_unknown_ones_are_not_all() {
    let allowed = |types: Value| {
        World::new()
            .user(json!({"nats": {"allowed_connection_types": types}}))
            .outcome()
    };
    assert!(allowed(json!(["WEBSOCKET", "standard"])).is_ok());
    assert!(allowed(json!(["TELEPATHY", "STANDARD"])).is_ok());
    for other in [json!(["WEBSOCKET"]), json!(["TELEPATHY"])] {
        assert_eq!(allowed(other).unwrap_err(), AuthFailure::ConnectionType);
    }
}

#[test]
fn a_user_that_needs_a_trusted_proxy_is_refused() {
    let world = World::new().user(json!({"nats": {"proxy_required": true}}));
    assert!(matches!(world.failure(), AuthFailure::InvalidJwt(_)));
}

#[test]
fn absent_limits_mean_zero_in_version_two_and_none_in_version_one() {
    let limits = |identity: Identity| (identity.max_payload, identity.max_subscriptions);
    let set = World::new().user(json!({"nats": {"subs": 5, "payload": 100}}));
    assert_eq!(limits(set.outcome().unwrap()), (Some(100), Some(5)));

    let mut absent = World::new();
    absent.user_claims["nats"] = json!({"type": "user", "version": 2});
    assert_eq!(limits(absent.outcome().unwrap()), (Some(0), Some(0)));

    let old = World::new();
    let body = json!({
        "iss": old.account.public_key(), "sub": old.user.public_key(), "type": "user", "nats": {"pub": {}, "sub": {}},
    });
    let credentials = Credentials {
        jwt: sign_v1(&old.account, &body).as_str().into(),
        ..old.credentials()
    };
    let identity = old
        .authenticator()
        .authenticate(&old.attempt(&credentials))
        .unwrap();
    assert_eq!(limits(identity), (None, None));
}

#[test]
fn own_permissions_replace_those_of_the_account() {
    let default = json!({"nats": {"default_permissions": {"pub": {"allow": ["default"]}}}});
    let publishes = |world: World, subject: &str| {
        let permissions = world.outcome().unwrap().permissions.unwrap();
        permissions.can_publish(subject.as_bytes())
    };
    assert!(publishes(World::new().account(default.clone()), "default"));
    let own = || {
        World::new()
            .account(default.clone())
            .user(json!({"nats": {"pub": {"allow": ["own"]}}}))
    };
    assert!(publishes(own(), "own"));
    assert!(!publishes(own(), "default"));

    let answers = World::new()
        .user(json!({"nats": {"resp": {"max": 0, "ttl": 0}}}))
        .outcome()
        .unwrap();
    let permissions = answers.permissions.unwrap();
    assert!(!permissions.can_publish(b"any"));
    let responses = permissions.responses().unwrap();
    assert_eq!(
        (responses.max, responses.expires),
        (1, Some(Duration::from_secs(120)))
    );

    let broken = World::new().user(json!({"nats": {"pub": {"allow": ["a..b"]}}}));
    assert!(matches!(broken.failure(), AuthFailure::InvalidJwt(_)));
}

/// A world whose user is signed by a scoped signing key with this template.
fn scoped(template: &Value) -> World {
    let mut world = World::new().by_signing_key();
    let account = world.account.public_key();
    world.user_claims["nats"] =
        json!({"type": "user", "version": 2, "issuer_account": account, "tags": ["team:blue"]});
    let scope = json!({"kind": "user_scope", "key": world.account_signer.public_key(), "role": "r", "template": template});
    world.account(json!({"nats": {"signing_keys": [scope]}}))
}

#[test]
fn a_scoped_signing_key_says_what_its_users_may_do() {
    let template = json!({"pub": {"allow": ["team.{{tag(team)}}.{{name()}}"]}, "subs": 7});
    let world = scoped(&template).user(json!({"name": "bob"}));
    let identity = world.outcome().unwrap();
    let permissions = identity.permissions.unwrap();
    assert!(permissions.can_publish(b"team.blue.bob"));
    assert!(!permissions.can_publish(b"team.red.bob"));
    assert_eq!(
        (identity.max_subscriptions, identity.max_payload),
        (Some(7), None)
    );
}

#[test]
fn a_user_of_a_scoped_key_must_not_say_itself_what_it_may_do() {
    for own in [
        json!({"subs": -1}),
        json!({"pub": {"allow": [">"]}}),
        json!({"bearer_token": true}),
    ] {
        let world = scoped(&json!({})).user(json!({"nats": own}));
        assert!(matches!(world.failure(), AuthFailure::InvalidJwt(_)));
    }
    assert!(scoped(&json!({})).outcome().is_ok());
}

#[test]
fn a_template_can_make_bearers_and_can_fail() {
    let world = scoped(&json!({"bearer_token": true}));
    let unsigned = Credentials {
        signature: String::new(),
        ..world.credentials()
    };
    assert!(
        world
            .authenticator()
            .authenticate(&world.attempt(&unsigned))
            .is_ok()
    );
    assert!(matches!(
        scoped(&json!({"pub": {"deny": ["{{tag(x)}}"]}})).failure(),
        AuthFailure::InvalidJwt(_)
    ));
}

#[test]
fn invalid_account_claims_keep_their_users_out() {
    for change in [
        json!({"authorization": {"auth_users": [KeyPair::new_user().public_key()]}}),
        json!({"signing_keys": ["A1"]}),
        json!({"limits": {"exports": 0}, "exports": [{"subject": "a", "type": "stream"}]}),
        json!({"exports": [{"subject": "a.*", "type": "stream"}, {"subject": "a.b", "type": "stream"}]}),
        json!({"imports": [{"subject": "a", "type": "stream"}]}),
        json!({"mappings": {"a": [{"subject": "b", "weight": 60}, {"subject": "c", "weight": 60}]}}),
        json!({"default_permissions": {"pub": {"allow": ["a b"]}}}),
        json!({"trace": {"dest": "t.>"}}),
        json!({"trace": {"dest": "t", "sampling": 101}}),
    ] {
        let world = World::new().account(json!({"nats": change}));
        let failure = world.failure();
        assert!(matches!(failure, AuthFailure::Account(_)), "{change}: {failure}");
        let (usable, left_out) = world.authenticator().claimed_accounts(at(NOW));
        assert_eq!((usable.len(), left_out.len()), (0, 1), "{change}");
    }
}

#[test]
fn the_sentinel_stands_in_for_a_missing_jwt() {
    let world = World::new().user(json!({"nats": {"bearer_token": true}}));
    let mut options = world.options();
    options.auth.jwt.as_mut().unwrap().default_sentinel = Some(world.user_jwt());
    let server = Authenticator::from_options(&options).unwrap();
    for jwt in ["", "not a jwt"] {
        let credentials = Credentials {
            jwt: jwt.into(),
            ..Credentials::default()
        };
        let identity = server.authenticate(&world.attempt(&credentials)).unwrap();
        assert_eq!(identity.user, world.user.public_key());
    }
    options.auth.jwt.as_mut().unwrap().default_sentinel = Some(World::new().user_jwt());
    let problems = Authenticator::from_options(&options).unwrap_err().problems;
    assert_eq!(problems, ["default sentinel must be a bearer token"]);
}

#[test]
fn the_system_account_comes_from_the_operator_and_must_be_known() {
    let world = World::new();
    let account = world.account.public_key();
    let world = world.operator(json!({"nats": {"system_account": account.clone()}}));
    assert_eq!(
        world.authenticator().claimed_system_account(),
        Some(account.as_str())
    );

    let mut options = world.options();
    options.system_account = Some(account);
    assert!(Authenticator::from_options(&options).is_ok());
    options.system_account = Some(KeyPair::new_account().public_key());
    let problems = Authenticator::from_options(&options).unwrap_err().problems;
    assert_eq!(
        problems,
        [
            "system_account in config and operator JWT must be identical",
            "error resolving system account: account missing",
        ]
    );
}

#[test]
fn operator_mode_excludes_configured_users() {
    let world = World::new();
    let mut options = world.options();
    options.accounts.insert("A".to_owned(), AccountOptions::default());
    options.auth.users.push(UserOptions {
        credential: UserCredential::Password {
            name: "a".to_owned(),
            password: "p".to_owned(),
        },
        permissions: None,
        allowed_connection_types: Vec::new(),
    });
    options.auth.no_auth_user = Some("a".to_owned());
    let jwt = options.auth.jwt.as_mut().unwrap();
    jwt.trusted_keys.push("ONOKEY".to_owned());
    jwt.preload.insert("A1".to_owned(), "eyJ".to_owned());
    let problems = Authenticator::from_options(&options).unwrap_err().problems;
    assert_eq!(
        problems,
        [
            "no_auth_user not compatible with Trusted Operator",
            "operators do not allow Accounts to be configured directly",
            "operators do not allow users to be configured directly",
            "conflicting options for 'TrustedKeys' and 'TrustedOperators'",
            "trusted Keys \"ONOKEY\" are required to be a valid public operator nkey",
            "preload account error for \"A1\": expected 3 chunks",
        ]
    );
}

#[test]
fn an_operator_may_ask_for_a_newer_server() {
    let asks = |version: &str| {
        let world = World::new().operator(json!({"nats": {"assert_server_version": version}}));
        Authenticator::from_options(&world.options()).is_ok()
    };
    assert!(asks("2.2.0") && asks(crate::PROTOCOL_VERSION));
    assert!(!asks("2.99.0") && !asks("3.0.0") && !asks("2.x"));
}

#[test]
fn without_operator_and_keys_there_is_no_operator_mode() {
    let mut options = Options::default();
    options.auth.jwt = Some(JwtOptions::default());
    let server = Authenticator::from_options(&options).unwrap();
    assert!(!server.is_operator_mode() && !server.auth_required(ConnectionType::Standard));
    options.auth.jwt.as_mut().unwrap().default_sentinel = Some("eyJ".to_owned());
    assert!(Authenticator::from_options(&options).is_err());
}

#[test]
fn new_account_claims_turn_out_whom_they_no_longer_admit() {
    let recheck = |change: Value, later: u64| {
        let world = World::new().user(json!({"exp": NOW + 100}));
        let identity = world.outcome().unwrap();
        let world = world.account(change);
        world.authenticator().recheck(&identity, at(later))
    };
    assert!(matches!(recheck(json!({}), NOW + 1), Recheck::Keep(_)));
    let text = |recheck: Recheck| match recheck {
        Recheck::Refused(failure) => failure.live_text(),
        other => panic!("{other:?}"),
    };
    let revoked = json!({"nats": {"revocations": {"*": NOW}}});
    assert_eq!(text(recheck(revoked, NOW)), "User Authentication Revoked");
    assert_eq!(text(recheck(json!({}), NOW + 100)), "User Authentication Expired");
    assert_eq!(
        text(recheck(json!({"exp": NOW}), NOW)),
        "Account Authentication Expired"
    );
    let identity = World::new().outcome().unwrap();
    let elsewhere = World::new();
    assert_eq!(
        text(elsewhere.authenticator().recheck(&identity, at(NOW))),
        "Authorization Violation"
    );
}
