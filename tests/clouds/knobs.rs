//! What a cloud may do to somebody who rents there, each by its knob and at each cloud that it can happen at: the exit code,
//! what is said, and how many machines there are afterwards.

use std::time::{Duration, Instant};

use stageline::sim::fault::Fault;
use stageline::sim::{Kind, World};

use super::desk::{Desk, SPEED};

fn desk(kind: Kind, fault: Fault) -> Desk {
    Desk::of(kind, vec![fault], SPEED, 1)
}

/// Every machine that was ever made.
fn made(desk: &Desk) -> usize {
    desk.cloud.world.lock().machines.len()
}

fn set(desk: &Desk, faults: Vec<Fault>) {
    desk.cloud.world.faults.replace(faults).expect("knobs");
}

/// All of ours is ended, proven, and paid for once.
#[track_caller]
fn ends(desk: &Desk) {
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

/// What would take its time happens now.
fn hasten(desk: &Desk) {
    let now = desk.cloud.world.clock.now();
    let mut inner = desk.cloud.world.lock();
    for machine in inner.machines.values_mut() {
        machine.later = machine.later.map(|(_, price)| (now, price));
        machine.meddled = machine.meddled.map(|(_, how)| (now, how));
    }
}

/// Until this holds of what there is.
#[track_caller]
fn until(desk: &Desk, what: impl Fn(&World) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what(&desk.cloud.world) {
        assert!(Instant::now() < deadline, "it does not come to that");
        #[expect(clippy::disallowed_methods, reason = "polling needs a pause")]
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first machine is another than was sold: it is released, shown beside its claim, and another one follows.
#[track_caller]
fn the_second_is_kept(desk: &Desk) {
    the_second_is_kept_since(desk, "claimed");
}

#[track_caller]
fn the_second_is_kept_since(desk: &Desk, words: &str) {
    desk.run("apply --auto-approve").exits(0).says(words);
    assert_eq!(made(desk), 2, "the first, and the one that is kept");
    desk.agrees(1);
    ends(desk);
}

#[test]
fn a_machine_with_another_gpu_or_with_fewer_is_released_and_another_one_follows() {
    for kind in Kind::ALL {
        for fault in [
            Fault::of("boot-wrong-gpu"),
            Fault::of("boot-wrong-gpu").text("fewer"),
        ] {
            the_second_is_kept(&desk(kind, fault.times(1)));
        }
    }
}

#[test]
fn a_machine_with_an_old_driver_or_with_one_gpu_of_another_kind_is_released_and_another_one_follows()
 {
    // The others tell of no driver.
    let old = Fault::of("boot-wrong-gpu").text("driver").times(1);
    the_second_is_kept(&desk(Kind::Vastai, old));
    for kind in [Kind::Vastai, Kind::Runpod] {
        let mixed = Fault::of("boot-wrong-gpu").text("mixed").times(1);
        let two = desk(kind, mixed);
        two.edit("vram>=24", "vram>=24, gpus>=2");
        two.edit("max_price_per_hour = 1.00", "max_price_per_hour = 9.00");
        the_second_is_kept(&two);
    }
    // It sells few machines with two.
    let mixed = Fault::of("boot-wrong-gpu").text("mixed").times(1);
    let two = desk(Kind::Lambda, mixed);
    two.edit("gpu=a10|rtx_6000", "gpu=rtx_a6000, gpus>=2");
    two.edit("max_price_per_hour = 1.00", "max_price_per_hour = 9.00");
    for offer in two.cloud.world.lock().offers.values_mut() {
        offer.taken = false;
    }
    the_second_is_kept(&two);
}

/// What differs and nothing else: claim and measurement stand beside each other in one line.
#[test]
fn a_machine_with_less_of_one_thing_is_released_and_another_one_follows() {
    std::thread::scope(|scope| {
        for (text, differs) in [
            ("vram", "not what was asked for: vram>=24 (it has 12 GiB)"),
            ("memory", "not what was claimed: memory "),
            (
                "disk",
                "not what was claimed: disk 20 GiB instead of 40 GiB",
            ),
            (
                "arch",
                "not what was claimed: arch aarch64 instead of x86_64",
            ),
        ] {
            for kind in Kind::ALL {
                // Half of the disk of any machine there is more than was asked for.
                if (kind, text) == (Kind::Lambda, "disk") {
                    continue;
                }
                scope.spawn(move || {
                    let desk = desk(kind, Fault::of("boot-wrong-gpu").text(text).times(1));
                    let ran = desk.run("apply --auto-approve");
                    ran.exits(0).says(differs).says("  measured\n");
                    let mut lines = ran.text.lines();
                    let line = lines.find(|line| line.starts_with(&format!("{text:8}")));
                    let line = line.expect("a line of it").split_once(' ').expect("two").1;
                    let (claim, found) = line.trim().split_once("  ").expect("two columns");
                    assert_ne!(claim.trim(), found.trim(), "{kind:?} {text}");
                    assert_eq!(made(&desk), 2, "{kind:?} {text}");
                    desk.agrees(1);
                    ends(&desk);
                });
            }
        }
    });
}

#[test]
fn a_machine_that_is_another_by_its_own_record_is_released_and_another_one_follows() {
    for kind in Kind::ALL {
        let desk = desk(kind, Fault::of("create-other-machine").times(1));
        the_second_is_kept_since(&desk, "by its provider's own record");
    }
}

#[test]
fn an_address_that_is_told_wrong_at_first_is_asked_for_again() {
    for kind in Kind::ALL {
        let desk = desk(kind, Fault::of("ip-changes").times(1));
        desk.run("apply --auto-approve").exits(0);
        assert_eq!(made(&desk), 1);
        desk.agrees(1);
        ends(&desk);
    }
}

/// Its dates are hours off, and the pauses that it asks for are dates too. By our clock such a pause would be none, or the longest that is
/// granted: twelve seconds here, where twenty of its own are four.
#[test]
fn a_cloud_whose_clock_is_off_is_waited_for_by_its_own_clock() {
    let cases = Kind::ALL.map(|kind| [(kind, "ahead"), (kind, "behind")]);
    std::thread::scope(|scope| {
        for (kind, way) in cases.into_iter().flatten() {
            scope.spawn(move || {
                let off = || Fault::of("clock").text(way).seconds(7200);
                let busy = || Fault::of("rate-429-after").text("date").seconds(20);
                let desk = Desk::of(kind, vec![off(), busy().times(1)], 5, 1);
                let begun = Instant::now();
                desk.run("offers").exits(0);
                let took = begun.elapsed().as_secs_f32();
                assert!((3.9..11.0).contains(&took), "{kind:?} {way}: {took}");
                set(&desk, vec![off(), busy().times(3)]);
                desk.run("apply --auto-approve").exits(0);
                assert_eq!(desk.cloud.world.faults.counts()["rate-429-after"], 3);
                desk.agrees(1);
                ends(&desk);
            });
        }
    });
}

/// An answer that takes longer than anybody waits tells nothing: in the end one knows that one does not know.
#[test]
fn an_answer_that_takes_for_ever_is_no_listing() {
    let cases = Kind::ALL.map(|kind| [(kind, "slow"), (kind, "trickle")]);
    std::thread::scope(|scope| {
        for (kind, knob) in cases.into_iter().flatten() {
            scope.spawn(move || {
                let desk = Desk::of(kind, vec![], SPEED, 1);
                desk.run("apply --auto-approve").exits(0);
                set(&desk, vec![Fault::of(knob)]);
                let begun = Instant::now();
                let ran = desk.run("plan --detailed-exitcode");
                let took = begun.elapsed();
                ran.exits(5).says("nobody could tell").says("it is kept");
                // Two tries of 20 s, of whatever is asked at once.
                assert!(took > Duration::from_secs(20), "{kind:?} {knob}: {took:?}");
                assert!(took < Duration::from_secs(150), "{kind:?} {knob}: {took:?}");
                assert!(desk.cloud.world.faults.counts()[knob] > 0);
                set(&desk, vec![]);
                desk.agrees(1);
                ends(&desk);
            });
        }
    });
}

/// What a search finds is compared with what was asked for, whatever the cloud made of its filter.
#[test]
fn offers_that_were_not_asked_for_are_neither_shown_nor_rented() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = desk(kind, Fault::of("offer-breaks-filter"));
        let offers = desk.run("offers --where gpu=h100");
        offers.exits(0).says("H100");
        let lines = offers.text.lines().filter(|line| line.starts_with('$'));
        for line in lines {
            assert!(line.contains("H100"), "{line}");
        }
        desk.run("apply --auto-approve").exits(0);
        let models: Vec<String> = {
            let inner = desk.cloud.world.lock();
            let gpus = inner.machines.values().flat_map(|it| &it.facts.gpus);
            gpus.map(|gpu| gpu.model.clone()).collect()
        };
        assert!(
            models
                .iter()
                .all(|model| model.contains("4090") || model.contains("3090")),
            "{kind:?}: {models:?}"
        );
        assert_eq!(made(&desk), 1, "each is what was asked for");
        desk.agrees(1);
        ends(&desk);
    }
}

/// The price that is told of what was rented is held against the ceiling.
#[test]
fn a_price_that_rises_at_the_create_is_paid_within_the_ceiling_only() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let little = desk(kind, Fault::of("price-rises").factor(1.01));
        little.run("apply --auto-approve").exits(0);
        little.agrees(1);
        ends(&little);
        let much = desk(kind, Fault::of("price-rises").factor(10.0).times(1));
        much.run("apply --auto-approve").exits(7);
        much.agrees(0);
        assert_eq!(made(&much), 1, "{kind:?}");
    }
}

