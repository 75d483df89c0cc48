use super::*;

fn sample() -> Layout {
    let mut layout = Layout::default();
    layout.bind(Path::new("/usr"), Access::ReadOnly);
    layout.bind(Path::new("/srv/code/.config"), Access::ReadOnly);
    layout.bind(Path::new("/srv/code"), Access::ReadWrite);
    layout.push(Mount::Tmpfs("/srv".into()));
    layout.push(Mount::Data {
        fd: 12,
        to: "/etc/resolv.conf".into(),
    });
    layout
}

#[test]
fn the_deepest_mount_over_a_path_decides() {
    let layout = sample();
    let shown = |path: &str| {
        (
            layout.shows(Path::new(path)),
            layout.writable(Path::new(path)),
        )
    };
    assert_eq!(shown("/usr/bin/env"), (true, false));
    assert_eq!(shown("/srv/other"), (false, false));
    assert_eq!(shown("/srv/code/src"), (true, true));
    assert_eq!(shown("/srv/code/.config/x"), (true, false));
    assert_eq!(shown("/srv/codes"), (false, false));
    assert_eq!(shown("/home"), (false, false));
    assert_eq!(shown("/etc/resolv.conf"), (false, false));
}

#[test]
fn a_destination_is_bound_once_and_can_be_covered() {
    let mut layout = sample();
    layout.bind(Path::new("/usr"), Access::ReadWrite);
    assert!(!layout.writable(Path::new("/usr")));
    layout.cover(Path::new("/usr"), Access::ReadWrite);
    assert!(layout.writable(Path::new("/usr")));
    assert_eq!(layout.mounts().len(), 5);
}

#[test]
fn arguments_are_from_the_root_down() {
    let expected = "--ro-bind /usr /usr --tmpfs /srv --bind /srv/code /srv/code \
        --perms 0444 --ro-bind-data 12 /etc/resolv.conf \
        --ro-bind /srv/code/.config /srv/code/.config";
    let args: Vec<String> = sample()
        .args()
        .into_iter()
        .map(|arg| arg.into_string().unwrap())
        .collect();
    assert_eq!(args.join(" "), expected);
}

#[test]
fn only_a_path_without_links_is_resolved_in_one_call() {
    let dir = std::env::temp_dir().join(format!("links-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("a/b")).unwrap();
    let dir = dir.canonicalize().unwrap();
    std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
    let plain = dir.join("a/b");
    assert_eq!(without_links(&dir.join("a//b/")), Ok(plain.clone()));
    assert_eq!(without_links(&dir.join("link/b")), Err(Errno::ELOOP));
    assert_eq!(without_links(&dir.join("a/../a/b")), Err(Errno::EINVAL));
    assert_eq!(without_links(Path::new("a/b")), Err(Errno::EINVAL));
    assert_eq!(without_links(&dir.join("a/c")), Err(Errno::ENOENT));
    for path in ["link/b", "a/../a/b"] {
        assert_eq!(resolve(&dir.join(path)).unwrap(), plain);
    }
    std::fs::remove_dir_all(dir).unwrap();
}
