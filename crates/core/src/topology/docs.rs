//! `explain KEY` and the reference page, out of the definition of the keys.

use std::fmt::Write as _;

use super::keys::{Change, Choice, Key, Kind, Need, ROOT, TableDef};
use super::read::first_sentence;
use crate::offer::FIELDS;

/// A key with the path that leads to it, such as `lease.NAME.count`.
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) key: &'static Key,
}

/// Every key with its path, tables before what is in them.
pub(super) fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    collect(&ROOT, "", &mut all);
    all
}

fn collect(def: &'static TableDef, prefix: &str, all: &mut Vec<Entry>) {
    for key in def.keys {
        let path = format!("{prefix}{}", key.name);
        all.push(Entry {
            path: path.clone(),
            key,
        });
        for (suffix, inner) in tables_in(&key.kind) {
            collect(inner, &format!("{path}{suffix}."), all);
        }
    }
}

/// The tables that a kind leads to, with what stands between its path and theirs.
pub(super) fn tables_in(kind: &Kind) -> Vec<(&'static str, &'static TableDef)> {
    match kind {
        Kind::Table(def) | Kind::BoolOrTable(def) | Kind::ChoiceOrTable(_, def) => vec![("", def)],
        Kind::Named(def) | Kind::Vars(def) => vec![(".NAME", def)],
        Kind::Tables(def) => vec![("[]", def)],
        Kind::Stages(list, auto) => vec![("[]", list), ("", auto)],
        Kind::Version
        | Kind::OwnName { .. }
        | Kind::NameOf(_)
        | Kind::NamesOf(_)
        | Kind::Text
        | Kind::Scalar
        | Kind::Bool
        | Kind::Choice(_)
        | Kind::Integer { .. }
        | Kind::Size { .. }
        | Kind::Money { .. }
        | Kind::Duration
        | Kind::Limit
        | Kind::File
        | Kind::Url
        | Kind::StateUrl
        | Kind::Sha256
        | Kind::Secret
        | Kind::Argv
        | Kind::Texts
        | Kind::Env
        | Kind::SecretEnv
        | Kind::Layers
        | Kind::Where
        | Kind::Listen
        | Kind::LeaseAddress
        | Kind::LeaseRange
        | Kind::LeaseAddresses => Vec::new(),
    }
}

/// What a value of this kind looks like.
pub(super) fn kind_text(kind: &Kind) -> String {
    match kind {
        Kind::Version => "the number 1".to_owned(),
        Kind::OwnName { min } => format!("a name of {min} to 24 characters: a-z, then a-z, 0-9, `-`"),
        Kind::NameOf(table) => format!("the name of a `[{table}.NAME]`"),
        Kind::NamesOf(table) => format!("a list of names of `[{table}.NAME]`, none twice"),
        Kind::Text => "a string".to_owned(),
        Kind::Scalar => "a string, a number or a bool; of a secret variable a secret by reference".to_owned(),
        Kind::Bool => "`true` or `false`".to_owned(),
        Kind::Choice(choices) => {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            if names.len() == 1 { format!("{} (the only one yet)", names[0]) } else { names.join(", ") }
        }
        Kind::Integer { min, max } => format!("a whole number, {min} to {max}"),
        Kind::Size { min_gib } => format!("a size: GiB, or a string such as \"512MiB\"; at least {min_gib} GiB"),
        Kind::Money { .. } => "US dollars, at most six decimals".to_owned(),
        Kind::Duration => "a duration such as \"90s\", \"20m\", \"1h30m\", \"3d\"; 1s to ten years".to_owned(),
        Kind::Limit => "a duration such as \"90s\", \"20m\", \"1h30m\", \"3d\", 1s to ten years; or \"never\"".to_owned(),
        Kind::File => "a path".to_owned(),
        Kind::Url => "a URL, https:// or http://, without a password in it".to_owned(),
        Kind::StateUrl => "a folder, or s3://, gs:// or az:// with a bucket and a prefix".to_owned(),
        Kind::Sha256 => "64 hexadecimal digits".to_owned(),
        Kind::Secret => "a secret by reference: `{ env = \"NAME\" }`, `{ file = \"path\" }` or `{ command = [\"program\"] }`".to_owned(),
        Kind::Argv => "a list of strings: a program and its arguments".to_owned(),
        Kind::Texts => "a list of strings".to_owned(),
        Kind::Env => "a table of strings by environment variable".to_owned(),
        Kind::SecretEnv => "a table of secrets by environment variable".to_owned(),
        Kind::Layers => "a range \"a..b\", b not included".to_owned(),
        Kind::Where => "a requirement, as string or table".to_owned(),
        Kind::Listen => "\"ADDRESS:PORT\" on the loopback".to_owned(),
        Kind::LeaseAddress => "the address of a lease, \"lease.NAME[i]\"".to_owned(),
        Kind::LeaseAddresses => "\"lease.NAME\", \"lease.NAME[i]\", or a list of them".to_owned(),
        Kind::LeaseRange => "\"lease.NAME\" or \"lease.NAME[i]\"".to_owned(),
        Kind::Tables(_) => "a list of tables".to_owned(),
        Kind::Vars(_) => "a table of variables".to_owned(),
        Kind::Table(_) => "a table".to_owned(),
        Kind::BoolOrTable(_) => "`true`, `false`, or a table".to_owned(),
        Kind::ChoiceOrTable(choices, _) => {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!("{}, or a table", names.join(", "))
        }
        Kind::Named(_) => "tables by name".to_owned(),
        Kind::Stages(..) => "a list of tables, or a table".to_owned(),
    }
}

