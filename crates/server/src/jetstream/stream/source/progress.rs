//! How far a source is, for those who ask.

use std::sync::Arc;

use parking_lot::Mutex;
use windjet_protocol::jetstream::{ApiError, Nanos, StreamSource, StreamSourceInfo};

use super::route::Route;
use crate::jetstream::consumer::Now;
use crate::jetstream::stream::Stream;

/// An origin in this process is alive as long as it is there; monitors expect a sign of life about as often as this.
const ALIVE: u64 = 1_000_000_000;

/// One mirror or source, as everybody but its task sees it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Its configuration.
    pub(super) config: StreamSource,
    /// Whether it is a mirror.
    pub(super) mirror: bool,
    pub(super) status: Mutex<Status>,
}

/// What changes.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// The origin, where there is one.
    pub(super) origin: Option<Arc<Stream>>,
    /// The last sequence of the origin that was looked at.
    pub(super) cursor: u64,
    /// The last sequence of the origin that was taken.
    pub(super) taken: u64,
    /// When something came last, in the monotonic clock.
    pub(super) heard: Option<u64>,
    /// Why nothing is copied.
    pub(super) error: Option<ApiError>,
}

impl Progress {
    fn info(&self, now: Now) -> StreamSourceInfo {
        let status = self.status.lock();
        let lag = status.origin.as_ref().map_or(0, |origin| {
            let mut matcher = Route::new(&self.config).matcher();
            origin.reader.count(&mut matcher, status.cursor + 1)
        });
        let silent = status.heard.map(|heard| now.mono.saturating_sub(heard));
        let silent = silent.map(|silent| {
            if status.origin.is_some() {
                silent.clamp(1, ALIVE)
            } else {
                silent
            }
        });
        StreamSourceInfo {
            name: self.config.name.clone(),
            external: self.config.external.clone(),
            lag,
            seq: if self.mirror { 0 } else { status.taken },
            active: silent.map_or(StreamSourceInfo::NEVER_ACTIVE, |silent| {
                Nanos(i64::try_from(silent).unwrap_or(i64::MAX))
            }),
            error: status.error.clone(),
            filter_subject: self.config.filter_subject.clone(),
            subject_transforms: self.config.subject_transforms.clone(),
        }
    }
}

impl Stream {
    /// Mirror and sources as answers show them.
    pub(crate) fn copying(&self, now: Now) -> (Option<StreamSourceInfo>, Vec<StreamSourceInfo>) {
        let Some(list) = self.progress.load_full() else {
            return (None, Vec::new());
        };
        let mut mirror = None;
        let mut sources = Vec::new();
        for progress in &*list {
            let info = progress.info(now);
            if progress.mirror {
                mirror = Some(info);
            } else {
                sources.push(info);
            }
        }
        (mirror, sources)
    }
}
