//! What RunPod has billed for pods, in the buckets of its own bill.

use serde_json::Value;
use stageline_core::unit::{MicroDollars, Timestamp};

use super::{REQUESTS, Runpod, wire};
use crate::provider::Charged;
use crate::provider::http::{Call, Fault, money, number};

impl Runpod {
    /// What was billed for each pod since then. A key that may not see the bill tells none.
    pub(super) async fn charged(&self, since: Timestamp) -> Result<Option<Vec<Charged>>, Fault> {
        let mut call = Call::get("/v2/billing/pods", REQUESTS);
        call.query = vec![
            ("startTime", since.to_string()),
            ("bucketSize", "day".to_owned()),
        ];
        let answer = match self.api.read(call).await {
            Ok(answer) => answer,
            Err(fault) if fault.status == Some(403) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let mut all = Vec::new();
        for record in wire::rows(&answer.body, "records")? {
            if let Some(charged) = charge(record) {
                Charged::add(&mut all, charged);
            }
        }
        Ok(Some(all))
    }
}

fn charge(record: &Value) -> Option<Charged> {
    let text = |field: &str| record.get(field).and_then(Value::as_str);
    let amount = number(record, "totalAmount")?;
    Some(Charged {
        machine: text("podId")?.parse().ok()?,
        amount: money(amount).unwrap_or(MicroDollars::ZERO),
        to: text("endTime")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let record =
            json!({ "podId": "p1", "totalAmount": 1.5, "endTime": "2026-01-02T03:04:05Z" });
        let charged = charge(&record).expect("it is whole");
        assert_eq!(
            (charged.machine.as_str(), charged.amount),
            ("p1", MicroDollars(1_500_000))
        );
        for missing in ["podId", "totalAmount", "endTime"] {
            let mut cut = record.clone();
            cut[missing] = Value::Null;
            assert_eq!(charge(&cut), None, "{missing}");
        }
    }
}
