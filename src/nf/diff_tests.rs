use super::*;
use crate::nf::listing::{ListedRule, ListedSet};
use crate::nf::ruleset::{BaseChain, Hook, KeyType, Limit};

/// Rule `n` of chain `c` has handle `100 * c + n`.
fn listed(ruleset: &Ruleset) -> Listing {
    let set = |set: &Set| ListedSet {
        set: set.clone(),
        elements: vec![],
    };
    let chain = |(c, chain): (u64, &Chain)| ListedChain {
        name: chain.name.clone(),
        base: chain.base,
        rules: (0..)
            .zip(&chain.rules)
            .map(|(n, rule)| ListedRule {
                rule: rule.clone(),
                handle: 100 * c + n,
                counters: vec![],
            })
            .collect(),
    };
    Listing {
        table: ruleset.table.clone(),
        sets: ruleset.sets.iter().map(set).collect(),
        chains: (1..).zip(&ruleset.chains).map(chain).collect(),
    }
}

fn rule(comment: &str, exprs: Vec<Expr>) -> Rule {
    Rule {
        exprs,
        comment: Some(comment.into()),
    }
}

fn lookup(set: &str) -> Expr {
    Expr::Lookup {
        set: set.into(),
        invert: false,
    }
}

fn goto(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(chain.into()))
}

fn intervals(name: &str, firsts: &[u128]) -> Set {
    let one = |n: &u128| Interval {
        first: *n,
        last: *n,
    };
    Set {
        name: name.into(),
        key: KeyType::Ipv4Addr,
        kind: SetKind::Intervals(firsts.iter().map(one).collect()),
    }
}

fn dynamic(size: u32) -> Set {
    Set {
        name: "seen".into(),
        key: KeyType::Ipv4Addr,
        kind: SetKind::Dynamic { timeout: 60, size },
    }
}

fn update() -> Expr {
    Expr::Update {
        set: "seen".into(),
        limit: Limit { rate: 5, burst: 5 },
    }
}

/// Base chain `o` (handles from 100), regular chain `r` (from 200).
fn table(sets: Vec<Set>, base: Vec<Rule>, regular: Vec<Rule>) -> Ruleset {
    let hook = BaseChain {
        hook: Hook::Output,
        priority: 0,
        accept: false,
    };
    let chain = |name: &str, base, rules| Chain {
        name: name.into(),
        base,
        rules,
    };
    Ruleset {
        table: "t".into(),
        sets,
        chains: vec![chain("o", Some(hook), base), chain("r", None, regular)],
    }
}

fn named(names: &[&str]) -> Vec<Rule> {
    names.iter().map(|n| rule(n, vec![Expr::Counter])).collect()
}

/// The steps in short.
fn steps(from: &Ruleset, to: &Ruleset, how: Sets) -> Vec<String> {
    let found = listed(from);
    let show = |part: &Part<'_>| {
        let firsts: Vec<_> = part.intervals.iter().map(|i| i.first).collect();
        let leading = if part.leading.is_some() { "0|" } else { "" };
        format!("{} {leading}{firsts:?}", part.set.name)
    };
    let steps = diff(&found, from, to, how);
    steps
        .iter()
        .map(|step| match step {
            Step::DeleteRule { handle, .. } => format!("-rule {handle}"),
            Step::DeleteChain(chain) => format!("-chain {chain}"),
            Step::DeleteSet(set) => format!("-set {set}"),
            Step::FlushSet(set) => format!("flush {set}"),
            Step::DeleteElements(part) => format!("-elements {}", show(part)),
            Step::AddSet(set) => format!("+set {}", set.name),
            Step::AddElements(part) => format!("+elements {}", show(part)),
            Step::AddChain(chain) => format!("+chain {}", chain.name),
            Step::SetPolicy { chain, accept } => format!("policy {chain} {accept}"),
            Step::AddRule { chain, n, before } => {
                let before = before.map_or("end".into(), |h| h.to_string());
                let comment = chain.rules[*n].comment.as_deref();
                format!("+rule {} before {before}", comment.unwrap_or_default())
            }
        })
        .collect()
}

