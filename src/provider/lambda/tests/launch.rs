//! The launch, and the command that starts the agent, run by a real shell.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use stageline_core::id::{Attempt, Generation, Lineage, OperatorId};
use stageline_core::resource::{DISK, FailureClass};
use stageline_core::topology::AgentSource;

use super::super::boot;
use super::super::ready::LetIn;
use super::{kind, quotes, types};
use crate::agent::boot::Package;
use crate::provider::{Boot, CreateRequest};

const SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn request(agent: Option<AgentSource>) -> CreateRequest {
    let quote = quotes(&types(&[(kind(json!({})), &["us-west-1"])])).remove(0);
    CreateRequest {
        told: None,
        request_key: "sl-00112233445566aa-0011aabb-g1a1".parse().expect("a key"),
        requirement: stageline_core::offer::Requirement::default(),
        quote,
        disk: DISK,
        image: None,
        registry: None,
        mounts: Vec::new(),
        agent,
        boot: Boot {
            agent_key: secrecy::SecretBox::new(Box::new([1; 32])),
            operator: OperatorId([2; 32]),
            lineage: Lineage([3; 16]),
            lease: "lease.node[0]".parse().expect("an id"),
            generation: Generation(1),
            attempt: Attempt(1),
            relay: None,
            limits: None,
        },
    }
}

fn let_in(name: &str, more: Option<&str>) -> LetIn {
    LetIn {
        name: name.to_owned(),
        more: more.map(str::to_owned),
    }
}

fn fetched(url: &str) -> Option<AgentSource> {
    Some(AgentSource::Fetch {
        url: url.to_owned(),
        sha256: SHA.parse().expect("a digest"),
    })
}

#[test]
fn a_launch_has_our_key_in_its_name_and_the_agent_in_its_user_data() {
    let place = ("us-west-1", "gpu_1x_a10");
    let request = request(fetched("https://example.org/stageline"));
    let body = boot::body(&request, place, &let_in("laptop", None), "key-1").expect("a body");
    assert_eq!(body["name"], "sl-00112233445566aa-0011aabb-g1a1");
    assert_eq!(body["tags"][0]["value"], body["name"]);
    assert_eq!(
        body["tags"][1],
        json!({ "key": "stageline-account", "value": "key-1" })
    );
    assert_eq!(body["ssh_key_names"], json!(["laptop"]));
    assert_eq!(
        (
            body["region_name"].as_str(),
            body["instance_type_name"].as_str()
        ),
        (Some(place.0), Some(place.1))
    );
    assert!(body.get("quantity").is_none() && body.get("image").is_none());
    let text = body["user_data"].as_str().expect("a text");
    let config = text.strip_prefix("#cloud-config\n").expect("cloud-init's");
    let config: Value = serde_json::from_str(config).expect("JSON is YAML");
    let files = config["write_files"].as_array().expect("files");
    let package = files
        .iter()
        .find(|file| file["path"] == "/etc/stageline/boot.env")
        .expect("it");
    assert_eq!(package["permissions"], "0600");
    let lines: std::collections::BTreeMap<&str, &str> = package["content"]
        .as_str()
        .expect("a text")
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let read = Package::from_environment(|name| lines.get(name).map(|value| (*value).to_owned()));
    let config = read.expect("whole").expect("there").config;
    assert_eq!(
        config.listen,
        Some("0.0.0.0:41641".parse().expect("an address"))
    );
    let with_image = CreateRequest {
        image: Some("lambda-stack-24-04".to_owned()),
        ..request
    };
    let body = boot::body(&with_image, place, &let_in("laptop", None), "key-1").expect("a body");
    assert_eq!(body["image"], json!({ "family": "lambda-stack-24-04" }));
}

#[test]
fn a_launch_without_an_agent_is_refused_before_it_is_sent() {
    for agent in [
        Some(AgentSource::Image),
        fetched(&format!("https://x.example/{}", "x".repeat(1 << 20))),
    ] {
        let refused = boot::body(&request(agent), ("r", "t"), &let_in("k", None), "a");
        let refused = refused.expect_err("refused");
        assert_eq!(refused.class, FailureClass::Config);
        assert!(refused.hint.is_some());
    }
}

