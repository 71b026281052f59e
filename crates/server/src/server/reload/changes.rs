//! What a reload changes, in the words of nats-server.
//!
//! Called by a reload once its options are found usable. Secrets are named and never shown. The order is that of
//! nats-server's own list.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Applied;
use crate::config::{format_duration, format_size};
use crate::options::{Options, UserOptions, WriteTimeoutPolicy};
use crate::server::default_auth_timeout;

/// The options that differ and can be applied.
pub(super) fn between(old: &Options, new: &Options) -> Vec<Applied> {
    let mut list = List(Vec::new());
    logging(&mut list, old, new);
    authorization(&mut list, old, new);
    if old.tls != new.tls || old.allow_non_tls != new.allow_non_tls {
        let state = if new.tls.is_some() { "enabled" } else { "disabled" };
        list.push("tls", Some(state.to_owned()));
    }
    list.named("websocket tls", differ(&old.websocket, &new.websocket));
    limits(&mut list, old, new);
    jetstream(&mut list, old, new);
    list.value("pid_file", &path(&old.pid_file), &path(&new.pid_file));
    list.value(
        "ports_file_dir",
        &path(&old.ports_file_dir),
        &path(&new.ports_file_dir),
    );
    list.value(
        "client_advertise",
        &text(&old.client_advertise),
        &text(&new.client_advertise),
    );
    list.value(
        "connect_error_reports",
        &old.connect_error_reports,
        &new.connect_error_reports,
    );
    list.value(
        "reconnect_error_reports",
        &old.reconnect_error_reports,
        &new.reconnect_error_reports,
    );
    list.named("tags", old.server_tags != new.server_tags);
    list.named("metadata", old.server_metadata != new.server_metadata);
    let stalled = match new.no_fast_producer_stall {
        true => "fast producers will not be stalled",
        false => "fast producers will be stalled",
    };
    list.named(stalled, old.no_fast_producer_stall != new.no_fast_producer_stall);
    list.0
}

fn logging(list: &mut List, old: &Options, new: &Options) {
    let (before, after) = (&old.log, &new.log);
    list.value("debug", &before.debug, &after.debug);
    list.value("trace", &before.trace, &after.trace);
    list.value("trace_verbose", &before.trace_verbose, &after.trace_verbose);
    list.value("trace_headers", &before.trace_headers, &after.trace_headers);
    list.value("logtime", &!before.no_time, &!after.no_time);
    list.value("logtime_utc", &before.utc, &after.utc);
    list.value("log_file", &path(&before.file), &path(&after.file));
    list.value("log_size_limit", &before.file_size_limit, &after.file_size_limit);
    list.value("log_max_num", &before.file_max_num, &after.file_max_num);
    list.value(
        "max_traced_msg_len",
        &old.max_traced_msg_len,
        &new.max_traced_msg_len,
    );
}

fn authorization(list: &mut List, old: &Options, new: &Options) {
    let (before, after) = (&old.auth, &new.auth);
    let users = |users: &[UserOptions]| format!("{users:?}");
    list.named(
        "authorization users",
        users(&before.users) != users(&after.users)
            || before.default_permissions != after.default_permissions
            || before.no_auth_user != after.no_auth_user
            || before.block_defined != after.block_defined
            || differ(&before.jwt, &after.jwt),
    );
    list.named(
        "accounts",
        differ(&old.accounts, &new.accounts) || old.mappings != new.mappings,
    );
    let single = |user: &Option<(String, String)>| user.clone().unwrap_or_default();
    let ((old_name, old_password), (name, password)) = (single(&before.user), single(&after.user));
    list.named("authorization username", old_name != name);
    list.named("authorization password", old_password != password);
    list.named("authorization token", before.token != after.token);
    let timeout = |options: &Options| {
        let configured = options.auth.timeout;
        configured.unwrap_or_else(|| default_auth_timeout(options.tls.as_ref()))
    };
    list.value(
        "authorization timeout",
        &timeout(old).as_secs_f64(),
        &timeout(new).as_secs_f64(),
    );
}

