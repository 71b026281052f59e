//! What the server makes of a stream configuration that leaves things out.
//!
//! [`StreamConfig::fill_defaults`] turns a configuration as a client sends it into the form that is stored, compared
//! and shown. It corrects and never refuses. A client that sets `pedantic` wants no corrections that change the
//! meaning of what it sent: those are reported, and the server refuses the request with the first of them.
//!
//! Not done here, because other streams are needed for it: `mirror_direct` taken over from the origin. Not reported
//! here, because they are configuration errors of their own: the switches that follow from markers and schedules.

use super::config::{DiscardPolicy, Placement, Republish, StreamConfig};
use crate::jetstream::Nanos;

/// The duplicate window of a stream that sets none.
pub const DUPLICATE_WINDOW: Nanos = Nanos::from_secs(120);

impl StreamConfig {
    /// Fills in what is left out and gives the corrections that a pedantic client does not want, in the words of the
    /// server.
    ///
    /// `window_max` is the server's bound on the duplicate window, if it has one: it caps the default, while a
    /// window above it that was set is left for the server to refuse.
    ///
    /// Idempotent: a second call changes and reports nothing.
    pub fn fill_defaults(&mut self, window_max: Option<Nanos>) -> Vec<&'static str> {
        let mut corrections = Vec::new();
        if self.num_replicas == 0 {
            self.num_replicas = 1;
        }
        for (limit, text) in [
            (&mut self.max_msgs, "max_msgs must be set to -1"),
            (
                &mut self.max_msgs_per_subject,
                "max_msgs_per_subject must be set to -1",
            ),
            (&mut self.max_bytes, "max_bytes must be set to -1"),
            (&mut self.max_consumers, "max_consumers must be set to -1"),
        ] {
            if *limit < -1 {
                corrections.push(text);
            }
            if *limit <= 0 {
                *limit = -1;
            }
        }
        if self.max_msg_size < -1 {
            corrections.push("max_msg_size must be set to -1");
        }
        if self.max_msg_size <= 0 {
            self.max_msg_size = -1;
        }
        self.fill_duplicate_window(window_max, &mut corrections);
        if self.subjects.is_empty() && self.mirror.is_none() && self.sources.is_empty() {
            self.subjects.push(self.name.clone());
        }
        if self
            .placement
            .as_ref()
            .is_some_and(|placement| *placement == Placement::default())
        {
            self.placement = None;
        }
        self.fill_switches();
        self.fill_republish(&mut corrections);
        corrections
    }

    fn fill_duplicate_window(&mut self, window_max: Option<Nanos>, corrections: &mut Vec<&'static str>) {
        if !self.duplicate_window.is_zero() || self.mirror.is_some() || !self.sources.is_empty() {
            return;
        }
        self.duplicate_window = DUPLICATE_WINDOW;
        if let Some(max) = window_max.filter(|max| max.is_positive() && *max < DUPLICATE_WINDOW) {
            corrections.push("duplicate window limits are higher than current limits");
            self.duplicate_window = max;
        }
        if self.max_age.is_positive() && self.max_age < self.duplicate_window {
            corrections.push("duplicate window cannot be bigger than max age");
            self.duplicate_window = self.max_age;
        }
    }

    /// Markers and schedules work by rollups, so they turn on what they need.
    fn fill_switches(&mut self) {
        let markers = self.subject_delete_marker_ttl.is_positive();
        if markers {
            self.allow_msg_ttl = true;
        }
        if (markers || self.allow_msg_schedules) && !self.allow_rollup_hdrs {
            self.allow_rollup_hdrs = true;
            self.deny_purge = false;
        }
        if self.sealed {
            // A sealed stream keeps what it has, so nothing may remove anything either.
            self.max_age = Nanos::ZERO;
            self.discard = DiscardPolicy::New;
            self.deny_delete = true;
            self.deny_purge = true;
            self.allow_rollup_hdrs = false;
        }
    }

    fn fill_republish(&mut self, corrections: &mut Vec<&'static str>) {
        let Some(Republish { src, dest, .. }) = &mut self.republish else {
            return;
        };
        if src.is_empty() {
            corrections.push("republish source can not be empty");
            ">".clone_into(src);
        }
        // Everything to everything on a stream that transforms its only subject stands for "under the new subject".
        if let Some(transform) = &self.subject_transform
            && (src.as_str(), dest.as_str()) == (">", ">")
            && matches!(self.subjects.as_slice(), [only] if *only == transform.src)
        {
            corrections.push("implicit republish based on subject transform");
            src.clone_from(&transform.dest);
            dest.clone_from(&transform.dest);
        }
    }

    /// Whether two configurations ask for the same stream: equal but for the server's metadata.
    ///
    /// Both must have their defaults filled in.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let without_metadata = |config: &Self| Self {
            metadata: Default::default(),
            ..config.clone()
        };
        crate::jetstream::level::same_user_metadata(&self.metadata, &other.metadata)
            && without_metadata(self) == without_metadata(other)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{StreamSource, SubjectTransform};
    use super::*;

    fn filled(change: impl FnOnce(&mut StreamConfig)) -> (StreamConfig, Vec<&'static str>) {
        let mut config = StreamConfig {
            name: "S".into(),
            ..StreamConfig::default()
        };
        change(&mut config);
        let corrections = config.fill_defaults(None);
        let mut again = config.clone();
        assert!(again.fill_defaults(None).is_empty(), "second call reports");
        assert_eq!(again, config, "second call changes");
        (config, corrections)
    }

    #[test]
    fn zero_and_negative_limits_become_unlimited() {
        let (config, corrections) = filled(|c| {
            (c.max_msgs, c.max_bytes, c.max_consumers) = (0, 0, 0);
            (c.max_msgs_per_subject, c.max_msg_size, c.num_replicas) = (0, 0, 0);
        });
        assert!(corrections.is_empty());
        let expected = StreamConfig {
            name: "S".into(),
            subjects: vec!["S".into()],
            duplicate_window: DUPLICATE_WINDOW,
            ..StreamConfig::default()
        };
        assert_eq!(config, expected);
        let (config, corrections) = filled(|c| (c.max_msgs, c.max_msg_size) = (-7, -2));
        assert_eq!((config.max_msgs, config.max_msg_size), (-1, -1));
        assert_eq!(
            corrections,
            ["max_msgs must be set to -1", "max_msg_size must be set to -1"]
        );
    }

    #[test]
    fn duplicate_window_is_no_longer_than_the_age_of_messages() {
        let (config, corrections) = filled(|c| c.max_age = Nanos::from_secs(1));
        assert_eq!(config.duplicate_window, Nanos::from_secs(1));
        assert_eq!(corrections, ["duplicate window cannot be bigger than max age"]);
        let (config, _) = filled(|c| c.max_age = Nanos::from_secs(600));
        assert_eq!(config.duplicate_window, DUPLICATE_WINDOW);
        // One that was set stays, right or wrong.
        let (config, corrections) =
            filled(|c| (c.max_age, c.duplicate_window) = (Nanos::from_secs(1), Nanos::from_secs(2)));
        assert_eq!(
            (config.duplicate_window, corrections.len()),
            (Nanos::from_secs(2), 0)
        );
        let mut config = StreamConfig::default();
        let corrections = config.fill_defaults(Some(Nanos::from_secs(30)));
        assert_eq!(config.duplicate_window, Nanos::from_secs(30));
        assert_eq!(
            corrections,
            ["duplicate window limits are higher than current limits"]
        );
    }

    #[test]
    fn copies_have_neither_own_subjects_nor_a_duplicate_window() {
        let (config, _) = filled(|c| c.mirror = Some(StreamSource::default()));
        assert_eq!((config.subjects.len(), config.duplicate_window), (0, Nanos::ZERO));
        let (config, _) = filled(|c| c.sources = vec![StreamSource::default()]);
        assert_eq!((config.subjects.len(), config.duplicate_window), (0, Nanos::ZERO));
    }

    #[test]
    fn markers_and_schedules_turn_on_rollups() {
        let (config, _) = filled(|c| {
            c.subject_delete_marker_ttl = Nanos::from_secs(1);
            c.deny_purge = true;
        });
        assert!(config.allow_msg_ttl && config.allow_rollup_hdrs && !config.deny_purge);
        let (config, _) = filled(|c| c.allow_msg_schedules = true);
        assert!(!config.allow_msg_ttl && config.allow_rollup_hdrs);
        // A contradiction that was asked for stays, for the server to refuse.
        let (config, _) =
            filled(|c| (c.allow_msg_schedules, c.allow_rollup_hdrs, c.deny_purge) = (true, true, true));
        assert!(config.deny_purge);
    }

    #[test]
    fn sealing_forbids_every_removal() {
        let (config, _) = filled(|c| {
            c.sealed = true;
            c.max_age = Nanos::from_secs(600);
            c.allow_rollup_hdrs = true;
        });
        assert_eq!(
            (config.max_age, config.discard),
            (Nanos::ZERO, DiscardPolicy::New)
        );
        assert!(config.deny_delete && config.deny_purge && !config.allow_rollup_hdrs);
    }

    #[test]
    fn republish_source_is_made_explicit() {
        let republish = |src: &str, dest: &str| {
            Some(Republish {
                src: src.into(),
                dest: dest.into(),
                ..Republish::default()
            })
        };
        let (config, corrections) = filled(|c| c.republish = republish("", "q.>"));
        assert_eq!(config.republish, republish(">", "q.>"));
        assert_eq!(corrections, ["republish source can not be empty"]);
        let transform = Some(SubjectTransform {
            src: "S".into(),
            dest: "T".into(),
        });
        let (config, corrections) = filled(|c| {
            c.subject_transform = transform.clone();
            c.republish = republish(">", ">");
        });
        assert_eq!(config.republish, republish("T", "T"));
        assert_eq!(corrections, ["implicit republish based on subject transform"]);
    }

    #[test]
    fn empty_placement_is_none() {
        let (config, _) = filled(|c| c.placement = Some(Placement::default()));
        assert_eq!(config.placement, None);
    }

    #[test]
    fn metadata_of_the_server_does_not_make_another_stream() {
        let (left, _) = filled(|_| {});
        let mut right = left.clone();
        crate::jetstream::level::stamp_stored(&mut right.metadata, 0);
        assert!(left.is_same_as(&right));
        right.metadata.insert("k".into(), "v".into());
        assert!(!left.is_same_as(&right));
        right = StreamConfig {
            max_msgs: 5,
            ..left.clone()
        };
        assert!(!left.is_same_as(&right));
    }
}
