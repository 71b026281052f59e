//! Making two servers' answers comparable.
//!
//! What must differ between two runs (ids, times, ports, paths) is replaced by a name for its *kind*, and only when it
//! has the form of that kind: a time that is not RFC 3339 in UTC stays as it is and shows up as a difference. Field
//! names and the order of fields are never touched; a field is left out only when the specification lets a server
//! omit it ([`FREE`]) or the script says so.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::Regex;

use crate::json::Json;
use crate::server::Ports;

use super::script::Rules;

/// Fields that a server may omit.
const FREE: [&str; 3] = ["git_commit", "xkey", "gomemlimit"];

/// The normaliser of one run of one script.
#[derive(Debug, Default)]
pub(super) struct Normal {
    rules: Rules,
    literals: Vec<(String, String)>,
    ports: Vec<(Regex, String)>,
    /// Ports at the other end of connections.
    remotes: Vec<(Regex, String)>,
    /// Client ids, by number, with the name of the connection.
    clients: BTreeMap<String, String>,
}

impl Normal {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// From now on `text` is shown as `name`.
    pub(super) fn literal(&mut self, text: &str, name: &str) {
        self.literals.push((text.to_owned(), name.to_owned()));
    }

    /// From now on these ports are shown by their names.
    pub(super) fn ports(&mut self, ports: Ports) {
        let named = [
            (ports.client, "<port>"),
            (ports.monitor, "<http>"),
            (ports.websocket, "<ws>"),
        ];
        self.ports = named
            .into_iter()
            .filter_map(|(port, name)| port_rule(port?, name))
            .collect();
    }

    /// From now on this port of a connection is shown by the connection's name.
    pub(super) fn remote(&mut self, port: u16, name: &str) {
        self.remotes.extend(port_rule(port, &format!("<port {name}>")));
    }

    /// From now on this client id is shown by the connection's name.
    pub(super) fn client(&mut self, id: &str, name: &str) {
        self.clients.insert(id.to_owned(), format!("<cid {name}>"));
    }

    /// Normalises a text.
    pub(super) fn text(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (literal, name) in &self.literals {
            if out.contains(literal) {
                out = out.replace(literal, name);
            }
        }
        for (pattern, name) in self.ports.iter().chain(&self.remotes) {
            out = replaced(&out, pattern, name);
        }
        for (pattern, name) in usual() {
            out = replaced(&out, pattern, name);
        }
        for (pattern, name) in &self.rules.masks {
            out = replaced(&out, pattern, name);
        }
        out
    }

    /// Normalises a document.
    pub(super) fn json(&self, json: Json) -> Json {
        self.value("", json)
    }

    fn value(&self, key: &str, json: Json) -> Json {
        match json {
            Json::Object(mut fields) => {
                // A server counts the messages of the system account that it has sent: no two runs have the same number.
                let about_a_server = ["host", "id"]
                    .iter()
                    .all(|name| fields.iter().any(|(found, _)| found == name));
                if let Some((_, count)) = fields
                    .iter_mut()
                    .find(|(name, _)| about_a_server && name == "seq")
                {
                    *count = Json::Scalar("<number>".to_owned());
                }
                let kept = fields
                    .into_iter()
                    .filter(|(name, _)| !FREE.contains(&name.as_str()) && !self.rules.dropped.contains(name));
                Json::Object(
                    kept.map(|(name, value)| {
                        let value = self.value(&name, value);
                        (self.text(&name), value)
                    })
                    .collect(),
                )
            }
            Json::Array(items) => {
                let mut items: Vec<_> = items.into_iter().map(|item| self.value(key, item)).collect();
                if self.rules.sorted.contains(key) {
                    items.sort_by_key(Json::compact);
                }
                Json::Array(items)
            }
            Json::Scalar(raw) => self.scalar(key, raw),
        }
    }

