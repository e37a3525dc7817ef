"""POSTs streamed bodies by HTTP/2 with httpx, 8 at once on one connection: PORT CA COUNT. Says how
many came whole. Its encoder is one of many that ignore SETTINGS_HEADER_TABLE_SIZE, and fills the
table of 4,096 bytes that HTTP/2 begins with."""
import asyncio
import json
import socket
import sys

import hpack
import httpx

hpack.Encoder.header_table_size = property(
    lambda encoder: encoder.header_table.maxsize, lambda encoder, size: None)
resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: resolve("127.0.0.1", *rest, **more)
port, ca, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


async def pieces():
    for _ in range(5):
        yield b"x" * 1000
        await asyncio.sleep(0)


async def post(client, gate, nth):
    async with gate:
        fields = {"x-batch": f"{nth // 50}-" + "b" * 60, f"x-field-{nth % 16}": "v" * 60}
        try:
            answer = await client.post(f"https://app.test:{port}/{nth}", content=pieces(),
                                       headers=fields)
        except httpx.HTTPError as error:
            print(nth, repr(error))
            return False
        said = json.loads(answer.text)
        got = said["fields"]
        is_whole = said["length"] == 5000 and all(got[name] == fields[name] for name in fields)
        return answer.http_version == "HTTP/2" and is_whole


async def main():
    gate, limits = asyncio.Semaphore(8), httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(http2=True, verify=ca, timeout=60, trust_env=False,
                                 limits=limits) as client:
        done = await asyncio.gather(*(post(client, gate, nth) for nth in range(count)))
    print(sum(done), "of", count)


asyncio.run(main())
