//! Which word was meant: the valid word nearest to a mistyped one.

/// The word of `valid` with the fewest edits from `word`, if few enough (a third of its letters, at least one) that it
/// can be what was meant. An edit inserts, drops or replaces a letter, or swaps two neighbours. The first wins a tie.
pub fn nearest<'a>(word: &str, valid: &[&'a str]) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    let (edits, best) = valid
        .iter()
        .map(|candidate| (edits(word, candidate), *candidate))
        .min_by_key(|(edits, _)| *edits)?;
    (edits <= limit).then_some(best)
}

/// Edits between `a` and `b` (optimal string alignment), upper and lower case being the same letter.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j] + 1)
                .min(rows[i][j - 1] + 1)
                .min(rows[i - 1][j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_was_meant() {
        let valid = ["enabled", "policy", "allow", "on-block"];
        for (word, meant) in [
            ("polcy", Some("policy")),
            ("on_block", Some("on-block")),
            ("Enabled", Some("enabled")),
            ("alolw", Some("allow")),
            ("enable", Some("enabled")),
            ("dns", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &valid), meant, "{word}");
        }
        assert_eq!(nearest("word", &[]), None);
        assert_eq!(nearest("ab", &["ac", "ad"]), Some("ac"));
    }
}
