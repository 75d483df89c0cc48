//! `--dry-run`: everything that a start would do, for people or as JSON.

use std::ffi::OsString;
use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;

use super::prepare::{Firewall, Prepared, Surroundings, Way};
use crate::nf;
use crate::policy::words::{self, AllowedView, AttachedView, RuleView};

/// The word in the place of the process that pasta would attach to.
const TARGET: &str = "PID";

#[derive(Serialize)]
struct View<'a> {
    version: &'static str,
    netns: Option<&'static str>,
    firewall: bool,
    policy: Option<&'a str>,
    attached: Vec<AttachedView>,
    allow: Vec<AllowedView>,
    deny: Vec<AllowedView>,
    dns: Vec<String>,
    publish: Vec<String>,
    #[serde(rename = "host-ports")]
    host_ports: Vec<String>,
    rules: Vec<RuleView>,
    /// As `nft -j -f` takes it.
    ruleset: Option<serde_json::Value>,
    argv: Argv,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Argv {
    pasta: Option<Vec<String>>,
    bwrap: Vec<String>,
}

/// The whole output.
pub fn text(prepared: &Prepared, around: &Surroundings, json: bool) -> Result<String> {
    let view = view(prepared, around)?;
    if json {
        return Ok(serde_json::to_string_pretty(&view)? + "\n");
    }
    let mut out = String::new();
    if !view.warnings.is_empty() {
        out.push_str("Warnings:\n");
        indent(&mut out, &view.warnings.join("\n"));
        out.push('\n');
    }
    if let Some(firewall) = &prepared.firewall {
        firewall_text(&mut out, firewall, &view)?;
    } else {
        writeln!(
            out,
            "No firewall: the program would have the host's whole network."
        )?;
    }
    if let Some(argv) = &view.argv.pasta {
        writeln!(out, "\npasta command line:\n  {}", quoted(argv))?;
    }
    writeln!(out, "\nbwrap command line:\n  {}", quoted(&view.argv.bwrap))?;
    Ok(out)
}

fn firewall_text(out: &mut String, firewall: &Firewall, view: &View) -> Result<()> {
    let how = match firewall.way {
        Way::Pasta => "made by pasta",
        Way::Attach => "our own, pasta attaches",
    };
    writeln!(
        out,
        "Policy {}, first match wins (network namespace: {how}):",
        firewall.policy.name
    )?;
    indent(out, &words::table(&firewall.policy));
    let inputs = &firewall.inputs;
    for (title, text) in [
        ("Attached networks", words::attached_table(&inputs.attached)),
        ("Allow entries", words::allowed_table(&inputs.allowed)),
        ("Deny entries", words::allowed_table(&inputs.denied)),
        ("Published ports", view.publish.join("\n")),
        ("Host ports", view.host_ports.join("\n")),
        ("Resolvers that names are relayed to", view.dns.join("\n")),
    ] {
        section(out, title, &text);
    }
    let table = nf::Listing::from(nf::compile(&firewall.document)?).text()?;
    writeln!(
        out,
        "\nnftables table (as a document for nft -j: --dry-run=json):\n{table}"
    )?;
    Ok(())
}

fn warnings(prepared: &Prepared) -> Vec<String> {
    let mut warnings = prepared.warnings.clone();
    let missing = prepared.missing.iter();
    warnings.extend(missing.map(|n| format!("{} was not found: {}", n.name, n.hint)));
    let program = prepared.program.to_string_lossy();
    if !prepared.program_found && prepared.missing.iter().all(|n| n.name != program) {
        warnings.push(format!("{program} was not found"));
    }
    warnings
}

fn view<'a>(prepared: &'a Prepared, around: &Surroundings) -> Result<View<'a>> {
    let firewall = prepared.firewall.as_ref();
    let of = |f: &Firewall| f.pasta_argv(&around.self_exe, TARGET);
    Ok(View {
        version: env!("CARGO_PKG_VERSION"),
        netns: firewall.map(|f| match f.way {
            Way::Pasta => "pasta",
            Way::Attach => "attach",
        }),
        firewall: firewall.is_some(),
        policy: firewall.map(|f| f.policy.name.as_str()),
        attached: firewall
            .map(|f| words::attached_views(&f.inputs.attached))
            .unwrap_or_default(),
        allow: firewall
            .map(|f| words::allowed_views(&f.inputs.allowed))
            .unwrap_or_default(),
        deny: firewall
            .map(|f| words::allowed_views(&f.inputs.denied))
            .unwrap_or_default(),
        dns: firewall
            .map(|f| f.resolv.servers.iter().map(ToString::to_string).collect())
            .unwrap_or_default(),
        publish: firewall
            .map(|f| shown(&f.ports.publish))
            .unwrap_or_default(),
        host_ports: firewall
            .map(|f| shown(&f.ports.host_ports))
            .unwrap_or_default(),
        rules: firewall
            .map(|f| words::rules(&f.policy))
            .unwrap_or_default(),
        ruleset: firewall.map(|f| nf::to_nft(&f.document)).transpose()?,
        argv: Argv {
            pasta: firewall.map(|f| strings(&of(f))),
            bwrap: strings(&prepared.bwrap.whole()),
        },
        warnings: warnings(prepared),
    })
}

fn shown<T: ToString>(list: &[T]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn strings(argv: &[OsString]) -> Vec<String> {
    argv.iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect()
}

fn section(out: &mut String, title: &str, text: &str) {
    if !text.is_empty() {
        out.push_str(&format!("\n{title}:\n"));
        indent(out, text);
    }
}

fn indent(out: &mut String, text: &str) {
    for line in text.lines() {
        out.push_str(&format!("  {line}\n"));
    }
}

/// As a shell would take it.
fn quoted(argv: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quote = |arg: &String| {
        if !arg.is_empty() && arg.chars().all(plain) {
            arg.clone()
        } else {
            format!("'{}'", arg.replace('\'', "'\\''"))
        }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_pasted_into_a_shell() {
        let argv = ["/usr/bin/x", "a b", "it's", "", "--ok=1"].map(String::from);
        assert_eq!(quoted(&argv), r"/usr/bin/x 'a b' 'it'\''s' '' --ok=1");
    }
}