fn jetstream(list: &mut List, old: &Options, new: &Options) {
    list.named("JetStream", old.jetstream.is_some() != new.jetstream.is_some());
    let (Some(before), Some(after)) = (&old.jetstream, &new.jetstream) else {
        return;
    };
    list.named("JetStream limits", differ(&before.limits, &after.limits));
    let size = |size: Option<u64>| size.map(format_size).unwrap_or_default();
    list.value(
        "JetStream max_mem_store",
        &size(before.max_memory_store),
        &size(after.max_memory_store),
    );
    list.value(
        "JetStream max_file_store",
        &size(before.max_file_store),
        &size(after.max_file_store),
    );
}

fn limits(list: &mut List, old: &Options, new: &Options) {
    list.value("max_connections", &old.max_connections, &new.max_connections);
    list.value("max_control_line", &old.max_control_line, &new.max_control_line);
    list.value("max_payload", &old.max_payload, &new.max_payload);
    list.value("max_sub_tokens", &old.max_sub_tokens, &new.max_sub_tokens);
    list.duration("ping_interval", old.ping_interval, new.ping_interval);
    list.value("ping_max", &old.ping_max, &new.ping_max);
    list.duration("write_deadline", old.write_deadline, new.write_deadline);
    let policy = |options: &Options| match options.write_timeout {
        WriteTimeoutPolicy::Close => "close",
        WriteTimeoutPolicy::Retry => "retry",
    };
    list.value("write_timeout", &policy(old), &policy(new));
}

fn differ<T: fmt::Debug>(old: &T, new: &T) -> bool {
    format!("{old:?}") != format!("{new:?}")
}

fn path(value: &Option<PathBuf>) -> String {
    value
        .as_ref()
        .map(|path| path.display().to_string())
        .unwrap_or_default()
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

struct List(Vec<Applied>);

impl List {
    fn push(&mut self, option: &'static str, value: Option<String>) {
        self.0.push(Applied { option, value });
    }

    fn named(&mut self, option: &'static str, differs: bool) {
        if differs {
            self.push(option, None);
        }
    }

    fn value<T: PartialEq + fmt::Display>(&mut self, option: &'static str, old: &T, new: &T) {
        if old != new {
            self.push(option, Some(new.to_string()));
        }
    }

    fn duration(&mut self, option: &'static str, old: Duration, new: Duration) {
        self.value(option, &format_duration(old), &format_duration(new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(change: impl FnOnce(&mut Options)) -> Vec<String> {
        let old = Options::default();
        let mut new = old.clone();
        change(&mut new);
        between(&old, &new).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changes_read_as_in_the_log_of_nats_server() {
        assert_eq!(
            report(|new| {
                new.log.debug = true;
                new.log.no_time = true;
                new.max_payload = 2000;
                new.write_deadline = Duration::from_millis(1500);
                new.server_tags = vec!["a".to_owned()];
                new.no_fast_producer_stall = true;
            }),
            [
                "debug = true",
                "logtime = false",
                "max_payload = 2000",
                "write_deadline = 1.5s",
                "tags",
                "fast producers will not be stalled",
            ]
        );
        assert_eq!(report(|_| ()), Vec::<String>::new());
    }

    #[test]
    fn secrets_are_named_and_not_shown() {
        assert_eq!(
            report(|new| {
                new.auth.user = Some(("name".to_owned(), "hidden".to_owned()));
                new.auth.token = Some("hidden".to_owned());
                new.auth.timeout = Some(Duration::from_millis(500));
            }),
            [
                "authorization username",
                "authorization password",
                "authorization token",
                "authorization timeout = 0.5",
            ]
        );
    }

    #[test]
    fn tls_gives_more_time_to_authenticate() {
        assert_eq!(
            report(|new| new.tls = Some(crate::options::TlsOptions::default())),
            ["authorization timeout = 3", "tls = enabled"]
        );
    }
}
