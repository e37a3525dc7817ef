//! Names end to end: evidence, DNS, gateways and rules in shadow. Each file is a module. Knows the
//! program only by its sockets and logs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod asked;
mod by_dns;
mod connect;
mod evidence;
mod families;
mod gateway;
mod many;
mod mint;
mod mint_faults;
mod plain_http;
mod resolvers;
mod shadow;
