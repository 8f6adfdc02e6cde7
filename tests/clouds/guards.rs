//! Machines that cost money, and who ends them while nobody looks: without anybody, nothing is rented.

use std::io::BufRead as _;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, KEY, NOBODY, finish};
use super::host::until;

/// A watcher, from its first heartbeat on.
fn watched(desk: &Desk) -> Child {
    let mut watcher = desk.command("watch --every 300ms");
    let watcher = watcher.spawn().expect("the binary is there");
    until("a heartbeat", || {
        desk.path("state/demo/watcher.json").exists()
    });
    watcher
}

/// Its machines do not end themselves: nobody else would.
#[test]
fn a_watcher_ends_machines_of_lambda_that_are_idle_or_old() {
    for (limit, key) in [("idle_timeout", "8s"), ("max_lifetime", "20s")] {
        let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
        desk.edit(NOBODY, &format!("{limit} = \"{key}\""));
        let mut watcher = watched(&desk);
        desk.run("apply --auto-approve")
            .exits(0)
            .says("the watcher ends it after")
            .says(key);
        desk.agrees(1);
        until("it was ended", || desk.there().is_empty());
        until("that is recorded", || desk.held().is_empty());
        watcher.kill().expect("ours");
        finish(watcher).says(limit);
        desk.agrees(0);
        desk.run("plan --detailed-exitcode")
            .exits(0)
            .says("1 lease is kept ended");
    }
}

#[test]
fn what_nobody_would_end_is_not_rented_and_what_is_held_is_kept() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.edit(NOBODY, "");
    for line in ["plan", "apply --auto-approve"] {
        desk.run(line)
            .exits(7)
            .says("plan/unguarded")
            .says("lease.node: 1 machine for $")
            .says("no watcher runs, and machines of provider `lambda` do not end themselves")
            .says("let `stageline watch` run on a computer that is always on")
            .says("take offers whose machines end themselves")
            .says("`unguarded = true` in [lease.node]");
    }
    desk.agrees(0);
    // The first way out.
    let mut watcher = watched(&desk);
    desk.run("apply --auto-approve")
        .exits(0)
        .says("the watcher ends it after 20m without work");
    desk.agrees(1);
    // What was reviewed while a watcher ran relies on it.
    desk.edit("count = 1", "count = 2");
    desk.run("plan --out plans/second.plan.json")
        .exits(0)
        .says("the watcher ends it after 20m without work");
    watcher.kill().expect("ours");
    finish(watcher);
    desk.run("apply plans/second.plan.json")
        .exits(7)
        .says("plan/unguarded")
        .says("lease.node: 1 machine for $")
        .says("no watcher runs, and machines of provider `lambda` do not end themselves")
        .says("let `stageline watch` run on a computer that is always on, and apply this plan then")
        .says("offers whose machines end themselves")
        .says("`unguarded = true` in [lease.node]");
    desk.agrees(1);
    desk.edit("count = 2", "count = 1");
    // What is held is kept, and one more is refused.
    desk.run("plan --detailed-exitcode").exits(0);
    desk.edit("count = 1", "count = 2");
    desk.run("apply --auto-approve")
        .exits(7)
        .says("lease.node: 1 machine for $");
    desk.agrees(1);
    // The last way out.
    desk.edit("count = 2", "count = 2\nunguarded = true");
    desk.run("plan")
        .exits(0)
        .says("lease.node[1] create")
        .says("nobody ends it while you are away: it bills until it is released");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

/// A watcher without the key of its account, and what it says line by line.
fn without_its_key(desk: &Desk) -> (Child, Receiver<String>) {
    let mut watcher = desk.command("watch --every 300ms");
    watcher.env_remove("LAMBDA_API_KEY");
    heard(watcher)
}

/// A command that runs, and what it says line by line.
fn heard(mut command: std::process::Command) -> (Child, Receiver<String>) {
    let mut watcher = command.spawn().expect("the binary is there");
    let said = watcher.stderr.take().expect("piped");
    let (line, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let all = std::io::BufReader::new(said).lines();
        // Nobody listens any more when the test is over.
        all.map_while(Result::ok)
            .all(|text| line.send(text).is_ok());
    });
    (watcher, lines)
}

fn said(lines: &Receiver<String>, words: &str) -> String {
    loop {
        let line = lines.recv_timeout(Duration::from_secs(90));
        let line = line.unwrap_or_else(|_| panic!("nobody said `{words}`"));
        if line.contains(words) {
            return line;
        }
    }
}

#[test]
fn a_watcher_without_its_key_says_so_at_once_guards_nothing_and_holds_no_lock() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.edit(NOBODY, "idle_timeout = \"8s\"");
    let (mut watcher, lines) = without_its_key(&desk);
    let line = said(&lines, "provider `lambda` cannot be seen");
    for words in [
        "LAMBDA_API_KEY is not set",
        "nobody ends what is rented there meanwhile, and no plan counts on this watcher",
        "hint: a watcher reads the same keys as `apply`",
    ] {
        assert!(line.contains(words), "{line}");
    }
    for line in ["plan", "apply --auto-approve"] {
        desk.run(line)
            .exits(7)
            .says("no watcher runs, and machines of provider `lambda` do not end themselves")
            .says("one without the keys of its providers counts as none");
    }
    assert!(!desk.path("state/demo/watcher.json").exists());
    // What is rented all the same is beyond its limit at the watcher's next look.
    desk.edit(
        "\"8s\"",
        "\"never\"\nmax_lifetime = \"1s\"\nunguarded = true",
    );
    desk.edit("[limits]", "[limits]\nmax_spend = 100");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("nobody ends it while you are away");
    said(&lines, "nobody ends lease.node[0] meanwhile");
    desk.agrees(1);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
    watcher.kill().expect("ours");
    watcher.wait().expect("ours");
}

