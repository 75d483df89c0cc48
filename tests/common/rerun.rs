//! A test in namespaces of its own: its executable is run there once more, for this test alone.

use std::env;
use std::process::Command;

const INSIDE: &str = "CLAUDE_ISOLATED_TEST_INSIDE";
/// What has not ended by then hangs; in seconds.
const LIMIT: &str = "600";

/// Runs the test named `test` again as root of a user namespace and those that `namespaces` (options of unshare(1)) name,
/// after `script`, and gives what it said on stdout. `None` in the process inside, whose part the test itself is.
pub fn rerun(test: &str, namespaces: &[&str], script: &str) -> Option<String> {
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    let script = format!("{script}\nexec \"$0\" --exact {test} --nocapture --include-ignored");
    let output = Command::new("timeout")
        .args(["-sKILL", LIMIT, "unshare", "-r", "--kill-child"])
        .args(namespaces)
        .args(["sh", "-c", &script])
        .arg(env::current_exe().unwrap())
        .env(INSIDE, "1")
        .output()
        .expect("timeout (coreutils) and unshare (util-linux) are needed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{said}{errors}");
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test} failed in its namespace"
    );
    Some(said)
}
