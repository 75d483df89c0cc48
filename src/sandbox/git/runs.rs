//! Which variables of a git configuration make git execute a program, or take what it executes from elsewhere.

use std::collections::HashSet;

use super::config::{self, Entry};

/// Variables whose value is a command line, a program, or a directory or file that programs are taken from
/// (git-config(1) of git 2.51, git-lfs-config(5)). `*` stands for any subsection.
const RUN: &[&str] = &[
    "browser.*.cmd",
    "browser.*.path",
    "core.alternaterefscommand",
    "core.askpass",
    "core.editor",
    "core.fsmonitor",
    "core.gitproxy",
    "core.hookspath",
    "core.pager",
    "core.sshcommand",
    "credential.helper",
    "credential.*.helper",
    "diff.external",
    "diff.*.command",
    "diff.*.textconv",
    "difftool.*.cmd",
    "difftool.*.path",
    "filter.*.clean",
    "filter.*.process",
    "filter.*.smudge",
    "gc.recentobjectshook",
    "gpg.program",
    "gpg.*.defaultkeycommand",
    "gpg.*.program",
    "guitool.*.cmd",
    "hook.*.command",
    "imap.tunnel",
    "include.path",
    "includeif.*.path",
    "init.templatedir",
    "instaweb.browser",
    "instaweb.httpd",
    "interactive.difffilter",
    "lfs.customtransfer.*.path",
    "lfs.extension.*.clean",
    "lfs.extension.*.smudge",
    "man.*.cmd",
    "man.*.path",
    "merge.*.driver",
    "mergetool.*.cmd",
    "mergetool.*.path",
    "remote.*.receivepack",
    "remote.*.uploadpack",
    "remote.*.vcs",
    "sendemail.sendmailcmd",
    "sendemail.smtpserver",
    "sendemail.tocmd",
    "sendemail.cccmd",
    "sendemail.headercmd",
    "sendemail.*.sendmailcmd",
    "sendemail.*.tocmd",
    "sendemail.*.cccmd",
    "sendemail.*.headercmd",
    "sendemail.*.smtpserver",
    "sequence.editor",
    "tar.*.command",
    "trailer.*.cmd",
    "trailer.*.command",
    "uploadpack.packobjectshook",
];

/// Whether git would execute something because of this variable.
pub fn runs(entry: &Entry) -> bool {
    let Some(value) = entry.value.as_deref().filter(|value| !value.is_empty()) else {
        return false;
    };
    let key = entry.key.as_str();
    let first = key.split('.').next().unwrap_or(key);
    match first {
        // Without `!` an alias is one of git's own commands, which is no more than git.
        "alias" => value.trim_start().starts_with('!'),
        "pager" => !boolean(value),
        // `ext::` transports execute the address; `insteadOf` rewrites others into one.
        "protocol" => key.ends_with(".allow") && value != "never",
        "remote" if key.ends_with("url") => value.contains("ext::"),
        "submodule" if key.ends_with(".url") => value.contains("ext::"),
        "submodule" if key.ends_with(".update") => value.trim_start().starts_with('!'),
        "url" => key.contains("ext::"),
        _ => {
            RUN.iter().any(|pattern| matches(pattern, key))
                && !(key == "core.fsmonitor" && boolean(value))
        }
    }
}

/// A key in the form of the table: the subsection, which may hold dots, is whatever lies between.
fn matches(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == key,
        Some((head, tail)) => {
            key.len() > head.len() + tail.len() && key.starts_with(head) && key.ends_with(tail)
        }
    }
}

fn boolean(value: &str) -> bool {
    ["true", "false", "yes", "no", "on", "off", "1", "0"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// A variable and its value, for comparison.
fn said(entry: &Entry) -> (&str, Option<&str>) {
    (&entry.key, entry.value.as_deref())
}

/// Where git writes to: `git reset --hard` replaces files there.
pub const WORKTREE: &str = "core.worktree";

/// What `now` has and `before` has not, of what makes git execute something, or write where it must not: `strays` says
/// which worktrees are meant.
pub fn added<'a>(
    before: &[Entry],
    now: &'a [Entry],
    strays: &dyn Fn(&str) -> bool,
) -> Vec<&'a Entry> {
    let elsewhere =
        |entry: &Entry| entry.key == WORKTREE && entry.value.as_deref().is_some_and(strays);
    let before: HashSet<_> = before.iter().map(said).collect();
    now.iter()
        .filter(|entry| runs(entry) || elsewhere(entry))
        .filter(|entry| !before.contains(&said(entry)))
        .collect()
}

/// What is to be done about a file at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    Nothing,
    /// This is to be its text.
    Text(Vec<u8>),
    /// It is to be as it was before the program ran.
    Whole,
}

/// How to have the file without what was [`added`]; a value that was replaced is put back.
pub fn undo(before: &[Entry], text: &[u8], strays: &dyn Fn(&str) -> bool) -> Undo {
    take_out(before, before, text, strays)
}

