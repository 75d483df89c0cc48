//! What the kernel dumps, as parts of a [`Ruleset`](super::Ruleset). What is not known is an error, never passed over.

use anyhow::{Context, Result, bail, ensure};

use super::expr;
use super::listing::ListedRule;
use super::ruleset::{BaseChain, Hook, KeyType, Rule, Set, SetKind};
use super::uapi::*;
use crate::netlink::attributes;

/// The attributes of one level.
pub struct Attrs<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Attrs<'a> {
    pub fn read(payload: &'a [u8]) -> Result<Self> {
        Ok(Self(attributes(payload)?))
    }

    /// The attributes of a message of ours, after its `nfgenmsg`; `None` when that is of another family.
    fn of_message(payload: &'a [u8]) -> Result<Option<Self>> {
        let Some((&family, rest)) = payload.split_first_chunk::<4>().map(|(h, r)| (&h[0], r))
        else {
            bail!("nf_tables message shorter than its header");
        };
        (family == NFPROTO_INET)
            .then(|| Self::read(rest))
            .transpose()
    }

    /// `Err` when there is an attribute that is not in `known`.
    pub fn only(&self, known: &[u16]) -> Result<()> {
        match self.0.iter().find(|(kind, _)| !known.contains(kind)) {
            Some((kind, _)) => bail!("attribute {kind} is not one of ours"),
            None => Ok(()),
        }
    }

    pub fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v)
    }

    pub fn need(&self, kind: u16) -> Result<&'a [u8]> {
        self.get(kind)
            .with_context(|| format!("attribute {kind} is missing"))
    }

    pub fn be32(&self, kind: u16) -> Result<u32> {
        be32(self.need(kind)?)
    }

    pub fn expect(&self, kind: u16, wanted: u32) -> Result<()> {
        let found = self.be32(kind)?;
        ensure!(
            found == wanted,
            "attribute {kind} is {found:#x}, not {wanted:#x}"
        );
        Ok(())
    }

    fn is(&self, kind: u16, wanted: &str) -> Result<bool> {
        Ok(string(self.need(kind)?)? == wanted)
    }
}

pub fn be32(value: &[u8]) -> Result<u32> {
    let bytes = value.try_into().context("a number of other than 4 bytes")?;
    Ok(u32::from_be_bytes(bytes))
}

pub fn be64(value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().context("a number of other than 8 bytes")?;
    Ok(u64::from_be_bytes(bytes))
}

/// A string with its NUL.
pub fn string(value: &[u8]) -> Result<&str> {
    let text = value.strip_suffix(b"\0").unwrap_or(value);
    std::str::from_utf8(text).context("a name that is not UTF-8")
}

/// The family (`NFPROTO_*`) and the name of any table.
pub fn table_name(payload: &[u8]) -> Result<(u8, String)> {
    let Some((header, rest)) = payload.split_first_chunk::<4>() else {
        bail!("nf_tables message shorter than its header");
    };
    let name = string(Attrs::read(rest)?.need(NFTA_TABLE_NAME)?)?;
    Ok((header[0], name.to_owned()))
}

/// The number of chains, sets, objects and flow tables in the table. `Err` when its flags say that it is dormant, or
/// owned.
pub fn table(payload: &[u8]) -> Result<usize> {
    let Some(a) = Attrs::of_message(payload)? else {
        bail!("a table of another family");
    };
    a.only(&[
        NFTA_TABLE_NAME,
        NFTA_TABLE_FLAGS,
        NFTA_TABLE_USE,
        NFTA_TABLE_HANDLE,
        NFTA_TABLE_PAD,
    ])?;
    let flags = a.be32(NFTA_TABLE_FLAGS)?;
    ensure!(flags & NFT_TABLE_F_DORMANT == 0, "it is dormant");
    ensure!(flags == 0, "its flags are {flags:#x}, not 0");
    Ok(a.be32(NFTA_TABLE_USE)? as usize)
}

