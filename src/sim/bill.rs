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
    running_ms: u64,
    there_ms: u64,
    /// What it ran at other prices, in micro-dollars an hour times milliseconds, and for how long.
    before: (u128, u64),
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
            running_ms: 0,
            there_ms: 0,
            before: (0, 0),
        }
    }

    /// An hour of running costs this from here on.
    pub(super) fn turn(&mut self, running_per_hour: MicroDollars) {
        self.before = (self.running(), self.running_ms);
        self.running_per_hour = running_per_hour;
    }

    fn running(&self) -> u128 {
        let (sum, until) = self.before;
        let since = self.running_ms.saturating_sub(until);
        sum + u128::from(self.running_per_hour.0) * u128::from(since)
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
        MicroDollars(u64::try_from(sum).unwrap_or(u64::MAX))
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
    }
}
