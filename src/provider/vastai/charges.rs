//! What vast.ai has charged for instances: rows of its own bill, page by page, the latest first.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use stageline_core::unit::{MicroDollars, Timestamp};
use tokio::time::{Instant, timeout_at};

use super::{Vastai, wire};
use crate::provider::charges::BILL_WITHIN;
use crate::provider::http::{Call, Endpoint, Fault, money, number};
use crate::provider::{Charged, Charges};

const CHARGES: Endpoint = Endpoint::each("charges", Duration::from_secs(1));

/// Rows of one page: the most that there are.
const PAGE: usize = 500;

/// Days are the provider's: some are taken beside what is asked for.
const DAY: i64 = 86_400;

/// Said of a bill with a row that ends in time to come: its end is that of a contract, and not of what was billed.
const UNFINISHED: &str = "some of the last hours may be missing in it";

/// And a year ahead, since the clock of a simulator runs ahead of ours. Nothing is billed before it is used.
const AHEAD: i64 = 366 * DAY;

impl Vastai {
    /// What was charged for each instance since then.
    pub(super) async fn charged(&self, since: Timestamp, now: Timestamp) -> Result<Charges, Fault> {
        let days = json!({ "gte": since.as_second() - DAY, "lte": now.as_second() + AHEAD });
        let filters = json!({ "day": days, "type": { "in": ["instance"] } }).to_string();
        pages(now, |token| {
            let mut call = Call::get("/api/v0/charges/", CHARGES);
            call.query = vec![
                ("select_filters", filters.clone()),
                ("limit", PAGE.to_string()),
            ];
            call.query.extend(token.map(|token| ("after_token", token)));
            Box::pin(async { Ok(self.api.read(call).await?.body) })
        })
        .await
    }
}

/// All rows, or those that come in time.
async fn pages<'a>(
    now: Timestamp,
    mut read: impl FnMut(Option<String>) -> BoxFuture<'a, Result<Value, Fault>>,
) -> Result<Charges, Fault> {
    let until = Instant::now() + BILL_WITHIN;
    let (mut all, mut token, mut tokens) = (Charges::default(), None, BTreeSet::new());
    let mut read_one = false;
    loop {
        let Ok(body) = timeout_at(until, read(token)).await else {
            break;
        };
        let body = body?;
        for mut row in rows(&body)?.iter().filter_map(charge) {
            if row.to > now {
                row.to = now;
                all.lacks = Some(UNFINISHED.to_owned());
            }
            all.add(row);
        }
        read_one = true;
        token = wire::text(&body, "next_token");
        let Some(next) = &token else {
            return Ok(all);
        };
        // Its rows would be counted again each time.
        if !tokens.insert(next.clone()) {
            return Err(Fault::shape(
                "a page of its bill leads to one that was read",
            ));
        }
    }
    if !read_one {
        return Err(Fault::late("its bill", BILL_WITHIN));
    }
    all.lacks = Some(format!(
        "it is longer than what could be read in {} s, and older charges are missing in it",
        BILL_WITHIN.as_secs()
    ));
    Ok(all)
}

fn rows(body: &Value) -> Result<&Vec<Value>, Fault> {
    let rows = body.get("results").and_then(Value::as_array);
    rows.ok_or_else(|| Fault::shape("it has no list `results`"))
}

/// One row; none that is not about an instance.
fn charge(row: &Value) -> Option<Charged> {
    let source = wire::text(row, "source")?;
    let machine = source.strip_prefix("instance-")?.parse().ok()?;
    let amount = number(row, "amount")?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast from float saturates"
    )]
    let to = Timestamp::from_second(number(row, "end")? as i64).ok()?;
    Some(Charged {
        machine,
        amount: money(amount).unwrap_or(MicroDollars::ZERO),
        traffic: traffic(row),
        to,
    })
}

