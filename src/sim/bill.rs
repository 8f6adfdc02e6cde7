//! What a machine has cost, exactly: rates are whole micro-dollars, times are milliseconds, and only the sum is rounded.

use stageline_core::unit::MicroDollars;

/// Milliseconds of an hour.
const HOUR: u128 = 3_600_000;

/// Hours of a month, as disk is priced by.
const MONTH: u128 = 720;

/// Counts what a machine costs.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// For an hour of running.
    pub running_per_hour: MicroDollars,
    /// Disk in GiB.
    pub disk_gib: u64,
    /// For a GiB and a month, whether it runs or not.
    pub disk_month: MicroDollars,
    /// Of its traffic in all, once it runs.
    pub traffic: MicroDollars,
    running_ms: u64,
    there_ms: u64,
    /// What an hour cost before, up to how much of its running: each bucket of a bill is counted from the beginning again.
    before: Vec<(u64, MicroDollars)>,
}

impl Meter {
    pub(super) fn new(
        running_per_hour: MicroDollars,
        disk_gib: u64,
        disk_month: MicroDollars,
    ) -> Self {
        Self {
            running_per_hour,
            disk_gib,
            disk_month,
            traffic: MicroDollars::ZERO,
            running_ms: 0,
            there_ms: 0,
            before: Vec::new(),
        }
    }

    /// An hour of running costs this from here on.
    pub(super) fn turn(&mut self, running_per_hour: MicroDollars) {
        self.before.push((self.running_ms, self.running_per_hour));
        self.running_per_hour = running_per_hour;
    }

    /// What its running has cost, in micro-dollars an hour times milliseconds.
    fn running(&self) -> u128 {
        let now = (u64::MAX, self.running_per_hour);
        let (mut sum, mut from) = (0, 0);
        for (until, price) in self.before.iter().copied().chain([now]) {
            let until = until.min(self.running_ms);
            sum += u128::from(price.0) * u128::from(until.saturating_sub(from));
            from = until;
        }
        sum
    }

    /// For how long it ran, and was there, in all.
    pub(super) fn set(&mut self, running_ms: u64, there_ms: u64) {
        self.running_ms = running_ms;
        self.there_ms = there_ms;
    }

    /// The sum so far.
    pub fn total(&self) -> MicroDollars {
        let running = self.running() * MONTH;
        let disk =
            u128::from(self.disk_month.0) * u128::from(self.disk_gib) * u128::from(self.there_ms);
        let sum = (running + disk + HOUR * MONTH / 2) / (HOUR * MONTH);
        let sum = MicroDollars(u64::try_from(sum).unwrap_or(u64::MAX));
        sum.saturating_add(self.traffic_so_far())
    }

    fn traffic_so_far(&self) -> MicroDollars {
        match self.running_ms {
            0 => MicroDollars::ZERO,
            _ => self.traffic,
        }
    }

    /// The same by what it was for: running, disk, traffic.
    pub fn parts(&self) -> [MicroDollars; 3] {
        let running = (self.running() + HOUR / 2) / HOUR;
        let running = u64::try_from(running).unwrap_or(u64::MAX);
        let traffic = self.traffic_so_far();
        let rest = self.total().0.saturating_sub(traffic.0);
        let running = running.min(rest);
        [MicroDollars(running), MicroDollars(rest - running), traffic]
    }

    /// What an hour of it costs, all in, rounded up.
    pub fn per_hour(&self) -> MicroDollars {
        let disk = u128::from(self.disk_month.0) * u128::from(self.disk_gib);
        let disk = u64::try_from(disk.div_ceil(MONTH)).unwrap_or(u64::MAX);
        self.running_per_hour.saturating_add(MicroDollars(disk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_is_exact() {
        let mut meter = Meter::new(MicroDollars(400_000), 40, MicroDollars(150_000));
        meter.set(3_600_000, 5_400_000);
        // An hour of 0.40, and 1.5 hours of 40 GiB at 0.15 a month.
        assert_eq!(meter.total(), MicroDollars(412_500));
        assert_eq!(meter.per_hour(), MicroDollars(408_334));
        // Half an hour more at the double price.
        meter.turn(MicroDollars(800_000));
        meter.set(5_400_000, 5_400_000);
        assert_eq!(meter.total(), MicroDollars(812_500));
        assert_eq!(meter.per_hour(), MicroDollars(808_334));
        // Traffic is beside both.
        meter.traffic = MicroDollars(250_000);
        assert_eq!(meter.total(), MicroDollars(1_062_500));
        assert_eq!(meter.parts(), [800_000, 12_500, 250_000].map(MicroDollars));
        meter.traffic = MicroDollars::ZERO;
        // What it had cost before is told by the price of then.
        for (running, there, total) in [
            (1_800_000, 2_700_000, 206_250),
            (3_600_000, 5_400_000, 412_500),
        ] {
            meter.set(running, there);
            assert_eq!(meter.total(), MicroDollars(total));
        }
    }
}
