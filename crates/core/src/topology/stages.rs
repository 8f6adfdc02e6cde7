//! Pipelines: their engine, and which layers go where.
//!
//! Whether the layers fit the model's real depth is the planner's to check; here they must only be a chain from 0 on.

use super::build::{self, Scope};
use super::convert;
use super::keys::{Kind, STAGES_MAX};
use super::model;
use super::read::{Field, Fields};
use super::value::{At, Value};
use super::{Dtype, Engine, Layers, Pipeline, Stage, Stages};
use crate::diagnostic::shown;
use crate::id::LeaseId;
use crate::unit::Millis;

/// Reads a `[pipeline.X]`.
pub(super) fn pipeline(fields: &Fields<'_>, scope: &Scope) -> Option<Pipeline> {
    let model = fields
        .get("model")
        .and_then(|field| build::inside(fields, field, "model"))
        .and_then(|inner| model::model(&inner));
    let kind = fields.read("engine", |field| {
        convert::choice(field, &[Kinds::Native, Kinds::Command, Kinds::Stub])
    });
    let command = fields.read("command", convert::argv);
    let engine = engine(fields, kind, command);
    let (env, secrets) = super::leases::environment(fields);
    let stages = fields
        .get("stages")
        .and_then(|field| stages(fields, field, scope, kind));
    let check = fields
        .get("check")
        .and_then(|field| build::inside(fields, field, "check"));
    let check = build::check(check.as_ref());
    let dtype = fields.read("dtype", |field| {
        convert::choice(field, &[Dtype::Bf16, Dtype::F32])
    });
    let engine_args = fields
        .read("engine_args", convert::texts)
        .unwrap_or_default();
    let context = fields.read("context", convert::integer);
    let max_in_flight = fields.read("max_in_flight", convert::integer);
    let ready_timeout = fields.read("ready_timeout", convert::duration);
    let request_timeout = fields.read("request_timeout", convert::duration);
    Some(Pipeline {
        model,
        engine: engine?,
        engine_args,
        env,
        secrets,
        stages: stages?,
        dtype: dtype.unwrap_or(Dtype::Bf16),
        context,
        max_in_flight,
        ready_timeout: ready_timeout.unwrap_or(Millis::NEVER),
        request_timeout: request_timeout.unwrap_or(Millis::NEVER),
        check,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Native,
    Command,
    Stub,
}

fn engine(
    fields: &Fields<'_>,
    kind: Option<Kinds>,
    command: Option<Vec<String>>,
) -> Option<Engine> {
    let kind = kind?;
    if kind != Kinds::Command && fields.has("command") {
        let message = format!(
            "{}: `command` belongs to the engine `command`",
            fields.title()
        );
        fields.fault(
            fields.at_key("command"),
            "topology/conflict",
            message,
            "add `engine = \"command\"`, or remove it",
        );
    }
    match kind {
        Kinds::Native => {
            if !fields.has("model") {
                let message = format!("{} needs `model`: the engine is `native`", fields.title());
                let hint = "such as `model = { path = \"models/small.gguf\" }`, or `engine = \"stub\"` for a rehearsal";
                fields.fault(
                    fields.at_value("engine"),
                    "topology/missing-key",
                    message,
                    hint,
                );
            }
            Some(Engine::Native)
        }
        Kinds::Stub => Some(Engine::Stub),
        Kinds::Command => {
            if !fields.has("command") {
                let message = format!(
                    "{} needs `command`: the engine is `command`",
                    fields.title()
                );
                let hint = "such as `command = [\"python3\", \"worker.py\"]`";
                fields.fault(
                    fields.at_value("engine"),
                    "topology/missing-key",
                    message,
                    hint,
                );
            }
            command.map(Engine::Command)
        }
    }
}

fn stages<'a>(
    fields: &Fields<'a>,
    field: Field<'a>,
    scope: &Scope,
    kind: Option<Kinds>,
) -> Option<Stages> {
    let Kind::Stages(one, auto) = field.key.kind else {
        return None;
    };
    if field.node.value.table().is_some() {
        let inner = Fields::inside(field, auto, fields.address("stages"))?;
        return self::auto(&inner, scope);
    }
    if !matches!(field.node.value, Value::List(_)) {
        field.wrong("a list of stages, or `{ on = .., split = \"auto\" }`");
        return None;
    }
    let items = convert::items(field)?;
    if items.len() > STAGES_MAX {
        field.bad(
            format!(
                "a pipeline has at most {STAGES_MAX} stages, not {}",
                items.len()
            ),
            None,
        );
        return None;
    }
    let mut read = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{}[{index}]", fields.address("stages"));
        let inner = Fields::inside(*item, one, path)?;
        read.push((stage(&inner, scope), layers_place(&inner)));
    }
    chain(fields, &read, kind);
    let stages: Option<Vec<Stage>> = read.into_iter().map(|(stage, _)| stage).collect();
    stages.map(Stages::Listed)
}

