//! Tables of the documentation that tests hold: the page and the code say the same, or a test fails.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A page of the folder `docs`.
///
/// # Errors
/// When it is not there.
pub fn read(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// The rows of the first table below a heading of the second level, as their cells; the first row is the table's head.
///
/// # Errors
/// When there is no such heading.
pub fn rows(page: &str, heading: &str) -> Result<Vec<Vec<String>>> {
    let (_, below) = page
        .split_once(&format!("\n## {heading}\n"))
        .with_context(|| format!("no heading {heading:?}"))?;
    let section = below.split("\n## ").next().unwrap_or_default();
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table
        .take_while(|line| line.starts_with('|'))
        .filter(|line| !line.starts_with("|---") && !line.starts_with("|--"));
    let cells = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix('|').unwrap_or(line);
        let line = line.strip_suffix('|').unwrap_or(line);
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    Ok(rows.map(cells).collect())
}

/// What stands between backquotes in a cell.
#[must_use]
pub fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_up_to_its_end() {
        let page = "# P\n\n## A\n\ntext\n\n| x | y |\n|---|---|\n| `1` and `2` | |\n\n| another |\n|---|\n\n## B\n| z |\n|---|\n";
        let table = rows(page, "A").unwrap();
        assert_eq!(table, [["x", "y"], ["`1` and `2`", ""]]);
        assert_eq!(code(&table[1][0]), ["1", "2"]);
        assert_eq!(rows(page, "B").unwrap(), [["z"]]);
        assert!(rows(page, "C").is_err());
    }
}
