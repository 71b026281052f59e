//! A live client under new options: still admitted, and to what?

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use windjet_protocol::wire::{Connect, errors};

use super::CloseReason;
use super::login::expires_at;
use super::session::Session;
use crate::auth::{AuthFailure, Recheck};
use crate::router::{Subscription, Turn};

impl Session {
    /// Checks credentials and permissions again under new options.
    pub(super) fn reload(&mut self, turn: &mut Turn<'_>) {
        let connection = self.connection.clone();
        let server = &connection.server;
        let limits = server.limits();
        self.decoder.max_control_line = limits.max_control_line;
        let Some(profile) = connection.profile() else {
            return;
        };
        let identity = match (&profile.identity, server.auth_required(connection.kind)) {
            (_, false) => None,
            (None, true) => return self.turn_out(&AuthFailure::NoCredentials, turn),
            (Some(identity), true) => match server.authenticator().recheck(identity, SystemTime::now()) {
                Recheck::Keep(identity) => Some(*identity),
                Recheck::Refused(failure) => return self.turn_out(&failure, turn),
                _ => {
                    self.close(CloseReason::MissingAccount);
                    return;
                }
            },
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
        self.close(CloseReason::AuthenticationFailure);
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
