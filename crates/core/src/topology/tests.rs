//! What the reader promises, beyond the golden cases in `tests/topologies`.

use super::*;

fn file(text: &str) -> SourceFile {
    SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn the_starter_reads_without_diagnostics() {
    for name in TEMPLATES {
        let text = template(name).expect("a template");
        let read = read(&[file(text)], &VarSources::default());
        assert_eq!(read.expect("no errors").1, [], "{name}");
    }
}
