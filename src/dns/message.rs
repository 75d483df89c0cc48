//! The little of DNS messages (RFC 1035, section 4) that a relay has to know.

const HEADER: usize = 12;
const QR: u8 = 0x80;
const RA: u8 = 0x80;
/// What is wanted (RFC 1035, 4.1.1); 0 is a question.
const OPCODE: u8 = 0x78;
/// Opcode and RD, which an answer repeats.
const REPEATED: u8 = 0x79;

const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
const NOTIMP: u8 = 4;
const REFUSED: u8 = 5;

/// Whether this has a header that asks something.
pub fn is_query(packet: &[u8]) -> bool {
    packet.len() >= HEADER && packet[2] & QR == 0
}

/// Whether this asks for a name, or is too short to want anything. Updates (RFC 2136), notifications and the like are for
/// a server's own zones, and for its neighbours.
pub fn looks_up(packet: &[u8]) -> bool {
    packet.get(2).is_none_or(|flags| flags & OPCODE == 0)
}

/// Whether `packet` is a response with the id of `query`.
pub fn answers(packet: &[u8], query: &[u8]) -> bool {
    packet.len() >= HEADER && packet[2] & QR != 0 && packet[..2] == query[..2]
}

/// Whether a server said that it could not or would not: another one may. The same three as in glibc.
pub fn is_unhelpful(answer: &[u8]) -> bool {
    matches!(answer[3] & 0x0f, SERVFAIL | NOTIMP | REFUSED)
}

/// The SERVFAIL for `query`, which must have a header.
pub fn servfail(query: &[u8]) -> Vec<u8> {
    error(query, SERVFAIL)
}

/// The NOTIMP for `query`, which must have a header.
pub fn not_relayed(query: &[u8]) -> Vec<u8> {
    error(query, NOTIMP)
}

/// The NXDOMAIN for `query`, which must have a header: programs take it as the last word, and do not ask again.
pub fn no_such_name(query: &[u8]) -> Vec<u8> {
    error(query, NXDOMAIN)
}

/// It repeats the question: glibc takes no answer without.
fn error(query: &[u8], code: u8) -> Vec<u8> {
    let question = question(query).unwrap_or_default();
    let mut answer = Vec::with_capacity(HEADER + question.len());
    answer.extend_from_slice(&query[..2]);
    answer.extend_from_slice(&[QR | query[2] & REPEATED, RA | code]);
    answer.extend_from_slice(&[0, u8::from(!question.is_empty()), 0, 0, 0, 0, 0, 0]);
    answer.extend_from_slice(question);
    answer
}

/// The bytes of a query's one question: labels, type, class.
fn question(query: &[u8]) -> Option<&[u8]> {
    if query.get(4..6)? != [0, 1] {
        return None;
    }
    let mut at = HEADER;
    loop {
        match *query.get(at)? as usize {
            0 => return query.get(HEADER..at + 5),
            label @ 1..=63 => at += 1 + label,
            // Compression has nothing to point to in the first name.
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] =
        b"\xab\xcd\x01\x20\0\x01\0\0\0\0\0\x01\x07example\x03com\0\0\x1c\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0";

    #[test]
    fn servfail_repeats_id_rd_and_question() {
        let answer = servfail(QUERY);
        assert_eq!(
            answer,
            b"\xab\xcd\x81\x82\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x1c\0\x01"
        );
        assert!(answers(&answer, QUERY));
        assert!(is_unhelpful(&answer));
    }

    #[test]
    fn servfail_of_a_torn_or_odd_question_is_a_bare_header() {
        for torn in [&QUERY[..12], &QUERY[..20], &QUERY[..28]] {
            assert_eq!(servfail(torn), b"\xab\xcd\x81\x82\0\0\0\0\0\0\0\0");
        }
        let mut pointer = QUERY.to_vec();
        pointer[12] = 0xc0;
        assert_eq!(servfail(&pointer).len(), 12);
        let mut two = QUERY.to_vec();
        two[5] = 2;
        assert_eq!(servfail(&two).len(), 12);
    }

    #[test]
    fn only_a_response_with_the_same_id_answers() {
        let mut answer = QUERY.to_vec();
        assert!(!answers(&answer, QUERY), "an echoed query");
        answer[2] |= QR;
        assert!(answers(&answer, QUERY));
        assert!(!answers(&answer[..11], QUERY));
        answer[1] ^= 1;
        assert!(!answers(&answer, QUERY));
    }

    #[test]
    fn queries_are_told_from_responses_and_scraps() {
        assert!(is_query(QUERY));
        assert!(!is_query(&QUERY[..11]));
        assert!(!is_query(&servfail(QUERY)));
    }

    #[test]
    fn only_questions_are_look_ups() {
        let mut packet = QUERY.to_vec();
        for opcode in 0..16 {
            packet[2] = 0x01 | opcode << 3;
            assert_eq!(looks_up(&packet), opcode == 0, "{opcode}");
        }
        packet[2] = 0x87;
        assert!(looks_up(&packet), "the other bits are no opcode");
        assert!(looks_up(b"ab"));
        assert_eq!(not_relayed(QUERY)[3] & 0x0f, NOTIMP);
    }

    #[test]
    fn no_such_name_is_helpful() {
        let mut answer = servfail(QUERY);
        for (rcode, unhelpful) in [
            (0, false),
            (1, false),
            (2, true),
            (3, false),
            (4, true),
            (5, true),
        ] {
            answer[3] = RA | rcode;
            assert_eq!(is_unhelpful(&answer), unhelpful, "rcode {rcode}");
        }
    }
}
