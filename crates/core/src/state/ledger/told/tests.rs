//! What is told by providers counts, to the millisecond and once. Their clock is hours off here.

use super::super::tests::{RATE, Story, at, lease};
use super::*;
use crate::id::{Attempt, Generation, Lineage};
use crate::journal::Verb;

/// By how much their clock differs.
const OFF: i64 = 50_000;

/// `from` and `to` in our time.
fn told(machine: &str, (from, to): (i64, i64), over: bool) -> Told {
    Told {
        machine: machine.parse().expect("an id"),
        key: None,
        price_per_hour: RATE,
        dates: Dates {
            from: at(OFF + from),
            to: at(OFF + to),
            over,
        },
    }
}

fn key(attempt: u32) -> RequestKey {
    RequestKey::derive(
        &Lineage([7; 16]),
        &Address::Lease(lease()),
        Generation(1),
        Attempt(attempt),
    )
}

fn say(story: &mut Story, told: &Told, seconds: i64) {
    story.say(vec![told.record(Address::Lease(lease()), at(seconds))]);
}

/// A machine that was asked for at 0, answered at 10 and is not seen any more.
fn rented(dates: bool) -> Story {
    let mut story = Story::begun();
    story.started(1, 0);
    story.done(Verb::Acquire, Some(RATE), 10);
    if dates {
        say(&mut story, &told("m", (4, 10), false), 10);
    }
    story
}

#[test]
fn a_machine_costs_what_its_provider_tells_also_when_that_is_told_later() {
    for dates in [true, false] {
        let mut story = rented(dates);
        story.done(Verb::Release, None, 300);
        let (least, most) = story.spent(at(300), false);
        assert!(least < 200 && most > 290, "{least} to {most}");
        say(&mut story, &told("m", (4, 204), true), 310);
        assert_eq!(story.spent(at(999), false), (200, 200), "dates: {dates}");
        let ended = story.state.ended[0].spent.expect("an account");
        assert_eq!((ended.least.0, ended.most.0), (200_000, 200_000));
        say(&mut story, &told("m", (4, 204), true), 320);
        assert_eq!(story.spent(at(999), false), (200, 200), "not twice");
    }
}

#[test]
fn a_machine_that_is_held_costs_no_more_once_it_is_over() {
    let mut story = rented(true);
    say(&mut story, &told("m", (4, 104), true), 200);
    assert_eq!(story.spent(at(999), true), (100, 100));
    story.done(Verb::Release, None, 999);
    assert_eq!(story.spent(at(9999), false), (100, 100));
}

#[test]
fn what_is_told_now_counts_without_being_written_down() {
    let story = rented(true);
    let now = [told("m", (4, 500), false)];
    // Our clock says another time: theirs counts.
    let ledger = story.state.ledger_told(at(777), |_| false, &now);
    let total = ledger.total;
    assert_eq!((total.least.0, total.most.0), (496_000, 496_000));
    assert_eq!(story.state.news(&now, at(777)), [], "it is not over");
}

#[test]
fn a_try_in_doubt_counts_as_the_machine_that_is_told_of() {
    let mut story = Story::begun();
    story.started(1, 0);
    assert_eq!(story.spent(at(100), false), (0, 200));
    let seen = Told {
        key: Some(key(1)),
        ..told("m", (40, 100), false)
    };
    let total = story.state.ledger_told(at(100), |_| false, &[seen]).total;
    assert_eq!((total.least.0, total.most.0), (60_000, 60_000));
}

#[test]
fn a_machine_that_nothing_records_is_charged_once_it_is_over() {
    let mut story = rented(true);
    let extra = Told {
        key: Some(key(2)),
        ..told("extra", (5, 65), true)
    };
    let foreign = Told {
        key: Some(RequestKey::derive(
            &Lineage([8; 16]),
            &Address::Lease(lease()),
            Generation(1),
            Attempt(1),
        )),
        ..told("theirs", (5, 65), true)
    };
    let all = [extra, foreign, told("stranger", (5, 65), true)];
    let news = story.state.news(&all, at(100));
    assert_eq!(news.len(), 1, "{news:?}");
    story.say(news);
    say(&mut story, &told("m", (4, 104), true), 200);
    assert_eq!(story.spent(at(999), false), (160, 160));
    assert_eq!(story.state.news(&all, at(300)), [], "it is known");
}

#[test]
fn a_machine_too_many_counts_from_its_own_beginning() {
    let mut story = rented(true);
    say(&mut story, &told("m", (4, 104), true), 105);
    say(&mut story, &told("extra", (50, 110), false), 110);
    story.say(vec![Record::ExtraReleased {
        address: Address::Lease(lease()),
        machine: "extra".parse().expect("an id"),
        price_per_hour: Some(RATE),
        at: at(120),
    }]);
    assert_eq!(story.spent(at(999), false), (160, 170), "seen at 110");
    say(&mut story, &told("extra", (50, 111), true), 130);
    assert_eq!(story.spent(at(999), false), (161, 161));
}

#[test]
fn a_rate_that_moved_counts_low_and_high_between_two_tellings_alone() {
    let mut story = rented(true);
    let dearer = Told {
        price_per_hour: RATE.times(2),
        ..told("m", (4, 110), false)
    };
    say(&mut story, &dearer, 110);
    let over = Told {
        // What is over may have no price any more.
        price_per_hour: MicroDollars::ZERO,
        ..told("m", (4, 210), true)
    };
    say(&mut story, &over, 300);
    assert_eq!(story.spent(at(999), false), (6 + 100 + 200, 6 + 200 + 200));
}

#[test]
fn machines_that_were_forgotten_are_not_charged_again() {
    let mut story = Story::begun();
    story.started(1, 0);
    let many = i64::try_from(CHARGED_MAX).expect("few") + 10;
    for n in 0..many {
        say(&mut story, &told(&format!("m{n}"), (n, n + 1), true), 9000);
    }
    let before = story.spent(at(9000), false);
    assert_eq!(before.0, u64::try_from(many).expect("few"));
    assert_eq!(story.state.charged.len(), CHARGED_MAX);
    for n in 0..many {
        say(&mut story, &told(&format!("m{n}"), (n, n + 1), true), 9000);
    }
    assert_eq!(story.spent(at(9000), false), before);
}

#[test]
fn what_was_charged_is_read_back_and_moves_with_its_lease() {
    let mut story = rented(true);
    say(&mut story, &told("extra", (50, 110), false), 110);
    let stored = serde_json::to_string(&story.state.stored()).expect("plain data");
    let read: State = serde_json::from_str(&stored).expect("it reads what it writes");
    assert_eq!(read, story.state);
    let to = LeaseId {
        index: 1,
        ..lease()
    };
    story.say(vec![Record::Edited {
        address: Address::Lease(lease()),
        recorded: None,
        moved_to: Some(Address::Lease(to.clone())),
        why: "moved".to_owned(),
        at: at(120),
    }]);
    say(&mut story, &told("extra", (50, 120), true), 130);
    let ledger = story.state.ledger(at(130), |_| false);
    assert_eq!(ledger.leases[&to].least.0, 70_000);
    assert_eq!(ledger.leases.len(), 1, "{ledger:?}");
}
