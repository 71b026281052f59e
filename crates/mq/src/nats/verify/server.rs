//! Which server versions will do.

use crate::nats::finding::Findings;

const OBJECT: &str = "server";
const FIELD: &str = "version";
/// The reset of a consumer to its acknowledgement floor came with it.
const MIN: [u64; 3] = [2, 14, 0];
/// The minor versions of series 2 with which this was tried.
const TRIED: std::ops::RangeInclusive<u64> = 14..=15;

pub(super) fn check(version: &str, findings: &mut Findings) {
    match parse(version) {
        None => findings.required(
            OBJECT,
            FIELD,
            format!("{version:?} cannot be read; 2.14.0 or later is needed"),
        ),
        Some(parts) if parts < MIN => {
            findings.required(OBJECT, FIELD, format!("{version}; 2.14.0 or later is needed"));
        }
        Some([2, minor, _]) if TRIED.contains(&minor) => {}
        Some(_) => findings.recommended(OBJECT, FIELD, format!("{version}; tried with 2.14 and 2.15")),
    }
}

fn parse(version: &str) -> Option<[u64; 3]> {
    let mut parts = version
        .strip_prefix('v')
        .unwrap_or(version)
        .splitn(3, '.')
        .map(|part| {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            part[..digits].parse().ok()
        });
    let all = [parts.next()??, parts.next()??, parts.next()??];
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nats::Severity;

    #[test]
    fn versions_are_needed_or_wished_for() {
        let severity = |version: &str| {
            let mut findings = Findings::default();
            check(version, &mut findings);
            findings.sorted().pop().map(|finding| finding.severity)
        };
        for version in ["2.14.0", "v2.14.3", "2.15.1", "2.14.0-RC.1"] {
            assert_eq!(severity(version), None, "{version}");
        }
        for version in ["2.16.0", "3.0.0"] {
            assert_eq!(severity(version), Some(Severity::Recommended), "{version}");
        }
        for version in ["", "2.13.9", "2.9", "x.y.z", "1.99.0"] {
            assert_eq!(severity(version), Some(Severity::Required), "{version}");
        }
    }
}
