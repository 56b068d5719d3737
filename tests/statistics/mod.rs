//! Whether numbers look like what a law says. Seeds are fixed, and thresholds are four and a half standard deviations.

/// A count as a number to reckon with.
pub(crate) fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).expect("a small sample"))
}

/// The correlation of pairs, from −1 to 1.
pub(crate) fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let n = count(pairs.len());
    let (x, y) = pairs.iter().fold((0.0, 0.0), |(x, y), pair| (x + pair.0 / n, y + pair.1 / n));
    let mut moments = (0.0, 0.0, 0.0);
    for (a, b) in pairs.iter().map(|pair| (pair.0 - x, pair.1 - y)) {
        moments = (moments.0 + a * a, moments.1 + b * b, moments.2 + a * b);
    }
    moments.2 / (moments.0 * moments.1).sqrt()
}

/// How far the correlation of so many independent pairs is from zero at most: its standard deviation is 1/√n.
pub(crate) fn chance(pairs: usize) -> f64 {
    4.5 / count(pairs).sqrt()
}

/// Each of those who came as 0, 1, 2, … was served once, in an order that does not tell when they came.
pub(crate) fn assert_shuffled(served: &[usize]) {
    let mut each = served.to_vec();
    each.sort_unstable();
    each.dedup();
    assert_eq!(each.len(), served.len(), "each once: {served:?}");
    let by_arrival: Vec<_> = served.iter().enumerate().map(|(place, who)| (count(place), count(*who))).collect();
    let neighbours: Vec<_> = served.windows(2).map(|pair| (count(pair[0]), count(pair[1]))).collect();
    for pairs in [by_arrival, neighbours] {
        let found = correlation(&pairs);
        assert!(found.abs() < chance(pairs.len()), "correlation {found} in {served:?}");
    }
    // One pair is expected in a random order, whatever its length.
    let in_turn = served.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    assert!(in_turn < 8, "{in_turn} followed who came before them: {served:?}");
}
