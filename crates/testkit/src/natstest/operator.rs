//! The operator: requests to the JetStream API over a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{OPERATOR, password};
use crate::deadline::Deadline;
use crate::link::{Got, Link};
use crate::server::ServerUnderTest;
use crate::wire::{Op, next_op};

const STREAM_NOT_FOUND: u64 = 10059;
const WAIT: Duration = Duration::from_secs(10);

/// A client with every right.
#[derive(Debug)]
pub struct Operator {
    link: Link,
    buffer: Vec<u8>,
    requests: u64,
}

impl Operator {
    /// Connects to a server that has the operator's user.
    ///
    /// # Errors
    /// When it does not let the operator in.
    pub fn connect(server: &ServerUnderTest) -> Result<Self> {
        Self::dial(server.client_addr()?)
    }

    /// The same at an address.
    pub(super) fn dial(addr: SocketAddr) -> Result<Self> {
        let mut operator = Self {
            link: Link::dial(addr)?,
            buffer: Vec::new(),
            requests: 0,
        };
        let options = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "testkit", "version": "0",
            "user": OPERATOR, "pass": password(OPERATOR),
        });
        let hello = format!("CONNECT {options}\r\nSUB _INBOX_nack.* 1\r\nPING\r\n");
        operator.link.send(hello.as_bytes())?;
        operator.until(|op| (*op == Op::Pong).then_some(()))?;
        Ok(operator)
    }

    /// Sends a request and returns the payload of its answer.
    ///
    /// # Errors
    /// When no answer comes.
    pub fn request(&mut self, subject: &str, body: &str) -> Result<Vec<u8>> {
        self.requests += 1;
        let inbox = format!("_INBOX_nack.{}", self.requests);
        let publish = format!("PUB {subject} {inbox} {}\r\n{body}\r\n", body.len());
        self.link.send(publish.as_bytes())?;
        self.until(|op| match op {
            Op::Msg(message) if message.control[1] == inbox => Some(message.payload.clone()),
            _ => None,
        })
        .with_context(|| format!("request to {subject}"))
    }

    /// Calls the JetStream API.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub fn api(&mut self, call: &str, body: &Value) -> Result<Value> {
        let reply = self.request(&format!("$JS.API.{call}"), &body.to_string())?;
        let reply: Value = serde_json::from_slice(&reply).with_context(|| format!("answer to {call}"))?;
        if let Some(error) = reply.get("error") {
            bail!("{call}: {error}");
        }
        Ok(reply)
    }

    /// Deletes a consumer.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn delete_consumer(&mut self, stream: &str, consumer: &str) -> Result<()> {
        self.api(&format!("CONSUMER.DELETE.{stream}.{consumer}"), &json!({}))?;
        Ok(())
    }

    /// Deletes a stream.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn delete_stream(&mut self, stream: &str) -> Result<()> {
        self.api(&format!("STREAM.DELETE.{stream}"), &json!({}))?;
        Ok(())
    }

    /// Deletes a stream unless there is none.
    pub(super) fn delete_stream_if_there(&mut self, stream: &str) -> Result<()> {
        let reply = self.request(&format!("$JS.API.STREAM.DELETE.{stream}"), "{}")?;
        let reply: Value = serde_json::from_slice(&reply)?;
        match reply["error"]["err_code"].as_u64() {
            None | Some(STREAM_NOT_FOUND) => Ok(()),
            Some(_) => bail!("STREAM.DELETE.{stream}: {}", reply["error"]),
        }
    }

    /// A stream's configuration and state.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn stream(&mut self, stream: &str) -> Result<Value> {
        self.api(&format!("STREAM.INFO.{stream}"), &json!({}))
    }

    /// A consumer's configuration and state.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn consumer(&mut self, stream: &str, consumer: &str) -> Result<Value> {
        self.api(&format!("CONSUMER.INFO.{stream}.{consumer}"), &json!({}))
    }

    /// Changes a stream's configuration.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn update_stream(&mut self, stream: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut config = self.stream(stream)?["config"].take();
        change(&mut config);
        self.api(&format!("STREAM.UPDATE.{stream}"), &config)?;
        Ok(())
    }

    /// Changes a consumer's configuration.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn update_consumer(
        &mut self,
        stream: &str,
        consumer: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<()> {
        let mut config = self.consumer(stream, consumer)?["config"].take();
        change(&mut config);
        self.create_consumer(stream, &config)
    }

    /// Creates a consumer, or gives it another configuration.
    ///
    /// # Errors
    /// As [`Operator::api`].
    pub fn create_consumer(&mut self, stream: &str, config: &Value) -> Result<()> {
        let name = config["durable_name"].as_str().context("a durable's name")?;
        let mut call = format!("CONSUMER.CREATE.{stream}.{name}");
        if let Some(filter) = config["filter_subject"].as_str() {
            call = format!("{call}.{filter}");
        }
        self.api(
            &call,
            &json!({ "stream_name": stream, "config": config, "action": "" }),
        )?;
        Ok(())
    }

    fn until<T>(&mut self, mut pick: impl FnMut(&Op) -> Option<T>) -> Result<T> {
        let deadline = Deadline::after(WAIT);
        loop {
            while let Some(op) = next_op(&mut self.buffer) {
                if op == Op::Ping {
                    self.link.send(b"PONG\r\n")?;
                }
                if let Op::Other(text) = &op
                    && text.starts_with("-ERR")
                {
                    bail!("the server answers {text}");
                }
                if let Some(value) = pick(&op) {
                    return Ok(value);
                }
            }
            let left = deadline.left().context("no answer in time")?;
            match self.link.receive(&mut self.buffer, left) {
                Got::Bytes | Got::Nothing => {}
                end => bail!("the connection ended: {end:?}"),
            }
        }
    }
}
