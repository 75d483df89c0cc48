//! The bwrap command line.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;

use super::binds::INIT;
use super::layout::Layout;
use super::session::Variables;
use crate::stage::plan::fd;

/// What the command line is made from.
#[derive(Debug)]
pub struct Inputs<'a> {
    pub bwrap: &'a Path,
    pub layout: &'a Layout,
    pub uid: u32,
    pub gid: u32,
    pub chdir: &'a Path,
    pub seccomp: bool,
    pub variables: &'a Variables,
    /// The program and its arguments.
    pub command: &'a [OsString],
}

/// A command line in its parts. The program's own process is started by [`INIT`], which is PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    bwrap: OsString,
    /// What is mounted, the variables, the directory.
    pub decided: Vec<OsString>,
    /// What confines the program, whatever is mounted.
    confinement: Vec<OsString>,
    command: Vec<OsString>,
}

impl Line {
    /// The whole command line, `argv[0]` included.
    pub fn whole(&self) -> Vec<OsString> {
        self.with(&self.decided)
    }

    /// The command line of a bwrap that reads what is decided from the descriptor `args`, each argument ended by a NUL.
    pub fn reading(&self, args: RawFd) -> Vec<OsString> {
        self.with(&["--args".into(), args.to_string().into()])
    }

    fn with(&self, decided: &[OsString]) -> Vec<OsString> {
        let mut argv = vec![self.bwrap.clone()];
        for part in [decided, &self.confinement, &self.command] {
            argv.extend_from_slice(part);
        }
        argv
    }
}

/// All options are of bwrap 0.8 or older.
pub fn line(inputs: &Inputs) -> Line {
    let mut decided = inputs.layout.args();
    for name in &inputs.variables.unset {
        decided.extend(["--unsetenv".into(), name.into()]);
    }
    for (name, value) in &inputs.variables.set {
        decided.extend(["--setenv".into(), name.into(), value.into()]);
    }
    decided.extend(["--chdir".into(), inputs.chdir.into()]);
    Line {
        decided,
        ..undecided(
            inputs.bwrap,
            (inputs.uid, inputs.gid),
            inputs.seccomp,
            inputs.command,
        )
    }
}

/// What is known before anything is decided. `user`: uid and gid.
pub fn undecided(bwrap: &Path, user: (u32, u32), seccomp: bool, command: &[OsString]) -> Line {
    let (uid, gid) = (user.0.to_string(), user.1.to_string());
    let mut confinement: Vec<OsString> = [
        "--unshare-user",
        "--uid",
        &uid,
        "--gid",
        &gid,
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--as-pid-1",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
    ]
    .map(OsString::from)
    .into();
    if seccomp {
        confinement.extend(["--seccomp".into(), fd::SECCOMP.to_string().into()]);
    }
    let first = ["--", INIT, super::INIT_FLAG].map(OsString::from);
    Line {
        bwrap: bwrap.into(),
        decided: Vec::new(),
        confinement,
        command: first.into_iter().chain(command.iter().cloned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::layout::Access;
    use std::ffi::OsStr;

    #[test]
    fn the_command_line_verbatim() {
        let mut layout = Layout::default();
        layout.bind(Path::new("/usr"), Access::ReadOnly);
        let line = line(&Inputs {
            bwrap: Path::new("/usr/bin/bwrap"),
            layout: &layout,
            uid: 1000,
            gid: 100,
            chdir: Path::new("/w"),
            seccomp: true,
            variables: &Variables {
                unset: vec!["DISPLAY".into()],
                set: vec![("IS_SANDBOX".into(), "1".into())],
            },
            command: &["/usr/bin/claude".into(), "-p".into()],
        });
        let confinement = "--unshare-user --uid 1000 --gid 100 --unshare-pid --unshare-ipc --unshare-uts --as-pid-1 \
             --die-with-parent --cap-drop ALL --seccomp 11 -- /.claude-isolated/init --__init /usr/bin/claude -p";
        let text = |argv: Vec<OsString>| argv.join(OsStr::new(" ")).into_string().unwrap();
        assert_eq!(
            text(line.whole()),
            format!(
                "/usr/bin/bwrap --ro-bind /usr /usr --unsetenv DISPLAY --setenv IS_SANDBOX 1 --chdir /w {confinement}"
            )
        );
        assert_eq!(
            text(line.reading(22)),
            format!("/usr/bin/bwrap --args 22 {confinement}")
        );
    }
}
