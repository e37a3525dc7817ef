"""The SPIFFE Workload API at a Unix socket: workload.py SOCKET. It says `ready`.

Each line of the standard input is a message as JSON, which all streams get, and each new one at once;
each is answered by `sent`. `svids` is a list with `id`, `chain`, `key`, `bundle`, and `federated` a
map to bundles; all but the ids are names of files in DER. `pad` makes a hint of so many bytes. `raw`
is what is sent instead, and `deny` what every stream ends with.
"""
import json
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

THREADS = 16
TYPES = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REPEATED = TYPES.LABEL_OPTIONAL, TYPES.LABEL_REPEATED


def response_type():
    """X509SVIDResponse of workloadapi.proto, built by its descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="workloadapi.proto", syntax="proto3")
    svid = file.message_type.add(name="X509SVID")
    for number, (name, kind) in enumerate([
        ("spiffe_id", TYPES.TYPE_STRING), ("x509_svid", TYPES.TYPE_BYTES),
        ("x509_svid_key", TYPES.TYPE_BYTES), ("bundle", TYPES.TYPE_BYTES), ("hint", TYPES.TYPE_STRING),
    ], 1):
        svid.field.add(name=name, number=number, type=kind, label=OPTIONAL)
    response = file.message_type.add(name="X509SVIDResponse")
    response.field.add(name="svids", number=1, type=TYPES.TYPE_MESSAGE, label=REPEATED, type_name=".X509SVID")
    response.field.add(name="crl", number=2, type=TYPES.TYPE_BYTES, label=REPEATED)
    entry = response.nested_type.add(name="FederatedBundlesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=TYPES.TYPE_STRING, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=TYPES.TYPE_BYTES, label=OPTIONAL)
    response.field.add(
        name="federated_bundles", number=3, type=TYPES.TYPE_MESSAGE, label=REPEATED,
        type_name=".X509SVIDResponse.FederatedBundlesEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("X509SVIDResponse"))


Response = response_type()


def read(name):
    with open(name, "rb") as file:
        return file.read()


def encode(said):
    if "raw" in said:
        return said["raw"].encode("latin-1")
    response = Response()
    for svid in said.get("svids", []):
        response.svids.add(
            spiffe_id=svid["id"], x509_svid=b"".join(map(read, svid["chain"])), x509_svid_key=read(svid["key"]),
            bundle=b"".join(map(read, svid["bundle"])), hint="x" * said.get("pad", 0))
    for domain, bundle in said.get("federated", {}).items():
        response.federated_bundles[domain] = b"".join(map(read, bundle))
    return response.SerializeToString()


class Agent(grpc.GenericRpcHandler):
    def __init__(self):
        self.changed = threading.Condition()
        self.number, self.message, self.denied = 0, None, None

    def say(self, said):
        with self.changed:
            self.number += 1
            self.denied = said.get("deny")
            self.message = None if self.denied else encode(said)
            self.changed.notify_all()

    def service(self, details):
        if details.method == "/SpiffeWorkloadAPI/FetchX509SVID":
            return grpc.unary_stream_rpc_method_handler(self.fetch)

    def fetch(self, request, context):
        if dict(context.invocation_metadata()).get("workload.spiffe.io") != "true":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "security header missing from request")
        if request != b"":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a request has no fields")
        known = 0
        while context.is_active():
            with self.changed:
                self.changed.wait_for(lambda: self.number != known, timeout=1)
                if self.number == known:
                    continue
                known, message, denied = self.number, self.message, self.denied
            if denied is not None:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, denied)
            yield message


def main(socket):
    agent = Agent()
    options = (("grpc.max_send_message_length", 64 << 20),)
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), (agent,), options=options)
    server.add_insecure_port("unix:" + socket)
    first = json.loads(sys.stdin.readline())
    agent.say(first)
    server.start()
    print("ready", flush=True)
    for line in sys.stdin:
        agent.say(json.loads(line))
        print("sent", flush=True)


main(sys.argv[1])
