# An HTTP/1.1 server with one write for each response. It answers with its port; /healthz with the
# status in a file.
import socketserver, sys

port, status = int(sys.argv[1]), sys.argv[2]


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            code = open(status).read().strip() if line.split()[1] == b"/healthz" else "200"
            body = f"{port}\n"
            self.wfile.write(
                f"HTTP/1.1 {code} Answer\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


with Server(("127.0.0.1", port), Handler) as server:
    print("listening", flush=True)
    server.serve_forever()
