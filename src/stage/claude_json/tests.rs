use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::scratch::Scratch;

/// A host's home and a sandbox's; gone at the end.
struct Place(Scratch);

impl Place {
    fn new() -> Self {
        let dir = Scratch::new();
        for home in ["host", "inside", "second"] {
            fs::create_dir_all(dir.join(home)).unwrap();
        }
        fs::write(dir.join("host/.claude.json"), "{\"n\":1}").unwrap();
        Self(dir)
    }

    fn start(&self, home: &str) -> Sync {
        let json = ClaudeJson::read(&self.0.join("host")).unwrap();
        fs::write(self.0.join(home).join(".claude.json"), &json.text).unwrap();
        let mut sync = json
            .follow(File::open(self.0.join(home)).unwrap().into())
            .unwrap();
        sync.watch(Instant::now()).unwrap();
        sync.tick(Instant::now()).unwrap();
        sync
    }

    /// As Claude Code writes.
    fn write(&self, home: &str, text: &str) {
        let new = self.0.join(home).join(".claude.json.tmp");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.0.join(home).join(".claude.json")).unwrap();
    }

    fn read(&self, home: &str) -> String {
        fs::read_to_string(self.0.join(home).join(".claude.json")).unwrap()
    }
}

fn settle(sync: &mut Sync) {
    sync.tick(Instant::now()).unwrap();
    if let Some(due) = sync.deadline() {
        sync.tick(due).unwrap();
    }
}

#[test]
fn what_is_written_on_one_side_comes_to_the_other_byte_for_byte() {
    let place = Place::new();
    let mut sync = place.start("inside");
    place.write("inside", "{ \"n\":2 }");
    settle(&mut sync);
    assert_eq!(place.read("host"), "{ \"n\":2 }");
    place.write("host", "{ \"n\":3 }");
    settle(&mut sync);
    assert_eq!(place.read("inside"), "{ \"n\":3 }");
    assert_eq!(
        fs::read_dir(place.0.join("host")).unwrap().count(),
        1,
        "something is left"
    );
}

#[test]
fn two_sandboxes_keep_each_others_login() {
    let place = Place::new();
    let (mut first, mut second) = (place.start("inside"), place.start("second"));
    place.write("inside", "{\"n\":1,\"login\":\"x\"}");
    place.write("second", "{\"n\":2}");
    settle(&mut first);
    settle(&mut second);
    settle(&mut first);
    for home in ["host", "inside", "second"] {
        let text = place.read(home);
        assert!(
            text.contains("login") && text.contains("\"n\": 2"),
            "{home}: {text}"
        );
    }
}

#[test]
fn halves_links_and_what_is_no_file_are_not_carried_over() {
    let place = Place::new();
    let mut sync = place.start("inside");
    let file = place.0.join("inside/.claude.json");
    for text in ["", "{\"n\":", "[1]"] {
        fs::write(&file, text).unwrap();
        settle(&mut sync);
        assert_eq!(place.read("host"), "{\"n\":1}");
    }
    let secret = place.0.join("secret");
    fs::write(&secret, "{\"secret\":1}").unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&secret, &file).unwrap();
    settle(&mut sync);
    assert_eq!(place.read("host"), "{\"n\":1}");
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    settle(&mut sync);
    sync.finish().unwrap();
    assert_eq!(place.read("host"), "{\"n\":1}");
}

#[test]
fn a_held_lock_is_waited_for_and_a_dead_one_is_not() {
    let place = Place::new();
    let mut sync = place.start("inside");
    let lock = place.0.join("host/.claude.json.lock");
    fs::create_dir(&lock).unwrap();
    place.write("inside", "{\"n\":2}");
    settle(&mut sync);
    assert_eq!(place.read("host"), "{\"n\":1}");
    assert!(sync.deadline().is_some(), "it would not be tried again");
    let old = std::time::SystemTime::now() - Duration::from_secs(11);
    File::open(&lock).unwrap().set_modified(old).unwrap();
    settle(&mut sync);
    assert_eq!(place.read("host"), "{\"n\":2}");
    assert!(!lock.exists());
}

#[test]
fn a_link_of_the_users_stays_and_so_does_the_mode() {
    let place = Place::new();
    let file = place.0.join("host/.claude.json");
    let real = place.0.join("real.json");
    fs::rename(&file, &real).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&real, &file).unwrap();
    let sync = place.start("inside");
    place.write("inside", "{\"n\":2}");
    sync.finish().unwrap();
    assert_eq!(fs::read_to_string(&real).unwrap(), "{\"n\":2}");
    assert!(file.is_symlink());
    assert_eq!(real.metadata().unwrap().permissions().mode() & 0o777, 0o640);
}
