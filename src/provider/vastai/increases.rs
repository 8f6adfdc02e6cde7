//! Prices that hosts ask for when they extend a contract. Accepting is for people: it is never done here.
//!
//! Source: the official client, `vastai.api.price_increase`. Rates are per second there.

use std::time::Duration;

use serde_json::Value;
use stageline_core::unit::{MicroDollars, Timestamp};

use super::{Vastai, wire};
use crate::provider::Increase;
use crate::provider::http::{Call, Endpoint, Fault, money, number};

const INCREASES: Endpoint = Endpoint::each("price increases", Duration::from_secs(1));

impl Vastai {
    /// What is asked for machines of the account.
    pub(super) async fn pending_increases(&self) -> Result<Vec<Increase>, Fault> {
        let call = Call::get("/api/v0/instances/pending-price-increases/", INCREASES);
        let body = self.api.read(call).await?.body;
        let rows = body
            .get("pending_price_increases")
            .and_then(Value::as_array);
        let rows = rows.ok_or_else(|| Fault::shape("it has no list `pending_price_increases`"))?;
        Ok(rows.iter().filter_map(increase).collect())
    }
}

/// One row; none that asks for nothing more.
fn increase(row: &Value) -> Option<Increase> {
    let (from, to) = (per_hour(row, "old")?, per_hour(row, "new")?);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast from float saturates"
    )]
    let until = number(row, "contract_end_date").map(|end| end as i64);
    (to > from).then_some(())?;
    Some(Increase {
        machine: wire::id(row, "contract_id")?.parse().ok()?,
        from,
        to,
        until: until.and_then(|end| Timestamp::from_second(end).ok()),
    })
}

/// The machine and its disk; what is not told of the two is nothing.
fn per_hour(row: &Value, when: &str) -> Option<MicroDollars> {
    let rates = ["gpu", "disk_ram"].map(|what| number(row, &format!("{when}_{what}_costpersec")));
    let told = rates.iter().any(Option::is_some);
    let sum: f64 = rates.into_iter().flatten().sum();
    told.then(|| money(sum * 3600.0))?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_host_asks_is_by_the_hour_with_its_disk() {
        let row = json!({
            "pending_price_increase_id": 5, "contract_id": 8_100_001, "host_id": 1, "old_gpu_costpersec": 0.000_05,
            "new_gpu_costpersec": 0.000_075, "old_disk_ram_costpersec": 0.000_001, "new_disk_ram_costpersec": 0.000_001,
            "contract_end_date": 1_790_035_200.0, "new_bwu_cost": null,
        });
        let asked = increase(&row).expect("a row");
        assert_eq!(asked.machine.as_str(), "8100001");
        assert_eq!(asked.from, MicroDollars(183_600));
        assert_eq!(asked.to, MicroDollars(273_600));
        assert_eq!(asked.until.map(|end| end.as_second()), Some(1_790_035_200));
        let mut less = row.clone();
        less["new_gpu_costpersec"] = json!(0.000_01);
        assert_eq!(increase(&less), None);
        let mut untold = row;
        (
            untold["new_gpu_costpersec"],
            untold["new_disk_ram_costpersec"],
        ) = (Value::Null, Value::Null);
        assert_eq!(increase(&untold), None);
    }
}