#[test]
fn nothing_is_done_where_nothing_differs() {
    let one = table(
        vec![intervals("s", &[5]), intervals("empty", &[]), dynamic(9)],
        named(&["a", "a", "b"]),
        vec![rule("u", vec![update()])],
    );
    for how in [Sets::Refill, Sets::Difference] {
        assert_eq!(steps(&one, &one, how), [""; 0]);
    }
}

#[test]
fn rules_go_where_they_belong() {
    let from = table(vec![], named(&["a", "b", "c", "d"]), vec![]);
    let to = table(vec![], named(&["x", "a", "y", "z", "d", "b", "v"]), vec![]);
    assert_eq!(
        steps(&from, &to, Sets::Refill),
        [
            "-rule 101",
            "-rule 102",
            "+rule x before 100",
            "+rule y before 103",
            "+rule z before 103",
            "+rule b before end",
            "+rule v before end",
        ]
    );
}

#[test]
fn what_is_referred_to_goes_last_and_comes_first() {
    let from = table(
        vec![intervals("old", &[5])],
        vec![rule("l", vec![lookup("old")]), rule("g", vec![goto("r")])],
        named(&["x"]),
    );
    let mut to = table(
        vec![intervals("new", &[7])],
        vec![rule("l", vec![lookup("new")]), rule("g", vec![goto("n")])],
        vec![],
    );
    to.chains[1].name = "n".into();
    assert_eq!(
        steps(&from, &to, Sets::Refill),
        [
            "-rule 100",
            "-rule 101",
            "-rule 200",
            "-chain r",
            "-set old",
            "+set new",
            "+elements new 0|[7]",
            "+chain n",
            "+rule l before end",
            "+rule g before end",
        ]
    );
}

#[test]
fn what_is_made_anew_takes_its_rules_along() {
    let tables = |size| {
        let base = vec![rule("a", vec![Expr::Counter]), rule("g", vec![goto("r")])];
        table(vec![dynamic(size)], base, vec![rule("u", vec![update()])])
    };
    let (from, mut to) = (tables(9), tables(10));
    assert_eq!(
        steps(&from, &to, Sets::Refill),
        ["-rule 200", "-set seen", "+set seen", "+rule u before end"]
    );
    // A chain that gets a hook, or another, as well; another policy does not need that.
    to = tables(9);
    to.chains[0].base.as_mut().unwrap().accept = true;
    assert_eq!(steps(&from, &to, Sets::Refill), ["policy o true"]);
    to.chains[0].base.as_mut().unwrap().priority = 1;
    assert_eq!(
        steps(&from, &to, Sets::Refill),
        [
            "-rule 100",
            "-rule 101",
            "-chain o",
            "+chain o",
            "+rule a before end",
            "+rule g before end"
        ]
    );
}

#[test]
fn elements_change_as_whole_sets_or_by_what_differs() {
    let one = |firsts: &[u128]| table(vec![intervals("s", firsts)], vec![], vec![]);
    let (from, to) = (one(&[5, 9, 20]), one(&[0, 9, 20]));
    assert_eq!(
        steps(&from, &to, Sets::Refill),
        ["flush s", "+elements s [0, 9, 20]"]
    );
    assert_eq!(
        steps(&from, &to, Sets::Difference),
        ["-elements s 0|[5]", "+elements s [0]"]
    );
    assert_eq!(
        steps(&to, &from, Sets::Difference),
        ["-elements s [0]", "+elements s 0|[5]"]
    );
    // More would differ than there is.
    assert_eq!(
        steps(&from, &one(&[6]), Sets::Difference),
        ["flush s", "+elements s 0|[6]"]
    );
    assert_eq!(steps(&from, &one(&[]), Sets::Difference), ["flush s"]);
}

/// Whoever changed the table, a set that is not known is not trusted.
#[test]
fn a_set_that_is_not_known_is_filled_anew() {
    let there = table(vec![intervals("s", &[5])], vec![], vec![]);
    let from = table(vec![], vec![], vec![]);
    let found = listed(&there);
    let steps = diff(&found, &from, &there, Sets::Difference);
    assert_eq!(steps[0], Step::FlushSet("s"));
    assert_eq!(steps.len(), 2);
}
