//! Reading script files.
//!
//! A file holds the scripts of one section of the specification; its name begins with the section's number
//! (`1.4-connect.txt`). Each script begins with `=== name`, goes on with `@` lines about the server to start and the
//! comparison to make, and then lists its steps. `@` lines before the first script hold for all of the file. The page `docs/parity-scripts.md` describes all of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use regex::Regex;

use super::step::{Action, Step};

/// One script.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Its name with the section of its file, `1.4/verbose-ok`.
    pub id: String,
    /// The sections of the specification it covers.
    pub sections: Vec<String>,
    /// The row of `docs/parity.md` that allows it to differ, and what our server must say then.
    pub differs: Option<Difference>,
    /// Patterns that the reference's transcript must match, so that a script shows what it claims.
    pub must: Vec<Regex>,
    pub(super) flags: String,
    pub(super) config: Option<String>,
    pub(super) files: Vec<(String, String)>,
    pub(super) env: Vec<(String, String)>,
    pub(super) bare: bool,
    pub(super) offline: bool,
    pub(super) log: Option<String>,
    pub(super) keys: Vec<(String, String)>,
    pub(super) tokens: Vec<Token>,
    pub(super) rules: Rules,
    pub(super) steps: Vec<Step>,
}

/// A wanted difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The name of the row in `docs/parity.md`.
    pub row: String,
    /// Our server's whole transcript.
    pub expected: Vec<String>,
}

/// A token to make before the script runs.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) name: String,
    pub(super) issuer: String,
    pub(super) claims: String,
}

/// What a script asks the normaliser for beyond the usual.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// Text to replace.
    pub(super) masks: Vec<(Regex, String)>,
    /// JSON fields whose values do not matter.
    pub(super) hidden: BTreeSet<String>,
    /// JSON fields that may be there or not.
    pub(super) dropped: BTreeSet<String>,
    /// JSON arrays whose order does not matter, by field.
    pub(super) sorted: BTreeSet<String>,
    /// Lines of the record that may be there or not.
    pub(super) optional: Vec<Regex>,
}

/// The file of a folder whose lines hold for all its scripts.
const COMMON: &str = "common.txt";

/// Reads all `*.txt` files of a folder, in the order of their names. The lines of `common.txt` hold for all of them.
///
/// # Errors
/// When a file cannot be read or a script is not well formed; the message names file and line.
pub fn load(folder: &Path) -> Result<Vec<Script>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let is_common = path.file_name().is_some_and(|name| name == COMMON);
        if path.extension().is_some_and(|extension| extension == "txt") && !is_common {
            files.push(path);
        }
    }
    files.sort();
    let common = match fs::read_to_string(folder.join(COMMON)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {COMMON} of {}", folder.display())),
    };
    let (common, _) = read(COMMON, &common, &Script::default()).context(COMMON)?;
    let mut scripts = Vec::new();
    for file in &files {
        let name = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("a file name in UTF-8")?;
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let read = read(name, &text, &common).with_context(|| format!("{}", file.display()))?;
        scripts.extend(read.1);
    }
    let mut ids = BTreeSet::new();
    for script in &scripts {
        if !ids.insert(&script.id) {
            bail!("two scripts are called {}", script.id);
        }
    }
    Ok(scripts)
}

/// Reads the scripts in `text`, the content of the file `stem`.
#[cfg(test)]
pub(super) fn parse(stem: &str, text: &str) -> Result<Vec<Script>> {
    Ok(read(stem, text, &Script::default())?.1)
}

/// Reads what holds for all scripts of a file, beyond `common`, and the scripts.
fn read(stem: &str, text: &str, common: &Script) -> Result<(Script, Vec<Script>)> {
    let section = stem.split_once('-').map_or(stem, |(section, _)| section);
    let mut reader = Reader {
        lines: text.lines().enumerate().collect(),
        at: 0,
    };
    let mut common = common.clone();
    let mut scripts: Vec<Script> = Vec::new();
    while let Some((number, line)) = reader.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let read = match line.strip_prefix("=== ") {
            Some(name) => begin(section, name.trim(), &common).map(|script| scripts.push(script)),
            None => match (line.strip_prefix('@'), scripts.last_mut()) {
                (Some(directive), script) => apply(script.unwrap_or(&mut common), directive, &mut reader),
                (None, _) if line.starts_with(' ') => Err(anyhow!("an indented line belongs to no block")),
                (None, None) => Err(anyhow!("no script has begun")),
                (None, Some(script)) => Action::parse(line, || reader.block().join("\n"))
                    .map(|action| script.steps.push(Step { line: number, action })),
            },
        };
        read.with_context(|| format!("line {number}: {line}"))?;
    }
    for script in &scripts {
        if script.steps.is_empty() {
            bail!("{} has no steps", script.id);
        }
    }
    Ok((common, scripts))
}

