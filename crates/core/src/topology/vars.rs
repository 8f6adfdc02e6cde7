//! Variables: their declarations, the values given from outside, and `${var.x}` in string values.
//!
//! The value of a secret variable is never held here: it becomes a reference to where it can be read. Values from the
//! command line and the environment are taken as they are, without interpolation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::SecretRef;
use super::convert;
use super::keys::{Kind, TableDef, VAR_TYPES};
use super::read::{Field, Fields, Reader};
use super::value::{self, At, Node, SourceFile, Table, Value};
use crate::diagnostic::{Diagnostic, shown, suggestion};

/// What the environment variables that give values begin with; the variable's name in capitals follows, `-` as `_`.
pub const ENV_PREFIX: &str = "STAGELINE_VAR_";

/// Values of variables from outside, as the caller gathered them. Each kind overrides the one before.
#[derive(Clone, Default)]
pub struct VarSources {
    /// `--var NAME=VALUE`, in order; the last of a name holds.
    pub cli: Vec<(String, String)>,
    /// `--var-file FILE.toml`, in order; the last that has a name holds.
    pub files: Vec<SourceFile>,
    /// Environment variables by their whole names; those without [`ENV_PREFIX`] are passed over.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for VarSources {
    /// Names only: values of the environment may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VarSources")
            .field(
                "cli",
                &self.cli.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
            .field(
                "files",
                &self.files.iter().map(|file| &file.name).collect::<Vec<_>>(),
            )
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// The type that a variable is declared with, in the order of [`VAR_TYPES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    String,
    Integer,
    Number,
    Bool,
}

const TYPES: [Type; 4] = [Type::String, Type::Integer, Type::Number, Type::Bool];

struct Declaration {
    at: At,
    secret: bool,
    r#type: Option<Type>,
    /// The value that holds; none was reported.
    value: Option<Value>,
}

/// The declared variables with their values.
pub(super) struct Vars<'a> {
    pub(super) reader: &'a Reader<'a>,
    declared: BTreeMap<String, Declaration>,
    used: std::cell::RefCell<BTreeSet<String>>,
}

/// Reads the declarations and lays the values from outside over them.
pub(super) fn declare<'a>(
    reader: &'a Reader<'a>,
    root: &'a Table,
    def: &'static TableDef,
    sources: &VarSources,
    var_files: &[Table],
) -> Vars<'a> {
    let mut vars = Vars {
        reader,
        declared: BTreeMap::new(),
        used: std::cell::RefCell::default(),
    };
    if let Some(entry) = root.entries.get("vars") {
        let table = entry.node.value.table();
        if table.is_none() {
            let message = format!(
                "`vars` must be a table, this is {}",
                entry.node.value.what()
            );
            reader.report(
                entry.node.at,
                Diagnostic::error("topology/wrong-type", message),
            );
        }
        for (name, entry) in table.into_iter().flat_map(|table| &table.entries) {
            let declaration = vars.declaration(name, entry, def);
            vars.declared.insert(name.clone(), declaration);
        }
    }
    vars.take_cli(sources);
    vars.take_files(var_files);
    vars.take_env(sources);
    vars.require();
    vars
}

impl<'a> Vars<'a> {
    fn declaration(
        &self,
        name: &str,
        entry: &'a value::Entry,
        def: &'static TableDef,
    ) -> Declaration {
        let mut declaration = Declaration {
            at: entry.key_at,
            secret: false,
            r#type: None,
            value: None,
        };
        if !is_var_name(name) {
            let message = format!("`{}` is not the name of a variable", shown(name));
            let hint = "a lower-case letter, then at most 47 of a-z, 0-9, `_` and `-`";
            self.reader.report(
                entry.key_at,
                Diagnostic::error("topology/bad-name", message).hint(hint),
            );
        }
        let Value::Table(table) = &entry.node.value else {
            self.take_default(&mut declaration, name, &entry.node);
            return declaration;
        };
        let fields = Fields::open(
            self.reader,
            def,
            table,
            format!("vars.{name}"),
            entry.key_at,
        );
        declaration.secret = fields.read("secret", convert::boolean).unwrap_or(false);
        declaration.r#type = fields.read("type", |field| convert::choice(field, &TYPES));
        let required = fields.read("required", convert::boolean).unwrap_or(false);
        if required && fields.has("default") {
            let message = format!("var.{name} is required and has a default");
            fields.fault(
                fields.at_key("default"),
                "topology/conflict",
                message,
                "keep one of the two",
            );
        }
        if declaration.secret && fields.has("type") {
            let message = format!("var.{name} is a secret, which has no type");
            fields.fault(
                fields.at_key("type"),
                "topology/conflict",
                message,
                "remove `type`",
            );
        }
        if let Some(field) = fields.get("default") {
            if declaration.secret {
                declaration.value =
                    Some(convert::secret(field).map_or(Value::Faulty, Value::Secret));
            } else {
                self.take_default(&mut declaration, name, field.node);
            }
        }
        declaration
    }

