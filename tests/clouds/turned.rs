//! Which test turns each knob on at each cloud: a fault that nobody shows is one that nobody has seen us bear.
//!
//! A knob that is new, and one that no test turns on any more, fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stageline::sim::Kind;
use stageline::sim::fault::{KNOBS, WRONG};

/// A knob, and the test of it at each of [`Kind::ALL`]; nothing where it cannot happen.
type Row = (&'static str, [&'static str; 3]);

/// What most of them are: a table of faults against one verb of each adapter.
const CREATES: [&str; 3] = [
    "verbs::a_create_is_sent_once_and_its_answer_believed_as_far_as_it_goes",
    "lambda::a_launch_is_sent_once_and_its_answer_believed_as_far_as_it_goes",
    "runpod::a_create_is_sent_once_and_its_answer_believed_as_far_as_it_goes",
];
const LISTINGS: [&str; 3] = [
    "verbs::a_listing_that_cannot_be_trusted_is_no_listing",
    "lambda::a_listing_of_lambda_that_cannot_be_trusted_is_no_listing",
    "runpod::a_listing_that_cannot_be_trusted_is_no_listing",
];
const RELEASES: [&str; 3] = [
    "verbs::a_release_is_proven_by_listings_only",
    "lambda::a_release_at_lambda_is_proven_by_listings_only",
    "runpod::a_release_is_proven_by_listings_only",
];
const STATES: [&str; 3] = [
    "verbs::a_machine_is_seen_as_it_is",
    "lambda::a_machine_of_lambda_is_seen_as_it_is",
    "runpod::a_pod_is_seen_as_it_is",
];

const fn all(test: &'static str) -> [&'static str; 3] {
    [test, test, test]
}

