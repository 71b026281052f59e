//! The steps of a script: what one line tells the runner to do. The page `docs/parity-scripts.md` describes them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::Signal;

/// A step and the line it stands on.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) line: usize,
    pub(super) action: Action,
}

/// What a step does. Texts are kept as written; variables and escapes are resolved when the step runs.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// Something on the connection of this name.
    Peer { name: String, act: Act },
    /// Get a page and record it.
    Http {
        method: String,
        path: String,
        view: View,
    },
    /// Get a page until its body matches.
    HttpWait { path: String, pattern: String },
    /// Run the program to its end and record what it says, at most so many lines of each stream.
    Run { lines: Option<usize>, flags: String },
    /// Check a configuration with `-t`.
    Check(String),
    /// Start a second server on a configuration: record how it ends, or that it gets ready.
    Try(String),
    /// Send the server a signal.
    Signal(Signal),
    /// Wait for the server's end.
    Exit,
    /// Wait until a line of the log matches, and record it.
    Log(String),
    /// Record all lines of the log that match by now.
    Logs(String),
    /// Rewrite the configuration file.
    Config(String),
    /// Write any file.
    Write { file: String, text: String },
    /// Make the server read its configuration again and record what came of it, or all it says.
    Reload { full: bool },
    /// Kill the server and start it again.
    Restart,
    /// Record a file's content.
    File(String),
    /// Wait until a file is gone.
    Gone(String),
    /// Record the names in a folder.
    List(String),
    /// Barrier on several connections; record what they received together, without names.
    Pool(Vec<String>),
    /// Set a variable.
    Set { name: String, text: String },
    /// Record that new connections are refused.
    Refused,
}

/// What is recorded of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum View {
    /// All of it.
    Whole,
    /// Status and type only.
    Status,
    /// Names and kinds of the fields, no values.
    Shape,
    /// Only the fields on these paths.
    Only(Vec<String>),
}

impl View {
    fn only(names: &str) -> Self {
        Self::Only(names.split(',').map(|name| name.trim().to_owned()).collect())
    }
}

/// What happens on a connection.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Connect and read INFO; record it whole if asked.
    Open { full: bool },
    /// Connect without reading.
    Dial(Door),
    /// Read INFO.
    Info { full: bool },
    /// Connect if need be, CONNECT and PING, read up to PONG and the second INFO.
    Connect { full: bool, options: Options },
    /// Send text, with a line end or without.
    Send { text: String, line_end: bool },
    /// Publish a text, with headers or without; sizes are counted.
    Publish {
        target: String,
        headers: Option<String>,
        text: String,
    },
    /// PING, and read up to PONG.
    Sync,
    /// Read so many operations.
    Read(usize),
    /// Read until an operation matches.
    Until(String),
    /// Read to the end of the stream.
    Eof,
    /// Nothing arrives for this long.
    Quiet(Duration),
    /// Read and show this many bytes as they are.
    Raw(usize),
    /// Read and show one line as it is.
    Line,
    /// From now on record PINGs instead of answering them.
    Pings,
    /// Close the connection.
    Close,
    /// Close it with a reset.
    Reset,
    /// End the sending half.
    Fin,
    /// TLS handshake.
    Tls {
        certificate: Option<String>,
        name: String,
        old: bool,
    },
    /// WebSocket handshake on this path with changed headers.
    Upgrade { path: String, headers: Vec<String> },
    /// Send one WebSocket frame.
    Frame { head: u8, masked: bool, text: String },
    /// Read and show this many WebSocket frames.
    Frames(usize),
    /// Put the first group of the pattern's last match in what was received into a variable.
    Capture { variable: String, pattern: String },
    /// The same, and show the value by the variable's name in the whole record.
    Name { variable: String, pattern: String },
    /// Send a message with a reply subject of its own, and look at the answers.
    Ask(Ask),
    /// Back a stream up under a name; fields of the request.
    BackUp {
        backup: String,
        stream: String,
        fields: String,
    },
    /// Restore a backup as a stream; changes of the configuration.
    Restore {
        backup: String,
        stream: String,
        fields: String,
    },
}

