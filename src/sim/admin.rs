//! What the simulator tells beside the provider's API, below `/_sim`: the bill, the machines, the clock, the faults.

use axum::http::Method;
use serde_json::{Value, json};

use super::fault::{self, Fault};
use super::serve::{Reply, Request};
use super::world::World;

pub(super) fn answer(world: &World, request: &Request) -> Reply {
    let post = request.method == Method::POST;
    match (post, request.path.as_str()) {
        (false, "/_sim/bill") => Reply::json(200, &bill(world)),
        (false, "/_sim/machines") => Reply::json(200, &machines(world)),
        (false, "/_sim/requests") => {
            let inner = world.lock();
            Reply::json(
                200,
                &json!({ "requests": inner.requests, "too_soon": inner.too_soon }),
            )
        }
        (false, "/_sim/faults") => Reply::json(200, &json!(world.faults.counts())),
        (true, "/_sim/faults") => faults(world, &request.body),
        (false, "/_sim/clock") => Reply::json(200, &clock(world)),
        (true, "/_sim/clock") => {
            let seconds = request.body["advance_seconds"].as_u64().unwrap_or(0);
            world.clock.advance(seconds.saturating_mul(1000));
            Reply::json(200, &clock(world))
        }
        (true, "/_sim/prices") => {
            world.lock().price_factor = request.body["factor"].as_f64().unwrap_or(1.0);
            Reply::json(200, &json!({}))
        }
        (_, path) => {
            let known = "GET bill, machines, requests; GET and POST faults, clock; POST prices";
            Reply::json(
                404,
                &json!({ "error": format!("there is no {path}"), "there_is": known }),
            )
        }
    }
}

fn clock(world: &World) -> Value {
    json!({ "milliseconds": world.clock.now(), "speed": world.clock.speed() })
}

fn faults(world: &World, body: &Value) -> Reply {
    let table: Result<Vec<Fault>, String> =
        serde_json::from_value(body.clone()).map_err(|error| error.to_string());
    let fitting = table.and_then(|table| fault::fits(&table, world.kind).map(|()| table));
    match fitting.and_then(|table| world.faults.replace(table)) {
        Ok(()) => Reply::json(200, &json!({})),
        Err(error) => Reply::json(400, &json!({ "error": error })),
    }
}

fn bill(world: &World) -> Value {
    let total = world.bill();
    json!({ "micro_dollars": total.0, "dollars": total.to_string(), "machines": machines(world) })
}

/// Those that are there, and those that were.
fn machines(world: &World) -> Value {
    let now = world.clock.now();
    let mut inner = world.lock();
    let rows = inner.machines.values_mut().map(|machine| {
        machine.count(now);
        json!({
            "id": world.kind.id(machine.id),
            "label": machine.label,
            "account": machine.account.len(),
            "there": machine.is_there(now),
            "stand": format!("{:?}", machine.stand(now)),
            "per_hour_micro_dollars": machine.meter.per_hour().0,
            "micro_dollars": machine.meter.total().0,
            "agent": machine.agent.is_some(),
        })
    });
    Value::Array(rows.collect())
}
