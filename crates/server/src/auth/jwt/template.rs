//! Permissions of users of a scoped signing key.
//!
//! The key's template may hold, inside its subjects, expressions that are filled in for each user:
//!
//! | expression | becomes |
//! |---|---|
//! | `{{name()}}` | name in the user's claims |
//! | `{{subject()}}` | the user's public key |
//! | `{{account-name()}}` | name in the account's claims |
//! | `{{account-subject()}}` | the account's public key |
//! | `{{tag(k)}}` | the value of each tag `k:value` of the user |
//! | `{{account-tag(k)}}` | the same for tags of the account |
//!
//! A tag with several values makes as many entries. An allow entry that comes out as no subject, because a tag is
//! missing or a value does not fit, is dropped; when all are, everything is denied. A deny entry that comes out as no
//! subject refuses the user, as does an unknown expression. Values may hold wildcards, as in nats-server: whoever
//! holds a signing key chooses the names and tags of its users.

use windjet_protocol::subject::is_valid_subscription;

use super::claims::{Access, Lists};

/// Most entries that one list may grow to.
const EXPANDED_MAX: usize = 4_096;

/// What the expressions refer to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) user_name: &'a str,
    pub(super) user_key: &'a str,
    pub(super) user_tags: &'a [String],
    pub(super) account_name: &'a str,
    pub(super) account_key: &'a str,
    pub(super) account_tags: &'a [String],
}

/// Fills a template in for one user.
///
/// # Errors
///
/// Why the user cannot be given these permissions.
pub(super) fn fill(template: &Access, names: &Names<'_>) -> Result<Access, String> {
    let mut access = template.clone();
    for lists in [&mut access.permissions.subscribe, &mut access.permissions.publish] {
        fill_lists(lists, names)?;
    }
    Ok(access)
}

fn fill_lists(lists: &mut Lists, names: &Names<'_>) -> Result<(), String> {
    let restricted = !lists.allow.is_empty();
    lists.allow = fill_list(&lists.allow, names, Unfit::Drop)?;
    lists.deny = fill_list(&lists.deny, names, Unfit::Refuse)?;
    if restricted && lists.allow.is_empty() {
        lists.deny.push(">".to_owned());
    }
    Ok(())
}

/// What happens to an entry that comes out as no subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unfit {
    Drop,
    Refuse,
}

fn fill_list(entries: &[String], names: &Names<'_>, unfit: Unfit) -> Result<Vec<String>, String> {
    let mut filled = Vec::new();
    for entry in entries {
        let pieces = parse(entry);
        if !pieces.iter().any(|piece| matches!(piece, Piece::Expression(_))) {
            filled.push(entry.clone());
            continue;
        }
        // Every way to choose the values, one expression at a time. One that stands twice has one value.
        let mut choices: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
        for piece in &pieces {
            let Piece::Expression(expression) = piece else {
                continue;
            };
            if choices
                .first()
                .is_some_and(|chosen| chosen.iter().any(|(known, _)| known == expression))
            {
                continue;
            }
            let values = values(expression, names)?;
            if values.is_empty() && unfit == Unfit::Refuse {
                return Err(format!(
                    "generated invalid subject {entry:?}: {expression:?} is not defined"
                ));
            }
            if choices.len() * values.len() + filled.len() > EXPANDED_MAX {
                return Err(format!("template expansion exceeds limit: {EXPANDED_MAX}"));
            }
            choices = choices
                .iter()
                .flat_map(|chosen| {
                    values.iter().map(|&value| {
                        let mut chosen = chosen.clone();
                        chosen.push((expression, value));
                        chosen
                    })
                })
                .collect();
        }
        for chosen in choices {
            let text = assemble(&pieces, &chosen);
            if fits(&text, &chosen) {
                filled.push(text);
            } else if unfit == Unfit::Refuse {
                return Err(format!("generated invalid subject {text:?}"));
            }
        }
    }
    Ok(filled)
}

/// A value must not bring a queue part with it, so blanks are refused in values but not in the template's own text.
fn fits(text: &str, chosen: &[(&str, &str)]) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    matches!(words.len(), 1 | 2)
        && words.iter().all(|word| is_valid_subscription(word.as_bytes()))
        && !chosen
            .iter()
            .any(|(_, value)| value.contains(char::is_whitespace))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Expression(&'a str),
}

/// Splits at `{{…}}`. What is not closed, or empty, is text.
fn parse(entry: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = entry;
    while let Some(open) = rest.find("{{") {
        let inner = &rest[open + 2..];
        let close = inner
            .find('}')
            .filter(|&close| close > 0 && inner[close..].starts_with("}}"));
        let Some(close) = close else {
            let (text, tail) = rest.split_at(open + 1);
            pieces.push(Piece::Text(text));
            rest = tail;
            continue;
        };
        pieces.push(Piece::Text(&rest[..open]));
        pieces.push(Piece::Expression(inner[..close].trim()));
        rest = &inner[close + 2..];
    }
    pieces.push(Piece::Text(rest));
    pieces
}

