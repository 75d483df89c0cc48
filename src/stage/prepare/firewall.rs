//! The firewall's part of a launch: the host's networks, and the rules made from them.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nftables::schema::Nftables;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::getuid;

use super::RESOLV_CONF;
use crate::dest::Destination;
use crate::dns::{self, resolv::Resolv};
use crate::host::uplink::{self, Uplink};
use crate::host::{Network, attached, names};
use crate::launch::{self, Netns};
use crate::live::ports::Asked;
use crate::policy::ruleset::{Dns, Shelf};
use crate::policy::{Inputs, Policy, document, seeming};
use crate::sandbox::binds::Proc;
use crate::stage::{container, pasta};

/// How long names of the allowlist may take to resolve.
const NAMES: Duration = Duration::from_secs(5);

pub struct Firewall {
    pub way: Way,
    pub policy: Policy,
    pub document: Nftables<'static>,
    /// What the policy was made from.
    pub inputs: Inputs,
    /// The host's own addresses, which the sandbox has, too.
    pub own: Vec<IpAddr>,
    pub uplink: Uplink,
    pub pasta: PathBuf,
    /// getent, which resolves names as the host does.
    pub getent: Option<PathBuf>,
    /// The host's resolvers.
    pub resolv: Resolv,
    pub ports: Asked,
}

/// Who makes the namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// pasta, and it executes the inner stage in them.
    Pasta,
    /// We ourselves; pasta attaches to them.
    Attach,
}

impl Firewall {
    /// pasta's command line; where it attaches, to the process `target`.
    pub fn pasta_argv(&self, self_exe: &Path, target: &str) -> Vec<OsString> {
        match self.way {
            Way::Pasta => pasta::creating(&self.pasta, &self.uplink, self_exe),
            Way::Attach => pasta::attaching(&self.pasta, &self.uplink, getuid().is_root(), target),
        }
    }
}

/// A policy and what it was made from.
pub struct Decided {
    pub network: Network,
    /// The host's resolvers.
    pub resolv: Resolv,
    pub inputs: Inputs,
    pub policy: Policy,
}

/// Reads of the host what the policy needs; names are looked up by `getent`.
pub fn decide(
    asked: &launch::Firewall,
    shelf: &Shelf,
    getent: Option<&Path>,
    warnings: &mut Vec<String>,
) -> Result<Decided> {
    let ruleset = shelf.load(&asked.policy);
    let ruleset = match &asked.policy_from {
        Some(file) => ruleset.with_context(|| format!("{}: firewall.policy", file.display())),
        None => ruleset,
    }?;
    let network = Network::read().context("cannot read the host's networks")?;
    let resolv = Resolv::read(Path::new(RESOLV_CONF));
    let resolv = resolv.unwrap_or_else(|_| Resolv::parse("", |_| None));
    let listed = ruleset.dns == Dns::Listed;
    let resolve = |entries: &[Destination]| match listed {
        true => (names::unresolved(entries), Vec::new()),
        false => names::resolve(entries, getent, NAMES),
    };
    let all = asked.allow.iter().chain(&asked.deny);
    if let Some(why) = all.filter(|_| !listed).find_map(names::not_learnt) {
        bail!("policy {}: entry {why}", ruleset.name);
    }
    let (allowed, unresolved) = resolve(&asked.allow);
    let unresolved = unresolved.into_iter();
    warnings.extend(unresolved.map(|name| {
        format!("allow entry {name}: starting without it; it is looked up again while it runs")
    }));
    let (denied, unresolved) = resolve(&asked.deny);
    let unresolved = unresolved.into_iter();
    warnings.extend(unresolved.map(|name| {
        format!("deny entry {name}: nothing is denied by it; it is looked up again while it runs")
    }));
    let inputs = Inputs {
        allowed,
        denied,
        attached: attached::attached(&network),
        gateways: network.gateways(),
        resolvers: resolv.reachable(),
        ..Inputs::new(ruleset, asked)
    };
    Ok(Decided {
        policy: Policy::build(&inputs),
        network,
        resolv,
        inputs,
    })
}

