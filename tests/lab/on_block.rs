//! What a blocked program notices: nothing at all, or a refusal at once.

use anyhow::Result;

use crate::harness::network::{ISP, TV};
use crate::harness::probe::net::Answer;
use crate::harness::{Desk, Scenario, scenario};
use crate::reachability::questions;

pub const ALL: &[Scenario] = &[scenario!(drop_is_silent), scenario!(reject_refuses_at_once)];

fn both() -> Vec<String> {
    [&TV, &ISP].into_iter().flat_map(questions).collect()
}

fn is_isp(question: &str) -> bool {
    questions(&ISP).iter().any(|q| q == question)
}

fn drop_is_silent(desk: &Desk) -> Result<()> {
    desk.config("on-block = \"drop\"")?;
    desk.reach(&[], &both())?.all(
        "blocked TCP times out, UDP and ICMP are lost",
        |question, answer| match answer {
            Answer::Open(_) => is_isp(question),
            // The kernel tells the sender of a datagram that output dropped it; a SYN is repeated in silence.
            Answer::Dropped => !is_isp(question) && !question.starts_with("tcp"),
            Answer::Timeout => !is_isp(question),
            _ => false,
        },
    )
}

fn reject_refuses_at_once(desk: &Desk) -> Result<()> {
    desk.config("on-block = \"reject\"")?;
    let wanted = "blocked TCP is reset, UDP and ICMP are prohibited";
    desk.reach(&[], &both())?
        .all(wanted, |question, answer| match answer {
            Answer::Open(_) => is_isp(question),
            Answer::Refused => question.starts_with("tcp"),
            Answer::Prohibited => !is_isp(question) && !question.starts_with("tcp"),
            // ping's own socket sees EPERM before the ICMP error.
            Answer::Dropped => question.starts_with("icmp"),
            _ => false,
        })
}
