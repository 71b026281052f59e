//! The command line of nats-server, read by the rules of Go's flag package.
//!
//! `-x v`, `-x=v`, `--x v` and `--x=v` are the same. A switch takes its value only behind `=`. Reading stops at the
//! first word that is no flag, or behind `--`. A flag given twice counts the last time. Nothing is looked up or
//! checked here beyond the form of a value.

use std::fmt;

/// What the command line said. `None` means that the flag was not given.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) host: Option<String>,
    pub(super) port: Option<i64>,
    pub(super) name: Option<String>,
    pub(super) client_advertise: Option<String>,
    pub(super) config: Option<String>,
    pub(super) test_config: Option<bool>,
    pub(super) pid_file: Option<String>,
    pub(super) ports_file_dir: Option<String>,
    pub(super) http_port: Option<i64>,
    pub(super) https_port: Option<i64>,
    pub(super) log_file: Option<String>,
    pub(super) log_size_limit: Option<i64>,
    pub(super) syslog: Option<bool>,
    pub(super) remote_syslog: Option<String>,
    pub(super) debug: Option<bool>,
    pub(super) trace: Option<bool>,
    pub(super) trace_verbose: Option<bool>,
    pub(super) debug_trace: Option<bool>,
    pub(super) debug_trace_verbose: Option<bool>,
    pub(super) log_time: Option<bool>,
    pub(super) log_time_utc: Option<bool>,
    pub(super) max_traced_msg_len: Option<i64>,
    pub(super) user: Option<String>,
    pub(super) pass: Option<String>,
    pub(super) token: Option<String>,
    pub(super) tls: Option<bool>,
    pub(super) tls_verify: Option<bool>,
    pub(super) tls_cert: Option<String>,
    pub(super) tls_key: Option<String>,
    pub(super) tls_ca_cert: Option<String>,
    pub(super) jetstream: Option<bool>,
    pub(super) store_dir: Option<String>,
    pub(super) signal: Option<String>,
    pub(super) version: Option<bool>,
    pub(super) help: Option<bool>,
    pub(super) help_tls: Option<bool>,
    pub(super) profile: Option<i64>,
    pub(super) routes: Option<String>,
    pub(super) cluster: Option<String>,
    pub(super) cluster_name: Option<String>,
    pub(super) cluster_listen: Option<String>,
    pub(super) cluster_advertise: Option<String>,
    pub(super) no_advertise: Option<bool>,
    pub(super) connect_retries: Option<i64>,
}

/// Why the flags could not be read, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FlagError {
    /// `-=x` or `---x`.
    Syntax(String),
    /// No such flag.
    Unknown(String),
    /// The line ended where a value was due.
    NoValue(String),
    /// A value of the wrong form.
    Value {
        name: String,
        value: String,
        switch: bool,
    },
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(word) => write!(f, "bad flag syntax: {word}"),
            Self::Unknown(name) => write!(f, "flag provided but not defined: -{name}"),
            Self::NoValue(name) => write!(f, "flag needs an argument: -{name}"),
            Self::Value {
                name,
                value,
                switch: true,
            } => {
                write!(f, "invalid boolean value {value:?} for -{name}: parse error")
            }
            Self::Value {
                name,
                value,
                switch: false,
            } => {
                write!(f, "invalid value {value:?} for flag -{name}: parse error")
            }
        }
    }
}

