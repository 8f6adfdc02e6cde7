//! Machines that an agent was pushed to and that are made anew or restarted behind our back.

use stageline::sim::Kind;

use super::desk::{Desk, KEY};
use super::host::until;
use super::pushed::{agents, desk_of, is_of};

/// Its container is made anew behind our back, and with it the key of its host.
fn made_anew(desk: &Desk) {
    let set = |stopped: bool| {
        let now = desk.cloud.world.clock.now();
        let mut inner = desk.cloud.world.lock();
        let machine = inner.machines.values_mut().next().expect("one");
        if stopped {
            machine.stopped_from = Some(now);
        } else {
            machine.stopped_from = None;
            machine.started = false;
        }
    };
    let door = |there: bool| {
        until("its SSH server", || {
            let inner = desk.cloud.world.lock();
            let machine = inner.machines.values().next().expect("one");
            machine.agent.is_some() == there
        });
    };
    set(true);
    door(false);
    set(false);
    door(true);
}

#[test]
fn another_host_key_than_the_first_is_refused_from_then_on() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = desk_of(kind, vec![], 1);
        desk.run("apply --auto-approve").exits(0);
        desk.run("ssh lease.node[0] true").exits(0);
        made_anew(&desk);
        desk.run("ssh lease.node[0] true")
            .exits(255)
            .says("HOST IDENTIFICATION HAS CHANGED");
        desk.run("forward lease.node[0] 0:22")
            .exits(1)
            .says("shows another key than it is known by");
        assert!(
            agents().iter().all(|agent| !is_of(agent, &desk)),
            "nothing is sent to it"
        );
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// The machine is restarted behind our back: its agent starts again from its disk, under the same keys.
#[test]
fn an_agent_that_was_pushed_starts_again_with_its_machine() {
    for kind in [Kind::Vastai, Kind::Lambda] {
        let desk = desk_of(kind, vec![], 1);
        desk.run("apply --auto-approve").exits(0);
        desk.run("ask Hello").exits(0);
        let there = desk.there();
        let processes = || {
            let mut all: Vec<i32> = pids(&desk);
            all.sort_unstable();
            all
        };
        let before = processes();
        assert!(!before.is_empty());
        restart(&desk, kind, &there[0]);
        until("its agent runs again", || {
            let now = processes();
            !now.is_empty() && now.iter().all(|pid| !before.contains(pid))
        });
        until("its agent answers", || {
            !desk.run("plan").text.contains("did not answer")
        });
        desk.run("apply --auto-approve").exits(0);
        assert_eq!(desk.there(), there, "no other one was rented");
        desk.run("ask Hello").exits(0);
        desk.run("plan --detailed-exitcode").exits(0);
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// As whoever holds the account restarts it at the provider's console.
fn restart(desk: &Desk, kind: Kind, machine: &str) {
    let url = desk.cloud.url();
    let url = url.split('#').next().expect("a URL").trim_end_matches('/');
    let (method, path, body) = match kind {
        Kind::Vastai => (
            "PUT",
            format!("/api/v0/instances/reboot/{machine}/"),
            "{}".to_owned(),
        ),
        Kind::Lambda => (
            "POST",
            "/api/v1/instance-operations/restart".to_owned(),
            format!("{{\"instance_ids\": [\"{machine}\"]}}"),
        ),
        Kind::Runpod => panic!("its disk is gone then"),
    };
    let asked = std::process::Command::new("curl")
        .args(["-fsS", "-X", method, "-d", &body])
        .args(["-H", "content-type: application/json"])
        .args(["-H", &format!("authorization: Bearer {KEY}")])
        .arg(format!("{url}{path}"))
        .status();
    assert!(asked.is_ok_and(|status| status.success()), "{path}");
}

/// The processes on machines of this desk's simulator.
fn pids(desk: &Desk) -> Vec<i32> {
    let labels: Vec<String> = {
        let inner = desk.cloud.world.lock();
        let machines = inner.machines.values();
        machines.map(|machine| machine.label.clone()).collect()
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = all.filter(|entry| {
        let text = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut own = text
            .split('\0')
            .filter(|one| one.starts_with("STAGELINE_MACHINE_DIR="));
        own.any(|one| labels.iter().any(|label| one.contains(label.as_str())))
    });
    ours.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
