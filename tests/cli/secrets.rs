//! A canary in every secret: it is in no file, no output and no process's arguments, plain, base64 or URL-encoded.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::drift::{command_topology, example_worker};
use super::world::{Ran, World};

/// Secrets with signs that change when they are encoded.
const KEY_BY_ENV: &str = "canary-env/7f3a?b+c d==";
const KEY_BY_FILE: &str = "canary-file/91c2?e+f g==";
const KEY_BY_COMMAND: &str = "canary-command/55aa?x+y z==";
const WORKERS: &str = "canary-worker/0b1d?p+q r==";
const MACHINES: &str = "canary-machine/4e6f?r+s t==";

/// What is run while every secret is in use.
const LINES: &[&str] = &[
    "apply -vv --json --auto-approve",
    "plan -vv --json",
    "apply --log-format json --auto-approve",
    "status --json",
    "show --json",
    "state pull",
    "logs stage.chat[0]",
    "logs stage.chat[1]",
    "logs lease.node[0]",
    "graph",
    "ask --json hello",
    "validate -vv",
    "leases --json",
    "watch --once -vv --json",
    "orphans -vv --json",
    "ssh lease.node[0] env",
    "offers -vv --json",
    "state list",
    "state show lease.node[0]",
    "state history --json",
    "state repair --auto-approve",
];

/// The same for what changes the state; each with how it ends.
const SURGERY: &[(&str, i32)] = &[
    ("state mv lease.node lease.other --auto-approve -vv", 0),
    ("state mv lease.other lease.node --auto-approve --json", 0),
    ("state rollback 999999 --auto-approve", 1),
    ("state push elsewhere", 1),
    ("state unlock --auto-approve", 0),
    ("state rm lease.node[1] --auto-approve", 0),
    ("orphans -vv", 0),
    ("import lease.node[1] ID --auto-approve -vv", 0),
    ("apply -vv --auto-approve", 0),
];

/// Commands that are not in those lists, and why.
const SPARED: &[(&str, &str)] = &[
    ("init", "reads nothing"),
    ("schema", "reads nothing"),
    ("explain", "reads nothing"),
    ("completions", "reads nothing"),
    ("sim", "has keys of its own only, which open nothing"),
    ("version", "reads nothing"),
    (
        "agent",
        "runs all the time: its files, log and arguments are searched",
    ),
    (
        "forward",
        "runs until it is ended; it carries bytes and writes nothing",
    ),
    ("release", "run at the end"),
    ("destroy", "run at the end"),
];

/// Every way in which a secret may show.
pub(crate) fn forms(secret: &str) -> Vec<String> {
    let url: String = secret
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    let mut forms = vec![
        secret.to_owned(),
        url.clone(),
        url.to_lowercase(),
        url.replace("%20", "+"),
    ];
    // Base64 of a text that contains it begins at one of three places: the middle of each is the same wherever it stands.
    for lead in ["", "x", "xy"] {
        for engine in [STANDARD, URL_SAFE] {
            let whole = engine.encode(format!("{lead}{secret}"));
            forms.push(whole[4..whole.len() - 8].to_owned());
        }
    }
    forms
}

#[test]
fn every_form_of_a_secret_is_found() {
    for before in ["", "a", "ab", "abc"] {
        let text = format!("{before}{KEY_BY_ENV}, and more");
        let found = |hidden: &str| forms(KEY_BY_ENV).iter().any(|form| hidden.contains(form));
        assert!(found(&text));
        assert!(found(&STANDARD.encode(&text)), "{before}");
        assert!(found(&URL_SAFE.encode(&text)), "{before}");
        assert!(!found("canary-env/7f3a?b and no more"));
    }
    let url = "canary-env%2F7f3a%3Fb%2Bc%20d%3D%3D";
    assert!(forms(KEY_BY_ENV).contains(&url.to_owned()));
}