/// Where the layers of a stage stand; the flag says whether it has any.
fn layers_place(fields: &Fields<'_>) -> (At, bool) {
    (fields.at_value("layers"), fields.has("layers"))
}

fn stage(fields: &Fields<'_>, scope: &Scope) -> Option<Stage> {
    let on = fields.read("on", |field| {
        let given = field.text()?;
        lease_address(field, given, scope)
    });
    let layers = fields.read("layers", convert::layers);
    let gpus = fields.read("gpus", convert::integer);
    let env = fields.read("env", convert::env);
    Some(Stage {
        on: on?,
        layers,
        gpus: gpus.unwrap_or(0),
        env: env.unwrap_or_default(),
    })
}

fn auto(fields: &Fields<'_>, scope: &Scope) -> Option<Stages> {
    let on = fields.read("on", |field| places(field, scope));
    fields.read("split", |field| convert::choice(field, &[()]));
    let env = fields.read("env", convert::env).unwrap_or_default();
    Some(Stages::Auto { on: on?, env })
}

/// The machines of an `on` with automatic split: one text, or a list.
fn places(field: Field<'_>, scope: &Scope) -> Option<Vec<LeaseId>> {
    let items = if matches!(field.node.value, Value::List(_)) {
        convert::items(field)?
    } else {
        vec![field]
    };
    let mut all = Vec::new();
    let mut whole = true;
    for item in items {
        let given = item.text()?;
        match place(item, given, scope) {
            Some(ids) => all.extend(ids),
            None => whole = false,
        }
        if all.len() > STAGES_MAX {
            let message = format!("a pipeline has at most {STAGES_MAX} stages");
            item.bad(
                message,
                Some("name fewer machines, such as [\"lease.x[0]\", \"lease.x[1]\"]".to_owned()),
            );
            return None;
        }
    }
    whole.then_some(all)
}

/// One item of an automatic split: a whole lease table, or one lease.
fn place(field: Field<'_>, given: &str, scope: &Scope) -> Option<Vec<LeaseId>> {
    if given.contains('[') {
        return lease_address(field, given, scope).map(|id| vec![id]);
    }
    let Some(table) = given.strip_prefix("lease.") else {
        not_a_lease(field, given, scope);
        return None;
    };
    let name = convert::reference(field, table, "lease", &scope.declared)?;
    let count = scope.counts.get(table).copied().unwrap_or(1);
    // A faulty count is the lease's fault, not this one's; a large one is refused by the caller after one too many.
    let count = if count == u32::MAX { 1 } else { count };
    let few = u32::try_from(STAGES_MAX + 1).unwrap_or(u32::MAX);
    Some(
        (0..count.min(few))
            .map(|index| LeaseId {
                name: name.clone(),
                index,
            })
            .collect(),
    )
}

/// `lease.NAME[i]` of a declared lease, with an index that it has.
fn lease_address(field: Field<'_>, given: &str, scope: &Scope) -> Option<LeaseId> {
    let Some(rest) = given.strip_prefix("lease.") else {
        not_a_lease(field, given, scope);
        return None;
    };
    let (table, index) = match rest.split_once('[') {
        Some((table, index)) => (table, index.strip_suffix(']')),
        None => (rest, None),
    };
    let name = convert::reference(field, table, "lease", &scope.declared)?;
    let plain = |text: &&str| *text == "0" || (!text.starts_with(['0', '+']) && !text.is_empty());
    let Some(index) = index
        .filter(plain)
        .and_then(|text| text.parse::<u32>().ok())
    else {
        let message = format!("`{}` does not name one machine", shown(given));
        field.fault(
            "topology/bad-address",
            message,
            Some(format!("such as \"lease.{name}[0]\"")),
        );
        return None;
    };
    let count = scope.counts.get(table).copied().unwrap_or(1);
    if index >= count {
        let message =
            format!("lease.{name}[{index}] does not exist: `lease.{name}` has count = {count}");
        let hint = if count == 1 {
            format!(
                "there is lease.{name}[0]; or set count = {}",
                index.saturating_add(1)
            )
        } else {
            format!(
                "there are lease.{name}[0] to [{}]; or set count = {}",
                count.saturating_sub(1),
                index.saturating_add(1)
            )
        };
        field.fault("topology/index-out-of-range", message, Some(hint));
        return None;
    }
    Some(LeaseId { name, index })
}