pub fn prepare(
    asked: &launch::Firewall,
    shelf: &Shelf,
    pasta: PathBuf,
    getent: Option<PathBuf>,
    proc: Proc,
    warnings: &mut Vec<String>,
) -> Result<Firewall> {
    let Decided {
        network,
        resolv,
        inputs,
        policy,
    } = decide(asked, shelf, getent.as_deref(), warnings)?;
    let own: Vec<IpAddr> = network.addresses.iter().map(|a| a.addr.ip()).collect();
    warnings.extend(seeming::of_no_use(&inputs.allowed, &own));
    warnings.extend(seeming::opens_more(&inputs.allowed, &inputs.attached));
    warnings.extend(seeming::blocks_nothing(&inputs.denied, &own));
    warnings.extend(ping_excluded());
    Ok(Firewall {
        way: choose_way(asked.netns, proc)?,
        document: document::document(&policy),
        policy,
        inputs,
        getent,
        own,
        uplink: uplink::uplink(&network),
        pasta,
        resolv,
        ports: asked.ports.clone(),
    })
}

impl Firewall {
    /// The sandbox's resolv.conf.
    pub fn resolv_conf(&self) -> String {
        match self.inputs.ruleset.dns {
            Dns::All | Dns::Listed => self.resolv.for_sandbox(dns::ADDRESS),
            // The C libraries then ask this machine, where nothing listens, and say so at once.
            Dns::None => format!("# No names resolve: policy {}\n", self.policy.name),
        }
    }

    /// Whether queries are relayed.
    pub fn relays_dns(&self) -> bool {
        self.inputs.ruleset.dns != Dns::None
    }
}

/// pasta that makes the namespaces as root hangs (seen with those of 2023 and 2025), and its PID namespace needs a
/// fresh `/proc`, which a container may deny. With no_new_privs the inner stage would keep of its capabilities only
/// those that pasta has kept for itself, and bwrap could not map it.
fn choose_way(netns: Netns, proc: Proc) -> Result<Way> {
    let root = getuid().is_root();
    let clipped = prctl::get_no_new_privs()?;
    Ok(match netns {
        Netns::Pasta if root => bail!(
            "netns = \"pasta\" does not work as root, where pasta that makes the namespace hangs: \"auto\" or \"attach\" do"
        ),
        Netns::Pasta if proc == Proc::Launchers => bail!(
            "netns = \"pasta\" needs a /proc of its own, which cannot be mounted here, where parts of /proc are masked: \
             \"auto\" or \"attach\" do without"
        ),
        Netns::Pasta if clipped => bail!(
            "netns = \"pasta\" does not work with no_new_privs, which is set here (as by --security-opt no-new-privileges \
             of a container): \"auto\" or \"attach\" do"
        ),
        Netns::Pasta => Way::Pasta,
        Netns::Attach => Way::Attach,
        Netns::Auto if root || clipped || proc == Proc::Launchers => Way::Attach,
        Netns::Auto => Way::Pasta,
    })
}

/// A line when the host does not let the user ping (icmp(7), `ping_group_range`): pasta sends the sandbox's echo
/// requests in the user's name. Asked of the kernel: in a container the range reads as groups that do not exist there.
pub fn ping_excluded() -> Option<String> {
    let (kind, protocol) = (SockType::Datagram, SockProtocol::Icmp);
    let asked = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, protocol);
    (asked.err() == Some(Errno::EACCES)).then(|| {
        format!(
            "ping will not work in the sandbox: the host's sysctl excludes your groups: {}",
            ping_fix()
        )
    })
}

/// What lets the user ping.
pub fn ping_fix() -> &'static str {
    match container::inside() {
        true => {
            "start the container with --sysctl net.ipv4.ping_group_range='0 65535'; where it has the host's network, on the \
             host: sysctl -w net.ipv4.ping_group_range='0 2147483647' (as root)"
        }
        false => "sysctl -w net.ipv4.ping_group_range='0 2147483647' (as root)",
    }
}
