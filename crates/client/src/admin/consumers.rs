//! Consumers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, Info, ReplayPolicy};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{all_names, page};
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::names::{validate_durable_name, validate_stream_name, validate_subjects};

/// The server's number for a change that it does not allow.
const CREATE_FAILED: u64 = 10_012;

/// Settings of a durable. What is `None` has the server's default in a new consumer, and stays as it is in an existing
/// one; acknowledgements are explicit and replay is instant unless said otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DurableConfig {
    /// The name.
    pub durable: String,
    /// What it says about itself.
    pub description: Option<String>,
    /// The subjects it selects; all of the stream's when empty.
    pub filter_subjects: Option<Vec<String>>,
    /// Where messages are pushed to; none for a pull consumer.
    pub deliver_subject: Option<String>,
    /// The queue group of a push consumer.
    pub deliver_group: Option<String>,
    /// Where it begins. Cannot be changed.
    pub deliver_policy: Option<DeliverPolicy>,
    /// How fast it replays. Cannot be changed.
    pub replay_policy: Option<ReplayPolicy>,
    /// How messages are acknowledged. Cannot be changed.
    pub ack_policy: Option<AckPolicy>,
    /// How often a message is delivered at most.
    pub max_deliver: Option<i64>,
    /// How long a delivery may go unsettled.
    pub ack_wait: Option<Duration>,
    /// How many may be unsettled.
    pub max_ack_pending: Option<i64>,
    /// Bits a second of a push consumer.
    pub rate_limit: Option<u64>,
    /// Heartbeats of a push consumer. Cannot be changed.
    pub heartbeat: Option<Duration>,
    /// Flow control of a push consumer. Cannot be changed.
    pub flow_control: Option<bool>,
    /// How long it may be unused.
    pub inactive_threshold: Option<Duration>,
    /// Replicas.
    pub replicas: Option<usize>,
    /// Pull requests that may wait. Cannot be changed.
    pub max_waiting: Option<i64>,
    /// Keeps its state in memory. Cannot be changed.
    pub memory_storage: Option<bool>,
    /// Delays of redeliveries.
    pub backoff: Option<Vec<Duration>>,
    /// Metadata; added to what is there.
    pub metadata: HashMap<String, String>,
}

impl DurableConfig {
    /// A durable of this name.
    #[must_use]
    pub fn new(durable: impl Into<String>) -> Self {
        Self {
            durable: durable.into(),
            ..Self::default()
        }
    }

    /// The whole settings, on top of those that are there.
    pub(crate) fn over(&self, existing: Option<&Config>) -> Config {
        let mut config = existing.cloned().unwrap_or_default();
        fn set<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                to.clone_from(value);
            }
        }
        config.durable_name = Some(self.durable.clone());
        config.name = Some(self.durable.clone());
        if self.description.is_some() {
            config.description.clone_from(&self.description);
        }
        if let Some(filters) = &self.filter_subjects {
            config.filter_subject.clear();
            config.filter_subjects.clear();
            match filters.as_slice() {
                [one] => config.filter_subject.clone_from(one),
                many => config.filter_subjects = many.to_vec(),
            }
        }
        if self.deliver_subject.is_some() {
            config.deliver_subject.clone_from(&self.deliver_subject);
        }
        if self.deliver_group.is_some() {
            config.deliver_group.clone_from(&self.deliver_group);
        }
        set(&mut config.deliver_policy, &self.deliver_policy);
        set(&mut config.replay_policy, &self.replay_policy);
        set(&mut config.ack_policy, &self.ack_policy);
        set(&mut config.max_deliver, &self.max_deliver);
        set(&mut config.ack_wait, &self.ack_wait);
        set(&mut config.max_ack_pending, &self.max_ack_pending);
        set(&mut config.rate_limit, &self.rate_limit);
        set(&mut config.idle_heartbeat, &self.heartbeat);
        set(&mut config.flow_control, &self.flow_control);
        set(&mut config.inactive_threshold, &self.inactive_threshold);
        set(&mut config.num_replicas, &self.replicas);
        set(&mut config.max_waiting, &self.max_waiting);
        set(&mut config.memory_storage, &self.memory_storage);
        set(&mut config.backoff, &self.backoff);
        config.metadata.extend(self.metadata.clone());
        config
    }
}

/// The settings of `wanted` that the server does not change in `existing`.
pub(crate) fn immutable(existing: &Config, wanted: &Config) -> Vec<String> {
    let push_or_pull = existing.deliver_subject.is_some() != wanted.deliver_subject.is_some();
    [
        ("deliver_policy", existing.deliver_policy != wanted.deliver_policy),
        ("ack_policy", existing.ack_policy != wanted.ack_policy),
        ("replay_policy", existing.replay_policy != wanted.replay_policy),
        ("memory_storage", existing.memory_storage != wanted.memory_storage),
        ("heartbeat", existing.idle_heartbeat != wanted.idle_heartbeat),
        ("flow_control", existing.flow_control != wanted.flow_control),
        ("max_waiting", existing.max_waiting != wanted.max_waiting),
        ("deliver_subject", push_or_pull),
    ]
    .into_iter()
    .filter(|(_, differs)| *differs)
    .map(|(name, _)| name.to_owned())
    .collect()
}

/// Manages consumers.
#[derive(Debug, Clone)]
pub struct ConsumerManager {
    inner: Arc<Inner>,
}

