//! What becomes of messages from workers: nothing that another delivery would not mend is ever asked for again.

use std::sync::Arc;

use windjet_bus::Bus as _;
use windjet_bus::client::{Delivery, Handler, Outcome};
use windjet_bus::message::{
    DeregisterMsg, HeartbeatMsg, LogChunkMsg, RegisterMsg, TaskStatusMsg, decode, is_current,
};
use windjet_bus::subjects::{Class, Subjects};

use super::Farm;
use crate::store::{Chunk, Registration, Report, Reported, now_ms};

type Fallible = Result<(), Retry>;

/// Why a message should be delivered again.
struct Retry(String);

impl From<anyhow::Error> for Retry {
    fn from(error: anyhow::Error) -> Self {
        Self(format!("{error:#}"))
    }
}

macro_rules! handler {
    ($name:ident, $method:ident, $doc:literal) => {
        #[doc = $doc]
        pub(super) fn $name(farm: &Arc<Farm>) -> Arc<dyn Handler> {
            let farm = farm.clone();
            Arc::new(move |delivery: Arc<Delivery>| {
                let farm = farm.clone();
                async move {
                    match farm.$method(&delivery).await {
                        Ok(()) => Outcome::Ack,
                        Err(Retry(reason)) => Outcome::nak(reason),
                    }
                }
            })
        }
    };
}

handler!(
    of_workers,
    worker_message,
    "Registrations, heartbeats, farewells."
);
handler!(of_statuses, status_message, "Changes of state.");
handler!(of_logs, log_message, "Output.");

fn ignored(delivery: &Delivery, why: impl std::fmt::Display) -> Fallible {
    tracing::warn!(subject = delivery.subject, %why, "a message is ignored");
    Ok(())
}

impl Farm {
    async fn worker_message(self: &Arc<Self>, delivery: &Delivery) -> Fallible {
        let layout = self.client.layout();
        match Subjects::new(layout)
            .parse(&delivery.subject)
            .map(|parsed| parsed.class)
        {
            Some(Class::Register) => match decode::<RegisterMsg>(&delivery.payload) {
                Ok(message) if !is_current(&message.version, layout) => ignored(
                    delivery,
                    format!("version {:?} is not {:?}", message.version, layout.version()),
                ),
                Ok(message) if message.worker_id.is_empty() => ignored(delivery, "no worker"),
                Ok(message) => self.register(message).await,
                Err(error) => ignored(delivery, error),
            },
            Some(Class::Heartbeat) => match decode::<HeartbeatMsg>(&delivery.payload) {
                Ok(message) if !is_current(&message.version, layout) => Ok(()),
                Ok(message) => self.heartbeat(message).await,
                Err(error) => ignored(delivery, error),
            },
            Some(Class::Deregister) => match decode::<DeregisterMsg>(&delivery.payload) {
                Ok(message) => self.deregister(message).await,
                Err(error) => ignored(delivery, error),
            },
            _ => ignored(delivery, "not a subject of a worker"),
        }
    }

    async fn register(self: &Arc<Self>, message: RegisterMsg) -> Fallible {
        let tag = |name: &str| message.tags.get(name).cloned().unwrap_or_default();
        let worker = Registration {
            queues: tag("queues")
                .split(',')
                .filter(|queue| !queue.is_empty())
                .map(str::to_owned)
                .collect(),
            boot_ms: tag("boot_ms").parse().unwrap_or_default(),
            id: message.worker_id,
            instance: message.instance_id,
            cpus: message.cpu_count,
        };
        let id = worker.id.clone();
        let taken = self.store(move |store| store.register(&worker, now_ms())).await?;
        tracing::info!(worker = id, "registered");
        if taken {
            tracing::warn!(
                worker = id,
                "another process of this worker had tasks; they are given out again"
            );
        }
        self.waiters.wake_all();
        Ok(())
    }

    async fn heartbeat(self: &Arc<Self>, message: HeartbeatMsg) -> Fallible {
        let (worker, tasks) = (message.worker_id.clone(), message.active_task_ids);
        let stray = self
            .store(move |store| store.heartbeat(&worker, &tasks, now_ms()))
            .await?;
        let Some(stray) = stray else {
            return Err(Retry(format!(
                "the worker {} is not registered",
                message.worker_id
            )));
        };
        self.tell_canceled(&stray).await;
        Ok(())
    }

    async fn deregister(self: &Arc<Self>, message: DeregisterMsg) -> Fallible {
        self.leaving.lock().remove(&message.instance_id);
        let (worker, instance) = (message.worker_id.clone(), message.instance_id);
        let tasks = self
            .store(move |store| store.deregister(&worker, &instance, now_ms()))
            .await?;
        tracing::info!(worker = message.worker_id, tasks, "deregistered");
        self.waiters.wake_all();
        Ok(())
    }

    async fn status_message(self: &Arc<Self>, delivery: &Delivery) -> Fallible {
        let layout = self.client.layout();
        let message: TaskStatusMsg = match decode(&delivery.payload) {
            Ok(message) => message,
            Err(error) => return ignored(delivery, error),
        };
        if !is_current(&message.version, layout) {
            return ignored(
                delivery,
                format!("version {:?} is not {:?}", message.version, layout.version()),
            );
        }
        let profile = self.profile;
        let text = format!("{} {}", message.attempt_id, message.status);
        let reported = self
            .store(move |store| {
                let report = Report {
                    task: &message.task_id,
                    attempt: &message.attempt_id,
                    worker: &message.worker_id,
                    status: &message.status,
                    exit_code: message.exit_code,
                    message: &message.message,
                    worker_shutdown: message.is_worker_shutdown(),
                    last_log_seq: message.last_log_seq,
                };
                store.report(report, &profile, now_ms())
            })
            .await?;
        match reported {
            Reported::Applied { queue } => {
                tracing::info!(report = text, "applied");
                self.waiters.wake(&queue);
                Ok(())
            }
            Reported::Same => Ok(()),
            Reported::Ignored(why) => ignored(delivery, format!("{text}: {why}")),
        }
    }

    async fn log_message(self: &Arc<Self>, delivery: &Delivery) -> Fallible {
        let message: LogChunkMsg = match decode(&delivery.payload) {
            Ok(message) => message,
            Err(error) => return ignored(delivery, error),
        };
        if message.task_id.is_empty() || message.attempt_id.is_empty() {
            return ignored(delivery, "output of no task");
        }
        let chunk = Chunk {
            attempt: message.attempt_id,
            seq: message.seq_num,
            stream: message.stream,
            data: message.data,
        };
        self.store(move |store| store.log(&chunk)).await?;
        Ok(())
    }
}
