//! What is true of a port, in words.

use super::spec::{HostPort, Published};
use crate::dest::Proto;

fn protocol(proto: Proto) -> &'static str {
    match proto {
        Proto::Tcp => "port",
        Proto::Udp => "UDP port",
    }
}

/// What is true of a published port.
pub fn published(port: &Published) -> String {
    let what = format!("{} {} of the sandbox", protocol(port.proto), port.inside);
    let at: Vec<String> = port.addresses().iter().map(ToString::to_string).collect();
    if port.is_open() {
        format!("{what} is open to the network at {}", at.join(" and "))
    } else {
        format!("{what} is at {} of this machine", at.join(" and "))
    }
}

pub fn host_port(port: &HostPort) -> String {
    let (what, number) = (protocol(port.proto), port.inside);
    format!(
        "{what} {} of this machine's loopback is at 127.0.0.1:{number} and [::1]:{number} in the sandbox",
        port.host
    )
}

/// The same, where nothing had to be done for it.
pub fn already(line: String) -> String {
    line + " already"
}

/// That `line` is not true any longer, and how many talked through the port.
pub fn no_longer(line: &str, ended: usize) -> String {
    format!("no longer: {line}{}", cut(ended))
}

/// The same of `auto`.
pub fn not_followed(ended: usize) -> String {
    let line = "what the program listens on is followed no longer";
    format!("{line}{}", cut(ended))
}

fn cut(ended: usize) -> String {
    match ended {
        0 => String::new(),
        1 => "; one connection was ended".into(),
        n => format!("; {n} connections were ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::ports::spec::Publish;

    #[test]
    fn what_is_open_to_the_network_says_so() {
        let of = |text: &str| match text.parse().unwrap() {
            Publish::Port(port) => published(&port),
            Publish::Auto => panic!("auto"),
        };
        assert_eq!(
            of("8080:80"),
            "port 80 of the sandbox is at 127.0.0.1:8080 and [::1]:8080 of this machine"
        );
        assert_eq!(
            of("[::]:53/udp"),
            "UDP port 53 of the sandbox is open to the network at [::]:53"
        );
        let host = host_port(&"5432:15432".parse().unwrap());
        assert_eq!(
            host,
            "port 5432 of this machine's loopback is at 127.0.0.1:15432 and [::1]:15432 in the sandbox"
        );
    }
}
