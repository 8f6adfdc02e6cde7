//! Who needs whom: one deterministic order, its reverse, and the graph as text.
//!
//! Ties are broken by the order of addresses, so equal graphs have equal orders. Nothing here recurses: a chain of any
//! length is walked with a heap. An edge to an address that is not in the graph adds that address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::id::Address;

/// Resources and what each needs.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// An edge goes from what is needed to what needs it.
    nodes: DiGraph<Address, ()>,
    index: BTreeMap<Address, NodeIndex>,
}

/// Resources that need each other: each needs the one after it, and the last the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} need each other: {}", path.len(), arrows(path))]
pub struct Cycle {
    /// The way round.
    pub path: Vec<Address>,
}

fn arrows(path: &[Address]) -> String {
    let first = path.first();
    let names: Vec<String> = path.iter().chain(first).map(ToString::to_string).collect();
    names.join(" -> ")
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a resource; twice is once.
    pub fn add(&mut self, address: &Address) {
        self.node(address);
    }

    /// Notes that one resource needs another.
    pub fn needs(&mut self, dependent: &Address, dependency: &Address) {
        let (from, to) = (self.node(dependency), self.node(dependent));
        // Not `update_edge`: looking for an equal edge costs the degree of a hub, for each of its edges.
        self.nodes.add_edge(from, to, ());
    }

    fn node(&mut self, address: &Address) -> NodeIndex {
        if let Some(node) = self.index.get(address) {
            return *node;
        }
        let node = self.nodes.add_node(address.clone());
        self.index.insert(address.clone(), node);
        node
    }

    /// How many resources there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether the resource is in it.
    pub fn contains(&self, address: &Address) -> bool {
        self.index.contains_key(address)
    }

    /// What a resource needs, in order.
    pub fn dependencies(&self, address: &Address) -> Vec<&Address> {
        self.neighbours(address, Direction::Incoming)
    }

    /// What needs a resource, in order.
    pub fn dependents(&self, address: &Address) -> Vec<&Address> {
        self.neighbours(address, Direction::Outgoing)
    }

    fn neighbours(&self, address: &Address, direction: Direction) -> Vec<&Address> {
        let Some(node) = self.index.get(address) else {
            return Vec::new();
        };
        let mut all: Vec<&Address> = self
            .nodes
            .neighbors_directed(*node, direction)
            .map(|node| &self.nodes[node])
            .collect();
        all.sort();
        all.dedup();
        all
    }

    /// These and all that they need, directly or not.
    pub fn with_dependencies<'a>(
        &self,
        start: impl IntoIterator<Item = &'a Address>,
    ) -> BTreeSet<Address> {
        self.closure(start, Direction::Incoming)
    }

    /// These and all that needs them, directly or not.
    pub fn with_dependents<'a>(
        &self,
        start: impl IntoIterator<Item = &'a Address>,
    ) -> BTreeSet<Address> {
        self.closure(start, Direction::Outgoing)
    }

    fn closure<'a>(
        &self,
        start: impl IntoIterator<Item = &'a Address>,
        direction: Direction,
    ) -> BTreeSet<Address> {
        let mut seen = vec![false; self.nodes.node_count()];
        let mut found = BTreeSet::new();
        let mut open: Vec<NodeIndex> = start
            .into_iter()
            .filter_map(|address| self.index.get(address).copied())
            .collect();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut seen[node.index()], true) {
                found.insert(self.nodes[node].clone());
                open.extend(self.nodes.neighbors_directed(node, direction));
            }
        }
        found
    }

    /// Every resource after all that it needs.
    ///
    /// # Errors
    /// [`Cycle`] when resources need each other.
    pub fn order(&self) -> Result<Vec<&Address>, Cycle> {
        let mut rank = vec![0_usize; self.index.len()];
        let by_rank: Vec<NodeIndex> = self.index.values().copied().collect();
        for (place, node) in by_rank.iter().enumerate() {
            rank[node.index()] = place;
        }
        let mut missing: Vec<usize> = self
            .nodes
            .node_indices()
            .map(|node| self.nodes.edges_directed(node, Direction::Incoming).count())
            .collect();
        let mut ready: BinaryHeap<Reverse<usize>> = self
            .nodes
            .node_indices()
            .filter(|node| missing[node.index()] == 0)
            .map(|node| Reverse(rank[node.index()]))
            .collect();
        let mut order = Vec::with_capacity(rank.len());
        while let Some(Reverse(place)) = ready.pop() {
            let node = by_rank[place];
            order.push(&self.nodes[node]);
            for next in self.nodes.neighbors_directed(node, Direction::Outgoing) {
                missing[next.index()] -= 1;
                if missing[next.index()] == 0 {
                    ready.push(Reverse(rank[next.index()]));
                }
            }
        }
        if order.len() == rank.len() {
            Ok(order)
        } else {
            Err(self.cycle(&missing, &by_rank))
        }
    }

    /// Every resource before all that it needs: the order of ending them.
    ///
    /// # Errors
    /// [`Cycle`] when resources need each other.
    pub fn teardown(&self) -> Result<Vec<&Address>, Cycle> {
        let mut order = self.order()?;
        order.reverse();
        Ok(order)
    }

    /// Whoever is left over needs another who is left over: walking on must come round.
    fn cycle(&self, missing: &[usize], by_rank: &[NodeIndex]) -> Cycle {
        let left = |node: &NodeIndex| missing[node.index()] > 0;
        let mut node = *by_rank
            .iter()
            .find(|node| left(node))
            .expect("a resource is left over");
        let mut place = vec![usize::MAX; missing.len()];
        let mut path = Vec::new();
        while place[node.index()] == usize::MAX {
            place[node.index()] = path.len();
            path.push(node);
            node = self
                .nodes
                .neighbors_directed(node, Direction::Incoming)
                .filter(left)
                .min_by_key(|node| &self.nodes[*node])
                .expect("it waits for one that is left over");
        }
        let path = &path[place[node.index()]..];
        Cycle {
            path: path.iter().map(|node| self.nodes[*node].clone()).collect(),
        }
    }

    /// Every (dependent, dependency), in order.
    pub fn edges(&self) -> Vec<(&Address, &Address)> {
        let mut edges: Vec<_> = self
            .nodes
            .edge_indices()
            .filter_map(|edge| self.nodes.edge_endpoints(edge))
            .map(|(from, to)| (&self.nodes[to], &self.nodes[from]))
            .collect();
        edges.sort();
        edges.dedup();
        edges
    }

    /// The graph in DOT. `mark` adds a colour and a word to a resource, or nothing.
    pub fn dot(&self, mark: impl Fn(&Address) -> Option<Mark>) -> String {
        let mut text =
            String::from("digraph stageline {\n  rankdir = \"LR\";\n  node [shape = box];\n");
        for address in self.index.keys() {
            match mark(address) {
                None => drop(writeln!(text, "  \"{address}\";")),
                Some(Mark { colour, word }) => drop(writeln!(
                    text,
                    "  \"{address}\" [label = \"{address}\\n{word}\", color = \"{colour}\"];"
                )),
            }
        }
        for (dependent, dependency) in self.edges() {
            let _ = writeln!(text, "  \"{dependent}\" -> \"{dependency}\";");
        }
        text.push_str("}\n");
        text
    }

    /// The graph in Mermaid. `mark` adds a colour and a word to a resource, or nothing.
    pub fn mermaid(&self, mark: impl Fn(&Address) -> Option<Mark>) -> String {
        let mut text = String::from("graph LR\n");
        let place: BTreeMap<&Address, usize> = self.index.keys().zip(0..).collect();
        for (address, n) in &place {
            match mark(address) {
                None => drop(writeln!(text, "  n{n}[\"{address}\"]")),
                Some(Mark { colour, word }) => drop(writeln!(
                    text,
                    "  n{n}[\"{address}<br/>{word}\"]\n  style n{n} stroke:{colour}"
                )),
            }
        }
        for (dependent, dependency) in self.edges() {
            let _ = writeln!(text, "  n{} --> n{}", place[dependent], place[dependency]);
        }
        text
    }
}