/// A question.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) kind: AskKind,
    pub(super) subject: String,
    pub(super) headers: Option<String>,
    pub(super) text: String,
}

/// What is done with the answers.
#[derive(Debug, Clone)]
pub(super) enum AskKind {
    /// Record the first one.
    Once(View),
    /// Record all up to one that matches.
    Many(String),
    /// Record that there is none.
    Mute,
    /// Ask again until the answer matches.
    Until(String),
    /// Ask so many times, with `#` as the number, and record the last answer.
    Fill(usize),
}

/// Which of the server's ports to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Client,
    Websocket,
    Monitor,
}

/// The options of a CONNECT.
#[derive(Debug, Clone)]
pub(super) enum Options {
    /// The usual ones, changed by these.
    Usual(Option<String>),
    /// Exactly this text.
    Exact(String),
}

/// Words that cannot name a connection.
const RESERVED: [&str; 20] = [
    "http", "run", "check", "try", "signal", "exit", "log", "logs", "config", "write", "reload", "restart",
    "file", "gone", "list", "pool", "set", "refused", "start", "kill",
];

impl Action {
    /// Reads the step in `text`; `block` gives the indented lines behind it.
    pub(super) fn parse(text: &str, block: impl FnOnce() -> String) -> Result<Self> {
        let (first, rest) = cut(text);
        let (actor, lines) = match first.split_once('/') {
            Some((actor, count)) => (
                actor,
                Some(count.parse().context("a number of lines behind the slash")?),
            ),
            None => (first, None),
        };
        Ok(match actor {
            "http" => http(rest)?,
            "run" => Self::Run {
                lines,
                flags: rest.to_owned(),
            },
            "check" => Self::Check(rest.to_owned()),
            "try" => Self::Try(rest.to_owned()),
            "signal" => Self::Signal(signal(rest)?),
            "exit" => Self::Exit,
            "log" => Self::Log(some(rest)?),
            "logs" => Self::Logs(some(rest)?),
            "config" => Self::Config(block()),
            "write" => Self::Write {
                file: some(rest)?,
                text: block(),
            },
            "reload" => Self::Reload { full: rest == "full" },
            "restart" => Self::Restart,
            "file" => Self::File(some(rest)?),
            "gone" => Self::Gone(some(rest)?),
            "list" => Self::List(some(rest)?),
            "pool" => Self::Pool(rest.split_whitespace().map(str::to_owned).collect()),
            "set" => {
                let (name, text) = cut(rest);
                Self::Set {
                    name: some(name)?,
                    text: text.to_owned(),
                }
            }
            "refused" => Self::Refused,
            word if RESERVED.contains(&word) || !word.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                bail!("{word:?} is neither a step nor a name for a connection")
            }
            name => Self::Peer {
                name: name.to_owned(),
                act: act(rest)?,
            },
        })
    }
}

fn http(text: &str) -> Result<Action> {
    let (method, rest) = cut(text);
    let (path, rest) = cut(rest);
    if method == "wait" {
        return Ok(Action::HttpWait {
            path: some(path)?,
            pattern: some(rest)?,
        });
    }
    let (word, names) = cut(rest);
    let view = match word {
        "" => View::Whole,
        "status" => View::Status,
        "shape" => View::Shape,
        "only" => View::only(names),
        other => bail!("no view of a page is called {other:?}"),
    };
    Ok(Action::Http {
        method: method.to_owned(),
        path: some(path)?,
        view,
    })
}

fn signal(name: &str) -> Result<Signal> {
    Ok(match name {
        "HUP" => Signal::Hup,
        "INT" => Signal::Int,
        "TERM" => Signal::Term,
        "KILL" => Signal::Kill,
        "USR1" => Signal::Usr1,
        "USR2" => Signal::Usr2,
        other => bail!("no signal is called {other:?}"),
    })
}

