"""The new process of an upgrade as another version of the program would be: a real one serves
behind it, and this one changes what the two processes say to each other.

Arguments: how, the program, and the program's arguments. `older`: it reads the formats 1 to 3, and
`before6` those up to 5.
`newer`, `cut`, `longer`: the first connection of the first batch has a newer format, the batch
lacks its last byte, or the length of the first connection is too great.
"""

import array
import json
import os
import socket
import subprocess
import sys
import threading

READY, BATCH = 5, 9
HEADER_BYTES = 12
DESCRIPTORS_MAX = 253


def receive(channel):
    """A message: its kind, its body and its descriptors. None: the other end is closed."""
    header, descriptors = b"", []
    while len(header) < HEADER_BYTES:
        room = socket.CMSG_SPACE(4 * DESCRIPTORS_MAX)
        data, ancillary, _, _ = channel.recvmsg(HEADER_BYTES - len(header), room)
        if not data:
            return None
        for _, _, content in ancillary:
            descriptors += array.array("i", content)
        header += data
    length, body = int.from_bytes(header[8:], "big"), b""
    while len(body) < length:
        body += channel.recv(length - len(body))
    return header[5], body, descriptors


def send(channel, kind, body, descriptors):
    count, length = len(descriptors).to_bytes(2, "big"), len(body).to_bytes(4, "big")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([b"EYHO\x01", bytes([kind]), count, length], rights if descriptors else [])
    channel.sendall(body)
    # A connection has one owner.
    for descriptor in descriptors:
        os.close(descriptor)


def changed(how, kind, body, is_first):
    if kind == READY:
        ready = json.loads(body)
        # The earlier process knows this one.
        ready["pid"] = os.getpid()
        if how == "older":
            ready["formats"] = [1, 2, 3]
        if how == "before6":
            ready["formats"] = [1, 2, 3, 4, 5]
        return json.dumps(ready).encode()
    if kind == BATCH and is_first:
        # Before each state: its length in four bytes, and the number of its sockets in one.
        if how == "newer":
            return body[:5] + b"\x70\x00" + body[7:]
        if how == "cut":
            return body[:-1]
        if how == "longer":
            return (int.from_bytes(body[:4], "big") + 1).to_bytes(4, "big") + body[4:]
    return body


def forward(how, source, target):
    is_first = True
    try:
        while message := receive(source):
            kind, body, descriptors = message
            send(target, kind, changed(how, kind, body, is_first), descriptors)
            is_first = is_first and kind != BATCH
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # One of the two has ended.


def main():
    how, *command = sys.argv[1:]
    earlier = socket.socket(fileno=os.dup(0))
    ours, theirs = socket.socketpair()
    behind = subprocess.Popen(command, stdin=theirs)
    theirs.close()
    print(f"successor: process {behind.pid} is behind it", file=sys.stderr, flush=True)
    for source, target in [(earlier, ours), (ours, earlier)]:
        threading.Thread(target=forward, args=(how, source, target), daemon=True).start()
    sys.exit(behind.wait())


main()
