//! A line of members in which everybody's place is known at once.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use rand::Rng;

/// Members one behind the other, each with something of its own.
///
/// An outage asks every waiter for its place again and again, so none of that may depend on how many wait:
///
/// | operation | steps, with n in the line |
/// |---|---|
/// | `rank`, `get_mut`, `push`, `first`, `rotate`, `remove` of the first | constant |
/// | `iter_mut` | one for each that is looked at, and at most [`MOST_GAPS`] more |
/// | `remove` of another | n ÷ [`MOST_GAPS`] on average |
/// | `swap_first` | constant, n where somebody has left since the last time |
/// | `shuffle`, `drain` | n |
///
/// Whoever leaves from the middle leaves a gap; when there are [`MOST_GAPS`] of them the others close up.
#[derive(Debug)]
pub(super) struct Line<T> {
    /// `None` is a gap. The first place is never one.
    places: VecDeque<Option<(u64, T)>>,
    /// Which number the first place has; the others count on from it.
    first: u64,
    /// The numbers of the gaps, in order.
    gaps: Vec<u64>,
    /// The number of everybody's place.
    numbers: HashMap<u64, u64, BuildHasherDefault<Scatter>>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), first: 0, gaps: Vec::new(), numbers: HashMap::default() }
    }
}

impl<T> Line<T> {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.gaps.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.places.front()?.as_ref().map(|(id, _)| *id)
    }

    /// How many stand before it.
    pub(super) fn rank(&self, id: u64) -> Option<usize> {
        let number = *self.numbers.get(&id)?;
        Some(self.place(number) - self.gaps.partition_point(|gap| *gap < number))
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let place = self.place(*self.numbers.get(&id)?);
        self.places.get_mut(place)?.as_mut().map(|(_, own)| own)
    }

    /// From the first on.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (u64, T)> {
        self.places.iter_mut().flatten()
    }

    /// Lets one that is not in the line stand behind all others; gives its rank.
    pub(super) fn push(&mut self, id: u64, own: T) -> usize {
        self.numbers.insert(id, self.first + self.places.len() as u64);
        self.places.push_back(Some((id, own)));
        self.len() - 1
    }

    /// Takes one out, and tells its rank.
    pub(super) fn remove(&mut self, id: u64) -> Option<usize> {
        let rank = self.rank(id)?;
        let number = self.numbers.remove(&id)?;
        if rank == 0 {
            self.pop();
            return Some(rank);
        }
        let place = self.place(number);
        if let Some(left) = self.places.get_mut(place) {
            *left = None;
            self.gaps.insert(place - rank, number);
        }
        if self.gaps.len() >= MOST_GAPS {
            self.close_up();
        }
        Some(rank)
    }

    /// The first goes behind all others.
    pub(super) fn rotate(&mut self) {
        if let Some((id, own)) = self.pop() {
            self.push(id, own);
        }
    }

    /// The first and the one of that rank change places.
    pub(super) fn swap_first(&mut self, rank: usize) {
        self.close_up();
        if rank < self.places.len() {
            self.places.swap(0, rank);
            self.renumber([0, rank]);
        }
    }

    /// One random order for all.
    pub(super) fn shuffle<R: Rng + ?Sized>(&mut self, rng: &mut R) {
        self.close_up();
        for last in (1..self.places.len()).rev() {
            self.places.swap(last, below(last + 1, rng));
        }
        self.renumber(0..self.places.len());
    }

    /// Everybody leaves, the first one first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = u64> {
        std::mem::take(self).places.into_iter().flatten().map(|(id, _)| id)
    }

    /// Takes the first place away, and the gaps behind it.
    fn pop(&mut self) -> Option<(u64, T)> {
        let first = self.places.pop_front()?;
        self.first += 1;
        let mut passed = 0;
        while self.gaps.get(passed) == Some(&self.first) {
            self.places.pop_front();
            self.first += 1;
            passed += 1;
        }
        self.gaps.drain(..passed);
        first
    }

    fn close_up(&mut self) {
        let Some(gap) = self.gaps.first().copied() else { return };
        self.places.retain(Option::is_some);
        self.gaps.clear();
        self.renumber(self.place(gap)..self.places.len());
    }

    fn renumber(&mut self, places: impl IntoIterator<Item = usize>) {
        for place in places {
            if let Some(Some((id, _))) = self.places.get(place) {
                self.numbers.insert(*id, self.first + place as u64);
            }
        }
    }

    fn place(&self, number: u64) -> usize {
        usize::try_from(number - self.first).unwrap_or(usize::MAX)
    }
}

