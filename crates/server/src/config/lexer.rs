//! The smallest pieces of the configuration language: scalars, comments, blanks.
//!
//! Every function takes a winnow stream that stands at the piece's first character and leaves it behind the
//! last one. A [`Fault`] carries the byte offset *behind* the character that was not acceptable, which is
//! where nats-server counts its lines; an end of input reads as NUL, and NUL as an end of input.
//!
//! Some rules look odd and are deliberate, because files written for nats-server depend on them: a bare word
//! that starts with digits and a unit (`2m`) is a number, one with another tail (`30s`) is text; a single
//! quote ends a bare word; digits followed by `-` must be a date.

use time::PrimitiveDateTime;
use time::macros::format_description;
use winnow::Parser as _;
use winnow::error::ParserError;
use winnow::stream::LocatingSlice;
use winnow::stream::{Location as _, Stream};
use winnow::token::{take_till, take_while};

/// The text being parsed.
pub(super) type Input<'i> = LocatingSlice<&'i str>;
type Checkpoint<'i> = <Input<'i> as Stream>::Checkpoint;

/// Why a piece could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Offset behind the offending character.
    pub(super) offset: usize,
    /// The text, without position.
    pub(super) message: String,
    /// Whether the text is shown with its line.
    pub(super) located: bool,
}

impl<'i> ParserError<Input<'i>> for Fault {
    type Inner = Self;

    fn from_input(input: &Input<'i>) -> Self {
        fault(input, "Unexpected input.")
    }

    fn into_inner(self) -> Result<Self::Inner, Self> {
        Ok(self)
    }
}

/// A fault at the present place.
pub(super) fn fault(input: &Input<'_>, message: impl Into<String>) -> Fault {
    Fault {
        offset: input.current_token_start(),
        message: message.into(),
        located: true,
    }
}

fn plain_fault(input: &Input<'_>, message: String) -> Fault {
    Fault {
        located: false,
        ..fault(input, message)
    }
}

/// A character inside an error text.
pub(super) fn shown(c: char) -> String {
    if c == '\n' {
        "\\n".to_owned()
    } else {
        c.to_string()
    }
}

/// The next character without taking it.
pub(super) fn peek(input: &Input<'_>) -> char {
    input.peek_token().unwrap_or('\0')
}

/// Takes the next character.
pub(super) fn next(input: &mut Input<'_>) -> char {
    input.next_token().unwrap_or('\0')
}

/// Takes a run of characters for which `wanted` holds; it may be empty.
pub(super) fn run<'i>(input: &mut Input<'i>, wanted: impl Fn(char) -> bool) -> Result<&'i str, Fault> {
    take_while(0.., wanted).parse_next(input)
}

/// Blanks within a line.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

/// Ends of lines.
pub(super) fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

/// Takes the rest of a comment up to, not including, the end of its line.
pub(super) fn comment(input: &mut Input<'_>) -> Result<(), Fault> {
    take_till(0.., |c| is_line_end(c) || c == '\0')
        .void()
        .parse_next(input)
}

/// A value that is neither a map nor an array.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar<'i> {
    /// Text.
    Text(String),
    /// A bare word that reads as a boolean.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a decimal point.
    Float(f64),
    /// A date and time, checked.
    DateTime(&'i str),
    /// The name of a variable, without `$`.
    Variable(&'i str),
}

/// Reads a scalar. The stream stands at its first character.
pub(super) fn scalar<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    match peek(input) {
        '\'' => raw_string(input),
        '"' => quoted_string(input),
        '(' => block_string(input),
        '-' => negative_number(input),
        c if c.is_ascii_digit() => number(input),
        '.' => {
            next(input);
            Err(fault(input, "Floats must start with a digit"))
        }
        _ => bare_word(input),
    }
}

/// `'…'`, nothing escaped.
fn raw_string<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    next(input);
    let text = run(input, |c| c != '\'' && c != '\0')?;
    if next(input) == '\'' {
        Ok(Scalar::Text(text.to_owned()))
    } else {
        Err(fault(input, "Unexpected EOF."))
    }
}

