//! Tests of reading and writing the subjects of the API.

use proptest::prelude::*;

use super::*;

#[test]
fn every_subject_of_the_list_is_read_and_written() {
    for subject in [
        "$JS.API.INFO",
        "$JS.API.ACCOUNT.PURGE.A",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.CREATE.S",
        "$JS.API.STREAM.UPDATE.S",
        "$JS.API.STREAM.INFO.S",
        "$JS.API.STREAM.DELETE.S",
        "$JS.API.STREAM.PURGE.S",
        "$JS.API.STREAM.MSG.GET.S",
        "$JS.API.STREAM.MSG.DELETE.S",
        "$JS.API.STREAM.SNAPSHOT.S",
        "$JS.API.STREAM.RESTORE.S",
        "$JS.API.STREAM.LEADER.STEPDOWN.S",
        "$JS.API.STREAM.PEER.REMOVE.S",
        "$JS.API.STREAM.PEER.EVACUATE.S",
        "$JS.API.STREAM.CANCEL_MOVE.S",
        "$JS.API.DIRECT.GET.S",
        "$JS.API.DIRECT.GET.S.$KV.b.k",
        "$JS.API.CONSUMER.CREATE.S",
        "$JS.API.CONSUMER.CREATE.S.C",
        "$JS.API.CONSUMER.CREATE.KV_b.C.$KV.b.>",
        "$JS.API.CONSUMER.DURABLE.CREATE.S.C",
        "$JS.API.CONSUMER.NAMES.S",
        "$JS.API.CONSUMER.LIST.S",
        "$JS.API.CONSUMER.INFO.S.C",
        "$JS.API.CONSUMER.DELETE.S.C",
        "$JS.API.CONSUMER.PAUSE.S.C",
        "$JS.API.CONSUMER.UNPIN.S.C",
        "$JS.API.CONSUMER.RESET.S.C",
        "$JS.API.CONSUMER.MSG.NEXT.S.C",
        "$JS.API.CONSUMER.LEADER.STEPDOWN.S.C",
        "$JS.API.CONSUMER.PEER.REMOVE.S.C",
        "$JS.API.CONSUMER.PEER.EVACUATE.S.C",
    ] {
        let call = ApiCall::parse(subject).unwrap_or_else(|| panic!("{subject}"));
        assert_eq!(call.to_string(), subject);
        let about_all = ["INFO", "NAMES", "LIST"].iter().any(|end| subject.ends_with(end));
        assert_eq!(
            call.stream().is_none(),
            about_all || subject.contains("ACCOUNT"),
            "{subject}"
        );
    }
}

#[test]
fn names_and_filters_are_taken_apart() {
    assert_eq!(
        ApiCall::parse("$JS.API.CONSUMER.CREATE.KV_b.C.$KV.b.>"),
        Some(ApiCall::ConsumerCreate {
            stream: "KV_b",
            consumer: Some("C"),
            filter: Some("$KV.b.>")
        })
    );
    assert_eq!(
        ApiCall::parse("$JS.API.DIRECT.GET.S.a.b"),
        Some(ApiCall::DirectGet {
            stream: "S",
            subject: Some("a.b")
        })
    );
    // A stream may be called like a verb.
    assert_eq!(
        ApiCall::parse("$JS.API.STREAM.MSG.GET.GET"),
        Some(ApiCall::Stream {
            verb: StreamVerb::MessageGet,
            stream: "GET"
        })
    );
    assert_eq!(
        ApiCall::parse("$JS.API.CONSUMER.CREATE.DURABLE"),
        Some(ApiCall::ConsumerCreate {
            stream: "DURABLE",
            consumer: None,
            filter: None
        })
    );
}

#[test]
fn other_subjects_are_no_calls() {
    for subject in [
        "$JS.API",
        "$JS.API.",
        "$JS.API.INFO.x",
        "$JS.API.info",
        "$JS.API.STREAM",
        "$JS.API.STREAM.CREATE",
        "$JS.API.STREAM.CREATE.",
        "$JS.API.STREAM.CREATE.S.x",
        "$JS.API.STREAM.NAMES.x",
        "$JS.API.STREAM.TEMPLATE.NAMES",
        "$JS.API.STREAM.MSG.S",
        "$JS.API.CONSUMER.CREATE",
        "$JS.API.CONSUMER.CREATE.",
        "$JS.API.CONSUMER.CREATE.S.",
        "$JS.API.CONSUMER.CREATE.S..f",
        "$JS.API.CONSUMER.DELETE.S.C.extra",
        "$JS.API.CONSUMER.INFO.S",
        "$JS.API.DIRECT.GET",
        "$JS.API.DIRECT.GET.S.",
        "$JS.API.META.LEADER.STEPDOWN",
        "$JS.API.SERVER.REMOVE",
        "$JS.API.ACCOUNT.STREAM.MOVE.A.S",
        "$JS.API.ACCOUNT.PURGE.A.B",
        "$JS.hub.API.INFO",
        "JS.API.INFO",
    ] {
        assert_eq!(ApiCall::parse(subject), None, "{subject}");
    }
}

