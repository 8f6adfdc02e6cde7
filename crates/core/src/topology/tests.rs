//! What the reader promises, beyond the golden cases in `tests/topologies`.

use super::docs::entries;
use super::keys::Kind;
use super::*;
use crate::diagnostic::{Diagnostic, Severity};

fn file(text: &str) -> SourceFile {
    SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    }
}

fn read_all(texts: &[&str]) -> Result<(Topology, Vec<Diagnostic>), Vec<Diagnostic>> {
    let files: Vec<SourceFile> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| SourceFile {
            name: format!("{index}.toml"),
            text: (*text).to_owned(),
        })
        .collect();
    read(&files, &VarSources::default())
}

fn valid(texts: &[&str]) -> Topology {
    read_all(texts).expect("no errors").0
}

const BASE: &str = r#"
version = 1
name = "case"
[provider.here]
kind = "local"
[offer.small]
provider = "here"
where = "memory>=1, cpus>=1"
[lease.node]
offers = ["small"]
count = 2
[pipeline.chat]
engine = "stub"
stages = { on = "lease.node", split = "auto" }
[exposure.api]
pipelines = ["chat"]
"#;

#[test]
fn the_starter_reads_without_diagnostics() {
    for name in TEMPLATES {
        let text = template(name).expect("a template");
        let read = read(&[file(text)], &VarSources::default());
        assert_eq!(read.expect("no errors").1, [], "{name}");
    }
}

#[test]
fn defaults_are_those_of_the_definition() {
    let topology = valid(&[BASE]);
    assert_eq!(
        topology.limits.max_price_per_hour,
        Some(MicroDollars(10_000_000))
    );
    let offer = topology.offers.values().next().expect("an offer");
    assert_eq!(
        (offer.idle_timeout, offer.max_lifetime),
        (Millis::minutes(20), Millis::minutes(720))
    );
    let pipeline = topology.pipelines.values().next().expect("a pipeline");
    assert_eq!(pipeline.dtype, Dtype::Bf16);
    assert_eq!(
        (pipeline.check.prompt.as_str(), pipeline.check.max_tokens),
        ("Hello", 1)
    );
    let Stages::Auto { on, .. } = &pipeline.stages else {
        panic!("the split is automatic")
    };
    let on: Vec<String> = on.iter().map(ToString::to_string).collect();
    assert_eq!(on, ["lease.node[0]", "lease.node[1]"]);
}

#[test]
fn zero_is_no_cap_only_where_it_says_so() {
    let none = valid(&[BASE, "[limits]\nmax_price_per_hour = 0"]);
    assert_eq!(none.limits.max_price_per_hour, None);
    let free = valid(&[BASE, "[provider.here]\nprice_per_hour = 0"]);
    let ProviderKind::Local { price_per_hour, .. } =
        &free.providers.values().next().expect("one").kind
    else {
        panic!("it is a local one")
    };
    assert_eq!(*price_per_hour, MicroDollars::ZERO);
    assert!(read_all(&[BASE, "[offer.small]\nmax_price_per_hour = 0"]).is_err());
}

/// A file that has nothing but this key, and where its value stands.
fn only(path: &str, value: &str) -> (String, std::ops::Range<usize>) {
    let path = path.replace("NAME", "x");
    let (table, key) = path.rsplit_once('.').unwrap_or(("", &path));
    let header = match table.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]\n"),
        None if table.is_empty() => String::new(),
        None => format!("[{table}]\n"),
    };
    let text = format!("{header}{key} = {value}\n");
    let start = text.len() - value.len() - 1;
    (text, start..start + value.len())
}

fn found_in(text: &str) -> Vec<Diagnostic> {
    match read(&[file(text)], &VarSources::default()) {
        Ok((_, warnings)) => warnings,
        Err(all) => all,
    }
}

#[test]
fn every_key_of_the_definition_is_read() {
    for entry in entries() {
        // A date is of the wrong type everywhere.
        let (text, span) = only(&entry.path, "1979-05-27");
        let found = found_in(&text);
        let seen = found.iter().any(|diagnostic| {
            let here = diagnostic
                .place
                .as_ref()
                .is_some_and(|place| place.span == span);
            here && diagnostic.severity == Severity::Error
        });
        assert!(seen, "{}: nobody reads it: {found:#?}", entry.path);
    }
}

