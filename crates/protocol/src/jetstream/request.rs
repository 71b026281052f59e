//! Reading the JSON body of an API request.
//!
//! [`decode`] applies the rules that all endpoints share, so that no endpoint can apply them differently:
//!
//! * An absent member, `null`, and a member with its zero value mean the same. Only for enumerations (`retention`,
//!   `ack_policy`, …) is `null` an error.
//! * Member names are matched without regard to case; of members given twice the last one counts.
//! * Numbers are plain decimal integers: `1.5`, `1e3` and `"5"` are errors, negative numbers too where the member is
//!   unsigned.
//! * An unknown member is an error on most endpoints when the server is strict, which is the default.
//! * Nothing may follow the object.
//! * What an empty body means differs by endpoint: [`BodyRule`].
//!
//! Every error is `400/10025` with a free text after `invalid JSON: `, except for required bodies (`400/10003`).
//!
//! Pull requests do not go through here: they come many per second and have forms that are not JSON, see
//! [`crate::jetstream::PullRequest`].

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::jetstream::{ApiError, ErrorCode};

/// What an endpoint makes of a body that is not an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyRule {
    /// Looked at only when its first byte that is not white space is `{` or `[`; anything else counts as no body.
    Optional,
    /// An empty body and an empty object are refused with `400/10003`.
    Required,
    /// An empty body counts as an empty object; anything else must be JSON.
    OrDefault,
    /// Must be JSON.
    Json,
}

/// A request body of the JetStream API.
pub trait ApiRequest: DeserializeOwned + Default {
    /// What a body that is no object means.
    const BODY: BodyRule;

    /// Whether a strict server refuses unknown members. Some endpoints always ignore them.
    const REFUSES_UNKNOWN: bool = true;

    /// Makes the request from a JSON object and reports the names of members nobody asked for.
    ///
    /// # Errors
    ///
    /// When a member has the wrong type or an unknown value.
    fn from_json(object: Map<String, Value>, unknown: &mut dyn FnMut(String)) -> serde_json::Result<Self> {
        from_object(object, unknown)
    }
}

/// Deserialises an object and reports the members that `T` has no place for.
pub(crate) fn from_object<T: DeserializeOwned>(
    object: Map<String, Value>,
    unknown: &mut dyn FnMut(String),
) -> serde_json::Result<T> {
    serde_ignored::deserialize(Value::Object(object), |path| {
        if let serde_ignored::Path::Map { key, .. } = path {
            unknown(key);
        }
    })
}

/// Reads the body of a request. `strict` is the server's setting of that name.
///
/// # Errors
///
/// `400/10025` when the body is not what the endpoint reads, `400/10003` when a required body is missing.
pub fn decode<T: ApiRequest>(body: &[u8], strict: bool) -> Result<T, ApiError> {
    let body = body.trim_ascii();
    match T::BODY {
        BodyRule::Optional if !matches!(body.first(), Some(b'{' | b'[')) => return Ok(T::default()),
        BodyRule::OrDefault if body.is_empty() => return Ok(T::default()),
        BodyRule::Required if body.is_empty() => return Err(ErrorCode::BadRequest.error()),
        _ => {}
    }
    let invalid = |text: &dyn std::fmt::Display| ErrorCode::InvalidJson.with(text);
    let object = match serde_json::from_slice(body).map_err(|err| invalid(&err))? {
        Value::Null => return Ok(T::default()),
        Value::Object(object) if object.is_empty() && T::BODY == BodyRule::Required => {
            return Err(ErrorCode::BadRequest.error());
        }
        Value::Object(object) => normalise(object),
        _ => return Err(invalid(&"an object is expected")),
    };
    let mut unknown = None;
    let request = T::from_json(object, &mut |name| {
        unknown.get_or_insert(name);
    })
    .map_err(|err| invalid(&err))?;
    match unknown {
        Some(name) if strict && T::REFUSES_UNKNOWN => Err(invalid(&format_args!("unknown field {name:?}"))),
        _ => Ok(request),
    }
}

/// Checks the body of a request that takes none: nothing or an empty object.
///
/// # Errors
///
/// `400/10038` for anything else.
pub fn expect_empty(body: &[u8]) -> Result<(), ApiError> {
    let body = body.trim_ascii();
    let empty = body.is_empty()
        || matches!(serde_json::from_slice(body), Ok(Value::Object(object)) if object.is_empty());
    if empty {
        Ok(())
    } else {
        Err(ErrorCode::NotEmptyRequest.error())
    }
}

/// Members that hold one word of a list, for which `null` is not the same as absent.
const ENUMERATIONS: [&str; 10] = [
    "retention",
    "discard",
    "storage",
    "compression",
    "persist_mode",
    "deliver_policy",
    "ack_policy",
    "replay_policy",
    "priority_policy",
    "action",
];

/// Lower-cases member names and drops members that are `null`, at every depth.
fn normalise(object: Map<String, Value>) -> Map<String, Value> {
    object
        .into_iter()
        .filter_map(|(mut name, value)| {
            name.make_ascii_lowercase();
            let value = match value {
                Value::Null if !ENUMERATIONS.contains(&name.as_str()) => return None,
                // The names of these are data of the user. A null among the values is an empty text.
                Value::Object(mut data) if name == "metadata" || name == "subjects" => {
                    data.values_mut()
                        .filter(|value| value.is_null())
                        .for_each(|value| *value = Value::from(""));
                    Value::Object(data)
                }
                Value::Object(inner) => Value::Object(normalise(inner)),
                Value::Array(items) => Value::Array(items.into_iter().map(normalise_item).collect()),
                value => value,
            };
            Some((name, value))
        })
        .collect()
}

