# A TCP echo for the tests of `eyelet run --tcp`. It expects a PROXY v2 header first.
import asyncio
import os
import socket
import struct


async def serve(reader, writer):
    head = await reader.readexactly(16)
    assert head[:12] == b"\r\n\r\n\0\r\nQUIT\n", head
    rest = await reader.readexactly(struct.unpack("!H", head[14:])[0])
    client = socket.inet_ntoa(rest[:4])
    writer.write(f"client {client}\n".encode())
    while piece := await reader.read(4096):
        writer.write(piece)
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(os.environ["PORT"]))
    async with server:
        await server.serve_forever()


asyncio.run(main())
