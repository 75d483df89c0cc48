# What the scripts share. Sourced, with $root set; POSIX shell.

say() { echo "$(basename "$0"): $*" >&2; }
fail() { say "$*"; exit 125; }

# The package manager of this system: apt, dnf, pacman, or nothing.
package_manager() {
    for manager in apt-get dnf pacman; do
        if command -v "$manager" >/dev/null 2>&1; then echo "$manager"; return; fi
    done
}

# The name that a package has here: package DEBIAN FEDORA ARCH.
package() {
    case $(package_manager) in
        dnf) echo "$2" ;;
        pacman) echo "$3" ;;
        *) echo "$1" ;;
    esac
}

# Packages that are missing, one a line: to_build and to_run; to_test adds what only the tests need.
to_build() {
    command -v cc >/dev/null 2>&1 || package gcc gcc gcc
    # What every program is linked with: Debian's gcc only recommends it. Without it this prints the bare name.
    case $(cc -print-file-name=crt1.o 2>/dev/null) in /*) ;; *) package libc6-dev glibc-devel glibc ;; esac
    command -v pkg-config >/dev/null 2>&1 || package pkg-config pkgconf-pkg-config pkgconf
    pkg-config --exists libseccomp 2>/dev/null || package libseccomp-dev 'libseccomp-devel libseccomp-static glibc-static' libseccomp
}
to_run() {
    command -v bwrap >/dev/null 2>&1 || package bubblewrap bubblewrap bubblewrap
    command -v pasta >/dev/null 2>&1 || package passt passt passt
    command -v getent >/dev/null 2>&1 || package libc-bin glibc-common glibc
}
to_test() {
    command -v nft >/dev/null 2>&1 || [ -x /usr/sbin/nft ] || package nftables nftables nftables
    command -v ip >/dev/null 2>&1 || package iproute2 iproute iproute2
    command -v sysctl >/dev/null 2>&1 || [ -x /usr/sbin/sysctl ] || package procps procps-ng procps-ng
    command -v ping >/dev/null 2>&1 || package iputils-ping iputils iputils
    # nft reads the names of protocols there.
    [ -e /etc/protocols ] || package netbase setup iana-etc
    command -v gdb >/dev/null 2>&1 || package gdb gdb gdb
    command -v strace >/dev/null 2>&1 || package strace strace strace
    command -v unshare >/dev/null 2>&1 || package util-linux util-linux util-linux
    command -v ssh-agent >/dev/null 2>&1 || package openssh-client openssh-clients openssh
    command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ] || package openssh-server openssh-server openssh
    { command -v gpg && command -v gpg-agent && command -v gpgconf; } >/dev/null 2>&1 || package 'gpg gpg-agent' gnupg2 gnupg
    command -v dbus-daemon >/dev/null 2>&1 || package 'dbus-daemon dbus-bin' 'dbus-daemon dbus-tools' dbus
    command -v xdg-dbus-proxy >/dev/null 2>&1 || package xdg-dbus-proxy xdg-dbus-proxy xdg-dbus-proxy
    command -v git >/dev/null 2>&1 || package git git git
    command -v curl >/dev/null 2>&1 || package curl curl curl
    /usr/bin/python3 -c 'import ensurepip' >/dev/null 2>&1 || package 'python3 python3-venv' python3 python
    command -v tmux >/dev/null 2>&1 || package tmux tmux tmux
    # Of these only root has a use: tests/containers make a user of their own.
    if [ "$(id -u)" = 0 ]; then
        command -v podman >/dev/null 2>&1 || package podman podman podman
        command -v newuidmap >/dev/null 2>&1 || package uidmap shadow-utils shadow
        command -v slirp4netns >/dev/null 2>&1 || package slirp4netns slirp4netns slirp4netns
        [ -x /usr/lib/podman/netavark ] || [ -x /usr/libexec/podman/netavark ] ||
            package 'netavark aardvark-dns' netavark 'netavark aardvark-dns'
        command -v iptables >/dev/null 2>&1 || [ -x /usr/sbin/iptables ] || package iptables iptables iptables
        # crun, which podman prefers, refuses cgroups in hybrid mode.
        [ ! -d /sys/fs/cgroup/unified ] || command -v runc >/dev/null 2>&1 || package runc runc runc
    fi
    command -v npm >/dev/null 2>&1 || package 'nodejs npm' 'nodejs npm' 'nodejs npm'
}

# Installs packages: install_packages [WHY LIST]…; asks first unless $yes is set.
install_packages() {
    missing='' reasons=''
    while [ $# -gt 0 ]; do
        list=$(echo $2)
        if [ -n "$list" ]; then missing="$missing $list" reasons="$reasons
  $1: $list"; fi
        shift 2
    done
    missing=${missing# }
    [ -n "$missing" ] || return 0
    case $(package_manager) in
        apt-get) update='apt-get update -qq' install='apt-get install -y -qq --no-install-recommends' ;;
        dnf) update='' install='dnf install -y -q' ;;
        pacman) update='' install='pacman -S --needed --noconfirm' ;;
        *) fail "packages are missing:$reasons
No package manager known here (apt, dnf, pacman): install these yourself." ;;
    esac
    case $update,$missing in
        apt-get*openssh-server*) reasons="$reasons
Debian starts the server of openssh-server; \"systemctl disable --now ssh\" as root ends it." ;;
    esac
    sudo=''
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || fail "packages are missing:$reasons
As root: $install $missing"
        sudo='sudo '
    fi
    if [ -z "${yes:-}" ]; then
        [ -t 0 ] || fail "packages are missing:$reasons
Start with -y to install them, or yourself: $sudo$install $missing"
        say "packages are missing:$reasons"
        printf '%s' "Run \"${update:+$sudo$update && }$sudo$install $missing\"? [y/N] " >&2
        read -r answer || answer=''
        case $answer in y | Y | yes | Yes) ;; *) fail "nothing was installed, so it ends here" ;; esac
    fi
    say "installing packages, which can take some minutes"
    failed="the packages could not be installed: $sudo$install $missing"
    status=0
    [ -z "$update" ] || $sudo$update >/dev/null || status=$?
    # 100 is apt-get's own: one source of several that does not answer need not matter.
    case $status in
        0) ;;
        100) say "going on with the lists of packages that are there" ;;
        *) fail "$failed" ;;
    esac
    $sudo$install $missing >/dev/null || fail "$failed"
}

# Rust, new enough. Asked for before anything is installed: it is the one thing that is not.
find_rust() {
    # A terminal that is older than rustup's installation does not have it on PATH.
    command -v cargo >/dev/null 2>&1 || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    command -v cargo >/dev/null 2>&1 || fail "cargo was not found: install Rust (https://rustup.rs), then start this again"
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    found=$(rustc --version | cut -d' ' -f2)
    [ -n "$found" ] || fail "rustc does not work: Rust $wanted or later is needed"
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] && return
    remedy='install it with rustup (https://rustup.rs)'
    if command -v rustup >/dev/null 2>&1; then remedy='run "rustup update"'; fi
    fail "Rust $wanted or later is needed and this is $found: $remedy"
}

# Cargo's environment: it links the program statically, at a fixed address, where the system has what that takes. It then
# starts faster, and its part in the sandbox needs no library there (docs/decisions/0004-static.md).
cargo_setup() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    libdir=$(pkg-config --variable=libdir libseccomp)
    release="$root/target/release"
    target=
    case $host in *-linux-gnu) ;; *) return 0 ;; esac
    [ -f "$libdir/libseccomp.a" ] && [ -f "$(cc -print-file-name=libc.a)" ] || return 0
    export LIBSECCOMP_LINK_TYPE=static LIBSECCOMP_LIB_PATH="$libdir"
    export RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static -C relocation-model=static"
    target="--target=$host"
    release="$root/target/$host/release"
}

# The release binaries, in $release; cargo shows what it does as long as there are none.
build() {
    find_rust
    install_packages "$@"
    cargo_setup
    quiet=--quiet
    if [ ! -x "$release/claude-isolated" ]; then
        say "building, which takes a minute or two"
        quiet=''
    fi
    (cd "$root" && cargo build $quiet --release --bins $target) || fail "the build failed"
}
