//! The bwrap command line.

use std::ffi::OsString;
use std::path::Path;

use super::binds::INIT;
use super::layout::Layout;
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
    pub unsetenv: &'a [OsString],
    pub setenv: &'a [(&'a str, &'a str)],
    /// The program and its arguments.
    pub command: &'a [OsString],
}

/// The whole command line, `argv[0]` included. The program's own process is started by [`INIT`], which is PID 1.
///
/// All options are of bwrap 0.8 or older.
pub fn argv(inputs: &Inputs) -> Vec<OsString> {
    let mut argv: Vec<OsString> = vec![inputs.bwrap.into()];
    argv.extend(inputs.layout.args());
    for name in inputs.unsetenv {
        argv.extend(["--unsetenv".into(), name.clone()]);
    }
    for (name, value) in inputs.setenv {
        argv.extend(["--setenv".into(), name.into(), value.into()]);
    }
    argv.extend(["--unshare-user", "--uid"].map(OsString::from));
    argv.push(inputs.uid.to_string().into());
    argv.push("--gid".into());
    argv.push(inputs.gid.to_string().into());
    let fixed = [
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--as-pid-1",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
    ];
    argv.extend(fixed.map(OsString::from));
    if inputs.seccomp {
        argv.extend(["--seccomp".into(), fd::SECCOMP.to_string().into()]);
    }
    argv.extend(["--chdir".into(), inputs.chdir.into()]);
    argv.extend(["--", INIT, super::INIT_FLAG].map(OsString::from));
    argv.extend_from_slice(inputs.command);
    argv
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::layout::Access;

    #[test]
    fn the_command_line_verbatim() {
        let mut layout = Layout::default();
        layout.bind(Path::new("/usr"), Access::ReadOnly);
        let argv = argv(&Inputs {
            bwrap: Path::new("/usr/bin/bwrap"),
            layout: &layout,
            uid: 1000,
            gid: 100,
            chdir: Path::new("/w"),
            seccomp: true,
            unsetenv: &["SECRET".into()],
            setenv: &[("IS_SANDBOX", "1")],
            command: &["/usr/bin/claude".into(), "-p".into()],
        });
        let argv: Vec<&str> = argv.iter().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(
            argv.join(" "),
            "/usr/bin/bwrap --ro-bind /usr /usr --unsetenv SECRET --setenv IS_SANDBOX 1 --unshare-user --uid 1000 --gid 100 \
             --unshare-pid --unshare-ipc --unshare-uts --as-pid-1 --die-with-parent --cap-drop ALL --seccomp 11 \
             --chdir /w -- /.claude-isolated/init --__init /usr/bin/claude -p"
        );
    }
}
