//! The reason why the Workload API gives nothing that can be used.

use std::io;
use std::time::Duration;

use eyelet_h2::ErrorCode;
use eyelet_pki::spiffe::id::SpiffeIdFault;
use eyelet_tls::workload::WorkloadFault;
use thiserror::Error;

use crate::grpc::GrpcFault;
use crate::protobuf::ProtobufFault;

/// `PermissionDenied` of gRPC: the workload has no identity.
const PERMISSION_DENIED: u32 = 7;

/// The reason why a call has ended, or could not begin.
#[derive(Debug, Error)]
pub enum CallFault {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the agent has closed the connection")]
    Closed,
    #[error("{0}")]
    Io(io::Error),
    #[error("nothing came within {} seconds", .0.as_secs())]
    Late(Duration),
    #[error("HTTP/2: {0}")]
    Http2(String),
    #[error("the agent has reset the call: {0}")]
    Reset(ErrorCode),
    #[error("the agent answers with status {0}: it is no Workload API")]
    Status(u16),
    #[error("the agent answers by something else than gRPC: it is no Workload API")]
    NotGrpc,
    /// The call's end, by the agent's word.
    #[error("{}", shown(*code, message))]
    Ended {
        /// The code of gRPC.
        code: u32,
        /// The agent's words.
        message: String,
    },
    #[error("{0}")]
    Grpc(#[from] GrpcFault),
    #[error("a message cannot be used: {0}")]
    Message(#[from] MessageFault),
}

/// The reason why a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageFault {
    #[error("no Protocol Buffers: {0}")]
    Protobuf(ProtobufFault),
    #[error("field {0} has another type than in workloadapi.proto")]
    WrongType(u32),
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("it has too many parts")]
    TooMany,
    #[error("certificates are not in DER")]
    Der,
    #[error("an id is not UTF-8: {0:?}")]
    NotText(String),
    #[error("{0:?}: {1}")]
    Id(String, SpiffeIdFault),
    #[error("{0}")]
    Pair(String),
    #[error("{0}")]
    Workload(#[from] WorkloadFault),
}

impl CallFault {
    /// True if the agent says that this workload has no identity any more (section 5.2.1: "the
    /// client SHOULD cease using the redacted SVIDs").
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Ended { code: PERMISSION_DENIED, .. })
    }

    /// The advice for an operator, if there is a clear one.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Connect(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    "; start the agent, or correct the path of its socket"
                }
                io::ErrorKind::PermissionDenied => "; let Eyelet's user open the socket",
                _ => "",
            },
            Self::Ended { code: PERMISSION_DENIED, .. } => {
                "; register an identity for Eyelet's process"
            }
            _ => "",
        }
    }
}

fn shown(code: u32, message: &str) -> String {
    let said = if message.is_empty() { String::new() } else { format!(", {message:?}") };
    match code {
        0 => "the agent has ended the call".into(),
        PERMISSION_DENIED => format!("the agent has no identity for this process{said}"),
        code => format!("the agent ends the call by code {code} of gRPC{said}"),
    }
}
