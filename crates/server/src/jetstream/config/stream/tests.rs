//! Each refusal of a creation is that of nats-server 2.15.1 to the same request; updates, limits and cycles follow the
//! specification.

use std::collections::HashMap;
use std::sync::Arc;

use windjet_protocol::jetstream::stream::requests::StreamConfigRequest;
use windjet_protocol::jetstream::{Nanos, StorageType, StreamConfig, request};

use super::{Reserved, Rules, Streams};
use crate::options::AccountJetStreamLimits;
use crate::router::TOKENS_MAX;

#[derive(Default)]
struct Fixed {
    streams: HashMap<String, Arc<StreamConfig>>,
    reserved: Reserved,
}

impl Streams for Fixed {
    fn config(&self, name: &str) -> Option<Arc<StreamConfig>> {
        self.streams.get(name).cloned()
    }

    fn reserved(&self, _: &str, _: StorageType) -> Reserved {
        self.reserved
    }
}

fn parse(body: &str) -> StreamConfigRequest {
    request::decode(body.as_bytes(), true).unwrap()
}

impl Fixed {
    fn with(bodies: &[&str]) -> Self {
        let mut fixed = Self::default();
        for body in bodies {
            let config = fixed.create(body).unwrap();
            fixed.streams.insert(config.name.clone(), Arc::new(config));
        }
        fixed
    }

    fn rules(&self) -> Rules<'_> {
        Rules::new(self, &AccountJetStreamLimits::default(), None)
    }

    fn create(&self, body: &str) -> Result<StreamConfig, String> {
        super::create(parse(body), &self.rules()).map_err(|e| format!("{} {}", e.err_code, e.description))
    }

    fn update(&self, old: &str, new: &str) -> Result<StreamConfig, String> {
        let old = self.create(old).unwrap();
        super::update(&old, parse(new), &self.rules())
            .map_err(|e| format!("{} {}", e.err_code, e.description))
    }
}

