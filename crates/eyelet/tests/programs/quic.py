"""A QUIC server and client by aioquic: what a client asks for is a number of bytes.

quic.py serve CERTIFICATE KEY [retry]   prints its port, and serves until its input ends
quic.py ask PORT NAME BYTES CA          prints what came as JSON: bytes, or the error's code
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

ALPN = ["eyelet-test"]


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


async def run_server(certificate, key, retry):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=ALPN)
    configuration.load_cert_chain(certificate, key)
    server = await serve(
        "127.0.0.1", 0, configuration=configuration, create_protocol=Server, retry=retry
    )
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def ask(port, name, count, authorities):
    configuration = QuicConfiguration(
        alpn_protocols=ALPN, server_name=name, cafile=authorities, idle_timeout=30
    )
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
    except ConnectionError:
        said = await asyncio.wait_for(clients[-1].over, 1)
    said["seconds"] = time.monotonic() - began
    print(json.dumps(said), flush=True)


if sys.argv[1] == "serve":
    asyncio.run(run_server(sys.argv[2], sys.argv[3], "retry" in sys.argv[4:]))
else:
    asyncio.run(ask(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]))
