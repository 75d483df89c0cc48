//! Numbers of the kernel's interface, as `linux/netfilter/nf_tables.h`, `nfnetlink.h`, `netfilter.h` and `in.h` have
//! them (the headers of Linux 6.1; they are ABI and do not change). `UDATA_*` are libnftnl's (`libnftnl/udata.h`):
//! the kernel stores user data without looking at it, nft reads it.

/// `nfgenmsg`: family, version, resource id in network order.
pub const fn nfgenmsg(family: u8, res_id: u16) -> [u8; 4] {
    let id = res_id.to_be_bytes();
    [family, NFNETLINK_V0, id[0], id[1]]
}

const NFNETLINK_V0: u8 = 0;
pub const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub const NFNL_MSG_BATCH_END: u16 = 0x11;

pub const NFPROTO_UNSPEC: u8 = 0;
pub const NFPROTO_INET: u8 = 1;
pub const NFPROTO_IPV4: u8 = 2;
pub const NFPROTO_IPV6: u8 = 10;

pub const IPPROTO_ICMP: u8 = 1;
pub const IPPROTO_TCP: u8 = 6;
pub const IPPROTO_UDP: u8 = 17;
pub const IPPROTO_ICMPV6: u8 = 58;
pub const IPPROTO_IGMP: u8 = 2;

pub const NF_INET_LOCAL_IN: u32 = 1;
pub const NF_INET_FORWARD: u32 = 2;
pub const NF_INET_LOCAL_OUT: u32 = 3;

pub const NF_DROP: u32 = 0;
pub const NF_ACCEPT: u32 = 1;
pub const NFT_JUMP: u32 = -3i32 as u32;
pub const NFT_GOTO: u32 = -4i32 as u32;
pub const NFT_RETURN: u32 = -5i32 as u32;

const fn message(kind: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES << 8) | kind
}
pub const NFT_MSG_NEWTABLE: u16 = message(0);
pub const NFT_MSG_GETTABLE: u16 = message(1);
pub const NFT_MSG_DELTABLE: u16 = message(2);
pub const NFT_MSG_NEWCHAIN: u16 = message(3);
pub const NFT_MSG_GETCHAIN: u16 = message(4);
pub const NFT_MSG_DELCHAIN: u16 = message(5);
pub const NFT_MSG_NEWRULE: u16 = message(6);
pub const NFT_MSG_GETRULE: u16 = message(7);
pub const NFT_MSG_DELRULE: u16 = message(8);
pub const NFT_MSG_NEWSET: u16 = message(9);
pub const NFT_MSG_GETSET: u16 = message(10);
pub const NFT_MSG_DELSET: u16 = message(11);
pub const NFT_MSG_NEWSETELEM: u16 = message(12);
pub const NFT_MSG_GETSETELEM: u16 = message(13);
pub const NFT_MSG_DELSETELEM: u16 = message(14);
pub const NFT_MSG_NEWGEN: u16 = message(15);
pub const NFT_MSG_GETGEN: u16 = message(16);

pub const NFTA_GEN_ID: u16 = 1;

pub const NFTA_LIST_ELEM: u16 = 1;

pub const NFTA_TABLE_NAME: u16 = 1;
pub const NFTA_TABLE_FLAGS: u16 = 2;
pub const NFTA_TABLE_USE: u16 = 3;
pub const NFTA_TABLE_HANDLE: u16 = 4;
pub const NFTA_TABLE_PAD: u16 = 5;
pub const NFT_TABLE_F_DORMANT: u32 = 1;

pub const NFTA_CHAIN_TABLE: u16 = 1;
pub const NFTA_CHAIN_HANDLE: u16 = 2;
pub const NFTA_CHAIN_NAME: u16 = 3;
pub const NFTA_CHAIN_HOOK: u16 = 4;
pub const NFTA_CHAIN_POLICY: u16 = 5;
pub const NFTA_CHAIN_USE: u16 = 6;
pub const NFTA_CHAIN_TYPE: u16 = 7;
pub const NFTA_CHAIN_COUNTERS: u16 = 8;
pub const NFTA_CHAIN_PAD: u16 = 9;
pub const NFTA_CHAIN_FLAGS: u16 = 10;
pub const NFT_CHAIN_BASE: u32 = 1;

