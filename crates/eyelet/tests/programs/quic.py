"""A QUIC server and client by aioquic: what a client asks for is a number of bytes.

quic.py serve CERTIFICATE KEY [retry]   prints its port, and serves until its input ends
quic.py ask PORT NAME BYTES CA          prints what came as JSON: bytes, or the error's code

Behind either: `versions=1,2`, those of QUIC in their order, and `first=2`, the client's first one.
"""

import asyncio
import json
import ssl
import sys
import time

from aioquic.asyncio import connect, serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived
from aioquic.quic.packet import QuicProtocolVersion

ALPN = ["eyelet-test"]
VERSIONS = {"1": QuicProtocolVersion.VERSION_1, "2": QuicProtocolVersion.VERSION_2}


def options(configuration, words):
    """Sets what the words behind the others say."""
    for key, _, value in (word.partition("=") for word in words):
        if key == "versions":
            configuration.supported_versions = [VERSIONS[one] for one in value.split(",")]
        if key == "first":
            configuration.original_version = VERSIONS[value]


class Server(QuicConnectionProtocol):
    """Answers each stream with as many bytes as it asks for."""

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, bytes(int(event.data)), end_stream=True)
            self.transmit()


class Client(QuicConnectionProtocol):
    """Counts the bytes of one answer."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.received, self.over = 0, asyncio.get_running_loop().create_future()

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived):
            self.received += len(event.data)
            if event.end_stream and not self.over.done():
                self.over.set_result({"bytes": self.received})
        if isinstance(event, ConnectionTerminated) and not self.over.done():
            self.over.set_result({"code": event.error_code, "bytes": self.received})


async def run_server(certificate, key, words):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=ALPN)
    options(configuration, words)
    configuration.load_cert_chain(certificate, key)
    server = await serve(
        "127.0.0.1",
        0,
        configuration=configuration,
        create_protocol=Server,
        retry="retry" in words,
    )
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def ask(port, name, count, authorities, words):
    configuration = QuicConfiguration(
        alpn_protocols=ALPN, server_name=name, cafile=authorities, idle_timeout=30
    )
    options(configuration, words)
    began, clients = time.monotonic(), []

    def create(*arguments, **more):
        clients.append(Client(*arguments, **more))
        return clients[-1]

    said = {}
    try:
        async with connect(
            "127.0.0.1", port, configuration=configuration, create_protocol=create
        ) as client:
            stream = client._quic.get_next_available_stream_id()
            client._quic.send_stream_data(stream, str(count).encode(), end_stream=True)
            client.transmit()
            said = await client.over
            versions = {number: int(name) for name, number in VERSIONS.items()}
            said["version"] = versions.get(client._quic._version)
    except ConnectionError:
        said = await asyncio.wait_for(clients[-1].over, 1)
    said["seconds"] = time.monotonic() - began
    print(json.dumps(said), flush=True)


if sys.argv[1] == "serve":
    asyncio.run(run_server(sys.argv[2], sys.argv[3], sys.argv[4:]))
else:
    asyncio.run(ask(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6:]))
