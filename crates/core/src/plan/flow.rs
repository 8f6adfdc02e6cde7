//! The cheapest way to serve classes of leases out of a stock: a min-cost flow by successive shortest paths.
//!
//! A path starts at a class that lacks machines, may take an item from a class that holds it and goes on there, and
//! ends at an item of which some are left. Classes are few and items many, so a path is searched over classes alone; the
//! cheapest item that one class can take from another is kept in a heap for each pair. Whole numbers, no dice: among paths
//! of equal cost the one that is found first in the order of classes and items wins. As many leases as possible are
//! served, and those at the least total cost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Leases that can take the same items at the same costs.
#[derive(Clone, Debug)]
pub(super) struct Wanting {
    /// How many there are.
    pub(super) count: u32,
    /// What each of them can take, by item, with what it costs. Cheapest first.
    pub(super) takes: Vec<(usize, u64)>,
}

/// How many of each item each class gets.
pub(super) type Given = Vec<BTreeMap<usize, u32>>;

/// What is moved from one class to another: the difference in cost, then the item.
type Moves = BinaryHeap<Reverse<(i128, usize)>>;

struct Flow<'a> {
    classes: &'a [Wanting],
    /// Of each item, how many nobody has.
    left: Vec<u32>,
    /// Of each class, how many it lacks.
    lacks: Vec<u32>,
    given: Given,
    /// Of each class, the first of its items of which some may be left. Items that are taken never become free.
    next: Vec<usize>,
    /// What each item costs each class that can take it.
    costs: BTreeMap<usize, Vec<(usize, u64)>>,
    /// `moves[a][b]`: items of `b` that `a` could have instead. Those that `b` no longer has are dropped when they come up.
    moves: Vec<Vec<Moves>>,
}

/// Where the shortest path to a class comes from, and what it costs so far.
#[derive(Clone, Copy, Debug)]
struct Way {
    cost: i128,
    /// The class before, and the item that is taken from this class on the way.
    from: Option<(usize, usize)>,
}

/// Serves as many as possible at the least total cost. `stock` says how many there are of each item.
pub(super) fn cheapest(classes: &[Wanting], stock: &[u32]) -> Given {
    let mut costs: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
    for (class, wanting) in classes.iter().enumerate() {
        for (item, cost) in &wanting.takes {
            costs.entry(*item).or_default().push((class, *cost));
        }
    }
    let mut flow = Flow {
        classes,
        left: stock.to_vec(),
        lacks: classes.iter().map(|wanting| wanting.count).collect(),
        given: vec![BTreeMap::new(); classes.len()],
        next: vec![0; classes.len()],
        costs,
        moves: vec![vec![Moves::new(); classes.len()]; classes.len()],
    };
    while flow.augment() {}
    flow.given
}

