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
    /// The argument is none of the values, which are below 32.
    IsNot {
        arg: u32,
        values: &'static [u32],
    },
    /// The argument has at least one of the bits.
    HasAny {
        arg: u32,
        bits: u32,
    },
    /// The argument is the value, and `nonzero`, another argument, is not 0.
    IsWith {
        arg: u32,
        value: u32,
        nonzero: u32,
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
            When::IsNot { arg, values } => (0..32)
                .filter(|v| !values.contains(v))
                .map(|v| vec![is(arg, v)])
                // What is 32 or more has one of the upper bits: families of future kernels are covered.
                .chain(bits(!31).map(|bit| vec![has(arg, bit)]))
                .collect(),
            When::HasAny { arg, bits: mask } => bits(mask).map(|bit| vec![has(arg, bit)]).collect(),
            When::IsWith {
                arg,
                value,
                nonzero,
            } => bits(!0)
                .map(|bit| vec![is(arg, value), has(nonzero, bit)])
                .collect(),
        }
    }
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
