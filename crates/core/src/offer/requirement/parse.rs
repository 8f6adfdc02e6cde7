//! Text to terms.

use std::collections::BTreeSet;
use std::ops::Range;

use super::region::Place;
use super::{FIELDS, Field, Op, Requirement, RequirementError, Term, Value};
use crate::diagnostic::{shown, suggestion};
use crate::unit::Bytes;

/// Most bytes of one requirement: a screen full of terms.
const TEXT_MAX: usize = 4096;

pub(super) fn requirement(text: &str) -> Result<Requirement, Vec<RequirementError>> {
    if text.len() > TEXT_MAX {
        let message = format!(
            "a requirement has at most {TEXT_MAX} bytes, not {}",
            text.len()
        );
        return Err(vec![error(message, 0..text.len(), None)]);
    }
    let mut terms = BTreeSet::new();
    let mut errors = Vec::new();
    if text.trim().is_empty() {
        return Ok(Requirement { terms });
    }
    let mut start = 0;
    for piece in text.split(',') {
        match term(piece, start) {
            Ok(term) => {
                terms.insert(term);
            }
            Err(error) => errors.push(*error),
        }
        start += piece.len() + 1;
    }
    if errors.is_empty() {
        Ok(Requirement { terms })
    } else {
        Err(errors)
    }
}

type Result<T, E = Box<RequirementError>> = std::result::Result<T, E>;

fn error(message: String, span: Range<usize>, hint: Option<String>) -> RequirementError {
    RequirementError {
        message,
        span,
        hint,
    }
}

/// A part of the text and where it begins.
#[derive(Clone, Copy)]
struct Part<'t> {
    text: &'t str,
    start: usize,
}

impl<'t> Part<'t> {
    fn trim(self) -> Self {
        let text = self.text.trim_start();
        let start = self.start + self.text.len() - text.len();
        Self {
            text: text.trim_end(),
            start,
        }
    }

    fn split(self, at: usize, skip: usize) -> (Self, Self) {
        let head = Part {
            text: &self.text[..at],
            start: self.start,
        };
        let tail = Part {
            text: &self.text[at + skip..],
            start: self.start + at + skip,
        };
        (head.trim(), tail.trim())
    }

