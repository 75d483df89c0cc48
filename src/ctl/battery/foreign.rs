//! System calls by the tables of other architectures, which have other numbers: they have to end the process.

use anyhow::Result;

use crate::ctl::report::Check;

#[cfg(not(target_arch = "x86_64"))]
pub fn checks() -> Result<Vec<Check>> {
    Ok(Vec::new())
}

#[cfg(target_arch = "x86_64")]
pub fn checks() -> Result<Vec<Check>> {
    let tables: [(&str, Getpid); 2] = [("x32", x32), ("i386", i386)];
    let check = |(table, getpid): &(&str, Getpid)| {
        use nix::sys::{signal::Signal, wait::WaitStatus};
        let (said, status) = crate::ctl::child::run(|| Ok(getpid().to_string()))?;
        let got = match (status, said.parse::<i64>()) {
            (WaitStatus::Signaled(_, signal, _), _) => signal.to_string(),
            (_, Ok(error @ ..0)) => format!("{:?}", nix::Error::from_raw(-error as i32)),
            _ => "success".into(),
        };
        let tried = format!("system call getpid by the table of {table}");
        Ok(Check::equal(
            format!("foreign {table}"),
            tried,
            Signal::SIGSYS.to_string(),
            got,
        ))
    };
    tables.iter().map(check).collect()
}

/// Gives the result, or the negative errno.
#[cfg(target_arch = "x86_64")]
type Getpid = fn() -> i64;

#[cfg(target_arch = "x86_64")]
fn x32() -> i64 {
    use nix::libc;
    // SAFETY: getpid takes nothing. `__X32_SYSCALL_BIT` (asm/unistd.h).
    let result = unsafe { libc::syscall(0x4000_0000 + libc::SYS_getpid) };
    if result < 0 {
        -i64::from(nix::Error::last_raw())
    } else {
        result
    }
}

#[cfg(target_arch = "x86_64")]
fn i386() -> i64 {
    let result: i32;
    // SAFETY: getpid (20 on i386) takes nothing; the gate clobbers r8 to r11 on some kernels.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("eax") 20 => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    result.into()
}