fn assemble(pieces: &[Piece<'_>], chosen: &[(&str, &str)]) -> String {
    pieces
        .iter()
        .map(|piece| match *piece {
            Piece::Text(text) => text,
            Piece::Expression(expression) => chosen
                .iter()
                .find(|(known, _)| *known == expression)
                .map_or("", |(_, value)| value),
        })
        .collect()
}

fn values<'a>(expression: &str, names: &Names<'a>) -> Result<Vec<&'a str>, String> {
    let lower = expression.to_lowercase();
    Ok(match lower.as_str() {
        "name()" => vec![names.user_name],
        "subject()" => vec![names.user_key],
        "account-name()" => vec![names.account_name],
        "account-subject()" => vec![names.account_key],
        other => {
            let call = other.strip_suffix(')');
            let of = |prefix: &str| call.and_then(|call| call.strip_prefix(prefix));
            if let Some(key) = of("tag(") {
                tag_values(names.user_tags, key)
            } else if let Some(key) = of("account-tag(") {
                tag_values(names.account_tags, key)
            } else {
                return Err(format!("template operation {expression:?} is not defined"));
            }
        }
    })
}

fn tag_values<'a>(tags: &'a [String], key: &str) -> Vec<&'a str> {
    tags.iter()
        .filter_map(|tag| tag.strip_prefix(key)?.strip_prefix(':'))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::auth::jwt::claims::PermissionClaims;

    fn tags(list: &[&str]) -> Vec<String> {
        list.iter().map(|&tag| tag.to_owned()).collect()
    }

    fn filled(
        allow: &[&str],
        deny: &[&str],
        user_tags: &[&str],
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let template = Access {
            permissions: PermissionClaims {
                publish: Lists {
                    allow: tags(allow),
                    deny: tags(deny),
                },
                ..PermissionClaims::default()
            },
            ..Access::default()
        };
        let (user_tags, account_tags) = (tags(user_tags), tags(&["region:eu"]));
        let names = Names {
            user_name: "bob",
            user_key: "U1",
            user_tags: &user_tags,
            account_name: "acme",
            account_key: "A1",
            account_tags: &account_tags,
        };
        let publish = fill(&template, &names)?.permissions.publish;
        Ok((publish.allow, publish.deny))
    }

    #[test]
    fn every_expression_is_filled_in() {
        let entry = "{{name()}}.{{ Subject() }}.{{ACCOUNT-NAME()}}.{{account-subject()}}.{{tag(t)}}.{{account-tag(region)}}.x";
        let (allow, _) = filled(&[entry, "plain.>"], &[], &["t:1"]).unwrap();
        assert_eq!(allow, ["bob.U1.acme.A1.1.eu.x", "plain.>"]);
    }

    #[test]
    fn several_values_of_a_tag_make_several_entries() {
        let (allow, deny) = filled(
            &["a.{{tag(t)}}.{{tag(s)}}"],
            &["{{tag(t)}}"],
            &["t:1", "t:2", "s:x", "s:y"],
        )
        .unwrap();
        assert_eq!(allow, ["a.1.x", "a.1.y", "a.2.x", "a.2.y"]);
        assert_eq!(deny, ["1", "2"]);
        let (allow, _) = filled(&["{{tag(t)}}.{{tag(t)}}"], &[], &["t:1", "t:2"]).unwrap();
        assert_eq!(allow, ["1.1", "2.2"]);
    }

    #[test]
    fn an_allow_entry_without_values_is_dropped_and_an_emptied_list_denies_all() {
        assert_eq!(
            filled(&["a.{{tag(none)}}", "b"], &[], &[]).unwrap(),
            (tags(&["b"]), tags(&[]))
        );
        assert_eq!(
            filled(&["a.{{tag(none)}}"], &[], &[]).unwrap(),
            (tags(&[]), tags(&[">"]))
        );
        assert_eq!(
            filled(&["a.{{tag(t)}}"], &[], &["t:x..y", "t:x y", "t:"])
                .unwrap()
                .1,
            tags(&[">"])
        );
    }

    #[test]
    fn a_deny_entry_that_cannot_be_made_refuses_the_user() {
        assert!(filled(&[], &["a.{{tag(none)}}"], &[]).is_err());
        assert!(filled(&[], &["a.{{tag(t)}}"], &["t:x y"]).is_err());
    }

    #[test]
    fn an_unknown_expression_refuses_the_user() {
        assert!(filled(&["{{nope()}}"], &[], &[]).is_err());
        assert!(filled(&["{{tag}}"], &[], &[]).is_err());
        assert!(filled(&["{{name}}"], &[], &[]).is_err());
    }

    #[test]
    fn what_is_not_a_whole_expression_stays_as_it_is() {
        for text in ["a.{{b", "a.{b}", "{{}}", "{{a}b}}", "}}{{"] {
            assert_eq!(filled(&[text], &[], &[]).unwrap().0, [text]);
        }
        assert_eq!(
            filled(&["{{{name()}}}"], &[], &[]).unwrap_err(),
            "template operation \"{name()\" is not defined"
        );
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let many: Vec<String> = (0..70).map(|n| format!("t:{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(filled(&["{{tag(t)}}"], &[], &many).is_ok());
        assert!(filled(&["{{tag(t)}}.{{ tag(t)  }}x"], &[], &many).is_ok());
        assert!(
            filled(&["{{tag(t)}}.{{TAG(t)}}"], &[], &many)
                .unwrap_err()
                .contains("exceeds limit")
        );
    }

    proptest! {
        #[test]
        fn splitting_loses_nothing(entry in "[{}a. ]{0,24}") {
            let joined: usize = parse(&entry)
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text.len(),
                    Piece::Expression(_) => 0,
                })
                .sum();
            let expressions = parse(&entry).iter().any(|piece| matches!(piece, Piece::Expression(_)));
            prop_assert!(expressions || joined == entry.len());
        }
    }
}
