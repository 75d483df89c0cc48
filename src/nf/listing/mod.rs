//! A table as the kernel has it: its [`Ruleset`], the handles of rules, counters, what is in dynamic sets.

mod json;
mod raise;
mod text;
mod values;

use super::ruleset::{BaseChain, Chain, Limit, Rule, Ruleset, Set};

/// What [`read_table`](super::read_table) reads. Sets and chains are in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub table: String,
    pub sets: Vec<ListedSet>,
    pub chains: Vec<ListedChain>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSet {
    pub set: Set,
    /// What rules have put into a dynamic set, by value.
    pub elements: Vec<Element>,
}

/// An element of a dynamic set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// As a number of the key's width.
    pub value: u128,
    pub limit: Limit,
    /// Milliseconds until it goes.
    pub expires: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedChain {
    pub name: String,
    pub base: Option<BaseChain>,
    pub rules: Vec<ListedRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRule {
    pub rule: Rule,
    /// The kernel's number of the rule, which stays as long as the rule.
    pub handle: u64,
    /// One for each counter expression of the rule, in order.
    pub counters: Vec<Count>,
}

/// What a counter has seen since its rule was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl Listing {
    /// The same without what the kernel adds.
    pub fn ruleset(self) -> Ruleset {
        let chain = |chain: ListedChain| Chain {
            name: chain.name,
            base: chain.base,
            rules: chain.rules.into_iter().map(|r| r.rule).collect(),
        };
        Ruleset {
            table: self.table,
            sets: self.sets.into_iter().map(|s| s.set).collect(),
            chains: self.chains.into_iter().map(chain).collect(),
        }
    }
}

impl From<Ruleset> for Listing {
    /// As a kernel would list it that has seen no packet yet; handles are 0.
    fn from(ruleset: Ruleset) -> Self {
        let set = |set| ListedSet {
            set,
            elements: Vec::new(),
        };
        let rule = |rule| ListedRule {
            rule,
            handle: 0,
            counters: Vec::new(),
        };
        let chain = |chain: Chain| ListedChain {
            name: chain.name,
            base: chain.base,
            rules: chain.rules.into_iter().map(rule).collect(),
        };
        Self {
            table: ruleset.table,
            sets: ruleset.sets.into_iter().map(set).collect(),
            chains: ruleset.chains.into_iter().map(chain).collect(),
        }
    }
}
