//! Bytes as text in scripts and transcripts.
//!
//! In a script `\r \n \t \0 \\ \xHH` stand for one byte and `\{N:text}` for `text` written N times. A transcript shows
//! bytes the same way, so that a line of it can be copied into a script.

use anyhow::{Context as _, Result, bail};

/// Turns the text of a script into the bytes it stands for.
///
/// # Errors
/// For an escape that is none of the above.
pub(super) fn bytes_of(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let kind = rest.chars().next().context("a backslash at the end")?;
        rest = &rest[kind.len_utf8()..];
        match kind {
            'r' => out.push(b'\r'),
            'n' => out.push(b'\n'),
            't' => out.push(b'\t'),
            '0' => out.push(0),
            '\\' => out.push(b'\\'),
            'x' => {
                let digits = rest.get(..2).context("two hexadecimal digits behind \\x")?;
                out.push(u8::from_str_radix(digits, 16).context("two hexadecimal digits behind \\x")?);
                rest = &rest[2..];
            }
            '{' => {
                let (count, behind) = rest.split_once(':').context("\\{N:text} has a colon")?;
                let (text, behind) = behind.split_once('}').context("\\{N:text} has an end")?;
                out.extend_from_slice(bytes_of(text)?.repeat(count.parse()?).as_slice());
                rest = behind;
            }
            other => bail!("there is no escape \\{other}"),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Shows bytes as text: what is not readable, and the backslash, escaped; long runs of one byte shortened.
pub(super) fn text_of(bytes: &[u8]) -> String {
    const LONG: usize = 40;
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        let mut chars = chunk.valid().chars().peekable();
        while let Some(char) = chars.next() {
            let mut run = 1;
            while chars.next_if_eq(&char).is_some() {
                run += 1;
            }
            let shown = shown(char);
            if run > LONG {
                out.push_str(&format!("\\{{{run}:{shown}}}"));
            } else {
                out.push_str(&shown.repeat(run));
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

fn shown(char: char) -> String {
    match char {
        '\r' => "\\r".to_owned(),
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        '\0' => "\\0".to_owned(),
        '\\' => "\\\\".to_owned(),
        char if char.is_control() => char
            .to_string()
            .bytes()
            .map(|byte| format!("\\x{byte:02x}"))
            .collect(),
        char => char.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read_back() {
        for bytes in [
            b"a\r\n\t\0\\b".to_vec(),
            vec![0x80, 0xff, b'x', 1, 27],
            vec![b'z'; 100],
            "grün".into(),
        ] {
            assert_eq!(bytes_of(&text_of(&bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn repetition_counts() {
        assert_eq!(bytes_of("<\\{3:ab}>").unwrap(), b"<ababab>");
    }

    #[test]
    fn unknown_escapes_are_refused() {
        for text in ["\\q", "\\", "\\x1", "\\xzz", "\\{3:a", "\\{a:b}"] {
            assert!(bytes_of(text).is_err(), "{text}");
        }
    }
}
