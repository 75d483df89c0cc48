//! What lies below bound directories and is to read as empty.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::glob;
use super::layout::{Layout, Mount, resolve};

/// How many directories below each bound one are looked into for a name.
const DIRECTORIES: usize = 20_000;

/// Makes every match of `patterns` below the bound directories `roots` read as empty; a line in `warnings` where not
/// everything could be looked at.
///
/// A pattern is a path from `/`, or a name or relative path that is looked for at every depth. `*` and `?` stand for
/// characters of one name, `**` for any number of names. What is made later is not hidden.
pub fn hide(
    layout: &mut Layout,
    patterns: &[String],
    roots: &[PathBuf],
    warnings: &mut Vec<String>,
) {
    let (anchored, names): (Vec<&String>, Vec<&String>) = patterns
        .iter()
        .partition(|pattern| pattern.starts_with('/'));
    for pattern in anchored {
        let (paths, whole) = expand(Path::new(pattern));
        for path in paths {
            mask(layout, &path);
        }
        if !whole {
            warnings.push(format!(
                "filesystem.hide: `{pattern}` is about more than {DIRECTORIES} directories: what lies deeper is not hidden"
            ));
        }
    }
    if names.is_empty() {
        return;
    }
    let names: Vec<Vec<&[u8]>> = names
        .iter()
        .map(|name| components(Path::new(name)))
        .collect();
    for root in roots {
        if !walk(root, |path| {
            let relative = path.strip_prefix(root).unwrap_or(path);
            let relative = components(relative);
            let matched = names.iter().any(|name| {
                // At every depth.
                relative.len().checked_sub(name.len()).is_some_and(|_| {
                    (0..relative.len()).any(|from| matches(name, &relative[from..]))
                })
            });
            if matched {
                mask(layout, path);
            }
            matched
        }) {
            warnings.push(format!(
                "filesystem.hide: {} has more than {DIRECTORIES} directories: what lies deeper is not hidden by name",
                root.display()
            ));
        }
    }
}

/// Hides `path` under every name that the sandbox sees it by.
pub fn mask(layout: &mut Layout, path: &Path) {
    let Ok(real) = resolve(path) else {
        return;
    };
    for place in layout.places(&real) {
        layout.clear_below(&place);
        layout.push(match real.is_dir() {
            true => Mount::Empty(place),
            false => Mount::Null(place),
        });
    }
}

/// Calls `found` for everything below `root` but what lies below something that it answered true for; links are not
/// followed. `false` where there is too much.
fn walk(root: &Path, mut found: impl FnMut(&Path) -> bool) -> bool {
    let mut waiting = VecDeque::from([root.to_path_buf()]);
    let mut looked = 0;
    while let Some(dir) = waiting.pop_front() {
        looked += 1;
        if looked > DIRECTORIES {
            return false;
        }
        for entry in dir.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            let dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !found(&path) && dir {
                waiting.push_back(path);
            }
        }
    }
    true
}

/// The existing paths that an absolute pattern names, and whether these are all.
fn expand(pattern: &Path) -> (Vec<PathBuf>, bool) {
    let mut whole = true;
    let mut paths = vec![PathBuf::from("/")];
    for part in components(pattern) {
        let mut next = Vec::new();
        for dir in paths {
            if part == b"**" {
                next.push(dir.clone());
                whole &= walk(&dir, |path| {
                    next.push(path.to_path_buf());
                    false
                });
            } else if part.contains(&b'*') || part.contains(&b'?') {
                let entries = dir.read_dir().into_iter().flatten().flatten();
                let matching =
                    entries.filter(|entry| glob::name(part, entry.file_name().as_bytes()));
                next.extend(matching.map(|entry| entry.path()));
            } else {
                let path = dir.join(OsStr::from_bytes(part));
                next.extend(path.symlink_metadata().is_ok().then_some(path));
            }
        }
        paths = next;
    }
    (paths, whole)
}

fn components(path: &Path) -> Vec<&[u8]> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        })
        .collect()
}

fn matches(pattern: &[&[u8]], path: &[&[u8]]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if *first == b"**" => {
            (0..=path.len()).any(|skipped| matches(rest, &path[skipped..]))
        }
        (Some((first, rest)), Some((part, left))) => glob::name(first, part) && matches(rest, left),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Access;
    use super::*;
    use std::fs;

    #[test]
    fn what_matches_below_the_roots_is_masked_under_each_of_its_names() {
        let dir = std::env::temp_dir().join(format!("hide-{}", std::process::id()));
        for sub in ["w/a/secrets/x", "w/b", "o"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        let dir = dir.canonicalize().unwrap();
        for file in [
            "w/.env",
            "w/a/.env",
            "w/a/k.pem",
            "w/b/code",
            "w/a/secrets/x/y",
            "o/.env",
            "w/b/one.key",
        ] {
            fs::write(dir.join(file), "x").unwrap();
        }
        let root = dir.join("w");
        let mut layout = Layout::default();
        layout.bind(&root, Access::ReadWrite);
        layout.bind_at(&root, Path::new("/other"), Access::ReadOnly);
        // Pinned for another reason; goes with what is hidden.
        layout.bind(&root.join("a/secrets/x"), Access::ReadWrite);
        let patterns = [
            ".env",
            "*.pem",
            "a/secrets",
            &format!("{}/w/b/*.key", dir.display()),
            &format!("{}/o/.env", dir.display()),
        ]
        .map(String::from);
        let mut warnings = Vec::new();
        hide(
            &mut layout,
            &patterns,
            std::slice::from_ref(&root),
            &mut warnings,
        );
        let has = |mount: Mount| layout.mounts().contains(&&mount);
        for file in [".env", "a/.env", "a/k.pem", "b/one.key"] {
            assert!(has(Mount::Null(root.join(file))), "{file}");
            assert!(has(Mount::Null(Path::new("/other").join(file))), "{file}");
        }
        assert!(has(Mount::Empty(root.join("a/secrets"))));
        // Not shown, so not masked; and nothing else is.
        assert_eq!(layout.mounts().len(), 2 + 2 * 5);
        assert!(warnings.is_empty());
        fs::remove_dir_all(dir).unwrap();
    }
}
