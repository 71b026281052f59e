//! Who a client is: CONNECT, and what stands in for it.
//!
//! A CONNECT is judged outside of a turn, because a password hash may take a tenth of a second; everything else waits for it,
//! since later operations depend on its outcome.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::task;
use windjet_protocol::wire::{Connect, encode, errors};

use super::publish::Publisher;
use super::session::{Negotiated, Session};
use super::{CloseReason, Profile};
use crate::auth::{Attempt, AuthFailure, Credentials, Identity, PeerCertificate};
use crate::options::ConnectionType;
use crate::router::Turn;
use crate::server::Bound;

impl Session {
    /// Authenticates with a CONNECT and binds the connection. Runs outside a turn, since a password hash may take long.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the hash is computed, the connection stays unauthenticated.
    pub(super) async fn connect(&mut self, json: &[u8]) {
        let connection = self.connection.clone();
        let Ok(mut connect) = Connect::from_json(json) else {
            self.close(CloseReason::ProtocolViolation);
            return;
        };
        self.cookies.fill(&mut connect);
        if self.negotiated.connected {
            connection.forget_all();
        }
        connection.estimate_rtt();
        let outcome = self.authenticate(&connect).await;
        let mut turn = self.begin(&connection);
        match outcome {
            Ok(identity) => self.accept(identity, &connect, &mut turn),
            Err(failure) => self.reject(&failure, &connect, &mut turn),
        }
        self.finish(turn);
    }

    /// Where no credentials are asked for, those given are kept all the same: they count when a reload asks for some.
    async fn authenticate(&self, connect: &Connect) -> Result<Option<Identity>, AuthFailure> {
        let connection = &self.connection;
        let server = &connection.server;
        if !connect.account.is_empty() || connect.new_account {
            return Err(AuthFailure::AccountChosen);
        }
        let authenticator = server.authenticator();
        let evidence = Evidence {
            credentials: Credentials::from(connect),
            nonce: self.nonce.clone(),
            kind: connection.kind,
            remote: connection.remote.map(|address| address.ip()),
            certificate: self.certificate.clone(),
        };
        if !authenticator.needs_blocking(&evidence.credentials, evidence.kind) {
            return authenticator.authenticate(&evidence.attempt()).map(Some);
        }
        let check = task::spawn_blocking(move || authenticator.authenticate(&evidence.attempt()));
        check.await.unwrap_or(Err(AuthFailure::NoCredentials)).map(Some)
    }

    fn accept(&mut self, identity: Option<Identity>, connect: &Connect, turn: &mut Turn<'_>) {
        if !connect.account.is_empty() || connect.new_account {
            // Accounts are the server's business: nobody chooses or makes one by CONNECT.
            self.reject(&AuthFailure::NoCredentials, connect, turn);
            return;
        }
        let headers = connect.headers && self.connection.server.limits().headers;
        if connect.no_responders && !headers {
            self.error(errors::NO_RESPONDERS, turn);
            self.close(CloseReason::NoRespondersRequiresHeaders);
            return;
        }
        if !matches!(connect.protocol, 0 | 1) {
            self.error(errors::CLIENT_PROTOCOL, turn);
            self.close(CloseReason::BadClientProtocolVersion);
            return;
        }
        self.negotiated = Negotiated {
            verbose: connect.verbose,
            pedantic: connect.pedantic,
            no_responders: connect.no_responders,
            asynchronous_info: connect.protocol == 1,
            connected: true,
            // The second INFO is sent once in a connection's life, however often it sends CONNECT.
            greeted: self.negotiated.greeted,
        };
        self.connection.negotiate(connect.echo, headers);
        self.decoder.headers = headers;
        let expires_at = expires_at(identity.as_ref());
        match self.bind(identity, connect) {
            Bound::Done => {}
            Bound::TooManyConnections => {
                self.error(errors::MAX_ACCOUNT_CONNECTIONS, turn);
                self.close(CloseReason::MaxAccountConnectionsExceeded);
                return;
            }
            Bound::NoSubscriptions => {
                self.error(errors::MAX_SUBSCRIPTIONS, turn);
                self.close(CloseReason::MaxSubscriptionsExceeded);
                return;
            }
            Bound::NoAccount => {
                self.error(errors::ACCOUNT_REGISTRATION, turn);
                self.close(CloseReason::MissingAccount);
                return;
            }
        }
        self.timers.connected(Instant::now(), rand::random(), expires_at);
        if self.negotiated.verbose {
            self.connection.send(&mut turn.touched, encode::ok);
        }
        self.connection.server.client_connected(&self.connection);
    }

