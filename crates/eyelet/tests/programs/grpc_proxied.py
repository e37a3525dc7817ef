"""A gRPC service behind TLS, and calls of two of its methods through a CONNECT proxy.

Arguments: the proxy's address, a name, the service's certificate and key, the client's roots, and
perhaps a field with a value for the calls. Says what came of each call, and of that field.
"""
import os
import sys
from concurrent import futures

PROXY, NAME, CERTIFICATE, KEY, ROOTS, *FIELD = sys.argv[1:]
os.environ["grpc_proxy"] = f"http://{PROXY}"
os.environ["no_grpc_proxy"] = os.environ["no_proxy"] = ""

import grpc  # It reads its proxy from the variables above.


def read(file):
    with open(file, "rb") as opened:
        return opened.read()


class Things(grpc.GenericRpcHandler):
    def service(self, details):
        given = [value for name, value in details.invocation_metadata if [name] == FIELD[:1]]
        print("served", details.method, *given, flush=True)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


server = grpc.server(futures.ThreadPoolExecutor(2), (Things(),))
credentials = grpc.ssl_server_credentials([(read(KEY), read(CERTIFICATE))])
port = server.add_secure_port("127.0.0.1:0", credentials)
server.start()
options = (("grpc.ssl_target_name_override", NAME),)
metadata = (tuple(FIELD),) if FIELD else ()
trusted = grpc.ssl_channel_credentials(read(ROOTS))
with grpc.secure_channel(f"127.0.0.1:{port}", trusted, options) as channel:
    for method in ("Read", "Delete", "Read"):
        try:
            call = channel.unary_unary(f"/test.Things/{method}")
            said = call(b"x", timeout=30, metadata=metadata)
            print(method, said.decode(), flush=True)
        except grpc.RpcError as error:
            print(method, error.code().name, error.details(), flush=True)
server.stop(None)
