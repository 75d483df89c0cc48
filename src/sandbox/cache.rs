//! Caches of package managers: the sandboxes share directories of their own, and never see the host's writable ones.

use std::path::{Path, PathBuf};

use super::layout::{Access, Layout, Mount};

/// Where they lie below the home directory, besides `$XDG_CACHE_HOME`.
const CACHES: &[&str] = &[
    ".bun/install/cache",
    ".cargo/git",
    ".cargo/registry",
    ".gradle/caches",
    ".local/share/pnpm/store",
    ".m2/repository",
    ".npm",
    "go/pkg",
];

/// Each directory inside, and its name below the sandboxes' own.
pub fn directories(home: &Path, cache_home: &Path) -> Vec<(PathBuf, String)> {
    let named = |path: &&str| {
        (
            home.join(path),
            path.trim_start_matches('.').replace('/', "-"),
        )
    };
    let mut all: Vec<(PathBuf, String)> = CACHES.iter().map(named).collect();
    all.push((cache_home.to_path_buf(), "cache".into()));
    all
}

/// Binds the directories below `own`, where they are; without `own` the caches end with the sandbox. Either way they can
/// be written, also where a toolchain's are shown.
pub fn bind(layout: &mut Layout, home: &Path, cache_home: &Path, own: Option<&Path>) {
    for (path, name) in directories(home, cache_home) {
        // What the user has elsewhere, such as a cache below /var, is not ours to replace.
        if !path.starts_with(home) || layout.writable(&path) {
            continue;
        }
        match own.map(|own| own.join(name)).filter(|dir| dir.is_dir()) {
            Some(from) => layout.push(Mount::Bind {
                from,
                to: path,
                access: Access::ReadWrite,
            }),
            None if layout.shows(&path) => layout.push(Mount::Tmpfs(path)),
            None => {}
        }
    }
}

/// Takes the mounts back for which there is no place: where a bind shows the directory around it, bwrap would make one on
/// the host, which stays, or cannot. What is missing there is the user's own matter, as the rest of that directory.
pub fn only_where_there_is_a_place(layout: &mut Layout, home: &Path, cache_home: &Path) {
    for (path, _) in directories(home, cache_home) {
        if !path.exists() {
            layout.take_back_from_bind(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchains_cache_is_covered_and_a_writable_one_is_not() {
        let home = Path::new("/h");
        let mut layout = Layout::default();
        layout.bind(Path::new("/h/.cargo/registry"), Access::ReadOnly);
        layout.bind(Path::new("/h/go"), Access::ReadWrite);
        bind(&mut layout, home, Path::new("/h/.cache"), None);
        assert!(
            layout
                .mounts()
                .contains(&&Mount::Tmpfs("/h/.cargo/registry".into()))
        );
        assert_eq!(layout.mounts().len(), 2);
        // Any directory that is there will do.
        let own = std::env::temp_dir().join(format!("cache-{}", std::process::id()));
        for name in ["npm", "cache", "cargo-registry", "go-pkg"] {
            std::fs::create_dir_all(own.join(name)).unwrap();
        }
        bind(&mut layout, home, Path::new("/h/.cache"), Some(&own));
        for path in ["/h/.npm", "/h/.cache", "/h/.cargo/registry"] {
            assert!(layout.writable(Path::new(path)), "{path}");
            assert!(!layout.shows(Path::new(path)), "{path}");
        }
        assert!(layout.shows(Path::new("/h/go/pkg")));
        std::fs::remove_dir_all(own).unwrap();
    }

    #[test]
    fn nothing_is_mounted_where_the_host_would_get_a_directory() {
        let home = crate::scratch::Scratch::new();
        let own = home.join("own");
        let cache_home = home.join(".cache");
        for dir in [
            &own.join("npm"),
            &own.join("go-pkg"),
            &own.join("cache"),
            &cache_home,
        ] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let mounts = |shown: Option<Access>| {
            let mut layout = Layout::default();
            bind(&mut layout, &home, &cache_home, Some(&own));
            shown.iter().for_each(|access| layout.cover(&home, *access));
            only_where_there_is_a_place(&mut layout, &home, &cache_home);
            [".npm", "go/pkg", ".cache"].map(|dir| {
                let dir = home.join(dir);
                layout.mount_point(&dir) == Some(&dir)
            })
        };
        assert_eq!(mounts(None), [true; 3]);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            assert_eq!(mounts(Some(access)), [false, false, true]);
        }
    }
}