fn act(text: &str) -> Result<Act> {
    let (verb, rest) = cut(text);
    let full = rest == "full";
    Ok(match verb {
        "open" => Act::Open { full },
        "dial" => Act::Dial(match rest {
            "" => Door::Client,
            "ws" => Door::Websocket,
            "http" => Door::Monitor,
            other => bail!("no door is called {other:?}"),
        }),
        "info" => Act::Info { full },
        "connect" => {
            let (word, behind) = cut(rest);
            let (full, options) = if word == "full" {
                (true, behind)
            } else {
                (false, rest)
            };
            let options = match options.strip_prefix('+') {
                Some(changes) => Options::Usual(Some(changes.to_owned())),
                None if options.is_empty() => Options::Usual(None),
                None => Options::Exact(options.to_owned()),
            };
            Act::Connect { full, options }
        }
        ">" => Act::Send {
            text: rest.to_owned(),
            line_end: true,
        },
        ">>" => Act::Send {
            text: rest.to_owned(),
            line_end: false,
        },
        "pub" => {
            let (target, text) = rest.split_once('|').context("subject | text")?;
            Act::Publish {
                target: target.trim().to_owned(),
                headers: None,
                text: behind_blank(text),
            }
        }
        "hpub" => {
            let (target, rest) = rest.split_once('|').context("subject | headers | text")?;
            let (headers, text) = rest.split_once('|').context("subject | headers | text")?;
            let headers = Some(headers.trim().to_owned());
            Act::Publish {
                target: target.trim().to_owned(),
                headers,
                text: behind_blank(text),
            }
        }
        "sync" => Act::Sync,
        "read" => Act::Read(rest.parse().context("how many operations")?),
        "until" => Act::Until(some(rest)?),
        "eof" => Act::Eof,
        "quiet" => Act::Quiet(Duration::from_millis(
            rest.parse().context("how many milliseconds")?,
        )),
        "raw" => Act::Raw(rest.parse().context("how many bytes")?),
        "line" => Act::Line,
        "pings" => Act::Pings,
        "close" => Act::Close,
        "reset" => Act::Reset,
        "fin" => Act::Fin,
        "tls" => {
            let value = |key: &str| {
                rest.split_whitespace()
                    .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            };
            Act::Tls {
                certificate: value("cert").map(str::to_owned),
                name: value("name").unwrap_or("localhost").to_owned(),
                old: rest.split_whitespace().any(|word| word == "old"),
            }
        }
        "upgrade" => {
            let mut parts = rest.split(" | ").map(|part| part.trim().to_owned());
            let path = parts
                .next()
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| "/".to_owned());
            Act::Upgrade {
                path,
                headers: parts.collect(),
            }
        }
        "frame" => {
            let (head, text) = cut(rest);
            let masked = head.ends_with('m');
            let head = u8::from_str_radix(head.trim_end_matches('m'), 16)
                .context("the first byte in hexadecimal")?;
            Act::Frame {
                head,
                masked,
                text: text.to_owned(),
            }
        }
        "frames" => Act::Frames(rest.parse().context("how many frames")?),
        "capture" | "name" => {
            let (variable, pattern) = cut(rest);
            let (variable, pattern) = (some(variable)?, some(pattern)?);
            if verb == "name" {
                Act::Name { variable, pattern }
            } else {
                Act::Capture { variable, pattern }
            }
        }
        "backup" | "restore" => {
            let (target, fields) = rest.split_once('|').unwrap_or((rest, ""));
            let (backup, stream) = cut(target);
            let (backup, stream, fields) = (some(backup)?, some(stream.trim())?, behind_blank(fields));
            if verb == "backup" {
                Act::BackUp {
                    backup,
                    stream,
                    fields,
                }
            } else {
                Act::Restore {
                    backup,
                    stream,
                    fields,
                }
            }
        }
        "api" | "req" | "hreq" | "many" | "hmany" | "mute" | "hmute" | "await" | "fill" | "hfill" => {
            Act::Ask(ask(verb, rest)?)
        }
        other => bail!("a connection cannot {other:?}"),
    })
}