#[test]
fn every_example_of_the_definition_reads() {
    // References that the lone key cannot have, and what is missing around it.
    const ELSEWHERE: [&str; 6] = [
        "topology/variable-unset",
        "topology/unknown-provider",
        "topology/unknown-offer",
        "topology/unknown-lease",
        "topology/unknown-pipeline",
        "topology/missing-key",
    ];
    for entry in entries() {
        let (text, span) = only(&entry.path, entry.key.example);
        for diagnostic in found_in(&text) {
            let inside = diagnostic
                .place
                .as_ref()
                .is_some_and(|place| place.span.start >= span.start && place.span.end <= span.end);
            let excused =
                ELSEWHERE.contains(&diagnostic.code) || diagnostic.severity == Severity::Warning;
            assert!(
                !inside || excused,
                "{} = {}: {diagnostic:?}",
                entry.path,
                entry.key.example
            );
        }
    }
}

#[test]
fn every_key_has_a_doc_and_keys_of_a_table_are_told_apart() {
    let all = entries();
    let mut paths: Vec<&str> = all.iter().map(|entry| entry.path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), all.len());
    for entry in &all {
        assert!(entry.key.doc.ends_with('.'), "{}", entry.path);
    }
}

#[test]
fn the_digest_is_of_what_is_said() {
    let base = digest(&valid(&[BASE]));
    let rewritten = r#"
        # The same, in another order, by two files and a variable.
        name = "case"
        version = 1
        exposure.api.pipelines = ["chat"]
        vars.n = 2
        [lease]
        node = { count = "${var.n}", offers = ["small"] }
        [pipeline.chat]
        stages = { split = "auto", on = ["lease.node[0]", "lease.node[1]"] }
        engine = "stub"
        dtype = "bf16"
    "#;
    let more = "[offer.small]\nprovider = \"here\"\nwhere = { cpus = \">=1\", memory = \">= 1GiB\" }\n[provider]\nhere.kind = \"local\"";
    assert_eq!(digest(&valid(&[rewritten, more])), base);
    assert_eq!(digest(&valid(&[more, rewritten])), base);
    for change in [
        "[lease.node]\ncount = 3",
        "[offer.small]\nwhere = \"memory>=2, cpus>=1\"",
        "[pipeline.chat]\ndtype = \"f32\"",
        "[pipeline.chat]\nstages = { on = [\"lease.node[1]\", \"lease.node[0]\"] }",
        "[exposure.api]\napi_key = { env = \"K\" }",
        "[limits]\nmax_leases = 2",
    ] {
        assert_ne!(digest(&valid(&[BASE, change])), base, "{change}");
    }
}

#[test]
fn variables_take_the_last_word_from_the_environment() {
    let text = format!("{BASE}\n[vars]\nn = 1\n").replace("count = 2", "count = \"${var.n}\"");
    let count = |vars: &VarSources| {
        let (topology, _) = read(&[file(&text)], vars).expect("no errors");
        topology.leases.values().next().expect("a lease").count
    };
    let mut vars = VarSources::default();
    assert_eq!(count(&vars), 1);
    vars.cli.push(("n".to_owned(), "2".to_owned()));
    assert_eq!(count(&vars), 2);
    vars.files.push(SourceFile {
        name: "v.toml".to_owned(),
        text: "n = 3".to_owned(),
    });
    assert_eq!(count(&vars), 3);
    vars.env
        .insert("STAGELINE_VAR_N".to_owned(), "4".to_owned());
    vars.env.insert("PATH".to_owned(), "/bin".to_owned());
    assert_eq!(count(&vars), 4);
}

#[test]
fn a_secret_variable_is_a_reference_and_its_value_stays_where_it_is() {
    let text = format!("{BASE}api_key = \"${{var.key}}\"\n[vars]\nkey = {{ secret = true }}\n");
    let mut vars = VarSources::default();
    vars.env
        .insert("STAGELINE_VAR_KEY".to_owned(), "canary".to_owned());
    let (topology, _) = read(&[file(&text)], &vars).expect("no errors");
    let shown = format!("{topology:?} {vars:?}");
    assert!(
        shown.contains("Env(\"STAGELINE_VAR_KEY\")") && !shown.contains("canary"),
        "{shown}"
    );
}

#[test]
fn explain_finds_keys_by_path_and_by_name_and_suggests() {
    for key in [
        "lease.gpu.count",
        "lease.NAME.count",
        "lease.count",
        "count",
        "lease.gpu[0].count",
    ] {
        let text = explain(key).expect(key);
        assert!(
            text.starts_with("lease.NAME.count\n") && text.contains("1 to 100000"),
            "{text}"
        );
    }
    assert!(explain("offer").expect("a table").contains("max_lifetime"));
    assert!(
        explain("pipeline.chat.stages.on")
            .expect("two keys")
            .contains("stages[].on")
    );
    let near = explain("lease.cuont").expect_err("no such key");
    assert_eq!(near[0], "lease.NAME.count");
    assert!(explain_hint(&near).contains("`lease.NAME.count`"));
    assert!(
        !explain("zzzzzzzzzzzzzzzz")
            .expect_err("no such key")
            .is_empty()
    );
}