    fn span(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    fn fail<T>(self, message: String, hint: impl Into<Option<String>>) -> Result<T> {
        Err(Box::new(error(message, self.span(), hint.into())))
    }
}

fn term(piece: &str, start: usize) -> Result<Term> {
    let whole = Part { text: piece, start }.trim();
    if whole.text.is_empty() {
        let span = Part { text: piece, start };
        return span.fail("a term is missing between the commas".to_owned(), None);
    }
    let (negated, body) = match whole.text.strip_prefix('!') {
        Some(_) => (true, whole.split(0, 1).1),
        None => (false, whole),
    };
    let found = body.text.find(['=', '!', '<', '>']);
    let (name, rest) = match found {
        Some(at) => body.split(at, 0),
        None => body.split(body.text.len(), 0),
    };
    let field = field(name)?;
    if rest.text.is_empty() {
        return bare(field, negated, whole);
    }
    let Some((sign, op)) = Op::ALL
        .into_iter()
        .find(|(sign, _)| rest.text.starts_with(sign))
    else {
        return rest.fail(
            format!("`{field}` needs one of = != >= <= > < and a value"),
            None,
        );
    };
    let values = rest.split(0, sign.len()).1;
    if values.text.starts_with('=') && op == Op::Eq {
        return rest.fail(
            "`==` is written `=`".to_owned(),
            format!("`{field}={}`", values.text.trim_start_matches('=')),
        );
    }
    let op = if negated { op.negated() } else { op };
    let values = alternatives(&field, op, values)?;
    Ok(normal(Term { field, op, values }))
}

fn field(name: Part<'_>) -> Result<Field> {
    if let Some(field) = Field::parse(&name.text.to_ascii_lowercase()) {
        return Ok(field);
    }
    if name.text.is_empty() {
        return name.fail(
            "a term begins with what it speaks of, such as `vram>=24`".to_owned(),
            None,
        );
    }
    let known: Vec<&str> = FIELDS.iter().map(|(name, _, _)| *name).collect();
    let lower = name.text.to_ascii_lowercase();
    let hint = suggestion(&lower, &known);
    name.fail(
        format!(
            "`{}` is nothing that a machine is asked for",
            shown(name.text)
        ),
        hint,
    )
}

/// A term without a value: `spot`, `!spot`, `gpu`, `!gpu`.
fn bare(field: Field, negated: bool, whole: Part<'_>) -> Result<Term> {
    let value = if field == Field::Spot {
        Value::Flag(!negated)
    } else if field == Field::Gpu {
        Value::Any
    } else {
        let message = format!("`{field}` needs a comparison and a value");
        return whole.fail(message, example(&field));
    };
    let op = if negated && field == Field::Gpu {
        Op::Ne
    } else {
        Op::Eq
    };
    Ok(Term {
        field,
        op,
        values: BTreeSet::from([value]),
    })
}

fn example(field: &Field) -> Option<String> {
    let name = if matches!(field, Field::Provider(_)) {
        "provider.FIELD".to_owned()
    } else {
        field.to_string()
    };
    let (_, _, example) = FIELDS.iter().find(|(known, _, _)| *known == name)?;
    Some(format!("such as `{example}`"))
}

fn alternatives(field: &Field, op: Op, text: Part<'_>) -> Result<BTreeSet<Value>> {
    let ordering = !matches!(op, Op::Eq | Op::Ne);
    let ordered = matches!(
        field,
        Field::Gpus
            | Field::Vram
            | Field::Cpus
            | Field::Memory
            | Field::Disk
            | Field::Cuda
            | Field::Driver
            | Field::Provider(_)
    );
    if ordering && !ordered {
        return text.fail(
            format!("`{field}` has no order: only `=` and `!=` compare it"),
            example(field),
        );
    }
    if ordering && text.text.contains('|') {
        return text.fail(
            "`|` joins values of `=` and `!=` only".to_owned(),
            "one bound is enough: the weakest".to_owned(),
        );
    }
    let mut values = BTreeSet::new();
    let mut start = text.start;
    for piece in text.text.split('|') {
        values.insert(value(field, ordering, Part { text: piece, start }.trim())?);
        start += piece.len() + 1;
    }
    Ok(values)
}

fn value(field: &Field, ordering: bool, part: Part<'_>) -> Result<Value> {
    if part.text.is_empty() {
        return part.fail(format!("a value of `{field}` is missing"), example(field));
    }
    // They would read as a comparison in canonical text.
    if part
        .text
        .contains(|c: char| c.is_control() || "=!<>\"'".contains(c))
    {
        let message = format!("`{}` cannot be a value of `{field}`", shown(part.text));
        return part.fail(message, example(field));
    }
    let text = part.text.to_lowercase();
    let wrong = |what: &str| {
        part.fail(
            format!("`{}` is not {what}", shown(part.text)),
            example(field),
        )
    };
    match field {
        Field::Gpu if text == "any" => Ok(Value::Any),
        Field::Gpu => {
            let glob = super::matching::squeeze(&text);
            if glob.is_empty() {
                wrong("the name of a GPU")
            } else {
                Ok(Value::Glob(glob))
            }
        }
        Field::Gpus | Field::Cpus => text
            .parse()
            .map(Value::Count)
            .or_else(|_| wrong("a number")),
        Field::Vram | Field::Memory | Field::Disk => match part.text.parse() {
            // Canonical text has whole KiB.
            Ok(Bytes(bytes)) => Ok(Value::Size(Bytes(bytes >> 10 << 10))),
            Err(_) => wrong("a size in GiB, or one such as 512MiB"),
        },
        Field::Cuda | Field::Driver => {
            version(&text).map_or_else(|| wrong("a version"), |numbers| Ok(Value::Version(numbers)))
        }
        Field::Region => Ok(Value::Place(Place::asked(&text))),
        Field::Arch => Ok(Value::Glob(match text.as_str() {
            "amd64" | "x64" | "x86-64" => "x86_64".to_owned(),
            "arm64" => "aarch64".to_owned(),
            _ => text,
        })),
        Field::Os => Ok(Value::Glob(if text == "darwin" {
            "macos".to_owned()
        } else {
            text
        })),
        Field::Tools => {
            let tools: BTreeSet<String> = part
                .text
                .split('+')
                .map(|tool| tool.trim().to_owned())
                .collect();
            if tools.contains("") {
                wrong("a list of programs")
            } else {
                Ok(Value::Tools(tools))
            }
        }
        Field::Spot => text
            .parse()
            .map(Value::Flag)
            .or_else(|_| wrong("`true` or `false`")),
        Field::Provider(_) if ordering && version(&text).is_none() => wrong("a number"),
        Field::Provider(_) => Ok(Value::Glob(text)),
    }
}

/// Numbers joined by dots, at most eight.
fn version(text: &str) -> Option<Vec<u32>> {
    let numbers: Option<Vec<u32>> = text
        .split('.')
        .map(|part| {
            part.bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| part.parse().ok())
                .flatten()
        })
        .collect();
    numbers.filter(|numbers| numbers.len() <= 8)
}

/// One way to say one thing.
fn normal(mut term: Term) -> Term {
    if term.field == Field::Spot && term.op == Op::Ne {
        term.op = Op::Eq;
        term.values = term
            .values
            .iter()
            .map(|value| {
                if let Value::Flag(flag) = value {
                    Value::Flag(!flag)
                } else {
                    value.clone()
                }
            })
            .collect();
    }
    if term.values.contains(&Value::Any) {
        term.values = BTreeSet::from([Value::Any]);
    }
    term
}
