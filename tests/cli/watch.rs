//! The watcher as a process of its own: it ends leases that are beyond their limits, survives its own death, and what it
//! ended stays ended until somebody renews it.

use std::io::BufRead as _;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::crash::dies_at;
use super::world::{Ran, STUB, World, finish, kill, until};

/// Where a process is stopped; see `ambient::crash_point`.
const STOP_AT: &str = "STAGELINE_TEST_STOP_AT";

/// The stub topology with limits of its machines.
fn limited(limits: &str) -> World {
    let with = format!("[offer.small]\n{limits}\n");
    let world = World::new(&STUB.replace("[offer.small]\n", &with));
    world.apply();
    world.agrees();
    world
}

/// Two machines that are older than they may be.
fn outlived() -> World {
    let world = limited("max_lifetime = \"1s\"");
    pause_for(1200);
    world
}

#[expect(clippy::disallowed_methods, reason = "time passing is what is tried")]
fn pause_for(millis: u64) {
    std::thread::sleep(std::time::Duration::from_millis(millis));
}

/// A watcher that a test that fails does not leave behind.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn watcher(world: &World) -> Running {
    Running(Some(world.start("watch --every 200ms")))
}

/// Ctrl-C, and what it said until then.
fn stopped(mut running: Running) -> Ran {
    let child = running.0.take().expect("it runs");
    kill(i32::try_from(child.id()).expect("a pid"), Signal::INT);
    let ran = Ran::of("watch".to_owned(), finish(child));
    ran.exits(0);
    ran
}

/// Both machines lapsed, and are kept ended.
fn kept_ended(world: &World, limit: &str) {
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(0)
        .says("2 leases are kept ended by their own limits")
        .says(&format!("lease.node[0]: ended by its {limit}"))
        .says("`stageline apply --renew lease.node[0]` rents it again");
    let plan = world.run("plan --json").json();
    assert!(plan["plan"]["lapsed"]["lease.node[1]"]["why"].is_string());
}

#[test]
fn a_lease_without_work_is_ended_kept_ended_and_renewed() {
    let world = limited("idle_timeout = \"2s\"");
    let child = watcher(&world);
    until("the machines to end", || {
        world.machines().is_empty().then_some(())
    });
    until("the state to say so", || {
        let leases = world.run("leases --json");
        (leases.out.matches("idle_timeout: it did no work").count() == 2).then_some(())
    });
    stopped(child)
        .says("lease.node[0]: ends by its idle_timeout: it did no work for")
        .says("lease.node[1]: released, proven by the provider's listing")
        .says("stopped: nobody watches");
    world.is_clean();
    kept_ended(&world, "idle_timeout");
    world
        .run("apply --auto-approve")
        .exits(0)
        .says("Nothing to do");
    world
        .run("apply --auto-approve --renew lease.node[0]")
        .exits(0)
        .says("rented again");
    assert_eq!(world.machines().len(), 1);
    world.run("apply --auto-approve --renew").exits(0);
    world.agrees();
    assert_eq!(world.machines().len(), 2);
    world.run("ask Hello").exits(0);
    world.destroy();
}

#[test]
fn a_whole_table_is_renewed_by_its_name() {
    let world = outlived();
    world.run("watch --once").exits(0);
    world.is_clean();
    world
        .run("plan --renew lease.nod")
        .exits(1)
        .says("--renew lease.nod: nothing of that table is declared or recorded")
        .says("did you mean lease.node?");
    world
        .run("apply --auto-approve --renew lease.node[1]")
        .exits(0)
        .says("lease.node[0]: ended by its max_lifetime");
    // Of a table, what did not lapse is not spoken of.
    let rest = world.run("apply --auto-approve --renew lease.node");
    rest.exits(0).says_not("--renew changes nothing there");
    assert_eq!(world.machines().len(), 2);
    world.agrees();
    world
        .run("plan --renew lease.node")
        .exits(0)
        .says("lease.node[0] did not end by a limit of its own: --renew changes nothing there");
    world.destroy();
}

/// What leases cost so far, in micro-dollars: surely, and at most.
fn spent(world: &World) -> (u64, u64) {
    let leases = world.run("leases --json").json();
    let leases = leases.as_array().expect("a list");
    let sum = |bound: &str| {
        let each = leases.iter().map(|lease| lease["spent"][bound].as_u64());
        each.map(|micro| micro.expect("money")).sum()
    };
    (sum("least"), sum("most"))
}

