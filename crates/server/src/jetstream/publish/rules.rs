//! What a stream's configuration means for publishes, worked out once when it is made or changed.

use std::borrow::Cow;

use windjet_protocol::jetstream::{DiscardPolicy, Nanos, RetentionPolicy, StorageType, StreamConfig};
use windjet_protocol::subject;
use windjet_protocol::transform::{Transform, TransformError};

/// See the module's page.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Name of the stream.
    pub(crate) name: String,
    /// Its subjects.
    pub(crate) subjects: Vec<String>,
    transform: Option<Transform>,
    /// Whether messages are kept in memory, which changes how they are counted.
    pub(crate) memory: bool,
    /// Whether nothing is accepted any more.
    pub(crate) sealed: bool,
    /// Whether messages nobody is interested in are not stored.
    pub(crate) interest: bool,
    /// Whether rollups are allowed.
    pub(crate) rollups: bool,
    /// Whether life times of single messages count.
    pub(crate) ttls: bool,
    /// Life time of delete markers; zero for none.
    pub(crate) marker_ttl: Nanos,
    /// Whether messages are increments.
    pub(crate) counters: bool,
    /// Whether messages may be schedules.
    pub(crate) schedules: bool,
    /// Whether there are atomic batches.
    pub(crate) atomic: bool,
    /// Whether there are fast batches.
    pub(crate) fast: bool,
    /// Most messages.
    pub(crate) max_msgs: Option<u64>,
    /// Most bytes.
    pub(crate) max_bytes: Option<u64>,
    /// Most messages of one subject.
    pub(crate) max_per_subject: Option<u64>,
    /// Most bytes of one message.
    pub(crate) max_msg_size: Option<usize>,
    /// Most bytes of a payload on the server, which the body of a counter may not exceed.
    pub(crate) max_payload: usize,
    /// Whether a full stream refuses.
    pub(crate) discard_new: bool,
    /// Whether a full subject refuses.
    pub(crate) discard_new_per_subject: bool,
}

impl Rules {
    /// The rules of a valid configuration, on a server that takes payloads of up to `max_payload` bytes.
    ///
    /// # Errors
    /// When the subject transform does not hold, which a validated configuration rules out.
    pub(crate) fn new(config: &StreamConfig, max_payload: usize) -> Result<Self, TransformError> {
        let transform = match &config.subject_transform {
            Some(transform) if !transform.dest.is_empty() => {
                Some(Transform::new(&transform.src, &transform.dest)?)
            }
            _ => None,
        };
        let limit = |limit: i64| u64::try_from(limit).ok().filter(|limit| *limit > 0);
        Ok(Self {
            name: config.name.clone(),
            subjects: config.subjects.clone(),
            transform,
            memory: config.storage == StorageType::Memory,
            sealed: config.sealed,
            interest: config.retention == RetentionPolicy::Interest,
            rollups: config.allow_rollup_hdrs && !config.deny_purge,
            ttls: config.allow_msg_ttl,
            marker_ttl: config.subject_delete_marker_ttl,
            counters: config.allow_msg_counter,
            schedules: config.allow_msg_schedules,
            atomic: config.allow_atomic,
            fast: config.allow_batched,
            max_msgs: limit(config.max_msgs),
            max_bytes: limit(config.max_bytes),
            max_per_subject: limit(config.max_msgs_per_subject),
            max_msg_size: usize::try_from(config.max_msg_size)
                .ok()
                .filter(|limit| *limit > 0),
            max_payload,
            discard_new: config.discard == DiscardPolicy::New,
            discard_new_per_subject: config.discard_new_per_subject,
        })
    }

    /// The subject under which a message is stored.
    pub(crate) fn stored_subject<'s>(&self, subject: &'s [u8]) -> Cow<'s, [u8]> {
        let Some(transform) = &self.transform else {
            return Cow::Borrowed(subject);
        };
        let mut out = Vec::with_capacity(subject.len() + 16);
        if transform.apply(subject, &mut out) {
            Cow::Owned(out)
        } else {
            Cow::Borrowed(subject)
        }
    }

    /// What a message counts against limits.
    pub(crate) fn size(&self, subject: usize, headers: usize, payload: usize) -> u64 {
        let size = if self.memory {
            16 + subject + headers + payload
        } else if headers > 0 {
            34 + subject + headers + payload
        } else {
            30 + subject + payload
        };
        size as u64
    }

    /// Whether the stream takes messages on a subject.
    pub(crate) fn takes(&self, literal: &[u8]) -> bool {
        self.subjects
            .iter()
            .any(|pattern| subject::matches(pattern.as_bytes(), literal))
    }
}

#[cfg(test)]
mod tests {
    use windjet_protocol::jetstream::SubjectTransform;

    use super::*;

    #[test]
    fn limits_that_are_not_set_do_not_exist() {
        let rules = Rules::new(&StreamConfig::default(), 1 << 20).unwrap();
        let limits = (rules.max_msgs, rules.max_bytes, rules.max_per_subject);
        assert_eq!(limits, (None, None, None));
        assert_eq!(rules.max_msg_size, None);
        let config = StreamConfig {
            max_msgs: 3,
            max_bytes: 0,
            max_msg_size: 7,
            allow_rollup_hdrs: true,
            deny_purge: true,
            ..StreamConfig::default()
        };
        let rules = Rules::new(&config, 1 << 20).unwrap();
        assert_eq!((rules.max_msgs, rules.max_bytes), (Some(3), None));
        assert_eq!((rules.max_msg_size, rules.rollups), (Some(7), false));
    }

    #[test]
    fn subjects_are_transformed_where_the_source_matches() {
        let transform = |src: &str, dest: &str| {
            let config = StreamConfig {
                subject_transform: Some(SubjectTransform {
                    src: src.into(),
                    dest: dest.into(),
                }),
                ..StreamConfig::default()
            };
            Rules::new(&config, 1 << 20)
        };
        let rules = transform("a.*", "b.$1").unwrap();
        assert_eq!(&*rules.stored_subject(b"a.x"), b"b.x");
        assert_eq!(&*rules.stored_subject(b"c.x"), b"c.x");
        assert_eq!(&*transform("a", "").unwrap().stored_subject(b"a"), b"a");
        assert!(transform("a", "b.$1").is_err());
    }

    #[test]
    fn sizes_are_counted_as_in_nats_server() {
        let of = |storage| {
            let config = StreamConfig {
                storage,
                ..StreamConfig::default()
            };
            Rules::new(&config, 1 << 20).unwrap()
        };
        let (file, memory) = (of(StorageType::File), of(StorageType::Memory));
        assert_eq!((file.size(4, 0, 5), memory.size(4, 0, 5)), (39, 25));
        assert_eq!((file.size(3, 18, 1), memory.size(3, 18, 1)), (56, 38));
    }
}
