//! The structure of the configuration language: pairs, maps, arrays, includes and variables.
//!
//! ```text
//! file  = { pair | include } | "{" pairs "}"        pair  = key [ "=" | ":" ] value
//! map   = "{" pairs "}"                             array = "[" { value ( "," | NEWLINE ) } "]"
//! ```
//!
//! What the grammar accepts, and the words in which it refuses the rest, follow nats-server 2.15. The
//! differences are where that server guesses: a key without a value inside a map, an unknown unit behind a
//! number, a quote or an array still open at the end of the file and bytes that are not UTF-8 are errors here.
//!
//! Recursion follows the nesting of maps and arrays and stops at the limit that [`Session`] sets.

use std::sync::Arc;

use winnow::stream::Location as _;

use super::error::SyntaxError;
use super::lexer::{
    self, Fault, Input, Scalar, comment, fault, is_blank, is_line_end, next, peek, run, shown,
};
use super::source::{Lines, Session};
use super::value::{Map, Node, Value};

/// Beginning of a bcrypt hash behind `$`, which is text and not a variable.
const BCRYPT: &str = "2a$";

/// A key as it was read, with the offset of its first byte.
struct Key<'i> {
    text: &'i str,
    offset: usize,
}

/// What stands before a value.
enum Head<'i> {
    Key(Key<'i>),
    Include,
}

/// Parses the text of one file or variable. `file` names it in positions.
pub(super) fn parse(session: &mut Session<'_>, text: &str, file: &str) -> Result<Map, SyntaxError> {
    let mut grammar = Grammar {
        session,
        input: Input::new(text),
        lines: Lines::new(text.as_bytes()),
        file: file.into(),
        scopes: vec![Map::default()],
    };
    grammar.document()?;
    Ok(grammar.scopes.pop().unwrap_or_default())
}

/// The parser of one file.
struct Grammar<'s, 'e, 'i> {
    session: &'s mut Session<'e>,
    input: Input<'i>,
    lines: Lines,
    file: Arc<str>,
    /// The maps being read, outermost first.
    scopes: Vec<Map>,
}

impl<'i> Grammar<'_, '_, 'i> {
    /// The whole file: pairs, inside or outside of braces.
    fn document(&mut self) -> Result<(), SyntaxError> {
        let mut braces = 0_usize;
        loop {
            run(&mut self.input, char::is_whitespace).map_err(|f| self.refuse(f))?;
            match peek(&self.input) {
                '{' => {
                    next(&mut self.input);
                    braces += 1;
                }
                '}' if braces > 0 => {
                    next(&mut self.input);
                    braces = self.close_brace(braces)?;
                }
                '#' => self.skip_comment()?,
                '/' => {
                    next(&mut self.input);
                    if peek(&self.input) != '/' {
                        return Err(self.fail("Unexpected EOF."));
                    }
                    self.skip_comment()?;
                }
                '\0' if self.at_end() => return Ok(()),
                '\0' => return Err(self.fail("Unexpected EOF.")),
                _ => {
                    if !self.document_pair()? {
                        return Ok(());
                    }
                    braces = self.document_value_end(braces)?;
                }
            }
        }
    }

    /// A pair or an include outside of maps. False at a brace that closes nothing at the end of the file.
    fn document_pair(&mut self) -> Result<bool, SyntaxError> {
        let key = match self.document_key()? {
            Head::Include => {
                self.include()?;
                return Ok(true);
            }
            Head::Key(key) => key,
        };
        self.skip(char::is_whitespace)?;
        match peek(&self.input) {
            '=' | ':' => {
                next(&mut self.input);
                // A value on the next line is legal only without a separator.
                self.skip(is_blank)?;
            }
            '\0' if key.text == "}" => return Ok(false),
            '\0' => {
                let position = self.lines.position(self.offset(), &self.file);
                return Err(SyntaxError::Incomplete { position });
            }
            _ => {}
        }
        self.pair_value(&key)?;
        Ok(true)
    }

