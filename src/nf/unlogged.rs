//! A table for kernels that cannot log.

use super::ruleset::{Expr, Ruleset, SetKind};

/// The same table without the rules that log, and without the sets that only they used. What is blocked stays blocked:
/// `None` where a rule that logs also gives a verdict, or where none logs.
pub fn unlogged(ruleset: &Ruleset) -> Option<Ruleset> {
    let logs = |expr: &Expr| matches!(expr, Expr::Log(_));
    let decides = |expr: &Expr| matches!(expr, Expr::Verdict(_) | Expr::Reject(_));
    let mut plain = ruleset.clone();
    for chain in &mut plain.chains {
        let both = |exprs: &[Expr]| exprs.iter().any(logs) && exprs.iter().any(decides);
        if chain.rules.iter().any(|rule| both(&rule.exprs)) {
            return None;
        }
        chain.rules.retain(|rule| !rule.exprs.iter().any(logs));
    }
    let used = |name: &str| {
        let exprs = plain.chains.iter().flat_map(|chain| &chain.rules);
        let mut exprs = exprs.flat_map(|rule| &rule.exprs);
        exprs.any(|expr| matches!(expr, Expr::Update { set, .. } if set == name))
    };
    let kept = |kind: &SetKind, name: &str| matches!(kind, SetKind::Intervals(_)) || used(name);
    let sets = plain.sets.iter().filter(|set| kept(&set.kind, &set.name));
    plain.sets = sets.cloned().collect();
    (plain != *ruleset).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::super::ruleset::{
        BaseChain, Chain, Hook, KeyType, Limit, Log, Rule, Set, SetKind, Verdict,
    };
    use super::*;

    fn rule(exprs: Vec<Expr>) -> Rule {
        Rule {
            exprs,
            comment: None,
        }
    }

    fn log() -> Expr {
        Expr::Log(Log {
            group: 1,
            snaplen: 128,
        })
    }

    fn table(blocked: Vec<Rule>) -> Ruleset {
        let set = |name: &str, kind| Set {
            name: name.into(),
            key: KeyType::Ipv4Addr,
            kind,
        };
        let dynamic = SetKind::Dynamic {
            timeout: 2,
            size: 10,
        };
        let base = Some(BaseChain {
            hook: Hook::Output,
            priority: 0,
            accept: false,
        });
        Ruleset {
            table: "t".into(),
            sets: vec![
                set("seen", dynamic.clone()),
                set("kept", dynamic),
                set("nets", SetKind::Intervals(Vec::new())),
            ],
            chains: vec![
                Chain {
                    name: "blocked".into(),
                    base: None,
                    rules: blocked,
                },
                Chain {
                    name: "output".into(),
                    base,
                    rules: vec![rule(vec![
                        Expr::Counter,
                        Expr::Verdict(Verdict::Goto("blocked".into())),
                    ])],
                },
            ],
        }
    }

    fn update(set: &str) -> Expr {
        let limit = Limit { rate: 5, burst: 10 };
        Expr::Update {
            set: set.into(),
            limit,
        }
    }

    #[test]
    fn only_logging_goes() {
        let drop = || rule(vec![Expr::Verdict(Verdict::Drop)]);
        let kept = || rule(vec![update("kept"), Expr::Counter]);
        let logging = rule(vec![update("seen"), log()]);
        let plain = unlogged(&table(vec![logging, kept(), drop()])).unwrap();
        let mut meant = table(vec![kept(), drop()]);
        meant.sets.remove(0);
        assert_eq!(plain, meant);
        assert_eq!(unlogged(&meant), None);
    }

    #[test]
    fn a_verdict_is_never_taken_out() {
        let both = rule(vec![log(), Expr::Verdict(Verdict::Drop)]);
        assert_eq!(unlogged(&table(vec![both])), None);
    }
}