#[test]
fn when_all_is_spent_requests_end_and_then_the_machines_and_nothing_more_is_rented() {
    // A dollar for each second of each machine, and nothing else that ends them.
    let world = World::new(
        &STUB
            .replace(
                "[provider.here]",
                "[limits]\nmax_price_per_hour = 0\nmax_spend = 100000\n[provider.here]",
            )
            .replace("slots = 8", "slots = 8\nprice_per_hour = 3600")
            .replace(
                "[offer.small]",
                "[offer.small]\nidle_timeout = \"never\"\nmax_lifetime = \"never\"",
            )
            .replace(
                "engine = \"stub\"",
                "engine = \"stub\"\nengine_args = [\"--delay-ms=500\"]",
            ),
    );
    let child = watcher(&world);
    until("its heartbeat", || {
        world.join("state/demo/watcher.json").exists().then_some(())
    });
    world
        .run("plan")
        .exits(0)
        .says("the watcher ends it by limits.max_spend alone");
    let begun = std::time::Instant::now();
    world.apply();
    // It is under way when the money is gone, and is answered whole.
    let asked = world.start("ask Hello");
    until("the request to be under way", || {
        let status = world.run("status");
        status.out.contains(", 1 requests").then_some(())
    });
    let cap = spent(&world).1 / 1_000_000 + 1;
    world.edit("max_spend = 100000", &format!("max_spend = {cap}"));
    Ran::of("ask".to_owned(), finish(asked)).exits(0);
    let cap = cap * 1_000_000;
    assert!(spent(&world).1 >= cap, "it ended before the money was gone");
    until("the machines to end", || {
        world.machines().is_empty().then_some(())
    });
    until("the state to say so", || {
        let leases = world.run("leases --json");
        (leases.out.matches("max_spend: up to").count() == 2).then_some(())
    });
    let passed = u64::try_from(begun.elapsed().as_micros()).expect("a short time");
    stopped(child).says("lease.node[0]: ends by its limits.max_spend: up to");
    world.is_clean();
    kept_ended(&world, "limits.max_spend");
    let (least, most) = spent(&world);
    assert!(least >= cap, "{least} of {cap}");
    assert!(most <= 2 * passed, "{most}, in {passed} us of two machines");
    assert_eq!(spent(&world), (least, most), "nothing is billed any more");
    // Renewing them needs more money.
    world
        .run("apply --auto-approve --renew lease.node")
        .exits(7)
        .says("limits.max_spend");
    world.is_clean();
}

#[test]
fn a_watcher_waits_for_a_run_that_lives_and_goes_on_when_that_was_killed() {
    let world = outlived();
    world.edit("count = 2", "count = 3");
    let mut run = world.command(["apply", "--auto-approve"]);
    run.env(STOP_AT, "25");
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().expect("the binary is there");
    let pid = i32::try_from(run.id()).expect("a pid");
    until("the run to stop in its midst", || {
        super::world::stopped(pid).then_some(())
    });
    let there = world.machines();
    assert!(there.len() >= 2);
    world
        .run("apply --auto-approve")
        .exits(6)
        .says("is at work");
    // All of them are too old, and somebody is at work on them.
    for _ in 0..3 {
        world.run("watch --once").exits(0).says_not("max_lifetime");
    }
    let child = watcher(&world);
    until("its heartbeat", || {
        world.join("state/demo/watcher.json").exists().then_some(())
    });
    world.run("watch --once").exits(0).says_not("max_lifetime");
    assert_eq!(world.machines(), there);
    kill(pid, Signal::KILL);
    finish(run);
    until("the machines to end", || {
        world.machines().is_empty().then_some(())
    });
    until("the state to say so", || {
        let leases = world.run("leases --json");
        let ended = leases.out.matches("max_lifetime: it is").count();
        (ended >= 2).then_some(())
    });
    stopped(child).says("lease.node[0]: ends by its max_lifetime");
    world.is_clean();
    world.destroy();
}

#[test]
fn a_machine_that_works_is_not_idle_and_one_that_is_frozen_is() {
    let world = limited("idle_timeout = \"4s\"");
    let child = watcher(&world);
    // For longer than the limit.
    for _ in 0..12 {
        world.run("ask Hello").exits(0);
        pause_for(500);
    }
    assert_eq!(world.machines().len(), 2);
    for machine in world.machines() {
        for pid in world.processes_of(&machine, "agent") {
            kill(pid, Signal::STOP);
        }
    }
    until("the machines to end", || {
        world.machines().is_empty().then_some(())
    });
    until("the state to say so", || {
        let leases = world.run("leases");
        (leases.out.matches("its agent did not answer for").count() == 2).then_some(())
    });
    stopped(child).says("its agent did not answer for");
    world.is_clean();
    kept_ended(&world, "idle_timeout");
}

