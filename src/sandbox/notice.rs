//! What the program inside can read about its sandbox, so that an agent tells its user instead of guessing.

use std::path::{Path, PathBuf};

/// Where it lies inside.
pub const NOTICE: &str = "/run/claude-isolated/policy.txt";

/// `rules` is the policy's table and its name, `None` without a firewall.
pub fn text(rules: Option<(&str, &str)>, writable: &[PathBuf], hidden: &[String]) -> String {
    let mut text = String::from(
        "This is a sandbox, made by claude-isolated. What is refused here is refused on purpose: tell your user what you\n\
         need and why, and do not look for a way around. Only the user, outside, can allow more.\n",
    );
    match rules {
        Some((name, table)) => {
            text +=
                &format!("\nNetwork, policy {name}, first match wins, as of the start:\n{table}");
            if !table.ends_with('\n') {
                text.push('\n');
            }
            text += "Outside, `claude-isolatedctl allow DEST` opens more at once, without a new start; --allow DEST at the next one.\n";
        }
        None => text += "\nNetwork: the host's own, without a firewall.\n",
    }
    text += "\nFiles that can be written (-w PATH makes more):\n";
    let lines = writable.iter().map(|path| format!("  {}\n", shown(path)));
    text.extend(lines);
    text +=
        "Hooks and other programs that git executes, and the user's own programs, are read-only.\n";
    if !hidden.is_empty() {
        text += &format!("These read as empty: {}\n", hidden.join(", "));
    }
    text
}

/// On one line, whatever the name holds.
fn shown(path: &Path) -> String {
    path.to_string_lossy().replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_blocked_and_what_can_be_written() {
        let text = super::text(
            Some(("home-lan", "  1  private  drop  10.0.0.0/8")),
            &["/w\n/x".into()],
            &[".env".into()],
        );
        for line in [
            "Network, policy home-lan",
            "  1  private  drop  10.0.0.0/8\n",
            "  /w?/x\n",
            "empty: .env\n",
            "`claude-isolatedctl allow DEST`",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(super::text(None, &[], &[]).contains("without a firewall"));
        assert!(!super::text(None, &[], &[]).contains("claude-isolatedctl"));
    }
}
