//! Which services of the host the program may use: what `[sandbox]` says beside the system call filter.

/// Everything is off but for what passes no more than a signature or a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Services {
    pub dbus: Dbus,
    /// Whether a token that gh keeps in the keyring is passed on.
    pub gh: bool,
    pub ssh: Ssh,
    pub gpg: Gpg,
    pub wayland: bool,
    pub x11: bool,
    pub audio: bool,
    pub gpu: bool,
    pub usb: bool,
}

impl Default for Services {
    fn default() -> Self {
        Services {
            dbus: Dbus::None,
            gh: true,
            ssh: Ssh::Agent,
            gpg: Gpg::None,
            wayland: false,
            x11: false,
            audio: false,
            gpu: false,
            usb: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dbus {
    None,
    /// The session bus, but of it only `org.freedesktop.secrets`: the keyring.
    Secrets,
    /// The session bus and the system bus.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ssh {
    /// Signatures of the agent's keys; of `~/.ssh` the configuration and what is public.
    Agent,
    /// The same, and all of `~/.ssh`, read-only.
    Files,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gpg {
    None,
    /// Signatures and decryption by the gpg-agent's restricted socket; of `~/.gnupg` what is public.
    Agent,
}
