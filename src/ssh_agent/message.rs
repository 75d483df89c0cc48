//! Messages of the ssh-agent protocol (draft-ietf-sshm-ssh-agent): a length of 32 bits, then a type and its contents.

/// The longest message, its own length not counted, in bytes: `AGENT_MAX_LEN` of OpenSSH.
pub const MAX: usize = 256 * 1024;

/// SSH_AGENT_FAILURE, with its length.
pub const FAILURE: [u8; 5] = [0, 0, 0, 1, 5];

const REQUEST_IDENTITIES: u8 = 11;
const SIGN_REQUEST: u8 = 13;
const EXTENSION: u8 = 27;
/// Tells the agent which connection a signature is for, so that it can hold a key to its destinations (PROTOCOL.agent of
/// OpenSSH).
const SESSION_BIND: &[u8] = b"session-bind@openssh.com";

/// How many bytes the message that begins with `bytes`, its length included, lacks as far as can be told; 0 when it is
/// whole. `Err` where it is empty or longer than [`MAX`].
pub fn lacks(bytes: &[u8]) -> Result<usize, BadLength> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(4 - bytes.len());
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length == 0 || length > MAX {
        return Err(BadLength);
    }
    Ok(length.saturating_sub(rest.len()))
}

#[derive(Debug, PartialEq, Eq)]
pub struct BadLength;

/// Whether a request, its length included, may reach the agent: the list of keys, a signature, and the binding of a
/// session.
pub fn passes(request: &[u8]) -> bool {
    match request.get(4..).and_then(|body| body.split_first()) {
        // It has no contents; with some it is another protocol's (version 1 had a challenge there).
        Some((&REQUEST_IDENTITIES, rest)) => rest.is_empty(),
        Some((&SIGN_REQUEST, _)) => true,
        Some((&EXTENSION, rest)) => rest
            .split_first_chunk::<4>()
            .and_then(|(length, name)| name.get(..u32::from_be_bytes(*length) as usize))
            .is_some_and(|name| name == SESSION_BIND),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_be_bytes(), body].concat()
    }

    fn extension(name: &[u8]) -> Vec<u8> {
        let length = (name.len() as u32).to_be_bytes();
        message(&[&[27], &length[..], name, b"contents"].concat())
    }

    #[test]
    fn of_all_types_three_pass() {
        let passed: Vec<u8> = (0..=255)
            .filter(|kind| passes(&message(&[*kind])))
            .collect();
        assert_eq!(passed, [11, 13]);
        assert!(passes(&message(b"\x0dkey and data")));
        assert!(!passes(&message(b"\x0bmore")));
        assert!(passes(&extension(b"session-bind@openssh.com")));
        for name in [
            &b"session-bind@openssh.co"[..],
            b"session-bind@openssh.com2",
            b"query",
            b"",
        ] {
            assert!(!passes(&extension(name)), "{name:?}");
        }
        assert!(!passes(&message(
            b"\x1b\xff\xff\xff\xffsession-bind@openssh.com"
        )));
        assert!(!passes(&message(b"")));
    }

    #[test]
    fn messages_are_whole_and_bounded() {
        let bytes = message(b"\x0dxyz");
        let lacking: Vec<usize> = (0..=bytes.len())
            .map(|n| lacks(&bytes[..n]).unwrap())
            .collect();
        assert_eq!(lacking, [4, 3, 2, 1, 4, 3, 2, 1, 0]);
        assert_eq!(lacks(&[0; 8]), Err(BadLength));
        assert_eq!(lacks(&(MAX as u32).to_be_bytes()), Ok(MAX));
        assert_eq!(lacks(&(MAX as u32 + 1).to_be_bytes()), Err(BadLength));
        assert_eq!(lacks(&FAILURE), Ok(0));
    }
}
