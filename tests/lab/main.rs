//! The program as its users see it: every scenario drives the built binary on a desktop in a private network of
//! namespaces (`harness::network`). Nothing here sends a packet to the network of the machine that runs the tests.
//!
//! `cargo test --test lab [-- [--list] [--exact] [FILTER…]]`; environment:
//! - `CLAUDE_ISOLATED_TEST_PASTA`: the pasta to use in place of the installed one (its `passt.avx2` beside it);
//! - `CLAUDE_ISOLATED_TEST_BIN`: the program to test in place of the one that cargo built.

mod harness;

mod abstract_sockets;
mod blocked;
mod bus;
mod claude;
mod claude_json;
mod configuration;
mod control;
mod control_change;
mod control_ports;
mod control_socket;
mod control_watch;
mod controls;
mod ctl_can_fail;
mod ctl_check;
mod ctl_verify;
mod day;
mod desktop;
mod dns;
mod dry_run;
mod environment;
mod exit_status;
mod files;
mod gh;
mod git;
mod git_config;
mod git_places;
mod hidden;
mod hosts;
mod inbound;
mod kills;
mod left_behind;
mod live_host;
mod loopback;
mod next_start;
mod on_block;
mod ports;
mod process;
mod reachability;
mod readme;
mod refusals;
mod rulesets;
mod signing;
mod sockets;
mod ssh;
mod starts;
mod syscalls;
mod terminal;
mod tools;
mod workspace;

use std::process::ExitCode;

use harness::Scenario;

const SCENARIOS: &[&[Scenario]] = &[
    controls::ALL,
    ctl_check::ALL,
    ctl_verify::ALL,
    ctl_can_fail::ALL,
    reachability::ALL,
    on_block::ALL,
    blocked::ALL,
    rulesets::ALL,
    loopback::ALL,
    inbound::ALL,
    ports::ALL,
    ports::published::ALL,
    ports::carried::ALL,
    dns::ALL,
    hosts::ALL,
    live_host::ALL,
    process::ALL,
    exit_status::ALL,
    terminal::ALL,
    kills::ALL,
    left_behind::ALL,
    refusals::ALL,
    configuration::ALL,
    control::ALL,
    control_change::ALL,
    control_ports::ALL,
    control_socket::ALL,
    control_watch::ALL,
    starts::ALL,
    next_start::ALL,
    workspace::ALL,
    files::ALL,
    sockets::ALL,
    ssh::ALL,
    bus::ALL,
    gh::ALL,
    desktop::ALL,
    hidden::ALL,
    environment::ALL,
    git::ALL,
    dry_run::ALL,
    claude::ALL,
    claude_json::ALL,
    git_config::ALL,
    git_places::ALL,
    syscalls::ALL,
    tools::ALL,
    day::ALL,
    readme::ALL,
    signing::ALL,
    abstract_sockets::ALL,
];

fn main() -> ExitCode {
    harness::main(SCENARIOS)
}
