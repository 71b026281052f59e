//! The query part of a monitoring URL, read with the error texts of nats-server.

use std::collections::HashMap;
use std::num::IntErrorKind;

use super::Refused;

/// Parameters by name; of several with one name the first counts.
#[derive(Debug, Default)]
pub(super) struct Params {
    values: HashMap<String, String>,
}

impl Params {
    /// Reads a query.
    pub(super) fn parse(query: &str) -> Self {
        let mut values = HashMap::new();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            values.entry(key.into_owned()).or_insert(value.into_owned());
        }
        Self { values }
    }

    /// A text; empty when absent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// A yes or no; no when absent or empty.
    ///
    /// # Errors
    ///
    /// When it is neither.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Refused> {
        match self.text(name) {
            "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            other => Err(Refused(format!(
                "Error decoding boolean for '{name}': strconv.ParseBool: parsing {other:?}: invalid syntax"
            ))),
        }
    }

    /// A whole number; 0 when absent or empty.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub(super) fn int(&self, name: &str) -> Result<i64, Refused> {
        self.number(name, "int", "Atoi")
    }

    /// A whole number that is not negative; 0 when absent or empty.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub(super) fn uint(&self, name: &str) -> Result<u64, Refused> {
        self.number(name, "uint64", "ParseUint")
    }

    fn number<T: std::str::FromStr<Err = std::num::ParseIntError> + Default>(
        &self,
        name: &str,
        kind: &str,
        function: &str,
    ) -> Result<T, Refused> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(T::default());
        }
        text.parse().map_err(|error: std::num::ParseIntError| {
            let why = match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            Refused(format!(
                "Error decoding {kind} for '{name}': strconv.{function}: parsing {text:?}: {why}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_values_counts() {
        let params = Params::parse("limit=2&limit=3&acc=%24G&empty=");
        assert_eq!(params.int("limit"), Ok(2));
        assert_eq!(params.text("acc"), "$G");
        assert_eq!(params.int("empty"), Ok(0));
        assert_eq!(params.flag("absent"), Ok(false));
    }

    #[test]
    fn wrong_values_are_told_in_the_words_of_the_reference() {
        let params = Params::parse("i=x&b=tRue&u=-1&big=99999999999999999999");
        let told = |result: Result<i64, Refused>| result.unwrap_err().0;
        assert_eq!(
            told(params.int("i")),
            "Error decoding int for 'i': strconv.Atoi: parsing \"x\": invalid syntax"
        );
        assert_eq!(
            told(params.int("big")),
            "Error decoding int for 'big': strconv.Atoi: parsing \"99999999999999999999\": value out of range"
        );
        assert_eq!(
            params.flag("b").unwrap_err().0,
            "Error decoding boolean for 'b': strconv.ParseBool: parsing \"tRue\": invalid syntax"
        );
        assert_eq!(
            params.uint("u").unwrap_err().0,
            "Error decoding uint64 for 'u': strconv.ParseUint: parsing \"-1\": invalid syntax"
        );
    }
}
