"""A gRPC service without generated code, and its client: serve, or call PORT NAME CA.

The service says `port N`. The client says `ok` when each kind of call gave what it must.
"""
import queue
import sys
from concurrent import futures

import grpc

CALLS = 20
LARGE = b"x" * 1_000_000


def unary(request, context):
    if request == b"fail":
        context.set_trailing_metadata((("x-why", "asked"),))
        context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    if request == b"wait":
        # The caller's deadline is over long before, and the edge says so by a reset.
        ended = queue.SimpleQueue()
        context.add_callback(lambda: ended.put(None))
        ended.get(timeout=30)
    return request


def down(request, _):
    for i in range(int(request)):
        yield b"%d" % i


def up(requests, _):
    return b"%d" % sum(map(len, requests))


def chat(requests, _):
    yield from requests


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/test.Echo/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/test.Echo/Down": grpc.unary_stream_rpc_method_handler(down),
            "/test.Echo/Up": grpc.stream_unary_rpc_method_handler(up),
            "/test.Echo/Chat": grpc.stream_stream_rpc_method_handler(chat),
        }.get(details.method)


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(8), (Echo(),))
    print("port", server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("no error")


def talk(channel):
    """Each message is sent when the one before has come back."""
    waiting = queue.SimpleQueue()
    answers = channel.stream_stream("/test.Echo/Chat")(iter(waiting.get, None), timeout=30)
    for i in range(CALLS):
        waiting.put(b"%d" % i)
        assert next(answers) == b"%d" % i
    waiting.put(None)
    assert list(answers) == []


def call(port, name, ca):
    with open(ca, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    options = (("grpc.ssl_target_name_override", name),)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        unary = channel.unary_unary("/test.Echo/Unary")
        answers = [unary.future(b"%d" % i, timeout=30) for i in range(CALLS)]
        assert [answer.result() for answer in answers] == [b"%d" % i for i in range(CALLS)]
        assert unary(LARGE, timeout=30) == LARGE
        down = channel.unary_stream("/test.Echo/Down")(b"2000", timeout=30)
        assert list(down) == [b"%d" % i for i in range(2000)]
        up = channel.stream_unary("/test.Echo/Up")
        assert up((LARGE[:9_000] for _ in range(CALLS)), timeout=30) == b"%d" % (9_000 * CALLS)
        talk(channel)
        error = status_of(lambda: unary(b"fail", timeout=30))
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        assert error.details() == "no such thing", error
        assert ("x-why", "asked") in error.trailing_metadata(), error
        error = status_of(lambda: channel.unary_unary("/test.Echo/Missing")(b"", timeout=30))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
        error = status_of(lambda: unary(b"wait", timeout=0.5))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
        assert unary(b"last", timeout=30) == b"last"
    print("ok")


if sys.argv[1] == "serve":
    serve()
else:
    call(*sys.argv[2:])
