//! Killed while it rents and ends machines over HTTP. What the simulator has is what the state says, before and after it.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use stageline::sim::Kind;

use super::{User, kill_often};
use crate::clouds::desk::Desk;

/// Users at once. Each has a simulator with agents beside it.
const AT_ONCE: (usize, usize) = (2, 3);

/// Machines of a topology.
const COUNT: usize = 2;

impl User for Desk {
    fn command(&self, line: &str) -> Command {
        Desk::command(self, line)
    }

    fn up(&self) {
        self.run("apply --auto-approve").exits(0);
        self.agrees(COUNT);
        let next = self.run("plan --detailed-exitcode");
        next.exits(0).says("Nothing to do");
    }

    fn down(&self) {
        self.run("destroy --auto-approve").exits(0);
        self.agrees(0);
    }
}

#[test]
fn whatever_kills_it_at_vastai_nothing_is_left_and_nothing_is_twice() {
    let turn = AtomicU32::new(0);
    kill_often("vastai", AT_ONCE, || {
        let desk = Desk::new(Kind::Vastai, vec![]);
        // Every second user bids.
        if turn.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            desk.edit("[offer.gpu]", "[offer.gpu]\nspot = true");
        }
        desk
    });
}

#[test]
fn whatever_kills_it_at_lambda_nothing_is_left_and_nothing_is_twice() {
    kill_often("lambda", AT_ONCE, || Desk::new(Kind::Lambda, vec![]));
}

#[test]
fn whatever_kills_it_at_runpod_nothing_is_left_and_nothing_is_twice() {
    kill_often("runpod", AT_ONCE, || Desk::new(Kind::Runpod, vec![]));
}
