//! The document's objects as a [`Ruleset`].

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use nftables::schema::{
    self, NfCmd, NfListObject, NfObject, Nftables, SetFlag, SetType, SetTypeValue,
};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use super::rule::lower;
use super::ruleset::{
    Base, BaseChain, Chain, Expr, Hook, Interval, KeyType, Rule, Ruleset, Set, SetKind, Verdict,
};
use super::value::{Kind, Span};

/// `NFT_NAME_MAXLEN` (`linux/netfilter/nf_tables.h`) less the NUL.
const NAME_MAX: usize = 255;
/// What nft accepts (`NFTNL_UDATA_COMMENT_MAXLEN`, `libnftnl/udata.h`).
const COMMENT_MAX: usize = 128;

/// Compiles a document: plain objects or `add` commands, in nft's order (a table, then what is in it).
///
/// `Err` on everything outside the closed subset, naming the object; see the module's description for why.
pub fn compile(document: &Nftables<'_>) -> Result<Ruleset> {
    let mut compiler = Compiler::default();
    for (n, object) in document.objects.iter().enumerate() {
        let object = match object {
            NfObject::ListObject(object) | NfObject::CmdObject(NfCmd::Add(object)) => object,
            NfObject::CmdObject(other) => bail!(
                "nftables object {}: only `add` is supported, not {other:?}",
                n + 1
            ),
        };
        compiler.object(object, n + 1)?;
    }
    compiler.finish()
}

#[derive(Default)]
struct Compiler {
    table: Option<String>,
    sets: Vec<Set>,
    chains: Vec<Chain>,
    chain_at: HashMap<String, usize>,
}

impl Compiler {
    fn object(&mut self, object: &NfListObject<'_>, n: usize) -> Result<()> {
        match object {
            NfListObject::MetainfoObject(_) => Ok(()),
            NfListObject::Table(table) => self
                .add_table(table)
                .with_context(|| format!("nftables table {}", table.name)),
            NfListObject::Set(set) => self
                .add_set(set)
                .with_context(|| format!("nftables set {}", set.name)),
            NfListObject::Chain(chain) => self
                .add_chain(chain)
                .with_context(|| format!("nftables chain {}", chain.name)),
            NfListObject::Rule(rule) => self.add_rule(rule).with_context(|| {
                let comment = rule.comment.as_deref().unwrap_or("no comment");
                format!(
                    "nftables object {n}, rule of chain {} ({comment})",
                    rule.chain
                )
            }),
            other => bail!("nftables object {n}: {other:?} is not supported"),
        }
    }

    fn add_table(&mut self, table: &schema::Table<'_>) -> Result<()> {
        ensure!(self.table.is_none(), "a second table");
        ensure!(table.family == NfFamily::INet, "family is not inet");
        ensure!(table.handle.is_none(), "a handle is given");
        self.table = Some(name(&table.name)?);
        Ok(())
    }

    fn in_table(&self, family: NfFamily, table: &str) -> Result<()> {
        ensure!(
            family == NfFamily::INet && self.table.as_deref() == Some(table),
            "table {family:?} {table} is not the document's table"
        );
        Ok(())
    }

    fn add_set(&mut self, set: &schema::Set<'_>) -> Result<()> {
        self.in_table(set.family, &set.table)?;
        let name = name(&set.name)?;
        ensure!(self.sets.iter().all(|s| s.name != name), "given twice");
        let key = match &set.set_type {
            SetTypeValue::Single(SetType::Ipv4Addr) => KeyType::Ipv4Addr,
            SetTypeValue::Single(SetType::Ipv6Addr) => KeyType::Ipv6Addr,
            SetTypeValue::Single(SetType::InetService) => KeyType::InetService,
            other => bail!("type {other:?} is not supported"),
        };
        ensure!(
            set.handle.is_none()
                && set.policy.is_none()
                && set.gc_interval.is_none()
                && set.comment.is_none(),
            "handle, policy, gc-interval and comment are not supported"
        );
        let flags: Vec<_> = set.flags.iter().flatten().collect();
        let kind = match (&flags[..], set.timeout, set.size) {
            ([SetFlag::Interval], None, None) => SetKind::Intervals(intervals(set, key)?),
            // nft 1.0.6 has no word for `dynamic` in JSON and takes it from the rules; so do we, see `finish`.
            ([SetFlag::Timeout], Some(timeout), Some(size)) if timeout > 0 && size > 0 => {
                ensure!(set.elem.is_none(), "a dynamic set starts empty");
                SetKind::Dynamic { timeout, size }
            }
            _ => bail!(
                "flags are not `interval` alone, or `timeout` alone with a timeout and a size"
            ),
        };
        self.sets.push(Set { name, key, kind });
        Ok(())
    }