    fn scalar(&self, key: &str, raw: String) -> Json {
        if self.rules.hidden.contains(key) {
            return Json::Scalar("<hidden>".to_owned());
        }
        if raw.starts_with('"') {
            let name = match key {
                "go" => Some("\"<go>\""),
                "nonce" if kinds().nonce.is_match(&raw) => Some("\"<nonce>\""),
                "id" if kinds().unique.is_match(&raw) => Some("\"<unique>\""),
                "rtt" | "uptime" | "idle" if kinds().duration.is_match(&raw) => Some("\"<duration>\""),
                _ => None,
            };
            return Json::Scalar(name.map_or_else(|| self.text(&raw), str::to_owned));
        }
        if !raw.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
            return Json::Scalar(raw);
        }
        let name = match key {
            "client_id" | "cid" | "id" => Some(self.clients.get(&raw).map_or("<cid>", String::as_str)),
            "mem" | "cpu" | "cores" | "gomaxprocs" | "rtt" | "ack_time" => Some("<number>"),
            "active" | "pause_remaining" if raw.len() > 3 && !raw.starts_with('-') => Some("<number>"),
            "expires" if raw.ends_with("000000000") => Some("<whole seconds>"),
            "port" => port(&raw, self.ports.iter().chain(&self.remotes)),
            _ => port(&raw, self.ports.iter()),
        };
        Json::Scalar(name.map_or(raw, str::to_owned))
    }
}

fn port<'a>(raw: &str, mut known: impl Iterator<Item = &'a (Regex, String)>) -> Option<&'a str> {
    known
        .find(|(pattern, _)| pattern.is_match(raw))
        .map(|(_, name)| name.as_str())
}

fn port_rule(port: u16, name: &str) -> Option<(Regex, String)> {
    Regex::new(&format!(r"\b{port}\b"))
        .ok()
        .map(|pattern| (pattern, name.to_owned()))
}