const ROWS: &[Row] = &[
    ("create-500-after-commit", CREATES),
    ("create-timeout-after-commit", CREATES),
    ("create-cut", CREATES),
    ("create-500-no-commit", CREATES),
    ("create-late-commit", CREATES),
    ("create-200-false-with-id", [CREATES[0], "", ""]),
    (
        "bid-stays",
        [
            "spot::a_bid_that_is_too_low_makes_nothing_or_is_ended_and_the_next_offer_follows",
            "",
            "",
        ],
    ),
    (
        "create-wrong-count",
        [
            CREATES[0],
            CREATES[1],
            "runpod::a_second_pod_of_one_create_is_found_by_its_name",
        ],
    ),
    (
        "create-other-machine",
        all(
            "knobs::a_machine_that_is_another_by_its_own_record_is_released_and_another_one_follows",
        ),
    ),
    ("rate-429-plain", CREATES),
    ("rate-429-after", CREATES),
    (
        "create-429",
        all("story::too_many_requests_of_others_end_no_create"),
    ),
    (
        "rate-429-daily",
        [
            "verbs::a_search_that_is_used_up_for_the_day_is_not_asked_for_again",
            "",
            CREATES[2],
        ],
    ),
    (
        "list-lag",
        [
            "story::a_machine_whose_create_failed_after_the_fact_is_found_and_kept",
            "story::a_machine_of_lambda_whose_launch_failed_after_the_fact_is_found_and_kept",
            "story::a_pod_of_runpod_whose_create_failed_after_the_fact_is_found_and_kept",
        ],
    ),
    (
        "get-404-lag",
        all("knobs::a_machine_that_is_not_known_by_its_id_yet_is_ended_all_the_same"),
    ),
    ("list-ghost", RELEASES),
    ("list-success-false", LISTINGS),
    ("list-page-lost", [LISTINGS[0], LISTINGS[1], ""]),
    ("list-pages", ["", LISTINGS[1], ""]),
    ("list-truncated-json", LISTINGS),
    ("boot-never", STATES),
    ("boot-slow", STATES),
    ("boot-dies", STATES),
    (
        "boot-wrong-gpu",
        all("knobs::a_machine_with_another_gpu_or_with_fewer_is_released_and_another_one_follows"),
    ),
    (
        "ip-missing",
        [
            STATES[0],
            STATES[1],
            "runpod::a_pod_that_tells_no_address_is_reached_by_its_relay",
        ],
    ),
    (
        "ip-changes",
        all("elsewhere::a_machine_whose_address_changes_is_found_there_and_that_is_recorded"),
    ),
    (
        "ssh-refused",
        [
            "pushed::a_container_that_takes_its_time_with_ssh_is_waited_for",
            "pushed::a_machine_that_takes_its_time_with_ssh_is_waited_for",
            "pushed::a_container_that_takes_its_time_with_ssh_is_waited_for",
        ],
    ),
    (
        "ssh-stale-key",
        [
            "keys::a_container_that_shows_another_key_later_is_sent_nothing",
            "pushed::another_host_key_than_the_one_that_was_told_is_sent_nothing",
            "keys::a_container_that_shows_another_key_later_is_sent_nothing",
        ],
    ),
    (
        "ssh-denied",
        [
            "pushed::a_container_that_takes_its_time_with_ssh_is_waited_for",
            "pushed::a_machine_that_takes_its_time_with_ssh_is_waited_for",
            "pushed::a_container_that_takes_its_time_with_ssh_is_waited_for",
        ],
    ),
    ("offer-gone", CREATES),
    (
        "offer-breaks-filter",
        [
            "knobs::offers_that_were_not_asked_for_are_neither_shown_nor_rented",
            "",
            "knobs::offers_that_were_not_asked_for_are_neither_shown_nor_rented",
        ],
    ),
    (
        "price-rises",
        [
            "knobs::a_price_that_rises_at_the_create_is_paid_within_the_ceiling_only",
            "lambda::a_price_that_moves_between_the_last_look_and_the_launch_is_held_against_the_ceiling",
            "knobs::a_price_that_rises_at_the_create_is_paid_within_the_ceiling_only",
        ],
    ),
    (
        "price-asked",
        [
            "knobs::a_price_that_a_host_asks_for_is_told_and_not_paid",
            "",
            "",
        ],
    ),
    (
        "price-later",
        all("knobs::a_price_that_rises_later_is_noticed_and_counted"),
    ),
    (
        "traffic",
        ["bill::what_was_billed_for_traffic_is_told_apart", "", ""],
    ),
    ("quota", CREATES),
    (
        "no-own-key",
        [
            "ends::a_machine_that_was_handed_no_key_of_its_own_is_not_kept",
            "",
            "ends::a_machine_that_was_handed_no_key_of_its_own_is_not_kept",
        ],
    ),
    ("money", CREATES),
    ("capacity", CREATES),
    ("bad-request", CREATES),
    ("auth-revoked", CREATES),
    (
        "other-account",
        [
            "story::an_account_that_cannot_be_seen_is_not_an_empty_one",
            "",
            "",
        ],
    ),
    ("terminate-noop", RELEASES),
    ("terminate-5xx", RELEASES),
    ("terminate-partial", ["", RELEASES[1], ""]),
    ("terminate-forget", ["", RELEASES[1], ""]),
    ("delete-late", RELEASES),
    ("preempt", STATES),
    ("host-offline", STATES),
    (
        "vanish",
        all("knobs::a_machine_that_is_gone_is_missed_and_replaced"),
    ),
    (
        "meddle",
        all("knobs::a_machine_that_is_gone_is_missed_and_replaced"),
    ),
    (
        "names",
        all("knobs::a_machine_that_is_named_like_ours_is_shown_and_never_touched"),
    ),
    (
        "key-limit",
        [
            "keys::a_key_that_is_called_a_duplicate_and_is_there_is_used",
            "keys::a_key_that_is_called_a_duplicate_and_is_there_is_used",
            "",
        ],
    ),
    (
        "clock",
        all("knobs::a_cloud_whose_clock_is_off_is_waited_for_by_its_own_clock"),
    ),
    (
        "slow",
        all("knobs::an_answer_that_takes_for_ever_is_no_listing"),
    ),
    (
        "trickle",
        all("knobs::an_answer_that_takes_for_ever_is_no_listing"),
    ),
    (
        "keep-alive-death",
        all("knobs::a_connection_that_dies_when_it_is_used_again_costs_no_create"),
    ),
    (
        "schema-drift",
        [
            "verbs::what_is_new_or_odd_in_an_answer_is_read_all_the_same",
            "lambda::what_is_new_or_odd_in_an_answer_of_lambda_is_read_all_the_same",
            "runpod::what_is_new_or_odd_in_an_answer_is_read_all_the_same",
        ],
    ),
    ("server-error", CREATES),
];

