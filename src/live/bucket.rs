//! How often something may be done: so many times at once, and then at a steady rate.

use std::time::Instant;

#[derive(Debug)]
pub struct Bucket {
    burst: f64,
    /// For each second.
    rate: f64,
    left: f64,
    at: Option<Instant>,
}

impl Bucket {
    pub fn new(burst: f64, rate: f64) -> Self {
        Self {
            burst,
            rate,
            left: burst,
            at: None,
        }
    }

    /// Whether it may be done now; then it counts.
    pub fn take(&mut self, now: Instant) -> bool {
        let since = self.at.map(|at| now.saturating_duration_since(at));
        let more = since.map_or(0.0, |since| since.as_secs_f64() * self.rate);
        self.at = Some(now);
        self.left = (self.left + more).min(self.burst);
        let some = self.left >= 1.0;
        if some {
            self.left -= 1.0;
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_and_then_a_rate() {
        let mut bucket = Bucket::new(1000.0, 1.0);
        let start = Instant::now();
        let taken = |bucket: &mut Bucket, at: u64| {
            let now = start + Duration::from_secs(at);
            (0..2000).filter(|_| bucket.take(now)).count()
        };
        assert_eq!(taken(&mut bucket, 0), 1000);
        assert_eq!(taken(&mut bucket, 10), 10);
        assert_eq!(taken(&mut bucket, 100_000), 1000);
    }
}
