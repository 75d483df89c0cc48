use super::*;
use nix::unistd::mkdtemp;
use std::fs;
use std::os::unix::net::UnixListener;

#[test]
fn the_table_names_directories() {
    let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
        ffff8: 00000002 00000000 00010000 0001 01 23 /run/user/1000/bus\n\
        ffff8: 00000002 00000000 00010000 0001 01 24 /run/user/1000/pipewire-0\n\
        ffff8: 00000003 00000000 00000000 0001 03 25\n\
        ffff8: 00000002 00000000 00010000 0001 01 26 @/tmp/.X11-unix/X0\n\
        ffff8: 00000002 00000000 00010000 0001 01 27 private/smtp\n\
        ffff8: 00000002 00000000 00010000 0001 01 28 /home/u/with space/ x/s\n";
    let found: Vec<PathBuf> = directories(table).into_iter().collect();
    assert_eq!(
        found,
        [
            Path::new("/home/u/with space/ x"),
            Path::new("/run/user/1000")
        ]
    );
}

#[test]
fn search_permission_is_that_of_the_first_class_that_fits() {
    let user = User {
        uid: 1000,
        gids: vec![1000, 27],
    };
    for (mode, uid, gid, may) in [
        (0o700, 1000, 0, true),
        (0o077, 1000, 1000, false),
        (0o710, 0, 27, true),
        (0o701, 0, 27, false),
        (0o711, 0, 0, true),
        (0o770, 0, 0, false),
    ] {
        assert_eq!(user.may_search(mode, uid, gid), may, "{mode:o} {uid} {gid}");
    }
    let root = User {
        uid: 0,
        gids: vec![0],
    };
    assert!(root.may_search(0o600, 0, 0));
    assert!(!root.may_search(0o700, 33, 33));
}

struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let dir = mkdtemp(&std::env::temp_dir().join("sockets-XXXXXX")).unwrap();
        for name in ["own/run", "mixed", "shared"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        Place(dir.canonicalize().unwrap())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sockets_are_covered_where_they_are_seen_and_named_where_asked_for() {
    let place = Place::new();
    let sockets = ["own/run/s", "mixed/s", "mixed/renamed", "shared/s"];
    let open: Vec<UnixListener> = sockets
        .iter()
        .map(|path| UnixListener::bind(place.at(path)).unwrap())
        .collect();
    fs::write(place.at("own/run/s.pid"), "").unwrap();
    fs::write(place.at("mixed/data"), "").unwrap();
    fs::rename(place.at("mixed/renamed"), place.at("mixed/new-name")).unwrap();
    let mut layout = Layout::default();
    layout.bind_at(&place.at("own"), Path::new("/elsewhere"), Access::ReadOnly);
    layout.bind(&place.at("mixed"), Access::ReadOnly);
    layout.bind(&place.at("shared"), Access::ReadWrite);
    let left = cover(&mut layout, &[place.at("shared")], &User::current());
    assert_eq!(left, [place.at("shared/s")]);
    let covered = |path: &Path| layout.mount_point(path) == Some(path);
    assert!(
        layout
            .mounts()
            .contains(&&Mount::Tmpfs("/elsewhere/run".into()))
    );
    assert!(covered(&place.at("mixed/s")) && covered(&place.at("mixed/new-name")));
    assert!(!covered(&place.at("mixed/data")));
    assert!(!covered(&place.at("shared/s")));
    drop(open);
}

#[test]
fn what_is_left_is_one_line() {
    assert_eq!(left(&[]), None);
    let line = left(&["/w/s".into(), "/w/t".into()]).unwrap();
    assert!(line.starts_with("/w/s and 1 more: "), "{line}");
}
