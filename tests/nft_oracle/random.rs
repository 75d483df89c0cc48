//! Random tables and policies, of few names and near values, so that they have much in common.

use std::collections::BTreeSet;

use claude_isolated::dest::{Allowed, Destination, Proto, Service, Target};
use claude_isolated::host::Attached;
use claude_isolated::launch::{Firewall, OnBlock};
use claude_isolated::nf::{
    self, Base, BaseChain, Chain, CmpOp, Expr, Hook, Interval, KeyType, Limit, Log, MetaKey,
    Reject, Rule, Ruleset, Set, SetKind, Verdict,
};
use claude_isolated::policy::ruleset::BUILT_IN;
use claude_isolated::policy::{self, Inputs, Policy, document};

use crate::splitmix::Random;

impl Random {
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Intervals of the values that `edges` picks: many touch, many begin at 0 or end at the highest value.
    pub fn intervals(&mut self, key: KeyType, room: u64) -> Vec<Interval> {
        let base = if self.one_in(2) {
            0
        } else {
            key.max() - u128::from(room)
        };
        let mut cuts = BTreeSet::new();
        for _ in 0..self.below(10) {
            cuts.insert(self.below(room + 1));
        }
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let mut found = Vec::new();
        for pair in cuts.windows(2) {
            if self.one_in(3) {
                continue;
            }
            let last = if self.one_in(2) { pair[0] } else { pair[1] - 1 };
            found.push(Interval {
                first: base + u128::from(pair[0]),
                last: base + u128::from(last),
            });
        }
        if let Some(last) = cuts.last().filter(|_| self.one_in(2)) {
            found.push(Interval {
                first: base + u128::from(*last),
                last: base + u128::from(room),
            });
        }
        found
    }
}

const KEYS: [KeyType; 3] = [KeyType::Ipv4Addr, KeyType::Ipv6Addr, KeyType::InetService];

/// A table that need not make sense.
pub fn ruleset(random: &mut Random) -> Ruleset {
    let mut sets = Vec::new();
    for n in 0..6 {
        if random.one_in(3) {
            continue;
        }
        // Now and then a name has another type than usual.
        let key = KEYS[((n + u64::from(random.one_in(8))) % 3) as usize];
        let kind = if n < 4 {
            SetKind::Intervals(random.intervals(key, 24))
        } else {
            SetKind::Dynamic {
                timeout: 60 + random.below(2) as u32,
                size: 100,
            }
        };
        let name = format!("set{n}");
        sets.push(Set { name, key, kind });
    }
    let mut chains: Vec<Chain> = Vec::new();
    let hooks = [
        ("output", Hook::Output),
        ("input", Hook::Input),
        ("forward", Hook::Forward),
    ];
    for (name, hook) in hooks {
        if random.one_in(6) {
            continue;
        }
        let base = BaseChain {
            hook,
            priority: if random.one_in(6) { 5 } else { 0 },
            accept: random.one_in(4),
        };
        let (name, base) = (name.into(), Some(base));
        let rules = vec![];
        chains.push(Chain { name, base, rules });
    }
    for n in 0..3 {
        if random.one_in(3) {
            continue;
        }
        let (name, base, rules) = (format!("chain{n}"), None, vec![]);
        chains.push(Chain { name, base, rules });
    }
    if random.one_in(4) {
        sets.reverse();
        chains.reverse();
    }
    let names: Vec<_> = chains
        .iter()
        .map(|c| (c.name.clone(), c.base.is_none()))
        .collect();
    for chain in &mut chains {
        for _ in 0..random.below(7) {
            // Only to regular chains that come later in the alphabet: no circles.
            let jumps: Vec<_> = names
                .iter()
                .filter(|(n, regular)| *regular && (chain.base.is_some() || *n > chain.name))
                .collect();
            let jump = (!jumps.is_empty())
                .then(|| jumps[random.below(jumps.len() as u64) as usize].0.clone());
            chain.rules.push(rule(random, &sets, jump));
        }
    }
    Ruleset {
        table: "claudejail".into(),
        sets,
        chains,
    }
}

