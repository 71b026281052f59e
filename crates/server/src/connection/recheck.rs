//! A live client under new options: still admitted, and to what?

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::task;
use windjet_protocol::wire::{Connect, errors};

use super::CloseReason;
use super::login::expires_at;
use super::session::Session;
use crate::auth::{AuthFailure, Identity, Recheck};
use crate::router::{Subscription, Turn};

/// What a client is under new options.
#[derive(Debug)]
pub(super) enum Judged {
    /// Nobody in particular, and no credentials are asked for.
    Open,
    /// Still this one.
    Known(Box<Identity>),
    /// Still admitted, but into another account.
    Moved,
    /// Nobody who is still known.
    Gone,
    /// No longer admitted.
    Refused(AuthFailure),
}

impl Session {
    /// Finds out what the client is under new options. A password that was hashed anew is compared on a thread that
    /// may block.
    pub(super) async fn judge_again(&self) -> Judged {
        let connection = &self.connection;
        let profile = connection.profile();
        let Some(identity) = profile.and_then(|profile| profile.identity.clone()) else {
            // It has not sent CONNECT.
            return if connection.server.auth_required(connection.kind) {
                Judged::Refused(AuthFailure::NoCredentials)
            } else {
                Judged::Open
            };
        };
        let authenticator = connection.server.authenticator();
        let recheck = if authenticator.recheck_needs_blocking(&identity) {
            let check = task::spawn_blocking(move || authenticator.recheck(&identity, SystemTime::now()));
            check
                .await
                .unwrap_or(Recheck::Refused(AuthFailure::NoCredentials))
        } else {
            authenticator.recheck(&identity, SystemTime::now())
        };
        match recheck {
            Recheck::Keep(identity) => Judged::Known(identity),
            Recheck::Refused(failure) => Judged::Refused(failure),
            Recheck::AccountChanged => Judged::Moved,
            Recheck::UserGone => Judged::Gone,
        }
    }

    /// Applies new options, with what the client is under them.
    pub(super) fn reload(&mut self, judged: Judged, turn: &mut Turn<'_>) {
        let connection = self.connection.clone();
        let server = &connection.server;
        let limits = server.limits();
        self.decoder.max_control_line = limits.max_control_line;
        let Some(profile) = connection.profile() else {
            return;
        };
        let identity = match judged {
            Judged::Open => None,
            Judged::Known(identity) => Some(*identity),
            Judged::Refused(failure) => return self.turn_out(&failure, turn),
            Judged::Moved => {
                self.close(CloseReason::MissingAccount);
                return;
            }
            Judged::Gone => {
                self.close(CloseReason::ClientClosed);
                return;
            }
        };
        let account = server.account_of(identity.as_ref());
        if !account.is_some_and(|account| Arc::ptr_eq(&account, &profile.account)) {
            self.close(CloseReason::MissingAccount);
            return;
        }
        self.timers
            .connected(Instant::now(), rand::random(), expires_at(identity.as_ref()));
        let connect = Connect {
            name: profile.name.clone(),
            lang: profile.lang.clone(),
            version: profile.version.clone(),
            ..Connect::default()
        };
        self.bind(identity, &connect);
        self.revoke_denied(turn);
    }

    fn turn_out(&mut self, failure: &AuthFailure, turn: &mut Turn<'_>) {
        self.error(failure.live_text(), turn);
        self.close(match failure {
            AuthFailure::Revoked => CloseReason::CredentialsRevoked,
            AuthFailure::UserExpired | AuthFailure::TimeOfDay | AuthFailure::AccountExpired => {
                CloseReason::AuthenticationExpired
            }
            _ => CloseReason::AuthenticationFailure,
        });
    }

    /// Removes subscriptions that new permissions no longer allow, telling the client each.
    fn revoke_denied(&mut self, turn: &mut Turn<'_>) {
        let Some(permissions) = self
            .publisher
            .as_ref()
            .and_then(|publisher| publisher.permissions.clone())
        else {
            return;
        };
        let connection = self.connection.clone();
        let mut denied: Vec<Arc<Subscription>> = connection
            .subscriptions
            .lock()
            .values()
            .filter(|s| !permissions.can_subscribe(&s.subject, s.queue.as_deref()))
            .cloned()
            .collect();
        denied.sort_by(|a, b| a.sid.cmp(&b.sid));
        for subscription in denied {
            connection.forget(&subscription);
            let text = errors::subscription_revoked(
                &subscription.subject,
                subscription.queue.as_deref(),
                &subscription.sid,
            );
            self.error(&text, turn);
        }
    }
}
