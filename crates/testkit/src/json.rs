//! JSON that keeps what a comparison has to see: the order of fields and the exact text of every value.
//!
//! Numbers and strings stay as they were written (`0` and `0.0` differ, and so do `<` and its escaped form), and
//! [`Json::style`] tells how a document was laid out. Built on `serde_json`'s raw values; used by the parity runner
//! only.

use anyhow::{Result, bail};
use serde::Deserialize as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON value whose objects keep their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// A string, number, boolean or null, exactly as written.
    Scalar(String),
    /// An array.
    Array(Vec<Json>),
    /// An object; a name may come twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one document.
    ///
    /// # Errors
    /// When `text` is not JSON.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        match text.as_bytes().first() {
            Some(b'{') => {
                let mut reader = serde_json::Deserializer::from_str(text);
                let fields = serde::Deserializer::deserialize_map(&mut reader, Fields)?;
                reader.end()?;
                let fields = fields
                    .into_iter()
                    .map(|(name, raw)| Ok((name, Self::parse(raw.get())?)));
                Ok(Self::Object(fields.collect::<Result<_>>()?))
            }
            Some(b'[') => {
                let items: Vec<Box<RawValue>> = serde_json::from_str(text)?;
                Ok(Self::Array(
                    items
                        .iter()
                        .map(|raw| Self::parse(raw.get()))
                        .collect::<Result<_>>()?,
                ))
            }
            Some(_) => {
                let raw: &RawValue = serde_json::from_str(text)?;
                Ok(Self::Scalar(raw.get().to_owned()))
            }
            None => bail!("no JSON at all"),
        }
    }

    /// A string value.
    #[must_use]
    pub fn string(text: &str) -> Self {
        Self::Scalar(serde_json::Value::from(text).to_string())
    }

    /// The text of a string, with its escapes resolved; `None` for anything else.
    #[must_use]
    pub fn as_string(&self) -> Option<String> {
        match self {
            Self::Scalar(raw) if raw.starts_with('"') => serde_json::from_str(raw).ok(),
            _ => None,
        }
    }

    /// The field of this name; the last one if there are several.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields
                .iter()
                .rfind(|(found, _)| found == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// Puts a field into an object: in its old place when there is one, else at the end.
    pub fn set(&mut self, name: &str, value: Self) {
        if let Self::Object(fields) = self {
            match fields.iter_mut().find(|(found, _)| found == name) {
                Some(field) => field.1 = value,
                None => fields.push((name.to_owned(), value)),
            }
        }
    }

    /// The document on one line without blanks.
    #[must_use]
    pub fn compact(&self) -> String {
        match self {
            Self::Scalar(raw) => raw.clone(),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::compact).collect();
                format!("[{}]", items.join(","))
            }
            Self::Object(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| format!("{}:{}", quoted(name), value.compact()))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }
        }
    }

    /// The document with one field or element a line, two blanks a level.
    #[must_use]
    pub fn pretty(&self) -> String {
        let mut out = String::new();
        self.write_pretty(&mut out, "\n");
        out
    }

    fn write_pretty(&self, out: &mut String, line: &str) {
        let inner = format!("{line}  ");
        let mut first = true;
        let mut separate = |out: &mut String| {
            out.push_str(if first { "" } else { "," });
            out.push_str(&inner);
            first = false;
        };
        match self {
            Self::Array(items) if !items.is_empty() => {
                out.push('[');
                for item in items {
                    separate(out);
                    item.write_pretty(out, &inner);
                }
                out.push_str(line);
                out.push(']');
            }
            Self::Object(fields) if !fields.is_empty() => {
                out.push('{');
                for (name, value) in fields {
                    separate(out);
                    out.push_str(&quoted(name));
                    out.push_str(": ");
                    value.write_pretty(out, &inner);
                }
                out.push_str(line);
                out.push('}');
            }
            _ => out.push_str(&self.compact()),
        }
    }

    /// How `text`, from which this value was read, is laid out.
    #[must_use]
    pub fn style(&self, text: &str) -> &'static str {
        if text == self.compact() {
            "compact"
        } else if text == self.pretty() {
            "indented"
        } else {
            "of its own layout"
        }
    }
}

fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(String, Box<RawValue>)>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key()? {
            fields.push((name, map.next_value_seed(Raw)?));
        }
        Ok(fields)
    }
}

struct Raw;

impl<'de> serde::de::DeserializeSeed<'de> for Raw {
    type Value = Box<RawValue>;

    fn deserialize<D: serde::Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        Box::<RawValue>::deserialize(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_doubles_and_the_text_of_scalars_survive() {
        let text = r#"{"b":1.0,"a":{"x":[]},"b":"\u003c<","n":null}"#;
        let json = Json::parse(text).unwrap();
        assert_eq!(json.compact(), text);
        assert_eq!(json.field("b").unwrap().as_string().unwrap(), "<<");
        assert_eq!(json.style(text), "compact");
    }

    #[test]
    fn layouts_are_told_apart() {
        let indented = "{\n  \"a\": 1,\n  \"b\": [\n    2\n  ],\n  \"c\": {}\n}";
        assert_eq!(Json::parse(indented).unwrap().style(indented), "indented");
        assert_eq!(
            Json::parse("{ \"a\": 1 }").unwrap().style("{ \"a\": 1 }"),
            "of its own layout"
        );
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in ["", "{", "{} {}", "nope", "[1,]", "{\"a\"}"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn setting_a_field_keeps_its_place() {
        let mut json = Json::parse(r#"{"a":1,"b":2}"#).unwrap();
        json.set("a", Json::string("x"));
        json.set("c", Json::Scalar("3".into()));
        assert_eq!(json.compact(), r#"{"a":"x","b":2,"c":3}"#);
    }
}
