//! Hosts of one's own that are away: they hide no other one, and what may be on them is not taken for gone.

use super::desk::finish;
use super::host::Host;
use super::ssh::Desk;

/// The lease whose machine is on this host.
fn lease_on(desk: &Desk, host: &Host) -> String {
    let ran = desk.run("leases");
    let port = format!(":{}/", host.port);
    let mut lines = ran.text.lines();
    let line = lines.find(|line| line.contains(&port));
    let line = line.unwrap_or_else(|| panic!("none on {port} in {}", ran.text));
    let mut words = line.split_ascii_whitespace();
    let lease = words.find(|word| word.starts_with("lease."));
    lease.expect("a lease").trim_end_matches(':').to_owned()
}

#[test]
fn one_host_that_is_away_hides_no_other_one() {
    let (Some(first), Some(second)) = (Host::new(), Host::new()) else {
        return;
    };
    let desk = Desk::new(&[&first, &second]);
    desk.apply();
    let (away, there) = (lease_on(&desk, &first), lease_on(&desk, &second));
    first.close();
    let port = format!("127.0.0.1:{}", first.port);
    desk.run("status").says(&port).says(&there);
    let ran = desk.run("plan");
    ran.says(&format!("{away}: ")).says(&port);
    assert!(
        !ran.text.contains(&format!("{there}: cannot")),
        "{}",
        ran.text
    );
    desk.run("orphans").exits(5).says(&format!(
        "cannot see {}@{port} of provider `own`",
        super::host::user()
    ));
    // What is on the other host is given back, and proven.
    desk.run(&format!("release {there} --auto-approve"))
        .exits(0);
    second.is_clean();
    desk.run("destroy --auto-approve")
        .exits(5)
        .says(&port)
        .says("when the host is back");
    assert!(first.taken_by().is_some());
    first.open();
    desk.destroy();
    first.is_clean();
}

#[test]
fn what_was_taken_out_of_the_state_may_be_on_a_host_that_is_away() {
    let (Some(first), Some(second)) = (Host::new(), Host::new()) else {
        return;
    };
    let desk = Desk::new(&[&first, &second]);
    desk.apply();
    let away = lease_on(&desk, &first);
    desk.run(&format!("state rm {away} --auto-approve"))
        .exits(0);
    first.close();
    let ran = desk.run("destroy --auto-approve");
    ran.exits(8)
        .says("0 left at providers, as far as they can be seen, at")
        .says("what was taken out of the state may be there still: machine ");
    assert!(!ran.text.contains("verified"), "{}", ran.text);
    second.is_clean();
    assert!(first.taken_by().is_some());
    first.open();
    let (_, machine) = ran
        .text
        .split_once("there still: machine ")
        .expect("its id");
    let machine = machine.split_ascii_whitespace().next().expect("its id");
    desk.run(&format!("orphans --release {machine} --auto-approve"))
        .exits(0);
    first.is_clean();
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers, verified at");
}

#[test]
fn a_host_that_was_never_taken_may_be_away_for_good() {
    let (Some(first), Some(second)) = (Host::new(), Host::new()) else {
        return;
    };
    let desk = Desk::new(&[&first, &second]);
    desk.edit("count = 2", "count = 1");
    first.close();
    desk.apply();
    assert!(second.taken_by().is_some());
    desk.run("plan --detailed-exitcode").exits(0);
    desk.run("orphans").exits(5).says("cannot see");
    // Nothing was ever there, so that nothing is to be proven of it.
    desk.destroy();
    second.is_clean();
}

#[test]
fn a_try_that_went_to_a_host_that_is_away_keeps_its_lease_from_another_host() {
    let (Some(first), Some(second)) = (Host::new(), Host::new()) else {
        return;
    };
    let desk = Desk::with("tester", &[first.entry("")], 1);
    let mut command = desk.command("apply --auto-approve");
    command.env("STAGELINE_TEST_DIE_AT", "a create, just answered");
    finish(command.spawn().expect("the binary is there"));
    assert!(first.taken_by().is_some());
    first.close();
    desk.edit(
        &first.entry(""),
        &format!("{}, {}", first.entry(""), second.entry("")),
    );
    desk.run("leases")
        .exits(0)
        .says("unresolved, costs nothing");
    let ran = desk.run("apply --auto-approve");
    ran.says("unresolved, costs nothing")
        .says(&first.port.to_string());
    assert_ne!(ran.code, Some(0), "{}", ran.text);
    assert!(!ran.text.contains("may bill"), "{}", ran.text);
    assert_eq!(second.own_folder(), None, "one lease has one host");
    first.open();
    desk.apply();
    assert!(first.taken_by().is_some());
    assert_eq!(second.own_folder(), None, "one lease has one host");
    desk.destroy();
    first.is_clean();
}

#[test]
fn a_host_that_cannot_be_reached_is_not_given_back() {
    let Some(host) = Host::new() else { return };
    let desk = Desk::new(&[&host]);
    desk.apply();
    host.close();
    let start = std::time::Instant::now();
    let ran = desk.run("destroy --auto-approve");
    ran.exits(5)
        .says("127.0.0.1")
        .says("no answer")
        .says("its agent and its workers may still run there")
        .says("when the host is back");
    desk.run("status").exits(5).says("no answer");
    desk.run("plan").exits(5).says("no answer");
    let took = start.elapsed();
    assert!(
        took < std::time::Duration::from_secs(50),
        "it took {took:?}"
    );
    assert!(host.taken_by().is_some());
    desk.run("leases").exits(0).says("lease.node[0]");
    host.open();
    desk.destroy();
    host.is_clean();
}
