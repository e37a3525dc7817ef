//! Connections end to end, whatever they carry: hellos, handshakes, splicing, refusing, parking,
//! starting and draining; and the names that they ask for: evidence, DNS, gateways and rules in
//! shadow. Each file is a module. Knows the program only by its sockets and logs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod accounted;
mod acme;
mod acme_dns;
mod admin;
mod admin_page;
mod asked;
mod asks;
mod bad_input;
mod balance;
mod by_dns;
mod by_request;
mod clients;
mod compressed_certificate;
mod connect;
mod demo;
mod early_data;
mod ends;
mod evidence;
mod families;
mod fleet;
mod foreign_records;
mod full_queue;
mod gateway;
mod half_close;
mod handshake;
mod held;
mod hellos;
mod key_types;
mod life;
mod listed;
mod lists;
mod liveness;
mod local;
mod logged;
mod manual;
mod many_names;
mod measured;
mod mint;
mod mint_faults;
mod mistakes;
mod packages;
mod pages;
mod plain_http;
mod probe;
mod probe_faults;
mod probes;
mod proxy;
mod quic_flows;
mod rates;
mod refuse;
mod reload;
mod renewal;
mod resolvers;
mod revoked;
mod secrets;
mod secure_dns;
mod service;
mod shadow;
mod socks;
mod source_addresses;
mod spiffe;
mod splice;
mod systemd;
mod terminate;
mod tickets;
mod top;
mod unread;
mod upgrade;
mod upgrade_fails;
mod upgrade_formats;
mod upgrade_http2;
mod upgrade_lingers;
mod upgrade_resting;
mod upgrade_tight;
mod waiting;
mod watched;
mod wrong_clock;