/// A machine that runs, and whose price was raised so much since.
fn dearer(kind: Kind, factor: f64) -> Desk {
    let fault = Fault::of("price-later").seconds(1_000_000).factor(factor);
    let desk = desk(kind, fault.times(1));
    desk.run("apply --auto-approve").exits(0);
    hasten(&desk);
    until(&desk, |world| {
        world.lock().machines.values().all(|it| it.later.is_none())
    });
    desk
}

/// The next look says so, and from there on the ledger counts it; what costs too much is replaced.
#[test]
fn a_price_that_rises_later_is_noticed_and_counted() {
    for kind in Kind::ALL {
        let little = dearer(kind, 1.2);
        little
            .run("plan")
            .exits(0)
            .says("its price is recorded: $")
            .says("/h before");
        little.run("apply --auto-approve").exits(0);
        little.agrees(1);
        assert_eq!(made(&little), 1, "{kind:?}");
        little
            .run("plan --detailed-exitcode")
            .exits(0)
            .says("Nothing to do");
        ends(&little);
        let much = dearer(kind, 10.0);
        let plan = much.run("plan --detailed-exitcode");
        plan.exits(2).says("replace");
        much.run("apply --auto-approve").exits(0);
        much.agrees(1);
        assert_eq!(made(&much), 2, "{kind:?}");
        ends(&much);
    }
}

