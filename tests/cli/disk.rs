//! A state folder to which something happened: each kind of damage has its message and its way out, and none of them is
//! taken for "nothing is deployed".

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::world::{Ran, STUB, World, finish};

/// Commands that look and commands that act.
const LINES: [&str; 5] = [
    "plan",
    "apply --auto-approve",
    "destroy --auto-approve",
    "leases",
    "state list",
];

fn entries(world: &World) -> Vec<PathBuf> {
    let folder = fs::read_dir(world.join("state/demo/journal")).expect("there");
    let mut entries: Vec<_> = folder
        .map(|entry| entry.expect("readable").path())
        .collect();
    entries.sort();
    entries
}

/// Every command says what is wrong and where, changes nothing, and claims nothing.
fn refused(world: &World, says: &[&str]) {
    let before = world.files();
    for line in LINES {
        let ran = world.run(line);
        ran.exits(1)
            .says("hint:")
            .says_not("0 left")
            .says_not("Nothing to do");
        for what in says {
            ran.says(what);
        }
    }
    assert!(world.files() == before, "nothing was written");
    assert_eq!(world.machines().len(), 2, "nothing was ended");
}

#[test]
fn each_kind_of_damage_has_its_message_and_its_way_out() {
    let world = World::new(STUB);
    world.apply();
    let all = entries(&world);
    let (last, middle) = (all.last().expect("some"), &all[all.len() / 2]);
    let whole = fs::read(last).expect("readable");
    let restored = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).expect("written");
        world.run("plan --detailed-exitcode").exits(0);
    };
    let wrong = |name: &Path| {
        name.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };

    fs::write(last, "").expect("written");
    refused(
        &world,
        &[
            "is damaged",
            &wrong(last),
            "cut off after 0 bytes",
            "put the object back from a copy",
        ],
    );
    restored(last, &whole);

    fs::write(last, fs::read(middle).expect("readable")).expect("written");
    refused(&world, &["is damaged", &wrong(last), "a copy of entry"]);
    restored(last, &whole);

    let more = last.with_file_name(format!("{:012}.json", all.len() + 1));
    fs::copy(last, &more).expect("copied");
    refused(&world, &["is damaged", &wrong(&more), "a copy of entry"]);
    fs::remove_file(&more).expect("removed");
    let twice = last.with_file_name(format!("{}.json", all.len()));
    fs::copy(last, &twice).expect("copied");
    refused(&world, &["is damaged", "is it a copy?"]);
    fs::remove_file(&twice).expect("removed");

    let aside = world.join("aside");
    let journal = world.join("state/demo/journal");
    fs::rename(&journal, &aside).expect("renamed");
    refused(&world, &["is damaged", "journal", "state.json is there"]);
    fs::write(&journal, "somebody's file").expect("written");
    refused(&world, &["journal is not a folder", "move that file away"]);
    fs::remove_file(&journal).expect("removed");
    fs::rename(&aside, &journal).expect("renamed");
    world.run("plan --detailed-exitcode").exits(0);
    world.agrees();
    world.destroy();
}

/// The state is another user's, who lets us look, or not.
#[test]
fn a_state_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n!!! SKIPPED: only root can act as another user\n");
        return;
    }
    let world = World::new(STUB);
    world.apply();
    let modes = |state: u32| {
        for (path, mode) in [("", 0o755), ("state", 0o755), ("state/demo", state)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(world.join(path), mode).expect("ours");
        }
    };
    modes(0o755);
    let before = world.files();
    for line in ["apply --auto-approve", "destroy --auto-approve"] {
        let ran = as_nobody(&world, line);
        assert!(matches!(ran.code, Some(1 | 5)), "{ran}");
        ran.says("ermission").says("state/demo").says("hint:");
        ran.says_not("0 left");
    }
    as_nobody(&world, "state list")
        .exits(0)
        .says("lease.node[1]");
    modes(0o700);
    for line in LINES {
        as_nobody(&world, line)
            .exits(1)
            .says("no permission for")
            .says("hint:")
            .says_not("Nothing to do")
            .says_not("0 left");
    }
    assert!(world.files() == before, "nothing was written");
    world.agrees();
    world.destroy();
}

fn as_nobody(world: &World, line: &str) -> Ran {
    let command = world.command(line.split_ascii_whitespace());
    let mut nobody = Command::new("setpriv");
    nobody
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(world.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ran::of(
        line.to_owned(),
        finish(nobody.spawn().expect("setpriv is there")),
    )
}