/// Its release at one account did nothing, and that account is not seen any more.
#[test]
fn an_account_that_lets_no_watcher_in_keeps_none_from_ending_what_another_one_has() {
    let faults = vec![
        Fault::of("boot-dies").times(1),
        Fault::of("capacity").after(1),
        Fault::of("terminate-noop"),
    ];
    let desk = Desk::of(Kind::Lambda, faults, 600, 1);
    let own = "[provider.own]\nkind = \"local\"\nprice_per_hour = 0.95\n[offer.own]\nprovider = \"own\"\nattempts = 20\n[offer.gpu]\nattempts = 20";
    desk.edit("[offer.gpu]", own);
    desk.edit(
        "offers = [\"gpu\"]",
        "offers = [\"gpu\", \"own\"]\nmax_lifetime = \"1s\"",
    );
    let here = || {
        let machines = std::fs::read_dir(desk.path("state/demo/machines"));
        machines.map_or(0, Iterator::count)
    };
    desk.run("apply --auto-approve")
        .says("is up, $0.95 per hour");
    assert_eq!((desk.there().len(), here()), (1, 1));
    let ran = desk.run_with(None, "watch --once");
    ran.says("provider `lambda` cannot be seen")
        .says("lease.node[0]: its release did not succeed");
    assert_eq!((desk.there().len(), here()), (1, 0), "{}", ran.text);
    desk.cloud.world.faults.replace(vec![]).expect("knobs");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

/// Requests to it are taken and never answered; told for each.
fn mute() -> (String, Receiver<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (asked, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            open.push(stream);
            // Nobody listens any more when the test is over.
            let _ = asked.send(());
        }
    });
    (url, requests)
}

#[test]
fn an_account_that_never_answers_holds_no_watcher_up_and_ctrl_c_ends_it() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.edit(NOBODY, "");
    let (url, requests) = mute();
    desk.edit(&desk.cloud.url(), &url);
    let (mut watcher, lines) = heard(desk.command("watch --every 300ms"));
    said(
        &lines,
        "provider `lambda` cannot be seen: it does not answer within 20s",
    );
    // It is asked again, and told to end meanwhile.
    while requests.try_recv().is_ok() {}
    let again = requests.recv_timeout(Duration::from_secs(90));
    again.expect("it is asked again");
    let begun = std::time::Instant::now();
    let ended = std::process::Command::new("kill")
        .args(["-INT", &watcher.id().to_string()])
        .status();
    assert!(ended.expect("it is there").success());
    said(&lines, "stopped: nobody watches `demo` any more");
    assert!(watcher.wait().expect("ours").success());
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_watcher_guards_again_when_it_sees_its_accounts_again() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.edit(NOBODY, "");
    let key = "api_key = { file = \"lambda.key\" }";
    desk.edit("kind = \"lambda\"", &format!("kind = \"lambda\"\n{key}"));
    desk.secret("lambda.key", KEY);
    let mut watcher = watched(&desk);
    desk.run("apply --auto-approve")
        .exits(0)
        .says("the watcher ends it after 20m without work");
    let beats = || desk.path("state/demo/watcher.json").exists();
    std::fs::rename(desk.path("lambda.key"), desk.path("moved.key")).expect("moved");
    until("it falls silent", || !beats());
    std::fs::rename(desk.path("moved.key"), desk.path("lambda.key")).expect("moved");
    until("a heartbeat again", beats);
    desk.edit("count = 1", "count = 2");
    desk.run("plan")
        .exits(0)
        .says("the watcher ends it after 20m without work");
    watcher.kill().expect("ours");
    finish(watcher)
        .says("nobody ends lease.node[0] meanwhile, and no plan counts on this watcher")
        .says("provider `lambda` is seen again");
    desk.run("destroy --auto-approve").exits(0);
}

#[test]
fn a_watcher_ends_nothing_that_is_protected_and_a_plan_says_so() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.edit(NOBODY, "protect = true\nmax_lifetime = \"1s\"");
    desk.edit("[limits]", "[limits]\nmax_spend = 100");
    let mut watcher = watched(&desk);
    desk.run("apply --auto-approve")
        .exits(7)
        .says("plan/unguarded")
        .says("a watcher ends nothing that is protected, and machines of provider `lambda` do not end themselves")
        .says("take `protect` out, and let `stageline watch` run");
    desk.edit("protect = true", "protect = true\nunguarded = true");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("nobody ends it while you are away, since it is protected")
        .says("limits.max_spend ($100.00) ends nothing that is protected: lease.node goes on when it is reached");
    // It is older than it may be since it was rented.
    desk.run("watch --once")
        .exits(0)
        .says("protected, so ended by no limit: lease.node[0]");
    desk.agrees(1);
    desk.edit("protect = true", "protect = false");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("the watcher ends it after 20m without work, or when it is 1s old");
    until("it was ended", || desk.there().is_empty());
    watcher.kill().expect("ours");
    finish(watcher).says("max_lifetime");
}

/// The machine knows of no protection: a plan says what it will do.
#[test]
fn a_machine_that_ends_itself_keeps_its_limits_while_it_is_protected_and_a_plan_says_so() {
    let desk = Desk::of(Kind::Vastai, vec![], 600, 1);
    desk.edit(
        "[lease.node]",
        "[lease.node]\nprotect = true\nidle_timeout = \"3s\"",
    );
    let says =
        "ends itself after 3s without work, or when it is 12h old, also while it is protected";
    desk.run("apply --auto-approve").exits(0).says(says);
    until("it ended itself", || desk.there().is_empty());
    desk.run("plan")
        .exits(0)
        .says("lease.node[0]: ended by its idle_timeout");
}
