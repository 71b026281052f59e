//! A worker in one call, for laboratories and small services.
//!
//! The only call of the kit that makes a stream and a durable and works on them. Everything is checked before anything is
//! made, and the durable has all its settings before anybody is bound to it.

use std::sync::Arc;

use async_nats::jetstream::stream;

use super::binding::{self, Wanted};
use super::{Bind, PushOptions, Subscription, subscribe_bound};
use crate::admin::{ConsumerManager, DurableConfig, StreamManager};
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::BoxHandler;
use crate::names::{validate_durable_name, validate_queue_name, validate_stream_name, validate_subject};

/// A stream, a push durable and its queue group.
#[derive(Debug, Clone, Default)]
pub struct WorkerSetup {
    /// The stream, created or made like this.
    pub stream: stream::Config,
    /// The durable. Its filter may be left out; a deliver subject is made up for a new one. What is not set is the client's
    /// setting in a new durable, and stays in an existing one.
    pub consumer: DurableConfig,
    /// The queue group.
    pub queue: String,
    /// What the durable delivers.
    pub subject: String,
}

pub(in crate::consumer) async fn set_up(
    inner: &Arc<Inner>,
    setup: WorkerSetup,
    handler: BoxHandler,
    options: PushOptions,
) -> Result<Subscription> {
    let WorkerSetup {
        stream,
        consumer,
        queue,
        subject,
    } = setup;
    validate_stream_name(&stream.name)?;
    validate_durable_name(&consumer.durable)?;
    validate_subject(&subject)?;
    validate_queue_name(&queue)?;
    let filters = consumer.filter_subjects.as_deref().unwrap_or_default();
    if !filters.is_empty() && filters != [subject.as_str()] {
        let what = format!(
            "setting up a worker on {subject}, whose durable delivers {}",
            filters.join(", ")
        );
        return Err(Error::new(ErrorKind::InvalidSubject, what));
    }
    let name = stream.name.clone();
    StreamManager::new(Arc::clone(inner))
        .create_or_update(stream)
        .await?;
    let durable = wanted(inner, &name, consumer, &queue, &subject).await?;
    ConsumerManager::new(Arc::clone(inner))
        .create_or_update(&name, &durable)
        .await?;
    let options = options.bind(Bind::MustExist);
    subscribe_bound(
        inner,
        &name,
        &durable.durable,
        Some(&queue),
        &subject,
        handler,
        options,
    )
    .await
}

/// The whole settings of the durable. One that exists must be one of this queue group already.
async fn wanted(
    inner: &Inner,
    stream: &str,
    mut durable: DurableConfig,
    queue: &str,
    subject: &str,
) -> Result<DurableConfig> {
    durable.filter_subjects = Some(vec![subject.to_owned()]);
    match inner.consumer_info(stream, &durable.durable).await {
        Ok(mut info) => {
            // The filter is changed; pull or push, and the group, cannot be.
            info.config.filter_subject.clear();
            info.config.filter_subjects.clear();
            binding::check(
                Wanted {
                    stream,
                    durable: &durable.durable,
                    queue: Some(queue),
                    subject,
                },
                &info,
            )?;
        }
        Err(error) if error.kind() == ErrorKind::ConsumerNotFound => {
            let settings = &inner.config;
            durable.deliver_group = Some(queue.to_owned());
            durable
                .deliver_subject
                .get_or_insert_with(|| inner.nats.new_inbox());
            durable.ack_wait.get_or_insert(settings.consumer.ack_wait);
            durable
                .max_ack_pending
                .get_or_insert(i64::try_from(settings.backpressure.max_ack_pending).unwrap_or(i64::MAX));
        }
        Err(error) => return Err(error),
    }
    Ok(durable)
}
