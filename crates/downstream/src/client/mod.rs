//! The client's side of exchanges, by HTTP/1.1 or HTTP/2: what requests come from, and what
//! responses go to.

pub mod ahead;
pub mod exchange_error;
pub mod failure;
pub mod head;
pub mod http2;
pub mod io;
pub mod request_check;
pub mod resting_client;
pub mod resting_stream;
pub mod secrets;
pub mod state;
pub mod stream;
pub mod streams;
