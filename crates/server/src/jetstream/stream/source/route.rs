//! Which messages of an origin are taken, and under which subjects.

use std::borrow::Cow;

use windjet_protocol::jetstream::StreamSource;
use windjet_protocol::subject;
use windjet_protocol::transform::Transform;
use windjet_store::Matcher;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Route {
    /// Patterns in the order in which they are tried, with what becomes of the subject.
    rules: Vec<(String, Option<Transform>)>,
}

impl Route {
    /// What a validated configuration says.
    pub(super) fn new(source: &StreamSource) -> Self {
        let transforms = source.subject_transforms.iter().map(|rule| {
            let src = if rule.src.is_empty() { ">" } else { &rule.src };
            // One that does not hold was refused with the configuration.
            (src.to_owned(), Transform::new(src, &rule.dest).ok())
        });
        let mut rules: Vec<_> = transforms.collect();
        if rules.is_empty() && !source.filter_subject.is_empty() {
            rules.push((source.filter_subject.clone(), None));
        }
        Self { rules }
    }

    /// A matcher of the messages to take.
    pub(super) fn matcher(&self) -> Matcher {
        Matcher::new(self.rules.iter().map(|(pattern, _)| pattern))
    }

    /// The patterns of the messages to take; none for all.
    pub(super) fn filters(&self) -> Vec<String> {
        self.rules.iter().map(|(pattern, _)| pattern.clone()).collect()
    }

    /// The subject of a copy.
    pub(super) fn subject<'s>(&self, original: &'s [u8]) -> Cow<'s, [u8]> {
        let rule = self
            .rules
            .iter()
            .find(|(pattern, _)| subject::matches(pattern.as_bytes(), original));
        let mut out = Vec::new();
        match rule {
            Some((_, Some(transform))) if transform.apply(original, &mut out) => Cow::Owned(out),
            _ => Cow::Borrowed(original),
        }
    }
}

#[cfg(test)]
mod tests {
    use windjet_protocol::jetstream::SubjectTransform;

    use super::*;

    #[test]
    fn the_first_rule_that_matches_counts() {
        let rule = |src: &str, dest: &str| SubjectTransform {
            src: src.into(),
            dest: dest.into(),
        };
        let route = Route::new(&StreamSource {
            subject_transforms: vec![rule("a.*", "b.$1"), rule("c", ""), rule("d.>", "e.>")],
            ..StreamSource::default()
        });
        for (from, to) in [("a.x", "b.x"), ("c", "c"), ("d.1.2", "e.1.2")] {
            assert_eq!(route.subject(from.as_bytes()).as_ref(), to.as_bytes());
        }
        let matcher = route.matcher();
        assert!(matcher.matches(b"d.x") && !matcher.matches(b"f"));
        let all = Route::new(&StreamSource::default());
        assert!(all.matcher().is_all() && all.filters().is_empty());
    }
}