#[test]
fn a_subject_is_no_deeper_than_that_of_a_subscription() {
    let of = |tokens: usize| format!(r#"{{"name":"S","subjects":["{}"]}}"#, vec!["a"; tokens].join("."));
    let fixed = Fixed::default();
    assert!(fixed.create(&of(TOKENS_MAX)).is_ok());
    assert_eq!(
        fixed.create(&of(TOKENS_MAX + 1)).unwrap_err(),
        "10052 a subject has more than 2048 tokens"
    );
    assert!(fixed.create(&of(500_000)).is_err());
}

#[test]
fn create_is_refused_in_the_words_of_the_real_server() {
    let fixed = Fixed::with(&[
        r#"{"name":"O","subjects":["o.>"],"allow_direct":true,"max_msg_size":100}"#,
        r#"{"name":"S","subjects":["o2"],"sources":[{"name":"O"}]}"#,
    ]);
    for (members, expected) in [
        (
            r#""mirror":{"name":"O"},"pedantic":true"#,
            "10157 pedantic mode: origin stream has direct get set, mirror has it disabled",
        ),
        (
            r#""mirror":{"name":"O"},"max_msg_size":50"#,
            "10030 stream mirror must have max message size >= source",
        ),
        (
            r#""mirror":{"name":"O"},"first_seq":4,"subjects":["a"]"#,
            "10143 stream mirrors can not have first sequence configured",
        ),
        (
            r#""mirror":{"name":"O"},"subjects":["a"],"sources":[{"name":"Z"}]"#,
            "10034 stream mirrors can not contain subjects",
        ),
        (
            r#""mirror":{"name":"O","subject_transforms":[{"src":"a..","dest":"b"}]},"subject_delete_marker_ttl":1000000000"#,
            "10052 subject delete markers forbidden on mirrors",
        ),
        (
            r#""mirror":{"name":"O.x","subject_transforms":[{"src":"a.*","dest":"b.*"}]}"#,
            "10154 mirror transform: invalid subject",
        ),
        (
            r#""mirror":{"name":"O","subject_transforms":[{"src":"a.*","dest":""},{"src":"a.b","dest":"q"}]}"#,
            "10152 mirror subject filters can not overlap",
        ),
        (r#""mirror":{"name":""}"#, "10142 mirrored stream name is invalid"),
        (r#""mirror":{"name":"M"}"#, "10052 detected cycle"),
        (
            r#""mirror":{"name":"O","filter_subject":"a..b"}"#,
            "10049 subject filter 'a..b' for the mirror invalid subject",
        ),
        (
            r#""mirror":{"name":"O","consumer":{"name":"c"}}"#,
            "10213 stream mirror consumer config is invalid",
        ),
        (
            r#""mirror":{"name":"O","external":{"api":"$JS.API"}}"#,
            "10021 stream external api prefix $JS.API must not overlap with $JS.API",
        ),
        (
            r#""mirror":{"name":"O","external":{"api":"$JS.>","deliver":"x.*"}}"#,
            "10024 stream external delivery prefix x.* must not contain wildcards",
        ),
        (
            r#""sources":[{"name":"O"}],"allow_msg_schedules":true"#,
            "10187 stream source can not also schedule messages",
        ),
        (
            r#""sources":[{"name":"O.x"}]"#,
            "10141 sourced stream name is invalid",
        ),
        (
            r#""sources":[{"name":"O"},{"name":"O"}]"#,
            "10140 duplicate source configuration detected",
        ),
        (
            r#""sources":[{"name":"O","subject_transforms":[{"src":"a..","dest":"b"}]}]"#,
            "10145 source transform source: invalid subject a..",
        ),
        (
            r#""sources":[{"name":"O","filter_subject":"a..b"}]"#,
            "10049 subject filter 'a..b' for the source: invalid subject",
        ),
        (
            r#""sources":[{"name":"O"}],"max_msg_size":50"#,
            "10046 stream source must have max message size >= target",
        ),
        (r#""sources":[{"name":"M"}]"#, "10052 detected cycle"),
        (
            r#""allow_msg_counter":true,"discard":"new","allow_msg_ttl":true"#,
            "10052 counter stream cannot use discard new",
        ),
        (
            r#""allow_msg_counter":true,"allow_msg_schedules":true,"retention":"interest""#,
            "10052 counter stream cannot use message schedules",
        ),
        (
            r#""subject_delete_marker_ttl":5"#,
            "10052 subject delete marker TTL must be at least 1 second",
        ),
        (
            r#""subject_delete_marker_ttl":1000000000,"pedantic":true"#,
            "10052 subject delete marker cannot be set if message TTLs are disabled",
        ),
        (
            r#""allow_msg_schedules":true,"pedantic":true"#,
            "10052 message scheduling cannot be set if roll-ups are disabled",
        ),
        (
            r#""allow_msg_schedules":true,"discard":"new""#,
            "10052 message scheduling cannot use discard new",
        ),
        (
            r#""persist_mode":"async","allow_atomic":true"#,
            "10052 async persist mode is not supported with atomic batch publish",
        ),
        (
            r#""placement":{"cluster":"c","preferred":"x"}"#,
            "10052 preferred server not permitted in placement",
        ),
        (
            r#""num_replicas":2,"max_age":-1"#,
            "10052 max age can not be negative",
        ),
        (
            r#""num_replicas":2"#,
            "10074 replicas > 1 not supported in non-clustered mode",
        ),
        (
            r#""max_msgs":-5,"pedantic":true"#,
            "10157 pedantic mode: max_msgs must be set to -1",
        ),
        (
            r#""duplicate_window":5"#,
            "10052 duplicates window needs to be >= 100ms",
        ),
        (
            r#""republish":{"src":"a.*","dest":"M"}"#,
            "10052 stream configuration for republish destination forms a cycle",
        ),
        (
            r#""republish":{"dest":"b"}"#,
            "10052 stream configuration for republish with transform from '>' to 'b' not valid",
        ),
        (
            r#""subject_transform":{"src":"a..","dest":"b"}"#,
            "10155 stream transform source: invalid subject a..",
        ),
        (
            r#""subject_transform":{"src":"a","dest":"b.*"}"#,
            "10156 stream transform: invalid subject",
        ),
        (
            r#""subjects":["a.*","a.b"]"#,
            r#"10052 subject "a.*" overlaps with "a.b""#,
        ),
        (
            r#""subjects":["$SYS.x"]"#,
            "10052 subjects that overlap with system api require no-ack to be true",
        ),
        (
            r#""mirror_direct":true"#,
            "10052 stream has no mirror but does have mirror direct",
        ),
    ] {
        let body = format!(r#"{{"name":"M",{members}}}"#);
        assert_eq!(fixed.create(&body).unwrap_err(), expected, "{body}");
    }
}

#[test]
fn mirror_answers_direct_gets_as_its_origin_does() {
    let fixed = Fixed::with(&[r#"{"name":"O","allow_direct":true}"#]);
    assert!(
        fixed
            .create(r#"{"name":"M","mirror":{"name":"O"}}"#)
            .unwrap()
            .mirror_direct
    );
}

#[test]
fn counter_may_have_markers() {
    let config = Fixed::default()
        .create(r#"{"name":"A","allow_msg_counter":true,"subject_delete_marker_ttl":1000000000}"#);
    let config = config.unwrap();
    assert!(config.allow_msg_ttl && config.allow_rollup_hdrs && !config.deny_purge);
    assert_eq!(config.metadata["_nats.req.level"], "2");
}

#[test]
fn circle_is_one_only_when_a_subject_can_go_round() {
    let fixed = Fixed::with(&[
        r#"{"name":"O","subjects":["o.>"]}"#,
        r#"{"name":"S","subjects":["s.>"],"sources":[{"name":"O","filter_subject":"o.>"}]}"#,
    ]);
    let back = |filter: &str| {
        fixed.update(
            r#"{"name":"O","subjects":["o.>"]}"#,
            &format!(
                r#"{{"name":"O","subjects":["o.>"],"sources":[{{"name":"S","filter_subject":"{filter}"}}]}}"#
            ),
        )
    };
    assert_eq!(back("o.x").unwrap_err(), "10052 detected cycle");
    assert_eq!(back(">").unwrap_err(), "10052 detected cycle");
    assert!(back("s.>").is_ok());
    // Two ways from one origin are no circle.
    assert!(
        fixed
            .create(r#"{"name":"T","sources":[{"name":"O"},{"name":"S"}]}"#)
            .is_ok()
    );
}

#[test]
fn update_refuses_what_can_not_change() {
    let fixed = Fixed::default();
    for (old, new, expected) in [
        (
            "",
            r#","storage":"memory""#,
            "10052 stream configuration update can not change storage type",
        ),
        (
            "",
            r#","retention":"workqueue""#,
            "10052 stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            r#","deny_purge":true"#,
            "",
            "10052 stream configuration update can not cancel deny purge",
        ),
        (
            r#","allow_msg_ttl":true"#,
            "",
            "10052 message TTL status can not be disabled",
        ),
        (
            r#","allow_msg_schedules":true"#,
            "",
            "10052 message schedules can not be disabled",
        ),
        (
            "",
            r#","mirror":{"name":"O"}"#,
            "10055 stream mirror configuration can not be updated",
        ),
    ] {
        let body = |members: &str| format!(r#"{{"name":"A"{members}}}"#);
        assert_eq!(
            fixed.update(&body(old), &body(new)).unwrap_err(),
            expected,
            "{old} -> {new}"
        );
    }
    assert!(
        fixed
            .update(r#"{"name":"A"}"#, r#"{"name":"A","retention":"interest"}"#)
            .is_ok()
    );
    assert!(
        fixed
            .update(r#"{"name":"A","mirror":{"name":"O"}}"#, r#"{"name":"A"}"#)
            .is_ok()
    );
}

#[test]
fn sealing_forces_its_settings_after_the_rules() {
    let config = Fixed::default().update(
        r#"{"name":"A","allow_msg_schedules":true}"#,
        r#"{"name":"A","allow_msg_schedules":true,"max_age":1000000000,"sealed":true}"#,
    );
    let config = config.unwrap();
    assert!(config.sealed && config.deny_delete && config.deny_purge && !config.allow_rollup_hdrs);
    assert_eq!(config.max_age, Nanos::ZERO);
}

#[test]
fn limits_come_before_the_rules_and_count_growth_only_on_update() {
    let fixed = Fixed {
        reserved: Reserved {
            streams: 2,
            account: 90,
            server: 90,
            server_max: Some(100),
        },
        ..Fixed::default()
    };
    let refused = |body: &str| fixed.create(body).unwrap_err();
    assert_eq!(
        refused(r#"{"name":"A","max_bytes":11,"max_age":-1}"#),
        "10047 insufficient storage resources available"
    );
    assert_eq!(
        refused(r#"{"name":"A","max_bytes":11,"storage":"memory"}"#),
        "10028 insufficient memory resources available"
    );
    assert!(fixed.create(r#"{"name":"A","max_bytes":10}"#).is_ok());
    let (old, more) = (r#"{"name":"A","max_bytes":10}"#, r#"{"name":"A","max_bytes":11}"#);
    assert!(fixed.update(old, old).is_ok());
    assert!(fixed.update(old, more).unwrap_err().starts_with("10047"));

    let mut limits = AccountJetStreamLimits {
        max_streams: Some(2),
        ..AccountJetStreamLimits::default()
    };
    let body = || parse(r#"{"name":"A"}"#);
    assert_eq!(
        super::create(body(), &Rules::new(&fixed, &limits, None))
            .unwrap_err()
            .err_code,
        10027
    );
    limits.max_streams = None;
    limits.max_bytes_required = true;
    assert_eq!(
        super::create(body(), &Rules::new(&fixed, &limits, None))
            .unwrap_err()
            .err_code,
        10113
    );
}
