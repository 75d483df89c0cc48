//! A small world, in which what chance chooses meets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::dest::{Proto, Service};
pub use crate::splitmix::Random;

impl Random {
    /// An address of a small world, in which chance meets: few high parts, few bits set.
    pub fn v4(&mut self) -> Ipv4Addr {
        let high = [10, 100, 169, 172, 192, 203, 224, 255][self.below(8) as usize];
        let octet = |r: &mut Self| [0, 1, 7, 16, 64, 168, 254, 255][r.below(8) as usize];
        Ipv4Addr::new(high, octet(self), octet(self), octet(self))
    }

    pub fn v6(&mut self) -> Ipv6Addr {
        let high =
            [0x2001, 0x2002, 0xfd43, 0xfe80, 0xfec0, 0xff02, 0, 0x64][self.below(8) as usize];
        let mut parts = [0; 8];
        parts[0] = high;
        for part in &mut parts[1..] {
            *part = [0, 0, 0, 1, 0xffff, 0xff9b, 0x0a01, 0x10][self.below(8) as usize];
        }
        Ipv6Addr::from(parts)
    }

    pub fn form(&mut self, v4: Ipv4Addr) -> Ipv6Addr {
        let [a, b, c, d] = v4.octets();
        let text = match self.below(6) {
            0 => format!("::{v4}"),
            1 => format!("::ffff:{v4}"),
            2 => format!("64:ff9b::{v4}"),
            3 => format!("64:ff9b:1:{:x}::{v4}", self.below(0xffff)),
            4 => format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::{:x}", self.below(9)),
            _ => format!("64:ff9b:2::{v4}"),
        };
        text.parse().unwrap()
    }

    pub fn address(&mut self) -> IpAddr {
        // Single addresses that a ruleset names are not met by chance.
        if self.below(50) == 0 {
            return ["169.254.169.254", "fd00:ec2::254"][self.below(2) as usize]
                .parse()
                .unwrap();
        }
        match self.below(3) {
            0 => self.v4().into(),
            1 => self.v6().into(),
            _ => {
                let v4 = self.v4();
                self.form(v4).into()
            }
        }
    }

    /// An address in, or in the same /56 as, one of the networks; or any.
    pub fn near(&mut self, nets: &[IpNetwork]) -> IpAddr {
        if nets.is_empty() || self.below(2) == 0 {
            return self.address();
        }
        let net = nets[self.below(nets.len() as u64) as usize];
        match (net, self.below(3)) {
            (IpNetwork::V4(n), 0) => self.form(n.ip()).into(),
            (IpNetwork::V6(n), 0) => Ipv6Addr::from_bits(n.ip().to_bits() ^ 3 << 64).into(),
            (IpNetwork::V6(n), 1) => n.network().into(),
            _ => net.broadcast(),
        }
    }

    pub fn net(&mut self) -> IpNetwork {
        if self.below(2) == 0 {
            let len = 8 + self.below(25) as u8;
            IpNetwork::new(self.v4().into(), len).unwrap()
        } else {
            let len = [16, 48, 55, 56, 57, 64, 96, 128][self.below(8) as usize];
            IpNetwork::new(self.v6().into(), len).unwrap()
        }
    }

    pub fn service(&mut self) -> Option<Service> {
        let proto = [Proto::Tcp, Proto::Udp][self.below(2) as usize];
        let first = 1 + self.below(6) as u16;
        let last = first + self.below(3) as u16;
        (self.below(3) > 0).then_some(Service { proto, first, last })
    }
}
