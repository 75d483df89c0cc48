//! System calls that the seccomp filter has to refuse.
//!
//! An errno alone does not tell the filter from the kernel, which refuses many of these calls to an ordinary user, too.
//! So a child adds a filter of its own that answers each call with SECCOMP_RET_TRACE: without a tracer that is ENOSYS,
//! and the call is never made. A filter's errno goes before it (seccomp(2), "Seccomp filters return values"), so what
//! comes back is the sandbox's filter's answer, or ENOSYS where it would have let the call pass.

mod conditional;

use anyhow::{Context, Result};
use libseccomp::{ScmpAction, ScmpFilterContext, ScmpSyscall};
use nix::errno::Errno;
use nix::libc;

use crate::ctl::child;
use crate::ctl::report::Check;
use crate::sandbox::seccomp::{self, Refused, Switches};
use conditional::CONDITIONAL;

/// One call to make, and the errno that it has to give.
struct Attempt {
    name: String,
    tried: String,
    number: i32,
    args: [u64; 3],
    errno: i32,
}

pub fn checks(switches: Switches) -> Result<Vec<Check>> {
    let (plain, absent): (Vec<Refused>, Vec<Refused>) = seccomp::refused(switches.nested)
        .into_iter()
        .partition(|call| call.errno != libc::ENOSYS);
    let mut attempts: Vec<Attempt> = plain.iter().map(attempt).collect();
    for conditional in CONDITIONAL {
        if conditional.allowed(switches) {
            continue;
        }
        attempts.push(Attempt {
            name: format!("system call {} {}", conditional.call, conditional.name),
            tried: conditional.tried.into(),
            number: ScmpSyscall::from_name(conditional.call)?.into(),
            args: conditional.args,
            errno: conditional.errno,
        });
    }
    let mut checks = answers(&attempts, true)?;
    // The filter says ENOSYS, as the other one would: these are really made, without arguments.
    checks.extend(answers(
        &absent.iter().map(attempt).collect::<Vec<_>>(),
        false,
    )?);
    Ok(checks)
}

fn attempt(call: &Refused) -> Attempt {
    Attempt {
        name: format!("system call {}", call.name),
        tried: format!("system call {}", call.name),
        number: call.number,
        args: [0; 3],
        errno: call.errno,
    }
}

fn answers(attempts: &[Attempt], traced: bool) -> Result<Vec<Check>> {
    let (text, status) = child::run(|| {
        if traced {
            trace_all(attempts)?;
        }
        Ok(attempts.iter().map(|a| format!("{}\n", call(a))).collect())
    })?;
    let answers: Vec<&str> = text.lines().collect();
    let check = |(n, attempt): (usize, &Attempt)| {
        let got = match answers.get(n).map(|answer| answer.parse()) {
            Some(Ok(0)) => "success".into(),
            Some(Ok(libc::ENOSYS)) if traced => "not refused by a filter".into(),
            Some(Ok(errno)) => format!("{:?}", Errno::from_raw(errno)),
            Some(Err(_)) => text.clone(),
            None => format!("{status:?}"),
        };
        let expected = format!("{:?}", Errno::from_raw(attempt.errno));
        Check::equal(&attempt.name, &attempt.tried, expected, got)
    };
    Ok(attempts.iter().enumerate().map(check).collect())
}

fn trace_all(attempts: &[Attempt]) -> Result<()> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow)?;
    for attempt in attempts {
        let call = ScmpSyscall::from(attempt.number);
        filter.add_rule(ScmpAction::Trace(0), call)?;
    }
    filter.load().context("cannot add a filter of its own")
}

/// The errno, or 0.
fn call(attempt: &Attempt) -> i32 {
    let [a, b, c] = attempt.args;
    // SAFETY: the call is answered by a filter and not made; where it is made (clone3), its arguments are null.
    let result = unsafe { libc::syscall(attempt.number.into(), a, b, c, 0, 0, 0) };
    if result < 0 { Errno::last_raw() } else { 0 }
}
