//! Core subscriptions: diagnostics, which nobody keeps, and cancels, which reach a listener that was away as well.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::consume::Consuming;
use super::{Client, Subscription};
use crate::error::{BusError, ErrorKind};
use crate::link::{Incoming, Link, LinkState};
use crate::streams::STREAM_CANCEL;
use crate::subjects::{WORKER_DIAG_PREFIX, task_cancel_subject, worker_diag_subject};
use crate::token::Token;

/// What takes diagnostics: the concrete subject and the bytes.
pub type DiagHandler = Arc<dyn Fn(&str, Bytes) + Send + Sync>;

/// What is told of a cancel; it may be told more than once.
pub type CancelHandler = Arc<dyn Fn(Bytes) + Send + Sync>;

const LIMIT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(250);

impl Client {
    pub(super) async fn send_diag(&self, worker: &Token, data: Bytes) -> Result<(), BusError> {
        self.link
            .publish(&worker_diag_subject(worker), None, None, data)
            .await
    }

    pub(super) async fn hear_diag(&self, handler: DiagHandler) -> Result<Subscription, BusError> {
        let mut feed = self
            .link
            .subscribe(&format!("{WORKER_DIAG_PREFIX}.>"), None)
            .await?;
        if let Err(error) = self.link.settle(LIMIT).await {
            feed.finish().await;
            return Err(error);
        }
        let running = Consuming::new();
        let (stop, abort) = (running.stop.clone(), running.abort.clone());
        running.tasks.spawn(async move {
            let hearing = async {
                loop {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => break,
                        message = feed.next() => match message {
                            Some(message) => handler(&message.subject, message.payload),
                            None => break,
                        },
                    }
                }
                feed.finish().await;
                while let Ok(Some(message)) =
                    tokio::time::timeout(Duration::from_millis(20), feed.next()).await
                {
                    handler(&message.subject, message.payload);
                }
            };
            abort.run_until_cancelled(hearing).await;
        });
        running.tasks.close();
        Ok(Subscription(running))
    }

    /// Listens first and then reads what is stored, so that no cancel falls between; reads again after every reconnect.
    pub(super) async fn hear_cancel(
        &self,
        task: &Token,
        handler: CancelHandler,
    ) -> Result<Subscription, BusError> {
        let subject = task_cancel_subject(task);
        let mut feed = self.link.subscribe(&subject, None).await?;
        // The answer comes after the subscription is in force: the broker takes both in their order.
        let begun = tokio::time::Instant::now();
        let first = loop {
            match stored(&*self.link, &subject).await {
                // The subscription goes on with the next connection, and so does this.
                Err(error) if *error.kind() == ErrorKind::Unknown && begun.elapsed() < LIMIT => {
                    tracing::debug!(subject, %error, "the stored cancel could not be read; trying again");
                }
                done => break done,
            }
        };
        match first {
            Ok(Some(payload)) => handler(payload),
            Ok(None) => {}
            Err(error) => {
                feed.finish().await;
                return Err(error);
            }
        }
        let running = Consuming::new();
        let stop = running.stop.clone();
        let link = self.link.clone();
        running.tasks.spawn(async move {
            let mut state = link.state();
            state.mark_unchanged();
            let mut again: Option<tokio::time::Instant> = None;
            loop {
                let due = again.unwrap_or_else(tokio::time::Instant::now);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    message = feed.next() => match message {
                        Some(message) => handler(message.payload),
                        None => break,
                    },
                    changed = state.changed() => match *state.borrow_and_update() {
                        LinkState::Connected(_) if changed.is_ok() => again = Some(tokio::time::Instant::now()),
                        LinkState::Disconnected => {}
                        _ => break,
                    },
                    () = tokio::time::sleep_until(due), if again.is_some() => {
                        again = match stored(&*link, &subject).await {
                            Ok(Some(payload)) => {
                                handler(payload);
                                None
                            }
                            Ok(None) => None,
                            Err(error) => {
                                tracing::debug!(subject, %error, "the stored cancel could not be read; trying again");
                                Some(tokio::time::Instant::now() + RETRY)
                            }
                        };
                    }
                }
            }
            feed.finish().await;
        });
        running.tasks.close();
        Ok(Subscription(running))
    }
}

/// The newest stored cancel of a subject.
async fn stored(link: &dyn Link, subject: &str) -> Result<Option<Bytes>, BusError> {
    let get = format!("$JS.API.DIRECT.GET.{STREAM_CANCEL}.{subject}");
    let Incoming { status, payload, .. } = match link.request(&get, None, Bytes::new(), LIMIT).await {
        Ok(answer) => answer,
        Err(error) if *error.kind() == ErrorKind::NoResponders => {
            let text = format!("listen to {subject}: the stream {STREAM_CANCEL} does not exist");
            return Err(BusError::new(ErrorKind::NoStream, text).with(error));
        }
        Err(error) => return Err(error),
    };
    match status {
        0 => Ok(Some(payload)),
        404 => Ok(None),
        other => Err(BusError::new(
            ErrorKind::Refused,
            format!("listen to {subject}: the broker answered with status {other}"),
        )),
    }
}
