//! What the supervisor waits for: inotify, and a time at which something that was put off is due.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::inotify::{InitFlags, Inotify};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// One descriptor of both.
#[derive(Debug)]
pub struct Wake {
    pub inotify: Inotify,
    timer: TimerFd,
    both: Epoll,
}

impl Wake {
    pub fn new() -> nix::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let both = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        both.add(&inotify, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        both.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Self {
            inotify,
            timer,
            both,
        })
    }

    /// `None`: there is nothing to wake up for, and what was there is over.
    pub fn after(&self, time: Option<Duration>) -> nix::Result<()> {
        let Some(time) = time else {
            return self.timer.unset();
        };
        // None at all would not wake.
        let time = TimeSpec::from_duration(time.max(Duration::from_millis(1)));
        let flags = TimerSetTimeFlags::empty();
        self.timer.set(Expiration::OneShot(time), flags)
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.0.as_fd()
    }
}
