//! States and graphs as text, and plans at every width.

use stageline_core::offer::HOURS_LEFT;
use stageline_core::plan::{Mode, recorded_graph};
use stageline_core::render::{self, Level, View};
use stageline_core::unit::Millis;

use crate::basics::{chain, desired, machines, options, plan};
use crate::world::{World, address, local, name};

const VIEW: View = View {
    level: Level::Changes,
    width: 100,
    color: false,
};

fn settled() -> World {
    let mut world = World::new();
    let first = plan(
        &desired(&chain(&[0, 16, 30])),
        &world,
        &local(4),
        &options(Mode::Apply),
    );
    world.carry_out(&first);
    world
}

#[test]
fn a_state_is_a_list_and_each_resource_a_page() {
    let world = settled();
    let list = render::state::list(&world.state, &VIEW);
    assert_eq!(list.lines().count(), 10, "{list}");
    assert!(list.contains("lease.gpu[0]     g1  there  sl-"), "{list}");
    assert!(list.ends_with("They cost nothing.\n"), "{list}");
    let page = render::state::show(&world.state, &address("stage.llama[1]"), &VIEW);
    let page = page.expect("it is recorded");
    assert!(page.contains("  layers 16..30\n"), "{page}");
    assert_eq!(
        render::state::show(&world.state, &address("stage.llama[2]"), &VIEW),
        None
    );
    let nothing = render::state::list(&World::new().state, &VIEW);
    assert_eq!(nothing, "Nothing is recorded.\n");
}

#[test]
fn a_graph_carries_the_verdicts_of_a_plan_and_what_is_ended() {
    let world = settled();
    let one = desired(&chain(&[0, 30]));
    let lowered = plan(&one, &world, &local(4), &options(Mode::Apply));
    let dot = render::graph::dot(&one.graph(), Some(&lowered));
    assert!(
        dot.contains("\"lease.gpu[1]\\ndelete\", color = \"red\""),
        "{dot}"
    );
    assert!(
        dot.contains("\"stage.llama[0]\" -> \"delivery.gpu[0]\";"),
        "{dot}"
    );
    let mermaid = render::graph::mermaid(&recorded_graph(&world.state), None);
    assert_eq!(mermaid.matches(" --> ").count(), 7, "{mermaid}");
}

#[test]
fn text_keeps_to_its_width_and_colour_adds_nothing_to_it() {
    let world = settled();
    let moved = desired(&chain(&[0, 10, 20, 30]));
    let drafted = plan(&moved, &world, &local(4), &options(Mode::Apply));
    for level in [Level::Summary, Level::Changes, Level::Full] {
        for width in [80, 120, 200] {
            let view = View {
                level,
                width,
                color: false,
            };
            let text = render::plan::plan(&drafted, &view);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width), "{width}: {text}");
            assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
            let colored = render::plan::plan(
                &drafted,
                &View {
                    color: true,
                    ..view
                },
            );
            assert_ne!(colored, text);
            assert_eq!(plain(&colored), text);
        }
    }
}

fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    plain
}

#[test]
fn a_machine_that_may_live_longer_than_its_host_is_let_is_told() {
    let drawn = |hours: &str, max_lifetime: Millis| {
        let mut topology = machines(1);
        let offer = topology.offers.get_mut(&name("box")).expect("it");
        offer.max_lifetime = max_lifetime;
        let mut markets = local(4);
        let market = markets.get_mut(&name("here")).expect("it");
        let quote = &mut market.quotes.as_mut().expect("quotes")[0];
        let hours = (HOURS_LEFT.to_owned(), hours.to_owned());
        quote.facts.extra.extend([hours]);
        let drafted = plan(
            &desired(&topology),
            &World::new(),
            &markets,
            &options(Mode::Apply),
        );
        render::plan::plan(&drafted, &VIEW).replace("\n        ", " ")
    };
    let told = drawn("48", Millis::minutes(72 * 60));
    assert!(
        told.contains("its host is let for 2d more, and max_lifetime is 3d: the machine ends with its host's contract at the latest"),
        "{told}"
    );
    for (hours, max_lifetime) in [("48", 48), ("48", 12), ("no number", 48)] {
        let told = drawn(hours, Millis::minutes(max_lifetime * 60));
        assert!(!told.contains("its host is let"), "{told}");
    }
}