/// A new machine that is not known by its id yet is not gone: a release comes again until the listing proves it.
#[test]
fn a_machine_that_is_not_known_by_its_id_yet_is_ended_all_the_same() {
    for kind in Kind::ALL {
        let desk = desk(kind, Fault::of("get-404-lag").seconds(1_000_000));
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        let destroy = desk.command("destroy --auto-approve").spawn();
        // Its id is known once it was asked for in vain.
        until(&desk, |world| world.lock().requests.contains_key("destroy"));
        let now = desk.cloud.world.clock.now();
        let unknown = {
            let mut inner = desk.cloud.world.lock();
            let machine = inner.machines.values_mut().next().expect("one");
            let before = std::mem::replace(&mut machine.found_from, now);
            before > now && machine.gone_from.is_none()
        };
        assert!(unknown, "{kind:?}: it was asked for in vain");
        let ran = super::desk::finish(destroy.expect("the binary is there"));
        ran.exits(0).says("0 left at providers");
        assert!(desk.cloud.world.lock().requests["destroy"] >= 2, "{kind:?}");
        desk.agrees(0);
    }
}

/// Someone ends a machine, or it is lost with its host: that is drift, and another one follows.
#[test]
fn a_machine_that_is_gone_is_missed_and_replaced() {
    for kind in Kind::ALL {
        for fault in [Fault::of("vanish"), Fault::of("meddle").text("destroy")] {
            let desk = desk(kind, fault.seconds(1_000_000).times(1));
            desk.run("apply --auto-approve").exits(0);
            hasten(&desk);
            until(&desk, |world| {
                let now = world.clock.now();
                world.lock().machines.values().all(|it| !it.is_there(now))
            });
            let ran = desk.run("plan --detailed-exitcode");

            ran.exits(2).says("is gone: the complete listing");
            desk.run("apply --auto-approve").exits(0);
            desk.agrees(1);
            assert_eq!(made(&desk), 2, "{kind:?}");
            ends(&desk);
        }
    }
}

