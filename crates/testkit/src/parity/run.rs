//! Running one script on one server.
//!
//! [`run`] starts the server as the script says, goes through the steps and returns what was recorded. It never
//! judges: comparing is done with the transcripts of two runs. A step that cannot be carried out ends the run with a
//! *fault*, which no comparison forgives.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::deadline::{until, until_some};
use crate::http::{self, Response};
use crate::json::Json;
use crate::process::Signal;
use crate::server::ServerUnderTest;
use crate::tls;

use super::backup::Backup;
use super::normal::{self, Normal};
use super::peer::Peer;
use super::script::Script;
use super::show;
use super::step::{Action, Step, View};
use super::vars::Vars;

/// How long a step usually waits for what it expects.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// How long a server that refuses connections is watched for its end.
const AFTERMATH: Duration = Duration::from_millis(200);

/// What a run brought.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was recorded, normalised.
    pub transcript: Vec<String>,
    /// Why the run could not go through all steps.
    pub fault: Option<String>,
    /// The server's log.
    pub log: Vec<String>,
}

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) server: ServerUnderTest,
    pub(super) peers: BTreeMap<String, Peer>,
    pub(super) normal: Normal,
    pub(super) vars: Vars,
    /// What was recorded: entries of one or more lines.
    pub(super) entries: Vec<Vec<String>>,
    /// Streams that were backed up.
    pub(super) backups: BTreeMap<String, Backup>,
    /// Values that the script gave a name, shown by it in the whole record.
    pub(super) named: Vec<(String, String)>,
    /// How long a step waits for what it expects.
    pub(super) patience: Duration,
    script: &'a Script,
    /// Whether the server is expected to run at the end.
    runs: bool,
    reloads: usize,
}

/// Runs `script` on the server program `binary`; a step waits for what it expects at most for `patience`.
#[must_use]
pub fn run(script: &Script, binary: &Path, patience: Duration) -> Outcome {
    match Run::begin(script, binary, patience) {
        Ok(mut run) => {
            let mut fault = None;
            for step in &script.steps {
                if let Err(error) = run.step(step) {
                    fault = Some(format!("line {}: {error:#}", step.line));
                    break;
                }
            }
            let fault = fault.or_else(|| run.untimely_end());
            let optional = &script.rules.optional;
            run.entries
                .retain(|entry| !optional.iter().any(|line| line.is_match(&entry[0])));
            for line in run.entries.iter_mut().flatten() {
                for (value, name) in &run.named {
                    if line.contains(value) {
                        *line = line.replace(value, name);
                    }
                }
            }
            Outcome {
                transcript: flattened(run.entries),
                fault,
                log: run.server.log(),
            }
        }
        Err(error) => Outcome {
            transcript: Vec::new(),
            fault: Some(format!("the start: {error:#}")),
            log: Vec::new(),
        },
    }
}

impl<'a> Run<'a> {
    fn begin(script: &'a Script, binary: &Path, patience: Duration) -> Result<Self> {
        let vars = Vars::of(script)?;
        let mut setup = ServerUnderTest::of(binary).flags(split(&script.flags)?);
        let mut uses_certificates = script.flags.contains("certs/");
        if let Some(config) = &script.config {
            setup = setup.config(vars.fill(config, None)?);
            uses_certificates |= config.contains("certs/");
        }
        for (name, text) in &script.files {
            setup = setup.file(name, vars.fill(text, None)?);
            uses_certificates |= text.contains("certs/");
        }
        if uses_certificates {
            for (name, pem) in tls::certificates()? {
                setup = setup.file(&format!("certs/{name}"), pem.clone());
            }
        }
        for (name, value) in &script.env {
            setup = setup.env(name, value);
        }
        if let Some(log) = &script.log {
            setup = setup.log_file(log);
        }
        if script.bare {
            setup = setup.bare();
        }
        let server = if script.offline {
            setup.prepare()?
        } else {
            setup.start()?
        };
        let mut normal = Normal::new(script.rules.clone());
        let [dir, programs] = server.private_paths();
        normal.literal(&server.dir().display().to_string(), "<dir>");
        normal.literal(&dir.display().to_string(), "<dir>");
        normal.literal(&format!("{}/nats-server", programs.display()), "<program>");
        let mut run = Self {
            server,
            peers: BTreeMap::new(),
            normal,
            vars,
            entries: Vec::new(),
            backups: BTreeMap::new(),
            named: Vec::new(),
            patience,
            script,
            runs: !script.offline,
            reloads: 0,
        };
        run.learn()?;
        Ok(run)
    }

