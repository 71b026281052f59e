//! The top level of a configuration file.

use std::path::PathBuf;
use std::time::Duration;

use super::authorization::{self, Authorization};
use super::listen::{self, Address};
use super::operator::Trust;
use super::users::Names;
use super::{Context, accounts, clustering, jetstream, mappings, tls, websocket};
use crate::config::duration::SignedDuration;
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{ListenAddress, Options, UserOptions, WriteTimeoutPolicy};

/// Host of a client listener that names none.
const DEFAULT_HOST: &str = "0.0.0.0";
/// Port of a client listener that names none.
const DEFAULT_PORT: u16 = 4222;
/// Largest number that nats-server takes for a size of a message or a line.
const SIZE_MAX: i64 = i32::MAX as i64;
/// Shortest lame duck duration in seconds.
const LAME_DUCK_MIN: i64 = 30;

/// What needs the whole file before it can be judged.
#[derive(Default)]
struct Top {
    options: Options,
    host: Option<String>,
    port: Option<(i64, Node)>,
    authorization: Option<(Authorization, Node)>,
    accounts: accounts::Accounts,
    accounts_at: Option<Node>,
    names: Names,
    trust: Trust,
}

/// Binds a whole file.
pub(in crate::config) fn bind(cx: &mut Context<'_>, map: &Map) -> Options {
    let mut top = Top::default();
    for (key, node) in map.iter() {
        top.option(cx, key, node);
    }
    top.finish(cx)
}

impl Top {
    fn option(&mut self, cx: &mut Context<'_>, key: &str, node: &Node) {
        let name = key.to_ascii_lowercase();
        let handled = self.listener(cx, &name, node)
            || self.security(cx, &name, node)
            || self.limit(cx, key, &name, node)
            || self.timing(cx, &name, node)
            || self.logging(cx, &name, node)
            || self.other(cx, key, &name, node)
            || self.trust.option(cx, &name, node);
        if !handled {
            cx.unknown(key, node);
        }
    }

    /// Names, addresses and blocks of listeners.
    fn listener(&mut self, cx: &mut Context<'_>, name: &str, node: &Node) -> bool {
        let options = &mut self.options;
        match name {
            "listen" => {
                if let Some(Address { host, port }) = listen::bind(cx, node) {
                    self.host = Some(host);
                    self.port = Some((port, node.clone()));
                }
            }
            "host" | "net" => self.host = cx.string(node),
            "port" => self.port = cx.int(node).map(|port| (port, node.clone())),
            "client_advertise" => options.client_advertise = text(cx, node),
            "server_name" => {
                options.server_name = text(cx, node);
                if options
                    .server_name
                    .as_deref()
                    .is_some_and(|name| name.contains(' '))
                {
                    cx.error(&node.position, "server name cannot contain spaces");
                }
            }
            "http" => {
                options.monitoring.http = listen::bind(cx, node).and_then(|found| found.listen(cx, node, ""));
            }
            "https" => {
                options.monitoring.https =
                    listen::bind(cx, node).and_then(|found| found.listen(cx, node, ""));
            }
            "http_port" | "monitor_port" => options.monitoring.http = port_alone(cx, node),
            "https_port" => options.monitoring.https = port_alone(cx, node),
            "http_base_path" => options.monitoring.base_path = cx.string(node).unwrap_or_default(),
            "tls" => options.tls = tls::bind(cx, node),
            "allow_non_tls" => set(&mut options.allow_non_tls, cx.bool(node)),
            "websocket" | "ws" => options.websocket = websocket::bind(cx, node),
            "cluster" | "gateway" | "leaf" | "leafnodes" | "mqtt" => clustering::bind(cx, name, node),
            _ => return false,
        }
        true
    }

    /// Users, accounts, mappings.
    fn security(&mut self, cx: &mut Context<'_>, name: &str, node: &Node) -> bool {
        let options = &mut self.options;
        match name {
            "authorization" => {
                self.authorization = authorization::bind(cx, node).map(|block| (block, node.clone()));
            }
            "accounts" => {
                self.accounts = accounts::bind(cx, node, &mut self.names);
                self.accounts_at = Some(node.clone());
            }
            "mappings" | "maps" => options.mappings = mappings::bind(cx, node),
            "no_auth_user" => options.auth.no_auth_user = text(cx, node),
            "system_account" | "system" => match &node.value {
                Value::String(name) => {
                    options.system_account = Some(name.clone()).filter(|name| !name.is_empty());
                }
                _ => cx.error(&node.position, "system account name must be a string"),
            },
            "no_system_account" | "no_system" | "no_sys_acc" => {
                set(&mut options.no_system_account, cx.bool(node));
            }
            _ => return false,
        }
        true
    }

