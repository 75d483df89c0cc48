//! What was asked for and opens more than it seems to, a line each.

use std::path::{Path, PathBuf};

use crate::launch::Filesystem;
use crate::sandbox::workspace;

/// Of home: keys, passwords, and browsers that are logged in.
const SECRETS: [&str; 21] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".bash_history",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/gcloud",
    ".config/google-chrome",
    ".docker",
    ".git-credentials",
    ".kube",
    ".local/share/keyrings",
    ".mozilla",
    ".netrc",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".thunderbird",
    ".var/app",
    "snap",
];
/// In `.ssh`, and no secrets; a command can be in the first.
const PUBLIC: [&str; 3] = ["config", "known_hosts", "authorized_keys"];
/// Of home: what the user, or a login, executes outside.
const EXECUTED: [&str; 17] = [
    ".bash_profile",
    ".bashrc",
    ".cargo/bin",
    ".config/autostart",
    ".config/environment.d",
    ".config/fish",
    ".config/systemd",
    ".gitconfig",
    ".local/bin",
    ".local/share/applications",
    ".local/share/systemd",
    ".profile",
    ".xprofile",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    "bin",
];

/// Of `-w` and `-r`, and of `write` and `read` in a configuration. `home` is resolved.
pub fn files(filesystem: &Filesystem, home: &Path) -> Vec<String> {
    let asked = |option, paths| lines(option, paths, home);
    let mut lines = asked("-w", &filesystem.write);
    lines.extend(asked("-r", &filesystem.read));
    lines
}

fn lines(option: &str, paths: &[PathBuf], home: &Path) -> Vec<String> {
    let writable = option == "-w";
    let line = |path: &PathBuf| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let secret = of_home(&SECRETS, &real, home, false);
        let secret = secret.filter(|_| writable || !is_public(&real, home));
        // Or can be made there.
        let executed = of_home(&EXECUTED, &real, home, true).filter(|_| writable);
        let shown = match (secret, executed) {
            _ if home.starts_with(&real) => "your whole home, private keys among it".into(),
            (Some(secret), _) => format!("keys, passwords or logins (~/{secret})"),
            (_, Some(executed)) => format!("what is executed outside (~/{executed})"),
            _ if writable && workspace::is_the_systems(&real) => "files of the system".into(),
            _ => return None,
        };
        let how = if writable { ", writable" } else { "" };
        Some(format!(
            "{option} {} shows the sandbox {shown}{how}",
            path.display()
        ))
    };
    paths.iter().filter_map(line).collect()
}

/// The one of these that `path`, resolved, is, lies in, or holds, or with `missing` could hold.
fn of_home<'a>(names: &[&'a str], path: &Path, home: &Path, missing: bool) -> Option<&'a str> {
    let meets = |name: &&&str| {
        let there = home.join(name);
        path.starts_with(&there) || there.starts_with(path) && (missing || there.exists())
    };
    names.iter().find(meets).copied()
}

fn is_public(path: &Path, home: &Path) -> bool {
    let of_ssh = |file: &Path| {
        let name = file.to_string_lossy();
        PUBLIC.contains(&&*name) || name.ends_with(".pub")
    };
    let inside = path.strip_prefix(home.join(".ssh"));
    inside.is_ok_and(of_ssh)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn directories_that_show_too_much() {
        let home = Path::new("/home/nobody-at-all");
        let said = |write: &[&str], read: &[&str]| {
            let paths = |paths: &[&str]| paths.iter().map(Into::into).collect();
            let filesystem = Filesystem {
                write: paths(write),
                read: paths(read),
                nas: None,
            };
            files(&filesystem, home)
        };
        for (write, line) in [
            (
                "/home/nobody-at-all",
                "-w /home/nobody-at-all shows the sandbox your whole home, private keys among it, writable",
            ),
            (
                "/",
                "-w / shows the sandbox your whole home, private keys among it, writable",
            ),
            (
                "/home/nobody-at-all/.ssh",
                "-w /home/nobody-at-all/.ssh shows the sandbox keys, passwords or logins (~/.ssh), writable",
            ),
            (
                "/home/nobody-at-all/.config/gcloud/x",
                "-w /home/nobody-at-all/.config/gcloud/x shows the sandbox keys, passwords or logins (~/.config/gcloud), writable",
            ),
            (
                "/home/nobody-at-all/bin",
                "-w /home/nobody-at-all/bin shows the sandbox what is executed outside (~/bin), writable",
            ),
            (
                "/etc",
                "-w /etc shows the sandbox files of the system, writable",
            ),
        ] {
            assert_eq!(said(&[write], &[]), [line]);
        }
        assert_eq!(
            said(&[], &["/home"]),
            ["-r /home shows the sandbox your whole home, private keys among it"]
        );
        let usual = ["/home/nobody-at-all/src", "/tmp", "/mnt/disk"];
        let read = [
            "/etc",
            "/srv",
            "/home/nobody-at-all/bin",
            "/home/nobody-at-all/.config",
            "/home/nobody-at-all/.ssh/config",
            "/home/nobody-at-all/.ssh/id_rsa.pub",
        ];
        assert_eq!(said(&usual, &read), [""; 0]);
        let home = Scratch::new();
        let config = home.join(".config");
        let line = || lines("-r", std::slice::from_ref(&config), &home);
        std::fs::create_dir_all(config.join("gh")).unwrap();
        assert_eq!(line(), [""; 0]);
        std::fs::create_dir_all(config.join("chromium/Default")).unwrap();
        let end = "shows the sandbox keys, passwords or logins (~/.config/chromium)";
        assert!(line().concat().ends_with(end), "{:?}", line());
    }
}
