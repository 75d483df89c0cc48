//! Messages of the kernel's packet log (`linux/netfilter/nfnetlink_log.h`, `nfnetlink.h`).

use anyhow::Result;

use crate::netlink::{self, Builder, NLM_F_ACK, NLM_F_REQUEST};
use crate::nf::uapi::{NFPROTO_UNSPEC, nfgenmsg};
use crate::policy::document::{LOG_GROUP as GROUP, LOG_SNAPLEN as SNAPLEN};

/// The kernel hands on what it has collected after this time (in 1/100 s), when it has that many packets, or when they
/// fill its buffer (bytes): at full rate some ten wake-ups a second, and one for a single packet.
const TIMEOUT: u32 = 10;
const QTHRESH: u32 = 64;
pub const BUFFER: u32 = 16 * 1024;

const NFNL_SUBSYS_ULOG: u16 = 4;
const NFULNL_MSG_PACKET: u16 = NFNL_SUBSYS_ULOG << 8;
const NFULNL_MSG_CONFIG: u16 = NFNL_SUBSYS_ULOG << 8 | 1;

const NFULA_PACKET_HDR: u16 = 1;
const NFULA_TIMESTAMP: u16 = 3;
const NFULA_PAYLOAD: u16 = 9;

const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_NLBUFSIZ: u16 = 3;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_CFG_CMD_UNBIND: u8 = 2;
const NFULNL_COPY_PACKET: u8 = 2;

/// The request that makes the socket which sends it the reader of the table's group. The kernel acknowledges it:
/// `EBUSY` where somebody else is, `EPERM` without `CAP_NET_ADMIN` over the namespace.
///
/// One message: the kernel takes the command first and the settings after it.
pub fn bind(seq: u32) -> Result<Vec<u8>> {
    config(seq, NFULNL_CFG_CMD_BIND, |b| {
        let mut mode = SNAPLEN.to_be_bytes().to_vec();
        mode.extend([NFULNL_COPY_PACKET, 0]);
        b.attr(NFULA_CFG_MODE, &mode)?;
        b.attr_be32(NFULA_CFG_NLBUFSIZ, BUFFER)?;
        b.attr_be32(NFULA_CFG_TIMEOUT, TIMEOUT)?;
        b.attr_be32(NFULA_CFG_QTHRESH, QTHRESH)
    })
}

/// The request that ends it. The kernel hands on what it has collected, then acknowledges.
pub fn unbind(seq: u32) -> Result<Vec<u8>> {
    config(seq, NFULNL_CFG_CMD_UNBIND, |_| Ok(()))
}

fn config(seq: u32, command: u8, fill: impl FnOnce(&mut Builder) -> Result<()>) -> Result<Vec<u8>> {
    let mut b = Builder::default();
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    let header = nfgenmsg(NFPROTO_UNSPEC, GROUP);
    b.begin(NFULNL_MSG_CONFIG, flags, seq, &header);
    b.attr(NFULA_CFG_CMD, &[command])?;
    fill(&mut b)?;
    b.end();
    Ok(b.finish())
}

/// One logged packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged<'a> {
    /// From the network layer's header on, cut off after [`SNAPLEN`] bytes.
    pub packet: &'a [u8],
    /// Seconds and microseconds since 1970, where the kernel has a time for the packet: mostly not on its way out.
    pub time: Option<(u64, u64)>,
}

/// The packets of one datagram of the kernel. `Err` when it is torn; what is no packet is passed over.
pub fn packets(datagram: &[u8]) -> Result<Vec<Logged<'_>>> {
    let mut found = Vec::new();
    for message in netlink::messages(datagram)? {
        if message.kind != NFULNL_MSG_PACKET {
            continue;
        }
        let attributes = netlink::attributes(message.payload.get(4..).unwrap_or_default())?;
        let get = |kind| attributes.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v);
        let (Some(_), Some(packet)) = (get(NFULA_PACKET_HDR), get(NFULA_PAYLOAD)) else {
            continue;
        };
        let time = get(NFULA_TIMESTAMP).and_then(|value| {
            let number =
                |at: usize| Some(u64::from_be_bytes(value.get(at..at + 8)?.try_into().ok()?));
            Some((number(0)?, number(8)?))
        });
        found.push(Logged { packet, time });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::NLMSG_DONE;

    #[test]
    fn the_request_is_the_kernels() {
        // nfgenmsg; command; mode (128 bytes, whole packets); buffer; timeout; threshold.
        let hex = "00000001 0500010001000000 0a00020000000080020000 00 \
                   0800030000004000 080004000000000a 0800050000000040"
            .replace(' ', "");
        let bytes = bind(7).unwrap();
        let body: String = bytes[16..].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(body, hex);
        assert_eq!(bytes[4..8], [0x01, 0x04, 0x05, 0x00]);
    }

    fn message(b: &mut Builder, payload: &[u8], time: bool) {
        b.begin(NFULNL_MSG_PACKET, 0, 0, &nfgenmsg(2, GROUP));
        b.attr(NFULA_PACKET_HDR, &[8, 0, 3, 0]).unwrap();
        if time {
            let time = [5u64.to_be_bytes(), 6u64.to_be_bytes()].concat();
            b.attr(NFULA_TIMESTAMP, &time).unwrap();
        }
        // What we do not know is passed over (NFULA_UID).
        b.attr_be32(11, 1500).unwrap();
        b.attr(NFULA_PAYLOAD, payload).unwrap();
        b.end();
    }

    #[test]
    fn a_datagram_holds_many_packets_and_an_end() {
        let mut b = Builder::default();
        message(&mut b, b"first", false);
        message(&mut b, b"second", true);
        b.begin(NLMSG_DONE, 0, 0, &nfgenmsg(0, GROUP));
        b.end();
        let datagram = b.finish();
        let found = packets(&datagram).unwrap();
        let meant = [
            Logged {
                packet: b"first",
                time: None,
            },
            Logged {
                packet: b"second",
                time: Some((5, 6)),
            },
        ];
        assert_eq!(found, meant);
        assert!(packets(&datagram[..datagram.len() - 1]).is_err());
    }

    #[test]
    fn a_message_without_a_packet_is_none() {
        let mut b = Builder::default();
        b.begin(NFULNL_MSG_PACKET, 0, 0, &nfgenmsg(2, GROUP));
        b.attr(NFULA_PACKET_HDR, &[8, 0, 3, 0]).unwrap();
        b.end();
        assert_eq!(packets(&b.finish()).unwrap(), []);
    }
}
