//! The valid word nearest to a mistyped one, for error messages.

/// The word of `valid` that `word` was most likely meant to be; `None` where none is near (about a third of the letters
/// may be wrong). Case does not count. Among equals the first wins.
pub fn nearest<'a>(word: &str, valid: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    valid
        .iter()
        .map(|v| (distance(&word, &v.to_lowercase()), *v))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, v)| v)
}

/// Optimal string alignment: inserted, missing, wrong and neighbouring swapped letters count one each.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("policy", "policy", 0),
            ("polciy", "policy", 1),
            ("on_block", "on-block", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_or_none() {
        let valid = ["home-lan", "attached", "allow"];
        assert_eq!(nearest("homelan", &valid), Some("home-lan"));
        assert_eq!(nearest("Attahced", &valid), Some("attached"));
        assert_eq!(nearest("alow", &valid), Some("allow"));
        assert_eq!(nearest("offline", &valid), None);
        assert_eq!(nearest("x", &[]), None);
    }
}
