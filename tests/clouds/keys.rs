//! What becomes of the SSH keys that machines are reached by when the account does not take them as it should.

use std::time::{Duration, Instant};

use stageline::sim::{Fault, Kind};

use super::pushed::{desk_of, is_clean};

fn limit(text: &str) -> Fault {
    Fault::of("key-limit").text(text)
}

#[test]
fn a_key_that_is_called_a_duplicate_and_is_there_is_used() {
    for kind in [Kind::Vastai, Kind::Lambda] {
        let desk = desk_of(kind, vec![limit("duplicate")], 1);
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        desk.run("destroy --auto-approve").exits(0);
        is_clean(&desk);
    }
}

#[test]
fn a_key_that_an_account_does_not_take_is_said_before_anything_is_made() {
    let desk = desk_of(Kind::Lambda, vec![limit("team")], 1);
    desk.run("apply --auto-approve")
        .exits(1)
        .says("the SSH key of its machine cannot be registered")
        .says("SSH keys cannot be added to a team account");
    is_clean(&desk);
    assert!(desk.cloud.world.lock().machines.is_empty());
    // Where a key is attached to its instance alone, the account's are no matter.
    let desk = desk_of(Kind::Vastai, vec![limit("team")], 1);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_eq!(
        desk.cloud.world.faults.counts()["key-limit"],
        0,
        "none asks for one there"
    );
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}

/// Somebody else writes the account's keys anew, without ours.
#[test]
fn a_key_that_is_overwritten_is_put_there_again() {
    let desk = desk_of(Kind::Vastai, vec![limit("replaced").times(1)], 1);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
    let desk = desk_of(Kind::Lambda, vec![limit("replaced").times(1)], 1);
    // Nothing is made with a key that is not there.
    desk.run("apply --auto-approve")
        .exits(1)
        .says("does not exist");
    is_clean(&desk);
    assert!(desk.cloud.world.lock().machines.is_empty());
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    desk.run("destroy --auto-approve").exits(0);
    is_clean(&desk);
}

/// No cloud tells the key of a container's host, so that the first one counts, whoever showed it.
#[test]
fn a_container_that_shows_another_key_later_is_sent_nothing() {
    let story = |kind| {
        let desk = desk_of(kind, vec![Fault::of("ssh-stale-key").seconds(18_000)], 1);
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            let ran = desk.run("ssh lease.node[0] true");
            if ran.code == Some(255) {
                ran.says("HOST IDENTIFICATION HAS CHANGED");
                break;
            }
            assert!(Instant::now() < deadline, "{}", ran.text);
        }
        desk.run("destroy --auto-approve").exits(0);
        is_clean(&desk);
    };
    std::thread::scope(|scope| {
        for kind in [Kind::Vastai, Kind::Runpod] {
            scope.spawn(move || story(kind));
        }
    });
}
