//! AppArmor's restriction of user namespaces (Ubuntu 23.10 and later).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::sandbox::programs;

const RESTRICTED: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const PROFILES: &str = "/etc/apparmor.d";

pub fn findings() -> Vec<Finding> {
    let Ok(value) = std::fs::read_to_string(RESTRICTED) else {
        return Vec::new();
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name("claude-isolated");
    let find = |name: &str| programs::find(OsStr::new(name), &path, &cwd);
    let needed: Vec<PathBuf> = ["bwrap", "pasta"].into_iter().filter_map(find).collect();
    let ours = match beside.is_file() {
        true => Some(beside),
        false => find("claude-isolated"),
    };
    vec![finding(&value, &needed, ours.as_deref(), &profiles())]
}

/// `needed` always, `ours` only where it makes the namespaces itself.
fn finding(value: &str, needed: &[PathBuf], ours: Option<&Path>, profiles: &[String]) -> Finding {
    const NAME: &str = "apparmor";
    if value.trim() == "0" {
        return Finding::ok(NAME, "does not restrict user namespaces");
    }
    let without = |program: &&Path| !profiles.iter().any(|text| allows(text, program));
    let missing: Vec<&Path> = needed
        .iter()
        .map(PathBuf::as_path)
        .filter(without)
        .collect();
    if !missing.is_empty() {
        return Finding::failed(
            NAME,
            format!(
                "restricts user namespaces, and no profile lets {} make them",
                listed(&missing)
            ),
            fix(&missing),
        );
    }
    match ours.filter(without) {
        Some(ours) => Finding::note(
            NAME,
            "restricts user namespaces: netns = \"attach\" will not work",
            fix(&[ours]),
        ),
        None => Finding::ok(
            NAME,
            "restricts user namespaces, with profiles for what needs them",
        ),
    }
}

fn listed(programs: &[&Path]) -> String {
    let names: Vec<String> = programs.iter().map(|p| p.display().to_string()).collect();
    names.join(", ")
}

/// The profiles to install, each as a command.
fn fix(programs: &[&Path]) -> String {
    let profile = |program: &&Path| {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        format!(
            "As root, install the profile {PROFILES}/{name} and load it with apparmor_parser -r {PROFILES}/{name}:\n\
             abi <abi/4.0>,\n\
             include <tunables/global>\n\
             profile {name} {} flags=(unconfined) {{\n\
             \x20 userns,\n\
             }}",
            program.display()
        )
    };
    let all: Vec<String> = programs.iter().map(profile).collect();
    all.join("\n")
}

/// Whether a profile is for this program and has the permission `userns` (apparmor.d(5)).
fn allows(profile: &str, program: &Path) -> bool {
    let program = program.display().to_string();
    let code = profile
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let (mut named, mut userns) = (false, false);
    for line in code {
        named |= line
            .split_whitespace()
            .any(|word| word.trim_matches('"') == program);
        userns |= line.trim().starts_with("userns");
    }
    named && userns
}

fn profiles() -> Vec<String> {
    let entries = std::fs::read_dir(PROFILES).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn what_lacks_a_profile_gets_one() {
        let bwrap = PathBuf::from("/usr/bin/bwrap");
        let ours = Path::new("/home/u/.local/bin/claude-isolated");
        let profile =
            "abi <abi/4.0>,\nprofile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n";
        let level = |value: &str, profiles: &[&str]| {
            let profiles: Vec<String> = profiles.iter().map(ToString::to_string).collect();
            let found = finding(value, std::slice::from_ref(&bwrap), Some(ours), &profiles);
            (found.level, found.fix.unwrap_or_default())
        };
        assert_eq!(level("0\n", &[]), (Level::Ok, String::new()));
        let (failed, fix) = level("1\n", &[]);
        assert_eq!(failed, Level::Failed);
        assert!(
            fix.contains(profile.trim_end().split_once("\n").unwrap().1),
            "{fix}"
        );
        let (note, fix) = level("1\n", &[profile]);
        assert_eq!(note, Level::Note);
        assert!(
            fix.contains("profile claude-isolated /home/u/.local/bin/claude-isolated "),
            "{fix}"
        );
        let both = fix.split_once(":\n").unwrap().1;
        assert_eq!(level("1", &[profile, both]).0, Level::Ok);
        // Without the permission a profile does not help.
        assert_eq!(
            level("1", &[&profile.replace("userns", "# userns")]).0,
            Level::Failed
        );
    }
}