    /// Sizes and counts. Zero stands for the default where nats-server has it so.
    fn limit(&mut self, cx: &mut Context<'_>, key: &str, name: &str, node: &Node) -> bool {
        let options = &mut self.options;
        match name {
            "max_connections" | "max_conn" => set(&mut options.max_connections, cx.int(node)),
            "max_subscriptions" | "max_subs" => set(&mut options.max_subscriptions, cx.int(node)),
            "max_sub_tokens" | "max_subscription_tokens" => match cx.int(node) {
                Some(number) if number > i64::from(u8::MAX) => too_big(cx, key, node),
                Some(number) if number <= 0 => negative(cx, key, node),
                number => set(&mut options.max_sub_tokens, number.and_then(unsigned)),
            },
            "max_control_line" => match cx.int(node) {
                Some(number) if number > SIZE_MAX => too_big(cx, key, node),
                number => set(&mut options.max_control_line, not_negative(cx, key, node, number)),
            },
            "max_payload" => match cx.int(node) {
                Some(number) if number > SIZE_MAX => too_big(cx, key, node),
                number => set(&mut options.max_payload, number.filter(|number| *number != 0)),
            },
            "max_pending" => {
                let number = cx.int(node);
                set(&mut options.max_pending, not_negative(cx, key, node, number));
            }
            "max_closed_clients" => {
                let number = cx.int(node);
                set(
                    &mut options.max_closed_clients,
                    not_negative(cx, key, node, number),
                );
            }
            "max_traced_msg_len" => {
                let number = cx.int(node).map(|number| number.max(0));
                set(&mut options.max_traced_msg_len, number.and_then(unsigned));
            }
            "ping_max" => match cx.int(node) {
                Some(0) | None => {}
                Some(number) => options.ping_max = u32::try_from(number.max(0)).unwrap_or(u32::MAX),
            },
            _ => return false,
        }
        true
    }

    /// Intervals and deadlines.
    fn timing(&mut self, cx: &mut Context<'_>, name: &str, node: &Node) -> bool {
        let options = &mut self.options;
        match name {
            "ping_interval" => set(&mut options.ping_interval, positive(cx, name, node)),
            "write_deadline" => set(&mut options.write_deadline, positive(cx, name, node)),
            "write_timeout" => match cx.str(node) {
                Some("default" | "close") => options.write_timeout = WriteTimeoutPolicy::Close,
                Some("retry") => options.write_timeout = WriteTimeoutPolicy::Retry,
                Some(_) => cx.error(
                    &node.position,
                    "write_timeout must be 'default', 'close' or 'retry'",
                ),
                None => {}
            },
            "no_fast_producer_stall" => set(&mut options.no_fast_producer_stall, cx.bool(node)),
            "lame_duck_duration" => {
                let Some(duration) = cx.strict_duration(name, node) else {
                    return true;
                };
                if duration < SignedDuration::from_secs(LAME_DUCK_MIN) {
                    let message = format!("invalid lame_duck_duration of {duration}, minimum is 30 seconds");
                    cx.error(&node.position, message);
                } else {
                    options.lame_duck_duration = duration.clamped();
                }
            }
            "lame_duck_grace_period" => match cx.strict_duration(name, node) {
                Some(period) if period.is_negative() => cx.error(
                    &node.position,
                    "invalid lame_duck_grace_period, needs to be positive",
                ),
                Some(period) if period != SignedDuration::ZERO => {
                    options.lame_duck_grace_period = period.clamped();
                }
                _ => {}
            },
            _ => return false,
        }
        true
    }