/// `"…"` with escapes.
fn quoted_string<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    next(input);
    let mut bytes = Vec::new();
    loop {
        bytes.extend_from_slice(run(input, |c| !matches!(c, '"' | '\\' | '\0'))?.as_bytes());
        match next(input) {
            '"' => return text_of(input, bytes),
            '\\' => escape(input, &mut bytes)?,
            _ => return Err(fault(input, "Unexpected EOF.")),
        }
    }
}

fn text_of<'i>(input: &Input<'i>, bytes: Vec<u8>) -> Result<Scalar<'i>, Fault> {
    String::from_utf8(bytes)
        .map(Scalar::Text)
        .map_err(|_| fault(input, "String with \\x escapes is not valid UTF-8"))
}

/// What follows a backslash.
fn escape(input: &mut Input<'_>, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    match next(input) {
        't' => bytes.push(b'\t'),
        'n' => bytes.push(b'\n'),
        'r' => bytes.push(b'\r'),
        '"' => bytes.push(b'"'),
        '\\' => bytes.push(b'\\'),
        'x' => bytes.push(hex_byte(input)?),
        c => {
            let message = format!(
                "Invalid escape character '{}'. Only the following escape characters are allowed: \
                 \\xXX, \\t, \\n, \\r, \\\", \\\\.",
                shown(c)
            );
            return Err(fault(input, message));
        }
    }
    Ok(())
}

fn hex_byte(input: &mut Input<'_>) -> Result<u8, Fault> {
    let mut digits = String::new();
    for _ in 0..2 {
        let c = next(input);
        if is_line_end(c) {
            return Err(fault(
                input,
                "Expected two hexadecimal digits after '\\x', but hit end of line",
            ));
        }
        digits.push(c);
    }
    u8::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| !digits.starts_with('+'))
        .ok_or_else(|| {
            fault(
                input,
                format!("Expected two hexadecimal digits after '\\x', but got '{digits}'"),
            )
        })
}

/// `(`, lines, and `)` alone on its line. The content is raw, line ends included.
fn block_string<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    next(input);
    let rest: &'i str = input.as_ref();
    let rest = &rest[..rest.find('\0').unwrap_or(rest.len())];
    let end = rest
        .match_indices("\n)")
        .map(|(at, _)| at + 1)
        .find(|end| matches!(rest.as_bytes().get(end + 1), None | Some(b'\n')));
    let Some(end) = end else {
        input.finish();
        return Err(fault(input, "Unexpected EOF processing block."));
    };
    let text = input.next_slice(end).to_owned();
    next(input);
    Ok(Scalar::Text(text))
}

/// A word without quotes: a boolean, a variable or text.
fn bare_word<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    let start = input.checkpoint();
    bare_word_from(input, &start)
}

/// The same when the word began at `start` and a part of it is taken already.
fn bare_word_from<'i>(input: &mut Input<'i>, start: &Checkpoint<'i>) -> Result<Scalar<'i>, Fault> {
    let ends =
        |c: char| is_line_end(c) || is_blank(c) || matches!(c, '\0' | ';' | ',' | ']' | '}' | '\'' | '\\');
    run(input, |c| !ends(c))?;
    let word = since(input, start);
    match peek(input) {
        '\\' => {}
        '\'' => {
            next(input);
            return Ok(Scalar::Text(word.to_owned()));
        }
        _ => return Ok(classify(word)),
    }
    let mut bytes = word.as_bytes().to_vec();
    loop {
        match peek(input) {
            '\\' => {
                next(input);
                escape(input, &mut bytes)?;
            }
            '\'' => {
                next(input);
                return text_of(input, bytes);
            }
            c if ends(c) => return text_of(input, bytes),
            _ => bytes.extend_from_slice(run(input, |c| !ends(c))?.as_bytes()),
        }
    }
}

