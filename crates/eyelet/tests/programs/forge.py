"""A forge: git over HTTPS by `git http-backend`, and a registry of npm at /npm/.

Arguments: the folder of repositories, a certificate, its key. It says `port N`, then each request.
"""
import base64
import hashlib
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORIES, CERTIFICATE, KEY = sys.argv[1:]


def package():
    """The tarball of a package with one file."""
    manifest = json.dumps({"name": "thing", "version": "1.2.3"}).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(manifest)
        tar.addfile(entry, io.BytesIO(manifest))
    return packed.getvalue()


TARBALL = package()


class Forge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        print(self.requestline, flush=True)

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def say(self, status, kind, body, more=()):
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", len(body)), *more):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def git(self):
        path, _, query = self.path.partition("?")
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": REPOSITORIES,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        body = self.body()
        environment["CONTENT_LENGTH"] = str(len(body))
        backend = ["git", "http-backend"]
        ran = subprocess.run(backend, input=body, env=environment, stdout=subprocess.PIPE)
        head, _, answer = ran.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(fields.get("Status", "200").split()[0])
        self.say(status, fields.get("Content-Type", "text/plain"), answer)

    def npm(self):
        self.body()
        if self.command == "PUT":
            self.say(201, "application/json", b'{"ok":true}')
        elif self.path.endswith(".tgz"):
            self.say(200, "application/octet-stream", TARBALL)
        else:
            integrity = base64.b64encode(hashlib.sha512(TARBALL).digest()).decode()
            tarball = f"https://{self.headers['Host']}/npm/thing/-/thing-1.2.3.tgz"
            dist = {"tarball": tarball, "integrity": f"sha512-{integrity}"}
            version = {"name": "thing", "version": "1.2.3", "dist": dist}
            about = {
                "name": "thing",
                "dist-tags": {"latest": "1.2.3"},
                "versions": {"1.2.3": version},
            }
            self.say(200, "application/json", json.dumps(about).encode())

    def do_GET(self):
        if self.path.startswith("/npm/"):
            self.npm()
        else:
            self.git()

    do_POST = do_GET
    do_PUT = do_GET


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server = ThreadingHTTPServer(("127.0.0.1", 0), Forge)
server.socket = context.wrap_socket(server.socket, server_side=True)
print("port", server.server_address[1], flush=True)
server.serve_forever()