/// A set, without its elements; `None` when it belongs to another table.
pub fn set(payload: &[u8], table: &str) -> Result<Option<Set>> {
    let Some(a) = Attrs::of_message(payload)? else {
        return Ok(None);
    };
    if !a.is(NFTA_SET_TABLE, table)? {
        return Ok(None);
    }
    let name = string(a.need(NFTA_SET_NAME)?)?.to_owned();
    let (key, kind) = set_kind(&a).with_context(|| format!("set {name}"))?;
    Ok(Some(Set { name, key, kind }))
}

fn set_kind(a: &Attrs<'_>) -> Result<(KeyType, SetKind)> {
    // TYPE and COUNT say how the kernel stores the set; the rest of what is here is checked.
    let mut known = vec![
        NFTA_SET_TABLE,
        NFTA_SET_NAME,
        NFTA_SET_HANDLE,
        NFTA_SET_FLAGS,
        NFTA_SET_KEY_TYPE,
        NFTA_SET_KEY_LEN,
        NFTA_SET_DESC,
        NFTA_SET_USERDATA,
        NFTA_SET_PAD,
        NFTA_SET_TYPE,
        NFTA_SET_COUNT,
    ];
    let kind = match a.be32(NFTA_SET_FLAGS)? {
        NFT_SET_INTERVAL => SetKind::Intervals(Vec::new()),
        DYNAMIC => {
            known.push(NFTA_SET_TIMEOUT);
            let desc = Attrs::read(a.need(NFTA_SET_DESC)?)?;
            let timeout = be64(a.need(NFTA_SET_TIMEOUT)?)?;
            ensure!(timeout % 1000 == 0, "timeout of {timeout} ms");
            SetKind::Dynamic {
                timeout: u32::try_from(timeout / 1000).context("timeout over 32 bits")?,
                size: desc.be32(NFTA_SET_DESC_SIZE)?,
            }
        }
        flags => bail!("its flags are {flags:#x}"),
    };
    a.only(&known)?;
    let number = a.be32(NFTA_SET_KEY_TYPE)?;
    let all = [KeyType::Ipv4Addr, KeyType::Ipv6Addr, KeyType::InetService];
    let Some(key) = all.into_iter().find(|k| k.number() == number) else {
        bail!("key type {number} is not one of ours");
    };
    a.expect(NFTA_SET_KEY_LEN, key.width() as u32)?;
    ensure!(
        a.need(NFTA_SET_USERDATA)? == set_userdata(),
        "its user data (key byte order, comment) is not ours"
    );
    Ok((key, kind))
}

/// The flags of a dynamic set.
pub const DYNAMIC: u32 = NFT_SET_TIMEOUT | NFT_SET_EVAL;

/// What nft notes of a set: its keys are in network order.
pub fn set_userdata() -> [u8; 6] {
    let order = BYTEORDER_BIG_ENDIAN.to_ne_bytes();
    [
        UDATA_SET_KEYBYTEORDER,
        4,
        order[0],
        order[1],
        order[2],
        order[3],
    ]
}

