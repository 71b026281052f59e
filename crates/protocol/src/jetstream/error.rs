//! Errors of the JetStream API: their numbers, their texts and their form on the wire.
//!
//! [`ErrorCode`] is the table, [`ApiError`] is one error as it travels: `{"code":404,"err_code":10059,
//! "description":"stream not found"}`. Descriptions are exact because some clients compare them.
//!
//! Whoever refuses an API call or a publish makes its error here, and nowhere else: a number that is not in the
//! table cannot be made. What arrives from another server may carry any number, so [`ApiError`] keeps numbers, and
//! [`ApiError::kind`] is the way back to the table.
//!
//! Errors that are not API errors (a disk that is full, a subject that does not parse) are wrapped by the call they
//! stop: `ErrorCode::StreamCreateFailed.with(err)`. An error that is an [`ApiError`] already is passed on unchanged.

mod table;

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};

use serde::{Deserialize, Serialize};

pub use table::ErrorCode;

impl ErrorCode {
    /// The number that identifies the error, always five digits.
    pub const fn err_code(self) -> u16 {
        self as u16
    }

    /// The error with this `err_code`, if the table has it.
    pub fn from_err_code(err_code: u16) -> Option<Self> {
        Self::ALL
            .binary_search_by_key(&err_code, |kind| kind.err_code())
            .ok()
            .map(|at| Self::ALL[at])
    }

    /// The error as sent, for descriptions without a place to fill. Allocates nothing.
    ///
    /// A description that has places is sent with them unfilled; debug builds assert that it has none.
    pub fn error(self) -> ApiError {
        debug_assert!(
            !self.template().contains('{'),
            "{self:?} needs values for {}",
            self.template()
        );
        ApiError {
            code: self.code(),
            err_code: self.err_code(),
            description: Cow::Borrowed(self.template()),
        }
    }

    /// The error with the one `{name}` place of its description filled with `value`.
    pub fn with(self, value: impl Display) -> ApiError {
        self.fill(&[&value])
    }

    /// The error with the `{name}` places of its description filled from left to right.
    ///
    /// Places without a value stay empty, values without a place are dropped; debug builds assert that the numbers
    /// agree.
    pub fn fill(self, values: &[&dyn Display]) -> ApiError {
        let mut rest = self.template();
        debug_assert_eq!(rest.matches('{').count(), values.len(), "{self:?}: {rest}");
        let mut values = values.iter();
        let mut description = String::with_capacity(rest.len() + 16);
        while let Some((before, (_, after))) = rest
            .split_once('{')
            .and_then(|(before, place)| Some((before, place.split_once('}')?)))
        {
            description.push_str(before);
            if let Some(value) = values.next() {
                // Writing to a String fails only when the value's own Display does; what it wrote until then stays.
                let _ = write!(description, "{value}");
            }
            rest = after;
        }
        description.push_str(rest);
        ApiError {
            code: self.code(),
            err_code: self.err_code(),
            description: Cow::Owned(description),
        }
    }
}

/// One error as it stands in an API answer, a publish acknowledgement or a stream's source information.
///
/// `Display` gives the description alone, as NATS clients show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{description}")]
pub struct ApiError {
    /// Class of the error in the manner of HTTP.
    pub code: u16,
    /// Number of the error in the table; 0 when a foreign server sent none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub err_code: u16,
    /// Text for people, exact per `err_code`; empty when a foreign server sent none.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub description: Cow<'static, str>,
}

impl ApiError {
    /// The row of the table this error belongs to; `None` for numbers of foreign servers.
    pub fn kind(&self) -> Option<ErrorCode> {
        ErrorCode::from_err_code(self.err_code)
    }

    /// Whether this is the error `kind`, whatever its description was filled with.
    pub fn is(&self, kind: ErrorCode) -> bool {
        self.err_code == kind.err_code()
    }
}

