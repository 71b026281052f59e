//! Publishing again of what was stored.

use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::{Republish, Timestamp};
use windjet_protocol::subject;
use windjet_protocol::transform::{Transform, TransformError};

/// What a configuration says about publishing again, worked out once.
#[derive(Debug, Clone)]
pub(crate) struct Republisher {
    transform: Transform,
    headers_only: bool,
}

/// A stored message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'m> {
    /// Name of its stream.
    pub(crate) stream: &'m str,
    /// Its subject.
    pub(crate) subject: &'m [u8],
    /// Its header block, empty for none.
    pub(crate) block: &'m [u8],
    /// Its payload.
    pub(crate) payload: &'m [u8],
    /// Its sequence.
    pub(crate) seq: u64,
    /// Its time.
    pub(crate) time: i64,
    /// The sequence before on its subject, 0 for none.
    pub(crate) before: u64,
}

impl Republisher {
    /// The rules of a valid configuration.
    ///
    /// # Errors
    /// When the transform does not hold, which a validated configuration rules out.
    pub(crate) fn new(config: &Republish) -> Result<Self, TransformError> {
        Ok(Self {
            transform: Transform::new(&config.src, &config.dest)?,
            headers_only: config.headers_only,
        })
    }

    /// Writes subject and header block of what is published for a stored message; false when nothing is. Both buffers are
    /// cleared first. The payload is that of the message, or none: [`Republisher::headers_only`].
    pub(crate) fn write(&self, message: &Stored<'_>, subject: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
        subject.clear();
        out.clear();
        if !self.transform.apply(message.subject, subject) {
            return false;
        }
        // What is for no single subject is not sent.
        if !subject::is_literal(subject) || !subject::is_valid_publish(subject) {
            return false;
        }
        out.extend_from_slice(message.block);
        let mut digits = itoa::Buffer::new();
        block::append(out, names::STREAM, message.stream.as_bytes());
        block::append(out, names::SUBJECT, message.subject);
        block::append(out, names::SEQUENCE, digits.format(message.seq).as_bytes());
        let time = Timestamp::from_unix_nanos(message.time).to_string();
        block::append(out, names::TIME_STAMP, time.as_bytes());
        block::append(
            out,
            names::LAST_SEQUENCE,
            digits.format(message.before).as_bytes(),
        );
        if self.headers_only {
            block::append(
                out,
                names::MSG_SIZE,
                digits.format(message.payload.len()).as_bytes(),
            );
        }
        true
    }

    /// Whether the payload is left out.
    pub(crate) fn headers_only(&self) -> bool {
        self.headers_only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(config: &Republish, message: &Stored<'_>) -> Option<(String, String)> {
        let republisher = Republisher::new(config).unwrap();
        let (mut subject, mut block) = (b"old".to_vec(), b"old".to_vec());
        republisher.write(message, &mut subject, &mut block).then(|| {
            (
                String::from_utf8(subject).unwrap(),
                String::from_utf8(block).unwrap(),
            )
        })
    }

    fn config(src: &str, dest: &str, headers_only: bool) -> Republish {
        Republish {
            src: src.into(),
            dest: dest.into(),
            headers_only,
        }
    }

    const MESSAGE: Stored<'_> = Stored {
        stream: "S",
        subject: b"a.x",
        block: b"NATS/1.0\r\nA: b\r\n\r\n",
        payload: b"hello",
        seq: 7,
        time: 1_500_000_000,
        before: 3,
    };

    #[test]
    fn headers_tell_where_it_was_stored() {
        let (subject, block) = written(&config("a.*", "again.$1", false), &MESSAGE).unwrap();
        assert_eq!(subject, "again.x");
        assert_eq!(
            block,
            "NATS/1.0\r\nA: b\r\nNats-Stream: S\r\nNats-Subject: a.x\r\nNats-Sequence: 7\r\n\
             Nats-Time-Stamp: 1970-01-01T00:00:01.5Z\r\nNats-Last-Sequence: 3\r\n\r\n"
        );
        let bare = Stored {
            block: b"",
            before: 0,
            ..MESSAGE
        };
        let (_, block) = written(&config("", "again.>", true), &bare).unwrap();
        assert_eq!(
            block,
            "NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: a.x\r\nNats-Sequence: 7\r\n\
             Nats-Time-Stamp: 1970-01-01T00:00:01.5Z\r\nNats-Last-Sequence: 0\r\nNats-Msg-Size: 5\r\n\r\n"
        );
        assert!(
            Republisher::new(&config("", "again.>", true))
                .unwrap()
                .headers_only()
        );
    }

    #[test]
    fn what_does_not_match_is_not_published_again() {
        assert_eq!(written(&config("b.*", "again.$1", false), &MESSAGE), None);
        assert!(Republisher::new(&config("a", "b.$1", false)).is_err());
    }

    #[test]
    fn subjects_that_are_not_literal_are_suppressed() {
        let odd = Stored {
            subject: b"a.*",
            ..MESSAGE
        };
        assert_eq!(written(&config("a.>", "again.>", false), &odd), None);
    }
}