/// Names and kinds of a document's fields, for comparing shape without values. Of an array the distinct shapes of its
/// elements are kept.
pub(super) fn shape(json: &Json) -> Json {
    match json {
        Json::Object(fields) => Json::Object(
            fields
                .iter()
                .map(|(name, value)| (name.clone(), shape(value)))
                .collect(),
        ),
        Json::Array(items) => {
            let mut shapes: Vec<Json> = Vec::new();
            for item in items {
                let shape = shape(item);
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
            Json::Array(shapes)
        }
        Json::Scalar(raw) => Json::Scalar(
            match raw.as_bytes().first() {
                Some(b'"') => "string",
                Some(b't' | b'f') => "boolean",
                Some(b'n') => "null",
                _ => "number",
            }
            .to_owned(),
        ),
    }
}

/// Keeps only what lies on one of `paths`: names joined by dots, `*` for every element or name.
pub(super) fn only(json: Json, paths: &[String]) -> Json {
    let paths: Vec<Vec<&str>> = paths.iter().map(|path| path.split('.').collect()).collect();
    keep(json, &paths.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn keep(json: Json, paths: &[&[&str]]) -> Json {
    if paths.iter().any(|path| path.is_empty()) {
        return json;
    }
    let inside = |name: &str| -> Vec<&[&str]> {
        paths
            .iter()
            .filter(|path| path[0] == name || path[0] == "*")
            .map(|path| &path[1..])
            .collect()
    };
    match json {
        Json::Object(fields) => {
            let kept = fields.into_iter().filter_map(|(name, value)| {
                let paths = inside(&name);
                (!paths.is_empty()).then(|| (name, keep(value, &paths)))
            });
            Json::Object(kept.collect())
        }
        Json::Array(items) => Json::Array(items.into_iter().map(|item| keep(item, &inside("*"))).collect()),
        scalar => scalar,
    }
}

struct Kinds {
    nonce: Regex,
    unique: Regex,
    duration: Regex,
}

fn kinds() -> &'static Kinds {
    static KINDS: OnceLock<Kinds> = OnceLock::new();
    KINDS.get_or_init(|| Kinds {
        nonce: pattern(r#"^"[A-Za-z0-9_-]{15}"$"#),
        unique: pattern(r#"^"[A-Za-z0-9]{22}"$"#),
        duration: pattern(r#"^"((\d+[ydhms])+|\d+(\.\d+)?(ns|µs|ms|s))"$"#),
    })
}

fn usual() -> &'static [(Regex, &'static str)] {
    static USUAL: OnceLock<Vec<(Regex, &'static str)>> = OnceLock::new();
    USUAL.get_or_init(|| {
        [
            (
                r"^\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[",
                "[pid] date time [",
            ),
            (r"^\[\d+\] \[", "[pid] ["),
            (r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", "date time "),
            (r"\bN[A-Z2-7]{55}\b", "<server-id>"),
            (r"\bX[A-Z2-7]{55}\b", "<xkey>"),
            (r"\b2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", "<time>"),
            (r"(\$JS\.ACK\.\S+?)\.1\d{18}\.(\d+)", "$1.<ns>.$2"),
            (r"(\$JS\.FC\.\S+)\.[0-9A-Za-z]{4}\b", "$1.<id>"),
            (
                r"(\$JS\.SNAPSHOT\.ACK\.[^. ]+)\.[0-9A-Za-z]+\.(\d+)",
                "$1.<id>.$2",
            ),
            (r"(\$JS\.SNAPSHOT\.RESTORE\.[^. ]+)\.[0-9A-Za-z]+", "$1.<id>"),
            (r"\b_IN\.[0-9A-Za-z]+\.\d+\b", "<inbox>"),
            (r"\b_R_\.[A-Za-z0-9]+\.[A-Za-z0-9]+", "_R_.<id>"),
            (r"\bsha256:[0-9a-f]{64}", "sha256:<digest>"),
            (r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", "<token>"),
            (r"\b([cw]id):\d+\b", "$1:<cid>"),
            (r"\bnats-server_\d+\.ports", "nats-server_<pid>.ports"),
        ]
        .into_iter()
        .map(|(text, name)| (pattern(text), name))
        .collect()
    })
}

#[expect(
    clippy::expect_used,
    reason = "the patterns are constants, and a test compiles them all"
)]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a well-formed pattern")
}

fn replaced(text: &str, pattern: &Regex, name: &str) -> String {
    pattern.replace_all(text, name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(normal: &Normal, text: &str) -> String {
        normal.json(Json::parse(text).unwrap()).compact()
    }

    #[test]
    fn volatile_values_become_their_kind_and_fields_stay() {
        let mut normal = Normal::default();
        normal.client("7", "a");
        normal.ports(Ports {
            client: Some(4333),
            ..Ports::default()
        });
        let text = r#"{"cid":7,"port":4333,"now":"2026-12-02T00:54:23.032244407Z","rtt":"2.4ms","subs":4333,"xkey":"X"}"#;
        let want = r#"{"cid":<cid a>,"port":<port>,"now":"<time>","rtt":"<duration>","subs":<port>}"#;
        assert_eq!(normalised(&normal, text), want);
    }

    #[test]
    fn a_value_of_the_wrong_form_stays_visible() {
        let text = r#"{"now":"yesterday","rtt":"fast","id":"short","nonce":"x"}"#;
        assert_eq!(normalised(&Normal::default(), text), text);
    }

    #[test]
    fn log_lines_lose_only_what_is_volatile() {
        let line = "[16006] 2026/12/02 03:28:36.607604 [INF] Server is ready";
        assert_eq!(
            Normal::default().text(line),
            "[pid] date time [INF] Server is ready"
        );
        assert_eq!(Normal::default().text("2026-12-02 [INF] x"), "2026-12-02 [INF] x");
    }

    #[test]
    fn shapes_and_paths() {
        let json = Json::parse(r#"{"a":[{"b":1,"c":"x"},{"b":2,"c":"y"}],"d":null}"#).unwrap();
        assert_eq!(
            shape(&json).compact(),
            r#"{"a":[{"b":number,"c":string}],"d":null}"#
        );
        assert_eq!(
            only(json, &["a.*.b".to_owned()]).compact(),
            r#"{"a":[{"b":1},{"b":2}]}"#
        );
    }

    #[test]
    fn scripts_can_hide_drop_and_sort() {
        let mut rules = Rules::default();
        rules.hidden.insert("h".to_owned());
        rules.dropped.insert("d".to_owned());
        rules.sorted.insert("s".to_owned());
        let text = r#"{"h":1,"d":2,"s":[3,1,2]}"#;
        assert_eq!(
            normalised(&Normal::new(rules), text),
            r#"{"h":<hidden>,"s":[1,2,3]}"#
        );
    }
}