fn not_a_lease(field: Field<'_>, given: &str, scope: &Scope) {
    let bare = given.split('[').next().unwrap_or_default();
    let declared = scope
        .declared
        .get("lease")
        .is_some_and(|names| names.contains(bare));
    let hint = if declared {
        format!("did you mean \"lease.{}\"?", shown(given))
    } else {
        "stages run on leases, such as \"lease.node[0]\"".to_owned()
    };
    field.fault(
        "topology/bad-address",
        format!("`{}` is not the address of a lease", shown(given)),
        Some(hint),
    );
}

/// The layers of a chain: from 0 on, without gap or overlap; or none anywhere.
fn chain(fields: &Fields<'_>, stages: &[(Option<Stage>, (At, bool))], kind: Option<Kinds>) {
    let with = stages.iter().filter(|(_, (_, given))| *given).count();
    if with < stages.len() {
        for (index, (_, (at, given))) in stages.iter().enumerate() {
            if *given || (with == 0 && kind != Some(Kinds::Native)) {
                continue;
            }
            let why = if with == 0 {
                "the engine is `native`"
            } else {
                "other stages of it have layers"
            };
            let message = format!("{}: stage {index} needs `layers`: {why}", fields.title());
            let hint = "such as `layers = \"0..8\"`, or `stages = { on = \"lease.NAME\", split = \"auto\" }`";
            fields.fault(*at, "topology/missing-key", message, hint);
        }
        return;
    }
    let mut before: Option<(usize, Layers, At)> = None;
    for (index, (stage, (at, _))) in stages.iter().enumerate() {
        let Some(layers) = stage.as_ref().and_then(|stage| stage.layers) else {
            // Faulty, and reported where it was read: what follows cannot be judged.
            return;
        };
        joint(fields, before, (index, layers, *at));
        before = Some((index, layers, *at));
    }
}

/// One joint of the chain.
fn joint(
    fields: &Fields<'_>,
    before: Option<(usize, Layers, At)>,
    (index, layers, at): (usize, Layers, At),
) {
    let title = fields.title();
    let Some((last, previous, place)) = before else {
        if layers.start > 0 {
            let message = format!(
                "{title}: stage 0 begins at layer {}; layers 0..{} are in no stage",
                layers.start, layers.start
            );
            fields.fault(
                at,
                "topology/layers-gap",
                message,
                format!("\"0..{}\"", layers.end),
            );
        }
        return;
    };
    let where_last = fields.reader.line(place);
    let both = format!("stage {last} has {previous} ({where_last}), stage {index} has {layers}");
    if layers.start > previous.end {
        let message = format!(
            "{title}: layers {}..{} are in no stage: {both}",
            previous.end, layers.start
        );
        fields.fault(
            at,
            "topology/layers-gap",
            message,
            format!("\"{}..{}\"", previous.end, layers.end),
        );
    } else if layers.end <= previous.start {
        let message = format!("{title}: the stages are out of order: {both}");
        fields.fault(
            at,
            "topology/layers-overlap",
            message,
            "list the stages in the order of their layers",
        );
    } else if layers.start < previous.end {
        let end = layers.end.min(previous.end);
        let start = layers.start.max(previous.start);
        let message = format!("{title}: layers {start}..{end} are in two stages: {both}");
        let hint = if layers.end > previous.end {
            format!("\"{}..{}\"", previous.end, layers.end)
        } else {
            "each layer belongs to one stage".to_owned()
        };
        fields.fault(at, "topology/layers-overlap", message, hint);
    }
}
