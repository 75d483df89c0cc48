//! Whose files are read, and which are not.

use std::os::unix::fs::{chown, symlink};

use super::*;

#[test]
fn a_file_that_others_can_change_is_refused() {
    let place = Place::new();
    let file = place.env.user_config();
    let dir = file.parent().unwrap();
    let (shown, dir_shown) = (file.display(), dir.display());
    place.user("");
    for mode in [0o664, 0o646, 0o666] {
        set_mode(&file, mode);
        assert_eq!(
            place.refused_file(),
            format!("{shown} can be written by others (mode {mode:04o}): run chmod go-w {shown}")
        );
    }
    set_mode(&file, 0o600);
    for mode in [0o775, 0o757] {
        set_mode(dir, mode);
        assert_eq!(
            place.refused_file(),
            format!(
                "{dir_shown}, which holds configuration, can be written by others (mode {mode:04o}): \
                 run chmod go-w {dir_shown}"
            )
        );
    }
    set_mode(dir, 0o1777);
    place
        .load()
        .expect("the sticky bit keeps others from replacing the file");
}

#[test]
fn the_directory_of_a_link_counts_too() {
    let place = Place::new();
    let (file, loose) = (place.dir.join("dotfiles/c.toml"), place.dir.join("loose"));
    place.write(&file, "");
    // Sets the directory's mode whatever the umask is.
    place.user("");
    fs::remove_file(place.env.user_config()).unwrap();
    symlink(&file, place.env.user_config()).unwrap();
    assert_eq!(
        place.load().unwrap().config_files,
        [place.env.user_config()]
    );
    set_mode(file.parent().unwrap(), 0o777);
    assert!(
        place
            .refused_file()
            .contains("dotfiles, which holds configuration")
    );
    set_mode(file.parent().unwrap(), 0o755);

    fs::create_dir(&loose).unwrap();
    symlink(&file, loose.join("c.toml")).unwrap();
    set_mode(&loose, 0o777);
    let refused = Config::load(&place.env, Some(&loose.join("c.toml")), &place.dir).unwrap_err();
    assert!(format!("{refused:#}").contains("loose, which holds configuration"));
}

#[test]
fn a_file_of_someone_else_is_refused() {
    let mut place = Place::new();
    place.user("");
    let file = place.env.user_config();
    if !Uid::effective().is_root() {
        // The file is ours; to another user it is someone else's.
        let owner = Uid::effective();
        place.env.uid = Uid::from_raw(owner.as_raw() + 1);
        assert!(
            place
                .refused_file()
                .starts_with(&format!("{} belongs to uid {owner},", file.display()))
        );
        return;
    }
    chown(&file, Some(1501), None).unwrap();
    place.env.uid = Uid::from_raw(1500);
    assert_eq!(
        place.refused_file(),
        format!(
            "{} belongs to uid 1501, who could change the configuration: it must be yours (uid 1500) or root's",
            file.display()
        )
    );
    chown(&file, Some(1500), None).unwrap();
    place
        .load()
        .expect("a file of the user in a directory of root");
    chown(file.parent().unwrap(), Some(1501), None).unwrap();
    assert!(
        place
            .refused_file()
            .contains("claude-isolated belongs to uid 1501")
    );
}

#[test]
fn only_a_regular_file_is_read() {
    let place = Place::new();
    let file = place.env.user_config();
    fs::create_dir_all(&file).unwrap();
    assert_eq!(
        place.refused_file(),
        format!("{} is not a regular file", file.display())
    );
    fs::remove_dir(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert_eq!(
        place.refused_file(),
        format!("{} is not a regular file", file.display())
    );
    fs::remove_file(&file).unwrap();
    symlink(&file, &file).unwrap();
    assert!(
        place
            .refused_file()
            .starts_with(&format!("cannot read {}: ", file.display()))
    );
}

#[test]
fn an_absent_directory_is_an_absent_file() {
    let place = Place::new();
    fs::write(place.env.home.join(".config"), "a file").unwrap();
    assert_eq!(place.load().unwrap(), Config::default());
}

/// One of a disk that is not mounted, say.
#[test]
fn a_link_that_leads_nowhere_is_no_absent_file() {
    for name in [
        ".config",
        ".config/claude-isolated",
        ".config/claude-isolated/config.toml",
    ] {
        let place = Place::new();
        let link = place.env.home.join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let _ = fs::remove_dir_all(&link);
        symlink("/no/such/place", &link).unwrap();
        let error = format!("{:#}", place.load().unwrap_err());
        let says = format!(
            "{} is a symbolic link whose target is not there",
            link.display()
        );
        assert!(error.contains(&says), "{error}");
    }
}
