//! `--save`: an entry goes into the user's own configuration file, which keeps its comments and its order.

mod edit;

use std::fmt::Display;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use super::text;
use crate::config::{self, trust};
use crate::launch::Environment;
pub use edit::List;

/// How an existing file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Another one takes its place, so that there is always a whole one.
    Replaced,
    /// It stays: where a running sandbox has it bound read-only, in dotfiles in a workspace, the kernel would take that
    /// away with the old file, and the sandbox could write the new one.
    InPlace,
}

/// Puts `entry` into `list` and takes it out of the one that says the opposite; says what it did.
pub fn save<T: FromStr + PartialEq + Display>(list: List, entry: &T, way: Way) -> Result<String> {
    let environment = Environment::from_process()?;
    save_in(
        &environment.user_config(),
        environment.uid,
        list,
        entry,
        way,
    )
}

fn save_in<T: FromStr + PartialEq + Display>(
    file: &Path,
    uid: Uid,
    list: List,
    entry: &T,
    way: Way,
) -> Result<String> {
    let shown = file.display();
    let real = real(file)?;
    // What the loader refuses is not written to either: others could have put in more than the user sees.
    let text = trust::read(file, uid)?;
    let Some(new) = edit::edit(text.as_deref().unwrap_or_default(), list, entry)
        .with_context(|| format!("{shown} cannot be changed"))?
    else {
        return Ok(format!("{} has it already", text::path(file)));
    };
    config::check(file, &new).context("not saved: the file would be wrong")?;
    let done = match (&text, way) {
        (Some(_), Way::InPlace) => write_over(&real, new.as_bytes()),
        (Some(_), Way::Replaced) => {
            let mode = fs::metadata(&real)?.permissions().mode() & 0o777;
            replace(&real, new.as_bytes(), mode)
        }
        (None, _) => replace(&real, new.as_bytes(), 0o600),
    };
    done.with_context(|| format!("cannot write {shown}"))?;
    Ok(format!("saved in {}", text::path(file)))
}

/// The file behind links, as a directory of dotfiles has them; makes the directory where it is missing.
fn real(file: &Path) -> Result<PathBuf> {
    let shown = file.display();
    if file.symlink_metadata().is_ok() {
        return file
            .canonicalize()
            .with_context(|| format!("{shown} leads nowhere: mend the link or remove it"));
    }
    let Some(dir) = file.parent() else {
        bail!("{shown} is no path of a file");
    };
    let mut make = DirBuilder::new();
    make.recursive(true).mode(0o700);
    make.create(dir)
        .with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(file.into())
}

/// By a new file beside it, so that there is always a whole one.
fn replace(file: &Path, text: &[u8], mode: u32) -> Result<()> {
    let name = file.file_name().context("no name")?.to_string_lossy();
    let new = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut options = OpenOptions::new();
    // No other's file, nor a link to one, is written to.
    let mut made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = made
        .set_permissions(Permissions::from_mode(mode))
        .and_then(|()| made.write_all(text))
        .and_then(|()| made.sync_all())
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    Ok(written?)
}

/// In one piece, and cut off after it: a file of a few lines is whole at nearly every moment.
fn write_over(file: &Path, text: &[u8]) -> Result<()> {
    let flags = nix::libc::O_NOFOLLOW;
    let mut options = OpenOptions::new();
    let mut old = options.write(true).custom_flags(flags).open(file)?;
    old.write_all(text)?;
    old.set_len(text.len() as u64)?;
    Ok(old.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dest::Destination;
    use crate::scratch::Scratch;
    use std::os::unix::fs::symlink;

    struct Dir(Scratch);

    impl Dir {
        fn new() -> Dir {
            Dir(Scratch::new())
        }

        fn save(&self, file: &str, entry: &str) -> Result<String> {
            let entry: Destination = entry.parse().unwrap();
            let way = Way::Replaced;
            save_in(
                &self.0.join(file),
                Uid::effective(),
                List::Allow,
                &entry,
                way,
            )
        }
    }

    #[test]
    fn a_file_is_made_for_the_user_alone() {
        let dir = Dir::new();
        let file = dir.0.join("a/b/config.toml");
        assert!(
            dir.save("a/b/config.toml", "nas.lan:445")
                .unwrap()
                .starts_with("saved in ")
        );
        let text = "[firewall]\nallow = [\"nas.lan:445/tcp\"]\n";
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&dir.0.join("a/b"))), (0o600, 0o700));
        assert!(
            dir.save("a/b/config.toml", "nas.lan:445/tcp")
                .unwrap()
                .ends_with("already")
        );
        // Nothing else lies there.
        assert_eq!(fs::read_dir(dir.0.join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn a_link_to_the_file_stays_one() {
        let dir = Dir::new();
        fs::create_dir(dir.0.join("dotfiles")).unwrap();
        let real = dir.0.join("dotfiles/claude.toml");
        fs::write(&real, "# mine\n").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o644)).unwrap();
        symlink(&real, dir.0.join("config.toml")).unwrap();
        dir.save("config.toml", "10.0.0.1").unwrap();
        assert!(dir.0.join("config.toml").is_symlink());
        let text = fs::read_to_string(&real).unwrap();
        assert!(
            text.starts_with("# mine\n") && text.contains("10.0.0.1"),
            "{text}"
        );
        assert_eq!(real.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        symlink("nowhere", dir.0.join("dangling.toml")).unwrap();
        let error = dir.save("dangling.toml", "10.0.0.1").unwrap_err();
        assert!(error.to_string().contains("leads nowhere"));
        assert!(!dir.0.join("nowhere").exists());
    }

    #[test]
    fn a_file_that_is_bound_stays_the_same_file() {
        use std::os::unix::fs::MetadataExt;
        let dir = Dir::new();
        let file = dir.0.join("config.toml");
        let uid = Uid::effective();
        let entry = |text: &str| text.parse::<Destination>().unwrap();
        let save = |list, text: &str| save_in(&file, uid, list, &entry(text), Way::InPlace);
        fs::write(&file, "[firewall]\nallow = [\"nas.lan\"] # mine\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let before = file.metadata().unwrap();
        save(List::Allow, "10.0.0.1").unwrap();
        // Shorter than before.
        save(List::Deny, "10.0.0.1").unwrap();
        save(List::Deny, "nas.lan").unwrap();
        let after = file.metadata().unwrap();
        assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text,
            "[firewall]\nallow = [] # mine\ndeny = [\"10.0.0.1\", \"nas.lan\"]\n"
        );
    }

    #[test]
    fn what_the_loader_refuses_is_left_alone() {
        let dir = Dir::new();
        let file = dir.0.join("config.toml");
        for (text, mode, says) in [
            ("", 0o666, "can be written by others"),
            ("[firewall\n", 0o600, "cannot be changed"),
            ("[firewall]\nallow = \"x\"\n", 0o600, "cannot be changed"),
            ("[firewal]\n", 0o600, "the file would be wrong"),
        ] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let error = format!("{:#}", dir.save("config.toml", "10.0.0.1").unwrap_err());
            assert!(error.contains(says), "{text:?}: {error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&file, dir.0.join("other")).unwrap();
        let error = format!("{:#}", dir.save("config.toml", "10.0.0.1").unwrap_err());
        assert!(error.contains("2 names"), "{error}");
    }
}