    /// Takes over what is known of the server once it runs.
    fn learn(&mut self) -> Result<()> {
        let ports = self.server.ports();
        self.normal.ports(ports);
        self.vars.set("dir", &self.server.dir().display().to_string());
        for (name, port) in [
            ("port", ports.client),
            ("http", ports.monitor),
            ("ws", ports.websocket),
        ] {
            if let Some(port) = port {
                self.vars.set(name, &port.to_string());
            }
        }
        if self.runs {
            let pid = self.server.running()?.id().to_string();
            self.vars.set("pid", &pid);
        }
        Ok(())
    }

    pub(super) fn record(&mut self, line: impl Into<String>) {
        self.entries.push(vec![line.into()]);
    }

    /// Puts a lead before the first of some lines and indents the others.
    pub(super) fn record_block(&mut self, lead: &str, lines: Vec<String>) {
        let led = |(index, line)| {
            if index == 0 {
                format!("{lead} {line}")
            } else {
                format!("    {line}")
            }
        };
        self.entries
            .push(lines.into_iter().enumerate().map(led).collect());
    }

    pub(super) fn fill(&self, text: &str) -> Result<String> {
        self.vars.fill(text, None)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match &step.action {
            Action::Peer { name, act } => self.act(name, act),
            Action::Http { method, path, view } => self.http(method, path, view),
            Action::HttpWait { path, pattern } => self.http_wait(&self.fill(path)?, &self.fill(pattern)?),
            Action::Run { lines, flags } => self.program(*lines, flags),
            Action::Check(config) => self.check(&self.fill(config)?),
            Action::Try(config) => self.attempt(&self.fill(config)?),
            Action::Signal(signal) => self.server.signal(*signal),
            Action::Exit => self.exit(),
            Action::Log(pattern) => self.log(&self.fill(pattern)?),
            Action::Logs(pattern) => self.logs(&self.fill(pattern)?),
            Action::Config(text) => self.server.write_config(&self.fill(text)?),
            Action::Write { file, text } => fs::write(self.server.dir().join(file), self.fill(text)?)
                .with_context(|| format!("writing {file}")),
            Action::Reload { full } => self.reload(*full),
            Action::Restart => {
                self.server.restart()?;
                self.reloads = 0;
                self.learn()
            }
            Action::File(file) => self.file(&self.fill(file)?),
            Action::Gone(file) => {
                let file = self.fill(file)?;
                let path = self.server.dir().join(&file);
                until(&format!("{file} to be gone"), self.patience, || !path.exists())?;
                self.record(format!("gone {}", self.normal.text(&file)));
                Ok(())
            }
            Action::List(folder) => self.list(&self.fill(folder)?),
            Action::Pool(names) => self.pool(names),
            Action::Set { name, text } => {
                let text = self.fill(text)?;
                self.vars.set(name, &text);
                Ok(())
            }
            Action::Refused => {
                self.server.wait_until_refusing()?;
                self.record("refused: new connections");
                Ok(())
            }
        }
    }

    fn http(&mut self, method: &str, path: &str, view: &View) -> Result<()> {
        let response = http::request(
            self.server.monitor_addr()?,
            method,
            &self.fill(path)?,
            self.patience,
        )?;
        let status = response
            .status
            .strip_prefix("HTTP/1.1 ")
            .unwrap_or(&response.status);
        let content = response.header("content-type").unwrap_or("none");
        let origin = response.header("access-control-allow-origin").unwrap_or("none");
        let lead = format!(
            "http {method} {}: {status}, type {content}, origin {origin}",
            self.normal.text(path)
        );
        self.record(lead);
        if *view == View::Status {
            return Ok(());
        }
        let text = text_body(&response);
        let lines = match Json::parse(&text) {
            Ok(json) => {
                let style = json.style(text.trim_end());
                let json = match view {
                    View::Only(paths) => self.normal.json(normal::only(json, paths)),
                    View::Shape => normal::shape(&self.normal.json(json)),
                    View::Whole | View::Status => self.normal.json(json),
                };
                show::laid_out(style, &json)
            }
            Err(_) => text.lines().map(|line| self.normal.text(line)).collect(),
        };
        self.record_block("   ", lines);
        Ok(())
    }

