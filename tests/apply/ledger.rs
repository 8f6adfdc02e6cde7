//! What the ledger says against what the account bills: to the cent where everything was seen, within its bounds where
//! not, and never beyond the cap.

use std::time::Duration;

use stageline::ambient::Clock as _;
use stageline::core::resource::FailureClass;
use stageline::core::unit::MicroDollars;
use stageline::provider::sim::{AccountSpec, FaultTable, Verb, When};

use super::world::{Job, PRICE, TWO, Tool, World, here, shape};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn what_was_seen_to_begin_and_end_is_known_to_the_cent() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(5 * HOUR);
    world.check_gone(&world.destroy());
    let spent = world.check_ledger();
    assert!(!spent.is_uncertain(), "{spent}");
    assert_eq!(spent.to_string(), "$1.00", "two machines for five hours");
    world.clock.advance(100 * HOUR);
    assert_eq!(world.check_ledger(), spent, "what has ended costs no more");
}

#[test]
fn a_price_that_moved_is_recorded_by_the_next_apply_and_counted_from_there() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(HOUR);
    world.apply(TWO);
    for machine in world.ours() {
        world.sim.alter(&machine.id, |machine, now| {
            machine.prices.push((now, PRICE.times(3)));
        });
    }
    let plan = world.next_plan(TWO);
    assert!(!plan.is_empty(), "the new price is to be recorded");
    world.apply(TWO);
    assert!(world.next_plan(TWO).is_empty(), "it is recorded");
    world.clock.advance(HOUR);
    world.check_gone(&world.destroy());
    let spent = world.check_ledger();
    assert!(spent.most > MicroDollars(750_000), "{spent}");
}

#[test]
fn a_machine_that_vanished_costs_between_last_seen_and_missed() {
    let world = World::new();
    world.apply(TWO);
    world.clock.advance(HOUR);
    let gone = world.ours()[0].id.clone();
    world.sim.vanish(&gone);
    world.clock.advance(2 * HOUR);
    world.apply(TWO);
    assert!(world.check_ledger().is_uncertain());
    world.check_gone(&world.destroy());
    world.check_ledger();
}

/// A world whose account tells for so long when machines ended.
fn telling(span: Duration) -> World {
    let mut account = AccountSpec::new(vec![shape("a", PRICE)]);
    account.tells_ends = Some(span);
    World::with(account)
}

#[test]
fn an_end_that_the_account_tells_is_known_to_the_cent_whenever_it_is_asked() {
    let world = telling(48 * HOUR);
    world.apply(TWO);
    world.clock.advance(HOUR);
    let gone = world.ours()[0].id.clone();
    world.sim.vanish(&gone);
    world.clock.advance(2 * HOUR);
    let spent = world.check_ledger();
    assert_eq!(spent.to_string(), "$0.40", "one hour and three");
    world.apply(TWO);
    assert!(!world.check_ledger().is_uncertain());
    world.check_gone(&world.destroy());
    world.check_bill();
    assert_eq!(world.check_ledger().to_string(), "$0.40");
}

#[test]
fn an_end_that_is_not_told_any_more_leaves_two_bounds() {
    let world = telling(HOUR / 2);
    world.apply(TWO);
    world.clock.advance(HOUR);
    let gone = world.ours()[0].id.clone();
    world.sim.vanish(&gone);
    world.clock.advance(2 * HOUR);
    assert!(world.destroy().summary.finished());
    let spent = world.state().ledger(world.clock.now(), |_| false).total;
    let bill = world.sim.bill(&here());
    assert!(spent.is_uncertain(), "{spent}");
    assert!(spent.least <= bill && bill <= spent.most, "{bill}, {spent}");
}

/// What machines cost is by the account's clock; what a try in doubt may cost is by ours, since nothing else has a date.
#[test]
fn two_computers_with_other_clocks_know_the_bill_of_an_account_that_tells() {
    for hours in [-5, 5] {
        let world = telling(48 * HOUR);
        world.apply(TWO);
        world.clock.advance(HOUR);
        world.clock.elsewhere(hours * 3600);
        let spent = world.check_ledger();
        assert_eq!(spent.to_string(), "$0.20", "{hours} h off");
        world.apply(TWO);
        world.sim.vanish(&world.ours()[0].id);
        world.clock.advance(HOUR);
        assert_eq!(world.check_ledger().to_string(), "$0.30");
        world.clock.elsewhere(-hours * 3600);
        world.check_gone(&world.destroy());
        world.check_bill();
    }
}

#[test]
fn a_wall_clock_that_is_set_moves_no_cost() {
    for seconds in [-86_400, 86_400] {
        let world = World::new();
        world.apply(TWO);
        world.clock.advance(HOUR);
        world.clock.shift_wall(seconds);
        world.apply(TWO);
        world.clock.advance(HOUR);
        world.clock.shift_wall(-seconds / 2);
        world.check_gone(&world.destroy());
        let spent = world.check_ledger();
        assert_eq!(spent.to_string(), "$0.40", "shifted by {seconds} s");
    }
}

#[test]
fn nothing_more_is_rented_once_the_cap_is_reached() {
    let text = format!("{TWO}\n[limits]\nmax_spend = 0.50\n");
    let world = World::new();
    world.apply(&text);
    world.clock.advance(3 * HOUR);
    assert!(world.next_plan(&text).is_empty(), "what runs goes on");
    let gone = world.ours()[0].id.clone();
    world.sim.vanish(&gone);
    let refused = world.run(&Tool::new(), &Job::Apply(text.clone()));
    let refusal = refused.expect("nobody kills it").expect_err("over the cap");
    assert!(refusal.0.contains("limits.max_spend"), "{}", refusal.0);
    world.check_gone(&world.destroy());
}

#[test]
fn the_cap_is_looked_at_again_before_each_launch() {
    let text = format!("{TWO}\n[limits]\nmax_spend = 0.001\n");
    let world = World::new();
    // The second create makes nothing, which takes minutes to prove: by then the first machine has used up the money.
    world.faults(FaultTable::none().on(
        Verb::Create,
        When::Nth(2),
        stageline::provider::sim::Fault::CreateErrorNoCommit,
    ));
    let tool = Tool {
        parallelism: 1,
        ..Tool::new()
    };
    let ended = world
        .run(&tool, &Job::Apply(text))
        .expect("nobody kills it");
    let report = ended.expect("it is not over the cap yet");
    let failed = report.summary.failed.iter();
    let classes: Vec<FailureClass> = failed.map(|failed| failed.cause.class).collect();
    assert!(
        classes.contains(&FailureClass::Money),
        "{:#?}",
        report.summary
    );
    world.check_gone(&world.destroy());
}
