//! Private images: without a login a machine's boot fails and says why, with one it comes up; and the password is in the requests to the
//! provider and nowhere else.

use stageline::sim::registry::{PASSWORD_HEAD, USER};
use stageline::sim::{Fault, Kind};

use super::desk::{Desk, Ran, SPEED, finish};
use super::kept::{is_in_no_file, is_in_no_output, is_on_no_machine};

/// Without signs that a command line would take for its own: `vastai` takes no others.
fn password() -> String {
    format!("{PASSWORD_HEAD}canary-registry-77ce")
}

const IMAGE: &str = "image = \"stageline/agent:1\"";
const PRIVATE: &str = "image = \"registry.example/private/agent:1\"\nattempts = 1";

/// A desk whose image is private, and what lets it in.
fn desk(kind: Kind) -> (Desk, String) {
    desk_with(kind, vec![], 2)
}

fn desk_with(kind: Kind, faults: Vec<Fault>, count: u32) -> (Desk, String) {
    let desk = Desk::of(kind, faults, SPEED, count);
    desk.edit(IMAGE, PRIVATE);
    let login = format!(
        "{PRIVATE}\nregistry = {{ server = \"registry.example\", username = \"{USER}\", password = {{ file = \"token\" }} }}"
    );
    desk.secret("token", &password());
    (desk, login)
}

/// The password is in none of these outputs, in no file but its own, and on no machine.
fn is_kept(desk: &Desk, said: &[Ran]) {
    is_in_no_output(said, &password());
    is_in_no_file(&desk.path(""), &password(), "token");
    is_on_no_machine(desk, &password());
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
        .exits(1)
        .says("its image may not be pulled")
        .says("`registry` there has a login that may pull it")
        .says("pull access denied for registry.example/private/agent");
    // It is nobody's fault but ours: the next plan takes the same hosts.
    assert!(!desk.run("plan").text.contains("avoided"));
    desk.edit(PRIVATE, &login.replace(USER, "somebody"));
    desk.run("apply --auto-approve")
        .exits(1)
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
    desk.run("apply --auto-approve")
        .exits(1)
        .says("its image may not be pulled: Error response from daemon: pull access denied for registry.example/private/agent")
        .says("`registry` there has a login that may pull it");
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
    assert_eq!(kept.len(), 2, "one for each pod: {kept:?}");
    assert!(kept.iter().all(|name| name.starts_with("sl-")), "{kept:?}");
    is_kept(&desk, &said);
    desk.run("release lease.node[0] --auto-approve").exits(0);
    assert_eq!(credentials(&desk).len(), 1, "the other pod uses its own");
    desk.run("orphans").exits(0).says("no orphan was found");
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
    assert_eq!(
        credentials(&desk),
        Vec::<String>::new(),
        "removed with the last"
    );
    nothing_was_too_many(&desk);
}

/// A login is no machine: it is in no account of what there was.
fn nothing_was_too_many(desk: &Desk) {
    let ran = desk.run("state history");
    ran.exits(0);
    assert!(!ran.text.contains("one too many"), "{}", ran.text);
}

#[test]
fn a_create_in_doubt_is_not_resolved_by_the_login_of_its_pod() {
    let lost = Fault::of("create-500-after-commit").times(1);
    let late = Fault::of("list-lag").seconds(1800);
    let (desk, login) = desk_with(Kind::Runpod, vec![lost, late], 1);
    desk.edit(PRIVATE, &login);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_eq!(credentials(&desk).len(), 1, "its pod has its login");
    nothing_was_too_many(&desk);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
    assert_eq!(credentials(&desk), Vec::<String>::new());
    nothing_was_too_many(&desk);
}

#[test]
fn the_login_of_a_pod_that_never_came_is_removed_and_counted_for_nothing() {
    let lost = Fault {
        times: Some(1),
        ..Fault::of("create-500-no-commit")
    };
    let (desk, login) = desk_with(Kind::Runpod, vec![lost], 1);
    desk.edit(PRIVATE, &login.replace("attempts = 1", "attempts = 2"));
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_eq!(credentials(&desk).len(), 1, "of the try that made a pod");
    nothing_was_too_many(&desk);
}

#[test]
fn the_login_of_a_pod_that_was_given_up_goes_with_it() {
    let dies = Fault {
        times: Some(1),
        ..Fault::of("boot-dies")
    };
    let (desk, login) = desk_with(Kind::Runpod, vec![dies], 1);
    desk.edit(PRIVATE, &login.replace("attempts = 1", "attempts = 2"));
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_eq!(credentials(&desk).len(), 1, "of the pod that is there");
    nothing_was_too_many(&desk);
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

/// A login in the account is found again by the name of the try that it was made for, whatever killed the tool.
#[test]
fn whatever_kills_it_between_a_login_and_its_pod_no_login_is_left() {
    let points = [
        "a credential, not yet made",
        "a credential, just made",
        "a create, not yet sent",
        "a create, just answered",
    ];
    let case = |point: &str| {
        let (desk, login) = desk(Kind::Runpod);
        desk.edit(PRIVATE, &login);
        let mut command = desk.command("apply --auto-approve");
        command.env("STAGELINE_TEST_DIE_AT", point);
        finish(command.spawn().expect("the binary is there")).says(point);
        if point != "a credential, not yet made" {
            assert!(!credentials(&desk).is_empty(), "{point}");
        }
        desk.run("destroy --auto-approve").exits(0);
        assert_eq!(credentials(&desk), Vec::<String>::new(), "{point}");
        desk.agrees(0);
    };
    std::thread::scope(|scope| {
        let cases: Vec<_> = points.map(|point| scope.spawn(move || case(point))).into();
        for case in cases {
            case.join().expect("it went well");
        }
    });
}

#[test]
fn a_login_that_nothing_records_is_an_orphan_and_no_machine() {
    let (desk, login) = desk(Kind::Runpod);
    desk.edit(PRIVATE, &login);
    desk.run("apply --auto-approve").exits(0);
    {
        let mut inner = desk.cloud.world.lock();
        let mut shelves = inner.accounts.iter_mut();
        let shelf = shelves.find(|(name, _)| name.ends_with("/registries"));
        let rows = shelf.expect("it has some").1.as_array_mut();
        let rows = rows.expect("a list");
        for (id, name) in [
            ("c1", "sl-00112233445566aa-0011aabb-g1a1"),
            ("c2", "laptop"),
        ] {
            let row =
                serde_json::json!({ "id": id, "name": name, "username": "u", "password": "p" });
            rows.push(row);
        }
    }
    let ran = desk.run("orphans");
    ran.exits(0)
        .says("credential:c1 at provider `pods`: a login for an image")
        .says("`stageline orphans --release credential:c1` removes it");
    assert!(!ran.text.contains("c2"), "{}", ran.text);
    desk.run("orphans --adopt credential:c1 --auto-approve")
        .exits(1)
        .says("and no machine: a lease cannot hold it");
    desk.run("orphans --release credential:c1 --auto-approve")
        .exits(0);
    assert_eq!(credentials(&desk).len(), 3);
    desk.run("destroy --auto-approve").exits(0);
    assert_eq!(credentials(&desk), ["laptop"]);
}
