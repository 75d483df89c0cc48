//! The kernel's tables of sockets: `/proc/net/tcp`, `tcp6`, `udp` and `udp6` (proc_net_tcp(5)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub local: SocketAddr,
    /// Port 0 where there is none.
    pub remote: SocketAddr,
    /// The kernel's number of the state (`include/net/tcp_states.h`).
    pub state: u8,
    pub inode: u64,
}

/// `TCP_TIME_WAIT`, `TCP_LISTEN`.
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

impl Entry {
    pub fn listens(&self) -> bool {
        self.state == LISTEN
    }

    /// Whom it is connected to.
    pub fn peer(&self) -> Option<IpAddr> {
        let alive = self.remote.port() != 0 && self.state != TIME_WAIT;
        alive.then(|| self.remote.ip().to_canonical())
    }

    /// Whether it is reached at 127.0.0.1 or ::1.
    pub fn at_loopback(&self) -> bool {
        let ip = match self.local.ip() {
            IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
            v4 => v4,
        };
        ip.is_unspecified() || ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST
    }
}

/// The entries of a table's text. A line that is none is passed over.
pub fn parse(text: &str) -> impl Iterator<Item = Entry> {
    text.lines().filter_map(line)
}

/// Number, local and remote address, state, five more, inode.
fn line(line: &str) -> Option<Entry> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let local = address(words.next()?)?;
    let remote = address(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let inode = words.nth(5)?.parse().ok()?;
    Some(Entry {
        local,
        remote,
        state,
        inode,
    })
}

/// Words of 32 bits in the machine's order, hexadecimal; the port is a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        Some(
            u32::from_str_radix(ip.get(at..at + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        )
    };
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * at)?);
            }
            bytes.into()
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_as_the_kernel_writes_them() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1500        0 8123 1 0 100 0 0 10 0\n\
            \x20  1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1500        0 8124 1 0 100 0 0 10 0\n\
            \x20  2: 3200A8C0:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1500        0 8125 1 0 100 0 0 10 0\n\
            \x20  3: 0100007F:A000 0100007F:0BB8 01 00000000:00000000 00:00000000 00000000  1500        0 8126 1 0 20 4 30 10 -1\n\
            \x20  4: 00000000000000000000000001000000:0BB9 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1500        0 8127 1 0 100 0 0 10 0\n\
            \x20  5: 0000000000000000FFFF00000100007F:0BBA 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1500        0 8128 1 0 100 0 0 10 0\n\
            \x20  6: 3500007F:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 8129 1 0 100 0 0 10 0\n\
            nonsense\n";
        let all: Vec<Entry> = parse(text).collect();
        assert_eq!(all.len(), 7);
        assert_eq!(all[0].local, "127.0.0.1:3000".parse().unwrap());
        assert_eq!(all[0].inode, 8123);
        assert_eq!(all[4].local, "[::1]:3001".parse().unwrap());
        let followed: Vec<u16> = all
            .iter()
            .filter(|entry| entry.listens() && entry.at_loopback())
            .map(|entry| entry.local.port())
            .collect();
        // Not the one on another address, the connected one, or that of the names' relay (127.0.0.53).
        assert_eq!(followed, [3000, 8080, 3001, 3002]);
        let peers: Vec<_> = all.iter().filter_map(Entry::peer).collect();
        assert_eq!(peers, [Ipv4Addr::LOCALHOST]);
    }

    #[test]
    fn a_socket_of_our_own_is_found() {
        let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
        let text = std::fs::read_to_string("/proc/self/net/tcp6").unwrap();
        let own = listener.local_addr().unwrap();
        let found = parse(&text).find(|entry| entry.local == own).unwrap();
        assert!(found.listens() && found.at_loopback());
    }
}
