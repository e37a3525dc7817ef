//! Recordings that are whole, that have lost something, and that lie.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{Uid, set_thread_res_uid};

use super::*;

const MANY_CARRIERS: usize = 100;

/// A socket, and the other end that shows which one it is.
fn pair() -> (UnixStream, OwnedFd) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours, theirs.into())
}

fn send(recorder: &mut Recorder, kind: u8, body: &[u8], sockets: &[&OwnedFd]) {
    let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
    recorder.send(kind, body, &sockets).unwrap();
}

/// A sealed file with these bytes.
fn sealed(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let memfd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(memfd);
    file.write_all(bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn error_of(descriptors: Vec<OwnedFd>) -> ErrorKind {
    Recording::open(descriptors).unwrap_err().kind()
}

#[test]
fn a_recording_is_read_as_it_was_written_in_whatever_order_it_comes() {
    const MANY: u8 = 200;
    let mut recorder = Recorder::new(MANY_CARRIERS).unwrap();
    let mut peers = Vec::new();
    for n in 0..MANY {
        let (peer, socket) = pair();
        send(&mut recorder, 1 + n % 2, &[n; 3], &[&socket]);
        peers.push(peer);
    }
    send(&mut recorder, 3, b"the end", &[]);
    let mut kept = recorder.finish().unwrap();
    assert_eq!(kept.len(), 1 + usize::from(MANY).div_ceil(CARRIER_MESSAGES_MAX));
    kept.reverse();
    let mut recording = Recording::open(kept).unwrap();
    let mut body = Vec::new();
    for (n, peer) in (0..MANY).zip(&mut peers) {
        let mut received = recording.receive(&mut body).unwrap();
        assert_eq!((received.kind, &body[..]), (1 + n % 2, &[n; 3][..]));
        let socket = UnixStream::from(received.descriptors.remove(0));
        (&socket).write_all(&[n]).unwrap();
        let mut byte = [0];
        peer.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [n], "its own socket");
    }
    let last = recording.receive(&mut body).unwrap();
    assert_eq!((last.kind, &body[..], last.descriptors.len()), (3, &b"the end"[..], 0));
    assert_eq!(recording.receive(&mut body).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn sockets_stay_open_as_long_as_the_recording_and_no_longer() {
    let (mut peer, socket) = pair();
    let mut recorder = Recorder::new(MANY_CARRIERS).unwrap();
    send(&mut recorder, 1, b"", &[&socket]);
    drop(socket);
    peer.set_nonblocking(true).unwrap();
    let kept = recorder.finish().unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(kept);
    peer.set_nonblocking(false).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

/// A recording of two messages more than a carrier takes, and the peer of their socket.
fn three_parts() -> (UnixStream, Vec<OwnedFd>) {
    let (peer, socket) = pair();
    let mut recorder = Recorder::new(3).unwrap();
    for n in 0..=CARRIER_MESSAGES_MAX {
        send(&mut recorder, 1, &[n as u8], &[&socket]);
    }
    (peer, recorder.finish().unwrap())
}

/// The number of descriptors of each message.
fn descriptors(kept: Vec<OwnedFd>) -> Vec<usize> {
    let mut recording = Recording::open(kept).unwrap();
    let mut next = || recording.receive(&mut Vec::new()).ok();
    std::iter::from_fn(|| next().map(|received| received.descriptors.len())).collect()
}

#[test]
fn what_a_store_has_lost_is_missing_and_the_rest_is_there() {
    let (_peer, mut kept) = three_parts();
    assert_eq!(kept.len(), 3);
    let first = kept.remove(1);
    let mut expected = vec![0; CARRIER_MESSAGES_MAX + 1];
    expected[CARRIER_MESSAGES_MAX] = 1;
    assert_eq!(descriptors(kept), expected);
    drop(first);
}

/// A process that has read a carrier has taken its sockets. Another one gets none, and no others.
#[test]
fn sockets_are_read_once() {
    let (_peer, kept) = three_parts();
    let again: Vec<OwnedFd> = kept.iter().map(|kept| kept.try_clone().unwrap()).collect();
    assert_eq!(descriptors(kept), [1; CARRIER_MESSAGES_MAX + 1]);
    assert_eq!(descriptors(again), [0; CARRIER_MESSAGES_MAX + 1]);
}

/// A process that cannot start has read the first part only.
#[test]
fn parts_are_read_one_by_one() {
    let (_peer, socket) = pair();
    let mut recorder = Recorder::new(3).unwrap();
    send(&mut recorder, 1, b"", &[&socket]);
    recorder.end_carrier();
    send(&mut recorder, 2, b"", &[&socket]);
    let kept = recorder.finish().unwrap();
    let again = kept.iter().map(|kept| kept.try_clone().unwrap()).collect();
    let mut recording = Recording::open(kept).unwrap();
    assert_eq!(recording.receive(&mut Vec::new()).unwrap().descriptors.len(), 1);
    drop(recording);
    assert_eq!(descriptors(again), [0, 1]);
}

/// A restart in the middle of an upgrade has two processes keep what they have.
#[test]
fn recordings_of_two_processes_are_read_one_after_the_other() {
    let (_peer, socket) = pair();
    let one = |kind| {
        let mut recorder = Recorder::new(3).unwrap();
        send(&mut recorder, kind, b"", &[&socket]);
        recorder.finish().unwrap()
    };
    let [first, second] = [one(1), one(2)];
    let mixed = first.into_iter().zip(second).flat_map(|(first, second)| [second, first]);
    let mut recording = Recording::open(mixed.collect()).unwrap();
    for kind in [2, 1] {
        let received = recording.receive(&mut Vec::new()).unwrap();
        assert_eq!((received.kind, received.descriptors.len()), (kind, 1));
        assert!(recording.receive(&mut Vec::new()).is_err());
        assert_eq!(recording.next_part(), kind == 2);
    }
}

#[test]
fn a_full_recording_says_so_and_stays_whole() {
    let (_peer, socket) = pair();
    let mut recorder = Recorder::new(2).unwrap();
    for _ in 0..CARRIER_MESSAGES_MAX {
        send(&mut recorder, 1, b"", &[&socket]);
    }
    let error = recorder.send(1, b"", &[socket.as_fd()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    send(&mut recorder, 2, b"", &[]);
    let kept = recorder.finish().unwrap();
    assert_eq!(kept.len(), 2);
    assert_eq!(descriptors(kept).len(), CARRIER_MESSAGES_MAX + 1);
}

#[test]
fn only_a_sealed_whole_recording_of_this_version_is_read() {
    let (_peer, socket) = pair();
    assert_eq!(error_of(vec![]), ErrorKind::InvalidData);
    assert_eq!(error_of(vec![socket]), ErrorKind::InvalidData);
    let two = vec![sealed(&MAGIC, SEALS), sealed(b"EYST\x02", SEALS)];
    assert_eq!(error_of(two), ErrorKind::InvalidData);
    for left_out in [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let kind = error_of(vec![sealed(&MAGIC, SEALS.difference(left_out))]);
        assert_eq!(kind, ErrorKind::InvalidData, "{left_out:?}");
    }
    let plain = OwnedFd::from(File::open("/dev/null").unwrap());
    assert_eq!(error_of(vec![plain]), ErrorKind::InvalidData);
    assert_eq!(error_of(vec![sealed(b"EYST\x02", SEALS)]), ErrorKind::InvalidData);
    assert_eq!(error_of(vec![sealed(b"EYS", SEALS)]), ErrorKind::UnexpectedEof);
}

#[test]
fn frames_that_lie_are_errors() {
    let error_of = |frame: &[u8]| {
        let mut recording =
            Recording::open(vec![sealed(&[&MAGIC, frame].concat(), SEALS)]).unwrap();
        recording.receive(&mut Vec::new()).unwrap_err().kind()
    };
    // Cut, too many descriptors, too long, longer than the file, a carrier without a cookie.
    assert_eq!(error_of(&[1, 0, 0, 0]), ErrorKind::UnexpectedEof);
    assert_eq!(error_of(&[1, 0xff, 0xff, 0, 0, 0, 0]), ErrorKind::InvalidData);
    assert_eq!(error_of(&[1, 0, 0, 0xff, 0, 0, 0]), ErrorKind::InvalidData);
    assert_eq!(error_of(&[1, 0, 0, 0, 0, 0, 9]), ErrorKind::UnexpectedEof);
    assert_eq!(error_of(&[0, 0, 0, 0, 0, 0, 0]), ErrorKind::UnexpectedEof);
}

/// The rest of the recording is read, and so is the next carrier.
#[test]
fn a_carrier_that_fails_ends_alone() {
    let (_peer, socket) = pair();
    let (_other_peer, other) = pair();
    let mut recorder = Recorder::new(3).unwrap();
    send(&mut recorder, 1, b"", &[&socket]);
    // Nobody has recorded this one.
    let (carrier, _) = recorder.carrier().unwrap();
    carrier.send_unheard(1, &[other.as_fd()], CARRIER_TIMEOUT).unwrap();
    send(&mut recorder, 1, b"", &[&socket]);
    send(&mut recorder, 1, b"", &[&socket]);
    recorder.end_carrier();
    send(&mut recorder, 1, b"", &[&socket]);
    let mut recording = Recording::open(recorder.finish().unwrap()).unwrap();
    let mut next = || {
        let count = recording.receive(&mut Vec::new()).unwrap().descriptors.len();
        (count, recording.take_fault().map(|error| error.kind()))
    };
    let fault = Some(ErrorKind::InvalidData);
    assert_eq!([next(), next(), next(), next()], [(1, None), (0, fault), (0, None), (1, None)]);
}

/// The kernel's error in the middle of a message takes nothing else along.
#[test]
fn a_message_that_fails_leaves_the_others() {
    let (_peer, socket) = pair();
    let mut recorder = Recorder::new(4).unwrap();
    send(&mut recorder, 1, b"one", &[&socket]);
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    // The carrier takes it, and it has no cookie.
    assert!(recorder.send(1, b"two", &[file.as_fd()]).is_err());
    send(&mut recorder, 1, b"three", &[&socket]);
    send(&mut recorder, 2, b"", &[]);
    assert_eq!(descriptors(recorder.finish().unwrap()), [1, 1, 0]);
}

/// Sockets close for their peers, whoever else has the carriers.
#[test]
fn what_is_closed_is_closed_for_all() {
    let (mut peer, socket) = pair();
    let mut recorder = Recorder::new(3).unwrap();
    send(&mut recorder, 1, b"", &[&socket]);
    recorder.end_carrier();
    send(&mut recorder, 1, b"", &[&socket]);
    drop(socket);
    let kept = recorder.finish().unwrap();
    let _again: Vec<OwnedFd> = kept.iter().map(|kept| kept.try_clone().unwrap()).collect();
    let mut recording = Recording::open(kept).unwrap();
    drop(recording.receive(&mut Vec::new()).unwrap());
    recording.close();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

/// The kernel counts what is on its way for each user, and lets only root exceed the limit. What
/// was recorded until then can still be given away.
#[test]
fn a_recording_is_full_where_too_many_descriptors_are_on_their_way() {
    const MESSAGES_MAX: usize = 200;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) as usize;
    if process::user() != 0 || limit / DESCRIPTORS_MAX >= MESSAGES_MAX {
        return; // another test of this user would be in the way, or the limit is too far
    }
    let test = std::thread::spawn(|| {
        let nobody = Uid::from_raw(65_533);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let (_peer, socket) = pair();
        let sockets = [socket.as_fd(); DESCRIPTORS_MAX];
        let mut recorder = Recorder::new(MANY_CARRIERS).unwrap();
        let sent = (0..MESSAGES_MAX).map(|_| recorder.send(1, b"", &sockets));
        let error = sent.filter_map(Result::err).next().unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        send(&mut recorder, 2, b"", &[]);
        let kept = recorder.finish().unwrap();
        let carriers: Vec<BorrowedFd<'_>> = kept.iter().map(AsFd::as_fd).collect();
        let (mut near, _far) = Channel::pair().unwrap();
        near.send_unheard(1, &carriers, CARRIER_TIMEOUT).unwrap();
    });
    test.join().unwrap();
}

/// Whoever seals it has the last word: not even its maker can change it.
#[test]
fn a_whole_recording_cannot_be_changed() {
    let mut kept = Recorder::new(MANY_CARRIERS).unwrap().finish().unwrap();
    let file = File::from(kept.remove(0));
    assert!(file.write_all_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
}

#[test]
fn the_limits_of_a_message_are_kept() {
    let (_peer, socket) = pair();
    let sockets = [socket.as_fd(); DESCRIPTORS_MAX + 1];
    let error = Recorder::new(MANY_CARRIERS).unwrap().send(1, b"", &sockets).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = Recorder::new(MANY_CARRIERS).unwrap().send(CARRIER, b"", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Whatever a file says, reading it ends, and a message has all of its own descriptors or none.
#[test]
fn no_file_is_too_strange() {
    let (_peer, socket) = pair();
    let make = || {
        let mut recorder = Recorder::new(MANY_CARRIERS).unwrap();
        send(&mut recorder, 1, b"state", &[&socket]);
        send(&mut recorder, 2, b"", &[&socket, &socket]);
        let mut kept = recorder.finish().unwrap();
        let file = File::from(kept.remove(0));
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        (bytes, kept)
    };
    let own = sockopt::socket_cookie(&socket).unwrap();
    for at in MAGIC.len()..make().0.len() {
        for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
            let (mut bytes, carriers) = make();
            bytes[at] = byte;
            let all = std::iter::once(sealed(&bytes, SEALS)).chain(carriers).collect();
            let mut recording = Recording::open(all).unwrap();
            let mut messages = 0;
            while let Ok(received) = recording.receive(&mut Vec::new()) {
                let mut cookies = received.descriptors.iter().map(sockopt::socket_cookie);
                assert!(cookies.all(|cookie| cookie == Ok(own)), "{at} {byte}");
                messages += 1;
            }
            assert!(messages <= bytes.len() / FRAME_BYTES, "{at} {byte}");
        }
    }
}
