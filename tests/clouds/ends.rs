//! A machine that ends itself: its operator is gone, its limit passes, and the cloud bills no more.

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, SPEED};
use super::host::until;

#[test]
fn a_machine_whose_operator_is_gone_ends_itself_by_its_limit_and_stays_ended() {
    ends_itself(Kind::Vastai);
}

#[test]
fn a_pod_whose_operator_is_gone_ends_itself_too() {
    ends_itself(Kind::Runpod);
}

fn ends_itself(kind: Kind) {
    let desk = Desk::new(kind, vec![]);
    desk.edit("image = ", "idle_timeout = \"8s\"\nimage = ");
    desk.run("plan")
        .exits(0)
        .says("ends itself after 8s without work");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(2);
    // Nobody does anything from here on.
    until("they end themselves", || desk.there().is_empty());
    let bill = desk.cloud.world.bill();
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("lease.node[0]: ended by its idle_timeout")
        .says("its machine is gone");
    desk.run("apply --auto-approve").exits(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("2 leases are kept ended by their own limits");
    assert_eq!(desk.cloud.world.bill(), bill, "nothing is billed any more");
    desk.run("apply --auto-approve --renew lease.node[0]")
        .exits(0);
    assert_eq!(desk.there().len(), 1);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

/// Its one machine ends itself, which the next plan knows, and nothing is left.
#[track_caller]
fn ends_by(desk: &Desk, limit: &str) {
    until("it ends itself", || desk.there().is_empty());
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says(&format!("lease.node[0]: ended by its {limit}"));
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

/// It would bill until somebody looks, and the plan said otherwise.
#[test]
fn a_machine_that_was_handed_no_key_of_its_own_is_not_kept() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = Desk::of(kind, vec![Fault::of("no-own-key")], SPEED, 1);
        desk.run("plan").exits(0).says("ends itself");
        desk.run("apply --auto-approve")
            .exits(1)
            .says("lease.node[0]: its machine cannot end itself by its limits")
            .says("it is being released");
        desk.agrees(0);
        desk.run("destroy --auto-approve").exits(0);
    }
}

/// One that is ready waits for one that boots for longer than a machine may be idle.
#[test]
fn a_machine_does_not_end_itself_while_its_apply_waits_for_another_one() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let slow = Fault::of("boot-slow").times(1);
        let desk = Desk::of(kind, vec![slow], 150, 2);
        desk.edit("image = ", "idle_timeout = \"4s\"\nimage = ");
        desk.run("apply --auto-approve").exits(0);
        assert_eq!(desk.cloud.world.lock().machines.len(), 2, "{kind:?}");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// One that was kept all the same is told no limits that it could not keep.
#[test]
fn a_machine_without_a_key_of_its_own_takes_no_limits() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = Desk::of(kind, vec![Fault::of("no-own-key")], SPEED, 1);
        desk.edit("[limits]", "[limits]\nmax_spend = 50");
        let never = "idle_timeout = \"never\"\nmax_lifetime = \"never\"\nimage = ";
        desk.edit("image = ", never);
        desk.edit("[lease.node]", "[lease.node]\nunguarded = true");
        desk.run("apply --auto-approve").exits(0);
        desk.edit("idle_timeout = \"never\"", "idle_timeout = \"20m\"");
        desk.run("apply --auto-approve")
            .exits(1)
            .says("handed no key to end itself");
        // Nothing was recorded that does not hold.
        desk.run("plan --detailed-exitcode").exits(2);
        desk.agrees(1);
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// An operator that is gone, and a limit on the whole life of a machine.
#[test]
fn a_machine_ends_itself_by_its_age_too() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = Desk::of(kind, vec![], SPEED, 1);
        desk.edit("image = ", "max_lifetime = \"15s\"\nimage = ");
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        ends_by(&desk, "max_lifetime");
    }
}

/// Two accounts at one provider, each by a table of its own.
const TWO: &str = r#"
version = 1
name = "demo"
[limits]
max_price_per_hour = 1.00
[provider.first]
kind = "vastai"
url = "URL"
[provider.second]
kind = "vastai"
url = "URL"
api_key = { file = "second" }
[offer.a]
provider = "first"
where = "gpu=rtx_4090|rtx_3090, vram>=24"
image = "stageline/agent:1"
[offer.b]
provider = "second"
where = "gpu=rtx_4090|rtx_3090, vram>=24"
image = "stageline/agent:1"
[lease.a]
offers = ["a"]
disk = 40
[lease.b]
offers = ["b"]
count = 2
disk = 40
"#;

#[test]
fn what_came_late_is_released_on_the_account_that_lists_it() {
    let desk = Desk::of(Kind::Vastai, vec![], SPEED, 1);
    desk.write(&TWO.replace("URL", &desk.cloud.url()));
    desk.secret("second", "rehearsal-key-of-somebody-else");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(3);
    desk.run("release lease.b[1] --auto-approve").exits(0);
    desk.agrees(2);
    // As a create that took effect long after it was given up.
    for machine in desk.cloud.world.lock().machines.values_mut() {
        machine.gone_from = None;
    }
    assert_eq!(desk.there().len(), 3);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("came late; it is released")
        .says("0 left at providers, verified at");
    assert!(desk.there().is_empty());
}

/// The machine was rented with twenty minutes, and nobody else would end it.
#[test]
fn limits_that_are_changed_in_the_file_reach_a_machine_that_ends_itself() {
    let desk = Desk::of(Kind::Vastai, vec![], SPEED, 1);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    desk.edit("image = ", "idle_timeout = \"2s\"\nimage = ");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("its limits changed");
    ends_by(&desk, "idle_timeout");
}