/// Hands the content of each element of one message to `take`.
pub fn each_element(payload: &[u8], mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let Some(a) = Attrs::of_message(payload)? else {
        bail!("elements of another family");
    };
    a.only(&[
        NFTA_SET_ELEM_LIST_TABLE,
        NFTA_SET_ELEM_LIST_SET,
        NFTA_SET_ELEM_LIST_ELEMENTS,
    ])?;
    let list = a.get(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
    let mut elements = attributes(list)?.into_iter();
    elements.try_for_each(|(_, element)| take(element))
}

/// A chain's name and hook; `None` when it belongs to another table.
pub fn chain(payload: &[u8], table: &str) -> Result<Option<(String, Option<BaseChain>)>> {
    let Some(a) = Attrs::of_message(payload)? else {
        return Ok(None);
    };
    if !a.is(NFTA_CHAIN_TABLE, table)? {
        return Ok(None);
    }
    let name = string(a.need(NFTA_CHAIN_NAME)?)?.to_owned();
    let base = base_chain(&a).with_context(|| format!("chain {name}"))?;
    Ok(Some((name, base)))
}

fn base_chain(a: &Attrs<'_>) -> Result<Option<BaseChain>> {
    a.only(&[
        NFTA_CHAIN_TABLE,
        NFTA_CHAIN_NAME,
        NFTA_CHAIN_HANDLE,
        NFTA_CHAIN_HOOK,
        NFTA_CHAIN_POLICY,
        NFTA_CHAIN_TYPE,
        NFTA_CHAIN_FLAGS,
        NFTA_CHAIN_USE,
        NFTA_CHAIN_COUNTERS,
        NFTA_CHAIN_PAD,
    ])?;
    let flags = a.get(NFTA_CHAIN_FLAGS).map_or(Ok(0), be32)?;
    ensure!(flags & !NFT_CHAIN_BASE == 0, "its flags are {flags:#x}");
    let Some(hook) = a.get(NFTA_CHAIN_HOOK) else {
        return Ok(None);
    };
    ensure!(a.is(NFTA_CHAIN_TYPE, "filter")?, "its type is not filter");
    let hook = Attrs::read(hook)?;
    hook.only(&[NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY])?;
    Ok(Some(BaseChain {
        hook: match hook.be32(NFTA_HOOK_HOOKNUM)? {
            NF_INET_LOCAL_IN => Hook::Input,
            NF_INET_FORWARD => Hook::Forward,
            NF_INET_LOCAL_OUT => Hook::Output,
            other => bail!("hook {other} is not one of ours"),
        },
        priority: hook.be32(NFTA_HOOK_PRIORITY)? as i32,
        accept: match a.be32(NFTA_CHAIN_POLICY)? {
            NF_ACCEPT => true,
            NF_DROP => false,
            other => bail!("policy {other} is not one of ours"),
        },
    }))
}

/// A rule and its chain's name; `None` when it belongs to another table.
pub fn rule(payload: &[u8], table: &str) -> Result<Option<(String, ListedRule)>> {
    let Some(a) = Attrs::of_message(payload)? else {
        return Ok(None);
    };
    if !a.is(NFTA_RULE_TABLE, table)? {
        return Ok(None);
    }
    let chain = string(a.need(NFTA_RULE_CHAIN)?)?.to_owned();
    let rule = rule_content(&a).with_context(|| format!("a rule of chain {chain}"))?;
    Ok(Some((chain, rule)))
}

fn rule_content(a: &Attrs<'_>) -> Result<ListedRule> {
    a.only(&[
        NFTA_RULE_TABLE,
        NFTA_RULE_CHAIN,
        NFTA_RULE_HANDLE,
        NFTA_RULE_EXPRESSIONS,
        NFTA_RULE_POSITION,
        NFTA_RULE_USERDATA,
        NFTA_RULE_PAD,
    ])?;
    let (mut exprs, mut counters) = (Vec::new(), Vec::new());
    for (_, content) in attributes(a.get(NFTA_RULE_EXPRESSIONS).unwrap_or_default())? {
        exprs.push(expr::decode(content)?);
        counters.extend(expr::count(content)?);
    }
    Ok(ListedRule {
        rule: Rule {
            exprs,
            comment: a.get(NFTA_RULE_USERDATA).map(comment).transpose()?,
        },
        handle: be64(a.need(NFTA_RULE_HANDLE)?)?,
        counters,
    })
}

/// The user data of a rule with a comment.
pub fn rule_userdata(comment: &str) -> Result<Vec<u8>> {
    let len = u8::try_from(comment.len() + 1).context("comment over 254 bytes")?;
    let mut data = vec![UDATA_RULE_COMMENT, len];
    data.extend_from_slice(comment.as_bytes());
    data.push(0);
    Ok(data)
}

fn comment(userdata: &[u8]) -> Result<String> {
    let [UDATA_RULE_COMMENT, len, text @ ..] = userdata else {
        bail!("user data that is no comment");
    };
    ensure!(
        text.len() == *len as usize && text.ends_with(b"\0"),
        "torn comment"
    );
    Ok(string(text)?.to_owned())
}