/// Someone takes the offer in the moment before: the next one follows, and what is theirs is theirs.
#[test]
fn an_offer_that_somebody_else_takes_first_costs_no_second_machine() {
    for kind in Kind::ALL {
        let desk = desk(kind, Fault::of("meddle").text("create").times(1));
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(1);
        let others = desk.foreign();
        assert_eq!((others.len(), made(&desk)), (1, 2), "{kind:?}");
        let creates = desk.cloud.world.lock().requests["create"];
        assert_eq!(creates, 2, "{kind:?}: theirs, and the next one");
        desk.run("orphans").exits(0).says("no orphan was found");
        ends(&desk);
        assert_eq!(desk.foreign(), others);
    }
}

#[test]
fn a_machine_that_is_named_like_ours_is_shown_and_never_touched() {
    for kind in Kind::ALL {
        for how in ["foreign", "case", "cut"] {
            let desk = desk(kind, Fault::of("names").text(how).times(1));
            desk.run("apply --auto-approve").exits(0);
            desk.agrees(1);
            let others = desk.foreign();
            assert_eq!(others.len(), 1, "{kind:?} {how}");
            let plan = desk.run("plan --detailed-exitcode");
            plan.exits(0).says(&others[0]).says("never touched");
            ends(&desk);
            assert_eq!(desk.foreign(), others, "{kind:?} {how}");
        }
    }
}

/// The very name is proof: one create may make two.
#[test]
fn a_second_machine_of_the_very_name_is_released() {
    for kind in Kind::ALL {
        let desk = desk(kind, Fault::of("names").text("same").times(1));
        desk.run("apply --auto-approve").exits(0);
        let (ours, others) = (desk.there(), desk.foreign());
        assert_eq!((ours.len() + others.len(), made(&desk)), (1, 2), "{kind:?}");
        ends(&desk);
        assert!(desk.foreign().is_empty(), "{kind:?}");
    }
}

/// A host asks for more than its machine costs: that is told with both prices, and never agreed to.
#[test]
fn a_price_that_a_host_asks_for_is_told_and_not_paid() {
    let asked = Fault::of("price-asked").factor(2.0).seconds(1);
    let desk = desk(Kind::Vastai, asked);
    desk.run("apply --auto-approve").exits(0);
    until(&desk, |world| {
        let now = world.clock.now();
        let inner = world.lock();
        let mut asked = inner.machines.values().filter_map(|machine| machine.asked);
        asked.any(|(from, _)| from <= now)
    });
    let costs = {
        let inner = desk.cloud.world.lock();
        inner
            .machines
            .values()
            .next()
            .expect("one")
            .meter
            .per_hour()
    };
    desk.run("status")
        .exits(0)
        .says("lease.node[0]: the host of machine 8100001 asks for $")
        .says(&format!("/h, it costs {costs}/h"))
        .says("only if you accept it at provider `vast` yourself")
        .says("its contract ends 2");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    let now = desk
        .cloud
        .world
        .lock()
        .machines
        .values()
        .next()
        .expect("one")
        .meter
        .per_hour();
    assert_eq!(now, costs);
    ends(&desk);
}

/// Everything is sold out, and a lease may wait: it is asked again, and what is had then is rented once.
#[test]
fn a_lease_that_may_wait_for_capacity_is_rented_when_there_is_some() {
    for kind in Kind::ALL {
        let desk = desk(kind, Fault::of("capacity"));
        desk.edit("count = 1", "count = 1\nwait_for_capacity = \"10m\"");
        let apply = desk.command("apply --auto-approve");
        let apply = { apply }.spawn().expect("the binary is there");
        until(&desk, |world| {
            let refused = world.faults.counts().get("capacity").copied();
            refused.unwrap_or_default() > 8
        });
        assert_eq!(made(&desk), 0, "{kind:?}");
        set(&desk, vec![]);
        let ran = super::desk::finish(apply);
        ran.exits(0)
            .says("nothing that fits can be had; asked again");
        assert_eq!(made(&desk), 1, "{kind:?}");
        desk.agrees(1);
        ends(&desk);
    }
}

