//! Versioned JSON documents, each with a JSON Schema.
//!
//! Fields are only ever added; a change of meaning raises the version. What is in them is free of secrets because specs,
//! receipts and plans are.

use schemars::JsonSchema;
use serde::Serialize;

use crate::plan::{Plan, Verdict};
use crate::state::State;

/// The version of every document here.
pub const VERSION: u32 = 1;

/// What `plan --json` and `show --json` print.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PlanDocument<'a> {
    /// `stageline-plan`.
    pub document: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// Counts, for scripts that look at nothing else.
    pub summary: Summary,
    /// All of it.
    pub plan: &'a Plan,
}

/// How many resources get each verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// Anything at all is to be done.
    pub changes: bool,
    /// Made.
    pub create: usize,
    /// Changed in place.
    pub update: usize,
    /// Ended and made anew.
    pub replace: usize,
    /// Ended.
    pub delete: usize,
    /// Left as they are.
    pub keep: usize,
}

/// What `state pull` prints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StateDocument<'a> {
    /// `stageline-state`.
    pub document: &'static str,
    /// [`VERSION`].
    pub version: u32,
    /// The fold of the journal.
    pub state: &'a State,
}

impl<'a> PlanDocument<'a> {
    /// The document of a plan.
    pub fn new(plan: &'a Plan) -> Self {
        Self {
            document: "stageline-plan",
            version: VERSION,
            summary: Summary {
                changes: !plan.is_empty(),
                create: plan.count(Verdict::Create),
                update: plan.count(Verdict::Update),
                replace: plan.count(Verdict::Replace),
                delete: plan.count(Verdict::Delete),
                keep: plan.count(Verdict::Keep),
            },
            plan,
        }
    }

    /// Its JSON, on several lines.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plan is plain data")
    }

    /// Its JSON Schema.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(PlanDocument<'_>).into()
    }
}

impl<'a> StateDocument<'a> {
    /// The document of a state.
    pub fn new(state: &'a State) -> Self {
        Self {
            document: "stageline-state",
            version: VERSION,
            state,
        }
    }

    /// Its JSON, on several lines.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a state is plain data")
    }

    /// Its JSON Schema.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(StateDocument<'_>).into()
    }
}
