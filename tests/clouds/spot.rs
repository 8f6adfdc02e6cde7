//! Machines that are bid for: what they cost, what becomes of a bid that is too low, and of a machine that is taken away.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stageline::core::unit::MicroDollars;
use stageline::sim::{Fault, Kind};

use super::desk::{Desk, SPEED};
use super::mounts::ask;

/// Machines that are bid for on these terms.
fn desk(spot: &str, faults: Vec<Fault>, count: u32) -> Desk {
    let desk = Desk::of(Kind::Vastai, faults, SPEED, count);
    let provider = r#"provider = "vast""#;
    desk.edit(provider, &format!("{provider}\nspot = {spot}"));
    desk
}

/// What is bid for each machine that is there; none is on demand.
fn bids(desk: &Desk) -> Vec<Option<MicroDollars>> {
    let now = desk.cloud.world.clock.now();
    let inner = desk.cloud.world.lock();
    let there = inner.machines.values().filter(|it| it.is_there(now));
    there.map(|machine| machine.bid).collect()
}

/// Others bid more, and that shows.
fn outbid(desk: &Desk) {
    let there = desk.there();
    desk.cloud.world.lock().price_factor = 1.5;
    let deadline = Instant::now() + Duration::from_secs(60);
    let stopped = || {
        let inner = desk.cloud.world.lock();
        let mut machines = inner.machines.values();
        machines.all(|machine| machine.stopped_from.is_some() || !machine.is_there(u64::MAX))
    };
    while !stopped() {
        assert!(Instant::now() < deadline, "nothing stops");
        #[expect(clippy::disallowed_methods, reason = "polling needs a pause")]
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(desk.there(), there, "they stand still, and bill");
}

fn made(desk: &Desk) -> usize {
    desk.cloud.world.lock().machines.len()
}

#[test]
fn a_bid_is_what_is_paid_beside_the_disk_and_is_shown_wherever_prices_are() {
    let desk = desk("true", vec![], 2);
    let offers = desk.run("offers --where gpu=rtx_4090 --disk 40");
    assert!(!offers.text.contains("spot"), "{}", offers.text);
    desk.run("offers --where gpu=rtx_4090 --disk 40 --spot")
        .exits(0)
        .says("spot, bid $");
    let offers = desk.run("offers --where gpu=rtx_4090,spot --disk 40");
    offers.exits(0);
    let lines = offers.text.lines().filter(|line| line.starts_with('$'));
    for line in lines {
        assert!(line.contains("spot, bid $"), "{line}");
    }
    let plan = desk.run("plan --json");
    let plan: Value = serde_json::from_str(plan.exits(0).text.trim()).expect("JSON");
    let plan = plan.get("plan").unwrap_or(&plan);
    let quote = &plan["leases"]["lease.node[0]"]["shortlist"][0]["quote"];
    let (bid, price) = (&quote["bid"]["per_hour"], &quote["price_per_hour"]);
    let (bid, price) = (bid.as_u64().expect("a bid"), price.as_u64().expect("one"));
    assert!(
        bid < price && price < bid + 20_000,
        "{bid} and its disk, {price}"
    );
    desk.run("apply --auto-approve")
        .exits(0)
        .says("(spot, bid $")
        .says("#bid from provider vast");
    desk.agrees(2);
    assert!(bids(&desk).iter().all(Option::is_some));
    {
        let inner = desk.cloud.world.lock();
        for machine in inner.machines.values() {
            assert_eq!(Some(machine.meter.running_per_hour), machine.bid);
        }
    }
    for machine in desk.there() {
        let price = {
            let inner = desk.cloud.world.lock();
            let machine = &inner.machines[&machine.parse::<u64>().expect("a number")];
            machine.meter.per_hour()
        };
        desk.run("leases")
            .says(&format!("{machine}  vast  {price}/h  ready"));
    }
    desk.run("plan --detailed-exitcode").exits(0);
    // A dearer market takes nothing away that bids enough, a cheaper one neither.
    desk.cloud.world.lock().price_factor = 0.9;
    desk.run("plan --detailed-exitcode").exits(0);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

/// Between the last look and the request somebody bids more.
#[test]
fn a_bid_that_is_too_low_makes_nothing_or_is_ended_and_the_next_offer_follows() {
    let rises = || Fault::of("price-rises").factor(1.3).times(1);
    let stays = || Fault::of("bid-stays").times(1);
    for (faults, more, words) in [
        (vec![rises()], 0, "bid is below the current minimum"),
        (vec![rises(), stays()], 1, "it stands still"),
        (vec![rises(), stays().text("yes")], 1, "it stands still"),
    ] {
        let desk = desk("true", faults, 1);
        desk.run("apply --auto-approve").exits(0).says(words);
        desk.agrees(1);
        assert_eq!(made(&desk), 1 + more, "{words}");
        assert!(bids(&desk)[0].is_some());
        desk.run("destroy --auto-approve")
            .exits(0)
            .says("0 left at providers");
        desk.agrees(0);
    }
}

/// The plan's list is used up: what is quoted then is bid for on the same terms.
#[test]
fn fresh_quotes_are_bids_on_the_same_terms_too() {
    let desk = desk("true", vec![Fault::of("offer-gone").times(9)], 1);
    desk.edit("spot = true", "spot = true\nattempts = 20");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert!(bids(&desk)[0].is_some());
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

/// It is taken away before its agent answers: that is a try like every other that fails.
#[test]
fn a_machine_that_is_taken_away_while_it_boots_is_a_try_that_failed() {
    for spot in ["true", r#"{ on_interrupt = "end" }"#] {
        let fault = Fault::of("preempt").seconds(0).times(1);
        let desk = desk(spot, vec![fault], 1);
        desk.run("apply --auto-approve")
            .exits(0)
            .says("failed: it stands still");
        desk.agrees(1);
        assert_eq!(made(&desk), 2);
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn one_that_was_taken_away_is_replaced_on_the_same_terms() {
    let desk = desk("true", vec![], 1);
    desk.run("apply --auto-approve").exits(0);
    let first = desk.there();
    outbid(&desk);
    desk.run("status")
        .exits(4)
        .says("taken away: it stands still")
        .says("until it is released")
        .says("`stageline apply` releases it and bids for another one");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says(&format!("its spot machine {} was taken away", first[0]))
        .says("/h until it is released");
    let disk = {
        let inner = desk.cloud.world.lock();
        let meter = &inner.machines.values().next().expect("one").meter;
        MicroDollars(meter.per_hour().0 - meter.running_per_hour.0)
    };
    desk.run("plan")
        .says(&format!("it costs {disk}/h until it is released"));
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_ne!(desk.there(), first);
    assert!(bids(&desk)[0].is_some());
    // From when it was seen to stand still its disk is counted, and no more.
    desk.run("leases")
        .says(&format!("{}  vast  {disk}/h  ended", first[0]));
    desk.run("plan --detailed-exitcode").exits(0);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn the_next_one_is_on_demand_where_the_terms_say_so_until_it_is_replaced_by_hand() {
    for watched in [false, true] {
        let desk = desk(r#"{ on_interrupt = "on-demand" }"#, vec![], 1);
        desk.run("apply --auto-approve").exits(0);
        outbid(&desk);
        if watched {
            desk.run("watch --once")
                .exits(0)
                .says("its spot machine was taken away: it stands still")
                .says("rents the next one on demand");
            desk.agrees(0);
        }
        let ran = desk.run("apply --auto-approve");
        ran.exits(0)
            .says("on demand since its spot machine was taken away at 20");
        desk.agrees(1);
        assert_eq!(bids(&desk), [None]);
        desk.run("plan --detailed-exitcode")
            .exits(0)
            .says("on demand since its spot machine was taken away");
        desk.run("apply --auto-approve --replace lease.node[0]")
            .exits(0)
            .says("(spot, bid $");
        desk.agrees(1);
        assert!(bids(&desk)[0].is_some());
        let plan = desk.run("plan --detailed-exitcode");
        plan.exits(0);
        assert!(!plan.text.contains("on demand since"), "{}", plan.text);
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn a_lease_that_ends_with_its_machine_stays_ended_until_it_is_renewed() {
    for watched in [false, true] {
        let desk = desk(r#"{ on_interrupt = "end" }"#, vec![], 1);
        desk.run("apply --auto-approve").exits(0);
        outbid(&desk);
        if watched {
            desk.run("watch --once")
                .exits(0)
                .says("`stageline apply --renew lease.node[0]` rents it again");
        } else {
            desk.run("apply --auto-approve")
                .exits(0)
                .says("taken away, seen at 20")
                .says("`stageline apply --renew lease.node[0]` rents it again");
        }
        desk.agrees(0);
        desk.run("plan --detailed-exitcode")
            .exits(0)
            .says("taken away, seen at 20")
            .says("1 lease is kept ended");
        desk.run("apply --auto-approve --renew").exits(0);
        desk.agrees(1);
        assert!(bids(&desk)[0].is_some());
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn a_watcher_releases_what_was_taken_away_and_rents_nothing() {
    let desk = desk("true", vec![], 2);
    desk.run("apply --auto-approve").exits(0);
    outbid(&desk);
    desk.run("watch --once")
        .exits(0)
        .says("its spot machine was taken away: it stands still")
        .says("`stageline apply` rents another one");
    desk.agrees(0);
    desk.run("state history").exits(0).says("taken away: ");
    desk.run("apply --auto-approve")
        .exits(0)
        .says("rented again; taken away, seen at");
    desk.agrees(2);
    desk.run("watch --once").exits(0);
    desk.agrees(2);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn a_machine_that_is_taken_away_when_its_lease_is_over_leaves_it_ended() {
    let desk = desk("true", vec![], 1);
    desk.run("apply --auto-approve").exits(0);
    outbid(&desk);
    desk.edit("[limits]", "[limits]\nmax_spend = 0.000001");
    let ran = desk.run("watch --once");
    ran.exits(0).says("ends by its limits.max_spend");
    assert!(!ran.text.contains("was taken away"), "{}", ran.text);
    desk.agrees(0);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("ended by its limits.max_spend")
        .says("1 lease is kept ended by its own limit");
}

#[test]
fn a_bid_that_nobody_takes_is_told_with_how_near_it_comes() {
    let desk = desk("{ bid = 0.01 }", vec![], 1);
    desk.run("plan")
        .exits(1)
        .says("plan/no-offer")
        .says("a bid of $0.01/h (it takes $");
    assert_eq!(made(&desk), 0);
}

/// Somebody bids more for it at the console, and less again.
#[test]
fn a_machine_that_was_taken_away_runs_again_once_it_is_bid_enough_for() {
    let desk = desk("true", vec![], 1);
    desk.run("apply --auto-approve").exits(0);
    outbid(&desk);
    let number = || *desk.cloud.world.lock().machines.keys().next().expect("one");
    let bid = |price: f64| {
        let path = format!("/api/v0/instances/bid_price/{}/", number());
        let body = json!({ "client_id": "me", "price": price });
        ask(&desk, "PUT", &path, &body).0
    };
    let stands = |still: bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        let is = || {
            let inner = desk.cloud.world.lock();
            let machine = inner.machines.values().next().expect("one");
            machine.stopped_from.is_some()
        };
        while is() != still {
            assert!(Instant::now() < deadline, "it does not come to that");
            #[expect(clippy::disallowed_methods, reason = "polling needs a pause")]
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!(bid(64.0), 400, "more than may be bid");
    stands(true);
    assert_eq!(bid(9.0), 200);
    stands(false);
    {
        let inner = desk.cloud.world.lock();
        let machine = inner.machines.values().next().expect("one");
        assert_eq!(machine.meter.running_per_hour, MicroDollars(9_000_000));
    }
    assert_eq!(bid(0.001), 200);
    stands(true);
    let path = format!("/api/v0/instances/recycle/{}/", number());
    assert_eq!(
        ask(&desk, "PUT", &path, &json!({})).0,
        501,
        "it is not played"
    );
    desk.run("destroy --auto-approve").exits(0);
    assert!(desk.there().is_empty());
}
