//! Machines that are ready and then somewhere else, as after a restart of their hosts: found there, and recorded.

use std::net::SocketAddr;

use stageline::sim::Kind;
use stageline::sim::fault::Fault;

use super::desk::{Desk, SPEED};
use super::host::until;

/// Machines that go elsewhere when they are told to.
fn desk(kind: Kind, count: u32) -> Desk {
    let later = Fault::of("ip-changes").text("later").seconds(1_000_000);
    Desk::of(kind, vec![later], SPEED, count)
}

/// Where the agent of a machine is.
fn address(desk: &Desk, label: &str) -> Option<SocketAddr> {
    let inner = desk.cloud.world.lock();
    let mut machines = inner.machines.values();
    let machine = machines.find(|machine| machine.label == label)?;
    machine.agent.as_ref()?.address()
}

/// The name that the machine of a lease has.
fn label(desk: &Desk, lease: &str) -> String {
    let ran = desk.run("state pull");
    let document: serde_json::Value = serde_json::from_str(ran.exits(0).text.trim()).expect("JSON");
    let state: stageline::core::state::State =
        serde_json::from_value(document["state"].clone()).expect("a state");
    let held = state.lease(&lease.parse().expect("an id"));
    held.expect("a machine").request_key.to_string()
}

/// A machine goes elsewhere, with all that it has.
fn moves(desk: &Desk, lease: &str) {
    let label = label(desk, lease);
    let before = address(desk, &label).expect("it is up");
    let now = desk.cloud.world.clock.now();
    for machine in desk.cloud.world.lock().machines.values_mut() {
        if machine.label == label {
            machine.moves = Some(now);
        }
    }
    until("it is somewhere else", || {
        address(desk, &label).is_some_and(|now| now != before)
    });
}

fn says_not(ran: &super::desk::Ran, words: &str) {
    assert!(!ran.text.contains(words), "`{words}` in {}", ran.text);
}

#[test]
fn a_machine_whose_address_changes_is_found_there_and_that_is_recorded() {
    std::thread::scope(|scope| {
        for kind in Kind::ALL {
            scope.spawn(move || {
                let desk = desk(kind, 1);
                desk.run("apply --auto-approve").exits(0);
                moves(&desk, "lease.node[0]");
                // Before anybody writes anything down. An agent that starts again has no workers until `apply` starts them.
                desk.run("ask hello").exits(4).says("none was started");
                let status = desk.run("status");
                says_not(status.exits(4), "does not answer");
                desk.run("logs lease.node[0]").exits(0).says("listens");
                desk.run("ssh lease.node[0] echo there")
                    .exits(0)
                    .says("there");
                let plan = desk.run("plan --detailed-exitcode");
                plan.exits(2).says("its address changed from");
                says_not(&plan, "did not answer");
                says_not(&plan, "replace");
                desk.run("apply --auto-approve").exits(0);
                desk.run("plan --detailed-exitcode").exits(0);
                desk.run("ask hello").exits(0);
                desk.agrees(1);
                desk.run("destroy --auto-approve").exits(0);
                desk.agrees(0);
            });
        }
    });
}

#[test]
fn the_peers_of_a_machine_whose_address_changed_are_told_also_when_it_was_recorded_before() {
    let desk = desk(Kind::Vastai, 2);
    desk.run("apply --auto-approve").exits(0);
    moves(&desk, "lease.node[1]");
    let told = "its roster names lease.node[1], whose machine is reached elsewhere now";
    desk.run("plan").exits(0).says(told);
    desk.run("apply --refresh-only --auto-approve")
        .exits(0)
        .says("its address is recorded");
    let plan = desk.run("plan");
    plan.exits(0).says(told);
    says_not(&plan, "its address");
    desk.run("apply --auto-approve").exits(0);
    desk.run("plan --detailed-exitcode").exits(0);
    desk.run("ask hello").exits(0);
    desk.agrees(2);
}