impl Flow<'_> {
    /// One more path; false when nobody who lacks can be served any more.
    fn augment(&mut self) -> bool {
        let ways = self.ways();
        let mut best: Option<(i128, usize)> = None;
        for (class, way) in ways.iter().enumerate() {
            let (Some(way), Some((_, cost))) = (way, self.free(class)) else {
                continue;
            };
            let cost = way.cost + i128::from(cost);
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, class));
            }
        }
        let Some((_, end)) = best else { return false };
        self.follow(&ways, end);
        true
    }

    /// The cheapest item that is left for a class.
    fn free(&mut self, class: usize) -> Option<(usize, u64)> {
        let takes = &self.classes[class].takes;
        while let Some((item, cost)) = takes.get(self.next[class]) {
            if self.left[*item] > 0 {
                return Some((*item, *cost));
            }
            self.next[class] += 1;
        }
        None
    }

    /// The cheapest item that one class can take from another.
    fn movable(&mut self, to: usize, from: usize) -> Option<(i128, usize)> {
        let moves = &mut self.moves[to][from];
        while let Some(Reverse((cost, item))) = moves.peek() {
            if self.given[from].contains_key(item) {
                return Some((*cost, *item));
            }
            moves.pop();
        }
        None
    }

    /// The cheapest way to every class from those that lack: rounds over all pairs until nothing gets cheaper.
    fn ways(&mut self) -> Vec<Option<Way>> {
        let count = self.classes.len();
        let mut ways: Vec<Option<Way>> = self
            .lacks
            .iter()
            .map(|lacks| {
                (*lacks > 0).then_some(Way {
                    cost: 0,
                    from: None,
                })
            })
            .collect();
        for _ in 0..count {
            let mut changed = false;
            for taker in 0..count {
                let Some(way) = ways[taker] else { continue };
                for (holder, known) in ways.iter_mut().enumerate() {
                    if taker == holder {
                        continue;
                    }
                    let Some((cost, item)) = self.movable(taker, holder) else {
                        continue;
                    };
                    let cost = way.cost + cost;
                    if known.is_none_or(|known| cost < known.cost) {
                        let from = Some((taker, item));
                        *known = Some(Way { cost, from });
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        ways
    }

    /// Gives as many as fit along the path that ends with what is free for this class.
    fn follow(&mut self, ways: &[Option<Way>], end: usize) {
        let mut path = Vec::new();
        let mut class = end;
        while let Some((taker, item)) = ways[class].and_then(|way| way.from) {
            path.push((taker, class, item));
            class = taker;
        }
        let (item, _) = self.free(end).expect("the path ends with something free");
        let held = path
            .iter()
            .map(|(_, holder, item)| self.given[*holder][item]);
        let amount = held.fold(self.left[item].min(self.lacks[class]), u32::min);
        self.left[item] -= amount;
        self.lacks[class] -= amount;
        self.give(end, item, amount);
        for (taker, holder, item) in path {
            let has = self.given[holder].entry(item).or_default();
            *has -= amount;
            if *has == 0 {
                self.given[holder].remove(&item);
            }
            self.give(taker, item, amount);
        }
    }

    fn give(&mut self, class: usize, item: usize, amount: u32) {
        let has = self.given[class].entry(item).or_default();
        *has += amount;
        if *has > amount {
            return;
        }
        let costs = &self.costs[&item];
        let own = costs.iter().find(|(holder, _)| *holder == class);
        let own = own.map_or(0, |(_, cost)| i128::from(*cost));
        for (taker, cost) in costs.iter().filter(|(taker, _)| *taker != class) {
            let more = i128::from(*cost) - own;
            self.moves[*taker][class].push(Reverse((more, item)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small numbers that look like dice and are the same each time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    fn case(dice: &mut Dice) -> (Vec<Wanting>, Vec<u32>) {
        let small = |n: u64| u32::try_from(n).expect("small");
        let items = usize::try_from(1 + dice.below(5)).expect("small");
        let stock = (0..items).map(|_| small(dice.below(3))).collect();
        let classes = (0..1 + dice.below(3))
            .map(|_| {
                let mut takes: Vec<(usize, u64)> = (0..items)
                    .filter(|_| dice.below(3) > 0)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(|item| (item, dice.below(6)))
                    .collect();
                takes.sort_by_key(|(item, cost)| (*cost, *item));
                let count = small(1 + dice.below(2));
                Wanting { count, takes }
            })
            .collect();
        (classes, stock)
    }

    /// Every way to serve the leases one by one: how many are not served at least, and the least that the others cost.
    fn brute(leases: &[&Wanting], stock: &mut [u32]) -> (u32, u64) {
        let Some((first, rest)) = leases.split_first() else {
            return (0, 0);
        };
        let (unserved, cost) = brute(rest, stock);
        let mut best = (unserved + 1, cost);
        for (item, price) in &first.takes {
            if stock[*item] > 0 {
                stock[*item] -= 1;
                let (unserved, cost) = brute(rest, stock);
                best = best.min((unserved, cost + price));
                stock[*item] += 1;
            }
        }
        best
    }

    #[test]
    fn as_many_as_possible_are_served_at_the_least_total_cost() {
        let mut dice = Dice(0x5eed);
        for round in 0..3000 {
            let (classes, stock) = case(&mut dice);
            let given = cheapest(&classes, &stock);
            let leases: Vec<&Wanting> = classes
                .iter()
                .flat_map(|class| std::iter::repeat_n(class, class.count as usize))
                .collect();
            let (unserved, cost) = brute(&leases, &mut stock.clone());
            let mut found = (0, 0);
            let mut used = vec![0; stock.len()];
            for (class, given) in classes.iter().zip(&given) {
                found.0 += class.count - given.values().sum::<u32>();
                for (item, count) in given {
                    let price = class.takes.iter().find(|(other, _)| other == item);
                    found.1 += price.expect("it can take that").1 * u64::from(*count);
                    used[*item] += count;
                }
            }
            assert_eq!(
                found,
                (unserved, cost),
                "round {round}: {classes:?} {stock:?}"
            );
            assert!(
                used.iter().zip(&stock).all(|(used, stock)| used <= stock),
                "round {round}"
            );
        }
    }
}