impl ConsumerManager {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Creates a durable, or changes what `config` says in an existing one.
    ///
    /// # Errors
    /// [`ErrorKind::ConsumerRecreateRequired`] when a setting differs that cannot be changed: nothing is changed then, and
    /// [`Error::details`] names the settings.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn create_or_update(&self, stream: &str, config: &DurableConfig) -> Result<Info> {
        validate_stream_name(stream)?;
        validate_durable_name(&config.durable)?;
        validate_subjects(config.filter_subjects.as_deref().unwrap_or_default())?;
        match self.info(stream, &config.durable).await {
            Ok(existing) => {
                let wanted = config.over(Some(&existing.config));
                if wanted == existing.config {
                    return Ok(existing);
                }
                let fixed = immutable(&existing.config, &wanted);
                if !fixed.is_empty() {
                    return Err(recreate(stream, &config.durable, fixed));
                }
                self.put(stream, &config.durable, &wanted, "update").await
            }
            Err(error) if error.kind() == ErrorKind::ConsumerNotFound => {
                self.put(stream, &config.durable, &config.over(None), "create")
                    .await
            }
            Err(error) => Err(error),
        }
    }

    /// Creates a consumer with the official client's settings.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] when there is another one of this name.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn add(&self, stream: &str, config: &Config) -> Result<Info> {
        self.put(stream, name_of(config)?, config, "create").await
    }

    /// Replaces the settings of a consumer.
    ///
    /// # Errors
    /// [`ErrorKind::ConsumerRecreateRequired`] when the server does not allow the change.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn update(&self, stream: &str, config: &Config) -> Result<Info> {
        self.put(stream, name_of(config)?, config, "update").await
    }

    pub(crate) async fn put(&self, stream: &str, name: &str, config: &Config, action: &str) -> Result<Info> {
        validate_stream_name(stream)?;
        validate_durable_name(name)?;
        let what = format!(
            "{} the consumer {stream}/{name}",
            if action == "create" {
                "creating"
            } else {
                "updating"
            }
        );
        let question = json!({"stream_name": stream, "config": config, "action": action});
        let subject = format!("CONSUMER.CREATE.{stream}.{name}");
        let answer = self.inner.api(&what, subject, &question).await;
        answer.map_err(|error: Error| {
            if action == "update" && error.api_code() == Some(CREATE_FAILED) {
                let text = std::error::Error::source(&error)
                    .map(ToString::to_string)
                    .unwrap_or_default();
                return recreate(stream, name, vec![text]);
            }
            error
        })
    }

    /// Deletes a consumer.
    ///
    /// # Errors
    /// [`ErrorKind::ConsumerNotFound`].
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn delete(&self, stream: &str, name: &str) -> Result<()> {
        validate_stream_name(stream)?;
        validate_durable_name(name)?;
        let what = format!("deleting the consumer {stream}/{name}");
        let _: Value = self
            .inner
            .api(&what, format!("CONSUMER.DELETE.{stream}.{name}"), &json!({}))
            .await?;
        Ok(())
    }

    /// A consumer's settings and state.
    ///
    /// # Errors
    /// [`ErrorKind::ConsumerNotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn info(&self, stream: &str, name: &str) -> Result<Info> {
        validate_stream_name(stream)?;
        validate_durable_name(name)?;
        self.inner.consumer_info(stream, name).await
    }

    /// All names of a stream's consumers, sorted.
    ///
    /// # Errors
    /// When the server does not answer, be it half way.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn names(&self, stream: &str) -> Result<Vec<String>> {
        validate_stream_name(stream)?;
        let what = format!("listing the consumers of {stream}");
        all_names(
            &self.inner,
            &what,
            &format!("CONSUMER.NAMES.{stream}"),
            "consumers",
        )
        .await
    }

    /// Consumers by name from `offset` on, at most `limit` of them, and how many names there are. One that vanishes
    /// meanwhile is left out.
    ///
    /// # Errors
    /// As [`ConsumerManager::names`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list_page(
        &self,
        stream: &str,
        offset: usize,
        limit: Option<usize>,
    ) -> Result<(Vec<Info>, usize)> {
        let (names, total) = page(self.names(stream).await?, offset, limit);
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match self.info(stream, &name).await {
                Ok(info) => found.push(info),
                Err(error) if error.kind() == ErrorKind::ConsumerNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((found, total))
    }

    /// All consumers of a stream by name.
    ///
    /// # Errors
    /// As [`ConsumerManager::names`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list(&self, stream: &str) -> Result<Vec<Info>> {
        Ok(self.list_page(stream, 0, None).await?.0)
    }

    /// Stops deliveries until a time. Servers from 2.11 on.
    ///
    /// # Errors
    /// [`ErrorKind::ConsumerNotFound`].
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn pause(&self, stream: &str, name: &str, until: OffsetDateTime) -> Result<()> {
        let until = until
            .format(&Rfc3339)
            .map_err(|error| Error::new(ErrorKind::Encode, "writing a time").because(error))?;
        self.pause_until(stream, name, &json!({"pause_until": until}))
            .await
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// [`ErrorKind::ConsumerNotFound`].
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn resume(&self, stream: &str, name: &str) -> Result<()> {
        self.pause_until(stream, name, &json!({})).await
    }

    async fn pause_until(&self, stream: &str, name: &str, question: &Value) -> Result<()> {
        validate_stream_name(stream)?;
        validate_durable_name(name)?;
        let what = format!("pausing or resuming the consumer {stream}/{name}");
        let _: Value = self
            .inner
            .api(&what, format!("CONSUMER.PAUSE.{stream}.{name}"), question)
            .await?;
        Ok(())
    }
}

fn name_of(config: &Config) -> Result<&str> {
    config
        .name
        .as_deref()
        .or(config.durable_name.as_deref())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidDurableName,
                "creating a consumer without a name",
            )
        })
}

fn recreate(stream: &str, name: &str, fields: Vec<String>) -> Error {
    let what = format!("updating the consumer {stream}/{name}");
    Error::new(ErrorKind::ConsumerRecreateRequired, what).with_details(fields)
}
