//! Many scripts on two servers, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::diff::diff;
use super::run::{Outcome, PATIENCE, run};
use super::script::Script;

/// Two servers and how to compare them.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The program that decides.
    pub reference: PathBuf,
    /// The program under test.
    pub server: PathBuf,
    /// How many scripts run at the same time.
    pub jobs: usize,
    /// The names of the rows in `docs/parity.md`.
    pub rows: BTreeSet<String>,
    /// Scripts that are not expected to agree: their steps give up soon on the server under test.
    pub hopeless: BTreeSet<String>,
}

/// How long a step of a script that is not expected to agree waits on the server under test.
const SHORT: Duration = Duration::from_secs(1);

/// What came of one script.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The script's id.
    pub id: String,
    /// The judgement.
    pub verdict: Verdict,
    /// The run on the reference.
    pub reference: Outcome,
    /// The run on the server under test.
    pub server: Outcome,
}

/// A judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Both said the same.
    Equal,
    /// They differ as a row of `docs/parity.md` says.
    Wanted,
    /// They differ; the lines show how.
    Different(Vec<String>),
    /// The script itself is at fault: it does not run on the reference or does not show what it claims.
    Fault(String),
}

impl Verdict {
    /// Whether nothing needs to be done.
    #[must_use]
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Equal | Self::Wanted)
    }
}

impl Suite {
    /// Runs every script on both servers. The results are in the order of the scripts.
    #[must_use]
    pub fn compare(&self, scripts: &[Script]) -> Vec<Comparison> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(script) = scripts.get(index) else { break };
                        let result = self.compare_one(script);
                        results
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(index, result);
                    }
                });
            }
        });
        results
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .into_values()
            .collect()
    }

    fn compare_one(&self, script: &Script) -> Comparison {
        let (reference, server) = thread::scope(|scope| {
            let reference = scope.spawn(|| run(script, &self.reference, PATIENCE));
            let patience = if self.hopeless.contains(&script.id) {
                SHORT
            } else {
                PATIENCE
            };
            let server = run(script, &self.server, patience);
            (reference.join(), server)
        });
        let reference = reference.unwrap_or_else(|_| Outcome {
            transcript: Vec::new(),
            fault: Some("the runner has panicked".to_owned()),
            log: Vec::new(),
        });
        let verdict = self.judge(script, &reference, &server);
        Comparison {
            id: script.id.clone(),
            verdict,
            reference,
            server,
        }
    }

    fn judge(&self, script: &Script, reference: &Outcome, server: &Outcome) -> Verdict {
        if let Some(fault) = &reference.fault {
            return Verdict::Fault(format!("on the reference, {fault}"));
        }
        let said = reference.transcript.join("\n");
        if let Some(missing) = script.must.iter().find(|pattern| !pattern.is_match(&said)) {
            return Verdict::Fault(format!("the reference's transcript has nothing like {missing}"));
        }
        let equal = reference.transcript == server.transcript && server.fault.is_none();
        let wanted = script.differs.as_ref().filter(|_| self.reference != self.server);
        let (expected, equal) = match wanted {
            None => (&reference.transcript, equal),
            Some(difference) if !self.rows.contains(&difference.row) => {
                return Verdict::Fault(format!("docs/parity.md has no row {:?}", difference.row));
            }
            Some(_) if equal => {
                return Verdict::Fault(
                    "it is marked as different, but both servers said the same".to_owned(),
                );
            }
            Some(difference) => (
                &difference.expected,
                difference.expected == server.transcript && server.fault.is_none(),
            ),
        };
        if equal {
            return if wanted.is_some() {
                Verdict::Wanted
            } else {
                Verdict::Equal
            };
        }
        let mut lines = diff(expected, &server.transcript);
        lines.extend(server.fault.iter().map(|fault| format!("! {fault}")));
        Verdict::Different(lines)
    }
}

/// The names of the rows in the text of `docs/parity.md`: the first cell of each row, in backquotes.
#[must_use]
pub fn rows(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| {
            line.strip_prefix("| `")?
                .split_once('`')
                .map(|(name, _)| name.to_owned())
        })
        .collect()
}

/// One line a failed script, then each difference; empty when all is well.
#[must_use]
pub fn failures(results: &[Comparison]) -> String {
    let mut out = String::new();
    for result in results {
        match &result.verdict {
            Verdict::Equal | Verdict::Wanted => {}
            Verdict::Different(lines) => {
                let _ = writeln!(
                    out,
                    "\n{} differs (- the reference, + the server under test):",
                    result.id
                );
                for line in lines {
                    let _ = writeln!(out, "    {line}");
                }
            }
            Verdict::Fault(fault) => {
                let _ = writeln!(out, "\n{} is at fault: {fault}", result.id);
            }
        }
    }
    out
}

