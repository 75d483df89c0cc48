//! The longest common subsequence, which says what of a list may stay.

/// Pairs of indices into `a` and `b` of equal items, ascending in both, as many as there can be.
///
/// Time and memory are the product of what lies between the common beginning and the common end of the two.
pub fn common<T: PartialEq>(a: &[T], b: &[T]) -> Vec<(usize, usize)> {
    let equal = |(x, y): &(&T, &T)| x == y;
    let head = a.iter().zip(b).take_while(equal).count();
    let rest = a[head..].iter().rev().zip(b[head..].iter().rev());
    let tail = rest.take_while(equal).count();
    let (inner_a, inner_b) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);

    let mut pairs: Vec<_> = (0..head).map(|n| (n, n)).collect();
    pairs.extend(
        between(inner_a, inner_b)
            .into_iter()
            .map(|(i, j)| (head + i, head + j)),
    );
    pairs.extend((0..tail).map(|n| (a.len() - tail + n, b.len() - tail + n)));
    pairs
}

/// By dynamic programming: `longest[i][j]` is the length for `a[i..]` and `b[j..]`.
fn between<T: PartialEq>(a: &[T], b: &[T]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    let mut longest = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = if a[i] == b[j] {
                longest[(i + 1) * width + j + 1] + 1
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            pairs.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By trying every subset of `a`.
    fn naive(a: &[u8], b: &[u8]) -> usize {
        let subset = |bits: u32| -> Vec<u8> {
            let chosen = a.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1);
            chosen.map(|(_, x)| *x).collect()
        };
        let within = |part: &[u8]| {
            let mut rest = b.iter();
            part.iter().all(|x| rest.any(|y| x == y))
        };
        let all = (0..1u32 << a.len()).map(subset);
        all.filter(|p| within(p)).map(|p| p.len()).max().unwrap()
    }

    #[test]
    fn it_is_common_and_the_longest() {
        let mut seed = 1u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..500 {
            let mut list = || -> Vec<u8> {
                let len = random(9);
                (0..len).map(|_| random(4) as u8).collect()
            };
            let (a, b) = (list(), list());
            let pairs = common(&a, &b);
            assert!(pairs.iter().all(|&(i, j)| a[i] == b[j]));
            assert!(pairs.windows(2).all(|p| p[0].0 < p[1].0 && p[0].1 < p[1].1));
            assert_eq!(pairs.len(), naive(&a, &b), "{a:?} {b:?}");
        }
    }
}
