//! The files of one topology: parsed, merged, resolved, read.

use std::collections::BTreeSet;

use super::keys::{Kind, ROOT};
use super::read::Reader;
use super::value::{self, SourceFile, Table, Value};
use super::vars::{self, VarSources};
use super::{Stages, Topology, build, interpolate, numbered};
use crate::diagnostic::{Diagnostic, Severity};
use crate::id::Name;

/// Reads one topology from its files, in the order given, later ones over earlier ones.
///
/// Gives the topology with the warnings, or all the errors of all files (and the warnings with them).
pub fn read(
    files: &[SourceFile],
    vars: &VarSources,
) -> Result<(Topology, Vec<Diagnostic>), Vec<Diagnostic>> {
    let sources: Vec<&SourceFile> = files.iter().chain(&vars.files).collect();
    let mut trees = Vec::new();
    let mut syntax = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let (tree, errors) = value::parse(source, index);
        trees.push(tree);
        syntax.extend(errors);
    }
    let var_files = trees.split_off(files.len());
    let reader = Reader::new(sources);
    let topology = assemble(&reader, trees, &var_files, vars);
    let found = reader.into_found();
    if !syntax.is_empty() {
        let mut all = still_true(found, files, &syntax);
        all.extend(syntax);
        return Err(in_order(all, files, vars));
    }
    let failed = found
        .iter()
        .any(|diagnostic| diagnostic.severity == Severity::Error);
    match topology {
        Some(topology) if !failed => Ok((topology, found)),
        Some(_) | None => Err(found),
    }
}

fn assemble(
    reader: &Reader<'_>,
    trees: Vec<Table>,
    var_files: &[Table],
    sources: &VarSources,
) -> Option<Topology> {
    let mut root = Table::default();
    for tree in trees {
        value::merge(&mut root, tree);
    }
    numbered::fold(&mut root, reader);
    let Some(Kind::Vars(def)) = ROOT.key("vars").map(|key| key.kind) else {
        unreachable!("`vars` is defined as variables")
    };
    let vars = vars::declare(reader, &root, def, sources, var_files);
    let resolved = interpolate::file(&root, &vars);
    let topology = build::topology(reader, &resolved);
    // With errors, what seems unused may only be misspelt where it is used.
    if let (Some(topology), false) = (&topology, reader.has_error()) {
        vars.warn_unused();
        warn_unused(reader, topology, &resolved);
    }
    topology
}

/// Warns of what is declared and serves nothing.
fn warn_unused(reader: &Reader<'_>, topology: &Topology, root: &Table) {
    let place = |kind: &str, name: &str| match root.entries.get(kind).map(|entry| &entry.node.value)
    {
        Some(Value::Table(tables)) => tables.entries.get(name).map(|entry| entry.key_at),
        Some(_) | None => None,
    };
    let warn = |kind: &str, name: &str, message: String, hint: &str| {
        if let Some(at) = place(kind, name) {
            reader.report(
                at,
                Diagnostic::warning("topology/unused", message).hint(hint),
            );
        }
    };
    let taken: BTreeSet<&Name> = topology
        .leases
        .values()
        .flat_map(|lease| &lease.offers)
        .collect();
    for name in topology.offers.keys() {
        if !taken.contains(name) {
            warn(
                "offer",
                name.as_str(),
                format!("no lease takes `offer.{name}`"),
                "name it in the `offers` of a lease",
            );
        }
    }
    let mut on = BTreeSet::new();
    for pipeline in topology.pipelines.values() {
        match &pipeline.stages {
            Stages::Listed(stages) => on.extend(stages.iter().map(|stage| &stage.on.name)),
            Stages::Auto { on: leases, .. } => on.extend(leases.iter().map(|id| &id.name)),
        }
    }
    for name in topology.leases.keys().filter(|name| !on.contains(name)) {
        let message = format!("no stage runs on `lease.{name}`, and it is rented all the same");
        warn(
            "lease",
            name.as_str(),
            message,
            "name it in the `stages` of a pipeline",
        );
    }
}

/// Of the faults found in trees that could not be read whole: those that do not come from what is missing.
fn still_true(
    found: Vec<Diagnostic>,
    files: &[SourceFile],
    syntax: &[Diagnostic],
) -> Vec<Diagnostic> {
    const LOCAL: [&str; 6] = [
        "topology/unknown-key",
        "topology/wrong-type",
        "topology/bad-value",
        "topology/unknown-value",
        "topology/plain-secret",
        "topology/where",
    ];
    found
        .into_iter()
        .filter(|diagnostic| LOCAL.contains(&diagnostic.code))
        .filter(|diagnostic| {
            let Some(place) = &diagnostic.place else {
                return false;
            };
            let Some(file) = files.iter().find(|file| file.name == place.file) else {
                return false;
            };
            syntax
                .iter()
                .filter_map(|error| error.place.as_ref())
                .all(|error| {
                    error.file != place.file
                        || !is_shadowed(&file.text, error.span.start, place.span.start)
                })
        })
        .collect()
}

/// Whether a place lies on the line of a syntax error, which was not read. When that line was a table's header, what
/// follows up to the next header was read into another table.
fn is_shadowed(text: &str, error: usize, place: usize) -> bool {
    let before = text.get(..error).unwrap_or_default();
    let begin = before.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(begin..).unwrap_or_default();
    let until = if line.trim_start().starts_with('[') {
        "\n["
    } else {
        "\n"
    };
    let end = line.find(until).map_or(text.len(), |at| begin + at);
    (begin..=end).contains(&place)
}

fn in_order(mut all: Vec<Diagnostic>, files: &[SourceFile], vars: &VarSources) -> Vec<Diagnostic> {
    let names: Vec<&str> = files
        .iter()
        .chain(&vars.files)
        .map(|file| file.name.as_str())
        .collect();
    all.sort_by_key(|diagnostic| {
        diagnostic.place.as_ref().map_or((usize::MAX, 0), |place| {
            let file = names
                .iter()
                .position(|name| *name == place.file)
                .unwrap_or(usize::MAX);
            (file, place.span.start)
        })
    });
    all
}
