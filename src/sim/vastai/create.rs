//! The create, and all that can go wrong with it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stageline_core::unit::MicroDollars;

use super::super::access::Access;
use super::super::boot::OWN_KEY;
use super::super::machine::Offer;
use super::super::registry;
use super::super::serve::{Reply, Way};
use super::super::world::{Wish, World};
use super::{hurt, no, volumes, yes};

/// The smallest disk, and what is taken when none is asked for.
const DISK: (u64, u64) = (8, 10);

pub(super) fn create(world: &World, account: &str, id: &str, body: &Value) -> Reply {
    let fires = |knob: &str| world.faults.fires(knob);
    let refusals = [
        ("quota", 400, "quota_exceeded", "instance quota reached"),
        ("money", 400, "missing_billing", "Insufficient credit"),
        ("capacity", 400, "no_capacity", "machine not available"),
        ("bad-request", 400, "invalid_args", "Invalid args"),
    ];
    for (knob, status, error, words) in refusals {
        if fires(knob).is_some() {
            return no(status, error, words);
        }
    }
    if let Some(fault) = fires("price-rises") {
        world.lock().price_factor *= fault.factor.unwrap_or(1.1);
    }
    if body
        .get("image")
        .and_then(Value::as_str)
        .is_none_or(str::is_empty)
    {
        return no(400, "invalid_args", "Invalid args: 'image' is required");
    }
    let bid = match bid(body) {
        Ok(bid) => bid,
        Err(reply) => return reply,
    };
    let asked = id.parse().ok();
    let asked = asked.and_then(|id: u64| world.lock().offers.get(&id).cloned());
    if let Some(offer) = &asked {
        world.snatch(offer, &wish(account, body));
    }
    let offer = id.parse().ok().and_then(|id| {
        let inner = world.lock();
        let factor = inner.price_factor;
        let offer = inner.offers.get(&id).filter(|offer| !offer.taken)?;
        let price = offer.price_now(factor);
        let least = offer.least_bid(factor);
        let offer = Offer {
            price: bid.unwrap_or(price),
            ..offer.clone()
        };
        Some((offer, bid.is_some_and(|bid| bid < least)))
    });
    let (offer, too_low) = match offer {
        Some(found) if fires("offer-gone").is_none() => found,
        Some((offer, _)) => {
            if let Some(offer) = world.lock().offers.get_mut(&offer.id) {
                offer.taken = true;
            }
            return no(410, "no_such_ask", "Instance type by id is not available");
        }
        None => return no(404, "invalid_args", &format!("no_such_ask {id}")),
    };
    let mounts = match volumes::of(world, account, &offer, body) {
        Ok(mounts) => mounts,
        Err(reply) => return reply,
    };
    let wish = Wish {
        bid,
        mounts,
        ..wish(account, body)
    };
    if too_low {
        return outbid(world, offer, wish, body);
    }
    made(world, offer, wish)
}

/// What is bid; none is on demand.
pub(super) fn bid(body: &Value) -> Result<Option<MicroDollars>, Reply> {
    let price = match body.get("price") {
        None | Some(Value::Null) => return Ok(None),
        Some(price) => price
            .as_f64()
            .filter(|price| (0.001..=128.0).contains(price)),
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is small and positive"
    )]
    match price {
        Some(price) => Ok(Some(MicroDollars((price * 1e6).round() as u64))),
        None => Err(no(400, "invalid_price", "Invalid price")),
    }
}

/// A bid is too low to begin with: a create that may be cancelled is, and else a stopped instance is there.
fn outbid(world: &World, offer: Offer, wish: Wish, body: &Value) -> Reply {
    let cancels = body.get("cancel_unavail").and_then(Value::as_bool) == Some(true);
    let stays = world.faults.fires("bid-stays");
    if cancels && stays.is_none() {
        return no(410, "no_such_ask", "bid is below the current minimum");
    }
    let stopped = Wish {
        stopped: true,
        ..wish
    };
    let id = world.make(offer, stopped);
    if stays.is_some_and(|fault| fault.says("yes")) {
        return yes(
            &json!({ "success": true, "new_contract": id, "instance_api_key": format!("{OWN_KEY}{id}") }),
        );
    }
    let words = "bid is below the current minimum";
    yes(&json!({ "success": false, "error": "bid_too_low", "msg": words, "new_contract": id }))
}

fn wish(account: &str, body: &Value) -> Wish {
    let text = |field: &str| {
        body.get(field)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let disk = body.get("disk").and_then(Value::as_f64).unwrap_or(0.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float saturates"
    )]
    let disk = disk.ceil() as u64;
    let env = body.get("env").and_then(Value::as_object);
    let pairs = env.into_iter().flatten();
    let env: BTreeMap<String, String> = pairs
        .map(|(name, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            (name.clone(), text)
        })
        .collect();
    let lets_in = text("runtype").starts_with("ssh");
    Wish {
        access: lets_in.then(|| Access::of("root", 0, std::iter::empty())),
        account: account.to_owned(),
        label: text("label"),
        image: text("image"),
        disk_gib: if disk == 0 { DISK.1 } else { disk.max(DISK.0) },
        env,
        onstart: text("onstart"),
        denied: !registry::may_pull_by(&text("image"), &text("image_login")),
        stopped: body.get("target_state").and_then(Value::as_str) == Some("stopped"),
        ..Wish::default()
    }
}

/// Makes it, or not, and says so, or not.
fn made(world: &World, offer: Offer, wish: Wish) -> Reply {
    let fires = |knob: &str| world.faults.fires(knob);
    let oops = || Reply::json(500, &json!({ "success": false, "msg": "internal error" }));
    if fires("create-500-no-commit").is_some() {
        return oops();
    }
    if let Some(fault) = fires("create-late-commit") {
        let at = world.clock.now() + fault.millis(120);
        world.lock().late.push((at, offer, wish));
        return oops();
    }
    if fires("create-200-false-with-id").is_some() {
        let id = world.make(
            offer,
            Wish {
                stopped: true,
                ..wish
            },
        );
        let words = "bid is below the current minimum";
        return yes(
            &json!({ "success": false, "error": "bid_too_low", "msg": words, "new_contract": id }),
        );
    }
    if let Some(fault) = fires("create-wrong-count") {
        let first = world.make(offer.clone(), wish.clone());
        if fault.says("none") {
            return yes(&json!({ "success": true }));
        }
        let second = world.make(offer, wish);
        return yes(&json!({ "success": true, "new_contract": [first, second] }));
    }
    let id = world.make(offer, wish);
    let reply = yes(
        &json!({ "success": true, "new_contract": id, "instance_api_key": format!("{OWN_KEY}{id}") }),
    );
    if fires("create-500-after-commit").is_some() {
        return oops();
    }
    if fires("create-timeout-after-commit").is_some() {
        return hurt(reply, Way::Never);
    }
    if fires("create-cut").is_some() {
        return hurt(reply, Way::Cut);
    }
    reply
}
