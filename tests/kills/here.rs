//! Killed while it makes and ends machines of this computer, which are processes of their own and outlive it.

use std::process::Command;

use super::{User, kill_often};
use crate::cli::world::{STUB, World};

/// Users at once: few beside other tests, many where this is all that runs, since most of it is waiting for the disk.
const AT_ONCE: (usize, usize) = (4, 12);

impl User for World {
    fn command(&self, line: &str) -> Command {
        World::command(self, line.split_ascii_whitespace())
    }

    fn up(&self) {
        self.apply();
        self.agrees();
        let next = self.run("plan --detailed-exitcode");
        next.exits(0).says("Nothing to do");
    }

    fn down(&self) {
        self.destroy();
    }
}

#[test]
fn a_kill_at_any_moment_or_call_leaves_no_orphan_and_nothing_twice() {
    kill_often("here", AT_ONCE, || World::new(STUB));
}
