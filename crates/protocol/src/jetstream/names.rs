//! Names of streams and consumers.
//!
//! A name is one token of a subject and one folder of a store, so it has neither white space nor `.`, `*`, `>`, `\`
//! or `/`, and at most 255 bytes. [`StreamName`] and [`ConsumerName`] are valid by type and cheap to clone; they are
//! made where a name enters. Letters of any script and `%` or `$` are fine.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::jetstream::{ApiError, ErrorCode};

/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// There is none.
    #[error("name is empty")]
    Empty,
    /// It has `\` or `/`.
    #[error("name has a path separator")]
    PathSeparator,
    /// It has white space, `.`, `*` or `>`.
    #[error("name has white space, '.', '*' or '>'")]
    Character,
    /// It is longer than [`NAME_BYTES_MAX`].
    #[error("name is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
}

fn check(name: &str) -> Result<(), InvalidName> {
    if name.is_empty() {
        Err(InvalidName::Empty)
    } else if name.contains(['\\', '/']) {
        Err(InvalidName::PathSeparator)
    } else if name.contains([' ', '\t', '\r', '\n', '\x0c', '.', '*', '>']) {
        Err(InvalidName::Character)
    } else if name.len() > NAME_BYTES_MAX {
        Err(InvalidName::TooLong)
    } else {
        Ok(())
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks a name and keeps a copy.
            ///
            /// # Errors
            ///
            /// What is wrong with it; [`InvalidName`] gives the API error.
            pub fn new(name: &str) -> Result<Self, $crate::jetstream::names::InvalidName> {
                check(name).map(|()| Self(name.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }
    };
}

name! {
    /// The name of a stream: one token without wildcards, unique in its account, case-sensitive.
    StreamName
}

name! {
    /// The name of a consumer: one token without wildcards, unique in its stream, case-sensitive.
    ConsumerName
}

impl InvalidName {
    /// The API error for a stream of this name.
    pub fn stream_error(self) -> ApiError {
        match self {
            Self::PathSeparator => ErrorCode::StreamNamePathSeparator.error(),
            Self::TooLong => ErrorCode::StreamInvalidConfig.with(format_args!(
                "stream name is too long, maximum allowed is {NAME_BYTES_MAX}"
            )),
            Self::Empty | Self::Character => ErrorCode::StreamInvalidConfig
                .with("stream name is required and can not contain '.', '*', '>', '\\', '/'"),
        }
    }

    /// The API error for a consumer of this name.
    pub fn consumer_error(self) -> ApiError {
        match self {
            Self::PathSeparator => ErrorCode::ConsumerNamePathSeparator.error(),
            Self::TooLong => ErrorCode::ConsumerNameTooLong.with(NAME_BYTES_MAX),
            Self::Empty | Self::Character => {
                ErrorCode::StreamInvalidConfig.with("consumer name can not contain '.', '*', '>', '\\', '/'")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_tokens_that_can_be_folders() {
        for name in ["a", "A-b_c", "größe", "%s$x", &"x".repeat(255)] {
            assert_eq!(StreamName::new(name).unwrap().as_str(), name);
            assert_eq!(ConsumerName::new(name).unwrap().to_string(), name);
        }
        for (name, problem) in [
            ("", InvalidName::Empty),
            ("a.b", InvalidName::Character),
            ("a b", InvalidName::Character),
            ("a\u{c}", InvalidName::Character),
            ("*", InvalidName::Character),
            (">", InvalidName::Character),
            ("a/b", InvalidName::PathSeparator),
            ("a\\b.c", InvalidName::PathSeparator),
            (&"x".repeat(256), InvalidName::TooLong),
        ] {
            assert_eq!(StreamName::new(name), Err(problem), "{name:?}");
            assert_eq!(ConsumerName::new(name), Err(problem), "{name:?}");
        }
    }

    #[test]
    fn each_problem_has_its_api_error() {
        assert_eq!(
            InvalidName::PathSeparator.stream_error(),
            ErrorCode::StreamNamePathSeparator
        );
        assert_eq!(
            InvalidName::PathSeparator.consumer_error(),
            ErrorCode::ConsumerNamePathSeparator
        );
        assert_eq!(
            InvalidName::TooLong.stream_error().description,
            "stream name is too long, maximum allowed is 255"
        );
        assert_eq!(
            InvalidName::TooLong.consumer_error().description,
            "consumer name is too long, maximum allowed is 255"
        );
        assert_eq!(
            InvalidName::Empty.stream_error().description,
            r"stream name is required and can not contain '.', '*', '>', '\', '/'"
        );
        assert_eq!(
            InvalidName::Character.consumer_error(),
            ErrorCode::StreamInvalidConfig
        );
    }
}
