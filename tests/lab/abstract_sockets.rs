//! Abstract unix sockets belong to the network namespace, which under `-F` is the desk's.

use std::os::unix::net::{UnixDatagram, UnixListener};

use anyhow::{Result, ensure};
use nix::libc;

use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROBE;
use crate::harness::probe::syscalls::address;
use crate::harness::{Desk, EVERYONE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(the_desks_are_out_of_reach, EVERYONE),
    scenario!(its_own_are_not, EVERYONE),
];

/// Landlock's scopes came with its ABI 6 (Linux 6.12).
fn kernel_can() -> bool {
    const VERSION: i32 = 1;
    // SAFETY: asks for the version; no memory is passed.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    abi >= 6
}

fn the_desks_are_out_of_reach(desk: &Desk) -> Result<()> {
    let name = format!("desk-{}-{:?}", std::process::id(), desk.mode);
    // The network namespace, and so the name, is shared with other scenarios, which have process ids of their own.
    let name = format!("{name}-{:p}", &raw const name);
    let _stream = UnixListener::bind_addr(&address(&name)?)?;
    let _datagram = UnixDatagram::bind_addr(&address(&format!("{name}-dgram"))?)?;
    let reached = "stream ok\ndatagram ok\n";
    let outside = run(desk.user(PROBE).args(["abstract", &name]), LIMIT)?.ok()?;
    ensure!(outside == reached, "outside: {outside}");
    let bwrap = [
        "--dev-bind",
        "/",
        "/",
        "--unshare-user",
        "--unshare-pid",
        PROBE,
        "abstract",
        &name,
    ];
    let bare = run(desk.user("/usr/bin/bwrap").args(bwrap), LIMIT)?.ok()?;
    ensure!(bare == reached, "in bwrap alone: {bare}");

    let apart = desk.probe(&[], &["abstract", &name])?;
    ensure!(
        apart == "stream ECONNREFUSED\ndatagram ECONNREFUSED\n",
        "with a network namespace: {apart}"
    );
    // Where the kernel cannot, the README says so.
    let meant = match kernel_can() {
        true => "stream EPERM\ndatagram EPERM\n",
        false => reached,
    };
    let inside = desk.probe(&["-F"], &["abstract", &name])?;
    ensure!(inside == meant, "-F: {inside}");
    desk.config("[sandbox]\nnested = true")?;
    for script in [
        format!("{PROBE} abstract {name} | cat"),
        format!("setsid -w {PROBE} abstract {name}"),
        format!("unshare -U {PROBE} abstract {name}"),
    ] {
        let child = desk.shell(&["-F"], &script)?.ok()?;
        ensure!(child == meant, "-F, {script}: {child}");
    }
    Ok(())
}

fn its_own_are_not(desk: &Desk) -> Result<()> {
    for options in [&[][..], &["-F"]] {
        let own = desk.probe(options, &["abstract-own"])?;
        ensure!(own == "own ok\n", "{options:?}: {own}");
    }
    Ok(())
}