/// A Markdown page of the failures, grouped by the first lines that differ, largest group first.
#[must_use]
pub fn report(results: &[Comparison]) -> String {
    let failed: Vec<_> = results
        .iter()
        .filter(|result| !result.verdict.is_good())
        .collect();
    let mut groups: BTreeMap<String, Vec<&Comparison>> = BTreeMap::new();
    for &result in &failed {
        groups.entry(cause(&result.verdict)).or_default().push(result);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    let mut out = format!(
        "# Parity: {} of {} scripts are equal\n",
        results.len() - failed.len(),
        results.len()
    );
    for (cause, members) in groups {
        let ids: Vec<_> = members.iter().map(|member| member.id.as_str()).collect();
        let _ = writeln!(out, "\n## {} × {cause}\n\n{}\n", members.len(), ids.join(", "));
        for member in members.iter().take(3) {
            let _ = writeln!(out, "```diff\n# {}{}```", member.id, shortened(&member.verdict));
        }
    }
    out
}

fn shortened(verdict: &Verdict) -> String {
    const LINES: usize = 60;
    let lines = match verdict {
        Verdict::Different(lines) => lines.clone(),
        Verdict::Fault(fault) => vec![fault.clone()],
        Verdict::Equal | Verdict::Wanted => Vec::new(),
    };
    let mut out = String::from("\n");
    for line in lines.iter().take(LINES) {
        let _ = writeln!(out, "{line}");
    }
    if lines.len() > LINES {
        let _ = writeln!(out, "... {} more lines", lines.len() - LINES);
    }
    out
}

fn cause(verdict: &Verdict) -> String {
    let first = |lines: &[String], mark: &str| {
        lines
            .iter()
            .find(|line| line.starts_with(mark))
            .map_or(String::new(), |line| {
                line.chars().take(120).collect::<String>().replace('`', "'")
            })
    };
    match verdict {
        Verdict::Equal | Verdict::Wanted => String::new(),
        Verdict::Fault(_) => "faulty script".to_owned(),
        Verdict::Different(lines) => match lines.iter().find(|line| line.starts_with('!')) {
            Some(fault) if lines.iter().all(|line| !line.starts_with("+ ")) => {
                // Of a server that did not start, its last words count; of a step, the words behind its line number.
                let words = match fault.strip_prefix("! the start: ") {
                    Some(start) => start.trim_end().lines().next_back().unwrap_or_default(),
                    None => fault
                        .split_once(": ")
                        .map_or("", |(_, words)| words)
                        .lines()
                        .next()
                        .unwrap_or_default(),
                };
                format!("stopped: `{}`", words.replace('`', "'"))
            }
            _ => format!("`{}` / `{}`", first(lines, "- "), first(lines, "+ ")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::script::{Difference, parse};

    fn outcome(lines: &[&str]) -> Outcome {
        Outcome {
            transcript: lines.iter().map(|line| (*line).to_owned()).collect(),
            fault: None,
            log: Vec::new(),
        }
    }

    fn judge(script: &Script, reference: &Outcome, server: &Outcome) -> Verdict {
        let rows = rows("| `known` | because |\n");
        Suite {
            reference: "a".into(),
            server: "b".into(),
            jobs: 1,
            rows,
            hopeless: BTreeSet::new(),
        }
        .judge(script, reference, server)
    }

    fn script(text: &str) -> Script {
        parse("1.1-x", &format!("=== x\n{text}\na open\n"))
            .unwrap()
            .remove(0)
    }

    #[test]
    fn equal_transcripts_are_equal_and_others_are_shown() {
        let plain = script("");
        assert_eq!(judge(&plain, &outcome(&["x"]), &outcome(&["x"])), Verdict::Equal);
        let different = judge(&plain, &outcome(&["x"]), &outcome(&["y"]));
        assert_eq!(different, Verdict::Different(vec!["- x".into(), "+ y".into()]));
    }

    #[test]
    fn a_fault_is_never_equal() {
        let broken = Outcome {
            fault: Some("line 1: silence".into()),
            ..outcome(&["x"])
        };
        assert!(matches!(judge(&script(""), &broken, &broken), Verdict::Fault(_)));
        assert!(matches!(
            judge(&script(""), &outcome(&["x"]), &broken),
            Verdict::Different(_)
        ));
    }

    #[test]
    fn a_script_must_show_what_it_claims() {
        let claims = script("@must ^y$");
        assert!(matches!(
            judge(&claims, &outcome(&["x"]), &outcome(&["x"])),
            Verdict::Fault(_)
        ));
    }

    #[test]
    fn a_wanted_difference_needs_its_row_and_its_words() {
        let mut marked = script("");
        marked.differs = Some(Difference {
            row: "known".into(),
            expected: vec!["y".into()],
        });
        assert_eq!(
            judge(&marked, &outcome(&["x"]), &outcome(&["y"])),
            Verdict::Wanted
        );
        assert!(matches!(
            judge(&marked, &outcome(&["x"]), &outcome(&["z"])),
            Verdict::Different(_)
        ));
        assert!(matches!(
            judge(&marked, &outcome(&["y"]), &outcome(&["y"])),
            Verdict::Fault(_)
        ));
        marked.differs = Some(Difference {
            row: "unknown".into(),
            expected: vec!["y".into()],
        });
        assert!(matches!(
            judge(&marked, &outcome(&["x"]), &outcome(&["y"])),
            Verdict::Fault(_)
        ));
    }
}
