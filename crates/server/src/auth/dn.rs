//! Distinguished names, as far as naming a user by a certificate's subject needs them.
//!
//! A configured user may be called `CN=alice,OU=dev,O=acme`. Such a name is read by the rules of RFC 4514 and
//! compared with the subject of the certificate relative name by relative name: types without regard to case, values
//! exactly, the attributes inside one relative name in any order.

/// Attribute types that have a short name, with the object identifier as dotted text.
const SHORT_NAMES: [(&str, &str); 10] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.17", "POSTALCODE"),
    ("0.9.2342.19200300.100.1.25", DOMAIN_COMPONENT),
];

/// The order in which the text of a subject lists its attributes, whatever their order in the certificate.
const TEXT_ORDER: [&str; 9] = [
    "SERIALNUMBER",
    "CN",
    "POSTALCODE",
    "STREET",
    "ST",
    "L",
    "OU",
    "O",
    "C",
];

const DOMAIN_COMPONENT: &str = "DC";

/// The short name of an attribute type.
pub(super) fn short_name(oid: &str) -> Option<&'static str> {
    SHORT_NAMES
        .iter()
        .find(|(known, _)| *known == oid)
        .map(|(_, name)| *name)
}

/// One attribute: type and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attribute {
    pub(super) kind: String,
    pub(super) value: String,
}

/// A distinguished name, the most specific relative name first, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Dn {
    pub(super) rdns: Vec<Vec<Attribute>>,
}

impl Dn {
    /// Reads the written form; `None` for anything that is not one, such as a plain user name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut dn = Self::default();
        let mut rdn = Vec::new();
        let mut rest = text.as_bytes();
        loop {
            let (kind, value, separator, tail) = read_attribute(rest)?;
            rdn.push(Attribute { kind, value });
            if separator != Some(b'+') {
                dn.rdns.push(std::mem::take(&mut rdn));
            }
            if separator.is_none() {
                return Some(dn);
            }
            rest = tail;
        }
    }

    /// Whether both are the same relative names in the same order.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.rdns.len() == other.rdns.len() && self.rdns.iter().zip(&other.rdns).all(|(a, b)| same_rdn(a, b))
    }

    /// Whether both are the same relative names in any order.
    pub(super) fn same_in_any_order(&self, other: &Self) -> bool {
        if self.rdns.len() != other.rdns.len() {
            return false;
        }
        let mut left: Vec<&Vec<Attribute>> = other.rdns.iter().collect();
        self.rdns.iter().all(|rdn| {
            left.iter()
                .position(|candidate| same_rdn(rdn, candidate))
                .map(|at| left.swap_remove(at))
                .is_some()
        })
    }

    /// The text under which a user may be configured: known attributes in a fixed order, those of one type joined
    /// with `+` in the order of the certificate, then, if asked for, the domain components.
    pub(super) fn text(&self, with_domain_components: bool) -> String {
        // The certificate lists the least specific first.
        let attributes: Vec<&Attribute> = self.rdns.iter().rev().flat_map(|rdn| rdn.iter().rev()).collect();
        let of_kind = |kind: &'static str| {
            attributes
                .iter()
                .filter(move |attribute| attribute.kind == kind)
                .map(move |attribute| format!("{kind}={}", escaped(&attribute.value)))
        };
        let mut parts: Vec<String> = TEXT_ORDER
            .iter()
            .map(|kind| of_kind(kind).collect::<Vec<_>>().join("+"))
            .filter(|part| !part.is_empty())
            .collect();
        if with_domain_components {
            parts.extend(
                attributes
                    .iter()
                    .filter(|attribute| attribute.kind == DOMAIN_COMPONENT)
                    .map(|attribute| format!("{DOMAIN_COMPONENT}={}", attribute.value)),
            );
        }
        parts.join(",")
    }

    /// Whether there is a domain component.
    pub(super) fn has_domain_components(&self) -> bool {
        self.rdns
            .iter()
            .flatten()
            .any(|attribute| attribute.kind == DOMAIN_COMPONENT)
    }
}

fn same_rdn(a: &[Attribute], b: &[Attribute]) -> bool {
    let within = |one: &[Attribute], all: &[Attribute]| {
        one.iter().all(|x| {
            all.iter()
                .any(|y| x.kind.eq_ignore_ascii_case(&y.kind) && x.value == y.value)
        })
    };
    a.len() == b.len() && within(a, b) && within(b, a)
}

