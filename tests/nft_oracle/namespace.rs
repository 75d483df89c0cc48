//! A network namespace of the test's own, with a netlink socket that was opened inside it.

use std::fs;
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use claude_isolated::netlink::Netlink;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nftables::schema::Nftables;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use nix::unistd::{getgid, getuid};
use serde_json::Value;

/// A user and network namespace, kept by a `cat` that ends with the test. The test itself stays outside and drives the
/// namespace through the socket, as the owner of the user namespace may; so it works as root and as an ordinary user.
pub struct Namespace {
    keeper: Child,
    pub netlink: Netlink,
}

impl Namespace {
    pub fn new() -> Self {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::Stream,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: between fork and exec only system calls and small allocations, which glibc allows there.
        unsafe {
            command.pre_exec(move || {
                unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
                let mut socket = Socket::new(NETLINK_NETFILTER)?;
                socket.bind_auto()?;
                let fds = [socket.as_raw_fd()];
                let rights = [ControlMessage::ScmRights(&fds)];
                let byte = [IoSlice::new(b"x")];
                sendmsg::<()>(theirs.as_raw_fd(), &byte, &rights, MsgFlags::empty(), None)?;
                Ok(())
            });
        }
        let keeper = command
            .spawn()
            .expect("unprivileged user namespaces and cat");
        let proc = format!("/proc/{}", keeper.id());
        if !getuid().is_root() {
            fs::write(format!("{proc}/setgroups"), "deny").unwrap();
        }
        fs::write(format!("{proc}/uid_map"), format!("0 {} 1", getuid())).unwrap();
        fs::write(format!("{proc}/gid_map"), format!("0 {} 1", getgid())).unwrap();
        let socket = receive_fd(ours.as_raw_fd());
        Self {
            keeper,
            netlink: Netlink::from_socket(socket),
        }
    }

    /// A program in the namespace.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.keeper.id().to_string()])
            .args(["-U", "-n", "--preserve-credentials", program])
            .args(args);
        command
    }

    /// Lets bash run a script in the namespace.
    #[track_caller]
    pub fn sh(&self, script: &str) {
        let status = self.command("bash", &["-c", script]).status().unwrap();
        assert!(status.success(), "{script}");
    }

    /// Runs nft in the namespace with `input` as its script.
    fn run(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut child = self
            .command("nft", args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter (util-linux) and nft (nftables)");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Lets nft load a JSON document.
    #[track_caller]
    pub fn nft_load(&self, document: &Value) {
        let typed: Nftables<'_> = serde_json::from_value(document.clone()).unwrap();
        let document = claude_isolated::nf::to_nft(&typed).unwrap();
        self.run(&["-j", "-f", "-"], &document.to_string()).unwrap();
    }

    /// Lets nft run commands in its own language.
    #[track_caller]
    pub fn nft(&self, script: &str) {
        self.run(&["-f", "-"], script).unwrap();
    }

    /// `nft -j list ruleset`: its objects without metainfo and handles.
    pub fn list(&self) -> Vec<Value> {
        let text = self.run(&["-j", "list", "ruleset"], "").unwrap();
        let mut found: Value = serde_json::from_str(&text).unwrap();
        let Value::Array(mut objects) = found["nftables"].take() else {
            panic!("{text}");
        };
        objects.retain(|o| o.get("metainfo").is_none());
        for object in &mut objects {
            for (_, content) in object.as_object_mut().unwrap() {
                content.as_object_mut().unwrap().remove("handle");
            }
        }
        objects
    }

    /// `nft list table inet claudejail`.
    pub fn list_text(&self) -> String {
        let args = ["list", "table", "inet", "claudejail"];
        self.run(&args, "").unwrap()
    }

    /// The kernel's number of the table, another one when it was made anew.
    pub fn table_handle(&self) -> u64 {
        let text = self.run(&["-j", "list", "tables"], "").unwrap();
        let found: Value = serde_json::from_str(&text).unwrap();
        let tables = found["nftables"].as_array().unwrap().iter();
        let mut handles = tables.filter_map(|o| o["table"]["handle"].as_u64());
        handles.next().unwrap()
    }

    /// The handle of rule `n`, from 0, of a chain.
    pub fn handle(&self, chain: &str, n: usize) -> u64 {
        let args = ["-j", "list", "chain", "inet", "claudejail", chain];
        let found: Value = serde_json::from_str(&self.run(&args, "").unwrap()).unwrap();
        let rules = found["nftables"].as_array().unwrap().iter();
        let mut handles = rules.filter_map(|o| o["rule"]["handle"].as_u64());
        handles.nth(n).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn receive_fd(from: RawFd) -> Socket {
    let mut byte = [0u8];
    let mut space = nix::cmsg_space!(RawFd);
    let mut iov = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(from, &mut iov, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC);
    let message = message.unwrap();
    let fds = message.cmsgs().unwrap().find_map(|c| match c {
        ControlMessageOwned::ScmRights(fds) => Some(fds),
        _ => None,
    });
    // SAFETY: the kernel has just made this descriptor for us; netlink-sys takes a socket no other way.
    unsafe { Socket::from_raw_fd(fds.unwrap()[0]) }
}
