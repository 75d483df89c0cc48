//! The closed subset of nf_tables that we load: one `inet` table, its interval sets, its chains.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A whole table of family `inet`. The order of sets and of chains has no meaning; that of rules has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    pub table: String,
    pub sets: Vec<Set>,
    pub chains: Vec<Chain>,
}

/// A named set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    pub key: KeyType,
    pub kind: SetKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetKind {
    /// Sorted and disjoint; neighbours may touch (the kernel keeps them apart).
    Intervals(Vec<Interval>),
    /// Filled by rules, single values. What is in it is the kernel's business: not compared, not flushed.
    Dynamic {
        /// Seconds without an update after which an element goes; at least 1.
        timeout: u32,
        /// The highest number of elements, at least 1; a full set takes no more, and the rule does not match.
        size: u32,
    },
}

impl Set {
    /// The intervals; none of a dynamic set.
    pub fn intervals(&self) -> &[Interval] {
        match &self.kind {
            SetKind::Intervals(intervals) => intervals,
            SetKind::Dynamic { .. } => &[],
        }
    }
}

/// `first..=last`, as numbers of the key's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    pub first: u128,
    pub last: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    Ipv4Addr,
    Ipv6Addr,
    InetService,
}

impl KeyType {
    /// Width in bytes.
    pub fn width(self) -> usize {
        match self {
            KeyType::Ipv4Addr => 4,
            KeyType::Ipv6Addr => 16,
            KeyType::InetService => 2,
        }
    }

    /// The highest value.
    pub fn max(self) -> u128 {
        u128::MAX >> (128 - 8 * self.width())
    }

    /// nft's number of the type (`nft describe`), which the kernel stores for it.
    pub fn number(self) -> u32 {
        match self {
            KeyType::Ipv4Addr => 7,
            KeyType::Ipv6Addr => 8,
            KeyType::InetService => 13,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            KeyType::Ipv4Addr => "ipv4_addr",
            KeyType::Ipv6Addr => "ipv6_addr",
            KeyType::InetService => "inet_service",
        }
    }

    /// A value as people write it.
    pub fn show(self, value: u128) -> String {
        match self {
            KeyType::Ipv4Addr => Ipv4Addr::from(value as u32).to_string(),
            KeyType::Ipv6Addr => Ipv6Addr::from(value).to_string(),
            KeyType::InetService => value.to_string(),
        }
    }

    pub fn show_interval(self, i: Interval) -> String {
        if i.first == i.last {
            self.show(i.first)
        } else {
            format!("{}-{}", self.show(i.first), self.show(i.last))
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// `None`: a regular chain, run only when jumped to.
    pub base: Option<BaseChain>,
    pub rules: Vec<Rule>,
}

/// A chain of type `filter` at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    pub hook: Hook,
    pub priority: i32,
    /// What happens to packets that no rule decided: accepted if true, else dropped.
    pub accept: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Input,
    Forward,
    Output,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub exprs: Vec<Expr>,
    pub comment: Option<String>,
}

/// The kernel's expressions. All values go through register 1; what is compared is in network order.
#[derive(Clone, PartialEq, Eq)]
pub enum Expr {
    Meta(MetaKey),
    /// Loads `len` bytes at `offset` bytes into the header.
    Payload {
        base: Base,
        offset: u32,
        len: u32,
    },
    Cmp {
        op: CmpOp,
        value: Vec<u8>,
    },
    /// Matches outside `first..=last`.
    OutsideRange {
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// Keeps the bits of the mask.
    Bitwise {
        mask: Vec<u8>,
    },
    Lookup {
        set: String,
        invert: bool,
    },
    /// Adds the value to a dynamic set, or makes it stay on; matches while the element's own limit is not reached.
    Update {
        set: String,
        limit: Limit,
    },
    Counter,
    Limit(Limit),
    Log(Log),
    Verdict(Verdict),
    Reject(Reject),
}

/// Matches until packets come faster than this: a bucket of `burst` packets that is filled by `rate` packets a second.
/// Both at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub rate: u32,
    pub burst: u32,
}

/// Hands the first `snaplen` bytes of the packet to whoever has bound the group (`NETLINK_NETFILTER`, nfnetlink_log).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    pub group: u16,
    pub snaplen: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    Iifname,
    Oifname,
    Nfproto,
    L4proto,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Network,
    Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmpOp {
    Eq,
    Neq,
    Lte,
    Gte,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    TcpReset,
    /// ICMP or ICMPv6 "administratively prohibited", by the packet's family.
    IcmpxAdminProhibited,
}

/// As nft writes it.
impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hook = match self.hook {
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
        };
        let policy = if self.accept { "accept" } else { "drop" };
        let priority = self.priority;
        write!(
            f,
            "type filter hook {hook} priority {priority}; policy {policy}"
        )
    }
}

/// In the words of `nft --debug=netlink`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.exprs)?;
        match &self.comment {
            Some(comment) => write!(f, " ({comment})"),
            None => Ok(()),
        }
    }
}

/// In the words of `nft --debug=netlink`.
impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn hex(bytes: &[u8]) -> String {
            bytes.iter().map(|b| format!("{b:02x}")).collect()
        }
        match self {
            Expr::Meta(key) => write!(f, "meta {key:?}"),
            Expr::Payload { base, offset, len } => write!(f, "payload {len}b @ {base:?}+{offset}"),
            Expr::Cmp { op, value } => write!(f, "cmp {op:?} 0x{}", hex(value)),
            Expr::OutsideRange { first, last } => {
                write!(f, "range neq 0x{}-0x{}", hex(first), hex(last))
            }
            Expr::Bitwise { mask } => write!(f, "bitwise & 0x{}", hex(mask)),
            Expr::Lookup { set, invert } => {
                write!(f, "lookup {}@{set}", if *invert { "!= " } else { "" })
            }
            Expr::Update { set, limit } => write!(f, "update @{set} {limit:?}"),
            Expr::Counter => write!(f, "counter"),
            Expr::Limit(limit) => write!(f, "{limit:?}"),
            Expr::Log(log) => write!(f, "{log:?}"),
            Expr::Verdict(verdict) => write!(f, "{verdict:?}"),
            Expr::Reject(reject) => write!(f, "reject {reject:?}"),
        }
    }
}
