//! [`ImportTransform`]: the reversible transforms of imports between accounts.
//!
//! An import gives another account's subjects a local name. Published subjects go one way, subscriptions go there as
//! patterns, and answers come back, so the rule may only move tokens and must keep every wildcard.

use super::function::Function;
use super::template::{DestinationError, Piece};
use super::{Transform, TransformError};
use crate::subject::{ANY_TOKEN, is_subset, tokens};

/// A transform that only moves tokens and uses every wildcard of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportTransform(Transform);

impl ImportTransform {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// As for [`Transform::new`]; also when another function than `wildcard` is used or a wildcard of the source is not.
    pub fn new(source: &str, destination: &str) -> Result<Self, TransformError> {
        let transform = Transform::new(source, destination)?;
        let mut used = Vec::new();
        for piece in &transform.pieces {
            match piece {
                Piece::Function(Function::Wildcard(token)) => used.push(*token),
                Piece::Function(_) => {
                    return Err(TransformError::Token {
                        reason: DestinationError::NotSupportedForImport,
                        token: destination.to_owned(),
                    });
                }
                Piece::Literal(_) | Piece::Tail => {}
            }
        }
        let mut wildcards = tokens(&transform.source)
            .enumerate()
            .filter(|&(_, token)| token == ANY_TOKEN);
        if wildcards.any(|(index, _)| !used.contains(&index)) {
            return Err(TransformError::Token {
                reason: DestinationError::NotUsingAllWildcards,
                token: destination.to_owned(),
            });
        }
        Ok(Self(transform))
    }

    /// The rule as an ordinary transform.
    #[must_use]
    pub fn as_transform(&self) -> &Transform {
        &self.0
    }

    /// Appends the new subject to `out`; false, and nothing appended, when the source does not match `subject`.
    pub fn apply(&self, subject: &[u8], out: &mut Vec<u8>) -> bool {
        self.0.apply_with(subject, out, |_| 0)
    }

    /// Appends the pattern that matches the new names of what `filter` matches; false when the source does not cover
    /// the filter.
    pub fn apply_filter(&self, filter: &[u8], out: &mut Vec<u8>) -> bool {
        let covered = is_subset(filter, &self.0.source);
        if covered {
            self.0.write(filter, out, |_| 0);
        }
        covered
    }

    /// The rule that undoes this one.
    ///
    /// # Errors
    ///
    /// When a wildcard is used twice, as the two places need not agree on the way back.
    pub fn inverse(&self) -> Result<Self, TransformError> {
        let mut order = Vec::new();
        let mut source = Vec::new();
        for piece in &self.0.pieces {
            source.push(match piece {
                Piece::Literal(text) => String::from_utf8_lossy(text).into_owned(),
                Piece::Tail => ">".to_owned(),
                Piece::Function(function) => {
                    if let Function::Wildcard(token) = function {
                        order.push(*token);
                    }
                    "*".to_owned()
                }
            });
        }
        let destination: Vec<String> = tokens(&self.0.source)
            .enumerate()
            .map(
                |(index, token)| match order.iter().position(|&moved| moved == index) {
                    Some(place) => format!("${}", place + 1),
                    None => String::from_utf8_lossy(token).into_owned(),
                },
            )
            .collect();
        Self::new(&source.join("."), &destination.join("."))
    }
}
