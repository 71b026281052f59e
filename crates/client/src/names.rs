//! Rules for names and subjects, checked before anything is sent.
//!
//! The official client checks less: it lets wildcards pass in a publish and most characters in names. All lengths are in
//! bytes. A check allocates only when it fails.

use crate::error::{Error, ErrorKind, Result};

const NAME_MAX: usize = 255;
const SUBJECT_MAX: usize = 1020;

/// A name for a stream.
///
/// # Errors
/// [`ErrorKind::InvalidStreamName`] when it is empty, longer than 255 bytes, or has blanks, control characters or one of
/// `. * > / \`.
pub fn validate_stream_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(bad(ErrorKind::InvalidStreamName, "stream", name))
}

/// A name for a durable consumer; the rules are those of [`validate_stream_name`].
///
/// # Errors
/// [`ErrorKind::InvalidDurableName`].
pub fn validate_durable_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(bad(ErrorKind::InvalidDurableName, "consumer", name))
}

/// A name for a queue group; the rules are those of [`validate_stream_name`].
///
/// # Errors
/// [`ErrorKind::InvalidQueueName`].
pub fn validate_queue_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(bad(ErrorKind::InvalidQueueName, "queue group", name))
}

/// A name for a key-value or object bucket: letters, digits, `_` and `-`, at most 255.
///
/// # Errors
/// [`ErrorKind::InvalidBucketName`].
pub fn validate_bucket_name(name: &str) -> Result<()> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(fine) {
        return Ok(());
    }
    Err(bad(ErrorKind::InvalidBucketName, "bucket", name))
}

/// A key of a key-value bucket: letters, digits and `- / _ = .`, at most 255, no dot at either end.
///
/// # Errors
/// [`ErrorKind::InvalidKvKey`].
pub fn validate_kv_key(key: &str) -> Result<()> {
    if is_kv_key(key) {
        return Ok(());
    }
    Err(bad(ErrorKind::InvalidKvKey, "key", key))
}

/// A subject to subscribe to or to filter by; wildcards are allowed as whole tokens.
///
/// # Errors
/// [`ErrorKind::InvalidSubject`] when it is empty, longer than 1020 bytes, has an empty token, a blank, or a wildcard
/// where none may be.
pub fn validate_subject(subject: &str) -> Result<()> {
    if is_subject(subject, true) {
        return Ok(());
    }
    Err(bad(ErrorKind::InvalidSubject, "subject", subject))
}

/// A list of subjects; an empty one is fine.
///
/// # Errors
/// As [`validate_subject`], for the first that is not valid.
pub fn validate_subjects<S: AsRef<str>>(subjects: &[S]) -> Result<()> {
    subjects
        .iter()
        .try_for_each(|subject| validate_subject(subject.as_ref()))
}

/// A subject to publish to: no wildcards.
///
/// # Errors
/// [`ErrorKind::EmptySubject`] for an empty one, else [`ErrorKind::InvalidSubject`].
pub fn validate_publish_subject(subject: &str) -> Result<()> {
    if is_subject(subject, false) {
        return Ok(());
    }
    if subject.is_empty() {
        return Err(Error::new(ErrorKind::EmptySubject, "checking a subject"));
    }
    Err(bad(ErrorKind::InvalidSubject, "subject", subject))
}

pub(crate) fn is_kv_key(key: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/' | b'_' | b'=' | b'.');
    !key.is_empty()
        && key.len() <= NAME_MAX
        && key.bytes().all(fine)
        && !key.starts_with('.')
        && !key.ends_with('.')
}

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && !name
            .bytes()
            .any(|byte| byte <= b' ' || matches!(byte, 0x7f | b'.' | b'*' | b'>' | b'/' | b'\\'))
}

fn is_subject(subject: &str, wildcards: bool) -> bool {
    if subject.is_empty() || subject.len() > SUBJECT_MAX {
        return false;
    }
    let mut open_end = false;
    for token in subject.split('.') {
        let wild = token == "*" || token == ">";
        if open_end || token.is_empty() || (wild && !wildcards) {
            return false;
        }
        open_end = token == ">";
        if !wild && token.contains(['*', '>']) {
            return false;
        }
        // ASCII first: subjects with other characters are rare.
        let blank = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b || byte < b' ' || byte == 0x7f;
        if token.bytes().any(blank) || (!token.is_ascii() && token.contains(char::is_whitespace)) {
            return false;
        }
    }
    true
}