fn normalise_item(item: Value) -> Value {
    match item {
        Value::Object(object) => Value::Object(normalise(object)),
        item => item,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Default, Deserialize)]
    #[serde(default)]
    struct Sample {
        seq: u64,
        name: String,
        metadata: std::collections::BTreeMap<String, String>,
        inner: Vec<Inner>,
    }

    #[derive(Debug, PartialEq, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        delta: i32,
    }

    macro_rules! with_rule {
        ($($rule:ident)*) => {$(
            #[derive(Debug, PartialEq, Default, Deserialize)]
            #[serde(transparent)]
            struct $rule(Sample);

            impl ApiRequest for $rule {
                const BODY: BodyRule = BodyRule::$rule;
            }
        )*};
    }
    with_rule!(Optional Required OrDefault Json);

    fn refused<T: ApiRequest + std::fmt::Debug>(body: &str) -> ErrorCode {
        decode::<T>(body.as_bytes(), true).unwrap_err().kind().unwrap()
    }

    #[test]
    fn each_rule_decides_what_an_odd_body_means() {
        for body in ["", "  ", "null", "junk", "5"] {
            assert_eq!(
                decode::<Optional>(body.as_bytes(), true),
                Ok(Optional::default()),
                "{body:?}"
            );
        }
        assert_eq!(refused::<Optional>("[]"), ErrorCode::InvalidJson);
        assert_eq!(refused::<Required>(" "), ErrorCode::BadRequest);
        assert_eq!(refused::<Required>(" { } "), ErrorCode::BadRequest);
        assert_eq!(decode::<Required>(b"null", true), Ok(Required::default()));
        assert_eq!(refused::<Required>("junk"), ErrorCode::InvalidJson);
        assert_eq!(decode::<OrDefault>(b" ", true), Ok(OrDefault::default()));
        assert_eq!(refused::<OrDefault>("junk"), ErrorCode::InvalidJson);
        assert_eq!(refused::<Json>(""), ErrorCode::InvalidJson);
        assert_eq!(decode::<Json>(b"{}", true), Ok(Json::default()));
    }

    #[test]
    fn null_means_absent_at_every_depth() {
        let body = br#"{"seq":null,"name":null,"metadata":{"k":null},"inner":[{"delta":null}]}"#;
        let Json(sample) = decode(body, true).unwrap();
        let metadata = [("k".to_owned(), String::new())].into();
        assert_eq!(
            sample,
            Sample {
                metadata,
                inner: vec![Inner::default()],
                ..Sample::default()
            }
        );
    }

    #[test]
    fn names_are_matched_in_any_case_but_user_data_keeps_its_own() {
        let Json(sample) = decode(
            br#"{"SEQ":1,"Seq":2,"metadata":{"Key":"V"},"inner":[{"Delta":-1}]}"#,
            true,
        )
        .unwrap();
        assert_eq!(sample.metadata.keys().collect::<Vec<_>>(), ["Key"]);
        assert_eq!(sample.inner, [Inner { delta: -1 }]);
        assert_eq!(decode::<Json>(br#"{"seq":1,"seq":2}"#, true).unwrap().0.seq, 2);
    }

    #[test]
    fn unknown_members_are_refused_by_strict_servers_at_every_depth() {
        for body in [r#"{"foo":1}"#, r#"{"inner":[{"foo":1}]}"#] {
            let error = decode::<Json>(body.as_bytes(), true).unwrap_err();
            assert_eq!(error.description, "invalid JSON: unknown field \"foo\"");
            assert!(decode::<Json>(body.as_bytes(), false).is_ok());
        }
    }

    #[test]
    fn numbers_are_plain_integers_of_the_right_sign() {
        for number in ["1.5", "1e3", "1.0", "\"5\"", "-1", "18446744073709551616", "true"] {
            let body = format!(r#"{{"seq":{number}}}"#);
            assert_eq!(refused::<Json>(&body), ErrorCode::InvalidJson, "{number}");
        }
        assert_eq!(
            decode::<Json>(br#"{"seq":18446744073709551615}"#, true)
                .unwrap()
                .0
                .seq,
            u64::MAX
        );
    }

    #[test]
    fn nothing_may_follow_the_object() {
        assert_eq!(refused::<Json>("{}x"), ErrorCode::InvalidJson);
        assert_eq!(refused::<Json>("{} {}"), ErrorCode::InvalidJson);
        assert!(decode::<Json>(b" {} \r\n", true).is_ok());
    }

    #[test]
    fn requests_without_a_body_accept_an_empty_object_only() {
        for body in ["", " ", "{}", " { } "] {
            assert_eq!(expect_empty(body.as_bytes()), Ok(()), "{body:?}");
        }
        for body in ["null", "[]", "{\"a\":1}", "junk", "{}x"] {
            assert_eq!(
                expect_empty(body.as_bytes()).unwrap_err(),
                ErrorCode::NotEmptyRequest,
                "{body:?}"
            );
        }
    }
}