/// What a test does, where there is one: its own text, and that of whatever it names of its file, so that what stands in another test
/// does not count.
fn text_of(test: &str) -> Option<String> {
    let (file, name) = test.split_once("::")?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clouds");
    let text = std::fs::read_to_string(folder.join(format!("{file}.rs"))).ok()?;
    let items = items(&text);
    items.get(name).filter(|item| item.contains("fn "))?;
    let (mut reached, mut open) = (BTreeSet::from([name]), vec![name]);
    let mut all = String::new();
    while let Some(item) = open.pop().and_then(|name| items.get(name)) {
        all += item;
        let words = item.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        open.extend(words.filter(|word| items.contains_key(word) && reached.insert(word)));
    }
    Some(all)
}

/// The functions and constants of a file by their names. The formatter ends each with a line of its own, or on its first one.
fn items(text: &str) -> BTreeMap<&str, &str> {
    let mut items = BTreeMap::new();
    let mut from = 0;
    for line in text.split_inclusive('\n') {
        let (at, words) = (from, line.replace("pub(crate) ", "").replace("async ", ""));
        from += line.len();
        if !["fn ", "const "].iter().any(|head| words.starts_with(head)) {
            continue;
        }
        let name = line.split(['(', ':', '<']).next().unwrap_or_default();
        let name = name.rsplit(' ').next().unwrap_or_default();
        let rest = &text[at..];
        let ends = ["\n}\n", "\n];\n", "\n};\n"].into_iter();
        let ends = ends.filter_map(|end| Some(rest.find(end)? + end.len()));
        let end = match line.trim_end().ends_with(';') {
            true => line.len(),
            false => ends.min().unwrap_or(rest.len()),
        };
        items.insert(name, &rest[..end]);
    }
    items
}

/// What is wrong with a row, in words.
fn wrong((knob, tests): &Row) -> Vec<String> {
    let mut wrong = Vec::new();
    for (kind, test) in Kind::ALL.into_iter().zip(tests) {
        let cannot = kind.cannot().iter().any(|(one, _)| one == knob);
        let quoted = format!("\"{knob}\"");
        let at = format!("{knob} at {}", kind.as_str());
        match (cannot, test.is_empty(), text_of(test)) {
            (true, true, _) => {}
            (true, false, _) => wrong.push(format!("{at}: it cannot happen, and {test} shows it")),
            (false, true, _) => wrong.push(format!("{at}: no test turns it on")),
            (false, false, None) => wrong.push(format!("{at}: there is no test {test}")),
            (false, false, Some(text)) if text.contains(&quoted) => {}
            (false, false, Some(_)) => wrong.push(format!("{at}: {test} does not turn it on")),
        }
    }
    wrong
}

#[test]
fn every_knob_is_turned_on_by_a_test_at_every_cloud_that_can_show_it() {
    let known: BTreeSet<&str> = KNOBS.iter().map(|(knob, _)| *knob).collect();
    let rows: BTreeSet<&str> = ROWS.iter().map(|(knob, _)| *knob).collect();
    assert_eq!(known, rows, "each knob has a row");
    let wrong: Vec<String> = ROWS.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Who shows each way in which a machine is another than was sold.
const WAYS: [(&str, &str); 7] = [
    (
        "fewer",
        "knobs::a_machine_with_another_gpu_or_with_fewer_is_released_and_another_one_follows",
    ),
    ("mixed", OLD_OR_MIXED),
    ("driver", OLD_OR_MIXED),
    ("vram", LESS),
    ("memory", LESS),
    ("disk", LESS),
    ("arch", LESS),
];
const OLD_OR_MIXED: &str = "knobs::a_machine_with_an_old_driver_or_with_one_gpu_of_another_kind_is_released_and_another_one_follows";
const LESS: &str = "knobs::a_machine_with_less_of_one_thing_is_released_and_another_one_follows";

#[test]
fn every_way_in_which_a_machine_is_another_is_shown_by_a_test() {
    assert_eq!(WAYS.map(|(way, _)| way), WRONG);
    for (way, test) in WAYS {
        let text = text_of(test).unwrap_or_else(|| panic!("there is no test {test}"));
        assert!(text.contains("\"boot-wrong-gpu\""), "{test}");
        assert!(text.contains(&format!("\"{way}\"")), "{way}: {test}");
    }
    let (_, told) = KNOBS
        .iter()
        .find(|(knob, _)| *knob == "boot-wrong-gpu")
        .expect("there");
    assert!(
        WRONG.iter().all(|way| told.contains(&format!("\"{way}\""))),
        "{told}"
    );
}
