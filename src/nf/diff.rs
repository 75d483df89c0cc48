//! What has to be done to a table so that it is another one.
//!
//! The steps are in an order that nf_tables takes within one transaction: nothing is deleted while something refers to
//! it, nothing is referred to before it is there.

use std::borrow::Cow;
use std::collections::HashSet;

use super::elements::{self, Bound};
use super::lcs;
use super::listing::{ListedChain, Listing};
use super::ruleset::{Chain, Expr, Interval, Rule, Ruleset, Set, SetKind, Verdict};

/// One message, or as many as the elements take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<'a> {
    DeleteRule {
        chain: &'a str,
        handle: u64,
    },
    DeleteChain(&'a str),
    DeleteSet(&'a str),
    FlushSet(&'a str),
    DeleteElements(Part<'a>),
    AddSet(&'a Set),
    AddElements(Part<'a>),
    AddChain(&'a Chain),
    SetPolicy {
        chain: &'a str,
        accept: bool,
    },
    /// Rule `n` of the chain, from 0.
    AddRule {
        chain: &'a Chain,
        n: usize,
        before: Option<u64>,
    },
}

/// Some elements of a set: the one that stands before the first interval, and intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part<'a> {
    pub set: &'a Set,
    pub leading: Option<Bound>,
    pub intervals: Cow<'a, [Interval]>,
}

/// How the elements of a changed set are brought up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sets {
    /// All are taken out and what is wanted is put in.
    Refill,
    /// Only what differs. The elements must be those that `from` says.
    Difference,
}

/// The steps that make `found` (its elements are not looked at; they are those of `from`) be `to`.
pub fn diff<'a>(
    found: &'a Listing,
    from: &'a Ruleset,
    to: &'a Ruleset,
    how: Sets,
) -> Vec<Step<'a>> {
    let old_set = |name: &str| found.sets.iter().map(|s| &s.set).find(|s| s.name == name);
    let old_chain = |name: &str| found.chains.iter().find(|c| c.name == name);
    let gone = gone(found, to);
    let mut steps = Vec::new();

    let mut kept = Vec::new();
    for chain in &found.chains {
        let wanted = to.chains.iter().find(|c| c.name == chain.name);
        let wanted = wanted.filter(|_| !gone.chains.contains(&*chain.name));
        let pairs = wanted.map_or(vec![], |wanted| staying(chain, wanted, &gone));
        let mut stays = pairs.iter().map(|(old, _)| *old).peekable();
        for (n, rule) in chain.rules.iter().enumerate() {
            if stays.next_if_eq(&n).is_none() {
                steps.push(Step::DeleteRule {
                    chain: &chain.name,
                    handle: rule.handle,
                });
            }
        }
        kept.push((&*chain.name, pairs));
    }
    let chains = found.chains.iter().map(|c| &*c.name);
    let sets = found.sets.iter().map(|s| &*s.set.name);
    steps.extend(
        chains
            .filter(|c| gone.chains.contains(c))
            .map(Step::DeleteChain),
    );
    steps.extend(sets.filter(|s| gone.sets.contains(s)).map(Step::DeleteSet));

    for set in &to.sets {
        match old_set(&set.name).filter(|_| !gone.sets.contains(&*set.name)) {
            None => {
                steps.push(Step::AddSet(set));
                let leading = elements::leading(set.intervals());
                steps.extend(part(set, leading, set.intervals().into()).map(Step::AddElements));
            }
            Some(_) => {
                let known = from.sets.iter().find(|s| s.name == set.name);
                steps.extend(elements(known, set, how));
            }
        }
    }
    for chain in &to.chains {
        match old_chain(&chain.name).filter(|_| !gone.chains.contains(&*chain.name)) {
            None => steps.push(Step::AddChain(chain)),
            Some(old) => steps.extend(chain.base.filter(|_| old.base != chain.base).map(|base| {
                Step::SetPolicy {
                    chain: &chain.name,
                    accept: base.accept,
                }
            })),
        }
    }
    for chain in &to.chains {
        let listed = found.chains.iter().zip(&kept);
        let (old, pairs): (_, &[_]) = match listed.into_iter().find(|(c, _)| c.name == chain.name) {
            Some((old, (_, pairs))) => (&old.rules[..], pairs),
            None => (&[], &[]),
        };
        let mut pairs = pairs.iter().peekable();
        for n in 0..chain.rules.len() {
            if pairs.next_if(|(_, new)| *new == n).is_none() {
                let before = pairs.peek().map(|(at, _)| old[*at].handle);
                steps.push(Step::AddRule { chain, n, before });
            }
        }
    }
    steps
}

/// The names of sets and chains that are deleted, be it to be made anew.
struct Gone<'a> {
    sets: HashSet<&'a str>,
    chains: HashSet<&'a str>,
}

fn gone<'a>(found: &'a Listing, to: &Ruleset) -> Gone<'a> {
    let same_set = |old: &Set, new: &Set| {
        old.name == new.name
            && old.key == new.key
            && match (&old.kind, &new.kind) {
                (SetKind::Intervals(_), SetKind::Intervals(_)) => true,
                (old, new) => old == new,
            }
    };
    let same_chain = |old: &ListedChain, new: &Chain| {
        let place = |base: super::ruleset::BaseChain| (base.hook, base.priority);
        old.name == new.name && old.base.map(place) == new.base.map(place)
    };
    let sets = found.sets.iter().map(|s| &s.set);
    let sets = sets.filter(|old| !to.sets.iter().any(|new| same_set(old, new)));
    let chains = found.chains.iter();
    let chains = chains.filter(|old| !to.chains.iter().any(|new| same_chain(old, new)));
    Gone {
        sets: sets.map(|s| &*s.name).collect(),
        chains: chains.map(|c| &*c.name).collect(),
    }
}

