//! Layers of a model and the stages that take them: what does not fit together.

use super::models::ModelShape;
use crate::diagnostic::Diagnostic;
use crate::id::Name;
use crate::model::SplitError;
use crate::topology::{Layers, Pipeline};

const AUTO: &str = "or use split = \"auto\"";

/// Why the layers of a model are not placed once each, in order.
pub(super) fn misplaced(
    name: &Name,
    stages: impl Iterator<Item = Option<Layers>>,
    shape: &ModelShape,
) -> Option<Diagnostic> {
    let depth = shape.depth();
    let fault =
        |message: String, hint: String| Some(Diagnostic::error("plan/layers", message).hint(hint));
    let mut next = 0;
    for (place, layers) in stages.enumerate() {
        let at = format!("stage.{name}[{place}]");
        let Some(layers) = layers else {
            return fault(
                format!("{at}: no layers are given"),
                format!("the model has layers 0..{depth}; place them, {AUTO}"),
            );
        };
        if layers.start >= layers.end || layers.end > depth {
            return fault(
                format!(
                    "{at}: layers {layers} are out of range, the model has {depth} (0..{depth})"
                ),
                format!("end the last stage at {depth}, {AUTO}"),
            );
        }
        if layers.start != next {
            return fault(
                format!(
                    "{at}: it begins at layer {}, but layer {next} is the next to be placed",
                    layers.start
                ),
                format!("stages take the layers in order, each once; {AUTO}"),
            );
        }
        next = layers.end;
    }
    if next == depth {
        return None;
    }
    fault(
        format!("pipeline.{name}: layers {next}..{depth} of its model are on no stage"),
        format!("end the last stage at {depth}, {AUTO}"),
    )
}

/// Why the context is longer than the model's.
pub(super) fn too_long(name: &Name, pipeline: &Pipeline, shape: &ModelShape) -> Option<Diagnostic> {
    let most = shape.context;
    let context = pipeline.context.filter(|context| *context > most)?;
    let message =
        format!("pipeline.{name}: context = {context}, but its model was made for {most} tokens");
    Some(Diagnostic::error("plan/context", message).hint("leave `context` out to take the model's"))
}

/// Why no cuts were found.
pub(super) fn unsplit(name: &Name, error: &SplitError) -> Diagnostic {
    let fault = Diagnostic::error("plan/split", format!("pipeline.{name}: {error}"));
    match error {
        SplitError::Stages { .. } => fault.hint("name fewer machines in `on`"),
        SplitError::Memory { .. } => {
            fault.hint("name more or larger machines in `on`, or lower `context`")
        }
    }
}
