//! DNS: servers, questions and answers, and what is kept of them.

pub mod answer;
pub mod found;
pub mod https;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub mod resolved;
pub mod resolver;
pub mod resolvers;
#[cfg(test)]
mod scripted;
pub mod secure;
pub mod server;
pub mod servers;
pub mod txt;
