//! Rules as tables and as properties. Each file is a module of one program, because each link takes
//! its time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connect;
mod covers;
mod evidence;
mod property;
mod requests;
mod source;
mod table;
mod words;
