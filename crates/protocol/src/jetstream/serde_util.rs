//! Small predicates and conversions for serde attributes, shared by the types of the API.

use serde::{Deserialize, Deserializer};

/// For members that are omitted at zero.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// For members that are omitted when false.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// For texts that are omitted when there is none; empty means none.
pub(crate) fn is_blank(text: &Option<String>) -> bool {
    text.as_ref().is_none_or(String::is_empty)
}

/// Reads an optional text; empty means none.
pub(crate) fn non_blank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// Reads `null` as the default.
pub(crate) fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
