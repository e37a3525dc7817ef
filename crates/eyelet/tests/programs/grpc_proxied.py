"""A gRPC service behind TLS, and calls of two of its methods through a CONNECT proxy.

Arguments: the proxy's address, a name, the service's certificate and key, the client's roots. Says
what came of each call.
"""
import os
import sys
from concurrent import futures

PROXY, NAME, CERTIFICATE, KEY, ROOTS = sys.argv[1:]
os.environ["grpc_proxy"] = f"http://{PROXY}"
os.environ["no_grpc_proxy"] = os.environ["no_proxy"] = ""

import grpc  # It reads its proxy from the variables above.


def read(file):
    with open(file, "rb") as opened:
        return opened.read()


class Things(grpc.GenericRpcHandler):
    def service(self, details):
        print("served", details.method, flush=True)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


server = grpc.server(futures.ThreadPoolExecutor(2), (Things(),))
credentials = grpc.ssl_server_credentials([(read(KEY), read(CERTIFICATE))])
port = server.add_secure_port("127.0.0.1:0", credentials)
server.start()
options = (("grpc.ssl_target_name_override", NAME),)
trusted = grpc.ssl_channel_credentials(read(ROOTS))
with grpc.secure_channel(f"127.0.0.1:{port}", trusted, options) as channel:
    for method in ("Read", "Delete", "Read"):
        try:
            said = channel.unary_unary(f"/test.Things/{method}")(b"x", timeout=30)
            print(method, said.decode(), flush=True)
        except grpc.RpcError as error:
            print(method, error.code().name, error.details(), flush=True)
server.stop(None)