fn escaped(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut out = String::with_capacity(value.len());
    for (at, c) in value.chars().enumerate() {
        let special = match c {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => true,
            ' ' => at == 0 || at == last,
            '#' => at == 0,
            _ => false,
        };
        if special {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Type, value, the separator after them, and what follows that.
type Parsed<'a> = (String, String, Option<u8>, &'a [u8]);

fn read_attribute(text: &[u8]) -> Option<Parsed<'_>> {
    let equals = text.iter().position(|&byte| byte == b'=')?;
    let kind = std::str::from_utf8(&text[..equals]).ok()?.trim_matches(' ');
    if kind.is_empty() || kind.contains([',', '+', '\\']) {
        return None;
    }
    // A value in BER, `#…`, is not supported.
    if text.get(equals + 1) == Some(&b'#') {
        return None;
    }
    let (value, used) = read_value(&text[equals + 1..])?;
    let end = equals + 1 + used;
    let separator = text.get(end).copied();
    let tail = text.get(end + 1..).unwrap_or_default();
    Some((kind.to_owned(), value, separator, tail))
}

/// The value up to an unescaped separator, and its length as written. Unescaped blanks around it do not count.
fn read_value(text: &[u8]) -> Option<(String, usize)> {
    let mut value = Vec::new();
    let mut keep = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b',' | b'+' => {
                at -= 1;
                break;
            }
            b'\\' => {
                let escaped = *text.get(at)?;
                at += 1;
                if br##" "#+,;<=>\"##.contains(&escaped) {
                    value.push(escaped);
                } else {
                    let hex = [escaped, *text.get(at)?];
                    at += 1;
                    value.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
                }
                keep = value.len();
            }
            b' ' if value.is_empty() => {}
            b' ' => value.push(b' '),
            _ => {
                value.push(byte);
                keep = value.len();
            }
        }
    }
    value.truncate(keep);
    Some((String::from_utf8(value).ok()?, at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dn(text: &str) -> Dn {
        Dn::parse(text).unwrap()
    }

    #[test]
    fn attributes_are_read_with_escapes_and_blanks() {
        let parsed = dn(r"CN = a\, b\20 , OU=x+O=\E2\82\AC ,C=");
        let flat: Vec<(&str, &str)> = parsed
            .rdns
            .iter()
            .flatten()
            .map(|a| (a.kind.as_str(), a.value.as_str()))
            .collect();
        assert_eq!(flat, [("CN", "a, b "), ("OU", "x"), ("O", "€"), ("C", "")]);
        assert_eq!(parsed.rdns.len(), 3);
    }

    #[test]
    fn a_plain_user_name_is_not_a_distinguished_name() {
        for text in [
            "alice", "", "a,b=c", "=x", "CN=#0401", r"CN=a\", r"CN=a\4", r"CN=a\zz", "CN=a,",
        ] {
            assert_eq!(Dn::parse(text), None, "{text}");
        }
    }

    #[test]
    fn types_compare_without_case_and_values_with_it() {
        assert!(dn("cn=a,O=b").same(&dn("CN=a,o=b")));
        assert!(!dn("CN=A,O=b").same(&dn("CN=a,O=b")));
        assert!(dn("CN=a+OU=b").same(&dn("OU=b+CN=a")));
    }

    #[test]
    fn relative_names_may_be_reordered_but_not_repeated() {
        assert!(!dn("CN=a,OU=b,OU=c").same(&dn("OU=c,CN=a,OU=b")));
        assert!(dn("CN=a,OU=b,OU=c").same_in_any_order(&dn("OU=c,CN=a,OU=b")));
        assert!(!dn("CN=a,OU=b,OU=b").same_in_any_order(&dn("CN=a,OU=b,OU=c")));
        assert!(!dn("CN=a,OU=b").same_in_any_order(&dn("CN=a,OU=b,OU=c")));
    }

    #[test]
    fn the_text_lists_known_types_in_a_fixed_order() {
        let subject = dn("DC=com,CN=a\\, b,DC=acme,O=x,OU=1,OU=2");
        assert_eq!(subject.text(false), "CN=a\\, b,OU=2+OU=1,O=x");
        assert_eq!(subject.text(true), "CN=a\\, b,OU=2+OU=1,O=x,DC=acme,DC=com");
        assert!(subject.has_domain_components());
    }

    proptest! {
        #[test]
        fn reading_any_text_does_not_panic(text in ".*") {
            let _ = Dn::parse(&text);
        }

        #[test]
        fn an_escaped_value_reads_back(value in ".*") {
            let written = format!("CN={}", escaped(&value));
            // A leading `#` is escaped, so it is not taken for BER.
            prop_assert_eq!(&Dn::parse(&written).unwrap().rdns[0][0].value, &value);
        }
    }
}
