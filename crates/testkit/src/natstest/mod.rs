//! NATS as an operator deploys it for the message queue: the real nats-server with the generated permissions, and the
//! generated manifests applied strictly.
//!
//! There are two users: `nack`, which may do everything and plays the operator, and `wavehouse`, which has the
//! permissions under test. Manifests are read as the controller would, except that a field it does not know is an error.
//! A [`Deployment`] is one server, and replicas are forced to 1; a [`Cluster`] is three, with as many as the manifests say.

mod cluster;
mod operator;
mod resource;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

pub use self::cluster::{Cluster, NODES};
pub use self::operator::Operator;
use self::resource::{Replicas, Resource};
use crate::deadline::until;
use crate::process::Signal;
use crate::server::{PATIENCE, ServerUnderTest};

/// The restricted user.
pub const USER: &str = "wavehouse";
/// The operator's user.
pub const OPERATOR: &str = "nack";

/// A server with everything an operator made on it.
#[derive(Debug)]
pub struct Deployment {
    /// The server.
    pub server: ServerUnderTest,
    /// The operator, with a connection of its own.
    pub operator: Operator,
}

impl Deployment {
    /// Starts the real server with a user of these permissions, a block of the Helm chart's values, and applies the
    /// manifests.
    ///
    /// # Errors
    /// When either text is not what the chart or the controller understands, or the server refuses something.
    pub fn start(manifests: &str, permissions: &str) -> Result<Self> {
        Self::start_with(manifests, permissions, "")
    }

    /// The same with more configuration in the server's file.
    ///
    /// # Errors
    /// As [`Deployment::start`].
    pub fn start_with(manifests: &str, permissions: &str, more: &str) -> Result<Self> {
        let config = format!("{}\n{more}\n", account(permissions)?);
        let server = ServerUnderTest::real()?
            .config(config)
            .file("password", format!("{}\n", password(USER)))
            .start()?;
        let mut operator = Operator::connect(&server)?;
        for resource in Resource::read(manifests)? {
            resource.apply(&mut operator, Replicas::One)?;
        }
        Ok(Self { server, operator })
    }

    /// The file with the restricted user's password.
    #[must_use]
    pub fn password_file(&self) -> PathBuf {
        self.server.dir().join("password")
    }

    /// Gives the restricted user other permissions, as an operator does with a reload.
    ///
    /// # Errors
    /// When the text is not what the chart understands, or the server does not take it.
    pub fn permit(&mut self, permissions: &str) -> Result<()> {
        self.server.write_config(&account(permissions)?)?;
        let reloads = |log: &[String]| {
            log.iter()
                .filter(|line| line.contains("Reloaded server configuration"))
                .count()
        };
        let before = reloads(&self.server.log());
        self.server.signal(Signal::Hup)?;
        until("the reload", PATIENCE, || reloads(&self.server.log()) > before)
    }

    /// Kills the server, starts it again on the same port and store, and connects the operator anew.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn restart(&mut self) -> Result<()> {
        self.server.restart()?;
        self.operator = Operator::connect(&self.server)?;
        Ok(())
    }
}

/// Storage for JetStream, and the account with both users.
fn account(permissions: &str) -> Result<String> {
    let values: Value = serde_saphyr::from_str(permissions).context("permissions are no YAML")?;
    let permissions = values.get("permissions").context("no block `permissions`")?;
    let users = json!([
        { "user": OPERATOR, "password": password(OPERATOR) },
        { "user": USER, "password": password(USER), "permissions": permissions },
    ]);
    Ok(format!(
        "jetstream {{ store_dir: store, max_file_store: 107374182400 }}\n\
         accounts {{ APP {{ jetstream: enabled, users: {users} }} }}\n"
    ))
}

/// A user's password.
#[must_use]
pub fn password(user: &str) -> String {
    format!("pw-{user}")
}
