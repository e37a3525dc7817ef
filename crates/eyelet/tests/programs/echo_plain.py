# After, and before with two arguments (certificate, key): an echo with asyncio.
import asyncio
import os
import ssl
import sys


async def serve(reader, writer):
    while piece := await reader.read(4096):
        writer.write(piece)
        await writer.drain()
    writer.close()


async def main():
    tls = None
    if len(sys.argv) == 3:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[1], sys.argv[2])
    server = await asyncio.start_server(serve, "127.0.0.1", int(os.environ["PORT"]), ssl=tls)
    async with server:
        await server.serve_forever()


asyncio.run(main())
