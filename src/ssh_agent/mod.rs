//! The user's ssh-agent, for a sandbox that may have signatures and no more.
//!
//! An agent can be told to load a library on the host (`ssh-add -s`), to take keys and to give its keys up to a removal;
//! so what the program sends is looked at, message by message. The sandbox's first process makes the socket, in a file
//! system that only the sandbox has, and hands it out; whoever runs outside has a [`relay::Relay`] in its poll loop.

pub mod message;
pub mod relay;