fn rule(random: &mut Random, sets: &[Set], jump: Option<String>) -> Rule {
    let mut exprs = Vec::new();
    let eq = |value| Expr::Cmp {
        op: CmpOp::Eq,
        value,
    };
    let limit = Limit { rate: 5, burst: 10 };
    if !sets.is_empty() && !random.one_in(3) {
        let set = &sets[random.below(sets.len() as u64) as usize];
        let (check, base, offset) = match set.key {
            KeyType::Ipv4Addr => ((MetaKey::Nfproto, 2), Base::Network, 16),
            KeyType::Ipv6Addr => ((MetaKey::Nfproto, 10), Base::Network, 24),
            KeyType::InetService => ((MetaKey::L4proto, 6), Base::Transport, 2),
        };
        let len = set.key.width() as u32;
        exprs.extend([Expr::Meta(check.0), eq(vec![check.1])]);
        exprs.push(Expr::Payload { base, offset, len });
        let name = set.name.clone();
        exprs.push(match set.kind {
            SetKind::Intervals(_) => Expr::Lookup {
                set: name,
                invert: random.one_in(4),
            },
            SetKind::Dynamic { .. } => Expr::Update { set: name, limit },
        });
    }
    if !random.one_in(3) {
        exprs.push(Expr::Counter);
    }
    exprs.push(match (random.below(6), jump) {
        (0, Some(chain)) => Expr::Verdict(Verdict::Goto(chain)),
        (1, Some(chain)) => Expr::Verdict(Verdict::Jump(chain)),
        (2, _) => Expr::Log(Log {
            group: 1,
            snaplen: 128,
        }),
        (3, _) => Expr::Limit(limit),
        (4, _) => Expr::Reject(Reject::IcmpxAdminProhibited),
        (5, _) => Expr::Verdict(Verdict::Drop),
        _ => Expr::Verdict(Verdict::Accept),
    });
    let comment = (!random.one_in(3)).then(|| format!("rule {}", random.below(3)));
    Rule { exprs, comment }
}

fn allowed(random: &mut Random) -> Allowed {
    let net = match random.below(3) {
        0 => format!("10.10.10.{}", random.below(4)),
        1 => format!("192.168.{}.0/28", random.below(4)),
        _ => format!("fd43::{}", random.below(4)),
    };
    let net = net.parse().unwrap();
    let proto = if random.one_in(2) {
        Proto::Tcp
    } else {
        Proto::Udp
    };
    let first = 440 + random.below(3) as u16;
    let last = first + random.below(2) as u16;
    let service = (!random.one_in(3)).then_some(Service { proto, first, last });
    Allowed {
        entry: Destination {
            target: Target::Net(net),
            service,
        },
        addresses: vec![net],
    }
}

/// The table of a policy, of whatever a user might have asked for.
pub fn policy(random: &mut Random) -> Ruleset {
    let names = BUILT_IN.map(|(name, _)| name);
    let name = names[random.below(names.len() as u64) as usize];
    let ruleset = policy::Ruleset::built_in(name).unwrap();
    let home = (0..random.below(3)).map(|_| {
        let net = format!("198.51.{}.0/24", random.below(4));
        net.parse().unwrap()
    });
    let firewall = Firewall {
        home: home.collect(),
        on_block: if random.one_in(2) {
            OnBlock::Drop
        } else {
            OnBlock::Reject
        },
        ..Firewall::new(name)
    };
    let allow: Vec<_> = (0..random.below(6)).map(|_| allowed(random)).collect();
    let nets = [
        "10.10.10.0/24",
        "172.17.0.0/16",
        "203.0.113.64/26",
        "fd43::/64",
        "2001:db8:0:1100::/64",
        "2001:db8:0:1101::/64",
        "100.100.1.2/32",
    ];
    let attached: Vec<_> = nets.iter().filter(|_| !random.one_in(2)).collect();
    let attached: Vec<_> = attached
        .into_iter()
        .map(|net| Attached {
            net: net.parse().unwrap(),
            device: "eth0".into(),
            source: "route, table 254".into(),
        })
        .collect();
    let policy = Policy::build(&Inputs {
        allowed: allow,
        denied: (0..random.below(3)).map(|_| allowed(random)).collect(),
        attached,
        ..Inputs::new(ruleset, &firewall)
    });
    nf::compile(&document(&policy)).unwrap()
}
