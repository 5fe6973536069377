//! Reads the generated C headers, for what is generated from them: bindings for other languages.

use std::iter::Peekable;
use std::vec::IntoIter;

/// A type of C.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    Named(String),
    Pointer { to: Box<Type>, constant: bool },
    Array(Box<Type>, usize),
    Function { params: Vec<Field>, returns: Box<Type> },
}

/// A field of a struct, or a parameter of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub docs: Vec<String>,
    pub name: String,
    pub kind: Type,
}

#[derive(Clone, Debug)]
pub struct Variant {
    pub docs: Vec<String>,
    pub name: String,
    pub value: i64,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Constant(i64),
    Enum(Vec<Variant>),
    Struct(Vec<Field>),
    /// A struct whose fields nobody sees.
    Opaque,
    Alias(Type),
    Function {
        params: Vec<Field>,
        returns: Type,
    },
}

#[derive(Clone, Debug)]
pub struct Item {
    pub docs: Vec<String>,
    pub name: String,
    pub kind: Kind,
}

/// What the headers declare, in their order.
pub fn items<'a>(headers: impl Iterator<Item = &'a str>) -> Vec<Item> {
    headers.flat_map(|text| Parser::new(text).items()).collect()
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Docs(Vec<String>),
    Word(String),
    Sign(char),
    /// `#define NAME NUMBER`
    Constant(String, i64),
}

/// The lines that a compiler of C sees, and constants.
fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut code = String::new();
    while let Some(start) = rest.find("/*") {
        let (before, comment) = rest.split_at(start);
        code += before;
        let (comment, after) = comment.split_once("*/").expect("closed comment");
        if let Some(docs) = comment.strip_prefix("/**") {
            // A mark that no C text has stands for each comment.
            code += "\u{1}";
            found.push(docs_of(docs));
        }
        rest = after;
    }
    code += rest;
    let mut docs = found.into_iter();
    let mut tokens = Vec::new();
    // Whether the lines are for C, for each open condition.
    let mut conditions = Vec::new();
    let mut continued = false;
    for line in code.lines() {
        let was_continued = std::mem::replace(&mut continued, line.ends_with('\\'));
        let marks = line.chars().take_while(|c| c.is_whitespace() || *c == '\u{1}');
        let marks = marks.filter(|c| *c == '\u{1}').count();
        if let Some(directive) = line.trim_start_matches([' ', '\u{1}']).strip_prefix('#') {
            tokens.extend(docs.by_ref().take(marks).map(Token::Docs));
            let mut words = directive.split_whitespace();
            match words.next() {
                Some("ifdef") => conditions.push(words.next() != Some("__cplusplus")),
                Some("ifndef") => conditions.push(true),
                Some("else") => {
                    let open = conditions.last_mut().expect("an open condition");
                    *open = !*open;
                }
                Some("endif") => {
                    conditions.pop();
                }
                Some("define") => {
                    let constant = (words.next(), words.next().map(str::parse));
                    tokens.push(match constant {
                        (Some(name), Some(Ok(value))) => Token::Constant(name.to_owned(), value),
                        // A macro has no item: its comment must not go to the next one.
                        _ => Token::Docs(Vec::new()),
                    });
                }
                _ => {}
            }
            continue;
        }
        let seen = conditions.iter().all(|seen| *seen) && !was_continued;
        let line = line.split("//").next().unwrap_or_default();
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            let token = match c {
                '\u{1}' => Token::Docs(docs.next().expect("a comment")),
                c if c.is_whitespace() => continue,
                c if c.is_alphanumeric() || c == '_' => {
                    let mut word = String::from(c);
                    while let Some(c) = characters.next_if(|c| c.is_alphanumeric() || *c == '_') {
                        word.push(c);
                    }
                    Token::Word(word)
                }
                c => Token::Sign(c),
            };
            if seen {
                tokens.push(token);
            }
        }
    }
    tokens
}

fn docs_of(comment: &str) -> Vec<String> {
    let line = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix('*').unwrap_or(line);
        line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
    };
    let lines: Vec<String> = comment.lines().map(line).collect();
    let first = lines.iter().position(|line| !line.is_empty()).unwrap_or(0);
    let last = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines[first..last].to_vec()
}

struct Parser {
    tokens: Peekable<IntoIter<Token>>,
}

impl Parser {
    fn new(text: &str) -> Self {
        Parser { tokens: tokens(text).into_iter().peekable() }
    }

