"""A half-open scan: `scan.py FROM TO PORT COUNT` sends so many SYNs, each from another port. The
kernel here knows none of these connections, so it resets each one that is answered. Needs
CAP_NET_RAW."""

import socket
import struct
import sys


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn(source, destination, source_port, port):
    head = struct.pack("!HHIIBBHHH", source_port, port, source_port, 0, 5 << 4, 2, 64240, 0, 0)
    pseudo = source + destination + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(head))
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]


source, destination = (socket.inet_aton(address) for address in sys.argv[1:3])
port, count = map(int, sys.argv[3:5])
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
for n in range(count):
    raw.sendto(syn(source, destination, 1024 + n, port), (sys.argv[2], 0))
print("sent", count)
