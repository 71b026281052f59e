//! The envelope of API answers.
//!
//! Every answer is one JSON object that begins with its `type`. A success goes on with the members of the answer; a
//! failure with `error`, then with those members of the answer that are never omitted, at zero (`"purged":0`,
//! `"streams":null`). Clients look for `error`.
//!
//! A server makes a [`Response`] from the `Result` of its handler and sends [`Response::to_vec`]. For failures that
//! are known before the request was read, such as an account without JetStream, see
//! [`crate::jetstream::ApiCall::failure`].

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::jetstream::ApiError;

/// What the `type` of every API answer begins with.
pub const API_TYPE_PREFIX: &str = "io.nats.jetstream.api.v1.";

/// The members of one kind of API answer.
pub trait ApiResponse: Serialize + Sized {
    /// The full `type`, such as `io.nats.jetstream.api.v1.stream_info_response`.
    const TYPE: &'static str;

    /// What a failure carries beside `error`; `None` for nothing.
    fn on_failure() -> Option<Self> {
        None
    }
}

/// An answer of the API: the members of `T`, or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<T>(pub Result<T, ApiError>);

impl<T: ApiResponse> Response<T> {
    /// The JSON text to send.
    pub fn to_vec(&self) -> Vec<u8> {
        // Serialising fails only for maps whose keys are no strings, which no answer has.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl<T> From<Result<T, ApiError>> for Response<T> {
    fn from(result: Result<T, ApiError>) -> Self {
        Self(result)
    }
}

/// `type`, `error`, members: the order on the wire.
#[derive(Serialize)]
struct Envelope<'a, T> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ApiError>,
    #[serde(flatten)]
    members: Option<&'a T>,
}

impl<T: ApiResponse> Serialize for Response<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(members) => Envelope {
                r#type: T::TYPE,
                error: None,
                members: Some(members),
            }
            .serialize(serializer),
            Err(error) => {
                let zero = T::on_failure();
                Envelope {
                    r#type: T::TYPE,
                    error: Some(error),
                    members: zero.as_ref(),
                }
                .serialize(serializer)
            }
        }
    }
}

impl<'de, T: ApiResponse + DeserializeOwned> Deserialize<'de> for Response<T> {
    /// Reads an answer; it must be of the type `T::TYPE`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            r#type: String,
            error: Option<ApiError>,
            #[serde(flatten)]
            members: Map<String, Value>,
        }
        let parts = Parts::deserialize(deserializer)?;
        if parts.r#type != T::TYPE {
            return Err(D::Error::custom(format_args!(
                "type is {:?}, not {:?}",
                parts.r#type,
                T::TYPE
            )));
        }
        match parts.error {
            Some(error) => Ok(Self(Err(error))),
            None => T::deserialize(Value::Object(parts.members))
                .map(Ok)
                .map(Self)
                .map_err(D::Error::custom),
        }
    }
}

/// A failure of a type whose answers carry nothing else then; `kind` is what follows [`API_TYPE_PREFIX`].
pub(crate) fn bare_failure(kind: &str, error: &ApiError) -> Vec<u8> {
    #[derive(Serialize)]
    struct Failure<'a> {
        r#type: String,
        error: &'a ApiError,
    }
    // Serialising numbers and strings does not fail.
    serde_json::to_vec(&Failure {
        r#type: format!("{API_TYPE_PREFIX}{kind}"),
        error,
    })
    .unwrap_or_default()
}

/// The window of a longer list that an answer shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    /// Entries of the whole list.
    pub total: u64,
    /// Entries before the first shown.
    pub offset: u64,
    /// Most entries that one answer shows.
    pub limit: u64,
}

impl Page {
    /// The page that starts at `offset` as asked for: below zero means the start, past the end the end.
    pub fn new(total: usize, offset: i64, limit: usize) -> Self {
        let total = total as u64;
        Self {
            total,
            offset: u64::try_from(offset).unwrap_or(0).min(total),
            limit: limit as u64,
        }
    }

    /// Indexes of the entries to show.
    pub fn range(&self) -> std::ops::Range<usize> {
        let end = self.offset.saturating_add(self.limit).min(self.total);
        self.offset as usize..end as usize
    }
}

/// The answer of calls that report nothing but success.
macro_rules! success_response {
    ($(#[$doc:meta])* $name:ident, $type:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Always true in an answer without error.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub success: bool,
        }

        impl $crate::jetstream::ApiResponse for $name {
            const TYPE: &'static str = concat!("io.nats.jetstream.api.v1.", $type);
        }
    };
}
pub(crate) use success_response;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jetstream::ErrorCode;
    use crate::jetstream::stream::requests::StreamDeleteResponse;

    #[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
    struct Sample {
        #[serde(flatten)]
        page: Page,
        names: Vec<String>,
    }

    impl ApiResponse for Sample {
        const TYPE: &'static str = "io.nats.jetstream.api.v1.sample_response";

        fn on_failure() -> Option<Self> {
            Some(Self::default())
        }
    }

    fn text<T: ApiResponse>(response: &Response<T>) -> String {
        String::from_utf8(response.to_vec()).unwrap()
    }

    #[test]
    fn success_is_the_type_and_the_members() {
        let response = Response(Ok(Sample {
            page: Page::new(3, 1, 2),
            names: vec!["a".into()],
        }));
        let expected = r#"{"type":"io.nats.jetstream.api.v1.sample_response","total":3,"offset":1,"limit":2,"names":["a"]}"#;
        assert_eq!(text(&response), expected);
        assert_eq!(
            serde_json::from_str::<Response<Sample>>(expected).unwrap(),
            response
        );
        assert_eq!(
            text(&Response(Ok(StreamDeleteResponse { success: true }))),
            r#"{"type":"io.nats.jetstream.api.v1.stream_delete_response","success":true}"#
        );
    }

    #[test]
    fn failure_carries_the_error_and_what_is_never_omitted() {
        let error = ErrorCode::StreamNotFound.error();
        let response: Response<Sample> = Err(error).into();
        let expected = concat!(
            r#"{"type":"io.nats.jetstream.api.v1.sample_response","#,
            r#""error":{"code":404,"err_code":10059,"description":"stream not found"},"#,
            r#""total":0,"offset":0,"limit":0,"names":[]}"#
        );
        assert_eq!(text(&response), expected);
        assert_eq!(
            serde_json::from_str::<Response<Sample>>(expected).unwrap(),
            response
        );
    }

    #[test]
    fn answer_of_another_type_is_refused() {
        let text = r#"{"type":"io.nats.jetstream.api.v1.other_response","success":true}"#;
        let error = serde_json::from_str::<Response<StreamDeleteResponse>>(text).unwrap_err();
        assert!(error.to_string().contains("other_response"));
    }

    #[test]
    fn page_stays_within_the_list() {
        for (offset, range) in [
            (-5, 0..4),
            (0, 0..4),
            (7, 7..10),
            (10, 10..10),
            (99, 10..10),
            (i64::MAX, 10..10),
        ] {
            assert_eq!(Page::new(10, offset, 4).range(), range, "{offset}");
        }
    }
}