    fn document_key(&mut self) -> Result<Head<'i>, SyntaxError> {
        match peek(&self.input) {
            c @ ('=' | ':') => Err(self.fail(format!("Unexpected key separator '{c}'"))),
            quote @ ('"' | '\'') => self.quoted_key(quote, "Unexpected EOF."),
            _ => self.bare_key(None),
        }
    }

    /// What may follow a pair outside of maps. Returns the number of open braces.
    fn document_value_end(&mut self, braces: usize) -> Result<usize, SyntaxError> {
        loop {
            match next(&mut self.input) {
                '#' => {
                    self.skip_comment()?;
                    if braces == 0 {
                        return Ok(0);
                    }
                }
                '/' => {
                    // A lone slash counts as a blank.
                    if peek(&self.input) == '/' {
                        self.skip_comment()?;
                        if braces == 0 {
                            return Ok(0);
                        }
                    }
                }
                c if is_blank(c) => {}
                c if is_line_end(c) || c == ';' || c == ',' => return Ok(braces),
                '}' if braces > 0 => return self.close_brace(braces),
                '}' => return Ok(0),
                '\0' if braces == 0 => {
                    if self.at_end() {
                        return Ok(0);
                    }
                    return Err(self.fail("Unexpected EOF."));
                }
                c => {
                    let level = if braces == 0 { "top" } else { "block" };
                    return Err(self.fail(format!(
                        "Expected a {level}-level value to end with a new line, comment or EOF, \
                         but got '{}' instead.",
                        shown(c)
                    )));
                }
            }
        }
    }

    /// Behind a closing brace outside of maps; `open` counts it. Inner braces must be followed by more.
    fn close_brace(&mut self, open: usize) -> Result<usize, SyntaxError> {
        let mut braces = open - 1;
        while braces > 0 {
            match next(&mut self.input) {
                '#' => {
                    self.skip_comment()?;
                    break;
                }
                '/' => {
                    if peek(&self.input) == '/' {
                        self.skip_comment()?;
                        break;
                    }
                }
                c if is_blank(c) || is_line_end(c) => {}
                ';' | ',' => break,
                '}' => braces -= 1,
                c => {
                    return Err(self.fail(format!(
                        "Expected a block-level to end with a '}}', but got '{}' instead.",
                        shown(c)
                    )));
                }
            }
        }
        Ok(braces)
    }

    /// The pairs of a map. The stream stands behind the opening brace; the pairs go to the innermost scope.
    fn map(&mut self) -> Result<(), SyntaxError> {
        loop {
            self.skip(char::is_whitespace)?;
            let head = match peek(&self.input) {
                '}' => {
                    next(&mut self.input);
                    return Ok(());
                }
                c @ ('=' | ':') => return Err(self.fail(format!("Unexpected key separator '{c}'."))),
                ']' => return Err(self.fail("Unexpected array end ']' processing map.")),
                '\0' => return Err(self.fail("Unexpected EOF processing map.")),
                '#' => {
                    self.skip_comment()?;
                    continue;
                }
                '/' => {
                    next(&mut self.input);
                    if peek(&self.input) == '/' {
                        self.skip_comment()?;
                        continue;
                    }
                    self.bare_key(Some("Unexpected EOF processing map key."))?
                }
                '\'' => self.quoted_key('\'', "Unexpected EOF processing quoted map key.")?,
                '"' => self.quoted_key('"', "Unexpected EOF processing double quoted map key.")?,
                _ => self.bare_key(Some("Unexpected EOF processing map key."))?,
            };
            match head {
                Head::Include => self.include()?,
                Head::Key(key) => {
                    self.skip(char::is_whitespace)?;
                    if matches!(peek(&self.input), '=' | ':') {
                        next(&mut self.input);
                        self.skip(char::is_whitespace)?;
                    }
                    match peek(&self.input) {
                        ',' => {
                            next(&mut self.input);
                            return Err(self.fail("Unexpected map value terminator \",\"."));
                        }
                        '}' => {
                            next(&mut self.input);
                            return Err(self.fail("Expected value but found end of the map"));
                        }
                        _ => self.pair_value(&key)?,
                    }
                }
            }
            if self.map_value_end()? {
                return Ok(());
            }
        }
    }

    /// What may follow a pair in a map. True when the map ends.
    fn map_value_end(&mut self) -> Result<bool, SyntaxError> {
        loop {
            self.skip(is_blank)?;
            match next(&mut self.input) {
                '#' => self.skip_comment()?,
                '/' => {
                    if peek(&self.input) != '/' {
                        return Ok(false);
                    }
                    self.skip_comment()?;
                }
                '}' => return Ok(true),
                c if is_line_end(c) || c == ';' || c == ',' => return Ok(false),
                c => {
                    return Err(self.fail(format!(
                        "Expected a map value terminator \",\" or a map terminator \"}}\", \
                         but got '{}' instead.",
                        shown(c)
                    )));
                }
            }
        }
    }

    /// The elements of an array. The stream stands behind the opening bracket.
    fn array(&mut self) -> Result<Vec<Node>, SyntaxError> {
        let mut items = Vec::new();
        loop {
            self.skip(char::is_whitespace)?;
            match peek(&self.input) {
                '#' => {
                    self.skip_comment()?;
                    continue;
                }
                c @ ('/' | ',') => {
                    next(&mut self.input);
                    if c == '/' && peek(&self.input) == '/' {
                        self.skip_comment()?;
                        continue;
                    }
                    return Err(self.fail("Unexpected array value terminator ','."));
                }
                ']' => {
                    next(&mut self.input);
                    return Ok(items);
                }
                _ => {}
            }
            let (value, offset) = self.value()?;
            items.push(Node::new(value, self.lines.position(offset, &self.file)));
            if self.array_value_end()? {
                return Ok(items);
            }
        }
    }

    /// What may follow an element. True when the array ends.
    fn array_value_end(&mut self) -> Result<bool, SyntaxError> {
        loop {
            self.skip(is_blank)?;
            match next(&mut self.input) {
                '#' => self.skip_comment()?,
                '/' => {
                    if peek(&self.input) != '/' {
                        return Ok(false);
                    }
                    self.skip_comment()?;
                }
                ']' => return Ok(true),
                c if is_line_end(c) || c == ',' => return Ok(false),
                c => {
                    return Err(self.fail(format!(
                        "Expected an array value terminator \",\" or an array terminator \"]\", \
                         but got '{}' instead.",
                        shown(c)
                    )));
                }
            }
        }
    }

    /// A key in quotes; nothing is escaped in it.
    fn quoted_key(&mut self, quote: char, eof: &str) -> Result<Head<'i>, SyntaxError> {
        next(&mut self.input);
        let offset = self.offset();
        let text = self.run(|c| c != quote && c != '\0')?;
        if peek(&self.input) == '\0' {
            return Err(self.fail(eof));
        }
        next(&mut self.input);
        Ok(Head::Key(Key { text, offset }))
    }

    /// A key without quotes, or the word `include`. With `eof` the file must not end behind it.
    fn bare_key(&mut self, eof: Option<&str>) -> Result<Head<'i>, SyntaxError> {
        let offset = self.offset();
        let start: &'i str = self.input.as_ref();
        // The first character belongs to the key whatever it is.
        next(&mut self.input);
        self.run(|c| !c.is_whitespace() && !matches!(c, '=' | ':' | '\0'))?;
        let text = &start[..self.offset() - offset];
        let end = peek(&self.input);
        if let Some(eof) = eof.filter(|_| end == '\0') {
            return Err(self.fail(eof));
        }
        if end.is_whitespace() && text.eq_ignore_ascii_case("include") {
            return Ok(Head::Include);
        }
        Ok(Head::Key(Key { text, offset }))
    }

    fn pair_value(&mut self, key: &Key<'_>) -> Result<(), SyntaxError> {
        let (value, _) = self.value()?;
        let end = key.offset + key.text.len();
        let mut position = self.lines.position(key.offset, &self.file);
        position.line = self.lines.line(end);
        self.insert(key.text, Node::new(value, position));
        Ok(())
    }

    fn insert(&mut self, key: &str, node: Node) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(key, node);
        }
    }

    /// A value and the offset that stands for it inside an array.
    fn value(&mut self) -> Result<(Value, usize), SyntaxError> {
        self.skip(is_blank)?;
        let offset = self.offset();
        match peek(&self.input) {
            '{' => {
                next(&mut self.input);
                self.session.enter()?;
                self.scopes.push(Map::default());
                self.map()?;
                self.session.leave();
                let map = self.scopes.pop().unwrap_or_default();
                Ok((Value::Map(map), self.offset()))
            }
            '[' => {
                next(&mut self.input);
                self.session.enter()?;
                let items = self.array()?;
                self.session.leave();
                Ok((Value::Array(items), self.offset()))
            }
            c if is_line_end(c) => {
                next(&mut self.input);
                Err(self.fail("Expected value but found new line"))
            }
            c => {
                let scalar = lexer::scalar(&mut self.input).map_err(|f| self.refuse(f))?;
                let value = match scalar {
                    Scalar::Text(text) => Value::String(text),
                    Scalar::Bool(flag) => Value::Bool(flag),
                    Scalar::Integer(number) => Value::Integer(number),
                    Scalar::Float(number) => Value::Float(number),
                    Scalar::DateTime(text) => Value::DateTime(text.to_owned()),
                    Scalar::Variable(name) => self.variable(name)?,
                };
                let quoted = matches!(c, '"' | '\'' | '(');
                Ok((value, offset + usize::from(quoted)))
            }
        }
    }

    /// The value of `$name`: of the nearest enclosing map that has it so far, else of the environment.
    fn variable(&mut self, name: &str) -> Result<Value, SyntaxError> {
        if name.starts_with(BCRYPT) {
            return Ok(Value::String(format!("${name}")));
        }
        for scope in self.scopes.iter_mut().rev() {
            if let Some(node) = scope.get_mut(name) {
                node.used = true;
                let (weight, height) = (node.weight, node.height);
                let value = node.value.clone();
                self.session.grow(weight)?;
                self.session.check_depth(height)?;
                return Ok(value);
            }
        }
        let line = self.lines.line(self.offset());
        match self.session.variable(name) {
            Ok(Some(value)) => {
                let height = Node::new(value.clone(), self.lines.position(0, &self.file)).height;
                self.session.check_depth(height)?;
                Ok(value)
            }
            Ok(None) => Err(SyntaxError::VariableNotFound {
                name: name.to_owned(),
                line,
            }),
            Err(source @ SyntaxError::TooLarge { .. }) => Err(source),
            Err(source) => Err(SyntaxError::VariableNotParsed {
                name: name.to_owned(),
                line,
                source: Box::new(source),
            }),
        }
    }

    /// An include. The stream stands behind the word; the entries of the file go to the innermost scope.
    fn include(&mut self) -> Result<(), SyntaxError> {
        self.skip(is_blank)?;
        let refused = match peek(&self.input) {
            quote @ ('"' | '\'') => {
                next(&mut self.input);
                let name = self.run(|c| c != quote && c != '\0')?;
                if next(&mut self.input) != quote {
                    let kind = if quote == '"' { "double quoted" } else { "quoted" };
                    return Err(self.fail(format!("Unexpected EOF in {kind} include")));
                }
                return self.merge(name);
            }
            '[' => "start of an array",
            '{' => "start of a map",
            '(' => "start of a block",
            '\\' => "escape sequence",
            c if c.is_ascii_digit() || c == '-' => "start of a number",
            c if is_line_end(c) => "new line",
            _ => {
                let ends = |c: char| is_line_end(c) || is_blank(c) || matches!(c, '\0' | ';' | '}' | '\'');
                let name = self.run(|c| !ends(c))?;
                if peek(&self.input) == '\'' {
                    next(&mut self.input);
                }
                return self.merge(name);
            }
        };
        next(&mut self.input);
        Err(self.fail(format!("Expected include value but found {refused}")))
    }

    fn merge(&mut self, name: &str) -> Result<(), SyntaxError> {
        let file = self.file.clone();
        let map = self.session.include(name, &file)?;
        for (key, node) in map.into_entries() {
            self.insert(&key, node);
        }
        Ok(())
    }

    fn offset(&self) -> usize {
        self.input.current_token_start()
    }

    fn at_end(&self) -> bool {
        self.input.is_empty()
    }

    fn run(&mut self, wanted: impl Fn(char) -> bool) -> Result<&'i str, SyntaxError> {
        run(&mut self.input, wanted).map_err(|f| self.refuse(f))
    }

    fn skip(&mut self, wanted: impl Fn(char) -> bool) -> Result<(), SyntaxError> {
        self.run(wanted).map(drop)
    }

    fn skip_comment(&mut self) -> Result<(), SyntaxError> {
        comment(&mut self.input).map_err(|f| self.refuse(f))
    }

    fn fail(&self, message: impl Into<String>) -> SyntaxError {
        self.refuse(fault(&self.input, message))
    }

    fn refuse(&self, fault: Fault) -> SyntaxError {
        let line = self.lines.line(fault.offset);
        let message = fault.message;
        if fault.located {
            SyntaxError::Unexpected { line, message }
        } else {
            SyntaxError::Unrepresentable { line, message }
        }
    }
}
