use super::*;
use crate::netlink::attributes;
use crate::nf::ruleset::{Limit, Log};

fn encoded(expr: &Expr) -> Vec<u8> {
    let mut b = Builder::default();
    encode(&mut b, expr).unwrap();
    let buf = b.finish();
    attributes(&buf).unwrap()[0].1.to_vec()
}

/// Every expression, with values as wide as each can have.
fn all() -> Vec<Expr> {
    let mut all = vec![Expr::Counter, Expr::Reject(Reject::TcpReset)];
    all.push(Expr::Reject(Reject::IcmpxAdminProhibited));
    all.extend(MetaKey::ALL.map(|(key, _)| Expr::Meta(key)));
    all.extend(Base::ALL.map(|(base, _)| Expr::Payload {
        base,
        offset: 24,
        len: 13,
    }));
    for len in [1, 2, 4, 13, 16] {
        let value = vec![0xa5; len];
        all.extend(CmpOp::ALL.map(|(op, _)| Expr::Cmp {
            op,
            value: value.clone(),
        }));
        all.push(Expr::OutsideRange {
            first: vec![1; len],
            last: value.clone(),
        });
        all.push(Expr::Bitwise { mask: value });
    }
    let limit = Limit {
        rate: 500,
        burst: u32::MAX,
    };
    all.push(Expr::Limit(limit));
    all.push(Expr::Update {
        set: "seen".into(),
        limit,
    });
    all.push(Expr::Log(Log {
        group: 258,
        snaplen: 128,
    }));
    all.extend([true, false].map(|invert| Expr::Lookup {
        set: "nets".into(),
        invert,
    }));
    all.extend(
        [
            Verdict::Accept,
            Verdict::Drop,
            Verdict::Return,
            Verdict::Jump("c".into()),
            Verdict::Goto("c".into()),
        ]
        .map(Expr::Verdict),
    );
    all
}

#[test]
fn every_expression_is_read_back() {
    for expr in all() {
        assert_eq!(decode(&encoded(&expr)).unwrap(), expr);
    }
}

/// Whatever attribute the kernel may add to an expression, it is not passed over.
#[test]
fn an_unknown_attribute_is_an_error() {
    for expr in all() {
        let content = encoded(&expr);
        let a = Attrs::read(&content).unwrap();
        let mut b = Builder::default();
        b.attr(NFTA_EXPR_NAME, a.need(NFTA_EXPR_NAME).unwrap())
            .unwrap();
        b.nest(NFTA_EXPR_DATA, |b| {
            for (kind, value) in attributes(a.need(NFTA_EXPR_DATA)?)? {
                b.attr(kind, value)?;
            }
            b.attr_be32(99, 0)
        })
        .unwrap();
        let error = decode(&b.finish()).unwrap_err();
        assert!(format!("{error:#}").contains("attribute 99"), "{error:#}");
    }
}

#[test]
fn another_register_is_an_error() {
    let mut b = Builder::default();
    b.attr_str(NFTA_EXPR_NAME, "meta").unwrap();
    b.nest(NFTA_EXPR_DATA, |b| {
        b.attr_be32(NFTA_META_KEY, NFT_META_L4PROTO)?;
        b.attr_be32(NFTA_META_DREG, 2)
    })
    .unwrap();
    assert!(decode(&b.finish()).is_err());
}