    fn http_wait(&mut self, path: &str, pattern: &str) -> Result<()> {
        let addr = self.server.monitor_addr()?;
        let pattern = regex::Regex::new(pattern)?;
        let mut last = String::new();
        let waited = until(&format!("{path} to match {pattern}"), self.patience, || {
            last = http::request(addr, "GET", path, self.patience).map_or_else(
                |error| format!("{error:#}"),
                |response| format!("{}\n{}", response.status, text_body(&response)),
            );
            pattern.is_match(&last)
        });
        waited.with_context(|| format!("the last answer was {last}"))?;
        self.record(format!("http {path} matches"));
        Ok(())
    }

    fn exit(&mut self) -> Result<()> {
        self.runs = false;
        let status = self.server.running()?.wait_exit(self.patience)?;
        self.record(match status.code() {
            Some(code) => format!("exit {code}"),
            None => "ended by a signal".to_owned(),
        });
        Ok(())
    }

    fn log(&mut self, pattern: &str) -> Result<()> {
        let regex = regex::Regex::new(pattern)?;
        let what = format!("the log to have {pattern}");
        let line = self.server.wait_for_log(&what, self.patience, |line| {
            regex.is_match(line).then(|| line.to_owned())
        })?;
        self.record(format!("log {}", self.normal.text(&line)));
        Ok(())
    }

    fn logs(&mut self, pattern: &str) -> Result<()> {
        let regex = regex::Regex::new(pattern)?;
        for line in self.server.log().iter().filter(|line| regex.is_match(line)) {
            self.record(format!("log {}", self.normal.text(line)));
        }
        Ok(())
    }

    fn reload(&mut self, full: bool) -> Result<()> {
        self.server.signal(Signal::Hup)?;
        let nth = self.reloads;
        self.reloads += 1;
        let ends = |log: &[String]| -> Vec<usize> {
            let end = |line: &String| {
                line.contains("] Reloaded server configuration")
                    || line.contains("] Failed to reload server configuration")
            };
            log.iter()
                .enumerate()
                .filter(|(_, line)| end(line))
                .map(|(index, _)| index)
                .collect()
        };
        let (log, end) = until_some("the reload to end", self.patience, || {
            let log = self.server.log();
            let end = ends(&log).get(nth).copied();
            end.map(|end| (log, end))
        })
        .with_context(|| format!("the log:\n{}", self.server.log().join("\n")))?;
        let start = match nth.checked_sub(1) {
            Some(before) => ends(&log)[before] + 1,
            None => 0,
        };
        // A nats-server names these two whether they changed or not, and the others in the order of its own structure.
        let always = ["] Reloaded: authorization users", "] Reloaded: accounts"];
        let mut said: Vec<_> = log[start..end]
            .iter()
            .filter(|line| full && (line.contains("] Reloaded: ") || line.contains("[WRN]")))
            .filter(|line| !always.iter().any(|end| line.ends_with(end)))
            .map(|line| format!("log {}", self.normal.text(line)))
            .collect();
        said.sort();
        for line in said {
            self.record(line);
        }
        self.record(format!("log {}", self.normal.text(&log[end])));
        Ok(())
    }

    fn file(&mut self, file: &str) -> Result<()> {
        let path = self.server.dir().join(file);
        let written = || fs::read_to_string(&path).ok().filter(|text| !text.is_empty());
        let text = until_some(&format!("the file {file}"), self.patience, written)?;
        let shown = self.normal.text(&super::escape::text_of(text.as_bytes()));
        let pid = self.vars.fill("${pid}", None).unwrap_or_default();
        let shown = if shown == pid { "<pid>".to_owned() } else { shown };
        self.record(format!("file {}: {shown}", self.normal.text(file)));
        Ok(())
    }

