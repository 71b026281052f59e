//! The server's own API: `$WJ.API.CONSUMER.EXPLAIN.<stream>.<consumer>`, why a consumer does not deliver.
//!
//! The answer is JSON: `stream`, `consumer`, `state` and what belongs to that state (see [`Explanation`]), and `text`, a
//! sentence for people; or `error`, as the API of JetStream answers. `docs/own-api.md` has it all.

use std::str;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::oneshot;
use windjet_protocol::jetstream::{ApiError, ErrorCode};

use super::Explanation;
use super::service::Context;
use super::stream::call::Call;
use crate::router::{Message, Service, Turn};
use crate::server::Shared;

/// Subjects that are served.
pub(super) const PATTERN: &str = "$WJ.API.CONSUMER.EXPLAIN.*.*";
const PREFIX: &str = "$WJ.API.CONSUMER.EXPLAIN.";

/// See the module's page.
#[derive(Debug)]
pub(super) struct Explain(pub(super) Context);

#[derive(Debug, Serialize)]
struct Answer<'a> {
    stream: &'a str,
    consumer: &'a str,
    #[serde(flatten)]
    result: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Why {
        text: String,
        #[serde(flatten)]
        why: Explanation,
    },
    Failed {
        error: ApiError,
    },
}

impl Service for Explain {
    fn receive(&self, message: &Message<'_>, _turn: &mut Turn<'_>) -> bool {
        let subject = str::from_utf8(message.subject).unwrap_or_default();
        let names = subject
            .strip_prefix(PREFIX)
            .and_then(|names| names.split_once('.'));
        let (Some((stream, consumer)), Some(server)) = (names, self.0.server.upgrade()) else {
            return false;
        };
        let Some(reply) = message.reply else {
            return true;
        };
        let asked = Asked {
            context: self.0.clone(),
            reply: Bytes::copy_from_slice(reply),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
        };
        let Some(known) = self.0.account.stream(stream) else {
            let error = self.0.account.offline.error(stream);
            asked.answer(&server, Err(error));
            return true;
        };
        let (sender, answer) = oneshot::channel();
        let call = Call::ConsumerExplain(asked.consumer.clone(), sender);
        if known.inbox.call(call).is_err() {
            asked.answer(&server, Err(ErrorCode::InsufficientResources.error()));
            return true;
        }
        server.tasks.clone().spawn(async move {
            let why = answer.await.ok().flatten();
            asked.answer(&server, why.ok_or_else(|| ErrorCode::ConsumerNotFound.error()));
        });
        true
    }
}

/// A request on its way.
struct Asked {
    context: Context,
    reply: Bytes,
    stream: String,
    consumer: String,
}

impl Asked {
    fn answer(&self, server: &Shared, why: Result<Explanation, ApiError>) {
        let answer = Answer {
            stream: &self.stream,
            consumer: &self.consumer,
            result: match why {
                Ok(why) => Outcome::Why {
                    text: why.to_string(),
                    why,
                },
                Err(error) => Outcome::Failed { error },
            },
        };
        // Writing to memory does not fail.
        let body = serde_json::to_vec(&answer).unwrap_or_default();
        let account = &self.context.account.account;
        server.publish(account, &self.reply, None, b"", &body.into());
    }
}