#[test]
fn domain_stands_in_front_of_calls_and_buckets() {
    assert_eq!(
        in_domain("$JS.hub.API.INFO", "hub"),
        Some(DomainTarget::Call("INFO"))
    );
    assert_eq!(
        in_domain("$JS.hub.API.STREAM.INFO.S", "hub"),
        Some(DomainTarget::Call("STREAM.INFO.S"))
    );
    assert_eq!(
        in_domain("$JS.hub.API.$KV.b.k", "hub"),
        Some(DomainTarget::Publish("$KV.b.k"))
    );
    assert_eq!(
        in_domain("$JS.hub.API.$OBJ.b", "hub"),
        Some(DomainTarget::Publish("$OBJ.b"))
    );
    for subject in [
        "$JS.API.INFO",
        "$JS.hub2.API.INFO",
        "$JS.hub.API.$SYS.x",
        "$JS.hub.API.INFO.x",
        "$JS.hub.API.",
    ] {
        assert_eq!(in_domain(subject, "hub"), None, "{subject}");
    }
    let call = ApiCall::ConsumerNames { stream: "S" };
    assert_eq!(call.subject_in("hub"), "$JS.hub.API.CONSUMER.NAMES.S");
}

#[test]
fn calls_for_clusters_fail_in_their_own_type() {
    for (subject, kind) in [
        (
            "$JS.API.STREAM.LEADER.STEPDOWN.S",
            "stream_leader_stepdown_response",
        ),
        ("$JS.API.STREAM.PEER.REMOVE.S", "stream_remove_peer_response"),
        ("$JS.API.STREAM.PEER.EVACUATE.S", "stream_evacuate_peer_response"),
        ("$JS.API.STREAM.CANCEL_MOVE.S", "stream_cancel_move_response"),
        (
            "$JS.API.CONSUMER.LEADER.STEPDOWN.S.C",
            "consumer_leader_stepdown_response",
        ),
        (
            "$JS.API.CONSUMER.PEER.REMOVE.S.C",
            "consumer_remove_peer_response",
        ),
        (
            "$JS.API.CONSUMER.PEER.EVACUATE.S.C",
            "consumer_evacuate_peer_response",
        ),
    ] {
        let answer = ApiCall::parse(subject).unwrap().cluster_required().unwrap();
        let expected = format!(
            r#"{{"type":"io.nats.jetstream.api.v1.{kind}","error":{{"code":503,"err_code":10010,"description":"JetStream clustering support required"}}}}"#
        );
        assert_eq!(String::from_utf8(answer).unwrap(), expected);
    }
    assert_eq!(
        ApiCall::parse("$JS.API.STREAM.INFO.S")
            .unwrap()
            .cluster_required(),
        None
    );
}

#[test]
fn calls_answered_by_messages_have_no_failure_in_json() {
    let error = ErrorCode::NotEnabledForAccount.error();
    for subject in ["$JS.API.DIRECT.GET.S", "$JS.API.CONSUMER.MSG.NEXT.S.C"] {
        assert_eq!(
            ApiCall::parse(subject).unwrap().failure(&error),
            None,
            "{subject}"
        );
    }
    let answer = ApiCall::StreamNames.failure(&error).unwrap();
    assert!(answer.ends_with(br#""total":0,"offset":0,"limit":0,"streams":null}"#));
    assert!(
        system_failure(&error).starts_with(br#"{"type":"io.nats.jetstream.api.v1.system_response","error":"#)
    );
}

proptest! {
    #[test]
    fn calls_read_back_equal(
        stream in "[A-Za-z_$]{1,6}",
        consumer in "[A-Za-z_$]{1,6}",
        filter in proptest::option::of("[a-z*]{1,3}(\\.[a-z>]{1,3}){0,3}"),
        verb in 0..StreamVerb::ALL.len(),
        other in 0..ConsumerVerb::ALL.len(),
    ) {
        let (stream, filter) = (stream.as_str(), filter.as_deref());
        for call in [
            ApiCall::Stream { verb: StreamVerb::ALL[verb], stream },
            ApiCall::Consumer { verb: ConsumerVerb::ALL[other], stream, consumer: &consumer },
            ApiCall::ConsumerCreate { stream, consumer: Some(&consumer), filter },
            ApiCall::DirectGet { stream, subject: filter },
            ApiCall::AccountPurge { account: stream },
        ] {
            let subject = call.to_string();
            prop_assert_eq!(ApiCall::parse(&subject), Some(call));
        }
    }

    #[test]
    fn reading_never_panics(subject in "\\$JS\\.API\\.[A-Z.]{0,30}") {
        let _ = ApiCall::parse(&subject);
    }
}