fn need_text(need: &Need) -> String {
    match need {
        Need::Required => "required".to_owned(),
        Need::Default(text) => text.to_string(),
        Need::Optional(text) => (*text).to_owned(),
    }
}

fn change_text(change: &Change) -> &'static str {
    match change {
        Change::None => "changes no resource by itself",
        Change::Update => "updates in place",
        Change::Replace => "replaces the resource",
        Change::Words(text) => text,
    }
}

/// The documentation of a key or table, or the keys that were probably meant.
///
/// A key is given by its path, with or without the names in it: `lease.gpu.count`, `lease.count`, or just `count`, which
/// explains each key of that name.
pub fn explain(key: &str) -> Result<String, Vec<String>> {
    let all = entries();
    let asked: Vec<&str> = key
        .split('.')
        .map(|part| part.split('[').next().unwrap_or(part).trim())
        .collect();
    let mut found: Vec<&Entry> = all
        .iter()
        .filter(|entry| is_path(&segments(&entry.path), &asked))
        .collect();
    if let ([last], true) = (asked.as_slice(), found.is_empty()) {
        found = all.iter().filter(|entry| entry.key.name == *last).collect();
    }
    if found.is_empty() {
        return Err(near(key, &all));
    }
    let texts: Vec<String> = found.into_iter().map(explain_entry).collect();
    Ok(texts.join("\n"))
}

fn segments(path: &str) -> Vec<&str> {
    path.split('.')
        .map(|part| part.trim_end_matches("[]"))
        .collect()
}

