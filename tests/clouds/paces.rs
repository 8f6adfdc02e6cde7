//! The pace that simulators keep their clients to: by what they count, and which pauses they ask for.

use jiff::fmt::rfc2822::parse;
use serde_json::json;
use stageline::sim::{Fault, Kind};

use super::desk::{Desk, KEY};
use super::mounts::ask_as;

/// Two keys together may search no more often than one.
#[test]
fn searches_at_vastai_are_counted_by_where_they_come_from_and_all_else_by_key() {
    let desk = Desk::of(Kind::Vastai, vec![], 1, 1);
    let search = |key: &str| ask_as(&desk, key, ("POST", "/api/v0/bundles/"), &json!({})).status;
    let list = |key: &str| ask_as(&desk, key, ("GET", "/api/v1/instances/"), &json!({})).status;
    let all: Vec<u16> = (0..5)
        .flat_map(|_| [search(KEY), search("other")])
        .collect();
    assert_eq!(all, [200; 10]);
    assert_eq!(search("other"), 429);
    assert_eq!(search("a-third"), 429);
    assert_eq!(desk.cloud.world.lock().too_soon, 2);
    assert_eq!((list(KEY), list("other")), (200, 200));
}

/// A date is one by the server's own clock, whoever asks for the pause.
#[test]
fn a_create_that_is_too_many_is_told_when_to_come_again() {
    for (kind, create) in [
        (Kind::Vastai, ("PUT", "/api/v0/asks/1/")),
        (Kind::Lambda, ("POST", "/api/v1/instance-operations/launch")),
        (Kind::Runpod, ("POST", "/v2/pods")),
    ] {
        let busy = || Fault::of("create-429").times(1);
        let faults = vec![busy().text("date").seconds(40), busy().text("60"), busy()];
        let desk = Desk::of(kind, faults, 600, 1);
        let told = [(); 3].map(|()| ask_as(&desk, KEY, create, &json!({})));
        assert!(told.iter().all(|told| told.status == 429), "{kind:?}");
        let at = |text: &Option<String>| {
            let text = text.as_deref().expect("a header");
            parse(text).expect("a date").timestamp().as_second()
        };
        let pause = at(&told[0].retry_after) - at(&told[0].date);
        assert_eq!(pause, 40, "{kind:?}");
        assert_eq!(told[1].retry_after.as_deref(), Some("60"), "{kind:?}");
        assert_eq!(told[2].retry_after, None, "{kind:?}");
    }
}
