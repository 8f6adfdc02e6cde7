//! Who needs whom, drawn: DOT and Mermaid, with the verdicts of a plan when there is one.

use crate::graph::{Graph, Mark};
use crate::id::Address;
use crate::plan::{Plan, Verdict};

/// The graph in DOT, marked with what a plan would do.
pub fn dot(graph: &Graph, plan: Option<&Plan>) -> String {
    with_deleted(graph, plan).dot(|address| mark(plan?, address))
}

/// The graph in Mermaid, marked with what a plan would do.
pub fn mermaid(graph: &Graph, plan: Option<&Plan>) -> String {
    with_deleted(graph, plan).mermaid(|address| mark(plan?, address))
}

/// What is ended is not declared any more, but a reader wants to see it.
fn with_deleted(graph: &Graph, plan: Option<&Plan>) -> Graph {
    let mut graph = graph.clone();
    let changes = plan.into_iter().flat_map(|plan| &plan.changes);
    for change in changes.filter(|change| change.verdict == Verdict::Delete) {
        graph.add(&change.address);
    }
    graph
}

fn mark(plan: &Plan, address: &Address) -> Option<Mark> {
    let verdict = plan.change(address)?.verdict;
    let colour = match verdict {
        Verdict::Create => "green",
        Verdict::Update => "orange",
        Verdict::Replace => "purple",
        Verdict::Delete => "red",
        Verdict::Keep => "gray",
    };
    Some(Mark {
        colour,
        word: super::plan::mark(verdict).1,
    })
}
