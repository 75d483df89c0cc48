//! An interpreter of the classic BPF that libseccomp writes, for the tests: what the kernel would answer.

/// `struct seccomp_data` (linux/seccomp.h), as both architectures lay it out: little-endian.
pub struct Call {
    pub number: u32,
    pub arch: u32,
    pub args: [u64; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        let mut data = Vec::with_capacity(64);
        data.extend(self.number.to_le_bytes());
        data.extend(self.arch.to_le_bytes());
        data.extend(0u64.to_le_bytes());
        for arg in self.args {
            data.extend(arg.to_le_bytes());
        }
        let at = offset as usize;
        u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
    }
}

/// What a filter says (`SECCOMP_RET_*`, linux/seccomp.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Errno(i32),
    KillProcess,
}

/// Runs `program`, an array of `struct sock_filter` (linux/filter.h). Panics on what libseccomp does not write.
pub fn run(program: &[u8], call: &Call) -> Verdict {
    let (mut accumulator, mut at) = (0u32, 0);
    loop {
        let i = &program[at * 8..at * 8 + 8];
        let code = u16::from_le_bytes([i[0], i[1]]);
        let (if_true, if_false) = (usize::from(i[2]), usize::from(i[3]));
        let k = u32::from_le_bytes(i[4..8].try_into().unwrap());
        at += 1;
        let jump = |condition| if condition { if_true } else { if_false };
        at += match code {
            // BPF_LD | BPF_W | BPF_ABS
            0x20 => {
                accumulator = call.word(k);
                0
            }
            // BPF_ALU | BPF_AND | BPF_K
            0x54 => {
                accumulator &= k;
                0
            }
            // BPF_JMP with BPF_JA, BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET
            0x05 => k as usize,
            0x15 => jump(accumulator == k),
            0x25 => jump(accumulator > k),
            0x35 => jump(accumulator >= k),
            0x45 => jump(accumulator & k != 0),
            // BPF_RET | BPF_K
            0x06 => {
                return match k {
                    0x7fff_0000 => Verdict::Allow,
                    0x8000_0000 => Verdict::KillProcess,
                    _ if k >> 16 == 5 => Verdict::Errno((k & 0xffff) as i32),
                    _ => panic!("an action of no known kind: {k:#x}"),
                };
            }
            _ => panic!("an instruction that libseccomp does not write: {code:#x}"),
        };
    }
}
