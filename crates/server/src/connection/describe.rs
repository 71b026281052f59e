//! A client as events and services are told of it.

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Connection;
use crate::options::ConnectionType;

impl Connection {
    /// The client object of system events: section 4.6 of the core protocol.
    pub(crate) fn client_info(&self) -> Value {
        let profile = self.profile();
        let mut info = json!({
            "start": OffsetDateTime::from(self.started).format(&Rfc3339).unwrap_or_default(),
            "host": self.shown_ip,
            "id": self.id,
        });
        let mut set = |key: &str, value: Value| {
            if let Value::Object(fields) = &mut info {
                fields.insert(key.to_owned(), value);
            }
        };
        if let Some(profile) = &profile {
            set("acc", json!(&*profile.account.name));
            if let Some(identity) = &profile.identity {
                set("user", json!(identity.user));
            }
            for (key, value) in [
                ("name", &profile.name),
                ("lang", &profile.lang),
                ("ver", &profile.version),
            ] {
                if !value.is_empty() {
                    set(key, json!(value));
                }
            }
        }
        if let Some(rtt) = self.rtt() {
            set("rtt", json!(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX)));
        }
        set("server", json!(self.server.name));
        set("kind", json!("Client"));
        set(
            "client_type",
            json!(if self.kind == ConnectionType::WebSocket {
                "websocket"
            } else {
                "nats"
            }),
        );
        info
    }
}
