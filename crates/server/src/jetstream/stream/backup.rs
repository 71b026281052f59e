//! Snapshots of the stream, and the end of the restore that it comes from.

use windjet_protocol::jetstream::advisory::StreamActionKind;
use windjet_protocol::jetstream::backup::ConsumerBackup;
use windjet_protocol::jetstream::stream::requests::{
    SnapshotRequest, SnapshotResponse, StreamCreateResponse,
};
use windjet_protocol::jetstream::{AckPolicy, ErrorCode, Response};
use windjet_protocol::subject;

use super::call::{Answer, Asker};
use super::task::Task;
use crate::jetstream::backup::{Restored, Snapshot, positions};

impl Task {
    /// A snapshot of what is staged now, when it is committed.
    pub(super) fn snapshot(&mut self, request: SnapshotRequest, asker: Asker) {
        let to = request.deliver_subject.as_bytes();
        // Chunks are for receivers, not for the server's own services.
        if !subject::is_literal(to) || to.starts_with(b"$JS.") {
            let error = ErrorCode::SnapshotDeliverSubjectInvalid.error();
            return Answer::<SnapshotResponse>::Wire(asker).send(&self.server, Err(error));
        }
        self.then(move |task| task.begin_snapshot(request, asker));
    }

    fn begin_snapshot(&mut self, request: SnapshotRequest, asker: Asker) {
        if self.failed {
            let error = ErrorCode::SnapshotFailed.with("the journal has failed");
            return Answer::<SnapshotResponse>::Wire(asker).send(&self.server, Err(error));
        }
        let (state, now) = (self.stream.state(), self.now());
        let mut consumers = Vec::new();
        let slots = self.consumers.slots.values().map(|slot| &slot.consumer);
        for consumer in slots.filter(|_| !request.no_consumers) {
            let config = consumer.config().clone();
            if config.ack_policy == AckPolicy::FlowControl {
                // It belongs to the stream that copies from this one.
                continue;
            }
            let backup = ConsumerBackup {
                config: Some(config),
                state: Some(positions(&consumer.state(now), state.last_seq)),
            };
            consumers.push((consumer.name().to_owned(), backup));
        }
        let snapshot = Snapshot {
            server: self.server.clone(),
            js: self.js.clone(),
            account: self.account.clone(),
            stream: self.stream.clone(),
            request,
            config: (*self.config).clone(),
            state,
            consumers,
        };
        snapshot.start(asker);
    }

    /// The stream was restored and nobody knows yet.
    pub(super) fn finish_restore(&mut self, restored: Restored) {
        self.enforce_limits();
        self.then(move |task| {
            task.advise(StreamActionKind::Create);
            let result = if task.failed {
                Err(ErrorCode::StoreFailed.with("the outcome is unknown"))
            } else {
                let info = task.stream_info();
                let did_create = false;
                Ok(StreamCreateResponse { info, did_create })
            };
            task.account.count_call(result.is_err());
            let body = Response(result).to_vec().into();
            let account = &task.account.account;
            task.server.publish(account, &restored.reply, None, b"", &body);
            crate::jetstream::backup::tell(restored.complete, &task.server, &task.js, &task.account);
        });
    }
}
