"""An application that says what it got of each request: a line of JSON with the length and SHA-256
of the body, its fields, and its trailers. It reads every byte before it answers, with 415 at
/no-type. Below /strict it says that it accepts zstd, and refuses all codings."""

import hashlib
import http.server
import json
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pieces(self):
        if self.headers.get("transfer-encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("content-length", 0)))
            return
        while True:
            line = self.rfile.readline()
            if not line:
                raise ConnectionError("cut")
            size = int(line.strip(), 16)
            if size == 0:
                break
            piece = self.rfile.read(size)
            if len(piece) < size or self.rfile.read(2) != b"\r\n":
                raise ConnectionError("cut")
            yield piece
        self.trailers = []
        while (line := self.rfile.readline().strip()):
            self.trailers.append(line.decode().lower())

    def answer(self):
        self.trailers, length, digest = [], 0, hashlib.sha256()
        try:
            for piece in self.pieces():
                length += len(piece)
                digest.update(piece)
                print(f"{self.path} has {length}", flush=True)
        except ConnectionError:
            print(f"{self.path} was cut after {length}", flush=True)
            self.close_connection = True
            return
        said = {
            "length": length,
            "sha256": digest.hexdigest(),
            "fields": {name.lower(): value for name, value in self.headers.items()},
            "trailers": self.trailers,
        }
        body = json.dumps(said).encode()
        strict = self.path.startswith("/strict")
        refused = strict and "content-encoding" in self.headers
        self.send_response(415 if refused or self.path == "/no-type" else 200)
        if strict:
            self.send_header("Accept-Encoding", "zstd")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_REPORT = answer

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"listening on {server.server_port}.", flush=True)
server.serve_forever()
