//! The lists of scripts that do not agree yet, and the ratchet that lets them only shrink.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use super::collection::{Collection, docs_folder};
use super::script::{Script, load};
use super::suite::{self, Comparison, Suite};
use crate::{nats_server_path, windjet_path};

/// The open scripts of a collection, each with what it is missing.
///
/// # Errors
/// When the list cannot be read, or does not say what a script is missing.
pub fn list(collection: &Collection) -> Result<BTreeMap<String, String>> {
    let file = collection.open_file();
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut open = BTreeMap::new();
    for line in text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let (id, missing) = line.split_once(' ').unwrap_or((line, ""));
        ensure!(
            !missing.trim().is_empty(),
            "{} does not say what {id} is missing",
            collection.open
        );
        open.insert(id.to_owned(), missing.trim().to_owned());
    }
    Ok(open)
}

/// Writes the list anew after a run: scripts that agreed leave it, those that differed are on it, and those that were not
/// run stay as they are.
///
/// # Errors
/// When the list cannot be read or written.
pub fn write(collection: &Collection, results: &[Comparison]) -> Result<()> {
    let mut open = list(collection)?;
    for result in results {
        if result.verdict.is_good() {
            open.remove(&result.id);
        } else if !open.contains_key(&result.id) {
            open.insert(result.id.clone(), collection.title.to_owned());
        }
    }
    let mut out = String::from(
        "# Parity scripts that do not agree yet: the script, then what is missing. The list only shrinks.\n\n",
    );
    for (id, missing) in open {
        let _ = writeln!(out, "{id} {missing}");
    }
    let file = collection.open_file();
    fs::write(&file, out).with_context(|| format!("writing {}", file.display()))
}

/// Runs a collection on the real server and on ours. Every script must agree unless it is on the list, and one that
/// agrees must not be on it. A script that differs is run once more by itself before it counts, because some show times
/// that a busy machine stretches.
///
/// # Errors
/// When that does not hold; the text shows every difference.
pub fn hold(collection: &Collection) -> Result<()> {
    let scripts = load(&collection.folder())?;
    let open = list(collection)?;
    for id in open.keys() {
        ensure!(
            scripts.iter().any(|script| script.id == *id),
            "{} names {id}, which is no script",
            collection.open
        );
    }
    let page = docs_folder().join("parity.md");
    let mut suite = Suite {
        reference: nats_server_path()?,
        server: windjet_path()?,
        jobs: 4,
        rows: suite::rows(&fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?),
        hopeless: open.keys().cloned().collect(),
    };
    let results = suite.compare(&scripts);
    let settled: Vec<&str> = results
        .iter()
        .filter(|result| result.verdict.is_good() && open.contains_key(&result.id))
        .map(|result| result.id.as_str())
        .collect();
    if !settled.is_empty() {
        bail!("these agree now and must leave {}: {settled:?}", collection.open);
    }
    let again: Vec<Script> = results
        .iter()
        .zip(scripts)
        .filter(|(result, _)| !result.verdict.is_good() && !open.contains_key(&result.id))
        .map(|(_, script)| script)
        .collect();
    suite.jobs = 1;
    let failures = suite::failures(&suite.compare(&again));
    ensure!(
        failures.is_empty(),
        "scripts that should agree do not:\n{failures}"
    );
    Ok(())
}