/// Whether a path is the one asked for; names may be left out.
fn is_path(path: &[&str], asked: &[&str]) -> bool {
    match (path.split_first(), asked.split_first()) {
        (None, None) => true,
        (Some((&"NAME", rest)), asked_first) => {
            is_path(rest, asked) || asked_first.is_some_and(|(_, asked)| is_path(rest, asked))
        }
        (Some((first, rest)), Some((word, asked))) => first == word && is_path(rest, asked),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn near(key: &str, all: &[Entry]) -> Vec<String> {
    const SHOWN: usize = 5;
    let last = key.rsplit('.').next().unwrap_or(key);
    let mut scored: Vec<(usize, &str)> = all
        .iter()
        .map(|entry| {
            let whole = strsim::damerau_levenshtein(
                key.get(..64).unwrap_or(key),
                &entry.path.replace("NAME.", ""),
            );
            let name = strsim::damerau_levenshtein(last.get(..32).unwrap_or(last), entry.key.name);
            (
                whole.min(name + usize::from(key.contains('.'))),
                entry.path.as_str(),
            )
        })
        .filter(|(distance, _)| *distance <= 1.max(key.len() / 3))
        .collect();
    scored.sort_unstable();
    if scored.is_empty() {
        return ROOT.keys.iter().map(|key| key.name.to_owned()).collect();
    }
    scored
        .into_iter()
        .take(SHOWN)
        .map(|(_, path)| path.to_owned())
        .collect()
}

fn explain_entry(entry: &Entry) -> String {
    let key = entry.key;
    let mut text = format!("{}\n  {}\n", entry.path, key.doc);
    let _ = writeln!(text, "\n  type       {}", kind_text(&key.kind));
    match key.need {
        Need::Required => text.push_str("  required\n"),
        Need::Default(_) => {
            let _ = writeln!(text, "  default    {}", need_text(&key.need));
        }
        Need::Optional("") => {}
        Need::Optional(otherwise) => {
            let _ = writeln!(text, "  without    {otherwise}");
        }
    }
    let _ = writeln!(text, "  on change  {}", change_text(&key.change));
    let _ = writeln!(text, "  example    {} = {}", key.name, key.example);
    if let Kind::Choice(choices) = key.kind {
        text.push('\n');
        for (name, meaning) in choices {
            let _ = writeln!(text, "  {name:<10} {meaning}");
        }
    }
    if matches!(key.kind, Kind::Where) {
        text.push('\n');
        for (name, meaning, example) in FIELDS {
            let _ = writeln!(text, "  {name:<14} {meaning}; such as {example}");
        }
    }
    for (suffix, def) in tables_in(&key.kind) {
        let _ = writeln!(text, "\n  keys of {}{suffix}", entry.path);
        for key in def.keys {
            let _ = writeln!(text, "    {:<20} {}", key.name, first_sentence(key.doc));
        }
    }
    text
}

/// What to try for a key that [`explain`] does not know: the keys that it gave.
pub fn explain_hint(near: &[String]) -> String {
    let list: Vec<String> = near.iter().map(|path| format!("`{path}`")).collect();
    match list.as_slice() {
        [] => String::new(),
        [one] => format!("did you mean {one}?"),
        several => format!("try one of {}", several.join(", ")),
    }
}

const INTRODUCTION: &str = "\
# Every key of the topology file

<!-- Written from the definition in crates/core/src/topology/keys.rs: change that, then `UPDATE_GOLDEN=1 cargo test -p stageline-core`. -->

A topology is TOML, by default `topology.toml`. `stageline validate` shows all faults of it at once, `stageline explain KEY`
prints the documentation of a key, and `stageline schema` writes the JSON Schema from which editors complete.

Rules for all of it

* Tables are named by `^[a-z][a-z0-9-]{0,23}$`, and a table's path is its address: `[lease.gpu]` with `count = 2` is
  `lease.gpu[0]` and `lease.gpu[1]`.
* Sizes are in GiB (a number, or a string such as \"512MiB\"). Durations are strings: \"90s\", \"20m\", \"1h30m\", \"3d\". Money is in US dollars
  with at most six decimals, as a number or a string, and is kept as whole micro-dollars.
* A secret is `{ env = \"NAME\" }`, `{ file = \"path\" }` (a regular file that only its owner can read) or `{ command = [\"program\"] }` (one line on
  its standard output). A plain string is refused where a secret is expected.
* Where two limits apply to one thing, the smaller wins. 0 means \"no cap\" only where it says so.
* Several `-f` files make one topology: tables merge key by key, inline ones too; any other value, lists included, is replaced by the later file. Of keys
  that exclude each other (`path` and `url` of a model, `env`, `file` and `command` of a secret) the later file's one stays. A later file may change
  single stages as `[pipeline.NAME.stage.1]`, numbered from 0. Paths are relative to the first file.

## Variables

`${var.NAME}` in a string value stands for a variable of `[vars]`; `$${` writes `${` itself. A string that is nothing but one variable takes the variable's
type, so `count = \"${var.n}\"` works; where a string is needed, a number or bool becomes one. A variable without a default and a type takes the type that its place of use needs. `name` and `version` are never interpolated, nor are defaults.

Values from outside override the default, in this rising order: `--var NAME=VALUE`, `--var-file FILE.toml`, the environment variable `STAGELINE_VAR_NAME` (the
name as it is, or in capitals with `-` as `_`). When the environment overrides `--var`, a warning says so.

A variable declared `{ secret = true }` may be used only alone and only where a secret is expected. Its value is set in the environment, or given by reference
as `default` or in a `--var-file`; `--var` is refused, since others on the computer can see a command line.

## Requirements

`where` is text: terms joined by commas that the *facts* of a machine must all meet. It matches facts, never wishes: a fact that is not known meets no term.

| term | compares | example |
|---|---|---|
";

const REQUIREMENTS: &str = "
`|` between values means any of them, with `!=` none of them; `!` before a term negates it. Numbers, sizes and versions take `= != >= <= > <`, the others `=` and `!=`. `gpu`
alone means any GPU, `!gpu` none. `gpu` and `vram` must hold for every GPU of the machine. The name of a GPU is matched with and without its vendor, memory size and form
factor, so `h100` finds \"NVIDIA H100 80GB HBM3\" and `rtx_4090` finds \"NVIDIA GeForce RTX 4090\" but not \"RTX 4090 D\". `reliability` stands for `provider.reliability`.

Or a table: `where = { gpu = [\"rtx_4090\", \"rtx_3090\"], vram = \">=24\", gpus = \">=2, <8\", spot = false, provider = { reliability = \">=0.98\" } }`. A value without a sign
means `=`; a list means any of its items, of `tools` all of them. Both forms have the same canonical text, which plans and state show.

Regions cover every country of ISO 3166-1 by code and English name, and the continents AF, AN, AS, EU, NA, OC, SA by code and name. Where a code is a country's and a continent's, it
means the continent; write the country's name. Country and continent of a provider's code are taken from its words (`us-east-1`, `europe-west4`, `EU-RO-1`, `Quebec, CA`); a code
that says neither matches only itself.
";

/// The reference page, in Markdown.
pub fn reference_markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (name, meaning, example) in FIELDS {
        let _ = writeln!(
            page,
            "| `{name}` | {} | `{}` |",
            cell(meaning),
            cell(example)
        );
    }
    page.push_str(REQUIREMENTS);
    section(&mut page, "Top level", &ROOT, "");
    for key in ROOT.keys {
        for (suffix, def) in tables_in(&key.kind) {
            sections(&mut page, &format!("{}{suffix}", key.name), def);
        }
    }
    page
}

fn sections(page: &mut String, path: &str, def: &'static TableDef) {
    section(page, &format!("`{path}`"), def, def.doc);
    for key in def.keys {
        for (suffix, inner) in tables_in(&key.kind) {
            sections(page, &format!("{path}.{}{suffix}", key.name), inner);
        }
    }
}

fn section(page: &mut String, title: &str, def: &'static TableDef, doc: &str) {
    let _ = writeln!(page, "\n## {title}\n");
    if !doc.is_empty() {
        let _ = writeln!(page, "{doc}\n");
    }
    page.push_str("| key | is | without it | a change |\n|---|---|---|---|\n");
    for key in def.keys {
        let _ = writeln!(
            page,
            "| `{}` | {} {} Such as `{}`. | {} | {} |",
            key.name,
            cell(&sentence(&kind_text(&key.kind))),
            cell(key.doc),
            cell(key.example),
            cell(&match key.need {
                Need::Default(text) => format!("`{text}`"),
                Need::Required | Need::Optional(_) => need_text(&key.need),
            }),
            change_text(&key.change),
        );
        if let Kind::Choice(choices) = key.kind {
            choice_rows(page, choices);
        }
    }
}

fn choice_rows(page: &mut String, choices: &[Choice]) {
    for (name, meaning) in choices {
        let _ = writeln!(page, "| | `\"{name}\"`: {} | | |", cell(meaning));
    }
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars
        .next()
        .map(|c| c.to_uppercase().to_string())
        .unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