#[test]
fn the_schema_knows_every_key() {
    let text = schema().to_string();
    for entry in entries() {
        assert!(
            text.contains(&format!("\"{}\":", entry.key.name)),
            "{}",
            entry.path
        );
        if let Kind::Choice(choices) = entry.key.kind {
            assert!(
                choices
                    .iter()
                    .all(|(name, _)| text.contains(&format!("\"{name}\"")))
            );
        }
    }
}

#[test]
fn a_large_count_costs_nothing_to_read_and_an_automatic_split_over_it_is_refused() {
    let large = BASE
        .replace("count = 2", "count = 100000")
        .replace("\"lease.node\"", "\"lease.node[99999]\"");
    assert_eq!(
        valid(&[&large])
            .leases
            .values()
            .next()
            .expect("a lease")
            .count,
        100_000
    );
    let found =
        read_all(&[&BASE.replace("count = 2", "count = 100000")]).expect_err("too many stages");
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn deep_nesting_and_large_files_are_refused() {
    let deep = format!("x = {}1{}", "[".repeat(20_000), "]".repeat(20_000));
    assert!(read(&[file(&deep)], &VarSources::default()).is_err());
    let large = "#".repeat(FILE_BYTES_MAX + 1);
    let found = read(&[file(&large)], &VarSources::default()).expect_err("too large");
    assert!(
        found
            .iter()
            .any(|diagnostic| diagnostic.code == "topology/too-large")
    );
    assert!(SourceFile::from_bytes("x", large.into_bytes()).is_err());
}

#[test]
fn numbers_are_read_as_toml_writes_them() {
    for (written, count) in [
        ("1_0", 10),
        ("+2", 2),
        ("0x10", 16),
        ("0b11", 3),
        ("0o17", 15),
    ] {
        let topology = valid(&[BASE, &format!("[lease.node]\ncount = {written}")]);
        assert_eq!(
            topology.leases.values().next().expect("a lease").count,
            count,
            "{written}"
        );
    }
    for (written, micro) in [
        ("2", 2_000_000),
        ("0.1", 100_000),
        ("1_0.000001", 10_000_001),
        ("\"$0.60\"", 600_000),
    ] {
        let topology = valid(&[BASE, &format!("[limits]\nmax_total_per_hour = {written}")]);
        assert_eq!(
            topology.limits.max_total_per_hour,
            Some(MicroDollars(micro)),
            "{written}"
        );
    }
    for written in [
        "nan",
        "inf",
        "-inf",
        "1e2",
        "-0.5",
        "0x10",
        "0.0000001",
        "true",
    ] {
        let text = format!("[limits]\nmax_total_per_hour = {written}");
        let read = read_all(&[BASE, &text]);
        // A hexadecimal number is a number.
        assert_eq!(read.is_ok(), written == "0x10", "{written}");
    }
}

#[test]
fn a_number_from_a_variable_is_text_where_text_is_needed() {
    let more = r#"
        vars = { threads = 4, flag = true, price = 0.50 }
        [pipeline.chat]
        engine_args = ["--threads", "${var.threads}", "--x=${var.price}"]
        env = { FLAG = "${var.flag}" }
    "#;
    let topology = valid(&[BASE, more]);
    let pipeline = topology.pipelines.values().next().expect("a pipeline");
    assert_eq!(pipeline.engine_args, ["--threads", "4", "--x=0.50"]);
    assert_eq!(
        pipeline.env.values().next().map(String::as_str),
        Some("true")
    );
    // Without a variable it is the wrong type.
    assert!(read_all(&[BASE, "[pipeline.chat]\nengine_args = [4]"]).is_err());
}

#[test]
fn a_setup_is_a_script_unless_it_is_one_word_that_looks_like_a_path() {
    let setup = |text: &str| {
        let topology = valid(&[BASE, &format!("[lease.node]\nsetup = {text:?}")]);
        let lease = topology.leases.into_values().next().expect("one");
        lease.setup.expect("it is given")
    };
    for path in ["setup.sh", "./prepare", "bin/prepare", "/opt/x"] {
        assert_eq!(setup(path), Setup::File(path.into()));
    }
    for script in ["true", "sh setup.sh", "./prepare now", "#!/bin/bash\ntrue"] {
        assert_eq!(setup(script), Setup::Script(script.to_owned()));
    }
    let long = "#".repeat(SETUP_MAX);
    assert!(check_setup(&long).is_ok());
    let why = check_setup(&format!("{long}#")).expect_err("too long");
    assert!(why.contains("16385 bytes"), "{why}");
}
