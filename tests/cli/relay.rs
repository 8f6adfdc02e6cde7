//! `[relay]` with a token and an authority of its own, end to end: said before anything is rented when it does not work, a
//! change of it is an update of the deliveries, and the token is in the owner's file on the machine and nowhere else.

use super::world::{STUB, World};
use crate::relay::Relay;

/// Both of them are searched for everywhere.
const FIRST: &str = "canary-relay-one-5b1f";
const SECOND: &str = "canary-relay-two-9c0d";

fn topology(relay: &Relay) -> String {
    let url = &relay.url;
    format!(
        "{STUB}\n[relay]\nurl = \"{url}\"\nca = \"ca.pem\"\ntoken = {{ env = \"RELAY_TOKEN\" }}\n"
    )
}

/// The token is in the machines' own files only.
fn is_kept_secret(world: &World, said: &[String]) {
    for secret in [FIRST, SECOND] {
        for text in said {
            assert!(!text.contains(secret), "{secret} in:\n{text}");
        }
        for args in world.processes().values() {
            assert!(!args.contains(secret), "{secret} in {args}");
        }
        for (path, bytes) in world.files() {
            let owns = path.file_name().is_some_and(|name| name == "relay.json");
            let text = String::from_utf8_lossy(&bytes);
            assert!(
                owns || !text.contains(secret),
                "{secret} in {}",
                path.display()
            );
        }
    }
}

#[test]
fn a_relay_with_a_token_is_told_to_machines_and_changes_are_updates() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let relay = runtime.block_on(Relay::start(&[FIRST]));
    let mut world = World::new(&topology(&relay));
    world.write("ca.pem", &relay.ca_pem);

    // Planning needs no secret. Applying without it, or with a wrong one, begins nothing.
    world.run("plan").exits(0);
    let unset = world.run("apply --auto-approve");
    unset.exits(1).says("RELAY_TOKEN is not set");
    world.set("RELAY_TOKEN", "not-this-one");
    let denied = world.run("apply --auto-approve");
    denied
        .exits(1)
        .says("does not let this endpoint in: no such token")
        .says("hint: check `token` of [relay]")
        .says_not("not-this-one");
    assert!(
        world.machines().is_empty(),
        "found before a machine is rented"
    );

    world.set("RELAY_TOKEN", FIRST);
    let first = world.apply();
    assert!(relay.guests() >= 3, "the operator and two agents");
    let nothing = world.run("plan --detailed-exitcode");
    nothing.exits(0).says("Nothing to do");
    let status = world.run("status");
    status.exits(0);
    let asked = world.run("ask hello");
    asked.exits(0);

    // The token changes, and nothing in the file does.
    runtime.block_on(async { relay.lets_in(&[FIRST, SECOND]) });
    world.set("RELAY_TOKEN", SECOND);
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(2)
        .says("delivery.node[0..2] update: the token of its relay changed")
        .says_not("replace");
    let second = world.apply();
    runtime.block_on(async { relay.lets_in(&[SECOND]) });
    world
        .run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    let said: Vec<String> = [unset, denied, first, nothing, status, asked, plan, second]
        .iter()
        .map(ToString::to_string)
        .collect();
    is_kept_secret(&world, &said);
    for machine in world.machines() {
        let kept = std::fs::read_to_string(machine.join("relay.json")).expect("there");
        assert!(kept.contains(SECOND) && !kept.contains(FIRST));
    }
    world.destroy();
    runtime.block_on(relay.stop());
}