/// What one offer is refused with may be about it; what all are refused with is about the request, and no waiting helps.
#[test]
fn a_pod_that_every_offer_refuses_alike_is_no_want_of_capacity_and_one_that_one_refuses_is_rented_elsewhere()
 {
    for (text, hint) in [("400", "mend the request"), ("403", "lacks the permission")] {
        let bad = Fault::of("bad-request").text(text);
        for waits in ["", "\nwait_for_capacity = \"10m\""] {
            let desk = desk(Kind::Runpod, bad.clone());
            desk.edit("count = 1", &format!("count = 1{waits}"));
            let ran = desk.run("apply --auto-approve");
            ran.exits(1)
                .says("creates were refused with the same words")
                .says(&format!("status {text}"))
                .says(hint);
            assert_eq!(made(&desk), 0, "{text}");
            ends(&desk);
        }
        let desk = desk(Kind::Runpod, bad.times(1));
        desk.run("apply --auto-approve").exits(0);
        assert_eq!(made(&desk), 1, "{text}");
        ends(&desk);
    }
}

/// One try is all there is: what it may have been is said beside what may be raised.
#[test]
fn the_hint_of_a_refusal_is_kept_beside_the_number_of_tries() {
    let desk = desk(Kind::Runpod, Fault::of("bad-request").text("400"));
    desk.edit("count = 1", "count = 1\nattempts = 1");
    desk.run("apply --auto-approve")
        .exits(4)
        .says("mend the request; 1 offers were tried, `attempts` allows 1; raise it");
    assert_eq!(made(&desk), 0);
    ends(&desk);
}

/// A connection that was used once is dead: a read is asked for again, and a create goes out on one of its own.
#[test]
fn a_connection_that_dies_when_it_is_used_again_costs_no_create() {
    for kind in Kind::ALL {
        let desk = Desk::new(kind, vec![Fault::of("keep-alive-death")]);
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(2);
        let (creates, made) = {
            let inner = desk.cloud.world.lock();
            (inner.requests["create"], inner.machines.len())
        };
        assert_eq!((creates, made), (2, 2), "{kind:?}");
        assert!(desk.cloud.world.faults.counts()["keep-alive-death"] > 0);
        ends(&desk);
    }
}

/// A state that nobody knows is not ready, and not over.
#[test]
fn a_machine_in_a_state_that_nobody_knows_is_waited_for_kept_and_ended() {
    for kind in Kind::ALL {
        let odd = || Fault::of("schema-drift").text("status");
        let desk = desk(kind, odd().times(4));
        desk.run("apply --auto-approve").exits(0);
        assert_eq!(desk.cloud.world.faults.counts()["schema-drift"], 4);
        assert_eq!(made(&desk), 1, "{kind:?}");
        set(&desk, vec![odd()]);
        desk.run("plan --detailed-exitcode")
            .exits(0)
            .says("Nothing to do");
        desk.agrees(1);
        ends(&desk);
    }
}

/// A release that is taken and does nothing, of a machine that was given up and that is on a page that was lost.
#[test]
fn a_machine_of_lambda_that_was_given_up_is_not_called_gone_for_a_page_that_was_lost() {
    let faults = vec![
        Fault::of("boot-wrong-gpu").after(2).times(1),
        Fault::of("terminate-noop").times(2),
        Fault::of("list-page-lost").text("dropped"),
    ];
    let desk = Desk::of(Kind::Lambda, faults, SPEED, 3);
    desk.run("apply --auto-approve").exits(0);
    assert_eq!(made(&desk), 4);
    assert_eq!(desk.cloud.world.faults.counts()["terminate-noop"], 2);
    desk.agrees(3);
    set(&desk, vec![]);
    ends(&desk);
}

/// A page that leads nowhere makes a listing that looks whole: what is missing in it is asked for by its id.
#[test]
fn a_machine_of_lambda_on_a_page_that_was_lost_is_neither_replaced_nor_called_gone() {
    let desk = Desk::of(Kind::Lambda, vec![], SPEED, 3);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(3);
    set(&desk, vec![Fault::of("list-page-lost").text("dropped")]);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run("apply --auto-approve").exits(0);
    assert_eq!(made(&desk), 3);
    ends(&desk);
}