/// What of a row is for traffic: down and up, each an item of its own.
fn traffic(row: &Value) -> MicroDollars {
    let items = row.get("items").and_then(Value::as_array);
    let items = items.into_iter().flatten().filter(|item| {
        let kind = item.get("type").and_then(Value::as_str);
        matches!(kind, Some("bwd" | "bwu"))
    });
    let amounts = items.filter_map(|item| money(number(item, "amount")?));
    amounts.fold(MicroDollars::ZERO, MicroDollars::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_instance_are_one_sum_up_to_the_last() {
        let row = |source: &str, amount: f64, end: f64| {
            charge(&json!({ "source": source, "amount": amount, "end": end }))
        };
        let mut all = Charges::default();
        for (amount, end) in [(0.25, 1000.0), (0.5, 3000.0), (0.125, 2000.0)] {
            all.add(row("instance-8", amount, end).expect("a row"));
        }
        let all = all.machines;
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].amount, MicroDollars(875_000));
        assert_eq!(all[0].to.as_second(), 3000);
        assert_eq!(row("volume-8", 1.0, 1.0), None);
        let items = json!([
            { "type": "gpu", "amount": 0.5 }, { "type": "bwd", "amount": 0.25 },
            { "type": "bwu", "amount": "0.125" }, { "type": "bwu" }, 7,
        ]);
        let row = json!({ "source": "instance-8", "amount": 1, "end": 9, "items": items });
        assert_eq!(charge(&row).expect("a row").traffic, MicroDollars(375_000));
        assert_eq!(
            charge(&json!({ "source": "instance-8", "amount": 1 })),
            None
        );
        assert!(rows(&json!({ "success": false })).is_err());
    }

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    #[tokio::test]
    async fn a_row_that_ends_with_its_contract_is_billed_up_to_now_at_most_and_may_lack_some() {
        let bill = async |now: i64| {
            let read = pages(second(now), |_| {
                let row = json!({ "source": "instance-8", "amount": 0.5, "end": 3000 });
                Box::pin(async move { Ok(json!({ "results": [row] })) })
            });
            let bill = read.await.expect("a bill");
            (bill.machines[0].to.as_second(), bill.lacks)
        };
        assert_eq!(bill(2000).await, (2000, Some(UNFINISHED.to_owned())));
        assert_eq!(bill(3000).await, (3000, None));
    }

    /// A bill that has another page always, with another instance on it, and takes its time for each.
    async fn endless(each: Duration) -> Result<Charges, Fault> {
        pages(second(2000), |token| {
            Box::pin(async move {
                tokio::time::sleep(each).await;
                let page: u64 = token.map_or(0, |token| token.parse().expect("a number"));
                let source = format!("instance-{page}");
                let row = json!({ "source": source, "amount": 0.5, "end": 1000 });
                let next = (page + 1).to_string();
                Ok(json!({ "results": [row], "next_token": next }))
            })
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_bill_without_an_end_is_read_for_a_while_and_said_to_be_cut() {
        let began = Instant::now();
        let cut = endless(Duration::from_secs(3)).await.expect("some of it");
        assert_eq!(began.elapsed(), BILL_WITHIN);
        let told = cut
            .machines
            .iter()
            .map(|one| (one.machine.as_str(), one.amount));
        let half = MicroDollars(500_000);
        assert_eq!(
            told.collect::<Vec<_>>(),
            [("0", half), ("1", half), ("2", half)]
        );
        let lacks = cut.lacks.expect("it is told");
        assert!(lacks.contains("older charges are missing"), "{lacks}");
        let none = endless(Duration::from_secs(11)).await;
        let none = none.expect_err("nothing is not a bill").cause;
        assert_eq!(none.message, "its bill took longer than 10 s");
        assert_eq!(none.hint, None, "no newer version mends that");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_leads_back_is_not_added_up() {
        for (first, again) in [("a", "a"), ("b", "a")] {
            let mut left = 9;
            let read = pages(second(2000), |token| {
                left -= 1;
                assert!(left > 0, "it is read for ever");
                Box::pin(async move {
                    let next = token.map_or("a", |token| if token == "a" { first } else { again });
                    let row = json!({ "source": "instance-8", "amount": 0.5, "end": 1000 });
                    Ok(json!({ "results": [row], "next_token": next }))
                })
            });
            let fault = read.await.expect_err("no bill").cause;
            assert!(fault.message.contains("leads to one that was read"));
        }
    }
}