fn classify(word: &str) -> Scalar<'_> {
    let is = |names: [&str; 3]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
    if is(["true", "yes", "on"]) {
        Scalar::Bool(true)
    } else if is(["false", "no", "off"]) {
        Scalar::Bool(false)
    } else if let Some(name) = word.strip_prefix('$') {
        Scalar::Variable(name)
    } else {
        Scalar::Text(word.to_owned())
    }
}

/// Whether a number may end before `c`.
fn ends_number(c: char) -> bool {
    is_line_end(c) || is_blank(c) || matches!(c, '\0' | '}' | ';' | ',')
}

/// A number, a date, an IP address, or a word that begins with digits.
fn number<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    let start = input.checkpoint();
    let whole = run(input, |c| c.is_ascii_digit())?;
    match peek(input) {
        '-' => {
            next(input);
            if whole.len() != 4 {
                return Err(fault(input, "All ISO8601 dates must be in full Zulu form."));
            }
            date_after_year(input, &start)
        }
        '.' => {
            next(input);
            decimals(input, &start)
        }
        c if unit_letter(c) => with_unit(input, &start),
        // A closing bracket ends a number here; nats-server takes it for a part of the word.
        c if ends_number(c) || c == ']' => integer(input, whole),
        // Whatever comes next belongs to the word, even a quote or a backslash.
        _ => {
            next(input);
            bare_word_from(input, &start)
        }
    }
}

fn negative_number<'i>(input: &mut Input<'i>) -> Result<Scalar<'i>, Fault> {
    let start = input.checkpoint();
    next(input);
    let c = next(input);
    if !c.is_ascii_digit() {
        let message = if c == '.' {
            "Floats must start with a digit, not '.'.".to_owned()
        } else {
            format!("Expected a digit but got '{}'.", shown(c))
        };
        return Err(fault(input, message));
    }
    run(input, |c| c.is_ascii_digit())?;
    match peek(input) {
        '.' => {
            next(input);
            decimals(input, &start)
        }
        c if unit_letter(c) => with_unit(input, &start),
        _ => {
            let text = since(input, &start);
            integer(input, text)
        }
    }
}

/// The text from `start` to the present place.
fn since<'i>(input: &Input<'i>, start: &Checkpoint<'i>) -> &'i str {
    let end = input.current_token_start();
    let mut from = *input;
    from.reset(start);
    let length = end - from.current_token_start();
    from.next_slice(length)
}

fn unit_letter(c: char) -> bool {
    matches!(c.to_ascii_lowercase(), 'k' | 'm' | 'g' | 't' | 'p' | 'e')
}

/// A whole number with a unit such as `64MB`, or a word that only looked like one.
fn with_unit<'i>(input: &mut Input<'i>, start: &Checkpoint<'i>) -> Result<Scalar<'i>, Fault> {
    next(input);
    run(input, |c| matches!(c, 'b' | 'B' | 'i' | 'I'))?;
    let c = peek(input);
    if ends_number(c) {
        let text = since(input, start);
        return integer(input, text);
    }
    input.reset(start);
    bare_word(input)
}

/// The value of `text`: digits, an optional sign before them, an optional unit behind.
fn integer<'i>(input: &Input<'i>, text: &str) -> Result<Scalar<'i>, Fault> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '-')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let unit = unit.to_ascii_lowercase();
    let (base, power): (i64, u32) = match unit.as_str() {
        "" => (1, 0),
        "k" => (1000, 1),
        "m" => (1000, 2),
        "g" => (1000, 3),
        "t" => (1000, 4),
        "p" => (1000, 5),
        "e" => (1000, 6),
        "kb" | "ki" | "kib" => (1024, 1),
        "mb" | "mi" | "mib" => (1024, 2),
        "gb" | "gi" | "gib" => (1024, 3),
        "tb" | "ti" | "tib" => (1024, 4),
        "pb" | "pi" | "pib" => (1024, 5),
        "eb" | "ei" | "eib" => (1024, 6),
        _ => {
            return Err(plain_fault(
                input,
                format!("integer '{text}' has an unknown unit"),
            ));
        }
    };
    digits
        .parse::<i64>()
        .ok()
        .and_then(|number| number.checked_mul(base.checked_pow(power)?))
        .map(Scalar::Integer)
        .ok_or_else(|| plain_fault(input, format!("integer '{text}' is out of the range")))
}

