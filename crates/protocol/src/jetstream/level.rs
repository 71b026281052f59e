//! API level: what a server can do, what a stream or consumer needs, and the metadata that records it.
//!
//! The level is a small number that grows with features. Three things carry it: the header
//! [`REQUIRED_API_LEVEL`] on a request, the metadata key [`REQUIRED_LEVEL_KEY`] stored with each stream and
//! consumer, and two more keys that answers show but nobody stores.
//!
//! | key | stored | shown | value |
//! | --- | --- | --- | --- |
//! | `_nats.req.level` | yes, worked out anew on every create and update | always | level the configuration needs |
//! | `_nats.ver` | no | create, update, info, reset; not in lists and snapshots | server version |
//! | `_nats.level` | no | as `_nats.ver` | level of the server |
//!
//! What a client sends under these three keys is dropped; all other keys are the client's, whatever they are called.

use std::collections::BTreeMap;

use crate::jetstream::{ApiError, ErrorCode};

/// The API level of this implementation.
pub const API_LEVEL: u8 = 5;

/// Header by which a request asks for an API level.
pub const REQUIRED_API_LEVEL: &str = "Nats-Required-Api-Level";

/// Metadata key of the level that a stream or consumer needs.
pub const REQUIRED_LEVEL_KEY: &str = "_nats.req.level";

/// Metadata key of the server's version, in answers only.
pub const VERSION_KEY: &str = "_nats.ver";

/// Metadata key of the server's level, in answers only.
pub const LEVEL_KEY: &str = "_nats.level";

/// What the metadata keys begin with by which this server shows more than nats-server does; in answers only.
pub const OWN_PREFIX: &str = "_windjet.";

/// Most bytes that the keys and values of the metadata of one stream or consumer may have together.
pub const METADATA_BYTES_MAX: usize = 128 * 1024;

/// Metadata of a stream or consumer. Sorted, as answers show it.
pub type Metadata = BTreeMap<String, String>;

/// Checks the value of a [`REQUIRED_API_LEVEL`] header.
///
/// # Errors
///
/// `412/10185` when the value is no integer or above [`API_LEVEL`].
pub fn check_required_level(value: &str) -> Result<(), ApiError> {
    match value.parse::<i64>() {
        Ok(level) if level <= i64::from(API_LEVEL) => Ok(()),
        _ => Err(ErrorCode::RequiredApiLevel.error()),
    }
}

/// Makes metadata ready for storing: records the level that is needed and removes what only answers show.
pub fn stamp_stored(metadata: &mut Metadata, required_level: u8) {
    metadata.remove(VERSION_KEY);
    metadata.remove(LEVEL_KEY);
    metadata.retain(|key, _| !key.starts_with(OWN_PREFIX));
    metadata.insert(REQUIRED_LEVEL_KEY.to_owned(), required_level.to_string());
}

/// Adds to stored metadata what answers about a single stream or consumer show.
pub fn stamp_shown(metadata: &mut Metadata, server_version: &str) {
    metadata.insert(VERSION_KEY.to_owned(), server_version.to_owned());
    metadata.insert(LEVEL_KEY.to_owned(), API_LEVEL.to_string());
}

/// Whether two sets of metadata are equal but for the keys of the server.
pub fn same_user_metadata(left: &Metadata, right: &Metadata) -> bool {
    let user = |(key, _): &(&String, &String)| {
        ![REQUIRED_LEVEL_KEY, VERSION_KEY, LEVEL_KEY].contains(&key.as_str()) && !key.starts_with(OWN_PREFIX)
    };
    left.iter().filter(user).eq(right.iter().filter(user))
}

/// Bytes of all keys and values together, for the check against [`METADATA_BYTES_MAX`].
pub fn metadata_bytes(metadata: &Metadata) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Why a stored stream or consumer needs more than this implementation can do; `None` when it does not.
///
/// Such an asset is shown as offline with this reason; it is neither run nor deleted.
pub fn unsupported_reason(metadata: &Metadata) -> Option<String> {
    let required = metadata.get(REQUIRED_LEVEL_KEY)?;
    match required.parse::<i64>() {
        Ok(level) if level <= i64::from(API_LEVEL) => None,
        _ => Some(format!(
            "unsupported - required API level: {required}, current API level: {API_LEVEL}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn header_asks_for_an_integer_up_to_our_level() {
        for value in ["0", "5", "-1", "+5"] {
            assert_eq!(check_required_level(value), Ok(()), "{value}");
        }
        for value in ["6", "", " 1", "one", "1.0", "99999999999999999999"] {
            assert_eq!(
                check_required_level(value).unwrap_err(),
                ErrorCode::RequiredApiLevel,
                "{value}"
            );
        }
    }

    #[test]
    fn stored_metadata_has_the_needed_level_and_nothing_of_the_answer() {
        let mut stored = metadata(&[
            ("_nats.ver", "x"),
            ("_nats.level", "9"),
            ("_nats.req.level", "9"),
            ("_nats.own", "1"),
        ]);
        stamp_stored(&mut stored, 2);
        assert_eq!(stored, metadata(&[("_nats.own", "1"), ("_nats.req.level", "2")]));
        stamp_shown(&mut stored, "2.15.1");
        assert_eq!(
            stored,
            metadata(&[
                ("_nats.level", "5"),
                ("_nats.own", "1"),
                ("_nats.req.level", "2"),
                ("_nats.ver", "2.15.1")
            ])
        );
    }

    #[test]
    fn keys_of_the_server_do_not_make_a_difference() {
        let stored = metadata(&[("_nats.req.level", "2"), ("k", "v")]);
        assert!(same_user_metadata(
            &stored,
            &metadata(&[("k", "v"), ("_nats.ver", "1")])
        ));
        assert!(!same_user_metadata(&stored, &metadata(&[("k", "w")])));
        assert!(!same_user_metadata(&stored, &metadata(&[])));
        assert_eq!(metadata_bytes(&stored), "_nats.req.level".len() + 3);
    }

    #[test]
    fn asset_from_a_newer_server_is_not_run() {
        assert_eq!(unsupported_reason(&metadata(&[])), None);
        assert_eq!(unsupported_reason(&metadata(&[("_nats.req.level", "5")])), None);
        assert!(
            unsupported_reason(&metadata(&[("_nats.req.level", "6")]))
                .unwrap()
                .contains('6')
        );
        assert!(unsupported_reason(&metadata(&[("_nats.req.level", "x")])).is_some());
    }
}
