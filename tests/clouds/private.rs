//! Private images: without a login a machine's boot fails and says why, with one it comes up; and the password is in the requests to the
//! provider and nowhere else.

use stageline::sim::Kind;
use stageline::sim::registry::{PASSWORD_HEAD, USER};

use super::desk::{Desk, Ran};

/// Without signs that a command line would take for its own: `vastai` takes no others.
fn password() -> String {
    format!("{PASSWORD_HEAD}canary-registry-77ce")
}

const IMAGE: &str = "image = \"stageline/agent:1\"";
const PRIVATE: &str = "image = \"registry.example/private/agent:1\"\nattempts = 1";

/// A desk whose image is private, and what lets it in.
fn desk(kind: Kind) -> (Desk, String) {
    let desk = Desk::new(kind, vec![]);
    desk.edit(IMAGE, PRIVATE);
    let login = format!(
        "{PRIVATE}\nregistry = {{ server = \"registry.example\", username = \"{USER}\", password = {{ file = \"token\" }} }}"
    );
    desk.secret("token", &password());
    (desk, login)
}

/// The password is in none of these outputs, and in no file but its own.
fn is_kept(desk: &Desk, said: &[Ran]) {
    for ran in said {
        assert!(!ran.text.contains(&password()), "{}", ran.text);
    }
    let mut open = vec![desk.path("")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if !path.ends_with("token") {
                let bytes = std::fs::read(&path).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains(&password()), "{}", path.display());
            }
        }
    }
}

/// The names of credentials in the account of a desk.
fn credentials(desk: &Desk) -> Vec<String> {
    let inner = desk.cloud.world.lock();
    let shelves = inner
        .accounts
        .iter()
        .filter(|(name, _)| name.ends_with("/registries"));
    let rows = shelves.flat_map(|(_, rows)| rows.as_array().cloned().unwrap_or_default());
    rows.map(|row| row["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_private_image_of_vastai_is_pulled_by_its_login_alone() {
    let (desk, login) = desk(Kind::Vastai);
    desk.run("apply --auto-approve")
        .exits(4)
        .says("its image may not be pulled: it is private")
        .says("pull access denied for registry.example/private/agent");
    desk.edit(PRIVATE, &login.replace(USER, "somebody"));
    desk.run("apply --auto-approve")
        .exits(4)
        .says("its image may not be pulled");
    desk.edit("somebody", USER);
    let said = [
        desk.run("plan -vv --json"),
        desk.run("apply -vv --auto-approve"),
        desk.run("state pull"),
        desk.run("show --json"),
    ];
    said[1].exits(0);
    desk.agrees(2);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    is_kept(&desk, &said);
    // A machine was made with its login: another one is another machine.
    desk.edit("{ file = \"token\" }", "{ env = \"OTHER\" }");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("its image is pulled by another login now");
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

#[test]
fn a_private_image_of_runpod_is_pulled_by_a_credential_that_is_removed_after_its_last_pod() {
    let (desk, login) = desk(Kind::Runpod);
    desk.edit("disk = 40", "disk = 40\nacquire_timeout = \"8s\"");
    desk.run("apply --auto-approve")
        .exits(4)
        .says("pull access denied for registry.example/private/agent");
    desk.edit("\nacquire_timeout = \"8s\"", "");
    assert_eq!(credentials(&desk), Vec::<String>::new());
    desk.edit(PRIVATE, &login);
    let said = [
        desk.run("plan -vv --json"),
        desk.run("apply -vv --auto-approve"),
        desk.run("state pull"),
    ];
    said[1].exits(0);
    desk.agrees(2);
    let kept = credentials(&desk);
    assert_eq!(kept.len(), 1, "one for both pods: {kept:?}");
    assert!(kept[0].starts_with("stageline-"), "{kept:?}");
    is_kept(&desk, &said);
    desk.run("release lease.node[0] --auto-approve").exits(0);
    assert_eq!(credentials(&desk), kept, "the other pod uses it");
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
    assert_eq!(
        credentials(&desk),
        Vec::<String>::new(),
        "removed with the last"
    );
}

#[test]
fn a_login_that_is_not_at_hand_is_said_before_anything_is_rented() {
    let (desk, login) = desk(Kind::Vastai);
    desk.edit(
        PRIVATE,
        &login.replace("{ file = \"token\" }", "{ env = \"NO_SUCH_TOKEN\" }"),
    );
    desk.run("apply --auto-approve")
        .exits(1)
        .says("lease.node[0], lease.node[1]: the environment variable NO_SUCH_TOKEN is not set");
    assert!(desk.there().is_empty());
}