    fn take_default(&self, declaration: &mut Declaration, name: &str, node: &Node) {
        if let Value::Text(text) = &node.value
            && text.contains("${")
        {
            let message =
                format!("the default of var.{name} has `${{` in it; defaults are not interpolated");
            self.reader.report(
                node.at,
                Diagnostic::error("topology/interpolation", message),
            );
        }
        let own = match &node.value {
            Value::Text(_) => Some(Type::String),
            Value::Integer(_) => Some(Type::Integer),
            Value::Float(_) => Some(Type::Number),
            Value::Bool(_) => Some(Type::Bool),
            Value::Datetime(_)
            | Value::List(_)
            | Value::Table(_)
            | Value::Untyped(_)
            | Value::Faulty
            | Value::Secret(_) => None,
        };
        if own.is_none() {
            let message = format!(
                "the default of var.{name} must be a string, a number or a bool, this is {}",
                node.value.what()
            );
            self.reader
                .report(node.at, Diagnostic::error("topology/wrong-type", message));
            declaration.value = Some(Value::Faulty);
            return;
        }
        declaration.r#type = declaration.r#type.or(own);
        declaration.value = self.typed(declaration, name, &node.value, node.at);
    }

    /// The value if it is of the declared type, else a diagnostic and a harmless value.
    fn typed(&self, declaration: &Declaration, name: &str, value: &Value, at: At) -> Option<Value> {
        let fits = match (declaration.r#type, value) {
            (None, _)
            | (Some(Type::String), Value::Text(_))
            | (Some(Type::Integer), Value::Integer(_))
            | (Some(Type::Number), Value::Integer(_) | Value::Float(_))
            | (Some(Type::Bool), Value::Bool(_)) => true,
            (Some(_), _) => false,
        };
        if !fits {
            let message = format!(
                "var.{name} must be {}, this is {}",
                type_name(declaration.r#type),
                value.what()
            );
            self.reader
                .report(at, Diagnostic::error("topology/variable-type", message));
            return Some(Value::Faulty);
        }
        Some(value.clone())
    }

    fn known(&self) -> Vec<&str> {
        self.declared.keys().map(String::as_str).collect()
    }

    fn take_cli(&mut self, sources: &VarSources) {
        for (name, text) in &sources.cli {
            let Some(declaration) = self.declared.get(name) else {
                let message = format!(
                    "--var {}: no such variable is declared in [vars]",
                    shown(name)
                );
                let hint = suggestion(name, &self.known());
                self.reader.report_nowhere(
                    Diagnostic::error("topology/unknown-variable", message).hint(hint),
                );
                continue;
            };
            if declaration.secret {
                let message = format!(
                    "--var {name}: a secret on the command line can be seen by everyone on this computer"
                );
                let hint = format!(
                    "set {}{} in the environment, or give a reference in a --var-file",
                    ENV_PREFIX,
                    env_name(name)
                );
                self.reader.report_nowhere(
                    Diagnostic::error("topology/secret-variable", message).hint(hint),
                );
                continue;
            }
            let value = self.parse_text(declaration.r#type, name, text, "--var");
            self.set(name, value);
        }
    }

    fn take_files(&mut self, var_files: &[Table]) {
        for (name, entry) in var_files.iter().flat_map(|table| &table.entries) {
            let Some(declaration) = self.declared.get(name) else {
                let message = format!("variable `{}` is not declared in [vars]", shown(name));
                let hint = suggestion(name, &self.known());
                self.reader.report(
                    entry.key_at,
                    Diagnostic::error("topology/unknown-variable", message).hint(hint),
                );
                continue;
            };
            let value = if declaration.secret {
                let key = SECRET_DEFAULT;
                let field = Field {
                    reader: self.reader,
                    key,
                    label: name,
                    node: &entry.node,
                };
                Some(convert::secret(field).map_or(Value::Faulty, Value::Secret))
            } else {
                let mut given = Declaration {
                    value: None,
                    ..*declaration
                };
                match &entry.node.value {
                    Value::Table(_) | Value::List(_) | Value::Datetime(_) => {
                        self.take_default(&mut given, name, &entry.node);
                        given.value
                    }
                    Value::Text(_)
                    | Value::Integer(_)
                    | Value::Float(_)
                    | Value::Bool(_)
                    | Value::Untyped(_)
                    | Value::Faulty
                    | Value::Secret(_) => {
                        self.typed(&given, name, &entry.node.value, entry.node.at)
                    }
                }
            };
            self.set(name, value);
        }
    }

    fn take_env(&mut self, sources: &VarSources) {
        let by_env: BTreeMap<String, String> = self
            .declared
            .keys()
            .flat_map(|name| [(env_name(name), name.clone()), (name.clone(), name.clone())])
            .collect();
        for (whole, text) in &sources.env {
            let Some(short) = whole.strip_prefix(ENV_PREFIX) else {
                continue;
            };
            let Some(name) = by_env.get(short) else {
                let message = format!(
                    "the environment variable {} names no variable of [vars]",
                    shown(whole)
                );
                self.reader
                    .report_nowhere(Diagnostic::warning("topology/unknown-variable", message));
                continue;
            };
            let declaration = &self.declared[name];
            let value = if declaration.secret {
                Some(Value::Secret(SecretRef::Env(whole.clone())))
            } else {
                self.parse_text(declaration.r#type, name, text, whole)
            };
            if sources
                .cli
                .iter()
                .any(|(given, cli)| given == name && cli != text)
                && !declaration.secret
            {
                let message = format!("var.{name}: {whole} in the environment overrides --var");
                let hint = format!("unset {whole} to use the value of the command line");
                self.reader.report_nowhere(
                    Diagnostic::warning("topology/variable-overridden", message).hint(hint),
                );
            }
            self.set(name, value);
        }
    }

    fn set(&mut self, name: &str, value: Option<Value>) {
        if let Some(declaration) = self.declared.get_mut(name) {
            declaration.value = value.or(Some(Value::Faulty));
        }
    }

    /// A text from outside as the declared type. The text is not repeated: it may be private.
    fn parse_text(
        &self,
        r#type: Option<Type>,
        name: &str,
        text: &str,
        source: &str,
    ) -> Option<Value> {
        let value = match r#type {
            None => Some(Value::Untyped(text.to_owned())),
            Some(Type::String) => Some(Value::Text(text.to_owned())),
            Some(Type::Integer) => text
                .parse::<i64>()
                .ok()
                .map(|n| Value::Integer(n.to_string())),
            Some(Type::Number) => is_decimal(text).then(|| Value::Float(text.to_owned())),
            Some(Type::Bool) => text.parse().ok().map(Value::Bool),
        };
        if value.is_none() {
            let message = format!(
                "var.{name}: the value from {source} is not {}",
                type_name(r#type)
            );
            self.reader
                .report_nowhere(Diagnostic::error("topology/variable-type", message));
        }
        value
    }

    /// Every variable must have a value.
    fn require(&self) {
        for (name, declaration) in &self.declared {
            if declaration.value.is_none() {
                let message = format!("var.{name} has no value");
                let env = env_name(name);
                let hint = if declaration.secret {
                    format!("set {ENV_PREFIX}{env} in the environment, or give it a `default`")
                } else {
                    format!("give --var {name}=VALUE or set {ENV_PREFIX}{env}")
                };
                self.reader.report(
                    declaration.at,
                    Diagnostic::error("topology/variable-unset", message).hint(hint),
                );
            }
        }
    }

    /// The value of a variable; a faulty one was reported.
    pub(super) fn lookup(&self, name: &str, at: At) -> Value {
        let Some(declaration) = self.declared.get(name) else {
            let message = format!("variable `{}` is not declared", shown(name));
            let hint = if self.declared.is_empty() {
                "no [vars] are declared".to_owned()
            } else {
                suggestion(name, &self.known())
            };
            self.reader.report(
                at,
                Diagnostic::error("topology/unknown-variable", message).hint(hint),
            );
            return Value::Faulty;
        };
        self.used.borrow_mut().insert(name.to_owned());
        declaration.value.clone().unwrap_or(Value::Faulty)
    }

    /// Warns of variables that nothing uses.
    pub(super) fn warn_unused(&self) {
        let used = self.used.borrow();
        for (name, declaration) in &self.declared {
            if !used.contains(name) {
                let message = format!("var.{name} is not used");
                self.reader.report(
                    declaration.at,
                    Diagnostic::warning("topology/unused", message),
                );
            }
        }
    }
}

/// The key under which a secret in a file of variables is read.
const SECRET_DEFAULT: &super::keys::Key = &super::keys::Key {
    name: "value",
    kind: Kind::Secret,
    need: super::keys::Need::Required,
    change: super::keys::Change::None,
    doc: "The value of a secret variable.",
    example: "{ env = \"NAME\" }",
};

fn is_var_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let rest = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    first && rest && name.len() <= 48
}

fn env_name(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

fn type_name(r#type: Option<Type>) -> &'static str {
    r#type
        .and_then(|t| TYPES.iter().position(|known| *known == t))
        .and_then(|index| VAR_TYPES.get(index))
        .map_or("any type", |(_, doc)| doc)
}

fn is_decimal(text: &str) -> bool {
    let plain = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    digits(whole) && digits(fraction)
}
