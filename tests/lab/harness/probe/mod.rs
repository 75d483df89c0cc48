//! The program that scenarios start inside the sandbox; it says what it can do there, one line a question.

pub mod echo;
pub mod net;
pub mod obey;
pub mod session;
pub mod syscalls;
pub mod system;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, bail};

use net::Answer;

pub fn main(args: &[String]) -> ExitCode {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["reach", targets @ ..] => reach(targets),
        ["descriptors"] => system::descriptors(),
        ["mounts", paths @ ..] => system::mounts(paths),
        ["calls"] => system::calls(),
        ["refused"] => syscalls::refused(),
        ["abstract", name] => syscalls::abstract_socket(name),
        ["abstract-own"] => syscalls::abstract_own(),
        ["connect", paths @ ..] => system::connect(paths),
        ["foreign", table] => system::foreign(table),
        ["obey"] => obey::obey(),
        ["talk"] => session::talk(),
        ["listen", port, mark] => session::listen(port, mark),
        ["insist", question, begun, mark] => session::insist(question, begun, mark),
        ["serve", mark, places @ ..] => echo::serve("sandbox", mark, places),
        ["hear", port, file, asked @ ..] => net::hear(port, file, asked),
        ["flood", address, port, rate, seconds] => net::flood(address, port, rate, seconds),
        ["scan", network, hosts, rate] => net::scan(network, hosts, rate),
        ["send", address, port, text] => net::send(address, port, text),
        _ => Err(anyhow::anyhow!("probe: no such question: {args:?}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

/// `tcp/ADDR/PORT`, `udp/ADDR/PORT` or `icmp/ADDR`: asks all at the same time and prints `TARGET ANSWER` for each.
fn reach(targets: &[&str]) -> Result<()> {
    if targets.iter().any(|t| t.contains("/fe80")) {
        net::wait_for_link_local()?;
    }
    thread::scope(|scope| {
        let asked: Vec<_> = targets
            .iter()
            .map(|t| (t, scope.spawn(|| net::ask(t))))
            .collect();
        for (target, answer) in asked {
            let answer = answer
                .join()
                .map_err(|_| anyhow::anyhow!("{target}: panicked"))??;
            println!("{target} {answer}");
        }
        Ok(())
    })
}

/// Answers by target.
#[derive(Debug)]
pub struct Answers(pub BTreeMap<String, Answer>);

impl Answers {
    pub fn parse(text: &str) -> Result<Answers> {
        let lines = text.lines().map(|line| {
            let (target, answer) = line
                .split_once(' ')
                .with_context(|| format!("no answer: {line}"))?;
            Ok((target.to_owned(), Answer::parse(answer)?))
        });
        Ok(Answers(lines.collect::<Result<_>>()?))
    }

    /// An error that lists each target whose answer is not as `wanted` says; there has to be at least one target.
    pub fn all(&self, what: &str, wanted: impl Fn(&str, &Answer) -> bool) -> Result<()> {
        let wrong: Vec<String> = self
            .0
            .iter()
            .filter(|(t, a)| !wanted(t, a))
            .map(|(t, a)| format!("{t} {a}"))
            .collect();
        if wrong.is_empty() && !self.0.is_empty() {
            return Ok(());
        }
        bail!("{what}, but: {}", wrong.join("; "))
    }
}
