"""Calls of gRPC that pause: serve, or call PORT NAME CA COUNT. Each line of the standard input is a
command, and each is answered by a line.

The service says `port N`. It takes `say TEXT` to all streams, `end`, and `goaway`: it stops, and
goes on with what is open. The client opens COUNT server streams and a bidirectional one. It takes
`hear TEXT` on all, `chat TEXT`, `cancel` of one, `over` and `lost`: how all of them end.
"""
import queue
import sys
from concurrent import futures

import grpc

THREADS = 128
streams = []


def down(_request, context):
    said = queue.SimpleQueue()
    streams.append(said)
    context.add_callback(lambda: said.put(None))
    yield b"first"
    yield from iter(said.get, None)


def chat(requests, _):
    yield from requests


class Rest(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/test.Rest/Down": grpc.unary_stream_rpc_method_handler(down),
            "/test.Rest/Chat": grpc.stream_stream_rpc_method_handler(chat),
        }.get(details.method)


def commands():
    for line in sys.stdin:
        command, _, text = line.rstrip("\n").partition(" ")
        yield command, text.encode()
        print(command, "done", flush=True)


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), (Rest(),))
    print("port", server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    for command, text in commands():
        if command == "goaway":
            server.stop(60)
            continue
        for stream in streams:
            stream.put(text if command == "say" else None)


def call(port, name, ca, count):
    with open(ca, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    options = (("grpc.ssl_target_name_override", name),)
    waiting = queue.SimpleQueue()
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        down = channel.unary_stream("/test.Rest/Down")
        calls = [down(b"") for _ in range(int(count))]
        assert [next(call) for call in calls] == [b"first"] * len(calls)
        both = channel.stream_stream("/test.Rest/Chat")(iter(waiting.get, None))
        waiting.put(b"hello")
        assert next(both) == b"hello"
        print("open", flush=True)
        for command, text in commands():
            if command == "hear":
                assert [next(call) for call in calls] == [text] * len(calls)
            elif command == "chat":
                waiting.put(text)
                assert next(both) == text
            elif command == "cancel":
                calls.pop().cancel()
            elif command == "over":
                waiting.put(None)
                for call in [*calls, both]:
                    assert list(call) == [] and call.code() == grpc.StatusCode.OK
            elif command == "lost":
                for call in [*calls, both]:
                    try:
                        next(call)
                        raise AssertionError("it goes on")
                    except grpc.RpcError as error:
                        print(error.code(), flush=True)
                waiting.put(None)
                return


if sys.argv[1] == "serve":
    serve()
else:
    call(*sys.argv[2:])