pub const NFTA_HOOK_HOOKNUM: u16 = 1;
pub const NFTA_HOOK_PRIORITY: u16 = 2;

pub const NFTA_SET_TABLE: u16 = 1;
pub const NFTA_SET_NAME: u16 = 2;
pub const NFTA_SET_FLAGS: u16 = 3;
pub const NFTA_SET_KEY_TYPE: u16 = 4;
pub const NFTA_SET_KEY_LEN: u16 = 5;
pub const NFTA_SET_DESC: u16 = 9;
pub const NFTA_SET_ID: u16 = 10;
/// Milliseconds, 64 bits.
pub const NFTA_SET_TIMEOUT: u16 = 11;
pub const NFTA_SET_USERDATA: u16 = 13;
pub const NFTA_SET_PAD: u16 = 14;
pub const NFTA_SET_HANDLE: u16 = 16;
/// The kernel's own name for the set's data structure; since Linux 6.16.
pub const NFTA_SET_TYPE: u16 = 19;
/// The number of elements; since Linux 6.16.
pub const NFTA_SET_COUNT: u16 = 20;
pub const NFT_SET_INTERVAL: u32 = 4;
pub const NFT_SET_TIMEOUT: u32 = 0x10;
/// Filled by rules.
pub const NFT_SET_EVAL: u32 = 0x20;
pub const NFTA_SET_DESC_SIZE: u16 = 1;

pub const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub const NFTA_SET_ELEM_KEY: u16 = 1;
pub const NFTA_SET_ELEM_FLAGS: u16 = 3;
/// Milliseconds, 64 bits each.
pub const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
pub const NFTA_SET_ELEM_EXPIRATION: u16 = 5;
pub const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub const NFTA_SET_ELEM_EXPR: u16 = 7;
pub const NFTA_SET_ELEM_PAD: u16 = 8;
pub const NFT_SET_ELEM_INTERVAL_END: u32 = 1;

pub const NFTA_RULE_TABLE: u16 = 1;
pub const NFTA_RULE_CHAIN: u16 = 2;
pub const NFTA_RULE_HANDLE: u16 = 3;
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub const NFTA_RULE_POSITION: u16 = 6;
pub const NFTA_RULE_USERDATA: u16 = 7;
pub const NFTA_RULE_PAD: u16 = 8;

pub const NFTA_EXPR_NAME: u16 = 1;
pub const NFTA_EXPR_DATA: u16 = 2;

pub const NFTA_DATA_VALUE: u16 = 1;
pub const NFTA_DATA_VERDICT: u16 = 2;
pub const NFTA_VERDICT_CODE: u16 = 1;
pub const NFTA_VERDICT_CHAIN: u16 = 2;

pub const NFT_REG_VERDICT: u32 = 0;
pub const NFT_REG_1: u32 = 1;

pub const NFTA_META_DREG: u16 = 1;
pub const NFTA_META_KEY: u16 = 2;
pub const NFT_META_IIFNAME: u32 = 6;
pub const NFT_META_OIFNAME: u32 = 7;
pub const NFT_META_NFPROTO: u32 = 15;
pub const NFT_META_L4PROTO: u32 = 16;

pub const NFTA_CMP_SREG: u16 = 1;
pub const NFTA_CMP_OP: u16 = 2;
pub const NFTA_CMP_DATA: u16 = 3;
pub const NFT_CMP_EQ: u32 = 0;
pub const NFT_CMP_NEQ: u32 = 1;
pub const NFT_CMP_LTE: u32 = 3;
pub const NFT_CMP_GTE: u32 = 5;

