//! Machines that are worth something together only: where one of them cannot be had, none is kept.

use stageline::sim::{Fault, Kind};

use super::desk::{Desk, SPEED};

/// The fourth of four fails, while listings are late: what came up is released, proven gone, and told with its reason and its cost.
#[test]
fn what_came_up_of_a_gang_is_released_and_proven_gone_when_the_rest_does_not() {
    std::thread::scope(|scope| {
        for kind in Kind::ALL {
            scope.spawn(move || {
                let faults = vec![
                    Fault::of("boot-dies").after(3).times(1),
                    Fault::of("list-lag").seconds(600),
                    Fault::of("list-ghost").seconds(600),
                ];
                let desk = Desk::of(kind, faults, SPEED, 4);
                desk.edit("count = 4", "count = 4\nattempts = 1");
                let ran = desk.run("apply --auto-approve");
                ran.exits(4)
                    .says(
                        "the machines of lease.node come up all or none (`gang`), and lease.node[",
                    )
                    .says("gave up machine ")
                    .says(" is gone\n")
                    .says(" spent since ");
                assert_eq!(desk.cloud.world.lock().machines.len(), 4, "{kind:?}");
                desk.agrees(0);
                let faults = &desk.cloud.world.faults;
                faults.replace(vec![]).expect("knobs");
                desk.run("apply --auto-approve").exits(0);
                desk.agrees(4);
                desk.run("destroy --auto-approve").exits(0);
                desk.agrees(0);
            });
        }
    });
}