    fn logging(&mut self, cx: &mut Context<'_>, name: &str, node: &Node) -> bool {
        let log = &mut self.options.log;
        match name {
            "debug" => set(&mut log.debug, cx.bool(node)),
            "trace" => set(&mut log.trace, cx.bool(node)),
            "trace_verbose" => {
                let flag = cx.bool(node);
                set(&mut log.trace_verbose, flag);
                set(&mut log.trace, flag);
            }
            "trace_headers" => {
                let flag = cx.bool(node);
                set(&mut log.trace_headers, flag);
                set(&mut log.trace, flag);
            }
            "logtime" => set(&mut log.no_time, cx.bool(node).map(|flag| !flag)),
            "logtime_utc" => set(&mut log.utc, cx.bool(node)),
            "logfile" | "log_file" => log.file = path(cx, node),
            "logfile_size_limit" | "log_size_limit" => {
                set(&mut log.file_size_limit, cx.int(node).and_then(super::limit));
            }
            "logfile_max_num" | "log_max_num" => {
                let number = cx
                    .int(node)
                    .map(|number| u32::try_from(number.max(0)).unwrap_or(u32::MAX));
                set(&mut log.file_max_num, number);
            }
            "syslog" => {
                if cx.bool(node) == Some(true) {
                    cx.ignored(name, node);
                }
            }
            "remote_syslog" => {
                if text(cx, node).is_some() {
                    cx.ignored(name, node);
                }
            }
            "pidfile" | "pid_file" => self.options.pid_file = path(cx, node),
            "ports_file_dir" => self.options.ports_file_dir = path(cx, node),
            _ => return false,
        }
        true
    }

    fn other(&mut self, cx: &mut Context<'_>, key: &str, name: &str, node: &Node) -> bool {
        let options = &mut self.options;
        match name {
            "server_tags" => {
                let tags = cx.strings("tags", node).unwrap_or_default();
                for tag in tags {
                    let tag = tag.trim().to_lowercase();
                    if !options.server_tags.contains(&tag) {
                        options.server_tags.push(tag);
                    }
                }
            }
            "server_metadata" => {
                let map = cx.map_for(node, "error parsing metadata");
                for (key, node) in map.into_iter().flat_map(Map::iter) {
                    if let Some(value) = cx.string(node) {
                        options.server_metadata.insert(key.to_owned(), value);
                    }
                }
            }
            "feature_flags" => {
                let map = cx.map_for(node, "error parsing feature flags");
                for (flag, node) in map.into_iter().flat_map(Map::iter) {
                    if let Value::Bool(value) = node.value {
                        options.feature_flags.insert(flag.to_owned(), value);
                    } else {
                        let message = format!(
                            "error parsing feature flag {}: expected bool, got {}",
                            quote(flag),
                            node.value.type_name()
                        );
                        cx.error(&node.position, message);
                    }
                }
            }
            "no_header_support" => set(&mut options.no_header_support, cx.bool(node)),
            "jetstream" => {
                options.jetstream = jetstream::bind(cx, node);
                check_store_dir(cx, options, node);
            }
            "store_dir" | "storedir" => {
                if options.store_dir.is_some() {
                    cx.error(&node.position, "Duplicate 'store_dir' configuration");
                }
                options.store_dir = path(cx, node);
                check_store_dir(cx, options, node);
            }
            "default_js_domain" => {
                let map = cx.map_for(node, "error default_js_domain config");
                for (name, node) in map.into_iter().flat_map(Map::iter) {
                    if let Some(domain) = cx.str(node) {
                        options
                            .default_js_domain
                            .insert(name.to_owned(), domain.to_owned());
                    }
                }
                cx.ignored(key, node);
            }
            "disable_sublist_cache" | "no_sublist_cache" | "proxy_protocol" => {
                if cx.bool(node) == Some(true) {
                    cx.ignored(key, node);
                }
            }
            "prof_port" | "prof_block_rate" => {
                if cx.int(node).is_some_and(|number| number != 0) {
                    cx.ignored(key, node);
                }
            }
            // They are about connections between servers.
            "connect_error_reports" => {
                if let Some(number) = cx.int(node) {
                    options.connect_error_reports = number;
                }
            }
            "reconnect_error_reports" => {
                if let Some(number) = cx.int(node) {
                    options.reconnect_error_reports = number;
                }
            }
            "ocsp" | "ocsp_cache" => match node.value {
                Value::Bool(_) | Value::Map(_) => cx.ignored(key, node),
                ref other => {
                    let message = format!(
                        "error parsing {name} config: unsupported type {}",
                        other.type_name()
                    );
                    cx.error(&node.position, message);
                }
            },
            "proxies" => {
                if cx.map_or(node, "expected proxies to be a map/struct").is_some() {
                    cx.ignored(key, node);
                }
            }
            _ => return false,
        }
        true
    }

    /// Checks across blocks, and the finished options.
    fn finish(mut self, cx: &mut Context<'_>) -> Options {
        self.finish_listener(cx);
        self.finish_authorization(cx);
        self.options.accounts = std::mem::take(&mut self.accounts.accounts);
        self.options.auth.jwt = std::mem::take(&mut self.trust).finish(cx);
        if let Some(jetstream) = &mut self.options.jetstream {
            jetstream.store_dir = jetstream
                .store_dir
                .take()
                .or_else(|| self.options.store_dir.clone());
        }
        if let Some(node) = self.accounts_at.filter(|_| cx.errors.is_empty()) {
            for message in crate::options::check_sharing(&self.options.accounts) {
                cx.error(&node.position, message);
            }
        }
        self.options
    }