    fn add_chain(&mut self, chain: &schema::Chain<'_>) -> Result<()> {
        self.in_table(chain.family, &chain.table)?;
        ensure!(
            chain.newname.is_none() && chain.handle.is_none() && chain.dev.is_none(),
            "newname, handle and dev are not supported"
        );
        let base = match (chain._type, chain.hook, chain.prio) {
            (None, None, None) => {
                ensure!(chain.policy.is_none(), "a policy without a hook");
                None
            }
            (Some(NfChainType::Filter), Some(hook), Some(priority)) => Some(BaseChain {
                hook: match hook {
                    NfHook::Input => Hook::Input,
                    NfHook::Forward => Hook::Forward,
                    NfHook::Output => Hook::Output,
                    other => bail!("hook {other:?} is not supported"),
                },
                priority,
                accept: chain.policy != Some(NfChainPolicy::Drop),
            }),
            _ => bail!("a base chain has type filter, a hook and a priority"),
        };
        let name = name(&chain.name)?;
        let at = self.chains.len();
        ensure!(
            self.chain_at.insert(name.clone(), at).is_none(),
            "given twice"
        );
        self.chains.push(Chain {
            name,
            base,
            rules: Vec::new(),
        });
        Ok(())
    }

    fn add_rule(&mut self, rule: &schema::Rule<'_>) -> Result<()> {
        self.in_table(rule.family, &rule.table)?;
        ensure!(
            rule.handle.is_none() && rule.index.is_none(),
            "handle and index are not supported"
        );
        let comment = rule.comment.as_deref().map(str::to_owned);
        if let Some(comment) = &comment {
            ensure!(
                comment.len() <= COMMENT_MAX && !comment.contains('\0'),
                "the comment is over {COMMENT_MAX} bytes or holds a NUL"
            );
        }
        let exprs = lower(&rule.expr)?;
        self.lookups_fit(&exprs)?;
        let Some(&at) = self.chain_at.get(&*rule.chain) else {
            bail!("no such chain before it");
        };
        self.chains[at].rules.push(Rule { exprs, comment });
        Ok(())
    }

    /// The kernel compares lengths only: an address of the wrong kind would be looked up without a word.
    fn lookups_fit(&self, exprs: &[Expr]) -> Result<()> {
        let mut loaded = None;
        for expr in exprs {
            let (name, dynamic) = match expr {
                Expr::Payload { base, len, .. } => {
                    loaded = Some((*base, *len));
                    continue;
                }
                Expr::Lookup { set, .. } => (set, false),
                Expr::Update { set, .. } => (set, true),
                _ => continue,
            };
            let Some(set) = self.sets.iter().find(|s| s.name == *name) else {
                bail!("no set {name} before it");
            };
            let port = set.key == KeyType::InetService;
            ensure!(
                loaded.is_some_and(|(base, len)| {
                    set.key.width() == len as usize && port == (base == Base::Transport)
                }),
                "set {name} of type {} is looked up with another type",
                set.key.name()
            );
            ensure!(
                dynamic == matches!(set.kind, SetKind::Dynamic { .. }),
                "set {name}: sets with a timeout are updated by rules, others are looked up"
            );
        }
        Ok(())
    }

    fn finish(self) -> Result<Ruleset> {
        let Some(table) = self.table else {
            bail!("the nftables document has no table");
        };
        for chain in &self.chains {
            for expr in chain.rules.iter().flat_map(|r| &r.exprs) {
                let (Expr::Verdict(Verdict::Jump(to)) | Expr::Verdict(Verdict::Goto(to))) = expr
                else {
                    continue;
                };
                let known = self.chain_at.get(to).map(|&at| &self.chains[at]);
                ensure!(
                    known.is_some_and(|c| c.base.is_none()),
                    "nftables chain {}: {to}, jumped to, is no regular chain of the table",
                    chain.name
                );
            }
        }
        for set in &self.sets {
            let updated =
                |e: &Expr| matches!(e, Expr::Update { set: name, .. } if *name == set.name);
            ensure!(
                matches!(set.kind, SetKind::Intervals(_))
                    || self
                        .chains
                        .iter()
                        .flat_map(|c| &c.rules)
                        .any(|r| r.exprs.iter().any(updated)),
                "nftables set {}: no rule updates it",
                set.name
            );
        }
        Ok(Ruleset {
            table,
            sets: self.sets,
            chains: self.chains,
        })
    }
}

/// The elements, sorted.
fn intervals(set: &schema::Set<'_>, key: KeyType) -> Result<Vec<Interval>> {
    let mut elements = Vec::new();
    for element in set.elem.as_deref().unwrap_or_default() {
        elements.push(Span::parse(Kind::Key(key), element)?.interval(key));
    }
    elements.sort_unstable();
    disjoint(key, &elements)?;
    Ok(elements)
}

/// nft's syntax of names.
fn name(name: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_/\\.-".contains(c);
    ensure!(
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(good)
            && name.len() <= NAME_MAX,
        "{name:?} is no nftables name"
    );
    Ok(name.to_owned())
}

/// The kernel does not merge: what overlaps is an error there, or worse, a hole.
fn disjoint(key: KeyType, sorted: &[Interval]) -> Result<()> {
    for pair in sorted.windows(2) {
        ensure!(
            pair[0].last < pair[1].first,
            "{} overlaps {}",
            key.show_interval(pair[1]),
            key.show_interval(pair[0])
        );
    }
    Ok(())
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