/// What follows the point of a number: decimals, or the rest of an IP address with its port.
fn decimals<'i>(input: &mut Input<'i>, start: &Checkpoint<'i>) -> Result<Scalar<'i>, Fault> {
    let c = next(input);
    if !c.is_ascii_digit() {
        let message = format!(
            "Floats must have a digit after the '.', but got '{}' instead.",
            shown(c)
        );
        return Err(fault(input, message));
    }
    run(input, |c| c.is_ascii_digit())?;
    if peek(input) == '.' {
        run(input, |c| c.is_ascii_digit() || matches!(c, '.' | ':' | '-'))?;
        return Ok(Scalar::Text(since(input, start).to_owned()));
    }
    let text = since(input, start);
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Scalar::Float(number)),
        _ => Err(plain_fault(input, format!("float '{text}' is out of the range"))),
    }
}

/// The rest of `2016-05-04T18:53:41Z` behind the first `-`.
fn date_after_year<'i>(input: &mut Input<'i>, start: &Checkpoint<'i>) -> Result<Scalar<'i>, Fault> {
    for wanted in "00-00T00:00:00Z".chars() {
        let c = next(input);
        if wanted == '0' && !c.is_ascii_digit() {
            let message = format!(
                "Expected digit in ISO8601 datetime, but found '{}' instead.",
                shown(c)
            );
            return Err(fault(input, message));
        }
        if wanted != '0' && c != wanted {
            let message = format!(
                "Expected '{wanted}' in ISO8601 datetime, but found '{}' instead.",
                shown(c)
            );
            return Err(fault(input, message));
        }
    }
    let text = since(input, start);
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    match PrimitiveDateTime::parse(text, format) {
        Ok(_) => Ok(Scalar::DateTime(text)),
        Err(_) => Err(plain_fault(
            input,
            format!("expected Zulu formatted DateTime, but got '{text}'"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Scalar<'_>, String> {
        scalar(&mut Input::new(text)).map_err(|fault| fault.message)
    }

    fn text(text: &str) -> Result<Scalar<'static>, String> {
        Ok(Scalar::Text(text.to_owned()))
    }

    #[test]
    fn integers_take_decimal_and_binary_units_in_any_case() {
        for (word, number) in [
            ("0", 0),
            ("-1", -1),
            ("1k", 1_000),
            ("1K", 1_000),
            ("1kb", 1_024),
            ("1KiB", 1_024),
            ("1ki", 1_024),
            ("64MiB", 64 << 20),
            ("10GiB", 10 << 30),
            ("2m", 2_000_000),
            ("3G", 3_000_000_000),
            ("4T", 4_000_000_000_000),
            ("4tb", 4 << 40),
            ("5p", 5_000_000_000_000_000),
            ("5PB", 5 << 50),
            ("1e", 1_000_000_000_000_000_000),
            ("1EB", 1 << 60),
            ("-2k", -2_000),
        ] {
            assert_eq!(read(word), Ok(Scalar::Integer(number)), "{word}");
        }
    }

    #[test]
    fn words_that_only_begin_with_digits_are_text() {
        for word in [
            "30s",
            "300ms",
            "1h",
            "1h30m",
            "1abc",
            "2mx",
            "1e3",
            "1kb3",
            "1m2",
            "10.0.0.1",
            "127.0.0.1:4222",
            "1.2.3-4",
        ] {
            assert_eq!(read(word), text(word), "{word}");
        }
    }

    #[test]
    fn words_end_at_their_terminators() {
        for (word, expected) in [
            ("foo.>,x", "foo.>"),
            ("a;b", "a"),
            ("nats://a:4222 x", "nats://a:4222"),
            ("a]", "a"),
            ("a}", "a"),
            ("a'b", "a"),
            ("12'b", "12'b"),
            ("12\\t", "12\\t"),
            ("a\r\n", "a"),
            (",", ""),
            ("", ""),
            ("$JS.API", "$"),
        ] {
            let expected = if expected == "$" {
                Ok(Scalar::Variable("JS.API"))
            } else {
                text(expected)
            };
            assert_eq!(read(word), expected, "{word}");
        }
    }

    #[test]
    fn booleans_are_bare_words_in_any_case() {
        for word in ["true", "Yes", "ON"] {
            assert_eq!(read(word), Ok(Scalar::Bool(true)), "{word}");
        }
        for word in ["FALSE", "no", "Off"] {
            assert_eq!(read(word), Ok(Scalar::Bool(false)), "{word}");
        }
        assert_eq!(read("\"true\""), text("true"));
        assert_eq!(read("'on'"), text("on"));
    }

    #[test]
    fn strings_take_the_listed_escapes() {
        assert_eq!(read(r#""a\tb\n\r\"\\\x41""#), text("a\tb\n\r\"\\A"));
        assert_eq!(read(r"'a\t'"), text(r"a\t"));
        assert_eq!(read(r"a\x41b"), text("aAb"));
        assert_eq!(read(r#""\xc3\xa9""#), text("é"));
        assert_eq!(read("\"two\nlines\""), text("two\nlines"));
    }

    #[test]
    fn block_strings_end_at_a_lone_parenthesis() {
        assert_eq!(read("(\nfoo (bar)\n )\n)\n"), text("\nfoo (bar)\n )\n"));
        assert_eq!(read("(\nx\n)"), text("\nx\n"));
        assert_eq!(read("(\nx )"), Err("Unexpected EOF processing block.".to_owned()));
    }

    #[test]
    fn dates_and_floats() {
        assert_eq!(
            read("2016-05-04T18:53:41Z"),
            Ok(Scalar::DateTime("2016-05-04T18:53:41Z"))
        );
        assert_eq!(read("1.5"), Ok(Scalar::Float(1.5)));
        assert_eq!(read("-0.5"), Ok(Scalar::Float(-0.5)));
    }

    #[test]
    fn bad_scalars_are_refused_with_the_known_texts() {
        for (word, message) in [
            ("\"abc", "Unexpected EOF."),
            ("'abc", "Unexpected EOF."),
            (".5", "Floats must start with a digit"),
            ("-.5", "Floats must start with a digit, not '.'."),
            ("-x", "Expected a digit but got 'x'."),
            (
                "1.x",
                "Floats must have a digit after the '.', but got 'x' instead.",
            ),
            ("12-3", "All ISO8601 dates must be in full Zulu form."),
            (
                "2016-05x",
                "Expected '-' in ISO8601 datetime, but found 'x' instead.",
            ),
            (
                "2016-x",
                "Expected digit in ISO8601 datetime, but found 'x' instead.",
            ),
            (
                "2016-13-04T18:53:41Z",
                "expected Zulu formatted DateTime, but got '2016-13-04T18:53:41Z'",
            ),
            (
                "99999999999999999999",
                "integer '99999999999999999999' is out of the range",
            ),
            ("10e", "integer '10e' is out of the range"),
            (
                r#""\q""#,
                "Invalid escape character 'q'. Only the following escape characters are allowed: \
                 \\xXX, \\t, \\n, \\r, \\\", \\\\.",
            ),
            (
                "\"\\x\n",
                "Expected two hexadecimal digits after '\\x', but hit end of line",
            ),
            (
                r#""\xzz""#,
                "Expected two hexadecimal digits after '\\x', but got 'zz'",
            ),
            (r#""\xff""#, "String with \\x escapes is not valid UTF-8"),
        ] {
            assert_eq!(read(word), Err(message.to_owned()), "{word}");
        }
    }
}
