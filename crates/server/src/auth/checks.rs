//! Checks of the authentication options against each other, in the words of nats-server.

use nkeys::KeyPairType;

use super::nkey;
use super::users::Users;
use crate::options::Options;

/// Appends all that is wrong with who may connect, the users themselves apart.
pub(super) fn check(options: &Options, users: &Users, problems: &mut Vec<String>) {
    let auth = &options.auth;
    let mut refuse = |when: bool, text: &str| {
        if when {
            problems.push(text.to_owned());
        }
    };
    let array = !auth.users.is_empty();
    let accounts = options.accounts.values().any(|account| !account.users.is_empty());
    let (single, token) = (auth.user.is_some(), auth.token.is_some());
    refuse(
        single && array,
        "Can not have a single user/pass and a users array",
    );
    refuse(token && array, "Can not have a token and a users array");
    refuse(single && token, "Cannot have a user/pass and token");
    refuse(single && accounts, "Can not have a single user/pass and accounts");
    refuse(token && accounts, "Can not have a token and accounts");
    for key in users.nkeys() {
        refuse(
            !nkey::is_public_key(key, &KeyPairType::User),
            &format!("{key:?} is not a valid public nkey for a user"),
        );
    }
    problems.extend(no_auth_user_problem(options, users, auth.no_auth_user.as_deref()));
    check_websocket(options, users, problems);
}

fn check_websocket(options: &Options, users: &Users, problems: &mut Vec<String>) {
    let Some(websocket) = &options.websocket else {
        return;
    };
    problems.extend(no_auth_user_problem(
        options,
        users,
        websocket.no_auth_user.as_deref(),
    ));
    if !users.is_empty() {
        for (set, what) in [
            (websocket.user.is_some(), "username"),
            (websocket.token.is_some(), "token"),
        ] {
            if set {
                problems.push(format!(
                    "websocket authentication {what} not compatible with presence of users/nkeys"
                ));
            }
        }
    }
    if let Some(cookie) = &websocket.jwt_cookie
        && options.auth.jwt.is_none()
    {
        problems.push(format!(
            "trusted operators or trusted keys configuration is required for JWT authentication via cookie {cookie:?}"
        ));
    }
}

fn no_auth_user_problem(options: &Options, users: &Users, name: Option<&str>) -> Option<String> {
    let name = name?;
    if options.auth.jwt.is_some() {
        Some("no_auth_user not compatible with Trusted Operator".to_owned())
    } else if users.is_empty() {
        Some(format!(
            "no_auth_user: \"{name}\" present, but users/nkeys are not defined"
        ))
    } else if users.named(name).is_none() && users.with_nkey(name).is_none() {
        Some(format!(
            "no_auth_user: \"{name}\" not present as user or nkey in authorization block or account configuration"
        ))
    } else {
        None
    }
}
