//! [`Mapping`] and [`MappingTable`]: what an account does to the subjects its clients publish.
//!
//! The first mapping whose source matches decides. Its destinations have weights in per cent. A remainder goes to the
//! original subject, unless the source itself is written as a destination: then the remainder is dropped, which is
//! meant for injecting faults.

use super::{Transform, TransformError, random_below};
use crate::subject::{ANY_TOKEN, matches, tokens};

/// Why a mapping cannot be built. The texts are the reference server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// Source or destination is at fault.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// The same destination twice.
    #[error("duplicate entry for {destination:?}")]
    Duplicate {
        /// The destination.
        destination: String,
    },
    /// A weight over 100.
    #[error("individual weights need to be <= 100")]
    Weight,
    /// Weights that sum to more than 100.
    #[error("total weight needs to be <= 100")]
    TotalWeight,
}

/// What became of a published subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// No mapping applies; the subject stays.
    Unchanged,
    /// The new subject was appended.
    To,
    /// The message is to be dropped.
    Dropped,
}

/// A source pattern with weighted destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    source: String,
    /// Each with the sum of the weights up to and including its own.
    destinations: Vec<(Transform, u32)>,
}

impl Mapping {
    /// A mapping that sends everything to one destination.
    ///
    /// # Errors
    ///
    /// As for [`Mapping::weighted`].
    pub fn new(source: &str, destination: &str) -> Result<Self, MappingError> {
        Self::weighted(source, [(destination, 100)])
    }

    /// A mapping with destinations and their weights in per cent. Without any, subjects stay as they are.
    ///
    /// # Errors
    ///
    /// When a transform is invalid, a destination comes twice, or the weights are over 100.
    pub fn weighted<'d>(
        source: &str,
        destinations: impl IntoIterator<Item = (&'d str, u32)>,
    ) -> Result<Self, MappingError> {
        let mut built: Vec<(Transform, u32)> = Vec::new();
        let mut total = 0;
        for (destination, weight) in destinations {
            if built
                .iter()
                .any(|(earlier, _)| earlier.destination() == destination)
            {
                return Err(MappingError::Duplicate {
                    destination: destination.to_owned(),
                });
            }
            if weight > 100 {
                return Err(MappingError::Weight);
            }
            total += weight;
            if total > 100 {
                return Err(MappingError::TotalWeight);
            }
            built.push((Transform::new(source, destination)?, total));
        }
        if total < 100
            && !built
                .iter()
                .any(|(transform, _)| transform.destination() == source)
        {
            built.push((Transform::new(source, &identity(source))?, 100));
        }
        Ok(Self {
            source: source.to_owned(),
            destinations: built,
        })
    }

    /// The source pattern as it was given.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Rewrites a subject that the source matches.
    fn write(&self, subject: &[u8], out: &mut Vec<u8>, mut random: impl FnMut(u32) -> u32) -> Mapped {
        let chosen = match self.destinations.as_slice() {
            [(only, 100)] => Some(only),
            several => {
                let draw = random(100);
                several
                    .iter()
                    .find(|(_, up_to)| draw < *up_to)
                    .map(|(transform, _)| transform)
            }
        };
        match chosen {
            Some(transform) => {
                transform.write(subject, out, random);
                Mapped::To
            }
            None => Mapped::Dropped,
        }
    }
}

/// The mappings of an account, in the order of their definition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MappingTable {
    mappings: Vec<Mapping>,
}

impl MappingTable {
    /// No mappings.
    #[must_use]
    pub const fn new() -> Self {
        Self { mappings: Vec::new() }
    }

    /// Adds a mapping at the end, or in the place of the one with the same source.
    pub fn insert(&mut self, mapping: Mapping) {
        match self
            .mappings
            .iter_mut()
            .find(|earlier| earlier.source == mapping.source)
        {
            Some(earlier) => *earlier = mapping,
            None => self.mappings.push(mapping),
        }
    }

    /// Removes the mapping with this source; true when there was one.
    pub fn remove(&mut self, source: &str) -> bool {
        let before = self.mappings.len();
        self.mappings.retain(|mapping| mapping.source != source);
        self.mappings.len() != before
    }

    /// Whether every subject stays as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The mappings, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// Rewrites a published subject, appending the new one to `out` when there is one.
    pub fn apply(&self, subject: &[u8], out: &mut Vec<u8>) -> Mapped {
        self.apply_with(subject, out, random_below)
    }

    /// The same with the caller's chance: `random(n)` must give a number below `n`, and `n` is at least 1.
    pub fn apply_with(&self, subject: &[u8], out: &mut Vec<u8>, random: impl FnMut(u32) -> u32) -> Mapped {
        // Every destination of a mapping has the mapping's source, and there is always one.
        let fits = |mapping: &&Mapping| {
            mapping
                .destinations
                .first()
                .is_some_and(|(transform, _)| matches(transform.source(), subject))
        };
        match self.mappings.iter().find(fits) {
            Some(mapping) => mapping.write(subject, out, random),
            None => Mapped::Unchanged,
        }
    }
}

/// The destination that gives back every subject of a source.
fn identity(source: &str) -> String {
    let mut index = 0;
    let tokens: Vec<String> = tokens(source.as_bytes())
        .map(|token| {
            if token == ANY_TOKEN {
                index += 1;
                format!("${index}")
            } else {
                String::from_utf8_lossy(token).into_owned()
            }
        })
        .collect();
    tokens.join(".")
}
