//! One test per row of the permission rules, then the rules against a naive model.

use proptest::prelude::*;
use windjet_protocol::subject::{is_subset, matches, overlaps};

use super::*;
use crate::options::PermissionList;

fn list(allow: &[&str], deny: &[&str]) -> PermissionList {
    PermissionList {
        allow: allow.iter().map(|&s| s.to_owned()).collect(),
        deny: deny.iter().map(|&s| s.to_owned()).collect(),
    }
}

fn publishing(allow: &[&str], deny: &[&str]) -> Permissions {
    let publish = list(allow, deny);
    Permissions::compile(&PermissionsOptions {
        publish,
        ..Default::default()
    })
    .unwrap()
}

fn subscribing(allow: &[&str], deny: &[&str]) -> Permissions {
    let subscribe = list(allow, deny);
    Permissions::compile(&PermissionsOptions {
        subscribe,
        ..Default::default()
    })
    .unwrap()
}

fn filtered(permissions: &Permissions, subject: &str, queue: Option<&str>, message: &str) -> bool {
    permissions
        .deny_filter_for(subject.as_bytes(), queue.map(str::as_bytes))
        .is_some_and(|filter| filter.denies(message.as_bytes()))
}

#[test]
fn empty_permissions_allow_everything() {
    let permissions = Permissions::compile(&PermissionsOptions::default()).unwrap();
    assert!(permissions.can_publish(b"any.subject"));
    assert!(permissions.can_publish(b"a.*"));
    assert!(permissions.can_subscribe(b">", None));
    assert!(permissions.can_subscribe(b">", Some(b"q")));
    assert!(permissions.deny_filter_for(b">", None).is_none());
}

#[test]
fn publishing_needs_an_allow_entry_when_there_is_one() {
    let permissions = publishing(&["foo", "bar.>", "baz.*"], &[]);
    for allowed in ["foo", "bar.a", "bar.a.b", "baz.x", "baz.*"] {
        assert!(permissions.can_publish(allowed.as_bytes()), "{allowed}");
    }
    for refused in ["fo", "foo.a", "bar", "baz", "baz.x.y", "bar..a", ""] {
        assert!(!permissions.can_publish(refused.as_bytes()), "{refused}");
    }
}

#[test]
fn a_deny_entry_wins_over_an_allow_entry() {
    let permissions = publishing(&["foo.>"], &["foo.secret", "foo.*.hidden"]);
    assert!(permissions.can_publish(b"foo.open"));
    assert!(!permissions.can_publish(b"foo.secret"));
    assert!(!permissions.can_publish(b"foo.a.hidden"));

    let permissions = publishing(&[], &["x"]);
    assert!(permissions.can_publish(b"y"));
    assert!(!permissions.can_publish(b"x"));
}

#[test]
fn allow_responses_without_an_allow_list_closes_publishing() {
    let mut options = PermissionsOptions {
        allow_responses: Some(ResponsePermission::default()),
        ..Default::default()
    };
    assert!(!Permissions::compile(&options).unwrap().can_publish(b"any"));
    options.publish.deny.push("x".to_owned());
    assert!(!Permissions::compile(&options).unwrap().can_publish(b"any"));
    options.publish.allow.push("any".to_owned());
    assert!(Permissions::compile(&options).unwrap().can_publish(b"any"));
}

#[test]
fn a_subscription_must_lie_within_an_allow_entry() {
    let permissions = subscribing(&["foo.>", "bar.*", "baz"], &[]);
    for allowed in ["foo.*", "foo.a", "foo.>", "foo.*.b", "bar.a", "bar.*", "baz"] {
        assert!(permissions.can_subscribe(allowed.as_bytes(), None), "{allowed}");
    }
    for refused in [">", "*", "foo", "*.a", "baz.a", "bar.a.b"] {
        assert!(!permissions.can_subscribe(refused.as_bytes(), None), "{refused}");
    }
}

/// nats-server 2.15 accepts this one and then delivers `bar.a.b`.
#[test]
fn a_full_wildcard_does_not_slip_through_a_partial_one() {
    assert!(!subscribing(&["bar.*"], &[]).can_subscribe(b"bar.>", None));
}