/// The same; of what was replaced only those of `back` are put back.
pub fn take_out(
    before: &[Entry],
    back: &[Entry],
    text: &[u8],
    strays: &dyn Fn(&str) -> bool,
) -> Undo {
    let now = config::read(text);
    if now.refused {
        return Undo::Whole;
    }
    let added = added(before, &now.entries, strays);
    if added.is_empty() {
        return Undo::Nothing;
    }
    let kept = without(text, &added, back, &now.entries);
    let again = config::read(&kept);
    if again.refused || !self::added(before, &again.entries, strays).is_empty() {
        return Undo::Whole;
    }
    Undo::Text(kept)
}

fn without(text: &[u8], added: &[&Entry], back: &[Entry], now: &[Entry]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut at = 0;
    for entry in added {
        kept.extend_from_slice(&text[at..entry.span.start]);
        // A section's own line goes on.
        if text[..entry.span.start].ends_with(b"]") || text[..entry.span.start].ends_with(b"] ") {
            kept.push(b'\n');
        }
        at = entry.span.end;
    }
    kept.extend_from_slice(&text[at..]);
    let keys: HashSet<&str> = added.iter().map(|new| &*new.key).collect();
    let now: HashSet<_> = now.iter().map(said).collect();
    let replaced = back
        .iter()
        .filter(|old| keys.contains(&*old.key) && !now.contains(&said(old)));
    for old in replaced {
        if kept.last().is_some_and(|byte| *byte != b'\n') {
            kept.push(b'\n');
        }
        kept.extend_from_slice(written(old).as_bytes());
    }
    kept
}

/// A variable as a section of its own.
fn written(entry: &Entry) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let (section, rest) = entry.key.split_once('.').unwrap_or((&entry.key, ""));
    let (sub, name) = rest.rsplit_once('.').unzip();
    let sub = sub
        .map(|sub| format!(" \"{}\"", escape(sub)))
        .unwrap_or_default();
    let name = name.unwrap_or(rest);
    match &entry.value {
        None => format!("[{section}{sub}]\n\t{name}\n"),
        Some(value) => {
            let value = escape(value).replace('\n', "\\n").replace('\t', "\\t");
            format!("[{section}{sub}]\n\t{name} = \"{value}\"\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::parse;
    use super::*;

    fn keys(text: &str) -> Vec<String> {
        let all = parse(text.as_bytes());
        all.into_iter()
            .filter(runs)
            .map(|entry| entry.key)
            .collect()
    }

    #[test]
    fn what_runs_a_program_is_told_from_what_does_not() {
        let runs = "[core]\nfsmonitor=x\nsshCommand=x\nhooksPath=h\npager=p\n[alias]\na=!x\n[pager]\nlog=p\n\
            [filter \"a.b\"]\nclean=x\n[include]\npath=x\n[remote \"o\"]\nurl=ext::sh -c x\n[url \"ext::x\"]\n\
            insteadOf=https://\n[protocol \"ext\"]\nallow=always\n[submodule \"s\"]\nupdate=!x\n";
        assert_eq!(keys(runs).len(), 12, "{:?}", keys(runs));
        let harmless = "[core]\nfsmonitor=true\nbare=false\npager=\n[alias]\na=commit -v\n[pager]\nlog=false\n\
            [filter \"x\"]\nrequired=true\n[remote \"o\"]\nurl=https://x/y\nfetch=+a:b\n[submodule \"s\"]\nupdate=merge\n\
            url=../s\n[user]\nname=x\n[branch \"m\"]\nremote=o\n";
        assert_eq!(keys(harmless), Vec::<String>::new());
    }

    #[test]
    fn what_was_added_goes_and_what_was_replaced_comes_back() {
        let before =
            parse(b"[core]\n\tpager = less -R\n[filter \"lfs\"]\n\tclean = git-lfs clean\n");
        for (now, after) in [
            (
                "[core]\n\tpager = less -R\n\tfsmonitor = evil\n[user]\n\tname = x\n",
                Some("[core]\n\tpager = less -R\n\t[user]\n\tname = x\n"),
            ),
            (
                "[core] pager = evil\n",
                Some("[core] \n[core]\n\tpager = \"less -R\"\n"),
            ),
            ("[core]\n\tpager = less -R\n[user]\n\tname = y\n", None),
            ("[core]\n\tworktree = /home\n", Some("[core]\n\t")),
            ("[core]\n\tworktree = ../sub\n", None),
        ] {
            let expected = after.map_or(Undo::Nothing, |text| Undo::Text(text.into()));
            assert_eq!(
                undo(&before, now.as_bytes(), &|value| value != "../sub"),
                expected,
                "{now}"
            );
        }
    }

    #[test]
    fn what_git_refuses_goes_as_a_whole() {
        assert_eq!(undo(&[], b"[a]\nk = v\n]\n", &|_| true), Undo::Whole);
    }

    #[test]
    fn what_is_put_back_reads_the_same() {
        for text in [
            "[a \"b\\\"c\"]\nk = \"x\\\\ ; \\ty\"\n",
            "[a]\nk\n",
            "[a]\nk = \" v \"\n",
        ] {
            let entry = parse(text.as_bytes()).remove(0);
            let again = parse(written(&entry).as_bytes()).remove(0);
            assert_eq!(said(&entry), said(&again));
        }
    }
}
