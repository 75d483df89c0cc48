//! The seccomp denylist: a classic BPF program (seccomp(2)) that libseccomp compiles from [`table::TABLE`].

pub mod condition;
pub mod table;

use std::io::{Read, Seek};

use anyhow::{Context, Result};
use libseccomp::{
    ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall,
};

use crate::stage::system::memory_file;
use condition::{Compare, When};
pub use table::Switches;
use table::{Entry, TABLE};

/// Architectures that the table was made for; others have system calls that do not mean the same.
pub const ARCHITECTURES: &[&str] = &["x86_64", "aarch64"];

/// A system call that the filter refuses whatever its arguments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub name: &'static str,
    /// Of this architecture.
    pub number: i32,
    pub errno: i32,
}

/// What [`filter`] refuses whole, on this architecture.
pub fn refused(nested: bool) -> Vec<Refused> {
    let whole = TABLE.iter().filter(|entry| entry.when == When::Always);
    whole
        .filter_map(|entry| {
            let number = i32::from(number(entry).ok()?);
            // Negative: libseccomp's numbers of calls that only other architectures have.
            (number >= 0).then_some(Refused {
                name: entry.call,
                number,
                errno: entry.answer(nested)?,
            })
        })
        .collect()
}

/// Compiles the filter into the bytes that bwrap's `--seccomp` reads (an array of `struct sock_filter`).
///
/// Calls of any other architecture, x32's among them, kill the process.
pub fn filter(switches: Switches) -> Result<Vec<u8>> {
    compile(ScmpArch::native(), switches, TABLE)
}

/// For one architecture. libseccomp takes calls that it has no name for on its own architecture only.
fn compile<'a>(
    arch: ScmpArch,
    switches: Switches,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> Result<Vec<u8>> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow)?;
    filter.set_act_badarch(ScmpAction::KillProcess)?;
    if arch != ScmpArch::native() {
        filter.add_arch(arch)?;
        filter.remove_arch(ScmpArch::native())?;
    }
    for entry in entries {
        let Some((when, errno)) = entry.rule(switches) else {
            continue;
        };
        let failed = || format!("seccomp rule for {}", entry.call);
        let call = number(entry).with_context(failed)?;
        for all in when.alternatives() {
            let compares: Vec<_> = all.iter().map(compare).collect();
            filter
                .add_rule_conditional(ScmpAction::Errno(errno), call, &compares)
                .with_context(failed)?;
        }
    }
    export(&filter)
}

/// libseccomp's own number of a call; one that only other architectures have is a number that no call has.
fn number(entry: &Entry) -> Result<ScmpSyscall> {
    match (ScmpSyscall::from_name(entry.call), entry.number) {
        (Ok(call), _) => Ok(call),
        (Err(_), Some(number)) => Ok(ScmpSyscall::from(number)),
        (Err(e), None) => Err(e).context("libseccomp does not know it"),
    }
}

fn compare(c: &Compare) -> ScmpArgCompare {
    let op = ScmpCompareOp::MaskedEqual(c.mask.into());
    ScmpArgCompare::new(c.arg, op, c.value.into())
}

/// Through a memfd: exporting into memory came only with libseccomp 2.6.
fn export(filter: &ScmpFilterContext) -> Result<Vec<u8>> {
    let mut file = memory_file("claude-isolated-seccomp", &[])?;
    filter
        .export_bpf(&mut file)
        .context("cannot export the seccomp filter")?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod bpf;
#[cfg(test)]
mod tests;