    fn list(&mut self, folder: &str) -> Result<()> {
        let mut names = Vec::new();
        for entry in
            fs::read_dir(self.server.dir().join(folder)).with_context(|| format!("reading {folder}"))?
        {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        let pid = self
            .vars
            .fill("${pid}", None)
            .unwrap_or_else(|_| "no pid".to_owned());
        let names = names.join(" ").replace(&pid, "<pid>");
        self.record(format!("list {folder}: {}", self.normal.text(&names)));
        Ok(())
    }

    /// A server that ended although the script did not want it to, or that panicked, is a fault.
    fn untimely_end(&mut self) -> Option<String> {
        let runs = self.runs;
        // A server that refuses connections is in lame duck mode, or so freshly dead that the system still says it runs.
        let refuses = self
            .server
            .client_addr()
            .is_ok_and(|addr| TcpStream::connect(addr).is_err());
        let process = self.server.running().ok()?;
        let ended = if runs && refuses {
            until("its end", AFTERMATH, || process.has_exited()).is_ok()
        } else {
            process.has_exited()
        };
        let log = self.server.log();
        let said = log
            .iter()
            .find(|line| line.contains("panicked at") || line.contains("goroutine 1 [running]"));
        if runs && ended {
            let tail = log[log.len().saturating_sub(5)..].join("\n");
            return Some(format!("the server of {} has ended:\n{tail}", self.script.id));
        }
        said.map(|line| format!("the server has panicked: {line}"))
    }
}

/// The lines of all entries. Copies of one message to several subscriptions of a connection come in no particular
/// order from a server; they are put in the order of their sids.
fn flattened(mut entries: Vec<Vec<String>>) -> Vec<String> {
    let same = |a: &Vec<String>, b: &Vec<String>| without_sid(a).is_some_and(|a| Some(a) == without_sid(b));
    for copies in entries.chunk_by_mut(same) {
        copies.sort();
    }
    entries.into_iter().flatten().collect()
}

/// A recorded message without its sid; `None` for anything else.
fn without_sid(entry: &[String]) -> Option<(Vec<&str>, &[String])> {
    let (first, rest) = entry.split_first()?;
    let mut words: Vec<&str> = first.split(' ').collect();
    if words.get(1) != Some(&"<") || !matches!(words.get(2), Some(&("MSG" | "HMSG"))) || words.len() < 5 {
        return None;
    }
    words.remove(4);
    Some((words, rest))
}

fn text_body(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// Cuts a command line at blanks; single or double quotes hold a word together.
pub(super) fn split(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let mut word = String::new();
        while let Some(first) = rest.chars().next().filter(|first| !first.is_whitespace()) {
            rest = &rest[first.len_utf8()..];
            if first == '\'' || first == '"' {
                let Some((quoted, behind)) = rest.split_once(first) else {
                    bail!("a quote is not closed in {line}")
                };
                word.push_str(quoted);
                rest = behind;
            } else {
                word.push(first);
            }
        }
        words.push(word);
        rest = rest.trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_message_are_put_in_order_and_nothing_else_is() {
        let texts = [
            "a < MSG x 2 1 | p",
            "a < MSG x 1 1 | p",
            "a < MSG x 0 1 | q",
            "b < PONG",
            "b < INFO",
        ];
        let entries = texts.map(|text| vec![text.to_owned()]).to_vec();
        let wanted = [
            "a < MSG x 1 1 | p",
            "a < MSG x 2 1 | p",
            "a < MSG x 0 1 | q",
            "b < PONG",
            "b < INFO",
        ];
        assert_eq!(flattened(entries), wanted);
    }

    #[test]
    fn command_lines_are_cut_at_blanks_outside_quotes() {
        assert_eq!(
            split(" -a 'x y' --b=\"c d\" '' e").unwrap(),
            ["-a", "x y", "--b=c d", "", "e"]
        );
        assert!(split("'x").is_err());
    }
}