fn ask(verb: &str, text: &str) -> Result<Ask> {
    let plain = verb.trim_start_matches('h');
    // A pattern may have a bar in it, so it is taken before the text is split at one.
    let (first, text) = match plain {
        "many" | "await" | "fill" => cut(text),
        _ => ("", text),
    };
    let (target, rest) = text.split_once('|').unwrap_or((text, ""));
    let (headers, text) = if verb.starts_with('h') {
        let (headers, text) = rest.split_once('|').context("subject | headers | text")?;
        (Some(headers.trim().to_owned()), text)
    } else {
        (None, rest)
    };
    let (kind, target) = match plain {
        "many" => (AskKind::Many(some(first)?), target),
        "await" => (AskKind::Until(some(first)?), target),
        "fill" => (AskKind::Fill(first.parse().context("how many times")?), target),
        "mute" => (AskKind::Mute, target),
        _ => match target.split_once(" only ") {
            Some((subject, names)) => (AskKind::Once(View::only(names)), subject),
            None => (AskKind::Once(View::Whole), target),
        },
    };
    let subject = some(target.trim())?;
    // The subjects of the JetStream API are long, and most questions are to it.
    let api = verb == "api" || (verb == "await" && !subject.starts_with('$'));
    Ok(Ask {
        kind,
        subject: if api {
            format!("$JS.API.{subject}")
        } else {
            subject
        },
        headers,
        text: behind_blank(text),
    })
}

/// Splits off the first word; the rest keeps its inner and trailing blanks.
fn cut(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    match text.split_once(' ') {
        Some((word, rest)) => (
            word,
            if word.starts_with('>') {
                rest
            } else {
                rest.trim_start()
            },
        ),
        None => (text, ""),
    }
}

fn behind_blank(text: &str) -> String {
    text.strip_prefix(' ').unwrap_or(text).to_owned()
}

fn some(text: &str) -> Result<String> {
    if text.is_empty() {
        bail!("something is missing at the end");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sent_text_keeps_its_blanks() {
        let Ok(Action::Peer {
            act: Act::Send { text, line_end },
            ..
        }) = Action::parse("a >  PUB x  1 ", String::new)
        else {
            panic!("not a send")
        };
        assert_eq!((text.as_str(), line_end), (" PUB x  1 ", true));
    }

    #[test]
    fn a_question_is_cut_into_pattern_subject_headers_and_text() {
        let Ok(Action::Peer {
            act: Act::Ask(ask), ..
        }) = Action::parse("a hmany x|y foo.bar | A: b | te|xt", String::new)
        else {
            panic!("not a question")
        };
        assert!(matches!(&ask.kind, AskKind::Many(pattern) if pattern == "x|y"));
        assert_eq!((ask.subject.as_str(), ask.text.as_str()), ("foo.bar", "te|xt"));
        assert_eq!(ask.headers.as_deref(), Some("A: b"));
    }

    #[test]
    fn the_prefix_of_the_api_is_added_where_it_is_meant() {
        for (text, subject) in [
            ("a api INFO", "$JS.API.INFO"),
            ("a await x INFO", "$JS.API.INFO"),
            ("a await x $JS.hub.API.INFO", "$JS.hub.API.INFO"),
            ("a req INFO", "INFO"),
        ] {
            let Ok(Action::Peer {
                act: Act::Ask(ask), ..
            }) = Action::parse(text, String::new)
            else {
                panic!("not a question")
            };
            assert_eq!(ask.subject, subject);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "a",
            "a fly",
            "http GET",
            "signal X",
            "a read",
            "start",
            "a:b open",
            "http GET / upside",
            "log",
        ] {
            assert!(Action::parse(text, String::new).is_err(), "{text}");
        }
    }
}
