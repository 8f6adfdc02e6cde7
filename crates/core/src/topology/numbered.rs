//! Single stages by number: `[pipeline.X.stage.N]` tables, laid over the `stages` of their pipeline.

use std::collections::BTreeMap;

use super::keys::STAGES_MAX;
use super::read::Reader;
use super::value::{self, At, Entry, Node, Table, Value};
use crate::diagnostic::{Diagnostic, shown};

/// Lays the numbered stages of every pipeline over its `stages`.
pub(super) fn fold(root: &mut Table, reader: &Reader<'_>) {
    let Some(Value::Table(pipelines)) = root
        .entries
        .get_mut("pipeline")
        .map(|entry| &mut entry.node.value)
    else {
        return;
    };
    for (name, entry) in &mut pipelines.entries {
        let Value::Table(pipeline) = &mut entry.node.value else {
            continue;
        };
        let Some(numbered) = pipeline.entries.remove("stage") else {
            continue;
        };
        let path = format!("pipeline.{}", shown(name));
        if let Err((at, diagnostic)) = fold_into(pipeline, numbered, &path) {
            reader.report(at, *diagnostic);
        }
    }
}

type Fault = (At, Box<Diagnostic>);

fn fault(at: At, message: String, hint: &str) -> Fault {
    let diagnostic = Diagnostic::error("topology/stage-number", message).hint(hint);
    (at, Box::new(diagnostic))
}

fn fold_into(pipeline: &mut Table, numbered: Entry, path: &str) -> Result<(), Fault> {
    let at = numbered.key_at;
    let stages = by_number(numbered, path)?;
    let list = pipeline.entries.entry("stages".to_owned());
    let list = list.or_insert_with(|| Entry {
        key_at: at,
        node: Node {
            value: Value::List(Vec::new()),
            at,
            var: None,
        },
    });
    let Value::List(list) = &mut list.node.value else {
        let message =
            format!("`{path}.stages` is no list, so its stages cannot be given by number");
        return Err(fault(
            at,
            message,
            "list the stages, or change `stages` as a whole",
        ));
    };
    for (index, entry) in stages {
        let len = list.len();
        match (list.get_mut(index), entry.node.value) {
            (
                Some(Node {
                    value: Value::Table(old),
                    ..
                }),
                Value::Table(new),
            ) => value::merge(old, new),
            (Some(other), value) => {
                *other = Node {
                    value,
                    ..entry.node
                }
            }
            (None, value) if index == len => list.push(Node {
                value,
                ..entry.node
            }),
            (None, _) => {
                let message = format!(
                    "`{path}.stage.{index}` leaves a gap: there are {len} stages before it"
                );
                return Err(fault(
                    entry.key_at,
                    message,
                    "number them without gaps, from 0",
                ));
            }
        }
    }
    Ok(())
}

fn by_number(numbered: Entry, path: &str) -> Result<BTreeMap<usize, Entry>, Fault> {
    const HINT: &str = "such as `[pipeline.NAME.stage.1]`";
    let Value::Table(table) = numbered.node.value else {
        let message = format!("`{path}.stage` must be tables by number");
        return Err(fault(numbered.key_at, message, HINT));
    };
    let mut stages = BTreeMap::new();
    for (number, entry) in table.entries {
        let plain = number == "0" || !number.starts_with(['0', '+']);
        let Some(index) = number
            .parse()
            .ok()
            .filter(|index| plain && *index < STAGES_MAX)
        else {
            let message = format!(
                "`{path}.stage.{}` is no stage: they are numbered from 0",
                shown(&number)
            );
            return Err(fault(entry.key_at, message, HINT));
        };
        stages.insert(index, entry);
    }
    Ok(stages)
}
