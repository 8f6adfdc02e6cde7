//! What an account has beside pods: its SSH keys and its bill.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::serve::Reply;
use super::super::world::World;
use super::pods::moment;
use super::schema::{Rule, faults};
use super::{dollars, id, invalid, no, number, yes};

const KEYS: &[Rule] = &[("keys", |keys| {
    keys.as_array()
        .is_some_and(|keys| keys.iter().all(|key| key.as_str().is_some_and(is_key)))
})];

/// A line of `authorized_keys`.
fn is_key(line: &str) -> bool {
    let plain = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
    let kinds = ["ssh-", "ecdsa-", "sk-"];
    let Some((kind, rest)) = line.split_once(' ') else {
        return false;
    };
    let body = rest.split([' ', '\t']).next().unwrap_or_default();
    let known = kinds
        .iter()
        .any(|head| kind.strip_prefix(head).is_some_and(plain));
    known && plain(body) && !line.contains(['\n', '\r'])
}

pub(super) fn keys(world: &World, account: &str) -> Reply {
    let inner = world.lock();
    let keys = inner
        .accounts
        .get(account)
        .map(|account| account["keys"].clone());
    yes(&json!({ "keys": keys.unwrap_or_else(|| json!([])) }))
}

/// The whole set is replaced.
pub(super) fn set_keys(world: &World, account: &str, body: &Value) -> Reply {
    let errors = faults(body, KEYS, &["keys"]);
    if !errors.is_empty() {
        return invalid(&errors);
    }
    let kept = json!({ "keys": body["keys"] });
    world.lock().accounts.insert(account.to_owned(), kept);
    keys(world, account)
}

/// One record for each pod, over the whole time.
pub(super) fn bill(world: &World, account: &str, query: &BTreeMap<String, String>) -> Reply {
    let wrong = |name: &str| invalid(&[format!("query.{name}: not as specified")]);
    for name in ["startTime", "endTime"] {
        let text = query.get(name);
        if text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_err()) {
            return wrong(name);
        }
    }
    let bucket = query.get("bucketSize").map_or("day", String::as_str);
    if !["hour", "day", "week", "month", "year"].contains(&bucket) {
        return wrong("bucketSize");
    }
    let last = query.get("lastN");
    if last.is_some_and(|last| last.parse::<u32>().map_or(true, |last| last == 0)) {
        return wrong("lastN");
    }
    if last.is_some() && (query.contains_key("startTime") || query.contains_key("endTime")) {
        return no(400, "lastN and startTime/endTime are mutually exclusive");
    }
    let pod = query.get("podId");
    let only = pod.map(|pod| number(pod));
    let now = world.clock.now();
    let mut inner = world.lock();
    let mine = inner
        .machines
        .values_mut()
        .filter(|machine| machine.account == account);
    let billed = mine.filter(|machine| only.is_none_or(|only| only == Some(machine.id)));
    let mut all = 0;
    let mut records = Vec::new();
    for machine in billed {
        machine.count(now);
        let micro = machine.meter.total().0;
        all += micro;
        let end = machine.gone_from.map_or(now, |gone| gone.min(now));
        let mut record = amounts(micro);
        record["podId"] = json!(id(machine.id));
        record["startTime"] = json!(moment(world, machine.created));
        record["endTime"] = json!(moment(world, end));
        records.push(record);
    }
    drop(inner);
    let asked = json!({
        "startTime": moment(world, 0), "endTime": moment(world, now), "bucketSize": bucket, "podId": pod,
    });
    yes(&json!({
        "metadata": {
            "query": asked, "recordCount": records.len(), "uniquePodCount": records.len(), "totals": amounts(all),
        },
        "records": records,
    }))
}

/// GPUs and disk are not told apart here.
fn amounts(micro: u64) -> Value {
    json!({ "totalAmount": dollars(micro), "gpuAmount": dollars(micro), "cpuAmount": 0.0, "diskAmount": 0.0 })
}