/// How a resource is marked in a drawn graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// A colour that DOT and CSS both know.
    pub colour: &'static str,
    /// A word under the address.
    pub word: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect(text)
    }

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (dependent, dependency) in edges {
            graph.needs(&address(dependent), &address(dependency));
        }
        graph
    }

    fn texts(all: &[&Address]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn order_follows_needs_and_then_addresses() {
        let graph = graph(&[
            ("lease.a[1]", "exposure.z"),
            ("lease.a[0]", "exposure.z"),
            ("stage.b[0]", "lease.a[1]"),
        ]);
        let order = graph.order().expect("no cycle");
        let expected = ["exposure.z", "lease.a[0]", "lease.a[1]", "stage.b[0]"];
        assert_eq!(texts(&order), expected);
        let mut back = graph.teardown().expect("no cycle");
        back.reverse();
        assert_eq!(back, order);
    }

    #[test]
    fn a_cycle_is_told_as_the_way_round_without_what_leads_to_it() {
        let graph = graph(&[
            ("pipeline.a", "pipeline.b"),
            ("pipeline.b", "pipeline.c"),
            ("pipeline.c", "pipeline.b"),
            ("pipeline.c", "lease.x[0]"),
        ]);
        let cycle = graph.order().expect_err("b and c need each other");
        assert_eq!(
            cycle.to_string(),
            "2 need each other: pipeline.b -> pipeline.c -> pipeline.b"
        );
    }

    #[test]
    fn closures_go_one_way() {
        let graph = graph(&[
            ("delivery.a[0]", "lease.a[0]"),
            ("stage.p[0]", "delivery.a[0]"),
            ("delivery.a[1]", "lease.a[1]"),
        ]);
        let down = graph.with_dependencies([&address("stage.p[0]")]);
        assert_eq!(
            texts(&down.iter().collect::<Vec<_>>()),
            ["lease.a[0]", "delivery.a[0]", "stage.p[0]"]
        );
        let up = graph.with_dependents([&address("lease.a[1]")]);
        assert_eq!(
            texts(&up.iter().collect::<Vec<_>>()),
            ["lease.a[1]", "delivery.a[1]"]
        );
    }

    #[test]
    fn a_long_chain_is_no_deep_recursion() {
        let mut graph = Graph::new();
        let at = |i: u32| address(&format!("stage.p[{i}]"));
        for i in 1..100_000 {
            graph.needs(&at(i - 1), &at(i));
        }
        let order = graph.order().expect("no cycle");
        assert_eq!(order.first(), Some(&&at(99_999)));
        graph.needs(&at(99_999), &at(0));
        assert_eq!(graph.order().expect_err("a ring").path.len(), 100_000);
    }

    #[test]
    fn drawings_name_every_resource_and_its_mark() {
        let graph = graph(&[("delivery.a[0]", "lease.a[0]")]);
        let mark = |address: &Address| {
            (address.kind() == "lease").then_some(Mark {
                colour: "green",
                word: "create",
            })
        };
        let dot = graph.dot(mark);
        assert!(
            dot.contains("\"delivery.a[0]\" -> \"lease.a[0]\";"),
            "{dot}"
        );
        assert!(dot.contains("lease.a[0]\\ncreate"), "{dot}");
        let mermaid = graph.mermaid(mark);
        assert!(mermaid.contains("n1 --> n0"), "{mermaid}");
        assert!(mermaid.contains("stroke:green"), "{mermaid}");
    }
}
