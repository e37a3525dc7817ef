"""POSTs bodies by HTTP/2 with httpx: PORT CA BYTES STATUS TIMES. Says `ok TIMES` when each answer
came whole, each on a connection of its own."""
import socket
import sys

import httpx

resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: resolve("127.0.0.1", *rest, **more)
port, ca, length, status, times = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
for i in range(times):
    with httpx.Client(http2=True, verify=ca, timeout=30, trust_env=False) as client:
        answer = client.post(f"https://app.test:{port}/{i}", content=b"x" * length)
        assert answer.http_version == "HTTP/2", answer.http_version
        assert (answer.status_code, answer.text) == (status, "early"), (i, answer, answer.text)
print("ok", times)