    fn reject(&mut self, failure: &AuthFailure, connect: &Connect, turn: &mut Turn<'_>) {
        self.error(failure.connect_text(), turn);
        self.connection
            .server
            .authentication_failed(&self.connection, connect, failure);
        self.close(CloseReason::AuthenticationFailure);
    }

    pub(super) fn bind(&mut self, identity: Option<Identity>, connect: &Connect) -> Bound {
        let connection = self.connection.clone();
        let server = &connection.server;
        let account = match server.account_of(identity.as_ref()) {
            Some(account) => account,
            None => return Bound::NoAccount,
        };
        let (limits, server_limits) = (account.limits(), server.limits());
        let (own_payload, own_subscriptions) = identity
            .as_ref()
            .map(|identity| (identity.max_payload, identity.max_subscriptions))
            .unwrap_or_default();
        self.max_payload = server_limits.payload_of(own_payload, limits.max_payload);
        self.max_subscriptions = server_limits.subscriptions_of(own_subscriptions, limits.max_subscriptions);
        let permissions = identity
            .as_ref()
            .and_then(|identity| identity.permissions.clone());
        self.publisher = Some(Publisher::new(
            account.clone(),
            permissions,
            server.is_system(&account),
        ));
        self.decoder.max_payload = self.max_payload;
        let bound = server.bind(&connection, Profile::of(account, identity, connect));
        if bound == Bound::Done && self.max_subscriptions == Some(0) {
            return Bound::NoSubscriptions;
        }
        bound
    }

    /// Binds a client that has not sent CONNECT to the configured `no_auth_user`, if there is one.
    pub(super) fn bind_without_credentials(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.connection.server.has_no_auth_user(self.connection.kind) {
            let attempt = Attempt {
                credentials: &Credentials::default(),
                nonce: None,
                connection_type: self.connection.kind,
                remote: self.connection.remote.map(|address| address.ip()),
                certificate: None,
                now: SystemTime::now(),
            };
            if let Ok(identity) = self.connection.server.authenticator().authenticate(&attempt)
                && self.bind(Some(identity), &Connect::default()) == Bound::Done
            {
                self.timers.connected(Instant::now(), rand::random(), None);
                return true;
            }
        }
        self.reject(&AuthFailure::NoCredentials, &Connect::default(), turn);
        false
    }
}

/// What a client presents, in a form that can go to another thread.
struct Evidence {
    credentials: Credentials,
    nonce: Option<String>,
    kind: ConnectionType,
    remote: Option<IpAddr>,
    certificate: Option<Arc<PeerCertificate>>,
}

impl Evidence {
    fn attempt(&self) -> Attempt<'_> {
        Attempt {
            credentials: &self.credentials,
            nonce: self.nonce.as_deref().map(str::as_bytes),
            connection_type: self.kind,
            remote: self.remote,
            certificate: self.certificate.as_ref(),
            now: SystemTime::now(),
        }
    }
}

/// When an identity has to be turned out, on the monotonic clock.
pub(super) fn expires_at(identity: Option<&Identity>) -> Option<Instant> {
    let expiry = identity?.expiry?;
    Some(Instant::now() + expiry.at.duration_since(SystemTime::now()).unwrap_or_default())
}