impl From<ErrorCode> for ApiError {
    /// Same as [`ErrorCode::error`].
    fn from(kind: ErrorCode) -> Self {
        kind.error()
    }
}

impl PartialEq<ErrorCode> for ApiError {
    fn eq(&self, kind: &ErrorCode) -> bool {
        self.is(*kind)
    }
}

impl Display for ErrorCode {
    /// `code/err_code`, the notation of the documentation: `404/10059`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.code(), self.err_code())
    }
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// `err_code`, `code`, description of every error, as the behaviour specification lists them.
    const EXPECTED: &str = include_str!("../../tests/fixtures/api_errors.tsv");

    fn expected() -> Vec<(u16, u16, &'static str)> {
        EXPECTED
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                let mut cells = line.splitn(3, '\t');
                let mut number = || cells.next().unwrap().parse().unwrap();
                let (err_code, code) = (number(), number());
                (err_code, code, cells.next().unwrap())
            })
            .collect()
    }

    #[test]
    fn table_equals_the_list_of_the_specification() {
        let table: Vec<_> = ErrorCode::ALL
            .iter()
            .map(|kind| (kind.err_code(), kind.code(), kind.template()))
            .collect();
        assert_eq!(table, expected());
    }

    #[test]
    fn every_number_is_there_once_and_leads_back_to_its_row() {
        let mut seen = HashSet::new();
        for kind in ErrorCode::ALL {
            assert!(seen.insert(kind.err_code()), "{kind} twice");
            assert_eq!(ErrorCode::from_err_code(kind.err_code()), Some(*kind));
        }
        assert!(ErrorCode::ALL.is_sorted_by_key(|kind| kind.err_code()));
        for foreign in (0..=u16::MAX).filter(|number| !seen.contains(number)) {
            assert_eq!(ErrorCode::from_err_code(foreign), None);
        }
    }

    #[test]
    fn error_without_places_borrows_its_text() {
        let error = ErrorCode::StreamNotFound.error();
        assert_eq!(
            serde_json::to_string(&error).unwrap(),
            r#"{"code":404,"err_code":10059,"description":"stream not found"}"#
        );
        assert!(matches!(error.description, Cow::Borrowed(_)));
        assert_eq!(error.to_string(), "stream not found");
        assert_eq!(ErrorCode::StreamNotFound.to_string(), "404/10059");
    }

    #[test]
    fn places_are_filled_from_left_to_right() {
        assert_eq!(
            ErrorCode::WrongLastSequence.with(17).description,
            "wrong last sequence: 17"
        );
        assert_eq!(
            ErrorCode::StreamInvalidConfig.with("{odd} text}").description,
            "{odd} text}"
        );
        let error = ErrorCode::ExternalApiOverlap.fill(&[&"$JS.x.API", &"$JS.API"]);
        assert_eq!(
            error.description,
            "stream external api prefix $JS.x.API must not overlap with $JS.API"
        );
        assert_eq!(error, ErrorCode::ExternalApiOverlap);
    }

    #[test]
    fn every_description_fills_completely() {
        for kind in ErrorCode::ALL {
            let places = kind.template().matches('{').count();
            let values: Vec<&dyn Display> = (0..places).map(|_| &"x" as &dyn Display).collect();
            let error = kind.fill(&values);
            assert!(
                !error.description.contains(['{', '}']),
                "{kind}: {}",
                error.description
            );
            assert_eq!(error.kind(), Some(*kind));
        }
    }

    #[test]
    fn foreign_errors_are_read_and_written_unchanged() {
        let text = r#"{"code":500,"err_code":19999,"description":"something new"}"#;
        let error: ApiError = serde_json::from_str(text).unwrap();
        assert_eq!(error.kind(), None);
        assert_eq!(serde_json::to_string(&error).unwrap(), text);
        let bare: ApiError = serde_json::from_str(r#"{"code":503}"#).unwrap();
        assert_eq!(serde_json::to_string(&bare).unwrap(), r#"{"code":503}"#);
    }
}