    fn finish_listener(&mut self, cx: &mut Context<'_>) {
        let host = self.host.take();
        let port = match self.port.take() {
            None if host.is_none() => return,
            None | Some((0, _)) => Some(DEFAULT_PORT),
            Some((-1, _)) => None,
            Some((port, node)) => match u16::try_from(port) {
                Ok(port) => Some(port),
                Err(_) => {
                    let host = host.as_deref().filter(|host| !host.is_empty());
                    let message = format!(
                        "Error listening on port: {}:{port}, \"listen tcp: address {port}: invalid port\"",
                        host.unwrap_or(DEFAULT_HOST)
                    );
                    cx.error(&node.position, message);
                    return;
                }
            },
        };
        let host = host.filter(|host| !host.is_empty());
        self.options.listen = Some(ListenAddress {
            host: host.unwrap_or_else(|| DEFAULT_HOST.to_owned()),
            port,
        });
    }

    fn finish_authorization(&mut self, cx: &mut Context<'_>) {
        let Some((block, node)) = self.authorization.take() else {
            return;
        };
        let single = !block.user.is_empty();
        let token = !block.token.is_empty();
        if (single || !block.password.is_empty()) && token {
            cx.error(&node.position, "Cannot have a user/pass and token");
        }
        let users: &[UserOptions] = block.users.as_deref().unwrap_or_default();
        if block.users.is_some() {
            if single {
                cx.error(
                    &node.position,
                    "Can not have a single user/pass and a users array",
                );
            }
            if token {
                cx.error(&node.position, "Can not have a token and a users array");
            }
        } else {
            for users in &self.accounts.users {
                if single {
                    cx.error(&users.position, "Can not have a single user/pass and accounts");
                }
                if token {
                    cx.error(&users.position, "Can not have a token and accounts");
                }
            }
        }
        self.names.enter(cx, &node, users);
        let auth = &mut self.options.auth;
        auth.block_defined = true;
        auth.user = single.then_some((block.user, block.password));
        auth.token = token.then_some(block.token);
        auth.users = block.users.unwrap_or_default();
        auth.default_permissions = block.default_permissions;
        auth.timeout = block.timeout;
    }
}

/// The legacy `store_dir` and the one of the block exclude each other; `node` is the later of the two.
fn check_store_dir(cx: &mut Context<'_>, options: &Options, node: &Node) {
    let block = options
        .jetstream
        .as_ref()
        .and_then(|block| block.store_dir.as_ref());
    if options.store_dir.is_some() && block.is_some() {
        cx.error(&node.position, "Duplicate 'store_dir' configuration");
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// Text that counts as absent when it is empty.
fn text(cx: &mut Context<'_>, node: &Node) -> Option<String> {
    cx.string(node).filter(|text| !text.is_empty())
}

fn path(cx: &mut Context<'_>, node: &Node) -> Option<PathBuf> {
    text(cx, node).map(PathBuf::from)
}

/// A port whose host is that of the client listener.
fn port_alone(cx: &mut Context<'_>, node: &Node) -> Option<ListenAddress> {
    let port = cx.int(node)?;
    let address = Address {
        host: String::new(),
        port,
    };
    address.listen(cx, node, "")
}

/// A duration; zero keeps the default.
fn positive(cx: &mut Context<'_>, name: &str, node: &Node) -> Option<Duration> {
    let duration = cx.duration(name, node)?;
    if duration.is_negative() {
        cx.error(&node.position, format!("{name} value can not be negative"));
    }
    duration.positive()
}

/// A number that must not be negative; zero keeps the default.
fn not_negative(cx: &mut Context<'_>, key: &str, node: &Node, number: Option<i64>) -> Option<usize> {
    let number = number?;
    if number < 0 {
        negative(cx, key, node);
    }
    unsigned(number).filter(|number| *number > 0)
}

fn unsigned(number: i64) -> Option<usize> {
    usize::try_from(number).ok()
}

fn too_big(cx: &mut Context<'_>, key: &str, node: &Node) {
    cx.error(&node.position, format!("{key} value is too big"));
}

fn negative(cx: &mut Context<'_>, key: &str, node: &Node) {
    cx.error(&node.position, format!("{key} value can not be negative"));
}