#[test]
fn a_machine_that_is_lost_is_told_soon_and_once() {
    let world = limited("idle_timeout = \"20m\"");
    let mut running = watcher(&world);
    let child = running.0.as_mut().expect("it runs");
    let stderr = child.stderr.take().expect("piped");
    let (line, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let all = std::io::BufReader::new(stderr).lines();
        // Nobody listens any more when the test is over.
        all.map_while(Result::ok)
            .all(|text| line.send(text).is_ok());
    });
    let next = |wanted: &str| loop {
        let line = lines.recv_timeout(std::time::Duration::from_secs(60));
        let line = line.unwrap_or_else(|_| panic!("nobody said `{wanted}`"));
        if line.contains(wanted) {
            break line;
        }
    };
    next("watching");
    let machine = world.machines().remove(0);
    for pid in world.processes_of(&machine, "agent") {
        kill(pid, Signal::KILL);
    }
    std::fs::remove_dir_all(&machine).expect("removed");
    let told = next("its machine is ");
    assert!(
        told.contains("gone by the provider's listing") && told.contains("`stageline plan` shows"),
        "{told}"
    );
    // The other one is lost too, and the first is not told again.
    let first = told;
    let machine = world.machines().remove(0);
    for pid in world.processes_of(&machine, "agent") {
        kill(pid, Signal::KILL);
    }
    std::fs::remove_dir_all(&machine).expect("removed");
    let told = next("its machine is ");
    assert_ne!(first, told);
    stopped(running);
    world.destroy();
}

#[test]
fn what_is_too_old_is_ended_by_one_look_and_what_is_no_longer_declared_is_forgotten() {
    let world = outlived();
    world
        .run("watch --once --json")
        .exits(0)
        .says("\"event\":\"lapsed\"")
        .says("\"limit\":\"lifetime\"")
        .says("and may be 1s");
    world.is_clean();
    kept_ended(&world, "max_lifetime");
    world.run("watch --once").exits(0).says_not("lease.node");
    world.edit("count = 2", "count = 1");
    world
        .run("plan")
        .exits(0)
        .says("how lease.node[1] ended before is forgotten")
        .says("lease.node[0]: ended by its max_lifetime");
    world.apply();
    world.edit("count = 1", "count = 2");
    world
        .run("plan")
        .exits(0)
        .says("lease.node[1] create")
        .says_not("lease.node[0] create");
    // After a destroy nothing is remembered.
    world.destroy();
    world.run("plan").exits(0).says("lease.node[0..2] create");
}

/// Only idle times need an answer of an agent.
#[test]
fn without_an_identity_ages_are_judged_all_the_same_and_no_plan_counts_on_it() {
    let world = outlived();
    let identity = world.join("state/demo/identity.key");
    std::fs::rename(&identity, world.join("moved.key")).expect("moved");
    world
        .run("watch --once")
        .exits(4)
        .says("no agent can be asked")
        .says("idle times are not counted meanwhile, lifetimes and limits.max_spend are")
        .says("no plan counts on this watcher")
        .says("lease.node[0]: ends by its max_lifetime")
        .says("lease.node[1]: released, proven by the provider's listing");
    world.is_clean();
    std::fs::rename(world.join("moved.key"), &identity).expect("moved");
    kept_ended(&world, "max_lifetime");
}

#[test]
fn a_watcher_that_is_killed_anywhere_is_followed_by_one_that_ends_the_rest() {
    let mut points = 0;
    for point in (1..400).step_by(3) {
        let world = outlived();
        let (died, ran) = dies_at(&world, "watch --once", point);
        if !died {
            ran.exits(0);
            break;
        }
        points += 1;
        world.run("watch --once").exits(0);
        world.is_clean();
        kept_ended(&world, "max_lifetime");
    }
    assert!(points >= 4, "{points} points");
}

#[test]
fn a_plan_knows_who_watches_and_a_second_watcher_is_one_too_many() {
    let world = limited("idle_timeout = \"10m\"");
    let child = watcher(&world);
    until("its heartbeat", || {
        world.join("state/demo/watcher.json").exists().then_some(())
    });
    world
        .run("watch")
        .exits(6)
        .says("watches `demo` already")
        .says("one watcher is enough");
    stopped(child);
    assert!(!world.join("state/demo/watcher.json").exists());
    world.destroy();
}

#[test]
fn the_printed_unit_is_one() {
    let world = World::new(STUB);
    let ran = world.run("watch --print-unit --workspace blue");
    ran.exits(0)
        .says("Restart=always")
        .says("watch --workspace blue");
    let verify = std::process::Command::new("systemd-analyze")
        .arg("--version")
        .output();
    if verify.is_err() {
        return;
    }
    world.write("stageline-demo.service", &ran.out);
    let verified = std::process::Command::new("systemd-analyze")
        .args(["verify", "--user", "--recursive-errors=no"])
        .arg(world.join("stageline-demo.service"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(!said.contains("stageline-demo.service:"), "{said}");
}
