//! Conditions on a call's arguments, as the comparisons that a filter can make.
//!
//! Every one looks at the low 32 bits alone: so does the kernel, where the argument is an `int` or an `unsigned int`.

/// When an entry applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    /// The argument is one of the values.
    Is {
        arg: u32,
        values: &'static [u32],
    },
    /// The argument is below 64, and none of the values.
    IsNot {
        arg: u32,
        values: &'static [u32],
    },
    /// The argument has at least one of the bits.
    HasAny {
        arg: u32,
        bits: u32,
    },
    /// The argument is the value, and `other` is below 32, and none of `values`.
    IsWithNot {
        arg: u32,
        value: u32,
        other: u32,
        values: &'static [u32],
    },
}

/// `argument & mask == value`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compare {
    /// From 0 to 5.
    pub arg: u32,
    pub mask: u32,
    pub value: u32,
}

impl When {
    /// The condition holds where every comparison of one alternative does.
    pub fn alternatives(self) -> Vec<Vec<Compare>> {
        match self {
            When::Always => vec![vec![]],
            When::Is { arg, values } => values.iter().map(|v| vec![is(arg, *v)]).collect(),
            When::IsNot { arg, values } => blocks_without(arg, values, 0, 64),
            When::HasAny { arg, bits: mask } => bits(mask).map(|bit| vec![has(arg, bit)]).collect(),
            When::IsWithNot {
                arg,
                value,
                other,
                values,
            } => blocks_without(other, values, 0, 32)
                .into_iter()
                .map(|block| [vec![is(arg, value)], block].concat())
                .collect(),
        }
    }
}

/// The numbers from `first` on, `count` of them, that are none of `values`, in as few comparisons as powers of two allow:
/// each costs instructions, and microseconds of a start.
fn blocks_without(arg: u32, values: &[u32], first: u32, count: u32) -> Vec<Vec<Compare>> {
    let inside = |v: &u32| (first..first + count).contains(v);
    if !values.iter().any(inside) {
        return vec![vec![Compare {
            arg,
            mask: !(count - 1),
            value: first,
        }]];
    }
    let half = count / 2;
    if half == 0 {
        return vec![];
    }
    let mut blocks = blocks_without(arg, values, first, half);
    blocks.extend(blocks_without(arg, values, first + half, half));
    blocks
}

fn is(arg: u32, value: u32) -> Compare {
    Compare {
        arg,
        mask: !0,
        value,
    }
}

fn has(arg: u32, bit: u32) -> Compare {
    Compare {
        arg,
        mask: bit,
        value: bit,
    }
}

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|n| 1 << n).filter(move |bit| mask & bit != 0)
}
