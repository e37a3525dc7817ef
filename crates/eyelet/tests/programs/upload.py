"""Sends requests on one kept connection to 127.0.0.1:PORT, as the lines of standard input say:
METHOD PATH FRAMING FILE [NAME: VALUE]... with tabs between. FRAMING is `length`, `chunks` or
`slow`: half of the file, then the rest when the next line comes. Prints the status and body of
each response in a line."""

import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
for line in sys.stdin:
    method, path, framing, file, *fields = line.rstrip("\n").split("\t")
    body = open(file, "rb").read() if file else b""
    connection.putrequest(method, path)
    for field in fields:
        connection.putheader(*field.split(": ", 1))
    if framing == "length":
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
    else:
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        pieces = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
        for n, piece in enumerate(pieces):
            if framing == "slow" and n == len(pieces) // 2:
                print("half", flush=True)
                sys.stdin.readline()
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        connection.send(b"0\r\n\r\n")
    response = connection.getresponse()
    accepts = response.getheader("Accept-Encoding", "nothing")
    print(response.status, accepts, response.read().decode().strip(), sep="\t", flush=True)
