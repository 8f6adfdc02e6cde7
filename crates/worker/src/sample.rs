//! Scores → one token.
//!
//! What always holds: the token is a function of the scores, the sampling and the number of tokens picked before. At
//! temperature 0 it is the likeliest, the lowest number among equals. No state is kept between tokens, so a request can
//! be taken up again anywhere.

use stageline_core::stage_protocol::Sampling;

/// Candidates that are sorted at first; more only if they do not reach `top_p` together.
const CANDIDATES: usize = 256;

/// Picks a token, `index` counting those picked before. `None` if no score is a number.
pub fn pick(scores: &[f32], sampling: &Sampling, index: u64) -> Option<u32> {
    let best = likeliest(scores)?;
    if sampling.temperature == 0.0 {
        return u32::try_from(best).ok();
    }
    let weight =
        |score: f32| ((f64::from(score) - f64::from(scores[best])) / sampling.temperature).exp();
    let mut candidates: Vec<(usize, f64)> = scores
        .iter()
        .enumerate()
        .filter(|(_, score)| !score.is_nan())
        .map(|(token, score)| (token, weight(*score)))
        .collect();
    let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    let wanted = sampling.top_p * total;
    if sampling.top_p < 1.0 {
        keep_likeliest(&mut candidates, wanted);
    }
    let kept: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    let mut remaining = fraction(sampling.seed, index) * kept;
    for (token, weight) in &candidates {
        remaining -= weight;
        if remaining < 0.0 {
            return u32::try_from(*token).ok();
        }
    }
    u32::try_from(best).ok()
}

fn likeliest(scores: &[f32]) -> Option<usize> {
    let numbers = scores
        .iter()
        .enumerate()
        .filter(|(_, score)| !score.is_nan());
    let best = numbers.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.filter(|(_, score)| score.is_finite())
        .map(|(token, _)| token)
}

/// Keeps the fewest, likeliest candidates that reach `wanted` together.
fn keep_likeliest(candidates: &mut Vec<(usize, f64)>, wanted: f64) {
    let order = |a: &(usize, f64), b: &(usize, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let reach = |sorted: &[(usize, f64)]| {
        let mut sum = 0.0;
        sorted.iter().position(|(_, weight)| {
            sum += weight;
            sum >= wanted
        })
    };
    if candidates.len() > CANDIDATES {
        candidates.select_nth_unstable_by(CANDIDATES - 1, order);
        candidates[..CANDIDATES].sort_unstable_by(order);
        if let Some(last) = reach(&candidates[..CANDIDATES]) {
            candidates.truncate(last + 1);
            return;
        }
    }
    candidates.sort_unstable_by(order);
    if let Some(last) = reach(candidates) {
        candidates.truncate(last + 1);
    }
}

/// A number from 0 (included) to 1 (excluded) for each seed and index: SplitMix64, which is made to be jumped into.
fn fraction(seed: u64, index: u64) -> f64 {
    let mut bits = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    // The upper 53 bits are what an f64 can hold.
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f64, top_p: f64, seed: u64) -> Sampling {
        Sampling {
            temperature,
            top_p,
            seed,
            ..Sampling::default()
        }
    }

    #[test]
    fn temperature_0_takes_the_likeliest_and_first() {
        assert_eq!(
            pick(&[0.0, 3.0, f32::NAN, 3.0, -1.0], &sampling(0.0, 1.0, 1), 0),
            Some(1)
        );
        assert_eq!(pick(&[f32::NAN, f32::NAN], &sampling(0.0, 1.0, 1), 0), None);
        assert_eq!(pick(&[], &sampling(1.0, 1.0, 1), 0), None);
    }

    #[test]
    fn frequencies_follow_the_scores() {
        // Probabilities 1/2, 1/4, 1/8, 1/8.
        let scores = [0.5_f32.ln(), 0.25_f32.ln(), 0.125_f32.ln(), 0.125_f32.ln()];
        let count = |top_p: f64| {
            let mut counts = [0_u32; 4];
            for index in 0..10_000 {
                counts
                    [pick(&scores, &sampling(1.0, top_p, 7), index).expect("numbers") as usize] +=
                    1;
            }
            counts
        };
        let all = count(1.0);
        for (seen, expected) in all.iter().zip([5000, 2500, 1250, 1250]) {
            assert!(seen.abs_diff(expected) < 200, "{all:?}");
        }
        let some = count(0.7);
        assert!(
            some[0].abs_diff(6667) < 200 && some[2] == 0 && some[3] == 0,
            "{some:?}"
        );
    }

    #[test]
    fn a_seed_repeats_itself_and_another_does_not() {
        let scores: Vec<f32> = (0..1000_u16).map(|i| f32::from(i % 17)).collect();
        let run = |seed| -> Vec<_> {
            (0..32)
                .map(|i| pick(&scores, &sampling(1.5, 0.95, seed), i))
                .collect()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn few_candidates_are_found_without_sorting_all() {
        let mut few: Vec<(usize, f64)> = (0..2000)
            .map(|i| (i, if i % 1000 == 999 { 1.0 } else { 1e-9 }))
            .collect();
        keep_likeliest(&mut few, 1.5);
        assert_eq!(few, [(999, 1.0), (1999, 1.0)]);
        let mut many: Vec<(usize, f64)> = (0..2000).map(|i| (i, 1.0)).collect();
        keep_likeliest(&mut many, 1000.0);
        assert_eq!((many.len(), many[999]), (1000, (999, 1.0)));
    }
}
