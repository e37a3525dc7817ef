//! The client's side of SOCKS 5 (RFC 1928): reads its messages and answers them, up to its request.
//! `connect.rs` answers the request, as it answers a CONNECT.

use eyelet_wire::connect::Target;
use eyelet_wire::socks::{self, Method, SocksFault, SocksPeek};

use crate::path::active::Active;
use crate::path::peek;
use crate::path::requester;
use eyelet_engine::park;
use eyelet_engine::ready::CLIENT;
use eyelet_memory::budget::CountedBuffer;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// True if the first byte is one of SOCKS 5.
pub fn is_begun(raw: &[u8]) -> bool {
    raw.first() == Some(&socks::VERSION)
}

/// Reads what the client sends up to its request, and the target of that. Bytes behind it stay in
/// `raw`.
pub async fn read_target(
    connection: &mut Active<'_>,
    raw: &mut CountedBuffer,
) -> Result<Target, End> {
    let greeting = message(connection, raw, socks::read_greeting).await?;
    let method = greeting.map(|methods| methods.choose(requester::asks_user(connection)));
    match method {
        Ok(method @ Method::None) => send(connection, &method.answer()).await?,
        Ok(method @ Method::Password) => {
            send(connection, &method.answer()).await?;
            Box::pin(authenticate(connection, raw)).await?;
        }
        Ok(method @ Method::Unfit) => {
            return refuse(connection, &method.answer(), SocksFault::MethodsUnfit);
        }
        Err(fault) => return refuse(connection, &Method::Unfit.answer(), fault),
    }
    match message(connection, raw, socks::read_request).await? {
        Ok(target) => Ok(target),
        Err(fault) => refuse(connection, &fault.reply().answer(), fault),
    }
}

/// Reads the user and the password (RFC 1929), and notes the user if they are right.
async fn authenticate(connection: &mut Active<'_>, raw: &mut CountedBuffer) -> Result<(), End> {
    let (len, user) = loop {
        match socks::read_credentials(raw) {
            SocksPeek::NeedMore => {}
            SocksPeek::Read { len, message } => {
                break (len, requester::verified(connection, message.user, message.password));
            }
            SocksPeek::Malformed(fault) => {
                return refuse(connection, &socks::credentials_answer(false), fault);
            }
        }
        peek::more(connection, raw, Stage::Socks).await?;
    };
    requester::take_secret(raw, len);
    match user {
        Ok(user) => requester::note_user(&mut connection.info.decided, Some(user)),
        Err(wrong) => {
            park::close_with(connection.handle, &socks::credentials_answer(false));
            return Err(wrong);
        }
    }
    send(connection, &socks::credentials_answer(true)).await
}

/// Reads a message, and takes it off `raw`.
async fn message<T>(
    connection: &Active<'_>,
    raw: &mut CountedBuffer,
    read: impl Fn(&[u8]) -> SocksPeek<T>,
) -> Result<Result<T, SocksFault>, End> {
    loop {
        match read(raw) {
            SocksPeek::NeedMore => peek::more(connection, raw, Stage::Socks).await?,
            SocksPeek::Read { len, message } => {
                raw.consume(len);
                return Ok(Ok(message));
            }
            SocksPeek::Malformed(fault) => return Ok(Err(fault)),
        }
    }
}

async fn send(connection: &Active<'_>, answer: &[u8]) -> Result<(), End> {
    let sent = connection.handle.send_all(CLIENT, answer).await;
    let when = When::During(Stage::Socks);
    sent.map_err(|wait_error| End::failed(wait_error.reason(Limit::Hello, when)))
}

fn refuse<T>(connection: &Active<'_>, answer: &[u8], fault: SocksFault) -> Result<T, End> {
    park::close_with(connection.handle, answer);
    Err(End { outcome: Outcome::Refused, reason: Reason::MalformedSocks(fault) })
}