pub const NFTA_RANGE_SREG: u16 = 1;
pub const NFTA_RANGE_OP: u16 = 2;
pub const NFTA_RANGE_FROM_DATA: u16 = 3;
pub const NFTA_RANGE_TO_DATA: u16 = 4;
pub const NFT_RANGE_NEQ: u32 = 1;

pub const NFTA_PAYLOAD_DREG: u16 = 1;
pub const NFTA_PAYLOAD_BASE: u16 = 2;
pub const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub const NFTA_PAYLOAD_LEN: u16 = 4;
pub const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
pub const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;

pub const NFTA_BITWISE_SREG: u16 = 1;
pub const NFTA_BITWISE_DREG: u16 = 2;
pub const NFTA_BITWISE_LEN: u16 = 3;
pub const NFTA_BITWISE_MASK: u16 = 4;
pub const NFTA_BITWISE_XOR: u16 = 5;
pub const NFTA_BITWISE_OP: u16 = 6;
pub const NFT_BITWISE_MASK_XOR: u32 = 0;

pub const NFTA_LOOKUP_SET: u16 = 1;
pub const NFTA_LOOKUP_SREG: u16 = 2;
pub const NFTA_LOOKUP_FLAGS: u16 = 5;
pub const NFT_LOOKUP_F_INV: u32 = 1;

pub const NFTA_DYNSET_SET_NAME: u16 = 1;
pub const NFTA_DYNSET_OP: u16 = 3;
pub const NFTA_DYNSET_SREG_KEY: u16 = 4;
pub const NFTA_DYNSET_TIMEOUT: u16 = 6;
pub const NFTA_DYNSET_EXPR: u16 = 7;
pub const NFTA_DYNSET_PAD: u16 = 8;
pub const NFTA_DYNSET_FLAGS: u16 = 9;
pub const NFT_DYNSET_OP_UPDATE: u32 = 1;

/// Packets each `UNIT` seconds; both have 64 bits.
pub const NFTA_LIMIT_RATE: u16 = 1;
pub const NFTA_LIMIT_UNIT: u16 = 2;
pub const NFTA_LIMIT_BURST: u16 = 3;
pub const NFTA_LIMIT_TYPE: u16 = 4;
pub const NFTA_LIMIT_FLAGS: u16 = 5;
pub const NFTA_LIMIT_PAD: u16 = 6;
pub const NFT_LIMIT_PKTS: u32 = 0;

/// 16 bits.
pub const NFTA_LOG_GROUP: u16 = 1;
pub const NFTA_LOG_SNAPLEN: u16 = 3;

pub const NFTA_IMMEDIATE_DREG: u16 = 1;
pub const NFTA_IMMEDIATE_DATA: u16 = 2;

pub const NFTA_COUNTER_BYTES: u16 = 1;
pub const NFTA_COUNTER_PACKETS: u16 = 2;
pub const NFTA_COUNTER_PAD: u16 = 3;

pub const NFTA_REJECT_TYPE: u16 = 1;
pub const NFTA_REJECT_ICMP_CODE: u16 = 2;
pub const NFT_REJECT_TCP_RST: u32 = 1;
pub const NFT_REJECT_ICMPX_UNREACH: u32 = 2;
pub const NFT_REJECT_ICMPX_ADMIN_PROHIBITED: u8 = 3;

/// User data is type, length, value, one byte each for the first two.
pub const UDATA_RULE_COMMENT: u8 = 0;
/// Set: the key's byte order is the network's (nft's `BYTEORDER_BIG_ENDIAN` is 2), in the host's order.
pub const UDATA_SET_KEYBYTEORDER: u8 = 0;
pub const BYTEORDER_BIG_ENDIAN: u32 = 2;
/// Set element: `NFTNL_SET_ELEM_F_INTERVAL_OPEN`, an interval up to the highest value, which has no end element.
pub const UDATA_SET_ELEM_FLAGS: u8 = 1;
pub const SET_ELEM_F_INTERVAL_OPEN: u32 = 1;