/// Uniform over 0..n by widening multiplication.
pub(super) fn below<R: Rng + ?Sized>(n: usize, rng: &mut R) -> usize {
    let wide = (u128::from(rng.next_u64()) * n as u128) >> 64;
    usize::try_from(wide).unwrap_or(0)
}

/// So few that passing over all of them costs less than looking one member up.
const MOST_GAPS: usize = 64;

/// Spreads the gate's own numbers over a table. Nobody from outside chooses them, so it need not withstand anybody.
#[derive(Debug, Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number near 2^64 divided by the golden ratio: neighbours land far apart.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    /// One thing that happens to a line.
    #[derive(Clone, Debug)]
    enum Move {
        Push(u64),
        Remove(u64),
        Rotate,
        SwapFirst(usize),
        Shuffle,
        Drain,
    }

    const MEMBERS: u64 = 120;

    fn moves() -> impl Strategy<Value = Move> {
        let id = || 0..MEMBERS;
        prop_oneof![
            20 => id().prop_map(Move::Push),
            40 => id().prop_map(Move::Remove),
            10 => Just(Move::Rotate),
            3 => (0_usize..120).prop_map(Move::SwapFirst),
            1 => Just(Move::Shuffle),
            1 => Just(Move::Drain),
        ]
    }

    fn play(line: &mut Line<u64>, one: &Move, rng: &mut SmallRng) {
        match one {
            Move::Push(id) if line.rank(*id).is_none() => {
                let rank = line.push(*id, *id * 2);
                assert_eq!(rank, line.len() - 1);
            }
            Move::Push(_) => {}
            Move::Remove(id) => {
                let rank = line.rank(*id);
                assert_eq!(line.remove(*id), rank);
            }
            Move::Rotate => line.rotate(),
            Move::SwapFirst(rank) => line.swap_first(*rank),
            Move::Shuffle => line.shuffle(rng),
            Move::Drain => drop(line.drain()),
        }
    }

    /// The same by moving everybody about.
    fn play_plainly(line: &mut Vec<u64>, one: &Move, rng: &mut SmallRng) {
        match one {
            Move::Push(id) if !line.contains(id) => line.push(*id),
            Move::Push(_) => {}
            Move::Remove(id) => line.retain(|other| other != id),
            Move::Rotate if line.is_empty() => {}
            Move::Rotate => line.rotate_left(1),
            Move::SwapFirst(rank) if *rank < line.len() => line.swap(0, *rank),
            Move::SwapFirst(_) => {}
            Move::Shuffle => (1..line.len()).rev().for_each(|last| line.swap(last, below(last + 1, rng))),
            Move::Drain => line.clear(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 48,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_line_is_the_list_of_those_who_stand_in_it(
            seed: u64,
            moves in prop::collection::vec(moves(), 1..250),
        ) {
            let (mut rng, mut plain_rng) = (SmallRng::seed_from_u64(seed), SmallRng::seed_from_u64(seed));
            let (mut line, mut plain) = (Line::default(), Vec::new());
            // Enough of them that gaps are closed on the way.
            for one in (0..MEMBERS).map(Move::Push).chain(moves) {
                play(&mut line, &one, &mut rng);
                play_plainly(&mut plain, &one, &mut plain_rng);
                let order: Vec<(u64, u64)> = line.iter_mut().map(|one| *one).collect();
                let expected: Vec<(u64, u64)> = plain.iter().map(|id| (*id, *id * 2)).collect();
                prop_assert_eq!(order, expected, "after {:?}", one);
                prop_assert_eq!((line.len(), line.is_empty()), (plain.len(), plain.is_empty()));
                prop_assert_eq!(line.first(), plain.first().copied());
                for id in 0..MEMBERS {
                    let rank = plain.iter().position(|other| *other == id);
                    prop_assert_eq!(line.rank(id), rank, "of {} after {:?}", id, one);
                    prop_assert_eq!(line.get_mut(id).copied(), rank.map(|_| id * 2));
                }
                prop_assert!(line.gaps.len() < MOST_GAPS, "{} gaps", line.gaps.len());
            }
        }
    }

    #[test]
    fn ten_thousand_in_line_close_up_once_for_many_that_leave() {
        let (mut line, mut rng) = (Line::default(), SmallRng::seed_from_u64(7));
        for id in 0..10_000 {
            line.push(id, ());
        }
        line.shuffle(&mut rng);
        let (mut closed, mut before) = (0, 0);
        for id in 0..5_000 {
            line.remove(id);
            assert!(line.places.len() - line.len() < MOST_GAPS, "whoever looks along the line passes that many gaps");
            closed += usize::from(line.gaps.is_empty() && before > 1);
            before = line.gaps.len();
        }
        assert!((1..=5_000 / MOST_GAPS).contains(&closed), "closed up {closed} times");
    }
}