/// The rules of a chain that stay, as pairs of old and new index.
fn staying(old: &ListedChain, new: &Chain, gone: &Gone<'_>) -> Vec<(usize, usize)> {
    // A rule that refers to what is deleted cannot stay, even if the new one reads the same.
    let old: Vec<Option<&Rule>> = old
        .rules
        .iter()
        .map(|r| Some(&r.rule).filter(|r| !refers(r, gone)))
        .collect();
    let new: Vec<Option<&Rule>> = new.rules.iter().map(Some).collect();
    lcs::common(&old, &new)
}

fn refers(rule: &Rule, gone: &Gone<'_>) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::Lookup { set, .. } | Expr::Update { set, .. } => gone.sets.contains(&**set),
        Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => {
            gone.chains.contains(&**chain)
        }
        _ => false,
    })
}

/// The steps for the elements of a set that stays. `old`: none when it is not known what is in it.
fn elements<'a>(old: Option<&Set>, new: &'a Set, how: Sets) -> Vec<Step<'a>> {
    let SetKind::Intervals(wanted) = &new.kind else {
        return vec![];
    };
    let leading = elements::leading(wanted);
    let refill = || {
        let fill = part(new, leading, wanted.into()).map(Step::AddElements);
        let flush = std::iter::once(Step::FlushSet(&new.name));
        flush.chain(fill).collect()
    };
    let Some(old) = old.map(Set::intervals) else {
        return refill();
    };
    if old == wanted {
        return vec![];
    }
    let (out, fill) = (without(old, wanted), without(wanted, old));
    if how == Sets::Refill || out.len() + fill.len() > wanted.len() {
        return refill();
    }
    let was = elements::leading(old);
    let out = part(new, was.filter(|_| leading.is_none()), out.into());
    let fill = part(new, leading.filter(|_| was.is_none()), fill.into());
    let steps = [out.map(Step::DeleteElements), fill.map(Step::AddElements)];
    steps.into_iter().flatten().collect()
}

fn part<'a>(
    set: &'a Set,
    leading: Option<Bound>,
    intervals: Cow<'a, [Interval]>,
) -> Option<Part<'a>> {
    (leading.is_some() || !intervals.is_empty()).then_some(Part {
        set,
        leading,
        intervals,
    })
}

/// What is in `a` and not in `b`, both sorted.
fn without(a: &[Interval], b: &[Interval]) -> Vec<Interval> {
    let mut found = a.to_vec();
    found.retain(|i| b.binary_search(i).is_err());
    found
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
