//! The JSON Schema of the topology file, for editors, out of the definition of the keys.
//!
//! Draft 7, which the TOML language servers read. It is as strict as a schema can be: what refers to other tables, and what
//! arithmetic decides, only the reader checks.

use serde_json::{Map, Value, json};

use super::keys::{Key, Kind, Need, ROOT, TableDef};
use crate::offer::FIELDS;

const NAME: &str = "^[a-z][a-z0-9-]{0,23}$";

const ENV_NAME: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

const VAR_NAME: &str = "^[a-z][a-z0-9_-]{0,47}$";

/// The JSON Schema of the topology file.
pub fn schema() -> Value {
    let mut schema = table(&ROOT, true);
    let top = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://github.com/stageline/stageline/topology.schema.json",
        "title": "stageline topology",
        "definitions": {
            "variable": {
                "description": "A variable: it takes the type of its place.",
                "type": "string",
                "pattern": r"^\$\{ *var\.[a-z0-9_-]+ *\}$",
            },
            "secret": secret(),
        },
    });
    if let (Some(schema), Value::Object(top)) = (schema.as_object_mut(), top) {
        schema.extend(top);
    }
    schema
}

fn table(def: &TableDef, strict: bool) -> Value {
    let properties: Map<String, Value> = def
        .keys
        .iter()
        .map(|key| (key.name.to_owned(), property(key)))
        .collect();
    let required: Vec<&str> = def
        .keys
        .iter()
        .filter(|key| strict && matches!(key.need, Need::Required))
        .map(|key| key.name)
        .collect();
    json!({
        "description": def.doc,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(key: &Key) -> Value {
    let mut schema = of_kind(&key.kind);
    let Some(fields) = schema.as_object_mut() else {
        return schema;
    };
    let doc = match key.need {
        Need::Optional("") | Need::Required => key.doc.to_owned(),
        Need::Optional(otherwise) => format!("{} Without it: {otherwise}.", key.doc),
        Need::Default(text) => format!("{} Default: {text}.", key.doc),
    };
    fields.insert("description".to_owned(), json!(doc));
    if let Need::Default(text) = key.need {
        fields.insert("default".to_owned(), default(&key.kind, text));
    }
    schema
}

/// A default as the type that people write.
fn default(kind: &Kind, text: &str) -> Value {
    if matches!(
        kind,
        Kind::Integer { .. } | Kind::Money { .. } | Kind::Size { .. } | Kind::Bool
    ) {
        serde_json::from_str(text).unwrap_or_else(|_| json!(text))
    } else {
        json!(text)
    }
}

/// A schema that a variable may stand for too.
fn or_variable(schema: &Value) -> Value {
    json!({ "anyOf": [schema, { "$ref": "#/definitions/variable" }] })
}

fn strings() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn some(items: &Value) -> Value {
    json!({ "type": "array", "items": items, "minItems": 1 })
}

/// A span of time, or one of these words, each with a bar behind it.
fn duration(words: &str, examples: &[&str]) -> Value {
    let pattern = format!("^({words}([0-9]+(ms|s|m|h|d))+)$");
    or_variable(&json!({ "type": "string", "pattern": pattern, "examples": examples }))
}

fn of_kind(kind: &Kind) -> Value {
    match kind {
        Kind::Version => json!({ "type": "integer", "const": 1 }),
        Kind::OwnName { min } => json!({ "type": "string", "pattern": NAME, "minLength": min }),
        Kind::NameOf(_) => json!({ "type": "string" }),
        Kind::NamesOf(_) => {
            json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "uniqueItems": true })
        }
        Kind::Text | Kind::File => json!({ "type": "string" }),
        Kind::Scalar => {
            json!({ "anyOf": [{ "type": ["string", "number", "boolean"] }, { "$ref": "#/definitions/secret" }] })
        }
        Kind::Bool => or_variable(&json!({ "type": "boolean" })),
        Kind::Choice(choices) => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let meanings: Vec<&str> = choices.iter().map(|(_, meaning)| *meaning).collect();
            let mut schema = or_variable(&json!({ "enum": names }));
            schema["x-taplo"] = json!({ "docs": { "enumValues": meanings } });
            schema
        }
        Kind::Integer { min, max } => {
            or_variable(&json!({ "type": "integer", "minimum": min, "maximum": max }))
        }
        Kind::Size { min_gib } => size(*min_gib),
        Kind::Money { zero } => money(*zero),
        Kind::Duration => duration("", &["90s", "20m", "12h", "3d"]),
        Kind::Limit => duration("never|", &["20m", "12h", "never"]),
        Kind::Url => {
            or_variable(&json!({ "type": "string", "pattern": r"^(https?://|\$\{|[^:]*\$\{)" }))
        }
        Kind::StateUrl => or_variable(
            &json!({ "type": "string", "minLength": 1, "examples": ["file://./state", "s3://bucket/prefix"] }),
        ),
        Kind::Sha256 => or_variable(&json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" })),
        Kind::Secret => {
            json!({ "anyOf": [{ "$ref": "#/definitions/secret" }, { "$ref": "#/definitions/variable" }] })
        }
        Kind::Argv => some(&json!({ "type": "string" })),
        Kind::Texts => strings(),
        Kind::Env => {
            json!({ "type": "object", "propertyNames": { "pattern": ENV_NAME }, "additionalProperties": { "type": "string" } })
        }
        Kind::SecretEnv => {
            json!({ "type": "object", "additionalProperties": { "anyOf": [{ "$ref": "#/definitions/secret" }, { "$ref": "#/definitions/variable" }] } })
        }
        Kind::Layers => {
            or_variable(&json!({ "type": "string", "pattern": r"^ *[0-9]+ *\.\. *[0-9]+ *$|\$\{" }))
        }
        Kind::Where => requirement(),
        Kind::Listen => json!({ "type": "string", "examples": ["127.0.0.1:8080"] }),
        Kind::LeaseAddress => json!({ "type": "string", "pattern": r"^lease\.|\$\{" }),
        Kind::LeaseAddresses => {
            let one = json!({ "type": "string", "pattern": r"^lease\.|\$\{" });
            json!({ "anyOf": [one, some(&one)] })
        }
        Kind::LeaseRange => json!({ "type": "string", "pattern": r"^lease\.|\$\{" }),
        Kind::Tables(def) => json!({ "type": "array", "items": table(def, true) }),
        Kind::Vars(def) => json!({
            "type": "object",
            "propertyNames": { "pattern": VAR_NAME },
            "additionalProperties": { "anyOf": [{ "type": ["string", "number", "boolean"] }, table(def, true)] },
        }),
        Kind::Table(def) => table(def, true),
        Kind::BoolOrTable(def) => json!({ "anyOf": [of_kind(&Kind::Bool), table(def, true)] }),
        Kind::ChoiceOrTable(choices, def) => {
            json!({ "anyOf": [of_kind(&Kind::Choice(choices)), table(def, true)] })
        }
        Kind::Named(def) => named(def),
        Kind::Stages(one, auto) => json!({ "anyOf": [some(&table(one, true)), table(auto, true)] }),
    }
}

fn money(zero: bool) -> Value {
    let number = if zero {
        json!({ "type": "number", "minimum": 0 })
    } else {
        json!({ "type": "number", "exclusiveMinimum": 0 })
    };
    json!({ "anyOf": [number, { "type": "string", "pattern": r"^\$?[0-9]+(\.[0-9]{0,6})?$" }, { "$ref": "#/definitions/variable" }] })
}

fn size(min_gib: u64) -> Value {
    json!({ "anyOf": [
        { "type": "number", "minimum": min_gib },
        { "type": "string", "pattern": r"^[0-9]+(\.[0-9]{0,6})? ?([KMGT]iB)?$" },
        { "$ref": "#/definitions/variable" },
    ] })
}

fn named(def: &TableDef) -> Value {
    let mut inner = table(def, true);
    // Single stages by number, as a later file gives them: any part of a stage.
    let stage = def.keys.iter().find_map(|key| {
        let Kind::Stages(one, _) = key.kind else {
            return None;
        };
        Some(table(one, false))
    });
    if let Some(stage) = stage {
        inner["properties"]["stage"] = json!({
            "description": "Single stages by number, laid over `stages`.",
            "type": "object",
            "patternProperties": { "^[0-9]+$": stage },
            "additionalProperties": false,
        });
    }
    json!({ "type": "object", "patternProperties": { NAME: inner }, "additionalProperties": false })
}

fn secret() -> Value {
    let command = some(&json!({ "type": "string" }));
    json!({
        "description": "A secret by reference.",
        "type": "object",
        "properties": {
            "env": { "description": "An environment variable.", "type": "string" },
            "file": { "description": "A regular file that only its owner can read.", "type": "string" },
            "command": command,
        },
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": false,
    })
}

fn requirement() -> Value {
    let value = json!({ "type": ["string", "number", "boolean", "array"] });
    let mut properties: Map<String, Value> = FIELDS
        .iter()
        .filter(|(name, _, _)| !name.contains('.'))
        .map(|(name, meaning, example)| {
            let mut schema = value.clone();
            schema["description"] = json!(format!("{meaning}; as text: {example}"));
            ((*name).to_owned(), schema)
        })
        .collect();
    properties.insert("reliability".to_owned(), value.clone());
    properties.insert(
        "provider".to_owned(),
        json!({ "description": "Fields that only this provider has.", "type": "object", "additionalProperties": value }),
    );
    json!({ "anyOf": [
        { "type": "string", "examples": ["gpu=rtx_4090|rtx_3090, vram>=24, region=EU"] },
        { "type": "object", "properties": properties, "patternProperties": { r"^provider\.": value }, "additionalProperties": false },
    ] })
}
