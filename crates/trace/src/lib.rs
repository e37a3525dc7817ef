//! Traces of HTTP exchanges: makes their ids by W3C Trace Context, and sends their spans to a
//! collector of OpenTelemetry by OTLP/HTTP. One thread sends; nobody waits for it.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod client;
mod exporter;
pub mod live;
mod otlp;
mod queue;
pub mod span;
pub mod tracer;
