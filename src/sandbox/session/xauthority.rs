//! The X server's keys, `.Xauthority` (Xau(3)): entries of a family, and four counted byte strings, all big-endian.

/// Display numbers have no end; an empty one in an entry stands for all.
const ANY: &[u8] = b"";

/// The entries for display `outside`, as they are to be for the number that it has `inside`; `None` for bytes that are no
/// such file, or have no entry for it.
pub fn renumbered(file: &[u8], outside: u32, inside: u32) -> Option<Vec<u8>> {
    let (outside, inside) = (outside.to_string(), inside.to_string());
    let mut rest = file;
    let mut kept = Vec::new();
    while !rest.is_empty() {
        let family = take(&mut rest, 2)?;
        let [address, number, name, data] = [
            counted(&mut rest)?,
            counted(&mut rest)?,
            counted(&mut rest)?,
            counted(&mut rest)?,
        ];
        if number == outside.as_bytes() || number == ANY {
            kept.extend(family);
            for field in [address, inside.as_bytes(), name, data] {
                kept.extend(u16::try_from(field.len()).ok()?.to_be_bytes());
                kept.extend(field);
            }
        }
    }
    (!kept.is_empty()).then_some(kept)
}

fn counted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(rest, 2)?;
    take(
        rest,
        usize::from(u16::from_be_bytes(length.try_into().ok()?)),
    )
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: &str) -> Vec<u8> {
        let mut entry = vec![1, 0];
        for field in ["desk", number, "MIT-MAGIC-COOKIE-1", "secret"] {
            entry.extend([0, field.len() as u8]);
            entry.extend(field.as_bytes());
        }
        entry
    }

    #[test]
    fn entries_of_the_display_get_its_other_number() {
        let file = [entry("0"), entry("10"), entry("")].concat();
        let meant = [entry("1000"), entry("1000")].concat();
        assert_eq!(renumbered(&file, 0, 1000), Some(meant));
        assert_eq!(renumbered(&entry("10"), 10, 1010), Some(entry("1010")));
        assert_eq!(renumbered(&entry("10"), 1, 1001), None);
    }

    #[test]
    fn bytes_that_are_no_entries() {
        let whole = entry("0");
        for length in 1..whole.len() {
            assert_eq!(renumbered(&whole[..length], 0, 1), None, "{length}");
        }
        assert_eq!(renumbered(b"", 0, 1), None);
    }
}
