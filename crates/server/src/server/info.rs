//! The INFO line in its three forms: the greeting, the one after the first PING, and the one of lame duck mode.

use windjet_protocol::wire::ServerInfo;

use super::Shared;
use crate::connection::Connection;
use crate::options::{ConnectionType, TlsOptions};

/// The version of nats-server whose behaviour is implemented; clients switch features by it.
pub const PROTOCOL_VERSION: &str = "2.15.1";
/// Level of the JetStream API.
pub(crate) const API_LEVEL: u32 = 5;
/// Shown as the `go` field, which clients want non-empty.
pub(crate) const RUNTIME: &str = concat!("rust-windjet-", env!("CARGO_PKG_VERSION"));

/// What INFO needs to know of a client.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Number of the connection.
    pub(crate) id: u64,
    /// Its kind.
    pub(crate) kind: ConnectionType,
    /// Its address as shown, without port.
    pub(crate) ip: String,
}

impl Shared {
    /// INFO for a client that was just accepted.
    pub(crate) fn first_info(&self, peer: &Peer, nonce: Option<&str>) -> ServerInfo {
        let kind = peer.kind;
        let hides_auth = kind == ConnectionType::Standard && self.authenticator().has_no_auth_user(kind);
        ServerInfo {
            nonce: nonce.unwrap_or_default().to_owned(),
            auth_required: self.auth_required(kind) && !hides_auth,
            ..self.base_info(peer)
        }
    }

    /// INFO after the first PING: what holds for this client in particular.
    pub(crate) fn second_info(&self, connection: &Connection, max_payload: i64) -> ServerInfo {
        let profile = connection.profile();
        let account = profile.as_ref().map(|profile| &profile.account);
        ServerInfo {
            max_payload,
            auth_required: self.knows_users(connection.kind),
            connect_info: true,
            remote_account: account
                .map(|account| account.name.to_string())
                .unwrap_or_default(),
            acc_is_sys: account.is_some_and(|account| self.is_system(account)),
            ..self.base_info(&connection.peer())
        }
    }

    /// INFO that tells a client to go elsewhere.
    pub(crate) fn lame_duck_info(&self, connection: &Connection, max_payload: i64) -> ServerInfo {
        ServerInfo {
            max_payload,
            auth_required: self.knows_users(connection.kind),
            ldm: true,
            ..self.base_info(&connection.peer())
        }
    }

    fn base_info(&self, peer: &Peer) -> ServerInfo {
        let options = self.options();
        let (host, port) = self.advertised(peer.kind);
        let websocket = options
            .websocket
            .as_ref()
            .filter(|_| peer.kind == ConnectionType::WebSocket);
        let (tls, allow_plain) = match websocket {
            Some(websocket) => (websocket.tls.as_ref(), false),
            None => (options.tls.as_ref(), options.allow_non_tls),
        };
        ServerInfo {
            server_id: self.id.clone(),
            server_name: self.name.clone(),
            version: PROTOCOL_VERSION.to_owned(),
            proto: 1,
            go: RUNTIME.to_owned(),
            host,
            port,
            headers: !options.no_header_support,
            auth_required: self.auth_required(peer.kind),
            tls_required: tls.is_some() && !allow_plain,
            tls_verify: tls.is_some_and(TlsOptions::demands_certificate),
            tls_available: tls.is_some() && (allow_plain || websocket.is_some()),
            max_payload: options.max_payload,
            client_id: peer.id,
            client_ip: peer.ip.clone(),
            api_lvl: API_LEVEL,
            jetstream: self.jetstream().is_some(),
            domain: self
                .jetstream()
                .and_then(|js| js.options().domain.clone())
                .unwrap_or_default(),
            ..ServerInfo::default()
        }
    }

    /// Host and port that clients are told.
    pub(crate) fn advertised(&self, kind: ConnectionType) -> (String, u16) {
        let options = self.options();
        let addresses = self.addresses();
        let (listen, bound, advertise) = match (kind, &options.websocket) {
            (ConnectionType::WebSocket, Some(websocket)) => (
                Some(&websocket.listen),
                addresses.websocket,
                websocket.advertise.as_deref(),
            ),
            _ => (
                options.listen.as_ref(),
                addresses.client,
                options.client_advertise.as_deref(),
            ),
        };
        let port = bound.map_or(0, |address| address.port());
        if let Some(advertise) = advertise {
            return match advertise
                .rsplit_once(':')
                .map(|(host, port)| (host, port.parse()))
            {
                Some((host, Ok(port))) => (host.to_owned(), port),
                _ => (advertise.to_owned(), port),
            };
        }
        (listen.map(|listen| listen.host.clone()).unwrap_or_default(), port)
    }
}