enum Slot<'a> {
    Text(&'a mut Option<String>),
    Number(&'a mut Option<i64>),
    Switch(&'a mut Option<bool>),
}

impl Flags {
    fn slot(&mut self, name: &str) -> Option<Slot<'_>> {
        use Slot::{Number, Switch, Text};
        Some(match name {
            "a" | "addr" | "net" => Text(&mut self.host),
            "p" | "port" => Number(&mut self.port),
            "n" | "name" | "server_name" => Text(&mut self.name),
            "client_advertise" => Text(&mut self.client_advertise),
            "c" | "config" => Text(&mut self.config),
            "t" => Switch(&mut self.test_config),
            "P" | "pid" => Text(&mut self.pid_file),
            "ports_file_dir" => Text(&mut self.ports_file_dir),
            "m" | "http_port" => Number(&mut self.http_port),
            "ms" | "https_port" => Number(&mut self.https_port),
            "l" | "log" => Text(&mut self.log_file),
            "log_size_limit" => Number(&mut self.log_size_limit),
            "s" | "syslog" => Switch(&mut self.syslog),
            "r" | "remote_syslog" => Text(&mut self.remote_syslog),
            "D" | "debug" => Switch(&mut self.debug),
            "V" | "trace" => Switch(&mut self.trace),
            "VV" => Switch(&mut self.trace_verbose),
            "DV" => Switch(&mut self.debug_trace),
            "DVV" => Switch(&mut self.debug_trace_verbose),
            "T" | "logtime" => Switch(&mut self.log_time),
            "logtime_utc" => Switch(&mut self.log_time_utc),
            "max_traced_msg_len" => Number(&mut self.max_traced_msg_len),
            "user" => Text(&mut self.user),
            "pass" => Text(&mut self.pass),
            "auth" => Text(&mut self.token),
            "tls" => Switch(&mut self.tls),
            "tlsverify" => Switch(&mut self.tls_verify),
            "tlscert" => Text(&mut self.tls_cert),
            "tlskey" => Text(&mut self.tls_key),
            "tlscacert" => Text(&mut self.tls_ca_cert),
            "js" | "jetstream" => Switch(&mut self.jetstream),
            "sd" | "store_dir" => Text(&mut self.store_dir),
            "sl" | "signal" => Text(&mut self.signal),
            "v" | "version" => Switch(&mut self.version),
            "h" | "help" => Switch(&mut self.help),
            "help_tls" => Switch(&mut self.help_tls),
            "profile" => Number(&mut self.profile),
            "routes" => Text(&mut self.routes),
            "cluster" => Text(&mut self.cluster),
            "cluster_name" => Text(&mut self.cluster_name),
            "cluster_listen" => Text(&mut self.cluster_listen),
            "cluster_advertise" => Text(&mut self.cluster_advertise),
            "no_advertise" => Switch(&mut self.no_advertise),
            "connect_retries" => Number(&mut self.connect_retries),
            _ => return None,
        })
    }
}

/// Reads the words behind the program's name. Gives the flags and the words behind them.
pub(super) fn parse(words: &[String]) -> Result<(Flags, &[String]), FlagError> {
    let mut flags = Flags::default();
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else {
            break;
        };
        if name == "-" {
            return Ok((flags, behind));
        }
        rest = behind;
        let name = name.strip_prefix('-').unwrap_or(name);
        if name.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(word.clone()));
        }
        let (name, inline) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        let slot = flags
            .slot(name)
            .ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
        let invalid = |value: &str, switch| FlagError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            switch,
        };
        if let Slot::Switch(switch) = slot {
            let value = inline.unwrap_or("true");
            *switch = Some(parse_switch(value).ok_or_else(|| invalid(value, true))?);
            continue;
        }
        let value = match inline {
            Some(value) => value,
            None => {
                let (value, behind) = rest
                    .split_first()
                    .ok_or_else(|| FlagError::NoValue(name.to_owned()))?;
                rest = behind;
                value
            }
        };
        match slot {
            Slot::Text(text) => *text = Some(value.to_owned()),
            Slot::Number(number) => {
                *number = Some(parse_number(value).ok_or_else(|| invalid(value, false))?);
            }
            Slot::Switch(_) => {}
        }
    }
    Ok((flags, rest))
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A whole number, in decimal or behind `0x`, `0o`, `0b` in that base.
fn parse_number(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let lower = digits.to_ascii_lowercase();
    let magnitude = match lower.as_bytes() {
        [b'0', b'x', ..] => i64::from_str_radix(&lower[2..], 16),
        [b'0', b'o', ..] => i64::from_str_radix(&lower[2..], 8),
        [b'0', b'b', ..] => i64::from_str_radix(&lower[2..], 2),
        _ => lower.parse(),
    };
    magnitude.ok().map(|magnitude| sign * magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn flags(line: &str) -> Flags {
        parse(&words(line)).unwrap().0
    }

    fn refusal(line: &str) -> String {
        parse(&words(line)).unwrap_err().to_string()
    }

    #[test]
    fn the_four_forms_of_a_value_are_the_same() {
        for line in [
            "-p 4300",
            "-p=4300",
            "--p 4300",
            "--p=4300",
            "--port 4300",
            "-port=4300",
        ] {
            assert_eq!(flags(line).port, Some(4300), "{line}");
        }
        assert_eq!(flags("-p -1").port, Some(-1));
        assert_eq!(flags("-p 0x10").port, Some(16));
    }

    #[test]
    fn a_switch_takes_its_value_only_behind_an_equals_sign() {
        assert_eq!(flags("-js").jetstream, Some(true));
        assert_eq!(flags("--jetstream=false").jetstream, Some(false));
        let line = words("-js false -p 1");
        let (flags, rest) = parse(&line).unwrap();
        assert_eq!(flags.jetstream, Some(true));
        assert_eq!(flags.port, None);
        assert_eq!(rest, words("false -p 1"));
    }

    #[test]
    fn reading_stops_at_the_first_word_and_behind_two_dashes() {
        let line = words("-D version -V");
        let (flags, rest) = parse(&line).unwrap();
        assert_eq!((flags.debug, flags.trace), (Some(true), None));
        assert_eq!(rest, words("version -V"));
        let line = words("-D -- -V");
        assert_eq!(parse(&line).unwrap().1, words("-V"));
        let line = words("-D - -V");
        assert_eq!(parse(&line).unwrap().1, words("- -V"));
    }

    #[test]
    fn the_last_of_two_counts() {
        assert_eq!(flags("-p 1 --port 2").port, Some(2));
        assert_eq!(flags("-store_dir a -sd=b").store_dir.as_deref(), Some("b"));
    }

    #[test]
    fn values_may_be_empty_and_contain_equals_signs() {
        assert_eq!(flags("--signal=ldm=12").signal.as_deref(), Some("ldm=12"));
        assert_eq!(flags("--auth=").token.as_deref(), Some(""));
    }

    #[test]
    fn refusals_have_the_words_of_go() {
        assert_eq!(refusal("-zzz"), "flag provided but not defined: -zzz");
        assert_eq!(refusal("--zzz=1"), "flag provided but not defined: -zzz");
        assert_eq!(refusal("-p"), "flag needs an argument: -p");
        assert_eq!(
            refusal("-p abc"),
            r#"invalid value "abc" for flag -p: parse error"#
        );
        assert_eq!(
            refusal("-p +-1"),
            r#"invalid value "+-1" for flag -p: parse error"#
        );
        assert_eq!(
            refusal("-js=maybe"),
            r#"invalid boolean value "maybe" for -js: parse error"#
        );
        assert_eq!(refusal("---p"), "bad flag syntax: ---p");
        assert_eq!(refusal("-=1"), "bad flag syntax: -=1");
    }
}