#[test]
fn a_wider_subscription_than_a_deny_entry_is_accepted_and_filtered() {
    let permissions = subscribing(&[], &["foo.bar"]);
    assert!(permissions.can_subscribe(b"foo.*", None));
    assert!(!permissions.can_subscribe(b"foo.bar", None));
    assert!(filtered(&permissions, "foo.*", None, "foo.bar"));
    assert!(filtered(&permissions, "foo.*", Some("q"), "foo.bar"));
    assert!(!filtered(&permissions, "foo.*", None, "foo.baz"));
    assert!(permissions.deny_filter_for(b"other.*", None).is_none());
    assert!(permissions.deny_filter_for(b"foo.baz", None).is_none());
}

#[test]
fn a_subscription_that_only_overlaps_a_deny_entry_is_filtered_too() {
    let permissions = subscribing(&[], &["*.bar"]);
    assert!(permissions.can_subscribe(b"foo.*", None));
    assert!(filtered(&permissions, "foo.*", None, "foo.bar"));
}

#[test]
fn a_subscription_inside_a_deny_pattern_is_refused() {
    let permissions = subscribing(&[], &["foo.*"]);
    for refused in ["foo.a", "foo.*", "foo.>"] {
        assert!(!permissions.can_subscribe(refused.as_bytes(), None), "{refused}");
    }
    assert!(permissions.can_subscribe(b"foo.a.b", None));
}

#[test]
fn entries_with_a_queue_decide_about_queue_subscriptions() {
    let permissions = subscribing(&["foo q1", "foo *.prod", "bar", "bar q2"], &[]);
    assert!(permissions.can_subscribe(b"foo", Some(b"q1")));
    assert!(permissions.can_subscribe(b"foo", Some(b"eu.prod")));
    assert!(!permissions.can_subscribe(b"foo", Some(b"q2")));
    assert!(!permissions.can_subscribe(b"foo", Some(b"eu.dev")));
    assert!(
        !permissions.can_subscribe(b"foo", None),
        "no entry without a queue"
    );
    assert!(permissions.can_subscribe(b"bar", None));
    assert!(permissions.can_subscribe(b"bar", Some(b"q2")));
    assert!(
        !permissions.can_subscribe(b"bar", Some(b"q3")),
        "the queue entry decides, not the plain one"
    );
}

#[test]
fn a_plain_entry_allows_any_queue_when_no_queue_entry_covers_the_subject() {
    let permissions = subscribing(&["foo", "other q1"], &[]);
    assert!(permissions.can_subscribe(b"foo", Some(b"anything")));
    assert!(permissions.can_subscribe(b"foo", Some(b"")));
}

#[test]
fn a_plain_deny_entry_denies_queue_subscriptions_too() {
    let permissions = subscribing(&[], &["foo", "foo q1", "bar q1"]);
    assert!(!permissions.can_subscribe(b"foo", Some(b"q1")));
    assert!(!permissions.can_subscribe(b"foo", Some(b"q2")));
    assert!(!permissions.can_subscribe(b"bar", Some(b"q1")));
    assert!(permissions.can_subscribe(b"bar", Some(b"q2")));
    assert!(permissions.can_subscribe(b"bar", None));
}

#[test]
fn a_queue_deny_entry_filters_the_deliveries_of_that_queue_only() {
    let permissions = subscribing(&[], &["foo.y q1"]);
    assert!(filtered(&permissions, "foo.*", Some("q1"), "foo.y"));
    assert!(!filtered(&permissions, "foo.*", Some("q2"), "foo.y"));
    assert!(!filtered(&permissions, "foo.*", None, "foo.y"));
}

#[test]
fn wildcards_of_a_queue_name_do_not_widen_it() {
    let permissions = subscribing(&["foo v1.*"], &[]);
    assert!(permissions.can_subscribe(b"foo", Some(b"v1.*")));
    assert!(permissions.can_subscribe(b"foo", Some(b"v1.a")));
    assert!(!permissions.can_subscribe(b"foo", Some(b"v1.>")));
}

