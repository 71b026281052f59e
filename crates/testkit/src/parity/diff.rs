//! The difference of two transcripts, as lines a person can read.

/// Lines around a difference that are shown with it.
const CONTEXT: usize = 3;

/// One line of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Edit<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// Shows how `ours` differs from `reference`: `-` before what only the reference says, `+` before what only ours
/// says, with some equal lines around. Empty when they are equal.
#[must_use]
pub fn diff(reference: &[String], ours: &[String]) -> Vec<String> {
    let edits = edits(reference, ours);
    let changed = |index: usize| {
        let range = index.saturating_sub(CONTEXT)..edits.len().min(index + CONTEXT + 1);
        edits[range].iter().any(|edit| !matches!(edit, Edit::Same(_)))
    };
    let mut out = Vec::new();
    let mut skipped = false;
    for (index, edit) in edits.iter().enumerate() {
        if !changed(index) {
            skipped = true;
            continue;
        }
        if std::mem::take(&mut skipped) {
            out.push("  ...".to_owned());
        }
        out.push(match edit {
            Edit::Same(line) => format!("  {line}"),
            Edit::Gone(line) => format!("- {line}"),
            Edit::New(line) => format!("+ {line}"),
        });
    }
    out
}

/// A shortest way from `a` to `b`, by the longest common subsequence of what lies between equal ends.
fn edits<'a>(a: &'a [String], b: &'a [String]) -> Vec<Edit<'a>> {
    let front = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let back = a[front..]
        .iter()
        .rev()
        .zip(b[front..].iter().rev())
        .take_while(|(x, y)| x == y)
        .count();
    let (inner_a, inner_b) = (&a[front..a.len() - back], &b[front..b.len() - back]);
    let width = inner_b.len() + 1;
    // common[i * width + j]: the longest common subsequence of what follows line i of a and line j of b.
    let mut common = vec![0_usize; (inner_a.len() + 1) * width];
    for i in (0..inner_a.len()).rev() {
        for j in (0..inner_b.len()).rev() {
            common[i * width + j] = if inner_a[i] == inner_b[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let mut out: Vec<_> = a[..front].iter().map(|line| Edit::Same(line)).collect();
    let (mut i, mut j) = (0, 0);
    while i < inner_a.len() || j < inner_b.len() {
        let take_a = i < inner_a.len();
        let take_b = j < inner_b.len();
        if take_a && take_b && inner_a[i] == inner_b[j] {
            out.push(Edit::Same(&inner_a[i]));
            i += 1;
            j += 1;
        } else if take_a && (!take_b || common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            out.push(Edit::Gone(&inner_a[i]));
            i += 1;
        } else {
            out.push(Edit::New(&inner_b[j]));
            j += 1;
        }
    }
    out.extend(a[a.len() - back..].iter().map(|line| Edit::Same(line)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn equal_transcripts_have_no_difference() {
        assert!(diff(&lines("a b c"), &lines("a b c")).is_empty());
    }

    #[test]
    fn a_difference_is_shown_with_its_surroundings() {
        let shown = diff(&lines("1 2 3 4 5 a 6 7 8 9"), &lines("1 2 3 4 5 b 6 7 8 9"));
        assert_eq!(
            shown,
            ["  ...", "  3", "  4", "  5", "- a", "+ b", "  6", "  7", "  8"]
        );
    }

    #[test]
    fn lines_that_only_moved_do_not_drag_others_along() {
        let shown = diff(&lines("a b c d"), &lines("b c d a"));
        assert_eq!(shown, ["- a", "  b", "  c", "  d", "+ a"]);
    }
}
