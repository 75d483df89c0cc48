//! `status` and `rules`: one sandbox's policy with its counters, and its table as the kernel has it.

use anyhow::Result;

use super::super::report::put;
use super::text::{self, Align, columns};
use super::{one, other};
use crate::live::protocol::{Answer, Ask, Counted, Entry, Status};

pub fn status(id: Option<&str>, json: bool) -> Result<bool> {
    // For people a few networks of each rule are enough.
    let answer = one(id)?.ask(Ask::Status { all: json })?;
    let Answer::Status(status) = answer else {
        return Err(other(&answer));
    };
    put(&match json {
        true => super::super::report::json(&status)?,
        false => text(&status),
    })?;
    Ok(true)
}

pub fn rules(id: Option<&str>, json: bool) -> Result<bool> {
    let answer = one(id)?.ask(Ask::Rules { json })?;
    let Answer::Rules { text } = answer else {
        return Err(other(&answer));
    };
    put(&text)?;
    if !text.ends_with('\n') {
        put("\n")?;
    }
    Ok(true)
}

fn text(status: &Status) -> String {
    let run = &status.run;
    let place = run.workspace.as_deref().map(text::path);
    let place = place.map_or(String::new(), |place| format!(" in {place}"));
    let program = text::program(&run.program);
    let mut out = format!("{}: {program}{place}, for {}", run.id, text::span(run.age));
    out += &match &run.policy {
        None => ", without a firewall: it has the host's whole network\n".to_owned(),
        Some(policy) => format!(", policy {}\n", text::clean(policy)),
    };
    if let Some(why) = &run.closed {
        let why = text::clean(why);
        out += &format!("Closed but for what is allowed: {why}\n");
    }
    if let (Some(accepted), Some(blocked)) = (run.accepted, run.blocked) {
        let (accepted, blocked) = (text::count(accepted), text::count(blocked));
        out += &format!("Packets that it sent: {accepted} accepted, {blocked} blocked\n");
    }
    let align = [
        Align::Right,
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Left,
    ];
    section(
        &mut out,
        "Rules, first match wins (packets and bytes sent)",
        &rule_rows(&status.rules),
        &align,
    );
    let attached = status.attached.iter();
    let attached = attached.map(|a| vec![a.net.clone(), a.device.clone(), a.source.clone()]);
    let attached: Vec<Vec<String>> = attached.collect();
    section(&mut out, "Attached networks", &attached, &[Align::Left; 3]);
    section(
        &mut out,
        "Allow entries",
        &entries(&status.allow),
        &[Align::Left; 3],
    );
    section(
        &mut out,
        "Deny entries",
        &entries(&status.deny),
        &[Align::Left; 3],
    );
    let ports: Vec<Vec<String>> = status.ports.iter().map(|p| vec![p.clone()]).collect();
    section(&mut out, "Ports", &ports, &[Align::Left]);
    out
}

fn rule_rows(rules: &[Counted]) -> Vec<Vec<String>> {
    let row = |Counted { rule, count }: &Counted| {
        vec![
            rule.n.to_string(),
            rule.name.clone(),
            rule.verdict.clone(),
            count.packets.to_string(),
            text::bytes(count.bytes),
            rule.r#match.clone(),
        ]
    };
    rules.iter().map(row).collect()
}

fn entries(entries: &[Entry]) -> Vec<Vec<String>> {
    let row = |Entry { entry, left }: &Entry| {
        let addresses = match entry.addresses.is_empty() {
            true => "does not resolve".into(),
            false => entry.addresses.join(", "),
        };
        let left = left.map(|left| format!("for another {}", text::span(left)));
        vec![entry.entry.clone(), addresses, left.unwrap_or_default()]
    };
    entries.iter().map(row).collect()
}

fn section(out: &mut String, title: &str, rows: &[Vec<String>], align: &[Align]) {
    if !rows.is_empty() {
        *out += &format!("\n{title}:\n");
        for line in columns(rows, align).lines() {
            *out += &format!("  {line}\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::protocol::{Count, Run};
    use crate::policy::words::{AllowedView, AttachedView, RuleView};

    #[test]
    fn a_whole_status() {
        let count = |packets, bytes| Count { packets, bytes };
        let rule = |n, name: &str, verdict: &str, r#match: &str, count| Counted {
            rule: RuleView {
                n,
                name: name.into(),
                r#match: r#match.into(),
                verdict: verdict.into(),
            },
            count,
        };
        let status = Status {
            run: Run {
                id: "abcdef".into(),
                version: "0.1.0".into(),
                pid: 7,
                program: "claude".into(),
                workspace: Some("/srv/robot".into()),
                policy: Some("home-lan".into()),
                age: 3900,
                accepted: Some(count(12, 3000)),
                blocked: Some(count(3, 180)),
                closed: None,
            },
            rules: vec![
                rule(1, "allow", "accept", "10.0.0.1", count(12, 3000)),
                rule(2, "attached", "drop", "10.0.0.0/24", count(3, 180)),
            ],
            allow: vec![Entry {
                entry: AllowedView {
                    entry: "nas.lan".into(),
                    addresses: vec!["10.0.0.1".into()],
                },
                left: Some(90),
            }],
            deny: vec![],
            attached: vec![AttachedView {
                net: "10.0.0.0/24".into(),
                device: "eth0".into(),
                source: "address 10.0.0.5".into(),
            }],
            ports: vec![],
        };
        assert_eq!(
            text(&status),
            "abcdef: claude in /srv/robot, for 1 h 5 min, policy home-lan\n\
             Packets that it sent: 12 (3.0 kB) accepted, 3 (180 B) blocked\n\
             \n\
             Rules, first match wins (packets and bytes sent):\n  \
               1  allow     accept  12  3.0 kB  10.0.0.1\n  \
               2  attached  drop     3   180 B  10.0.0.0/24\n\
             \n\
             Attached networks:\n  \
               10.0.0.0/24  eth0  address 10.0.0.5\n\
             \n\
             Allow entries:\n  \
               nas.lan  10.0.0.1  for another 1 min\n"
        );
    }
}