/// A secret wherever one may stand; the workers print theirs.
fn full_of_secrets() -> String {
    let script = format!(
        "echo the token is $TOKEN >&2; printf %s \"$TOKEN\" | base64 >&2; echo \"$TOKEN\" | od -c >&2; \
         echo and of the machine $MACHINE_TOKEN >&2; printf %s \"$MACHINE_TOKEN\" | base64 >&2; exec python3 {}",
        example_worker()
    );
    let exposures = "
[exposure.by-file]
pipelines = [\"chat\"]
listen = \"127.0.0.1:0\"
api_key = { file = \"key.txt\" }

[exposure.by-command]
pipelines = [\"chat\"]
listen = \"127.0.0.1:0\"
api_key = { command = [\"sh\", \"key.sh\"] }
";
    let topology = command_topology(&format!("[\"sh\", \"-c\", '''{script}''']"))
        .replace(
            "check =",
            "secrets = { TOKEN = { env = \"WORKER_TOKEN\" } }\ncheck =",
        )
        .replace(
            "count = 2",
            "count = 2\nsecrets = { MACHINE_TOKEN = { env = \"LEASE_TOKEN\" } }\n\
             setup = \"echo setup with $MACHINE_TOKEN; printf %s \\\"$MACHINE_TOKEN\\\" | base64\"",
        )
        .replace("listen =", "api_key = { env = \"API_KEY\" }\nlisten =");
    format!("{topology}{exposures}")
}

#[test]
fn no_secret_is_written_anywhere() {
    let mut world = World::new(&full_of_secrets());
    world.write("key.txt", KEY_BY_FILE);
    world.write("key.sh", format!("echo '{KEY_BY_COMMAND}'"));
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(world.join("key.txt"), mode).expect("set");

    let ran = world.run("plan --out p.json");
    ran.exits(0);
    let unset = world.run("apply p.json");
    unset.exits(1).says("hint:");
    unset.says("exposure.api: the environment variable API_KEY is not set");
    unset.says("stage.chat[0], stage.chat[1]: the environment variable WORKER_TOKEN is not set");
    unset.says("lease.node[0], lease.node[1], stage.chat[0], stage.chat[1]: the environment variable LEASE_TOKEN is not set");
    assert!(
        world.machines().is_empty(),
        "found before a machine is rented"
    );
    world.set("API_KEY", KEY_BY_ENV);
    world.set("WORKER_TOKEN", WORKERS);
    world.set("LEASE_TOKEN", MACHINES);

    let mut said: Vec<Ran> = vec![ran, unset];
    for line in LINES {
        let ran = world.run(line);
        ran.exits(0);
        said.push(ran);
    }
    let machines = world.run("leases --json").json();
    let machine = machines[1]["machine"].as_str().expect("it is held");
    for (line, code) in SURGERY {
        let ran = world.run(&line.replace("ID", machine));
        ran.exits(*code);
        said.push(ran);
    }
    for line in ["the token is", "and of the machine ***", "setup with ***"] {
        assert!(
            said.iter().any(|ran| ran.out.contains(line)),
            "the log of the worker was read"
        );
    }
    search(&world, &said);
    said = vec![
        world.run("release lease.node[1] --auto-approve"),
        world.destroy(),
    ];
    said[0].exits(0);
    for form in [KEY_BY_ENV, KEY_BY_FILE, KEY_BY_COMMAND, WORKERS, MACHINES]
        .map(forms)
        .concat()
    {
        let found = said
            .iter()
            .find(|ran| ran.out.contains(&form) || ran.err.contains(&form));
        assert!(found.is_none(), "{form} in:\n{}", said[0]);
    }
}

/// A command that is new is searched for secrets too, or it is said here why it need not be.
#[test]
fn every_command_is_searched() {
    let world = World::empty();
    let of = |page: &str| -> Vec<String> {
        let (_, list) = page.split_once("Commands:\n").expect("it has commands");
        let lines = list.lines().take_while(|line| !line.trim().is_empty());
        let named = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        named
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut all = of(&world.run("--help").out);
    all.retain(|name| name != "state");
    let below = of(&world.run("state --help").out);
    all.extend(below.iter().map(|name| format!("state {name}")));
    assert!(all.len() > 20, "the page was read: {all:?}");
    let surgery = SURGERY.iter().map(|(line, _)| *line);
    let run: Vec<&str> = LINES.iter().copied().chain(surgery).collect();
    let is_run = |name: &String| {
        let before = format!("{name} ");
        run.iter()
            .any(|line| *line == name || line.starts_with(&before))
    };
    let spared = |name: &String| SPARED.iter().any(|(spared, _)| spared == name);
    let missing: Vec<&String> = all
        .iter()
        .filter(|name| !is_run(name) && !spared(name))
        .collect();
    assert!(missing.is_empty(), "no canary for {missing:?}");
}

#[test]
fn a_secret_that_others_can_read_is_refused() {
    let world = World::new(
        &super::world::STUB.replace("listen =", "api_key = { file = \"key.txt\" }\nlisten ="),
    );
    world.write("key.txt", KEY_BY_FILE);
    std::fs::set_permissions(
        world.join("key.txt"),
        std::fs::Permissions::from_mode(0o644),
    )
    .expect("set");
    let ran = world.run("apply --auto-approve");
    ran.exits(1)
        .says("exposure.api")
        .says("key.txt can be read by others")
        .says("chmod 600")
        .says_not(KEY_BY_FILE);
    world.agrees();
    world.destroy();
}

/// What `acquire` prints may be confidential, and what it is handed is: it is in one file that only its owner can read, and
/// nowhere else.
#[test]
fn what_a_program_of_the_users_own_prints_and_is_handed_stays_there() {
    const LINES: &[&str] = &[
        "apply -vv --auto-approve",
        "plan -vv --json",
        "status --json",
        "show --json",
        "state pull",
        "logs lease.node[0]",
        "leases --json",
        "orphans -vv --json",
        "watch --once -vv --json",
    ];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read(root.join("examples/command/pool.sh")).expect("there");
    let topology = std::fs::read_to_string(root.join("examples/command/topology.toml"));
    let topology = topology.expect("there");
    let topology = topology.replace("\"./pool.sh\", \"acquire\"", "\"sh\", \"acquire.sh\"");
    let mut world = World::new(&topology);
    world.write("pool.sh", script);
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(world.join("pool.sh"), mode).expect("set");
    world.write("key.txt", KEY_BY_FILE);
    world.write(
        "acquire.sh",
        "set -e\nline=$(./pool.sh acquire)\nprintf '%s, \"token\": \"%s\"}\\n' \"${line%?}\" \"$(cat key.txt)\"\nenv >&2\n",
    );
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_stageline"));
    let own = own.parent().expect("a folder").display();
    world.set("PATH", &format!("{own}:/usr/local/bin:/usr/bin:/bin"));
    let said: Vec<Ran> = LINES.iter().map(|line| world.run(line)).collect();
    let processes = arguments();
    let files = world.files();
    world.destroy();
    for ran in &said {
        ran.exits(0);
    }
    let is_note = |path: &std::path::Path| path.to_string_lossy().contains("/commands/");
    let is_key =
        |path: &std::path::Path| path.ends_with("identity.key") || path.ends_with("agent.key");
    let keys = files.iter().filter(|(path, _)| is_key(path));
    let mut secrets: Vec<String> = keys
        .map(|(_, bytes)| String::from_utf8_lossy(bytes).trim().to_owned())
        .collect();
    assert_eq!(secrets.len(), 3, "an identity and two agents");
    // The package of an agent has its key in it, in base64.
    secrets.push(KEY_BY_FILE.to_owned());
    let noted = files.iter().filter(|(path, bytes)| {
        is_note(path) && String::from_utf8_lossy(bytes).contains(KEY_BY_FILE)
    });
    assert_eq!(noted.count(), 2, "what is noted is for `release`");
    for form in secrets.iter().flat_map(|secret| forms(secret)) {
        for ran in &said {
            let clean = !ran.out.contains(&form) && !ran.err.contains(&form);
            assert!(clean, "{form} in:\n{ran}");
        }
        assert!(!processes.iter().any(|args| args.contains(&form)), "{form}");
        for (path, bytes) in &files {
            let token = form != secrets[0]
                && is_note(path)
                && path.extension().is_some_and(|it| it == "json");
            let theirs = path.ends_with("key.txt") || is_key(path) || token;
            let found = !theirs && String::from_utf8_lossy(bytes).contains(&form);
            assert!(!found, "{form} in {}", path.display());
        }
    }
}

/// Fails when a secret is in an output, in the arguments of a process, or in a file that is not the user's own.
fn search(world: &World, said: &[Ran]) {
    let processes = arguments();
    let files = world.files();
    let is_theirs = |name: &str| ["key.txt", "key.sh", "topology.toml"].contains(&name);
    let there = |path: &std::path::PathBuf| files[path].ends_with(KEY_BY_FILE.as_bytes());
    assert!(files.keys().any(there), "the search would find it");
    let mut secrets = [KEY_BY_ENV, KEY_BY_FILE, KEY_BY_COMMAND, WORKERS, MACHINES]
        .map(str::to_owned)
        .to_vec();
    let is_key =
        |path: &std::path::PathBuf| path.ends_with("identity.key") || path.ends_with("agent.key");
    for (_, bytes) in files.iter().filter(|(path, _)| is_key(path)) {
        secrets.push(String::from_utf8_lossy(bytes).trim().to_owned());
    }
    assert_eq!(secrets.len(), 5 + 3, "an identity and two agents");
    for secret in &secrets {
        for form in forms(secret) {
            for ran in said {
                assert!(
                    !ran.out.contains(&form) && !ran.err.contains(&form),
                    "{form} in:\n{ran}"
                );
            }
            for args in &processes {
                assert!(!args.contains(&form), "{form} in the arguments {args}");
            }
            for (path, bytes) in &files {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or_default();
                let text = String::from_utf8_lossy(bytes);
                let found = !is_theirs(name) && !is_key(path) && text.contains(&form);
                assert!(!found, "{form} in {}", path.display());
            }
        }
    }
}

/// The arguments of every process.
pub(crate) fn arguments() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/proc").expect("readable").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect()
}
