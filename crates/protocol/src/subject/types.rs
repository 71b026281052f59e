//! The two validated subject types, [`Subject`] and [`SubjectFilter`], over reference-counted bytes.
//!
//! A value of either type is valid for its whole life; validation happens in `TryFrom` and `FromStr` and nowhere
//! else. Cloning is a reference count. A value made by `TryFrom<Bytes>` keeps the buffer those bytes are a slice of
//! alive: for something that outlives a read buffer, convert from `&[u8]`, which copies.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::{FromStr, Utf8Error};

use bytes::Bytes;

use super::{
    has_wildcards, is_literal, is_subset, is_valid_publish, is_valid_subscription, matches, overlaps,
};

/// Why bytes are not a subject of the wanted kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// No bytes at all.
    #[error("subject is empty")]
    Empty,
    /// A space, tab, CR, LF or form feed.
    #[error("subject contains whitespace")]
    Whitespace,
    /// A leading, trailing or doubled separator.
    #[error("subject has an empty token")]
    EmptyToken,
    /// A `>` token that is not the last one of a filter.
    #[error("full wildcard is not the last token of the subject")]
    MisplacedTail,
    /// A `*` or `>` token where a literal subject is required.
    #[error("subject has wildcard tokens")]
    Wildcard,
    /// More than a subject and a queue name.
    #[error("expected a subject and at most one queue name")]
    TooManyWords,
}

impl SubjectError {
    /// The reason for bytes already known not to be a valid literal or filter.
    fn explain(subject: &[u8]) -> Self {
        if subject.is_empty() {
            Self::Empty
        } else if subject.iter().any(|&byte| super::is_space(byte)) {
            Self::Whitespace
        } else if !is_valid_publish(subject) {
            Self::EmptyToken
        } else if !is_valid_subscription(subject) {
            Self::MisplacedTail
        } else {
            Self::Wildcard
        }
    }
}

/// A literal subject: well formed and without wildcard tokens, so it can be published and stored.
///
/// The core also routes published subjects with `*` and `>` tokens (as plain tokens); those stay raw bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(Bytes);

/// A subscription: well formed, possibly with wildcard tokens. Also the type of stream subjects and consumer filters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectFilter(Bytes);

impl SubjectFilter {
    /// The filter `>`, which matches every subject.
    #[must_use]
    pub const fn all() -> Self {
        Self(Bytes::from_static(super::ANY_TAIL))
    }

    /// Whether there is no wildcard token, so that the filter matches exactly one subject.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        !has_wildcards(&self.0)
    }

    /// Whether the published subject is matched; see [`matches()`].
    #[must_use]
    pub fn matches(&self, literal: &[u8]) -> bool {
        matches(&self.0, literal)
    }

    /// Whether some subject is matched by both filters.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        overlaps(&self.0, &other.0)
    }

    /// Whether everything matched by this filter is matched by `other`.
    #[must_use]
    pub fn is_subset_of(&self, other: &Self) -> bool {
        is_subset(&self.0, &other.0)
    }
}

impl From<Subject> for SubjectFilter {
    fn from(subject: Subject) -> Self {
        Self(subject.0)
    }
}

macro_rules! validated_bytes {
    ($name:ident, $valid:path) => {
        impl $name {
            /// The bytes, for cloning without a copy.
            #[must_use]
            pub fn as_bytes(&self) -> &Bytes {
                &self.0
            }

            /// The bytes, giving up the type.
            #[must_use]
            pub fn into_bytes(self) -> Bytes {
                self.0
            }

            /// The text.
            ///
            /// # Errors
            ///
            /// When the bytes are not UTF-8, which the protocol allows.
            pub fn as_str(&self) -> Result<&str, Utf8Error> {
                std::str::from_utf8(&self.0)
            }
        }

        impl TryFrom<Bytes> for $name {
            type Error = SubjectError;

            /// Keeps the given buffer; no copy.
            fn try_from(bytes: Bytes) -> Result<Self, SubjectError> {
                if $valid(&bytes) {
                    Ok(Self(bytes))
                } else {
                    Err(SubjectError::explain(&bytes))
                }
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = SubjectError;

            /// Copies the bytes, after the check.
            fn try_from(bytes: &[u8]) -> Result<Self, SubjectError> {
                if $valid(bytes) {
                    Ok(Self(Bytes::copy_from_slice(bytes)))
                } else {
                    Err(SubjectError::explain(bytes))
                }
            }
        }

        impl TryFrom<&str> for $name {
            type Error = SubjectError;

            fn try_from(text: &str) -> Result<Self, SubjectError> {
                Self::try_from(text.as_bytes())
            }
        }

        impl TryFrom<String> for $name {
            type Error = SubjectError;

            fn try_from(text: String) -> Result<Self, SubjectError> {
                Self::try_from(Bytes::from(text))
            }
        }

        impl TryFrom<Vec<u8>> for $name {
            type Error = SubjectError;

            fn try_from(bytes: Vec<u8>) -> Result<Self, SubjectError> {
                Self::try_from(Bytes::from(bytes))
            }
        }

        impl FromStr for $name {
            type Err = SubjectError;

            fn from_str(text: &str) -> Result<Self, SubjectError> {
                Self::try_from(text.as_bytes())
            }
        }

        impl Deref for $name {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }

        impl PartialEq<[u8]> for $name {
            fn eq(&self, other: &[u8]) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other.as_bytes()
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == other.as_bytes()
            }
        }

        impl fmt::Display for $name {
            /// The text; bytes that are not UTF-8 show as the replacement character.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&String::from_utf8_lossy(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.0)
            }
        }
    };
}

validated_bytes!(Subject, is_literal);
validated_bytes!(SubjectFilter, is_valid_subscription);
