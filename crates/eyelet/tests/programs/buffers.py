"""buffers.py CERTIFICATE KEY HOW: an https server on OpenSSL. `kept` is the planted fault: without
SSL_MODE_RELEASE_BUFFERS, which Python sets, each idle connection keeps its buffers."""
import _ssl
import ctypes
import selectors
import socket
import ssl
import sys

certificate, key, how = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
if how == "kept":
    openssl = ctypes.CDLL(_ssl.__file__)
    openssl.SSL_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
    # The SSL_CTX stands behind the two words that each Python object begins with.
    word = ctypes.sizeof(ctypes.c_void_p)
    pointer = ctypes.cast(id(context) + 2 * word, ctypes.POINTER(ctypes.c_void_p))[0]
    clear_mode, release_buffers = 78, 0x10
    openssl.SSL_CTX_ctrl(pointer, clear_mode, release_buffers, None)
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
listener.setblocking(False)
waiting = selectors.DefaultSelector()
waiting.register(listener, selectors.EVENT_READ, None)
print(f"port {listener.getsockname()[1]};", flush=True)


def go_on(stream, state):
    """Returns whether the connection stays."""
    try:
        if not state["open"]:
            stream.do_handshake()
            state["open"] = True
        elif stream.recv(4096):
            stream.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\na page")
            return False
        else:
            return False
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except OSError:
        return False
    return True


while True:
    for ready, _ in waiting.select():
        if ready.data is not None:
            if not go_on(ready.fileobj, ready.data):
                waiting.unregister(ready.fileobj)
                ready.fileobj.close()
            continue
        raw = listener.accept()[0]
        raw.setblocking(False)
        tls = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        waiting.register(tls, selectors.EVENT_READ, {"open": False})
