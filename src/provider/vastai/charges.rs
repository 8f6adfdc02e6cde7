//! What vast.ai has charged for instances: rows of its own bill, page by page.

use std::time::Duration;

use serde_json::{Value, json};
use stageline_core::unit::{MicroDollars, Timestamp};

use super::{Vastai, wire};
use crate::provider::Charged;
use crate::provider::http::{Call, Endpoint, Fault, money, number};

const CHARGES: Endpoint = Endpoint::each("charges", Duration::from_secs(1));

/// Rows of one page, and pages at most.
const PAGE: usize = 100;
const PAGES_MAX: usize = 50;

/// Days are the provider's: some are taken beside what is asked for.
const DAY: i64 = 86_400;

impl Vastai {
    /// What was charged for each instance since then.
    pub(super) async fn charged(
        &self,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Charged>, Fault> {
        let days = json!({ "gte": since.as_second() - DAY, "lte": now.as_second() + 366 * DAY });
        let filters = json!({ "day": days, "type": { "in": ["instance"] } }).to_string();
        let (mut all, mut token) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let mut call = Call::get("/api/v0/charges/", CHARGES);
            call.query = vec![
                ("select_filters", filters.clone()),
                ("limit", PAGE.to_string()),
            ];
            call.query.extend(token.map(|token| ("after_token", token)));
            let answer = self.api.read(call).await?;
            for row in rows(&answer.body)? {
                if let Some(charged) = charge(row) {
                    Charged::add(&mut all, charged);
                }
            }
            token = wire::text(&answer.body, "next_token");
            if token.is_none() {
                return Ok(all);
            }
        }
        Err(Fault::shape("the charges have no end"))
    }
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
        to,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_instance_are_one_sum_up_to_the_last() {
        let row = |source: &str, amount: f64, end: f64| {
            charge(&json!({ "source": source, "amount": amount, "end": end }))
        };
        let mut all = Vec::new();
        for (amount, end) in [(0.25, 1000.0), (0.5, 3000.0), (0.125, 2000.0)] {
            Charged::add(&mut all, row("instance-8", amount, end).expect("a row"));
        }
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].amount, MicroDollars(875_000));
        assert_eq!(all[0].to.as_second(), 3000);
        assert_eq!(row("volume-8", 1.0, 1.0), None);
        assert_eq!(
            charge(&json!({ "source": "instance-8", "amount": 1 })),
            None
        );
        assert!(rows(&json!({ "success": false })).is_err());
    }
}
