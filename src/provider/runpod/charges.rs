//! What RunPod has billed for pods, in the buckets of its own bill: a row has a pod and an hour, and its end is the end of the hour,
//! also of one that is not over.

use serde_json::Value;
use stageline_core::unit::{MicroDollars, Timestamp};

use super::{REQUESTS, Runpod, wire};
use crate::provider::charges::BILL_WITHIN;
use crate::provider::http::{Answer, Call, Fault, money, number};
use crate::provider::{Charged, Charges};

/// Said of a bill with a row of an hour that is not over.
const UNFINISHED: &str = "some of the last hour may be missing in it";

impl Runpod {
    /// What was billed for each pod since then. A key that may not see the bill tells none.
    pub(super) async fn charged(
        &self,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Option<Charges>, Fault> {
        let mut call = Call::get("/v2/billing/pods", REQUESTS);
        call.query = vec![
            ("startTime", since.to_string()),
            ("bucketSize", "hour".to_owned()),
        ];
        let answer = match soon(self.api.read(call)).await {
            Ok(answer) => answer,
            Err(fault) if fault.status == Some(403) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        Ok(Some(charges(wire::rows(&answer.body, "records")?, now)))
    }
}

/// A bill that comes in time.
async fn soon(bill: impl Future<Output = Result<Answer, Fault>>) -> Result<Answer, Fault> {
    let bill = tokio::time::timeout(BILL_WITHIN, bill).await;
    bill.unwrap_or_else(|_| Err(Fault::late("its bill", BILL_WITHIN)))
}

fn charges(records: &[Value], now: Timestamp) -> Charges {
    let mut charges = Charges::default();
    for mut row in records.iter().filter_map(charge) {
        if row.to > now {
            row.to = now;
            charges.lacks = Some(UNFINISHED.to_owned());
        }
        charges.add(row);
    }
    charges
}

fn charge(record: &Value) -> Option<Charged> {
    let text = |field: &str| record.get(field).and_then(Value::as_str);
    let amount = number(record, "totalAmount")?;
    Some(Charged {
        machine: text("podId")?.parse().ok()?,
        amount: money(amount).unwrap_or(MicroDollars::ZERO),
        traffic: MicroDollars::ZERO,
        to: text("endTime")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_bill_that_does_not_come_is_not_waited_for() {
        let fault = soon(std::future::pending()).await.expect_err("no bill");
        assert_eq!(fault.cause.message, "its bill took longer than 10 s");
        assert_eq!(fault.cause.hint, None, "no newer version mends that");
    }

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

    #[test]
    fn an_hour_that_is_not_over_is_billed_up_to_now_at_most_and_may_lack_some() {
        let record = |end: &str| json!({ "podId": "p1", "totalAmount": 0.5, "endTime": end });
        let records = [
            record("2026-01-02T12:00:00Z"),
            record("2026-01-02T13:00:00Z"),
        ];
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let noon = at("2026-01-02T12:20:00Z");
        let running = charges(&records, noon);
        assert_eq!(running.machines.len(), 1);
        assert_eq!(running.machines[0].amount, MicroDollars(1_000_000));
        assert_eq!(running.machines[0].to, noon, "and not the end of the hour");
        assert_eq!(running.lacks.as_deref(), Some(UNFINISHED));
        let over = charges(&records, at("2026-01-02T15:00:00Z"));
        assert_eq!(over.machines[0].to, at("2026-01-02T13:00:00Z"));
        assert_eq!(over.lacks, None);
    }
}
