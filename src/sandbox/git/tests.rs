use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::super::layout::Mount;
use super::*;

/// A home with a workspace in it; gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("git-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("ws")).unwrap();
        Self(dir.canonicalize().unwrap())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn git_dir(&self, path: &str) -> PathBuf {
        let dir = self.at(path);
        for part in ["objects", "refs", "hooks"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        fs::write(dir.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        dir
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The layout, what was found, and the warnings.
    fn secure(&self) -> (Layout, Git, Vec<String>) {
        self.secured(&of_all(&self.0, |_| None))
    }

    fn secure_with(&self, of_all: &[PathBuf]) -> (Layout, Vec<String>) {
        let (layout, _, warnings) = self.secured(of_all);
        (layout, warnings)
    }

    fn secured(&self, of_all: &[PathBuf]) -> (Layout, Git, Vec<String>) {
        let mut layout = Layout::default();
        let workspace = self.at("ws");
        layout.bind(&workspace, Access::ReadWrite);
        let mut warnings = Vec::new();
        let roots = std::slice::from_ref(&workspace);
        let git = secure(&mut layout, roots, &self.0, of_all, &mut warnings);
        (layout, git, warnings)
    }

    /// Whether the path is a mount point, and writable.
    fn state(&self, layout: &Layout, path: &str) -> (bool, bool) {
        let path = self.at(path);
        (
            layout.mount_point(&path) == Some(&path),
            layout.writable(&path),
        )
    }

    /// A linked worktree in `ws` of a repository in `main`.
    fn linked(&self) {
        self.git_dir("main/.git");
        self.write("main/.git/worktrees/ws/commondir", "../..\n");
        self.write(
            "main/.git/worktrees/ws/gitdir",
            self.at("ws/.git\n").to_str().unwrap(),
        );
        let named = self.at("main/.git/worktrees/ws");
        self.write("ws/.git", &format!("gitdir: {}\n", named.display()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_repository_and_those_below_it_are_pinned_with_read_only_hooks() {
    let place = Place::new("below");
    place.git_dir("ws/.git");
    place.git_dir("ws/.git/modules/a/b");
    place.git_dir("ws/vendor/x/.git");
    let (layout, git, warnings) = place.secure();
    for dir in ["ws/.git", "ws/.git/modules/a/b", "ws/vendor/x/.git"] {
        assert_eq!(place.state(&layout, dir), (true, true), "{dir}");
        assert_eq!(
            place.state(&layout, &format!("{dir}/hooks")),
            (true, false),
            "{dir}"
        );
    }
    assert_eq!(place.state(&layout, "ws/vendor"), (true, true));
    assert_eq!(git.dirs.len(), 3);
    assert_eq!(git.places.len(), 2);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_workspace_without_a_repository_is_watched() {
    let place = Place::new("none");
    let (_, git, _) = place.secure();
    assert_eq!(git.roots, [place.at("ws")]);
    assert!(git.places.is_empty() && git.dirs.is_empty());
}

#[test]
fn the_configured_hooks_path_and_included_files_are_read_only() {
    let place = Place::new("hooks-path");
    place.git_dir("ws/.git");
    place.write("ws/.githooks/pre-commit", "");
    place.write("ws/shared.gitconfig", "");
    place.write(
        "ws/.git/config",
        "[core]\nhooksPath = .githooks\n[include]\npath = ../shared.gitconfig\n",
    );
    let (layout, _, warnings) = place.secure();
    assert_eq!(place.state(&layout, "ws/.githooks"), (true, false));
    assert_eq!(place.state(&layout, "ws/shared.gitconfig"), (true, false));
    assert!(warnings.is_empty(), "{warnings:?}");
    place.write("ws/.git/config", "[core]\nhooksPath = .\n");
    let (layout, _, warnings) = place.secure();
    assert!(layout.writable(&place.at("ws/src")));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn the_hooks_path_is_read_only_wherever_it_is_set() {
    let place = Place::new("set");
    place.git_dir("ws/.git");
    place.write(
        "ws/.git/config",
        "[includeIf \"gitdir:x\"]\npath = ../one\n",
    );
    place.write("ws/one", "[include]\npath = two\n");
    place.write("ws/two", "[include]\npath = one\n[core]\nhooksPath = h\n");
    place.git_dir("ws/.git/modules/sub");
    let config = "[core]\nworktree = ../../../deep/sub\nhooksPath = h\n";
    place.write("ws/.git/modules/sub/config", config);
    place.write("ws/.git/worktrees/w/commondir", "../..\n");
    let named = format!("{}\n", place.at("ws/w/.git").display());
    place.write("ws/.git/worktrees/w/gitdir", &named);
    place.write(
        "ws/.git/worktrees/w/config.worktree",
        "[core]\nhooksPath = own\n",
    );
    place.write("ws/x/git/config", "[core]\nhooksPath = everywhere\n");
    let xdg = place.at("ws/x");
    let files = of_all(&place.0, |name| {
        (name == "XDG_CONFIG_HOME").then(|| xdg.clone().into())
    });
    let (layout, warnings) = place.secure_with(&files);
    for path in [
        "one",
        "two",
        "h/x",
        "deep/sub/h/x",
        "deep/sub/everywhere/x",
        "w/h/x",
        "w/own/x",
        "everywhere/x",
        "x/git/config",
    ] {
        assert!(!layout.writable(&place.at("ws").join(path)), "{path}");
    }
    assert!(layout.writable(&place.at("ws/own/x")));
    assert!(warnings.is_empty(), "{warnings:?}");
    // The sandbox could change the link.
    place.write("ws/two", "[core]\nhooksPath = link\n");
    symlink("h", place.at("ws/link")).unwrap();
    let (_, warnings) = place.secure_with(&[]);
    let said = warnings.iter().filter(|line| line.contains("ws/link"));
    assert_eq!(said.count(), 1, "{warnings:?}");
}

#[test]
fn the_users_relative_hooks_path_is_read_only_in_every_repository() {
    let place = Place::new("global");
    place.git_dir("ws/.git");
    place.git_dir("ws/below/.git");
    place.write(".gitconfig", "[core]\nhooksPath = .githooks\n");
    let (layout, _, warnings) = place.secure();
    for hooks in ["ws/.githooks", "ws/below/.githooks"] {
        assert!(!layout.writable(&place.at(hooks).join("x")), "{hooks}");
    }
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_common_directory_of_a_linked_worktree_is_bound() {
    let place = Place::new("linked");
    place.linked();
    let (layout, git, warnings) = place.secure();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(place.state(&layout, "main/.git"), (true, true));
    assert_eq!(place.state(&layout, "main/.git/hooks"), (true, false));
    assert_eq!(
        place.state(&layout, "main/.git/worktrees/ws/commondir"),
        (true, false)
    );
    assert_eq!(place.state(&layout, "ws/.git"), (true, false));
    assert!(!layout.shows(&place.at("main/file")));
    assert_eq!(git.dirs.len(), 2);
}

#[test]
fn a_planted_git_file_binds_nothing() {
    let place = Place::new("planted");
    let refused = |why: &str| {
        let (layout, _, warnings) = place.secure();
        assert!(!layout.shows(&place.at("main/.git")), "{why}");
        assert_eq!(warnings.len(), 1, "{why}: {warnings:?}");
        assert!(warnings[0].contains(why), "{why}: {warnings:?}");
    };
    place.linked();
    place.write("main/.git/worktrees/ws/gitdir", "/somewhere/else/.git\n");
    refused("another worktree");
    place.linked();
    fs::remove_file(place.at("main/.git/HEAD")).unwrap();
    refused("not a git directory");
    place.linked();
    place.write(
        "ws/.git",
        &format!("gitdir: {}\n", place.at("main/.git").display()),
    );
    refused("another worktree");
    place.write("ws/.git", &format!("gitdir: {}\n", place.0.display()));
    refused("not a git directory");
    place.write("ws/.git", "something\n");
    refused("names no git directory");
}

#[test]
fn a_submodule_as_workspace_needs_its_git_directory() {
    let place = Place::new("submodule");
    place.git_dir("super/.git/modules/ws");
    place.write("ws/.git", "gitdir: ../super/.git/modules/ws\n");
    place.write(
        "super/.git/modules/ws/config",
        "[core]\nworktree = ../../../../ws\n",
    );
    let (layout, _, warnings) = place.secure();
    assert!(
        layout.writable(&place.at("super/.git/modules/ws/index")),
        "{warnings:?}"
    );
    assert!(!layout.writable(&place.at("super/.git/modules/ws/hooks/x")));
    assert!(!layout.shows(&place.at("super/.git")));
    place.write(
        "super/.git/modules/ws/config",
        "[core]\nworktree = ../../../../other\n",
    );
    assert!(!place.secure().0.shows(&place.at("super/.git/modules/ws")));
}

#[test]
fn a_fifo_keeps_nobody() {
    let place = Place::new("fifo");
    let fifo = |path: &str| {
        let path = place.at(path);
        let _ = fs::remove_file(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
    };
    place.git_dir("ws/.git");
    place.git_dir("ws/.git/modules/usual");
    for path in [
        "modules/x/commondir",
        "modules/x/HEAD",
        "modules/usual/config",
        "modules/usual/commondir",
        "worktrees/w/gitdir",
        "config",
    ] {
        fifo(&format!("ws/.git/{path}"));
    }
    place.write("ws/.git/worktrees/w/commondir", "../..\n");
    for (dir, file) in [("one", "gitdir"), ("two", "commondir"), ("three", "HEAD")] {
        place.git_dir(&format!("ws/main-{dir}/.git"));
        let at = format!("ws/main-{dir}/.git/worktrees/w");
        place.write(&format!("{at}/commondir"), "../..\n");
        place.write(
            &format!("ws/{dir}/.git"),
            &format!("gitdir: ../main-{dir}/.git/worktrees/w\n"),
        );
        fifo(&format!("{at}/{file}"));
    }
    let (done, finished) = std::sync::mpsc::channel();
    let at = place.0.clone();
    std::thread::spawn(move || {
        let dirs = Place(at).secure().1.dirs;
        let _ = done.send(dirs);
    });
    let dirs = finished.recv_timeout(Duration::from_secs(10)).unwrap();
    // What git would follow is taken for a git directory.
    assert!(
        dirs.contains(&place.at("ws/.git/modules/usual")),
        "{dirs:?}"
    );
    assert!(!dirs.contains(&place.at("ws/.git/modules/x")), "{dirs:?}");
}

#[test]
fn a_link_in_the_place_of_git_is_told() {
    let place = Place::new("link");
    place.git_dir("main/.git");
    symlink(place.at("main/.git"), place.at("ws/.git")).unwrap();
    let (layout, _, warnings) = place.secure();
    assert!(!layout.shows(&place.at("main/.git")));
    assert!(warnings[0].contains("symbolic link"), "{warnings:?}");
}

#[test]
fn missing_hooks_stay_missing() {
    let place = Place::new("missing");
    let dir = place.git_dir("ws/.git");
    fs::remove_dir(dir.join("hooks")).unwrap();
    let (layout, _, _) = place.secure();
    assert!(layout.mounts().contains(&&Mount::Empty(dir.join("hooks"))));
}

#[test]
fn a_worktree_is_below_the_workspace_and_no_git_directory() {
    let place = Place::new("worktree");
    let main = place.git_dir("ws/.git");
    let module = place.git_dir("ws/.git/modules/a/b");
    place.write("ws/a/b/file", "");
    symlink(&place.0, place.at("ws/link")).unwrap();
    symlink("/nowhere", place.at("ws/dangling")).unwrap();
    let strays = |dir: &Path, value: &str| find::strays(dir, value, &[place.at("ws")]);
    for value in [
        "../../../../a/b",
        "../../../../a/not/yet",
        place.at("ws/a").to_str().unwrap(),
    ] {
        assert!(!strays(&module, value), "{value}");
    }
    for value in [
        "../../../..",
        "../../../../..",
        "../../../hooks",
        "../../..",
        "../../../../link",
        "../../../../link/x",
        "../../../../dangling",
        "../../../../new/../../x",
        "../../../../a/.GIT/x",
        "/home",
    ] {
        assert!(strays(&module, value), "{value}");
    }
    assert!(!strays(&main, "..") && strays(&main, "."));
    // As long as git takes, and one that is longer.
    assert!(!strays(&main, &format!("../{}x", "a/".repeat(2000))));
    assert!(strays(&main, &format!("../{}x", "a/".repeat(200_000))));
}

#[test]
fn too_many_directories_are_said() {
    let place = Place::new("many");
    for number in 0..1999 {
        fs::create_dir(place.at(&format!("ws/{number}"))).unwrap();
    }
    assert!(place.secure().2.is_empty());
    place.git_dir("ws/deep/er/.git");
    let (_, git, warnings) = place.secure();
    assert!(git.dirs.is_empty() && git.unseen == [place.at("ws")]);
    assert!(
        warnings.len() == 1 && warnings[0].contains("too many"),
        "{warnings:?}"
    );
}

#[test]
fn repositories_lie_in_directories_of_packages_too() {
    let place = Place::new("packages");
    for dir in [
        "venv/src/x",
        "node_modules/@a/b",
        "below/node_modules/c",
        ".venv",
        "target/package/x",
    ] {
        place.git_dir(&format!("ws/{dir}/.git"));
    }
    for number in 0..300 {
        fs::create_dir_all(place.at(&format!("ws/node_modules/n{number}/lib"))).unwrap();
    }
    let (_, git, warnings) = place.secure();
    let found = |dir: &str| git.dirs.contains(&place.at(&format!("ws/{dir}/.git")));
    for dir in [
        "venv/src/x",
        "below/node_modules/c",
        ".venv",
        "target/package/x",
    ] {
        assert!(found(dir), "{dir}: {:?}", git.dirs);
    }
    // More than are looked into, but each one's own is found.
    place.git_dir("ws/node_modules/n299/.git");
    let git = place.secure().1;
    assert!(git.dirs.contains(&place.at("ws/node_modules/n299/.git")));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn what_never_ends_is_not_read() {
    let place = Place::new("fifo");
    let module = place.git_dir("ws/.git/modules/a");
    place.git_dir("ws/.git");
    let fifo = |path: &Path| {
        let _ = fs::remove_file(path);
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    for path in ["config", "commondir", "worktrees/x/gitdir"] {
        place.write("ws/.git/worktrees/x/commondir", "../..");
        fifo(&place.at("ws/.git").join(path));
    }
    assert_eq!(place.secure().1.dirs.len(), 3);
    fifo(&module.join("HEAD"));
    assert_eq!(place.secure().1.dirs.len(), 2);
}
