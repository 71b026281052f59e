//! What becomes of messages from workers: nothing that another delivery would not mend is ever asked for again.

use std::sync::Arc;

use windjet_bus::Bus as _;
use windjet_bus::Token;
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

const FORGED: &str = "it is about another worker than the one that published it";

/// Whether a message is about another worker than the one whose subject it came on, where subjects name one.
fn is_forged(publisher: Option<&Token>, claimed: &str) -> bool {
    publisher.is_some_and(|publisher| publisher.as_str() != claimed)
}

fn ignored(delivery: &Delivery, why: impl std::fmt::Display) -> Fallible {
    tracing::warn!(subject = delivery.subject, %why, "a message is ignored");
    Ok(())
}

impl Farm {
    async fn worker_message(self: &Arc<Self>, delivery: &Delivery) -> Fallible {
        let layout = self.client.layout();
        let Some(parsed) = Subjects::new(layout).parse(&delivery.subject) else {
            return ignored(delivery, "not a subject of a worker");
        };
        let publisher = parsed.worker.as_ref();
        match parsed.class {
            Class::Register => match decode::<RegisterMsg>(&delivery.payload) {
                Ok(message) if !is_current(&message.version, layout) => ignored(
                    delivery,
                    format!("version {:?} is not {:?}", message.version, layout.version()),
                ),
                Ok(message) if message.worker_id.is_empty() => ignored(delivery, "no worker"),
                Ok(message) if is_forged(publisher, &message.worker_id) => ignored(delivery, FORGED),
                Ok(message) => self.register(message).await,
                Err(error) => ignored(delivery, error),
            },
            Class::Heartbeat => match decode::<HeartbeatMsg>(&delivery.payload) {
                Ok(message) if !is_current(&message.version, layout) => Ok(()),
                Ok(message) if is_forged(publisher, &message.worker_id) => ignored(delivery, FORGED),
                Ok(message) => self.heartbeat(message).await,
                Err(error) => ignored(delivery, error),
            },
            Class::Deregister => match decode::<DeregisterMsg>(&delivery.payload) {
                Ok(message) if is_forged(publisher, &message.worker_id) => ignored(delivery, FORGED),
                Ok(message) => self.deregister(message).await,
                Err(error) => ignored(delivery, error),
            },
            _ => ignored(delivery, "not a subject of a worker's life"),
        }
    }

    async fn register(self: &Arc<Self>, message: RegisterMsg) -> Fallible {
        let tag = |name: &str| message.tags.get(name).cloned().unwrap_or_default();
        let location = message.compute_location.clone();
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
        if !location.is_empty()
            && let Err(error) = self.store(move |store| store.note_location(&location)).await
        {
            tracing::warn!(worker = id, %error, "the worker's location is not in the list of locations");
        }
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
        let at = message.at;
        let stray = self
            .store(move |store| {
                let now = now_ms();
                let stray = store.heartbeat(&worker, &tasks, now)?;
                // Told by the worker's own clock, so it says nothing about whether the worker lives.
                let at_ms = at.unix_nanos() / 1_000_000;
                if at_ms > 0 {
                    store.note_skew(&worker, at_ms - now)?;
                }
                Ok(stray)
            })
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
        if message.task_id.is_empty() || message.attempt_id.is_empty() {
            return ignored(delivery, "a report on no task");
        }
        let publisher = Subjects::new(layout)
            .parse(&delivery.subject)
            .and_then(|parsed| parsed.worker);
        let message = match publisher {
            Some(publisher)
                if !message.worker_id.is_empty() && is_forged(Some(&publisher), &message.worker_id) =>
            {
                return ignored(delivery, FORGED);
            }
            // Who published counts, and is compared with who has the task.
            Some(publisher) => TaskStatusMsg {
                worker_id: publisher.to_string(),
                ..message
            },
            None => message,
        };
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
        let publisher = Subjects::new(self.client.layout())
            .parse(&delivery.subject)
            .and_then(|parsed| parsed.worker);
        let chunk = Chunk {
            attempt: message.attempt_id,
            seq: message.seq_num,
            stream: message.stream,
            data: message.data,
        };
        let stored = self.store(move |store| match &publisher {
            Some(publisher) if !store.is_of(&chunk.attempt, publisher.as_str())? => Ok(false),
            _ => store.log(&chunk).map(|()| true),
        });
        if stored.await? {
            Ok(())
        } else {
            ignored(delivery, "output of another worker's execution")
        }
    }
}