    fn items(mut self) -> Vec<Item> {
        let mut items = Vec::new();
        loop {
            let docs = self.docs();
            let (name, kind) = match self.tokens.peek().cloned() {
                None => return items,
                Some(Token::Constant(name, value)) => {
                    self.tokens.next();
                    (name, Kind::Constant(value))
                }
                Some(Token::Word(word)) if word == "typedef" => {
                    self.tokens.next();
                    self.typedef()
                }
                Some(_) => match self.declaration() {
                    (name, Type::Function { params, returns }) => {
                        (name, Kind::Function { params, returns: *returns })
                    }
                    other => panic!("expected a function, got {other:?}"),
                },
            };
            if !matches!(kind, Kind::Constant(_)) {
                self.sign(';');
            }
            items.push(Item { docs, name, kind });
        }
    }

    fn typedef(&mut self) -> (String, Kind) {
        let mut ahead = self.tokens.clone();
        let keyword = ahead.next();
        let (name, brace) = (ahead.next(), ahead.next());
        if brace == Some(Token::Sign('{')) {
            for _ in 0..3 {
                self.tokens.next();
            }
            let kind = match keyword {
                Some(Token::Word(word)) if word == "enum" => Kind::Enum(self.variants()),
                _ => Kind::Struct(self.fields()),
            };
            return (self.word(), kind);
        }
        match (keyword, name, brace) {
            (Some(Token::Word(word)), Some(Token::Word(tag)), Some(Token::Word(name)))
                if word == "struct" && tag == name =>
            {
                for _ in 0..3 {
                    self.tokens.next();
                }
                (name, Kind::Opaque)
            }
            _ => {
                let (name, kind) = self.declaration();
                (name, Kind::Alias(kind))
            }
        }
    }

    fn variants(&mut self) -> Vec<Variant> {
        let mut variants = Vec::new();
        loop {
            let docs = self.docs();
            if self.take('}') {
                return variants;
            }
            let name = self.word();
            self.sign('=');
            let negative = self.take('-');
            let value: i64 = self.word().parse().expect("a number");
            variants.push(Variant { docs, name, value: if negative { -value } else { value } });
            self.take(',');
        }
    }

    fn fields(&mut self) -> Vec<Field> {
        let mut fields = Vec::new();
        loop {
            let docs = self.docs();
            if self.take('}') {
                return fields;
            }
            let (name, kind) = self.declaration();
            self.sign(';');
            fields.push(Field { docs, name, kind });
        }
    }

    /// A type and the name that it is given: `const T *name`, `T name[3]`, `T (*name)(T)`, `T name(T)`.
    fn declaration(&mut self) -> (String, Type) {
        let mut constant = self.word_is("const");
        while self.word_is("struct") || self.word_is("enum") {}
        let mut kind = Type::Named(self.word());
        loop {
            constant |= self.word_is("const");
            if !self.take('*') {
                break;
            }
            kind = Type::Pointer { to: Box::new(kind), constant };
            constant = false;
        }
        if self.take('(') {
            self.sign('*');
            let name = self.word();
            self.sign(')');
            self.sign('(');
            let function = Type::Function { params: self.params(), returns: Box::new(kind) };
            return (name, Type::Pointer { to: Box::new(function), constant: false });
        }
        let unnamed = matches!(self.tokens.peek(), Some(Token::Sign(',' | ')')));
        let name = if unnamed { String::new() } else { self.word() };
        if self.take('(') {
            let function = Type::Function { params: self.params(), returns: Box::new(kind) };
            return (name, function);
        }
        if self.take('[') {
            let length = self.word().parse().expect("a length");
            self.sign(']');
            kind = Type::Array(Box::new(kind), length);
        }
        (name, kind)
    }

    fn params(&mut self) -> Vec<Field> {
        let mut params = Vec::new();
        while !self.take(')') {
            let (name, kind) = self.declaration();
            if kind != Type::Named("void".into()) {
                params.push(Field { docs: Vec::new(), name, kind });
            }
            self.take(',');
        }
        params
    }

    fn docs(&mut self) -> Vec<String> {
        let mut docs = Vec::new();
        while let Some(Token::Docs(_)) = self.tokens.peek() {
            let Some(Token::Docs(lines)) = self.tokens.next() else { unreachable!() };
            docs = lines;
        }
        docs
    }

    fn word(&mut self) -> String {
        match self.tokens.next() {
            Some(Token::Word(word)) => word,
            other => panic!("expected a word, got {other:?}"),
        }
    }

    fn word_is(&mut self, word: &str) -> bool {
        self.tokens.next_if(|token| *token == Token::Word(word.to_owned())).is_some()
    }

    fn take(&mut self, sign: char) -> bool {
        self.tokens.next_if(|token| *token == Token::Sign(sign)).is_some()
    }

    fn sign(&mut self, sign: char) {
        let got = self.tokens.next();
        assert_eq!(got, Some(Token::Sign(sign)));
    }
}
