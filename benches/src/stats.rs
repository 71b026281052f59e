//! Order statistics over small sets of samples.
//!
//! Everything the bench reports is a quantile: on a shared machine the mean is ruled by the few rounds
//! that were disturbed. Callers: `report` (over rounds) and the scenarios (over single latencies).

/// The middle half of a set of values.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Quartiles {
    /// A quarter of the values lie below.
    pub(crate) low: f64,
    /// Half of the values lie below.
    pub(crate) median: f64,
    /// Three quarters of the values lie below.
    pub(crate) high: f64,
}

impl Quartiles {
    /// Quartiles of `values`; `None` when there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            low: quantile(&sorted, 0.25)?,
            median: quantile(&sorted, 0.5)?,
            high: quantile(&sorted, 0.75)?,
        })
    }
}

/// The value below which the share `q` of `sorted` lies, interpolated between neighbours.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    let share = position - position.floor();
    Some(sorted[below] * (1.0 - share) + sorted[above] * share)
}

/// Sorts `nanoseconds` and returns the given quantile in microseconds; `None` when empty.
pub(crate) fn quantile_us(nanoseconds: &mut [u64], q: f64) -> Option<f64> {
    nanoseconds.sort_unstable();
    let last = nanoseconds.len().checked_sub(1)?;
    let at = (q.clamp(0.0, 1.0) * last as f64).round() as usize;
    Some(nanoseconds[at] as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate_between_neighbours() {
        let quartiles = Quartiles::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(
            quartiles,
            Quartiles {
                low: 1.75,
                median: 2.5,
                high: 3.25
            }
        );
    }

    #[test]
    fn one_value_is_all_its_quartiles() {
        assert_eq!(
            Quartiles::of(&[7.0]),
            Some(Quartiles {
                low: 7.0,
                median: 7.0,
                high: 7.0
            })
        );
        assert_eq!(Quartiles::of(&[]), None);
    }

    #[test]
    fn latencies_are_given_in_microseconds() {
        let mut latencies: Vec<u64> = (1..=101).rev().map(|us| us * 1_000).collect();
        assert_eq!(quantile_us(&mut latencies, 0.5), Some(51.0));
        assert_eq!(quantile_us(&mut latencies, 0.99), Some(100.0));
        assert_eq!(quantile_us(&mut [], 0.5), None);
    }
}
