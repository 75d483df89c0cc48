//! The descriptors that the relay waits for: one epoll(7) set, itself a descriptor of the supervisor's loop, so that
//! hundreds of connections cost the loop nothing while they are silent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// What an event is for: a place in one of the relay's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// A listening TCP socket.
    Listener(usize),
    /// The end of a connection that was accepted, and the one that was made for it.
    Near(usize),
    Far(usize),
    /// A UDP socket that hears everybody, and one that was made for one peer.
    Ear(usize),
    Peer(usize),
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, at) = match self {
            Token::Listener(at) => (0, at),
            Token::Near(at) => (1, at),
            Token::Far(at) => (2, at),
            Token::Ear(at) => (3, at),
            Token::Peer(at) => (4, at),
        };
        (kind << 32) | at as u64
    }

    fn unpack(data: u64) -> Token {
        let at = data as u32 as usize;
        match data >> 32 {
            0 => Token::Listener(at),
            1 => Token::Near(at),
            2 => Token::Far(at),
            3 => Token::Ear(at),
            _ => Token::Peer(at),
        }
    }
}

#[derive(Debug)]
pub struct Set(Epoll);

/// Events taken at once.
const EVENTS: usize = 64;

impl Set {
    pub fn new() -> nix::Result<Self> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Set)
    }

    /// The next events; waits for at most `milliseconds`. One may be for something that an earlier one has ended.
    pub fn events(&self, milliseconds: u16) -> Vec<(Token, EpollFlags)> {
        let mut events = [EpollEvent::empty(); EVENTS];
        // Interrupted is as good as nothing: the loop comes back.
        let count = self
            .0
            .wait(&mut events, EpollTimeout::from(milliseconds))
            .unwrap_or(0);
        let event = |event: &EpollEvent| (Token::unpack(event.data()), event.events());
        events[..count].iter().map(event).collect()
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// A socket in the set, with what it is waited for.
#[derive(Debug)]
pub struct Watched {
    fd: OwnedFd,
    token: Token,
    /// `None` while it is not in the set.
    waits_for: Option<EpollFlags>,
}

impl Watched {
    pub fn new(fd: OwnedFd, token: Token) -> Self {
        Self {
            fd,
            token,
            waits_for: None,
        }
    }

    /// Waits for `flags`. While there are none, errors and hang-ups are told all the same (epoll_ctl(2)).
    pub fn wait_for(&mut self, set: &Set, flags: EpollFlags) -> nix::Result<()> {
        let mut event = EpollEvent::new(flags, self.token.pack());
        match self.waits_for {
            Some(now) if now == flags => return Ok(()),
            Some(_) => set.0.modify(&self.fd, &mut event)?,
            None => set.0.add(&self.fd, event)?,
        }
        self.waits_for = Some(flags);
        Ok(())
    }

    /// Takes another socket's place.
    pub fn replace(&mut self, fd: OwnedFd, set: &Set) {
        self.ignore(set);
        self.fd = fd;
    }

    /// Waits for nothing.
    pub fn ignore(&mut self, set: &Set) {
        if self.waits_for.take().is_some() {
            let _ = set.0.delete(&self.fd);
        }
    }

    pub fn is_ignored(&self) -> bool {
        self.waits_for.is_none()
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A list whose places stay what they are while others come and go.
#[derive(Debug)]
pub struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    /// Adds what `make` gives for the free place that it is told.
    pub fn insert(&mut self, make: impl FnOnce(usize) -> T) -> usize {
        let at = self.0.iter().position(Option::is_none);
        let at = at.unwrap_or(self.0.len());
        let value = Some(make(at));
        match self.0.get_mut(at) {
            Some(free) => *free = value,
            None => self.0.push(value),
        }
        at
    }

    pub fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at)?.as_ref()
    }

    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }

    pub fn remove(&mut self, at: usize) -> Option<T> {
        self.0.get_mut(at)?.take()
    }

    /// Removes those that are `chosen`.
    pub fn take(&mut self, chosen: impl Fn(&T) -> bool) -> Vec<T> {
        let all = self.0.iter_mut();
        all.filter_map(|place| place.take_if(|value| chosen(value)))
            .collect()
    }

    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(at, value)| Some((at, value.as_ref()?)))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was() {
        for token in [
            Token::Listener(0),
            Token::Near(511),
            Token::Far(1),
            Token::Ear(7),
            Token::Peer(u32::MAX as usize),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }

    #[test]
    fn places_are_used_again() {
        let mut slots = Slots::default();
        assert_eq!([(); 3].map(|()| slots.insert(|at| at * 10)), [0, 1, 2]);
        assert_eq!(slots.remove(1), Some(10));
        assert_eq!(
            (slots.remove(1), slots.get(1), slots.len()),
            (None, None, 2)
        );
        assert_eq!(slots.insert(|at| at * 10 + 1), 1);
        assert_eq!(
            slots.iter().map(|(_, v)| *v).collect::<Vec<_>>(),
            [0, 11, 20]
        );
    }
}