fn begin(section: &str, name: &str, common: &Script) -> Result<Script> {
    if name.is_empty()
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    {
        bail!("a name consists of lower-case letters, digits and dashes");
    }
    let mut script = common.clone();
    script.id = format!("{section}/{name}");
    script.sections.insert(0, section.to_owned());
    Ok(script)
}

fn apply(script: &mut Script, directive: &str, reader: &mut Reader<'_>) -> Result<()> {
    let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
    let rest = rest.trim();
    let words = || rest.split_whitespace().map(str::to_owned);
    match word {
        "also" => script.sections.extend(words()),
        "flags" => rest.clone_into(&mut script.flags),
        "config" => script.config = Some(reader.block().join("\n") + "\n"),
        "file" => script
            .files
            .push((rest.to_owned(), reader.block().join("\n") + "\n")),
        "env" => {
            let (name, value) = rest.split_once('=').context("NAME=value")?;
            script.env.push((name.to_owned(), value.to_owned()));
        }
        "bare" => script.bare = true,
        "offline" => script.offline = true,
        "log" => script.log = Some(rest.to_owned()),
        "key" => {
            let (name, kind) = rest.split_once(' ').context("a name and a kind")?;
            script.keys.push((name.to_owned(), kind.trim().to_owned()));
        }
        "jwt" => {
            let (name, rest) = rest.split_once(' ').context("a name, an issuer and claims")?;
            let (issuer, claims) = rest.split_once(' ').context("a name, an issuer and claims")?;
            let (name, issuer, claims) = (name.to_owned(), issuer.to_owned(), claims.to_owned());
            script.tokens.push(Token { name, issuer, claims });
        }
        "mask" => {
            let (pattern, text) = rest.split_once(" => ").context("PATTERN => text")?;
            script.rules.masks.push((Regex::new(pattern)?, text.to_owned()));
        }
        "hide" => script.rules.hidden.extend(words()),
        "drop" => script.rules.dropped.extend(words()),
        "sort" => script.rules.sorted.extend(words()),
        "may" => script.rules.optional.push(Regex::new(rest)?),
        "must" => script.must.push(Regex::new(rest)?),
        "differs" => {
            script.differs = Some(Difference {
                row: rest.to_owned(),
                expected: reader.block(),
            });
        }
        other => bail!("there is no @{other}"),
    }
    Ok(())
}

struct Reader<'a> {
    lines: Vec<(usize, &'a str)>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next line with its number, counted from one.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let &(index, line) = self.lines.get(self.at)?;
        self.at += 1;
        Some((index + 1, line))
    }

    /// The indented lines that follow, without their indentation and without blank lines at the end.
    fn block(&mut self) -> Vec<String> {
        let mut block = Vec::new();
        while let Some((_, line)) = self.lines.get(self.at) {
            match line.strip_prefix("  ") {
                Some(text) => block.push(text.to_owned()),
                None if line.trim().is_empty() => block.push(String::new()),
                None => break,
            }
            self.at += 1;
        }
        while block.last().is_some_and(String::is_empty) {
            block.pop();
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# words\n\n=== one\n@also 2.1\n@config\n  a: {\n    b: 1\n\n  }\n\na open\n=== two\n@must x+\nrun -v\n";

    #[test]
    fn scripts_blocks_and_sections_are_read() {
        let scripts = parse("1.4-connect", TEXT).unwrap();
        assert_eq!(
            scripts.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(),
            ["1.4/one", "1.4/two"]
        );
        assert_eq!(scripts[0].sections, ["1.4", "2.1"]);
        assert_eq!(scripts[0].config.as_deref(), Some("a: {\n  b: 1\n\n}\n"));
        assert_eq!(scripts[0].steps[0].line, 11);
    }

    #[test]
    fn lines_before_the_first_script_hold_for_all() {
        let text = "@config\n  a: 1\n@also 2.1\n=== one\na open\n=== two\n@config\n  b: 2\na open\n";
        let scripts = parse("1.4-connect", text).unwrap();
        assert_eq!(scripts[0].config.as_deref(), Some("a: 1\n"));
        assert_eq!(scripts[0].sections, ["1.4", "2.1"]);
        assert_eq!(scripts[1].config.as_deref(), Some("b: 2\n"));
    }

    #[test]
    fn faults_are_named_with_their_line() {
        for (text, what) in [
            ("a open\n", "no script has begun"),
            ("=== one\n@what\n", "there is no @what"),
            ("=== one\n  indented\n", "belongs to no block"),
            ("=== One\n", "lower-case"),
            ("=== one\n", "has no steps"),
            ("=== one\n@must (\na open\n", "line 2"),
        ] {
            let error = format!("{:#}", parse("1.1-x", text).unwrap_err());
            assert!(error.contains(what), "{error}");
        }
    }
}