#[test]
#[cfg(feature = "ssh")]
fn a_machine_that_is_pushed_to_is_told_its_host_key_and_nothing_of_its_agent() {
    let request = request(Some(AgentSource::Ssh));
    let keys = let_in(request.request_key.as_str(), Some("ssh-ed25519 AAAA"));
    let body = boot::body(&request, ("r", "t"), &keys, "key-1").expect("a body");
    assert_eq!(body["ssh_key_names"], json!([request.request_key.as_str()]));
    let text = body["user_data"].as_str().expect("a text");
    let config = text.strip_prefix("#cloud-config\n").expect("cloud-init's");
    let config: Value = serde_json::from_str(config).expect("JSON is YAML");
    let pair = crate::ssh::HostPair::of(&request.boot.agent_key);
    assert_eq!(
        config["ssh_keys"]["ed25519_public"].as_str(),
        pair.public().as_ref().map(|key| key.as_str())
    );
    assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA"]));
    assert!(config.get("runcmd").is_none());
    // Only what starts a pushed agent again, at each boot, as its user.
    let [again] = config["write_files"].as_array().expect("files").as_slice() else {
        panic!("one file: {config}");
    };
    let path = again["path"].as_str().expect("a text");
    assert!(path.starts_with("/var/lib/cloud/scripts/per-boot/"));
    let script = again["content"].as_str().expect("a text");
    assert!(script.contains("/machines/*/again") && script.contains("su ubuntu"));
    // Neither the agent's package, nor what lets us in.
    let package = crate::provider::http::package(&request.boot, None).environment();
    assert!(package.values().all(|piece| !text.contains(piece.as_str())));
    let own = crate::ssh::OwnKey::of(&request.boot.agent_key);
    assert!(own.public().is_some_and(|own| !text.contains(&own)));
}

/// Runs the start command as the service does, with a `curl` and an agent of our own. Returns what ran, and how it went.
fn start(sha256: &str, served: &str, before: Option<&str>) -> (String, bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let bin = dir.path().join("bin");
    let home = dir.path().join("home");
    std::fs::create_dir_all(&bin).expect("made");
    let program = |path: std::path::PathBuf, text: &str| {
        std::fs::write(&path, text).expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("its mode");
    };
    if let Some(before) = before {
        std::fs::create_dir_all(&home).expect("made");
        program(home.join("stageline"), before);
        std::fs::write(home.join("fetched"), before).expect("written");
    }
    std::fs::write(dir.path().join("served"), served).expect("written");
    program(
        bin.join("curl"),
        "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && out=$2; shift; done\necho \"$1\" >>\"$SEEN\"\ncp \"$SERVED\" \"$out\"\n",
    );
    let url = "https://x.example/it's$(touch PWNED)";
    let script = dir.path().join("start");
    program(
        script.clone(),
        &boot::start(url, &sha256.parse().expect("a digest")),
    );
    let output = Command::new(script)
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("STAGELINE_HOME", &home)
        .env("SEEN", dir.path().join("seen"))
        .env("SERVED", dir.path().join("served"))
        .env("OUT", dir.path().join("out"))
        .output()
        .expect("a shell");
    assert!(!dir.path().join("PWNED").exists(), "the URL is no command");
    let seen = std::fs::read_to_string(dir.path().join("seen")).unwrap_or_default();
    assert!(seen.lines().all(|line| line == url), "{seen}");
    let ran = std::fs::read_to_string(dir.path().join("out")).unwrap_or_default();
    let fetched = if seen.is_empty() { "" } else { "fetched " };
    (format!("{fetched}{ran}"), output.status.success())
}

#[test]
fn a_fetched_agent_runs_when_its_digest_fits_and_not_otherwise() {
    let agent = "#!/bin/sh\necho \"$@\" >>\"$OUT\"\n";
    let evil = "#!/bin/sh\necho evil >>\"$OUT\"\n";
    let digest = {
        use sha2::Digest as _;
        stageline_core::id::Sha256(sha2::Sha256::digest(agent.as_bytes()).into()).to_string()
    };
    let (ran, well) = start(&digest, agent, None);
    assert!(
        well && ran.starts_with("fetched agent --boot-env --dir "),
        "{ran}"
    );
    assert_eq!(start(&digest, evil, None), ("fetched ".to_owned(), false));
    // What is there already is not fetched again, unless it is another one.
    let (ran, well) = start(&digest, evil, Some(agent));
    assert!(well && ran.starts_with("agent --boot-env --dir "), "{ran}");
    let (ran, well) = start(&digest, agent, Some(evil));
    assert!(
        well && ran.starts_with("fetched agent --boot-env --dir "),
        "{ran}"
    );
}
