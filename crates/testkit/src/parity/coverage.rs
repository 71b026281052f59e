//! The page that maps scripts to sections of the specification.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

use super::collection::Collection;
use super::script::Script;

/// The text of the collection's page.
///
/// # Errors
/// When a script names a section that is not listed.
pub fn page(collection: &Collection, scripts: &[Script]) -> Result<String> {
    let sections: Vec<(&str, &str)> = collection
        .sections
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            line.split_once(' ')
                .with_context(|| format!("the list of sections: {line}"))
        })
        .collect::<Result<_>>()?;
    for script in scripts {
        for section in &script.sections {
            if !sections.iter().any(|(number, _)| number == section) {
                bail!(
                    "{} covers {section}, which the list of sections does not have",
                    script.id
                );
            }
        }
    }
    let of = |number: &str| -> Vec<&str> {
        let covers = |script: &&Script| script.sections.iter().any(|section| section == number);
        scripts
            .iter()
            .filter(covers)
            .map(|script| script.id.as_str())
            .collect()
    };
    let mut out = format!(
        "# What the parity scripts cover: {}\n\n\
         Made by `cargo run -p windjet-testkit --bin parity -- --coverage`; a test holds it up to date.\n\n\
         Each script runs on the real nats-server and on ours, and both must say the same, except those in\n\
         [{open}](../crates/testkit/parity/{open}). Sections are those of the specification; how scripts are written is in\n\
         [parity-scripts.md](parity-scripts.md), wanted differences are in [parity.md](parity.md).\n\n",
        collection.title,
        open = collection.open,
    );
    let bare: Vec<_> = sections
        .iter()
        .filter(|(number, _)| of(number).is_empty())
        .map(|(number, title)| format!("{number} {title}"))
        .collect();
    let _ = writeln!(out, "{} scripts.\n", scripts.len());
    let _ = match bare.as_slice() {
        [] => writeln!(out, "Every section has at least one script.\n"),
        bare => writeln!(out, "Sections without a script: {}.\n", bare.join("; ")),
    };
    out.push_str("| section | scripts | |\n|---|---|---|\n");
    for (number, title) in &sections {
        let ids = of(number);
        let _ = writeln!(out, "| {number} {title} | {} | {} |", ids.len(), ids.join(", "));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::script::parse;

    #[test]
    fn a_script_is_listed_under_all_its_sections() {
        let scripts = parse("1.1-x", "=== one\n@also 2.1\na open\n").unwrap();
        let page = page(&Collection::CORE, &scripts).unwrap();
        assert_eq!(page.matches("| 1 | 1.1/one |").count(), 2);
        assert!(page.contains("Sections without a script: 1.2 "));
    }

    #[test]
    fn an_unknown_section_is_refused() {
        assert!(page(&Collection::CORE, &parse("9.9-x", "=== one\na open\n").unwrap()).is_err());
    }
}