/// Whether a filter selects a subject. Both are taken to be well formed.
pub(crate) fn subject_matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for part in filter.split('.') {
        if part == ">" {
            return tokens.next().is_some();
        }
        match tokens.next() {
            Some(token) if part == "*" || part == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

fn bad(kind: ErrorKind, what: &str, name: &str) -> Error {
    let shown: String = name.chars().take(80).collect();
    Error::new(kind, format!("checking the {what} {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_dots_blanks_or_wildcards() {
        let long = "a".repeat(255);
        for good in ["ORDERS_v2-x", "a", "a:b", "ü", long.as_str()] {
            assert!(validate_stream_name(good).is_ok(), "{good:?}");
            assert!(validate_durable_name(good).is_ok(), "{good:?}");
            assert!(validate_queue_name(good).is_ok(), "{good:?}");
        }
        let long = "a".repeat(256);
        for bad in [
            "", "a.b", "a b", "a/b", "a\\b", "a*", "a>", "a\tb", "a\rb", "a\nb", "a\x0cb", "a\x01b",
            "a\x7fb", &long,
        ] {
            assert_eq!(
                validate_stream_name(bad).unwrap_err().kind(),
                ErrorKind::InvalidStreamName,
                "{bad:?}"
            );
            assert_eq!(
                validate_durable_name(bad).unwrap_err().kind(),
                ErrorKind::InvalidDurableName
            );
            assert_eq!(
                validate_queue_name(bad).unwrap_err().kind(),
                ErrorKind::InvalidQueueName
            );
        }
    }

    #[test]
    fn buckets_and_keys_have_their_own_letters() {
        for good in ["a-B_9", &"a".repeat(255)] {
            assert!(validate_bucket_name(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a.b", "a b", "a/b", "ü", &"a".repeat(256)] {
            assert_eq!(
                validate_bucket_name(bad).unwrap_err().kind(),
                ErrorKind::InvalidBucketName,
                "{bad:?}"
            );
        }
        for good in ["orders/worker-1", "a=b.c", "_", &"a".repeat(255)] {
            assert!(validate_kv_key(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a:b", "a b", ".a", "a.", "a*", &"a".repeat(256)] {
            assert_eq!(
                validate_kv_key(bad).unwrap_err().kind(),
                ErrorKind::InvalidKvKey,
                "{bad:?}"
            );
        }
    }

    #[test]
    fn subjects_have_wildcards_only_as_whole_tokens() {
        let long = "a".repeat(1020);
        for good in ["a", "a.*.c", "a.>", ">", "*", "a.b", "$JS.ACK", &long] {
            assert!(validate_subject(good).is_ok(), "{good:?}");
        }
        let long = "a".repeat(1021);
        for bad in [
            "",
            ".a",
            "a.",
            "a..b",
            "a.>.b",
            "a.b*",
            "a.>b",
            "a b",
            "a\tb",
            "a\u{2003}b",
            "a\x0bb",
            &long,
        ] {
            assert_eq!(
                validate_subject(bad).unwrap_err().kind(),
                ErrorKind::InvalidSubject,
                "{bad:?}"
            );
        }
        assert!(validate_subjects::<&str>(&[]).is_ok());
        assert!(validate_subjects(&["a", "b.>"]).is_ok());
        assert!(validate_subjects(&["a", "b..c"]).is_err());
    }

    #[test]
    fn filters_select_by_token() {
        for (filter, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("a.*", "a.b.c", false),
            ("a.b.c", "a.b", false),
            (">", "a", true),
        ] {
            assert_eq!(subject_matches(filter, subject), expected, "{filter} {subject}");
        }
    }

    #[test]
    fn one_publishes_to_no_wildcard() {
        assert!(validate_publish_subject("a.b").is_ok());
        for bad in ["a.*", "a.>", "*", ">", "a b", "a.b*"] {
            assert_eq!(
                validate_publish_subject(bad).unwrap_err().kind(),
                ErrorKind::InvalidSubject,
                "{bad:?}"
            );
        }
        assert_eq!(
            validate_publish_subject("").unwrap_err().kind(),
            ErrorKind::EmptySubject
        );
    }
}
