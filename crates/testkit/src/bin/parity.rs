//! Runs parity scripts: `parity --server A --reference B [--only REGEX] [--show] [--jobs N] [--report FILE]`, and
//! writes the coverage pages: `parity --coverage`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use regex::Regex;
use windjet_testkit::parity::collection::docs_folder;
use windjet_testkit::parity::{Collection, coverage, load, open, suite};
use windjet_testkit::{nats_server_path, windjet_path};

const USAGE: &str = "parity [options]
  --server FILE      the program under test (default: ours)
  --reference FILE   the program that decides (default: the real nats-server)
  --only REGEX       only scripts whose id matches
  --show             print the reference's transcripts
  --jobs N           scripts at a time (default 4)
  --repeat N         go through the scripts N times
  --report FILE      write the failures, grouped by cause, as Markdown
  --scripts FOLDER   other scripts than the repository's
  --jetstream        the scripts of JetStream instead of those of the core
  --write-open       write the list of scripts that do not agree; what they are missing is kept
  --coverage         write the coverage pages and run nothing";

fn main() -> ExitCode {
    match work() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("parity: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Wish {
    server: Option<PathBuf>,
    reference: Option<PathBuf>,
    only: Option<Regex>,
    show: bool,
    jobs: usize,
    repeat: usize,
    report: Option<PathBuf>,
    scripts: Option<PathBuf>,
    collection: Collection,
    write_open: bool,
    coverage: bool,
}

impl Wish {
    fn read() -> Result<Option<Self>> {
        let mut wish = Self {
            server: None,
            reference: None,
            only: None,
            show: false,
            jobs: 4,
            repeat: 1,
            report: None,
            scripts: None,
            collection: Collection::CORE,
            write_open: false,
            coverage: false,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--server" => wish.server = Some(value()?.into()),
                "--reference" => wish.reference = Some(value()?.into()),
                "--only" => wish.only = Some(Regex::new(&value()?)?),
                "--show" => wish.show = true,
                "--jobs" => wish.jobs = value()?.parse()?,
                "--repeat" => wish.repeat = value()?.parse()?,
                "--report" => wish.report = Some(value()?.into()),
                "--scripts" => wish.scripts = Some(value()?.into()),
                "--jetstream" => wish.collection = Collection::JETSTREAM,
                "--write-open" => wish.write_open = true,
                "--coverage" => wish.coverage = true,
                "--help" => return Ok(None),
                other => bail!("unknown option {other}\n{USAGE}"),
            }
        }
        Ok(Some(wish))
    }
}

fn work() -> Result<bool> {
    let Some(wish) = Wish::read()? else {
        println!("{USAGE}");
        return Ok(true);
    };
    let docs = docs_folder();
    if wish.coverage {
        for collection in Collection::ALL {
            let page = coverage::page(&collection, &load(&collection.folder())?)?;
            fs::write(docs.join(collection.page), page)?;
        }
        return Ok(true);
    }
    let mut scripts = load(&wish.scripts.unwrap_or_else(|| wish.collection.folder()))?;
    if let Some(only) = &wish.only {
        scripts.retain(|script| only.is_match(&script.id));
    }
    let hopeless = if wish.server.is_none() {
        open::list(&wish.collection)?.into_keys().collect()
    } else {
        BTreeSet::new()
    };
    let suite = suite::Suite {
        reference: wish.reference.map_or_else(nats_server_path, Ok)?,
        server: wish.server.map_or_else(windjet_path, Ok)?,
        jobs: wish.jobs,
        rows: suite::rows(&fs::read_to_string(docs.join("parity.md"))?),
        hopeless,
    };
    let mut good = true;
    for _ in 0..wish.repeat {
        let begin = Instant::now();
        let results = suite.compare(&scripts);
        if wish.show {
            for result in &results {
                println!("\n=== {}\n{}", result.id, result.reference.transcript.join("\n"));
            }
        }
        let failures = suite::failures(&results);
        print!("{failures}");
        let equal = results.iter().filter(|result| result.verdict.is_good()).count();
        println!(
            "{equal} of {} scripts are equal, {:.1} s",
            results.len(),
            begin.elapsed().as_secs_f64()
        );
        if wish.write_open {
            open::write(&wish.collection, &results)?;
        }
        if let Some(report) = &wish.report {
            fs::write(report, suite::report(&results))?;
        }
        good &= failures.is_empty();
    }
    Ok(good)
}
