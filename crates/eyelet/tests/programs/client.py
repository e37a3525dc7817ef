"""A TLS client: echo ADDRESS-PORT NAME CA, or http. Says `ok VERSION` when everything came back."""
import http.client
import socket
import ssl
import sys

mode, port, name, ca = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
context = ssl.create_default_context(cafile=ca)
raw = socket.create_connection(("127.0.0.1", port), timeout=20)
tls = context.wrap_socket(raw, server_hostname=name)
if mode == "echo":
    sent = bytes(i * 7 % 251 for i in range(300_000))
    for at in range(0, len(sent), 50_000):
        tls.sendall(sent[at : at + 50_000])
        got = b""
        while len(got) < 50_000:
            piece = tls.recv(65536)
            assert piece, "ended early"
            got += piece
        assert got == sent[at : at + 50_000], "other bytes"
    version = tls.version()
    # Sends close_notify and waits for the server's.
    tls.unwrap().close()
else:
    connection = http.client.HTTPConnection(name)
    connection.sock = tls
    version = tls.version()
    for i in range(3):
        connection.request("GET", f"/python/{i}")
        body = connection.getresponse().read()
        assert f"GET /python/{i} ".encode() in body, body
    connection.close()
print("ok", version)