#[test]
fn malformed_entries_are_named() {
    let publish = |entry: &str| PermissionsOptions {
        publish: list(&[entry], &[]),
        ..Default::default()
    };
    let subscribe = |entry: &str| PermissionsOptions {
        subscribe: list(&[], &[entry]),
        ..Default::default()
    };
    let message = |options: &PermissionsOptions| Permissions::compile(options).unwrap_err().to_string();
    assert_eq!(
        message(&publish("a..b")),
        "publish allow: subject \"a..b\" is not a valid subject"
    );
    assert_eq!(
        message(&publish("a q")),
        "publish allow: subject \"a q\" is not a valid subject"
    );
    assert_eq!(
        message(&publish("")),
        "publish allow: subject \"\" is not a valid subject"
    );
    assert_eq!(
        message(&subscribe("a..b q")),
        "subscribe deny: subject \"a..b\" is not a valid subject"
    );
    assert_eq!(
        message(&subscribe("a q..")),
        "subscribe deny: queue \"q..\" is not a valid queue"
    );
    assert_eq!(
        message(&subscribe("a b c")),
        "subscribe deny: subject \"a b c\" is not a valid subject"
    );
}

fn pattern() -> impl Strategy<Value = String> {
    let token = prop_oneof![3 => "[ab]", 1 => Just("*".to_owned())];
    (prop::collection::vec(token, 1..4), prop::bool::weighted(0.2)).prop_map(|(mut tokens, tail)| {
        if tail {
            tokens.push(">".to_owned());
        }
        tokens.join(".")
    })
}

fn literal() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]", 1..5).prop_map(|tokens| tokens.join("."))
}

proptest! {
    /// Whatever is delivered to an accepted subscription was allowed and is not denied.
    #[test]
    fn no_delivery_escapes_the_permissions(
        allow in prop::collection::vec(pattern(), 0..4),
        deny in prop::collection::vec(pattern(), 0..4),
        subscription in pattern(),
        message in literal(),
    ) {
        let as_strs = |patterns: &[String]| patterns.to_vec();
        let permissions = Permissions::compile(&PermissionsOptions {
            subscribe: PermissionList { allow: as_strs(&allow), deny: as_strs(&deny) },
            ..Default::default()
        }).unwrap();
        let delivered = permissions.can_subscribe(subscription.as_bytes(), None)
            && matches(subscription.as_bytes(), message.as_bytes())
            && !filtered(&permissions, &subscription, None, &message);
        if delivered {
            let any = |patterns: &[String]| patterns.iter().any(|p| matches(p.as_bytes(), message.as_bytes()));
            prop_assert!(allow.is_empty() || any(&allow));
            prop_assert!(!any(&deny));
        }
    }

    /// The compiled sets answer as a plain scan of the lists does.
    #[test]
    fn compiled_checks_agree_with_a_scan(
        allow in prop::collection::vec(pattern(), 1..5),
        deny in prop::collection::vec(pattern(), 0..5),
        subscription in pattern(),
        subject in literal(),
    ) {
        let lists = PermissionList { allow: allow.clone(), deny: deny.clone() };
        let permissions = Permissions::compile(&PermissionsOptions {
            publish: lists.clone(),
            subscribe: lists,
            ..Default::default()
        }).unwrap();
        let hit = |patterns: &[String], literal: &str| {
            patterns.iter().any(|p| matches(p.as_bytes(), literal.as_bytes()))
        };
        prop_assert_eq!(permissions.can_publish(subject.as_bytes()), hit(&allow, &subject) && !hit(&deny, &subject));
        let within = allow.iter().any(|p| is_subset(subscription.as_bytes(), p.as_bytes()));
        prop_assert_eq!(
            permissions.can_subscribe(subscription.as_bytes(), None),
            within && !hit(&deny, &subscription)
        );
        let touches = deny.iter().any(|p| overlaps(p.as_bytes(), subscription.as_bytes()));
        let wild = subscription.contains(['*', '>']);
        prop_assert_eq!(permissions.deny_filter_for(subscription.as_bytes(), None).is_some(), touches && wild);
    }
}
