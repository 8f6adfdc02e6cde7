//! The topology that the README shows is one that the program takes.

use stageline::core::topology::{self, SourceFile, VarSources};

#[test]
fn the_topology_of_the_readme_is_valid() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let page = std::fs::read_to_string(path).expect("there is a README");
    let block = page.split_once("```toml\n").map(|(_, rest)| rest);
    let block = block.and_then(|rest| rest.split_once("```"));
    let (text, _) = block.expect("it shows a topology");
    let file = SourceFile::from_bytes("README.md", text.as_bytes().to_vec()).expect("text");
    let (topology, warnings) =
        topology::read(&[file], &VarSources::default()).expect("it is valid");
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(topology.leases.len(), 1, "it is the one of the tour");
}
